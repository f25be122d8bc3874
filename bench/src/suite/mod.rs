//! Suites: each measures one kind of work by several methods, from the simplest to the fastest.

mod drop;
pub mod forward;
pub mod netmap;
pub mod peers;
mod pipe;
mod rx;
pub mod scrub;
mod testpmd;
mod tx;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::process::{BEGUN, COUNTING, Count, LabHost, Program};
use crate::step::{Counter, Destination, Method, Reception, Setting, Step};
use crate::testbed::{self, Cpus, NOBODY, Testbed};

/// A suite by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SuiteKind {
    /// Receiving.
    Rx,
    /// Sending.
    Tx,
    /// Dropping.
    Drop,
    /// Forwarding.
    Forward,
    /// From one program to another.
    Pipe,
    /// Scrubbing floods.
    Scrub,
}

impl SuiteKind {
    /// All suites, in the order in which they are measured.
    pub const ALL: [Self; 6] =
        [Self::Rx, Self::Tx, Self::Drop, Self::Forward, Self::Pipe, Self::Scrub];

    /// Its name, its heading in reports, and its reference.
    fn texts(self) -> [&'static str; 3] {
        match self {
            Self::Rx => ["rx", "Receiving", "TPACKET_V3 ring"],
            Self::Tx => ["tx", "Sending, counted at the other end in XDP", "sendmmsg"],
            Self::Drop => ["drop", "Dropping what the host would get", "no listener"],
            Self::Forward => ["forward", "Passing on, counted behind it in XDP", "kernel bridge"],
            Self::Pipe => {
                ["pipe", "From one program to another", "unix datagrams, a call a packet"]
            }
            Self::Scrub => ["scrub", "Scrubbing a flood from random sources", scrub::REFERENCE],
        }
    }

    /// Its heading in reports.
    pub fn title(self) -> &'static str {
        self.texts()[1]
    }

    /// The step that the others are compared with.
    pub fn reference(self) -> &'static str {
        self.texts()[2]
    }

    /// Returns true if it needs a host between the sender and the receiver.
    pub fn needs_middle(self) -> bool {
        self == Self::Forward
    }

    /// Returns true if it cannot be measured between existing interfaces: it needs a host between them, or changes
    /// theirs.
    pub fn needs_lab(self) -> bool {
        self.needs_middle() || self == Self::Scrub
    }
}

impl fmt::Display for SuiteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts()[0])
    }
}

/// The parameters of all steps of a bench, in all combinations.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Bytes of a frame, without its check sequence.
    pub sizes: Vec<u32>,
    /// Packets per batch, for steps that have a choice; empty: each step's own.
    pub batches: Vec<u32>,
    /// Queues of each interface.
    pub queues: Vec<u32>,
    /// CPUs of the measured program, for steps that can use several; empty: one, and all.
    pub cores: Vec<u32>,
    /// Rules that a packet is compared with before it is dropped.
    pub rules: Vec<u32>,
}

impl Sweep {
    /// The settings of a suite; those that it does not depend on are taken once.
    fn settings(&self, kind: SuiteKind, cpus: &Cpus) -> Vec<Setting> {
        let some = |list: &[u32]| list.iter().copied().map(Some).collect::<Vec<_>>();
        let cores = if self.cores.is_empty() { &[1, cpus.count()][..] } else { &self.cores };
        let batches = if self.batches.is_empty() { vec![None] } else { some(&self.batches) };
        let rules = match kind {
            SuiteKind::Drop if self.rules.is_empty() => vec![Some(1)],
            SuiteKind::Drop => some(&self.rules),
            _ => vec![None],
        };
        let mut settings = Vec::new();
        for &size in &self.sizes {
            for &queues in &self.queues {
                for &cores in cores {
                    for &batch in &batches {
                        let setting = |&rules| Setting { size, batch, queues, cores, rules };
                        settings.extend(rules.iter().map(setting));
                    }
                }
            }
        }
        settings
    }
}

/// Lists a suite's steps, over a sweep; with those of peers, installed or not, if they are wanted.
/// `testbed` returns the testbed for a setting.
///
/// # Errors
/// Those of `testbed`.
pub fn steps<'a, E>(
    kind: SuiteKind,
    sweep: &Sweep,
    cpus: &Cpus,
    with_peers: bool,
    mut testbed: impl FnMut(&Setting) -> Result<&'a Testbed, E>,
) -> Result<Vec<Step>, E> {
    let mut steps: Vec<Step> = Vec::new();
    for setting in sweep.settings(kind, cpus) {
        let context = StepContext { testbed: testbed(&setting)?, setting };
        let mut new = match kind {
            SuiteKind::Rx => rx::steps(&context),
            SuiteKind::Tx => tx::steps(&context),
            SuiteKind::Drop => drop::steps(&context),
            SuiteKind::Forward => forward::steps(&context),
            SuiteKind::Pipe => pipe::steps(&context),
            SuiteKind::Scrub => scrub::steps(&context),
        };
        if with_peers {
            new.extend(peers::steps(kind, &context));
            // They need another project's programs, too.
            new.extend(netmap::steps(kind, &context));
        }
        // Existing interfaces stay unchanged.
        new.retain(|step| context.testbed.is_ours() || !step.changes_host());
        for step in new {
            let is_same = |it: &Step| it.name == step.name && it.setting == step.setting;
            if !steps.iter().any(is_same) {
                steps.push(step);
            }
        }
    }
    Ok(steps)
}

