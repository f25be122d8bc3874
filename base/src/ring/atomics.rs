//! The atomics of memory shared with the kernel, behind a name: under `--cfg loom` they are
//! loom's, so that a test can walk every interleaving of both sides.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};
