//! Why there is no measurement.

use sluicegate::error::{Error, Kind};

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Whoever watches wants no more.
    #[error("stopped before anything was measured")]
    Stopped,
    /// The step could not be run, or what it said makes no sense.
    #[error("{reason}")]
    Step {
        /// Who can mend it.
        kind: Kind,
        /// What went wrong.
        reason: String,
    },
}

impl Failure {
    /// Of something that failed while running.
    pub fn of(reason: impl Into<String>) -> Self {
        Self::Step { kind: Kind::Runtime, reason: reason.into() }
    }

    /// Who can mend it; nobody has to where it was stopped.
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
