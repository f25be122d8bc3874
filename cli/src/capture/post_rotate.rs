//! `--post-rotate`: a command after each complete file, in a thread of its own, which also deletes the files
//! that `--files` no longer keeps.

use std::env;
use std::io::{self, stderr};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use sluicegate::error::{Error, Result};
use sluicegate::file::write::{FileEvent, Output, Summary};

use super::leftovers::Leftovers;
use crate::ledger::Section;
use crate::notice::{self, ExitStatus};
use crate::report::Report;

/// Maximum of failures in the report.
const MAX_FAILURES: usize = 64;

/// The thread that runs the commands, one at a time. No packet waits for it. It prints errors at once, and
/// returns the exit status of a failed start.
pub struct PostRotate {
    thread: JoinHandle<Result<(), ExitStatus>>,
    deleted: Arc<Mutex<Deleted>>,
    failures: Arc<Mutex<Vec<String>>>,
}

/// Counts of the files that `--files` no longer keeps.
#[derive(Clone, Copy, Default)]
struct Deleted {
    files: u64,
    packets: u64,
    /// Files of which nothing was left: the program had moved or deleted them.
    missing: u64,
}

impl PostRotate {
    /// Starts the thread, for the files of an output. `ring` means that the output keeps only its newest files.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(program: PathBuf, output: &mut Output, ring: bool) -> Result<Self> {
        let (sender, files) = channel();
        output.announce_files(sender);
        let thread = Builder::new().name("post-rotate".into());
        let (deleted, failures) = <(Arc<Mutex<Deleted>>, Arc<Mutex<Vec<String>>>)>::default();
        let (counts, failed) = (Arc::clone(&deleted), Arc::clone(&failures));
        let thread = thread.spawn(move || run(&program, &files, ring, &counts, &failed));
        let thread = thread.map_err(|error| Error::start("the thread of --post-rotate", error));
        Ok(Self { thread: thread?, deleted, failures })
    }

    /// Adds the commands that have failed so far to the report, the files deleted, and those that will be.
    pub fn account(&self, report: &mut Report, summary: &Summary) {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        report.notices.extend_from_slice(&failures);
        let Deleted { files, packets, missing } =
            *self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        report.ledger.add(Section::Note, "in_deleted_files", packets);
        if let Some(report) = &mut report.files {
            report.deleted += files;
            report.to_delete = summary.files_expired.saturating_sub(files + missing);
        }
    }

    /// Waits until the command has run for the last file. The output must have finished.
    ///
    /// # Errors
    /// The command could not be started for a file.
    pub fn finish(self) -> Result<(), ExitStatus> {
        // A panic there has been printed, and concerns no packet.
        self.thread.join().unwrap_or(Ok(()))
    }
}

/// Checks that a program exists, at its path or in a folder of PATH, and that somebody may run it.
pub fn check(program: &Path) -> Result<()> {
    let folders = env::var_os("PATH").unwrap_or_default();
    let mut paths: Vec<PathBuf> = match program.components().count() {
        1 => env::split_paths(&folders).map(|folder| folder.join(program)).collect(),
        _ => vec![program.to_owned()],
    };
    paths.retain(|path| path.is_file());
    let executable =
        |path: &PathBuf| path.metadata().is_ok_and(|found| found.permissions().mode() & 0o111 != 0);
    let problem = match paths.first() {
        _ if paths.iter().any(executable) => return Ok(()),
        Some(path) => format!("not executable; chmod +x {}", path.display()),
        None => "no such program; give its path, or a name in PATH".into(),
    };
    Err(Error::Usage(format!("--post-rotate {}: {problem}", program.display())))
}

impl Deleted {
    fn count(&mut self, deleted: bool, packets: u64) {
        if deleted {
            self.files += 1;
            self.packets += packets;
        } else {
            self.missing += 1;
        }
    }
}

fn run(
    program: &Path,
    events: &Receiver<FileEvent>,
    ring: bool,
    deleted: &Mutex<Deleted>,
    failures: &Mutex<Vec<String>>,
) -> Result<(), ExitStatus> {
    let report = |failure: String| {
        let mut listed = failures.lock().unwrap_or_else(PoisonError::into_inner);
        match listed.len() {
            0..MAX_FAILURES => listed.push(failure.clone()),
            MAX_FAILURES => listed.push("more failures of --post-rotate are not listed".into()),
            _ => {}
        }
        drop(listed);
        notice::say(failure);
    };
    let mut result = Ok(());
    let mut leftovers = Leftovers::default();
    for event in events {
        let file = match event {
            FileEvent::Complete(file) => file,
            FileEvent::Expired(file) => {
                let packets = file.packets();
                let is_deleted = leftovers.delete(file);
                let mut deleted = deleted.lock().unwrap_or_else(PoisonError::into_inner);
                deleted.count(is_deleted, packets);
                continue;
            }
        };
        let before = ring.then(|| Leftovers::beside(&file));
        let line = format!("{} {}", program.display(), file.display());
        match command(program, &file) {
            Ok(status) if status.success() => {}
            Ok(status) => report(format!("{line}: {status}")),
            Err(error) => {
                report(Error::start(line, error).to_string());
                result = Err(ExitStatus(1));
            }
        }
        if let Some(before) = before {
            leftovers.add(file, &before);
        }
    }
    result
}

/// Runs the command. Standard output may be the capture's, and the terminal's ^C ends the capture only.
fn command(program: &Path, file: &Path) -> io::Result<process::ExitStatus> {
    let output = stderr().as_fd().try_clone_to_owned()?;
    let mut command = Command::new(program);
    command.arg(file).stdin(Stdio::null()).stdout(output).process_group(0).status()
}
