//! A step of a suite: which programs run on which host, and how their packets are counted.

use serde::{Deserialize, Serialize};
use sluicegate::error::ErrorKind;

use crate::observer::Failure;
use crate::process::{LabHost, Program, SLUICE, is_installed, missing};

/// The parameters of a step. A parameter that it does not depend on is absent, so that nothing runs twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Bytes of a frame, without its check sequence; [`MIXED`](Self::MIXED) for a mix of sizes.
    #[serde(skip_serializing_if = "is_mixed", default)]
    pub size: u32,
    /// Packets per batch.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub batch: Option<u32>,
    /// Queues of each interface.
    pub queues: u32,
    /// CPUs of the measured program.
    pub cores: u32,
    /// Rules that a packet is compared with; the last one matches.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rules: Option<u32>,
}

/// Returns true if a size stands for a mix of sizes, which reports leave out.
pub(crate) fn is_mixed(size: &u32) -> bool {
    *size == Setting::MIXED
}

impl Setting {
    /// The size of packets of different sizes.
    pub const MIXED: u32 = 0;
    /// The mean size of IMIX, in bytes: of twelve frames 7 have 60, 4 have 590 and 1 has 1514.
    pub const IMIX_MEAN: f64 = (7.0 * 60.0 + 4.0 * 590.0 + 1514.0) / 12.0;

    /// A step's name with its parameters: "recvmmsg, 60 B, batches of 8".
    pub fn title(&self, name: &str) -> String {
        let size = if is_mixed(&self.size) { "".into() } else { format!("{} B", self.size) };
        [name, &size, &self.remark()]
            .into_iter()
            .filter(|it| !it.is_empty())
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Replaces the size by a mix of sizes.
    pub fn mixed(self) -> Self {
        Self { size: Self::MIXED, ..self }
    }

    /// The parameters that differ from the plain ones: "2 cores, 100 rules".
    pub fn remark(&self) -> String {
        let plural = |n: u32, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let mut words = Vec::new();
        words.extend(self.batch.map(|n| format!("batches of {n}")));
        words.extend((self.queues > 1).then(|| plural(self.queues, "queue")));
        words.extend((self.cores > 1).then(|| plural(self.cores, "core")));
        words.extend(self.rules.map(|n| plural(n, "rule")));
        words.join(", ")
    }
}

/// A step of a suite.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name, in the terms of the field: "recvmmsg".
    pub name: String,
    /// The owner of the program: "sluice", "linux" for the kernel alone, or a peer's name.
    pub by: &'static str,
    /// Its parameters.
    pub setting: Setting,
    /// Commands that run before.
    pub prepare: Vec<Program>,
    /// Commands that run afterwards, even after a failure.
    pub tidy: Vec<Program>,
    /// The method of measurement.
    pub method: Method,
    /// Flags of the sender of packets to receive, in place of its own: the flag, and its value.
    pub sender_flags: Vec<(&'static str, &'static str)>,
}

impl Step {
    /// A step without preparation.
    pub fn new(
        by: &'static str,
        name: impl Into<String>,
        setting: Setting,
        method: Method,
    ) -> Self {
        let (prepare, tidy, sender_flags) = (Vec::new(), Vec::new(), Vec::new());
        Self { name: name.into(), by, setting, prepare, tidy, method, sender_flags }
    }

    /// Adds a command that runs before, and the one that undoes it.
    #[must_use]
    pub fn with(mut self, prepare: Program, tidy: Program) -> Self {
        self.prepare.push(prepare);
        self.tidy.insert(0, tidy);
        self
    }

    /// Sets a flag of the sender of packets to receive.
    #[must_use]
    pub fn sending(mut self, flag: &'static str, value: &'static str) -> Self {
        self.sender_flags.push((flag, value));
        self
    }

    /// Adds a command that runs afterwards.
    #[must_use]
    pub fn then(mut self, tidy: Program) -> Self {
        self.tidy.push(tidy);
        self
    }

    /// Returns true if it changes the configuration of an interface or a host. Pipes between programs,
    /// and preparations by Sluice itself, only create files.
    pub fn changes_host(&self) -> bool {
        let makes_files = matches!(self.method, Method::Pipe(_));
        !makes_files && self.prepare.iter().any(|program| program.name != SLUICE)
    }

    /// The names of the programs it needs.
    fn needs(&self) -> impl Iterator<Item = &str> {
        let programs = self.prepare.iter().chain(self.method.programs());
        programs.map(Program::needs).filter(|name| *name != SLUICE)
    }

    /// Returns the failure of a step whose program is not installed, with the remedy.
    pub fn missing(&self) -> Option<Failure> {
        let name = self.needs().find(|name| !is_installed(name))?;
        let (kind, reason) = (ErrorKind::Privilege, format!("skipped: {}", missing(name)));
        Some(Failure::Step { kind, reason })
    }

    /// The shell command that does the same, on its host of the testbed and in the testbed's directory. Paths of this
    /// machine are named by what they stand for.
    pub fn command(&self) -> String {
        let prepare = self.prepare.iter().map(Program::typed);
        // Two programs run at the same time.
        let measured: Vec<String> =
            self.method.programs().into_iter().map(Program::typed).collect();
        let measured = (!measured.is_empty()).then(|| measured.join(" & "));
        without_paths(prepare.chain(measured).collect::<Vec<_>>().join("; "))
    }
}