/// The testbed and the parameters of steps.
pub struct StepContext<'a> {
    /// The two interfaces.
    pub testbed: &'a Testbed,
    /// The requested parameters; a step uses those it depends on.
    pub setting: Setting,
}

impl StepContext<'_> {
    /// The interface that sends.
    pub fn left(&self) -> &str {
        &self.testbed.left.interface
    }

    /// The interface that receives.
    pub fn right(&self) -> &str {
        &self.testbed.right.interface
    }

    /// Up to `n` CPUs of a program that receives.
    pub fn receivers(&self, n: u32) -> &[usize] {
        self.testbed.cpus.receivers(n, self.setting.queues)
    }

    /// The CPU of a program that receives by one thread.
    pub fn receiver(&self) -> Option<usize> {
        self.receivers(1).first().copied()
    }

    /// Up to `n` CPUs of a program that sends.
    pub fn senders(&self, n: u32) -> &[usize] {
        self.testbed.cpus.senders(n)
    }

    /// The CPU of a program that sends by one thread.
    pub fn sender(&self) -> Option<usize> {
        self.senders(1).first().copied()
    }

    /// The path of a capture file with packets to send.
    pub fn capture_file(&self) -> String {
        self.testbed.file(&format!("{}.pcap", self.setting.size))
    }

    /// Adds the making of that file to a step.
    pub fn with_capture_file(&self, step: Step) -> Step {
        let file = self.capture_file();
        let make = self.generate(&format!("pcap:{file}"), ["--count", "10000"]);
        step.with(make, remove(&file))
    }

    /// The path of a file for received packets.
    pub fn received_file(&self) -> String {
        self.testbed.file("received")
    }

    /// The parameters of a step that has one CPU, and no choice of batches or rules.
    pub fn plain(&self) -> Setting {
        Setting { batch: None, cores: 1, rules: None, ..self.setting }
    }

    /// A `sluice count` of a port.
    pub fn count<A: Into<String>>(
        &self,
        port: &str,
        flags: impl IntoIterator<Item = A>,
    ) -> Program {
        Program::sluice(["count", port, "--json", "--interval", "200ms"])
            .and(flags)
            .at(LabHost::Right)
            .on(self.receiver())
            .ready(COUNTING)
            .counting(Count::COUNTED)
    }

    /// A `sluice generate` into a port, of the same packet again and again.
    pub fn generate<A: Into<String>>(
        &self,
        port: &str,
        flags: impl IntoIterator<Item = A>,
    ) -> Program {
        testbed::generate(port, self.setting.size, NOBODY).and(flags)
    }

    /// A step that receives, by a program at the right.
    pub fn receives(
        &self,
        by: &'static str,
        name: impl Into<String>,
        to: Destination,
        program: Program,
    ) -> Step {
        let program = Some(program.at(LabHost::Right));
        let reception = Reception { program, counter: None, to };
        Step::new(by, name, self.plain(), Method::Receive(reception))
    }

    /// A step in which the kernel drops packets by rules, and a program prints how many.
    pub fn drops(&self, by: &'static str, name: &str, counter: Program) -> Step {
        let counter = Some(Counter::Program(counter.at(LabHost::Right).into()));
        let reception = Reception { program: None, counter, to: Destination::Host };
        Step::new(by, name, self.plain(), Method::Receive(reception))
    }

    /// A step in which the host in the middle forwards packets, by a program or by the kernel alone.
    pub fn forwards(
        &self,
        by: &'static str,
        name: &str,
        to: Destination,
        program: Option<Program>,
    ) -> Step {
        let program = program.map(|it| it.at(LabHost::Middle));
        let reception = Reception { program, counter: Some(Counter::Xdp), to };
        Step::new(by, name, self.plain(), Method::Receive(reception))
    }
}

/// The command that removes a file.
fn remove(file: &str) -> Program {
    Program::tool("rm", ["-f", file])
}

/// The command that removes a folder and its files.
fn remove_folder(folder: &str) -> Program {
    Program::tool("rm", ["-rf", folder])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Side;

    #[test]
    fn between_existing_interfaces_only_steps_that_change_them_are_left_out() {
        let side = |interface: &str| Side { netns: None, interface: interface.into() };
        let testbed = Testbed::new(side("a"), side("b")).unwrap();
        let sweep = crate::check::sweep();
        for (kind, there, left_out) in [
            (SuiteKind::Tx, "TX ring", "TX ring through fq_codel"),
            (SuiteKind::Drop, "XDP", "tc BPF, ingress"),
            (SuiteKind::Drop, "XDP", "xdp-filter"),
            (SuiteKind::Drop, "XDP", "XDP_DROP and nothing else"),
            (SuiteKind::Pipe, "memif, to a server", "no such step"),
            (SuiteKind::Pipe, "a pipe, a call a packet", "no such step"),
        ] {
            let steps =
                steps(kind, &sweep, &testbed.cpus, true, |_| Ok::<_, ()>(&testbed)).unwrap();
            let has = |name: &str| steps.iter().any(|step| step.name == name);
            assert!(has(there) && !has(left_out), "{kind}: {there}, {left_out}");
        }
    }
}
