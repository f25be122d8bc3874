//! Signals while a call prepares to sleep.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use libc::sigset_t;

/// Blocks all signals, so that one that arrives before the sleep interrupts the sleep: the sleep unblocks
/// them as its first act. Dropping this restores the mask.
pub struct Blocked(sigset_t);

impl Blocked {
    /// Blocks all signals in this thread.
    pub fn new() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both point to a set, which the first call fills, and the second one the other.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }

    /// Returns the mask from before.
    pub fn before(&self) -> &sigset_t {
        &self.0
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is the kernel's own from before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}
