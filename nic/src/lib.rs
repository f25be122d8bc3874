//! Settings of network cards: changed for a time, recorded, and put back, also for a process that was
//! killed.

mod interrupts;

pub use interrupts::{Deferred, restore_interrupts};
