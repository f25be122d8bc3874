//! `--post-rotate`: a command after each complete file, in a thread of its own.

use std::env;
use std::io::{self, stderr};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{Builder, JoinHandle};

use sluicegate::error::{Error, Result};
use sluicegate::file::write::Output;

use crate::notice::{self, ExitStatus};

/// The thread that runs the commands, one at a time. No packet waits for it. It prints errors at once, and
/// returns the exit status of a failed start.
pub struct PostRotate(JoinHandle<Result<(), ExitStatus>>);

impl PostRotate {
    /// Starts the thread, for the files of an output.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(program: PathBuf, output: &mut Output) -> Result<Self> {
        let (sender, files) = channel();
        output.announce_files(sender);
        let thread = Builder::new().name("post-rotate".into());
        let thread = thread.spawn(move || run(&program, &files));
        thread
            .map(Self)
            .map_err(|error| Error::system("start", "the thread of --post-rotate", error))
    }

    /// Waits until the command has run for the last file. The output must have finished.
    ///
    /// # Errors
    /// The command could not be started for a file.
    pub fn finish(self) -> Result<(), ExitStatus> {
        // A panic there has been printed, and concerns no packet.
        self.0.join().unwrap_or(Ok(()))
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

fn run(program: &Path, files: &Receiver<PathBuf>) -> Result<(), ExitStatus> {
    let mut result = Ok(());
    for file in files {
        let line = format!("{} {}", program.display(), file.display());
        match command(program, &file) {
            Ok(status) if status.success() => {}
            Ok(status) => notice::say(format_args!("{line}: {status}")),
            Err(error) => {
                notice::say(Error::system("run", line, error));
                result = Err(ExitStatus(1));
            }
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
