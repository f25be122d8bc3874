//! Calls into the engine that are in progress.

use std::cell::Cell;

thread_local! {
    /// Calls of this thread: more than one if a signal handler makes another.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A call in progress, until it is dropped.
pub struct Call(());

impl Call {
    /// Begins a call of this thread.
    pub fn begin() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self(())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Returns true in a signal handler that has interrupted a call of this thread, which may hold locks.
pub fn is_interrupted() -> bool {
    DEPTH.get() > 0
}