/// Names this command, netmap's programs and the steps' files without the folders in which they are here, so that a
/// report can be published.
fn without_paths(mut command: String) -> String {
    if let Ok(sluice) = std::env::current_exe() {
        command = command.replace(&sluice.display().to_string(), SLUICE);
    }
    if let Some(folder) = std::env::var("NETMAP_BIN").ok().filter(|folder| !folder.is_empty()) {
        command = command.replace(folder.trim_end_matches('/'), "$NETMAP_BIN");
    }
    // A folder of the testbed: `.tmp` and six characters.
    let folder = std::env::temp_dir().join(".tmp").display().to_string();
    while let Some(at) = command.find(&folder) {
        let end = (at + folder.len() + 6).min(command.len());
        command.replace_range(at..end, "$TESTBED");
    }
    command
}

/// The method of measuring a step.
#[derive(Clone, Debug)]
pub enum Method {
    /// Packets are sent from the left as fast as possible, and counted where they arrive.
    Receive(Reception),
    /// The program sends from the left, and its packets are counted at the right in XDP.
    Send(Program),
    /// One program passes packets to another.
    Pipe(Box<Pipe>),
}

impl Method {
    /// The measured programs, in the order in which they are started.
    pub fn programs(&self) -> Vec<&Program> {
        match self {
            Self::Receive(reception) => reception.program.iter().collect(),
            Self::Send(program) => vec![program],
            Self::Pipe(pipe) => pipe.programs(),
        }
    }
}

/// Two programs with a pipe between them.
#[derive(Clone, Debug)]
pub struct Pipe {
    /// The sender; none if the receiver creates its own packets.
    pub sender: Option<Program>,
    /// The receiver, which reports its rate periodically: [`Program::count`] is the position of a rate, in
    /// packets a second.
    pub receiver: Program,
    /// The side that is started first: the other one connects to it.
    pub first: LabHost,
}

impl Pipe {
    /// Its programs, in the order in which they are started.
    pub fn programs(&self) -> Vec<&Program> {
        let (sender, receiver) = (self.sender.as_ref(), Some(&self.receiver));
        let order = match self.first {
            LabHost::Left => [sender, receiver],
            _ => [receiver, sender],
        };
        order.into_iter().flatten().collect()
    }
}

/// The receiver of packets, and the source of their count.
#[derive(Clone, Debug)]
pub struct Reception {
    /// The program; none if the kernel does everything.
    pub program: Option<Program>,
    /// The source of the count, read before and after; none if the program reports it.
    pub counter: Option<Counter>,
    /// Destination of the packets.
    pub to: Destination,
}

/// The host that packets are sent to, on Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// An address without a host, as on a mirror port: the receiving host drops the packets early.
    Nobody,
    /// The host at the right.
    Host,
    /// The host in the middle, which routes them to the right.
    Router,
}

/// The source of the number of packets that arrived at the right.
#[derive(Clone, Debug)]
pub enum Counter {
    /// A program that prints the number.
    Program(Box<Program>),
    /// An XDP program there, which drops the packets.
    Xdp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_names_the_parameters_of_a_step() {
        let plain = Setting { size: 60, queues: 1, cores: 1, ..Setting::default() };
        assert_eq!(plain.remark(), "");
        let all = Setting { size: 60, batch: Some(64), queues: 2, cores: 2, rules: Some(1) };
        assert_eq!(all.remark(), "batches of 64, 2 queues, 2 cores, 1 rule");
        assert_eq!(plain.title("recv"), "recv, 60 B");
        let mixed = Setting { size: Setting::MIXED, ..plain };
        assert_eq!(mixed.title("IMIX"), "IMIX");
        let text = serde_json::to_string(&mixed).unwrap();
        assert_eq!(text, r#"{"queues":1,"cores":1}"#, "no size");
        assert_eq!(serde_json::from_str::<Setting>(&text).unwrap(), mixed);
        assert_eq!(all.title("recv"), "recv, 60 B, batches of 64, 2 queues, 2 cores, 1 rule");
    }

    #[test]
    fn programs_that_run_at_the_same_time_are_joined_in_their_order() {
        let program = |name: &str| Program::tool(name, [""; 0]);
        let (sender, receiver) = (Some(program("send")), program("receive"));
        let method = Method::Pipe(Pipe { sender, receiver, first: LabHost::Right }.into());
        let step = Step::new("sluice", "pipe", Setting::default(), method);
        assert_eq!(step.command(), "receive & send");
        assert_eq!(step.with(program("make"), program("rm")).command(), "make; receive & send");
        let method = Method::Receive(Reception {
            program: None,
            counter: Some(Counter::Xdp),
            to: Destination::Host,
        });
        let step = Step::new("linux", "bridge", Setting::default(), method);
        assert_eq!(step.with(program("make"), program("rm")).command(), "make");
    }

    #[test]
    fn a_command_has_no_paths_of_this_machine() {
        let sluice = std::env::current_exe().unwrap();
        let file = std::env::temp_dir().join(".tmpAbC123/60.pcap");
        let command = format!("{} replay {} right0", sluice.display(), file.display());
        assert_eq!(without_paths(command), "sluice replay $TESTBED/60.pcap right0");
        assert_eq!(without_paths("sh -c 'a & b'".into()), "sh -c 'a & b'");
    }

    #[test]
    fn a_missing_program_is_reported_with_its_remedy() {
        let program = |name| Program::tool(name, [""; 0]);
        let method = Method::Receive(Reception {
            program: None,
            counter: Some(Counter::Xdp),
            to: Destination::Host,
        });
        let setting = Setting { size: 60, queues: 1, cores: 1, ..Setting::default() };
        let step = Step::new("linux", "a step", setting, method);
        assert!(step.missing().is_none());
        let step = step.with(program("no-such-tool"), program("cat"));
        let failure = step.missing().unwrap();
        let said = "skipped: no-such-tool is not installed: apt-get install no-such-tool";
        assert_eq!((failure.kind(), &failure.to_string()[..]), (Some(ErrorKind::Privilege), said));
    }
}
