//! The signal that ends a run.
#![allow(unsafe_code)]

use std::os::unix::thread::JoinHandleExt;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::sys::pthread::pthread_kill;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Interrupts the system call and does nothing else. Without a handler it is ignored; few have one.
const SIGNAL: Signal = Signal::SIGURG;

/// Has the signal interrupt system calls, from now on, and nothing else.
pub(super) fn receive() -> nix::Result<()> {
    extern "C" fn ignore(_: libc::c_int) {}
    static ONCE: Mutex<bool> = Mutex::new(false);
    let mut done = ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*done {
        // No SA_RESTART: the call is to end.
        let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing, which a signal handler may do.
        unsafe { sigaction(SIGNAL, &action) }?;
        *done = true;
    }
    Ok(())
}

/// Unblocks the signal in this thread, which starts with all blocked: the program's own threads take
/// those that are meant for the process.
pub(super) fn unblock() -> nix::Result<()> {
    SigSet::from(SIGNAL).thread_unblock()
}

/// Sends it to a thread.
pub(super) fn send<T>(thread: &JoinHandle<T>) {
    // The thread is not joined, so its number is still its own; one that has just ended need not
    // be told.
    let _ = pthread_kill(thread.as_pthread_t(), SIGNAL);
}
