//! Instruction counts of the hot loops. They do not depend on the machine's load, so they show a loop that
//! grew by a few instructions.
//!
//! Valgrind counts loops in user space. A loop runs for few packets and for many; the difference excludes the
//! start and the end. For kernel programs the length after the verifier counts. A packet executes only some
//! of these instructions, and no counter reports which.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use sluicegate::xdp::{ProgInfo, RunStatistics};

use crate::observer::{BenchObserver, Failure, Progress};
use crate::process::{BEGUN, Count, LabHost, Program, is_installed, missing};
use crate::step::Setting;
use crate::suite::StepContext;
use crate::testbed::{Testbed, TestbedConfig};

/// The command that counts in user space.
pub(crate) const VALGRIND: &str = "valgrind";
/// Position of valgrind's count of instructions, in all threads.
const INSTRUCTIONS: Count = Count::After("Collected :");
/// The longest run, of an unoptimised command on a busy machine.
const MAX_RUN: Duration = Duration::from_secs(60);
/// The time of sending packets through a kernel program.
const SENDING: Duration = Duration::from_millis(300);
/// The receiving port while the program of a sender is examined.
const DROP: &str = "xdp:right0?action=drop";

/// A hot loop and its length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HotLoop {
    /// Its name: "receive: ring of a packet socket".
    #[serde(rename = "loop")]
    pub name: String,
    /// The command that runs it.
    pub command: String,
    /// The unit of the count.
    pub of: LoopUnit,
    /// Its length; absent if it could not be counted.
    #[serde(flatten)]
    pub length: Option<Length>,
    /// The reason why there is no count.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed: Option<String>,
}

/// The unit that instructions are counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoopUnit {
    /// A packet: the instructions executed for it in user space.
    Packet,
    /// A kernel program: all its instructions, of which a packet executes some.
    Program,
}

/// The length of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Length {
    /// Instructions.
    pub instructions: f64,
    /// Bytes of a program's machine code.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes: Option<u32>,
    /// ns of a run of the program on its interface, by the kernel's run statistics, including the programs
    /// that it calls and the reading of a clock. It varies like a rate.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ns: Option<f64>,
}

impl HotLoop {
    /// Formats its length: "41.20 a packet", "96 in all, 512 bytes, 70 ns a run".
    pub fn shown(&self) -> String {
        let Some(Length { instructions, bytes, ns }) = self.length else {
            return self.failed.clone().unwrap_or_else(|| "not counted".into());
        };
        let mut words = match self.of {
            LoopUnit::Packet => format!("{instructions:.2} a packet"),
            LoopUnit::Program => format!("{instructions} in all"),
        };
        words.extend(bytes.map(|bytes| format!(", {bytes} bytes")));
        words.extend(ns.map(|ns| format!(", {ns} ns a run")));
        words
    }
}

/// The counted loops.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// The loops.
    pub loops: Vec<HotLoop>,
    /// False if the observer stopped the count.
    pub complete: bool,
}

/// The way to run a loop.
enum LoopKind {
    /// By `sluice` with these arguments, which itself makes few packets or many.
    OwnPackets(&'static [&'static str], [u32; 2]),
    /// By `sluice` with these arguments, which receives few packets or many.
    Receiver(&'static [&'static str], [u32; 2]),
    /// By the kernel program of this name, of `sluice count` of this port.
    CountProgram(&'static str, &'static str),
    /// By the kernel program of this name, of `sluice generate` into this port with these flags.
    GenerateProgram(&'static str, &'static str, &'static [&'static str]),
}
use LoopKind::{CountProgram, GenerateProgram, OwnPackets, Receiver};

/// All loops, with the interface names of a lab.
const LOOPS: &[(&str, LoopKind)] = &[
    (
        "receive: ring of a packet socket",
        Receiver(
            &["count", "packet:right0?method=ring&block_timeout=1s&blocks=64"],
            [50_000, 250_000],
        ),
    ),
    (
        "forward: by exchange of buffers",
        OwnPackets(&["forward", "null:", "null:", "--one-way"], [200_000, 600_000]),
    ),
    (
        "claim program: copies into a ring",
        CountProgram("sluice_claim", "xdp:right0?filter=udp port 9"),
    ),
    (
        "claim program: redirects to AF_XDP",
        CountProgram("sluice_claim", "xdp:right0?method=af_xdp&filter=udp port 9"),
    ),
    ("program of an interface", CountProgram("sluice_ingress", DROP)),
    (
        "generator program: live frames",
        GenerateProgram("sluice_live", "left0", &["--method", "live", "--sport", "1..65535"]),
    ),
    (
        "generator program: live frames from a ring",
        GenerateProgram("sluice_ring", "live:left0", &[]),
    ),
];

