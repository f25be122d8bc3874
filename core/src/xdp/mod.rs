//! XDP: packets taken before the host has made anything of them.
mod kernel;
pub mod resident;
pub use kernel::Mode;
