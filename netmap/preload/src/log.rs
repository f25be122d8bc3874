//! Lines on stderr: `SLUICE_NETMAP_LOG` is `off`, `error` (the default) or `debug`.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt::Display;
use std::sync::atomic::{AtomicU8, Ordering};

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
    let text = format!("sluice netmap: {text}\n");
    // SAFETY: the buffer has this length. A closed stderr is no error of the program's call.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}