/// Counts the instructions of all hot loops, in a lab. The result of a loop that cannot
/// be counted is the reason.
///
/// # Errors
/// No lab can be made.
pub fn count(watch: &dyn BenchObserver) -> Result<Counted, Failure> {
    let testbed = Testbed::make(TestbedConfig::PAIR)?;
    let setting = Setting { size: 60, queues: 1, cores: 1, ..Setting::default() };
    let context = StepContext { testbed: &testbed, setting };
    let mut counted = Counted::default();
    for (done, (name, kind)) in LOOPS.iter().enumerate() {
        watch.progress(&Progress { step: name, done, turns: Some(LOOPS.len()) });
        let (length, failed) = match kind.count(&context, watch) {
            Ok(length) => (Some(length), None),
            Err(Failure::Stopped) => return Ok(counted),
            Err(Failure::Step { reason, .. }) => (None, Some(reason)),
        };
        let of = match kind {
            OwnPackets(..) | Receiver(..) => LoopUnit::Packet,
            CountProgram(..) | GenerateProgram(..) => LoopUnit::Program,
        };
        let command = kind.command(&context).shown();
        counted.loops.push(HotLoop { name: (*name).into(), command, of, length, failed });
    }
    counted.complete = true;
    Ok(counted)
}

impl LoopKind {
    /// The command that runs it.
    fn command(&self, context: &StepContext<'_>) -> Program {
        match self {
            OwnPackets(arguments, _) | Receiver(arguments, _) => {
                Program::sluice(arguments.iter().copied())
            }
            CountProgram(_, port) => Program::sluice(["count", port]),
            GenerateProgram(_, port, flags) => context.generate(port, flags.iter().copied()),
        }
    }

    fn count(
        &self,
        context: &StepContext<'_>,
        watch: &dyn BenchObserver,
    ) -> Result<Length, Failure> {
        match *self {
            OwnPackets(_, packets) | Receiver(_, packets) => {
                if !is_installed(VALGRIND) {
                    return Err(Failure::of(missing(VALGRIND)));
                }
                let [few, many] = packets;
                let least = self.run(few, context, watch)?;
                let most = self.run(many, context, watch)?;
                let instructions = per_packet(most.saturating_sub(least), many - few);
                Ok(Length { instructions, bytes: None, ns: None })
            }
            CountProgram(name, port) => {
                examine(context, watch, name, (port, "left0", &["--method", "live"]), true)
            }
            GenerateProgram(name, port, flags) => {
                examine(context, watch, name, (DROP, port, flags), false)
            }
        }
    }

