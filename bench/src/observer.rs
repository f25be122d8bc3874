//! The observer of a bench, which can stop it, and failures.

use std::time::Duration;

use sluicegate::error::{Error, ErrorKind};

/// The reason why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The observer stopped the bench.
    #[error("stopped before anything was measured")]
    Stopped,
    /// The step could not be run, or its output is invalid.
    #[error("{reason}")]
    Step {
        /// The kind of error, which decides the exit status.
        kind: ErrorKind,
        /// The message.
        reason: String,
    },
}

impl Failure {
    /// Creates a run-time failure.
    pub fn of(reason: impl Into<String>) -> Self {
        Self::Step { kind: ErrorKind::Runtime, reason: reason.into() }
    }

    /// The kind of error; none after a stop.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Stopped => None,
            Self::Step { kind, .. } => Some(*kind),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Step { kind: error.kind(), reason: error.to_string() }
    }
}

/// An observer of a bench, which can stop it.
pub trait BenchObserver {
    /// Waits; returns false to stop the bench.
    fn wait(&self, time: Duration) -> bool;

    /// Reports the step that begins.
    fn progress(&self, _progress: &Progress<'_>) {}

    /// Waits.
    ///
    /// # Errors
    /// [`Failure::Stopped`] if the bench is to stop.
    fn pause(&self, time: Duration) -> Result<(), Failure> {
        if self.wait(time) { Ok(()) } else { Err(Failure::Stopped) }
    }
}

/// Progress of a bench.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The step that begins, and its setting.
    pub step: &'a str,
    /// Finished turns.
    pub done: usize,
    /// Turns in all; `None` if results decide how many follow.
    pub turns: Option<usize>,
}

/// An observer that ignores progress and never stops the bench.
#[derive(Clone, Copy, Debug)]
pub struct Patient;

impl BenchObserver for Patient {
    fn wait(&self, time: Duration) -> bool {
        std::thread::sleep(time);
        true
    }
}
