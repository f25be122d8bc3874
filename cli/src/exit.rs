//! How the command ends: 0 done, 1 failed while running, 2 wrong usage, 3 missing privilege or
//! kernel feature. A reader that closes the pipe, or a terminal that hangs up, has had what it wanted:
//! that is 0 too.

use std::io::{self, Write, stderr, stdout};
use std::process::ExitCode;

use sluicegate::error::{Error, Kind};
use sluicegate::filter;
use sluicegate_bench::Failure;

use crate::notice;
use crate::run::Outcome;

/// An exit status that is not ours: that of a command run for the user.
#[derive(Debug, thiserror::Error)]
#[error("exit status {0}")]
pub struct Status(pub u8);

/// Prints what went wrong and turns it into the exit status.
pub fn with(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if let Some(Status(status)) = error.downcast_ref() {
        return ExitCode::from(*status);
    }
    if error.downcast_ref::<io::Error>().is_some_and(|error| notice::reader_left(error, stdout())) {
        return ExitCode::SUCCESS;
    }
    let ours = error.downcast_ref::<Error>();
    match ours {
        // Our messages hold their cause already.
        Some(ours) => notice::say(ours),
        None => notice::say(format_args!("{error:#}")),
    }
    if let Some(place) = ours.and_then(filter::explain) {
        let _ = writeln!(stderr(), "{place}");
    }
    let kind = ours.map(Error::kind);
    match kind.or_else(|| error.downcast_ref().and_then(Failure::kind)) {
        Some(Kind::Usage) => ExitCode::from(2),
        Some(Kind::Privilege) => ExitCode::from(3),
        Some(Kind::Runtime) | None => ExitCode::FAILURE,
    }
}

/// The first worker's error, if any ended with one.
pub fn first_error(outcomes: &mut [Outcome]) -> anyhow::Result<()> {
    match outcomes.iter_mut().find_map(|outcome| outcome.error.take()) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
