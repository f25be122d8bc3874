//! `--post-rotate`: a command after each complete file, in a thread of its own.

use std::io::{self, stderr};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{Builder, JoinHandle};

use sluicegate::error::{Error, Result};
use sluicegate::file::write::Output;

use crate::notice;

/// The thread that runs the commands, one at a time. No packet waits for it.
pub struct PostRotate(JoinHandle<()>);

impl PostRotate {
    /// Starts the thread, for the files of an output.
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
    pub fn finish(self) {
        // A panic there has been printed, and concerns no packet.
        let _ = self.0.join();
    }
}

fn run(program: &Path, files: &Receiver<PathBuf>) {
    for file in files {
        let line = format!("{} {}", program.display(), file.display());
        match command(program, &file) {
            Ok(status) if status.success() => {}
            Ok(status) => notice::say(format_args!("{line}: {status}")),
            Err(error) => notice::say(format_args!("run {line}: {error}")),
        }
    }
}

/// Runs the command. Standard output may be the capture's, and the terminal's ^C ends the capture only.
fn command(program: &Path, file: &Path) -> io::Result<ExitStatus> {
    let output = stderr().as_fd().try_clone_to_owned()?;
    let mut command = Command::new(program);
    command.arg(file).stdin(Stdio::null()).stdout(output).process_group(0).status()
}
