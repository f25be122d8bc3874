//! netmap's interface to programs: structures in the shared region.

pub mod structures;

pub use structures::{InterfaceHeader, RingHeader, Slot, flags};
