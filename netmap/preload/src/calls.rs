//! Calls into the engine that are in progress.
//!
//! A thread is not cancelled (pthread_cancel(3)) in a call, because many of libc's functions would end it between two
//! steps that belong together, such as a wake-up and its flag.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use crate::forks;

thread_local! {
    /// Calls of this thread: more than one if a signal handler makes another.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// The cancellation state of this thread before its call.
    static CANCEL_STATE: Cell<c_int> = const { Cell::new(0) };
}

/// As pthread.h has it.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    /// Sets whether this thread can be cancelled; writes the previous state.
    fn pthread_setcancelstate(state: c_int, previous: *mut c_int) -> c_int;
}

/// The number of calls in progress: of a file, so that threads with a file each share no memory, or of the
/// process.
#[derive(Debug, Default)]
pub struct Calls(AtomicU32);

/// Calls that open or close files.
pub static OPEN_AND_CLOSE: Calls = Calls(AtomicU32::new(0));

/// A call in progress, until it is dropped.
pub struct Call<'a>(&'a Calls);

impl Calls {
    /// Begins a call of this thread. Waits for the end of a fork.
    pub fn begin(&self) -> Call<'_> {
        let is_nested = is_interrupted();
        enter();
        loop {
            // SeqCst: pairs with `are_in_progress`.
            self.0.fetch_add(1, Ordering::SeqCst);
            if is_nested || !forks::are_in_progress() {
                return Call(self);
            }
            self.0.fetch_sub(1, Ordering::Relaxed);
            forks::wait();
        }
    }

    /// Forgets the calls in progress.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns true if a thread is in a call.
    pub fn are_in_progress(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        // Release: a fork that sees no call sees all that the call did.
        self.0.0.fetch_sub(1, Ordering::Release);
        leave();
    }
}

/// Marks this thread as in a call.
pub fn enter() {
    if DEPTH.replace(DEPTH.get() + 1) == 0 {
        let mut previous = 0;
        // SAFETY: the place of the previous state lives as long as the call.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut previous) };
        CANCEL_STATE.set(previous);
    }
}

/// Ends what `enter` has begun.
pub fn leave() {
    // Read before the depth is 0: then a signal handler's call saves the state of this one.
    let (depth, state) = (DEPTH.get() - 1, CANCEL_STATE.get());
    compiler_fence(Ordering::SeqCst);
    DEPTH.set(depth);
    if depth == 0 {
        // SAFETY: null: the previous state is not needed.
        unsafe { pthread_setcancelstate(state, std::ptr::null_mut()) };
    }
}

/// Returns true in a signal handler that has interrupted a call of this thread, which may hold locks.
pub fn is_interrupted() -> bool {
    DEPTH.get() > 0
}