    /// Runs a loop in user space for a number of packets, and returns the number of instructions.
    fn run(
        &self,
        packets: u32,
        context: &StepContext<'_>,
        watch: &dyn BenchObserver,
    ) -> Result<u64, Failure> {
        let receives = matches!(self, Receiver(..));
        let program = self
            .command(context)
            .and(["--count", &packets.to_string(), "--json"])
            .and(receives.then_some(["--interval", "1s"]).into_iter().flatten())
            .by(VALGRIND, ["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .at(LabHost::Right)
            .on(context.receiver());
        let mut running = context.testbed.start(&program)?;
        if receives {
            // All packets are in the receiver's ring before it polls, so that it never waits and all batches
            // are full.
            running.until(&BEGUN, watch)?;
            running.signal(Signal::SIGSTOP);
            // A busy machine may lose some packets.
            let sent = (packets + packets / 4).to_string();
            let flags = ["--method", "live", "--count", &sent];
            let sender = context.generate(context.left(), flags);
            context.testbed.start(&sender)?.over(MAX_RUN, watch)?;
            running.signal(Signal::SIGCONT);
        }
        running.over(MAX_RUN, watch)?;
        let none = || Failure::of(format!("valgrind: {}", running.complaint()));
        INSTRUCTIONS.of(&running.output()).ok_or_else(none)
    }
}

/// Sends packets to a receiver, and looks up the kernel program of one of them.
fn examine(
    context: &StepContext<'_>,
    watch: &dyn BenchObserver,
    name: &str,
    (port, to, flags): (&str, &str, &[&str]),
    is_receiver_s: bool,
) -> Result<Length, Failure> {
    // The kernel measures times only while this exists.
    let _statistics = RunStatistics::enable();
    let receiver = context.count(port, [""; 0]).ready(BEGUN);
    let receiver = context.testbed.start_ready(&receiver, watch)?;
    let sender = context.generate(to, flags.iter().copied()).and(["--interval", "100ms"]);
    let sender = context.testbed.start_ready(&sender.ready(BEGUN), watch)?;
    watch.pause(SENDING)?;
    let owner = if is_receiver_s { &receiver } else { &sender };
    length(name, &ProgInfo::of_process(owner.pid())?)
}

/// The length of a program, by its name among those of a process.
fn length(name: &str, programs: &[ProgInfo]) -> Result<Length, Failure> {
    let it = programs.iter().find(|it| it.name == name);
    let it = it.ok_or_else(|| Failure::of(format!("the process has no program {name}")))?;
    // A program called by others has no runs of its own.
    let runs = std::iter::once(it).chain(programs.iter().max_by_key(|it| it.runs));
    let run = { runs }.find(|it| it.runs > 0);
    Ok(Length {
        instructions: f64::from(it.instructions),
        bytes: (it.bytes > 0).then_some(it.bytes),
        ns: run.map(|it| (it.run_ns as f64 / it.runs as f64).round()),
    })
}

/// Rounds to hundredths, because smaller parts depend on signals and timers.
fn per_packet(instructions: u64, packets: u32) -> f64 {
    (instructions as f64 / f64::from(packets) * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ProcessOutput;

    #[test]
    fn a_loop_that_could_not_be_counted_is_read_back_without_a_number() {
        let length = Length { instructions: 21.5, bytes: None, ns: None };
        for (length, failed, text, shown) in [
            (Some(length), None, r#""instructions":21.5"#, "21.50 a packet"),
            (None, Some("no valgrind".to_owned()), r#""failed":"no valgrind"#, "no valgrind"),
        ] {
            let (name, command) = ("forward".into(), "sluice forward".into());
            let it = HotLoop { name, command, of: LoopUnit::Packet, length, failed };
            let written = serde_json::to_string(&it).unwrap();
            assert!(written.contains(text), "{written}");
            assert_eq!(serde_json::from_str::<HotLoop>(&written).unwrap(), it);
            assert_eq!(it.shown(), shown);
        }
    }

    #[test]
    fn each_loop_has_a_name_of_its_own() {
        let mut names: Vec<&str> = LOOPS.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), LOOPS.len());
    }

    #[test]
    fn the_count_of_valgrind_is_found() {
        let err = "==71== Callgrind, a call-graph generating cache profiler\n\
                   ==71== Events    : Ir\n==71== Collected : 12345678\n==71== \n\
                   ==71== I   refs:      12,345,678\n";
        let said = ProcessOutput { out: "{\"command\":\"forward\"}\n".into(), err: err.into() };
        assert_eq!(INSTRUCTIONS.of(&said), Some(12_345_678));
    }

    #[test]
    fn the_instructions_of_a_packet_are_those_of_more_packets() {
        assert_eq!(per_packet(4_212_345, 100_000), 42.12);
    }

    #[test]
    fn a_called_program_has_the_time_of_the_one_on_the_interface() {
        let loaded = |name: &str, instructions, runs, run_ns| ProgInfo {
            id: 1,
            name: name.into(),
            instructions,
            bytes: 0,
            runs,
            run_ns,
        };
        let programs = [loaded("ingress", 200, 10, 900), loaded("claim", 40, 0, 0)];
        let expected = Length { instructions: 40.0, bytes: None, ns: Some(90.0) };
        assert_eq!(length("claim", &programs).unwrap(), expected);
        assert_eq!(length("claim", &programs[1..]).unwrap().ns, None, "it never ran");
        let error = length("other", &programs).unwrap_err().to_string();
        assert_eq!(error, "the process has no program other");
    }
}
