//! Programs that run at one end of a testbed: started, waited for, measured, ended.

mod running;
mod spawn;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use sluicegate::error::{Error, Result};

use crate::process_output::ProcessOutput;
use crate::testbed::{End, Testbed};
pub use running::{Ready, Running};
use spawn::spawn;
pub use spawn::{Input, quoted};

/// This project's own command.
pub const SLUICE: &str = "sluice";
/// Sign that `sluice --json --interval` has begun: the first line of an interval.
pub const BEGUN: Ready = Ready::Says("\"time_s\"");
/// It counts: the threads of its queues begin when all its sockets and programs are in place.
pub const COUNTING: Ready = Ready::Runs("queue-");
/// The longest that anything here is waited for: to be ready, to end, to change a setting.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a program has to end in its own way.
const GRACE: Duration = Duration::from_secs(10);
/// How often is looked whether it has come about.
const LOOK: Duration = Duration::from_millis(10);

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name as people type it: "sluice", "tcpdump".
    pub name: String,
    /// Arguments after the name.
    pub arguments: Vec<String>,
    /// The file, where it is not looked for by its name.
    file: Option<PathBuf>,
    /// Content of its standard input.
    input: Option<Input>,
    /// Another program that it needs, where it is a script.
    needs: Option<&'static str>,
}

impl Program {
    /// A program that is found by its name.
    pub fn tool<A: Into<String>>(name: &str, arguments: impl IntoIterator<Item = A>) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self { name: name.into(), arguments, file: None, input: None, needs: None }
    }

    /// The command of this project itself: the very file that runs.
    pub fn sluice<A: Into<String>>(arguments: impl IntoIterator<Item = A>) -> Self {
        Self { file: std::env::current_exe().ok(), ..Self::tool(SLUICE, arguments) }
    }

    /// A script of the shell around another program.
    pub fn script(needs: &'static str, text: String) -> Self {
        Self { needs: Some(needs), ..Self::tool("sh", ["-c".to_owned(), text]) }
    }

    /// The command that has to be there for it.
    pub fn needs(&self) -> &str {
        self.needs.unwrap_or(&self.name)
    }

    /// Sets a flag of the command, in place of an earlier value.
    #[must_use]
    pub fn set(mut self, flag: &str, value: &str) -> Self {
        match self.arguments.iter().position(|argument| argument == flag) {
            Some(at) => self.arguments[at + 1] = value.to_owned(),
            None => self.arguments.extend([flag.to_owned(), value.to_owned()]),
        }
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn and<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Runs the command by another program, `name`, after that program's `arguments`.
    #[must_use]
    pub fn by<A: Into<String>>(self, name: &str, arguments: impl IntoIterator<Item = A>) -> Self {
        let Self { name: own, file, input, arguments: rest, .. } = self;
        let file = file.map_or(own, |file| file.display().to_string());
        Self { input, ..Self::tool(name, arguments) }.and([file]).and(rest)
    }

    /// Gives it something to read.
    #[must_use]
    pub fn reading(mut self, input: impl Into<Input>) -> Self {
        self.input = Some(input.into());
        self
    }

    /// Its name and arguments, as a shell takes them.
    pub fn shown(&self) -> String {
        let words = std::iter::once(&self.name).chain(&self.arguments);
        words.map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// Shell command that does the same, pinned to `cpu` if given.
    pub fn typed(&self, cpu: Option<usize>) -> String {
        let pinned = cpu.map_or_else(String::new, |cpu| format!("taskset -c {cpu} "));
        let input = self.input.as_ref().map(|input| format!("{} | ", input.shell));
        format!("{}{pinned}{}", input.unwrap_or_default(), self.shown())
    }

    /// Starts it at one end of a testbed, on one CPU if one is named.
    ///
    /// # Errors
    /// It is not there, or cannot be started; its end's namespace cannot be entered.
    pub fn start(&self, testbed: &Testbed, end: End, cpu: Option<usize>) -> Result<Running> {
        self.start_in(testbed.netns(end), cpu)
    }

    /// Starts it in a network namespace; by default in this process's own.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn start_in(&self, namespace: Option<&str>, cpu: Option<usize>) -> Result<Running> {
        let (out, err) = (scratch(&self.name)?, scratch(&self.name)?);
        let give = |file: &File| file.try_clone().map_err(|e| self.failed("start", e));
        let stdin = match &self.input {
            None => Stdio::null(),
            Some(Input { text, .. }) => {
                let file = scratch(&self.name)?;
                file.write_all_at(text.as_bytes(), 0).map_err(|e| self.failed("start", e))?;
                file.into()
            }
        };
        let mut command = Command::new(self.file.clone().unwrap_or_else(|| (&self.name).into()));
        command.args(&self.arguments).stdin(stdin).stdout(give(&out)?).stderr(give(&err)?);
        // Some leave files where they run.
        let folder = tempfile::tempdir().map_err(|e| self.failed("start", e))?;
        command.current_dir(folder.path());
        let started = spawn(command, namespace, cpu)?;
        Ok(Running { name: self.name.clone(), started, out, err, _folder: folder })
    }

    /// Runs it to its end; what it wrote to its standard output.
    ///
    /// # Errors
    /// As [`start`](Self::start); it fails, or takes too long.
    pub fn run(&self, testbed: &Testbed, end: End) -> Result<String> {
        let mut running = self.start(testbed, end, None)?;
        let status = running.wait(PATIENCE)?;
        match status.success() {
            true => Ok(running.said().out),
            false => {
                let said = running.complaint();
                Err(self.failed("run", std::io::Error::other(said)))
            }
        }
    }

    /// Runs it here, however it ends, and not for long; what it has said.
    ///
    /// # Errors
    /// It cannot be started, or takes too long.
    pub(crate) fn ask(&self) -> Result<ProcessOutput> {
        let mut running = self.start_in(None, None)?;
        running.wait(GRACE)?;
        Ok(running.said())
    }

    fn failed(&self, operation: &'static str, error: std::io::Error) -> Error {
        Error::system(operation, self.shown(), error)
    }
}

fn scratch(name: &str) -> Result<File> {
    let failed = |error| Error::system("keep the output of", name, error);
    tempfile::tempfile().map_err(failed)
}

/// The path of a command; none where it is not installed.
pub fn find(command: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(command)).find(|file| file.is_file())
}

/// The error that a command is not installed, with its remedy.
pub fn missing(command: &str) -> String {
    format!("{command} is not installed: {}", remedy(command))
}

/// The command that installs a command.
pub fn remedy(command: &str) -> String {
    let package = match command {
        "tc" | "ip" => "iproute2",
        "iptables-restore" => "iptables",
        "xdp-trafficgen" | "xdp-filter" => "xdp-tools",
        "nft" => "nftables",
        "dumpcap" => "wireshark-common",
        "trafgen" => "netsniff-ng",
        "dpdk-testpmd" => "dpdk-dev",
        other => other,
    };
    format!("apt-get install {package}")
}
