//! XDP: packets taken before the host has made anything of them.
mod bpf;
pub mod resident;
pub use bpf::Mode;
