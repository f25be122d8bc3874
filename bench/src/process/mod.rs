//! Programs: described, started, waited for, measured, ended.

mod output;
mod running;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use sluicegate::error::Error;

use crate::observer::Failure;
pub use output::{Count, ProcessOutput};
pub use running::{Ready, Running};

/// The name of this project's command.
pub const SLUICE: &str = "sluice";
/// Sign that `sluice --json --interval` has begun: the first line of an interval.
pub const BEGUN: Ready = Ready::Says("\"time_s\"");
/// Sign that a command counts: the threads of its queues start when all its sockets and programs are open.
pub const COUNTING: Ready = Ready::Runs("queue-");
/// Time for a program to get ready or to end.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A host of a testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabHost {
    /// The side that sends.
    Left,
    /// The side that receives.
    Right,
    /// Between them.
    Middle,
}

/// A program: its arguments, where it runs, when it is ready, and how it reports a packet count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name as people type it: "sluice", "tcpdump".
    pub name: String,
    /// Arguments after the name.
    pub arguments: Vec<String>,
    /// The file, if it is not found by its name.
    file: Option<PathBuf>,
    /// Content of its standard input.
    input: Option<Input>,
    /// Another program that it needs, if it is a script.
    needs: Option<&'static str>,
    /// The host it runs on.
    pub host: LabHost,
    /// The CPU it is pinned to; none if it may run on all, or pins its threads itself.
    cpu: Option<usize>,
    /// The sign that it is ready.
    pub ready: Ready,
    /// Position of its packet count; none if it reports none.
    pub count: Option<Count>,
}

impl Program {
    /// A program that is found by its name. It runs on the left host, and is ready at once.
    pub fn tool<A: Into<String>>(name: &str, arguments: impl IntoIterator<Item = A>) -> Self {
        Self {
            name: name.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            file: None,
            input: None,
            needs: None,
            host: LabHost::Left,
            cpu: None,
            ready: Ready::AtOnce,
            count: None,
        }
    }

    /// This project's command: the file that runs.
    pub fn sluice<A: Into<String>>(arguments: impl IntoIterator<Item = A>) -> Self {
        Self { file: std::env::current_exe().ok(), ..Self::tool(SLUICE, arguments) }
    }

    /// A shell script around another program.
    pub fn script(needs: &'static str, text: String) -> Self {
        Self { needs: Some(needs), ..Self::tool("sh", ["-c".to_owned(), text]) }
    }

    /// The command that has to be installed for it.
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
        let file = self.file.map_or(self.name, |file| file.display().to_string());
        let by = Self::tool(name, arguments).and([file]).and(self.arguments);
        Self { name: by.name, arguments: by.arguments, file: None, ..self }
    }

    /// Sets its standard input.
    #[must_use]
    pub fn reading(self, input: impl Into<Input>) -> Self {
        Self { input: Some(input.into()), ..self }
    }

    /// Sets the host it runs on.
    #[must_use]
    pub fn at(self, host: LabHost) -> Self {
        Self { host, ..self }
    }

    /// Pins it to a CPU.
    #[must_use]
    pub fn on(self, cpu: Option<usize>) -> Self {
        Self { cpu, ..self }
    }

    /// Sets the sign that it is ready.
    #[must_use]
    pub fn ready(self, ready: Ready) -> Self {
        Self { ready, ..self }
    }

    /// Sets the position of its packet count.
    #[must_use]
    pub fn counting(self, count: Count) -> Self {
        Self { count: Some(count), ..self }
    }

    /// Its name and arguments, quoted for a shell.
    pub fn shown(&self) -> String {
        let words = std::iter::once(&self.name).chain(&self.arguments);
        words.map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// A shell command that does the same, with its input and its CPU.
    pub fn typed(&self) -> String {
        let pinned = self.cpu.map_or_else(String::new, |cpu| format!("taskset -c {cpu} "));
        let input = self.input.as_ref().map(|input| format!("{} | ", input.shell));
        format!("{}{pinned}{}", input.unwrap_or_default(), self.shown())
    }

    /// Starts it in a network namespace; by default in this process's own.
    ///
    /// # Errors
    /// It is not installed, or cannot be started; the namespace cannot be entered.
    pub fn start(&self, netns: Option<&str>) -> Result<Running, Failure> {
        let failed = |error| Error::system("start", self.shown(), error);
        let scratch = || tempfile::tempfile().map_err(failed);
        let (out, err) = (scratch()?, scratch()?);
        let stdin = match &self.input {
            None => Stdio::null(),
            Some(Input { text, .. }) => {
                let file = scratch()?;
                file.write_all_at(text.as_bytes(), 0).map_err(failed)?;
                file.into()
            }
        };
        let give = |file: &File| file.try_clone().map_err(failed);
        let mut command = Command::new(self.file.clone().unwrap_or_else(|| (&self.name).into()));
        command.args(&self.arguments).stdin(stdin).stdout(give(&out)?).stderr(give(&err)?);
        // Some programs leave files in their working directory.
        let folder = tempfile::tempdir().map_err(failed)?;
        command.current_dir(folder.path());
        let started = running::spawn(command, netns, self.cpu)?;
        Ok(Running { name: self.name.clone(), started, out, err, _folder: folder })
    }

    /// Runs it to its end, and returns its standard output.
    ///
    /// # Errors
    /// As [`start`](Self::start); it fails, or takes too long.
    pub fn run(&self, netns: Option<&str>) -> Result<String, Failure> {
        let mut running = self.start(netns)?;
        match running.wait(TIMEOUT)?.success() {
            true => Ok(running.said().out),
            false => Err(Failure::of(format!("run {}: {}", self.shown(), running.complaint()))),
        }
    }
}

/// A text, and the shell command that writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The text.
    pub text: String,
    /// The command.
    pub shell: String,
}

impl From<String> for Input {
    fn from(text: String) -> Self {
        let shell = format!("printf %s {}", quoted(&text));
        Self { text, shell }
    }
}

/// Quotes a word for a shell.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Returns true if a command is installed.
pub fn is_installed(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(command).is_file())
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
