//! Why there is no measurement.

use sluicegate::error::{Error, Kind};

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The observer stopped the bench.
    #[error("stopped before anything was measured")]
    Stopped,
    /// The step could not be run, or what it said makes no sense.
    #[error("{reason}")]
    Step {
        /// The kind of error, which decides the exit status.
        kind: Kind,
        /// The message.
        reason: String,
    },
}

impl Failure {
    /// Of something that failed while running.
    pub fn of(reason: impl Into<String>) -> Self {
        Self::Step { kind: Kind::Runtime, reason: reason.into() }
    }

    /// The kind of error; none after a stop.
    pub fn kind(&self) -> Option<Kind> {
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
