//! Suites: one kind of work each, done in one way after the other, from the simplest to the
//! fastest.

mod drop;
mod forward;
pub mod peers;
mod pipe;
mod rx;
mod testpmd;
mod tx;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::process::{BEGUN, COUNTING, Program, Ready};
use crate::process_output::Count;
use crate::step::{Job, Order, Setting, Step};
use crate::testbed::{self, Cpus, End, NOBODY, Testbed};

/// Which suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Receiving.
    Rx,
    /// Sending.
    Tx,
    /// Dropping.
    Drop,
    /// Passing on.
    Forward,
    /// From one program to another.
    Pipe,
}

impl Kind {
    /// All there are, in the order in which they are measured.
    pub const ALL: [Self; 5] = [Self::Rx, Self::Tx, Self::Drop, Self::Forward, Self::Pipe];

    /// Its heading in reports.
    pub fn title(self) -> &'static str {
        match self {
            Self::Rx => "Receiving",
            Self::Tx => "Sending, counted at the other end in XDP",
            Self::Drop => "Dropping what the host would get",
            Self::Forward => "Passing on, counted behind it in XDP",
            Self::Pipe => "From one program to another",
        }
    }

    /// The step that the others are compared with.
    pub fn reference(self) -> &'static str {
        match self {
            Self::Rx => "TPACKET_V3 ring",
            Self::Tx => "sendmmsg",
            Self::Drop => "no listener",
            Self::Forward => "kernel bridge",
            Self::Pipe => "unix datagrams, a call a packet",
        }
    }

    /// True if it needs a host between the sender and the receiver.
    pub fn needs_middle(self) -> bool {
        self == Self::Forward
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
            Self::Drop => "drop",
            Self::Forward => "forward",
            Self::Pipe => "pipe",
        })
    }
}

/// With what all steps of a bench are run: each with each.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Bytes of a frame, without its check sequence.
    pub sizes: Vec<u32>,
    /// Packets at a time, for steps that have a choice; empty: each step's own.
    pub batches: Vec<u32>,
    /// Queues of each interface.
    pub queues: Vec<u32>,
    /// CPUs of the measured program, for steps that can use several; empty: one, and where packets
    /// are sent or shared out all there are, too.
    pub cores: Vec<u32>,
    /// Rules that a packet is held against before it is dropped.
    pub rules: Vec<u32>,
}

impl Sweep {
    /// The settings of a suite: those that it makes no difference for are taken once.
    fn settings(&self, kind: Kind, cpus: &Cpus) -> Vec<Setting> {
        let or = |list: &[u32], else_: &[Option<u32>]| match list.is_empty() {
            true => else_.to_vec(),
            false => list.iter().copied().map(Some).collect(),
        };
        let cores = or(&self.cores, &[Some(1), Some(cpus.count())]);
        let rules = if kind == Kind::Drop { or(&self.rules, &[Some(1)]) } else { vec![None] };
        let mut settings = Vec::new();
        for &size in &self.sizes {
            for &queues in &self.queues {
                for &cores in &cores {
                    for &batch in &or(&self.batches, &[None]) {
                        for &rules in &rules {
                            let cores = cores.unwrap_or(1);
                            settings.push(Setting { size, batch, queues, cores, rules });
                        }
                    }
                }
            }
        }
        settings
    }
}

/// A suite's steps, over a sweep; those of peers where they are wanted, installed or not.
///
/// `testbed` gives the testbed that a setting wants.
///
/// # Errors
/// Those of `testbed`.
pub fn steps<'a, E>(
    kind: Kind,
    sweep: &Sweep,
    cpus: &Cpus,
    with_peers: bool,
    mut testbed: impl FnMut(&Setting) -> Result<&'a Testbed, E>,
) -> Result<Vec<Step>, E> {
    let mut steps: Vec<Step> = Vec::new();
    for setting in sweep.settings(kind, cpus) {
        let place = StepContext { testbed: testbed(&setting)?, cpus, setting };
        let mut new = match kind {
            Kind::Rx => rx::steps(&place),
            Kind::Tx => tx::steps(&place),
            Kind::Drop => drop::steps(&place),
            Kind::Forward => forward::steps(&place),
            Kind::Pipe => pipe::steps(&place),
        };
        if with_peers {
            new.extend(peers::steps(kind, &place));
        }
        // Between interfaces that somebody else uses nothing is changed.
        new.retain(|step| place.testbed.is_ours() || !step.changes_host());
        for step in new {
            let there = |other: &Step| other.name == step.name && other.setting == step.setting;
            if !steps.iter().any(there) {
                steps.push(step);
            }
        }
    }
    Ok(steps)
}

