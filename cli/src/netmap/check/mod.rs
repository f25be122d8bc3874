//! `sluice netmap check`: tries the features that netmap programs use, in a lab, and reports those that work on this kernel.

mod features;
mod lab;

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use serde_json::json;
use sluicegate::error::{Error, ErrorKind};

use crate::notice::{ExitStatus, say, write_printable};
use crate::signals::Signals;
use features::CHECKS;
use lab::Checker;

/// Options of `check`.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The result of a check: what it found, or why it could not.
type Outcome = Result<String, CheckError>;

enum CheckError {
    /// A privilege or a kernel feature is missing.
    Missing(String),
    Failed(String),
    /// A signal ended the command.
    Stopped,
}

impl From<Error> for CheckError {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for CheckError {
    fn from(error: &Error) -> Self {
        match error {
            Error::Privilege { capability, remedy, .. } => {
                Self::Missing(format!("needs {capability}: {remedy}"))
            }
            _ if error.kind() == ErrorKind::Privilege => Self::Missing(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// An error of the engine, which has logged the cause.
impl From<Errno> for CheckError {
    fn from(errno: Errno) -> Self {
        let lines = std::mem::take(&mut *LINES.lock().unwrap_or_else(PoisonError::into_inner));
        let text = if lines.is_empty() { errno.to_string() } else { lines.join("; ") };
        match errno {
            Errno::EPERM | Errno::EOPNOTSUPP => Self::Missing(text),
            _ => Self::Failed(text),
        }
    }
}

/// The lines of the engine in the present check.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep_line(line: &str) {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line.into());
}

/// Runs all checks and prints their results.
pub fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let checker = Checker::new(Signals::catch()?);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (kernel, version) = (kernel.trim(), env!("CARGO_PKG_VERSION"));
    // The status is that of the checks, also if nobody reads them.
    let print = |text: &str| {
        if !args.json {
            let _ = write_printable(&mut io::stdout(), |out| writeln!(out, "{text}"));
        }
    };
    print(&format!("netmap programs on Linux {kernel} with sluice {version}"));
    let (mut checks, mut status, mut complete) = (Vec::new(), 0, true);
    for (name, check) in CHECKS {
        LINES.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let outcome =
            if checker.signals.take() { Err(CheckError::Stopped) } else { check(&checker) };
        let (verdict, detail) = match outcome {
            Ok(detail) => ("ok", detail),
            Err(CheckError::Missing(detail)) => ("missing", detail),
            Err(CheckError::Failed(detail)) => {
                let lines =
                    std::mem::take(&mut *LINES.lock().unwrap_or_else(PoisonError::into_inner));
                ("fail", [vec![detail], lines].concat().join("; "))
            }
            Err(CheckError::Stopped) => {
                complete = false;
                break;
            }
        };
        status = match (verdict, status) {
            ("fail", _) => 1,
            ("missing", 0) => 3,
            _ => status,
        };
        print(&format!("{name:<15}  {verdict:<7}  {detail}"));
        checks.push(json!({"name": name, "verdict": verdict, "detail": detail}));
    }
    if args.json {
        let object = json!({
            "command": "netmap check",
            "version": version,
            "kernel": kernel,
            "complete": complete,
            "checks": checks,
        });
        let _ = writeln!(io::stdout(), "{object}");
    }
    if !complete {
        say("stopped before all checks were done");
        status = 1;
    }
    if status == 0 { Ok(()) } else { Err(ExitStatus(status).into()) }
}
