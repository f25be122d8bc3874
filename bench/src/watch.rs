//! Who waits for a bench: is told how far it is, and may end it.

use std::time::Duration;

use crate::failure::Failure;

/// Who waits for a bench.
pub trait Watch {
    /// Waits; false where no more is wanted.
    fn wait(&self, time: Duration) -> bool;

    /// Is told what comes now.
    fn progress(&self, _progress: &Progress<'_>) {}

    /// Waits, or stops.
    ///
    /// # Errors
    /// [`Failure::Stopped`] where no more is wanted.
    fn pause(&self, time: Duration) -> Result<(), Failure> {
        match self.wait(time) {
            true => Ok(()),
            false => Err(Failure::Stopped),
        }
    }
}

/// How far a bench is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// What comes now: a step, and its setting.
    pub step: &'a str,
    /// Turns that are over.
    pub done: usize,
    /// Turns in all.
    pub turns: usize,
    /// The time that the rest will take, as far as is known.
    pub left: Duration,
}

/// Who waits to the end and looks at nothing.
#[derive(Clone, Copy, Debug)]
pub struct Patient;

impl Watch for Patient {
    fn wait(&self, time: Duration) -> bool {
        std::thread::sleep(time);
        true
    }
}