/// Where steps are to run, and with what.
pub struct StepContext<'a> {
    /// The two interfaces.
    pub testbed: &'a Testbed,
    /// The CPUs of both sides.
    pub cpus: &'a Cpus,
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

    /// `n` CPUs of a program that receives.
    pub fn receivers(&self, n: u32) -> Vec<usize> {
        self.cpus.receivers(n, self.setting.queues)
    }

    /// The CPU of one that does so by one thread.
    pub fn receiver(&self) -> Option<usize> {
        self.receivers(1).first().copied()
    }

    /// The CPU of a program that sends by one thread.
    pub fn sender(&self) -> Option<usize> {
        self.cpus.senders(1).first().copied()
    }

    /// Where a capture file is that holds what is sent.
    pub fn capture_file(&self) -> String {
        self.testbed.file(&format!("{}.pcap", self.setting.size))
    }

    /// A step that has that file.
    pub fn with_capture_file(&self, step: Step) -> Step {
        let file = self.capture_file();
        let make = generate(self, &format!("pcap:{file}"), ["--count", "10000"]).program;
        let make = Order { end: End::Left, program: make };
        let remove = Order { end: End::Left, program: Program::tool("rm", ["-f", &file]) };
        step.with(make, remove)
    }

    /// Where received packets are written to.
    fn received_file(&self) -> String {
        self.testbed.file("received")
    }

    /// A step that leaves a file, which is removed afterwards.
    fn removing(&self, file: &str, mut step: Step) -> Step {
        let program = Program::tool("rm", ["-f", file]);
        step.tidy.push(Order { end: End::Right, program });
        step
    }

    /// The setting of a step that has one CPU, and no choice of batches or rules.
    pub fn plain(&self) -> Setting {
        Setting { batch: None, cores: 1, rules: None, ..self.setting }
    }
}

/// A `sluice count` of a port.
pub(crate) fn count<A: Into<String>>(
    place: &StepContext<'_>,
    port: &str,
    flags: impl IntoIterator<Item = A>,
) -> Job {
    let program = Program::sluice(["count", port, "--json", "--interval", "200ms"]).and(flags);
    Job { program, cpu: place.receiver(), ready: COUNTING, count: Some(Count::COUNTED) }
}

/// A `sluice generate` into a port, of the same packet again and again.
pub(crate) fn generate<A: Into<String>>(
    place: &StepContext<'_>,
    port: &str,
    flags: impl IntoIterator<Item = A>,
) -> Job {
    let program = testbed::generate(port, place.setting.size, NOBODY).and(flags);
    Job { program, cpu: None, ready: Ready::After(Duration::ZERO), count: Some(Count::SENT) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Side;

    #[test]
    fn between_interfaces_of_others_no_step_is_left_out_that_changes_nothing_about_them() {
        let side = |interface: &str| Side { netns: None, interface: interface.into() };
        let testbed = Testbed::here(side("a"), side("b"));
        let (sweep, cpus) = (crate::check::sweep(), Cpus::allowed().unwrap());
        for (kind, there, left_out) in [
            (Kind::Tx, "TX ring", "TX ring through fq_codel"),
            (Kind::Drop, "XDP", "tc BPF, ingress"),
            (Kind::Pipe, "memif, to a server", "no such step"),
            (Kind::Pipe, "a pipe, a call a packet", "no such step"),
        ] {
            let steps = steps(kind, &sweep, &cpus, false, |_| Ok::<_, ()>(&testbed)).unwrap();
            let has = |name: &str| steps.iter().any(|step| step.name == name);
            assert!(has(there) && !has(left_out), "{kind}: {there}, {left_out}");
        }
    }
}
