//! Why there is no measurement.

use sluicegate::error::Error;

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Whoever watches wants no more.
    #[error("stopped")]
    Stopped,
    /// The step could not be run, or what it said makes no sense.
    #[error("{0}")]
    Step(String),
}

impl Failure {
    /// With a reason.
    pub fn of(reason: impl Into<String>) -> Self {
        Self::Step(reason.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Step(error.to_string())
    }
}
