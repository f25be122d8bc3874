//! How a command that runs answers those who ask it over its control socket (docs/commands/switch.md).

use serde_json::{Value, json};
use sluicegate::control::Answer;
use sluicegate::error::{Error, Kind};

/// An answer that is a line.
pub fn said(line: impl ToString) -> Answer {
    Answer { line: line.to_string(), ..Answer::default() }
}

/// The answer to a request that failed.
pub fn failure(error: &Error) -> Value {
    let kind = match error.kind() {
        Kind::Usage => "usage",
        Kind::Privilege => "privilege",
        Kind::Runtime => "runtime",
    };
    json!({"error": error.to_string(), "kind": kind})
}
