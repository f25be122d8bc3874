//! Lines on stderr: `SLUICE_NETMAP_LOG` is `off`, `error` (the default) or `debug`.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, Ordering};

use libc::timespec;
use nix::errno::Errno;

/// The lines that are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// None.
    Off,
    /// The causes of errors, and what the user should know.
    Error,
    /// Each call, too.
    Debug,
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Error as u8);

thread_local! {
    /// A cause of an error has been given in this thread, and not asked for since.
    static EXPLAINED: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if the cause of an error has been given in this thread since the last call of this function.
pub fn was_explained() -> bool {
    EXPLAINED.take()
}

/// Sets which lines are printed.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Prints the cause of an error, with its remedy, or what the user should know.
pub fn error(text: impl Display) {
    EXPLAINED.set(true);
    line(Level::Error, &text);
}

/// Prints the line of the engine.
pub fn from_engine(text: &str) {
    error(text);
}

/// Prints a call and its result.
pub fn debug(text: impl FnOnce() -> String) {
    if LEVEL.load(Ordering::Relaxed) >= Level::Debug as u8 {
        line(Level::Debug, &text());
    }
}

/// Prints a line by one system call, so that lines of threads and processes do not mix.
fn line(level: Level, text: &dyn Display) {
    if LEVEL.load(Ordering::Relaxed) < level as u8 {
        return;
    }
    write(format!("sluice netmap: {text}\n").as_bytes());
}

/// Writes to stderr. If nobody can read it, that is no error of the program's call: errno stays as it was, and the
/// program gets no SIGPIPE.
fn write(line: &[u8]) {
    let errno = Errno::last();
    let (mut signal, mut pending, mut before) =
        (MaybeUninit::uninit(), MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the line has this length. Each set is filled before it is used, and lives as long as its call.
    unsafe {
        libc::sigemptyset(signal.as_mut_ptr());
        libc::sigaddset(signal.as_mut_ptr(), libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, signal.as_ptr(), before.as_mut_ptr());
        libc::sigpending(pending.as_mut_ptr());
        let was_pending = libc::sigismember(pending.as_ptr(), libc::SIGPIPE) != 0;
        let written = libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        if written < 0 && Errno::last() == Errno::EPIPE && !was_pending {
            let none = timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(signal.as_ptr(), std::ptr::null_mut(), &raw const none);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
    errno.set();
}
