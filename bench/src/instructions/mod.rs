//! How many instructions the hot loops take: numbers that a busy machine does not change.
//!
//! A rate varies with the machine and its load; the instructions per packet do not. So they show a
//! loop that grew by a few instructions.
//!
//! | file | what is counted |
//! | --- | --- |
//! | `callgrind` | of loops in user space: instructions a packet, counted by valgrind |
//! | `programs` | of programs in the kernel: how long they are, as the kernel has them |

mod callgrind;
mod programs;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluicegate::error::Error;

use crate::failure::Failure;
use crate::process::Program;
use crate::rounds::{BenchObserver, Progress};
use crate::step::Setting;
use crate::suite::StepContext;
use crate::testbed::{Cpus, Testbed, TestbedConfig};
use callgrind::{InUserSpace, PacketSource};
use programs::{KernelProgram, Owner};

/// A hot loop, and how long it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HotLoop {
    /// Which: "receive: ring of a packet socket".
    #[serde(rename = "loop")]
    pub name: String,
    /// The command that runs it.
    pub command: String,
    /// The unit of the count.
    pub of: Unit,
    /// How long it is; absent where that could not be counted.
    #[serde(flatten)]
    pub length: Option<Length>,
    /// Why there is no number.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed: Option<String>,
}

/// The unit that instructions are counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// A packet: those that are run for it in user space.
    Packet,
    /// A program in the kernel: those that it has. A packet meets some of them.
    Program,
}

/// How long a loop is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Length {
    /// Instructions.
    pub instructions: f64,
    /// Bytes of a program's machine code.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes: Option<u32>,
    /// ns of a run of the program on its interface, by the kernel's run statistics: what that one
    /// went on to is in it, and the reading of a clock. It moves as a rate does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ns: Option<f64>,
}

impl HotLoop {
    /// Its length as people read it: "41.20 a packet", "96 in all, 512 bytes, 70 ns a run".
    pub fn shown(&self) -> String {
        let Some(Length { instructions, bytes, ns }) = self.length else {
            return self.failed.clone().unwrap_or_else(|| "not counted".into());
        };
        let mut words = match self.of {
            Unit::Packet => format!("{instructions:.2} a packet"),
            Unit::Program => format!("{instructions} in all"),
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

/// How a loop is counted.
trait Loop {
    fn name(&self) -> &'static str;

    /// The command that runs it.
    fn command(&self, place: &StepContext<'_>) -> Program;

    fn unit(&self) -> Unit;

    /// Counts.
    ///
    /// # Errors
    /// It cannot be run, or the observer stopped it.
    fn count(&self, place: &StepContext<'_>, watch: &dyn BenchObserver) -> Result<Length, Failure>;
}

/// All there are, by the names of the interfaces of a lab.
const ALL: &[&dyn Loop] = &[
    &InUserSpace {
        name: "receive: ring of a packet socket",
        arguments: &["count", "packet:right0?method=ring&block_timeout=1s&blocks=64"],
        packets: [50_000, 250_000],
        from: PacketSource::Wire,
    },
    &InUserSpace {
        name: "forward: by exchange of buffers",
        arguments: &["forward", "null:", "null:", "--one-way"],
        packets: [200_000, 600_000],
        from: PacketSource::Nowhere,
    },
    &KernelProgram {
        name: "claim program: copies into a ring",
        program: "sluice_claim",
        owner: Owner::Receives("xdp:right0?filter=udp port 9"),
    },
    &KernelProgram {
        name: "claim program: redirects to AF_XDP",
        program: "sluice_claim",
        owner: Owner::Receives("xdp:right0?method=af_xdp&filter=udp port 9"),
    },
    &KernelProgram {
        name: "program of an interface",
        program: "sluice_ingress",
        owner: Owner::Receives(programs::DROP),
    },
    &KernelProgram {
        name: "generator program: live frames",
        program: "sluice_live",
        owner: Owner::Sends("left0", &["--method", "live", "--sport", "1..65535"]),
    },
    &KernelProgram {
        name: "generator program: live frames from a ring",
        program: "sluice_ring",
        owner: Owner::Sends("live:left0", &[]),
    },
];
/// How long one takes, as far as can be known.
const EACH: Duration = Duration::from_secs(3);

/// Counts the instructions of all hot loops, in a lab. One that cannot be counted says why.
///
/// # Errors
/// No lab can be made.
pub fn count(watch: &dyn BenchObserver) -> Result<Counted, Error> {
    let testbed = Testbed::make(TestbedConfig { queues: 1, jumbo: false, line: false })?;
    let cpus = Cpus::allowed()?;
    let setting = Setting { size: 60, queues: 1, cores: 1, ..Setting::default() };
    let place = StepContext { testbed: &testbed, cpus: &cpus, setting };
    let mut counted = Counted::default();
    for (done, it) in ALL.iter().enumerate() {
        let (turns, left) = (ALL.len(), EACH * (ALL.len() - done) as u32);
        watch.progress(&Progress { step: it.name(), done, turns, left });
        let (length, failed) = match it.count(&place, watch) {
            Ok(length) => (Some(length), None),
            Err(Failure::Stopped) => return Ok(counted),
            Err(Failure::Step { reason, .. }) => (None, Some(reason)),
        };
        let (name, command) = (it.name().into(), it.command(&place).shown());
        counted.loops.push(HotLoop { name, command, of: it.unit(), length, failed });
    }
    counted.complete = true;
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_could_not_be_counted_is_read_back_without_a_number() {
        let length = Length { instructions: 21.5, bytes: None, ns: None };
        for (length, failed, text, shown) in [
            (Some(length), None, r#""instructions":21.5"#, "21.50 a packet"),
            (None, Some("no valgrind".to_owned()), r#""failed":"no valgrind"#, "no valgrind"),
        ] {
            let (name, command) = ("forward".into(), "sluice forward".into());
            let it = HotLoop { name, command, of: Unit::Packet, length, failed };
            let written = serde_json::to_string(&it).unwrap();
            assert!(written.contains(text), "{written}");
            assert_eq!(serde_json::from_str::<HotLoop>(&written).unwrap(), it);
            assert_eq!(it.shown(), shown);
        }
    }

    #[test]
    fn each_loop_has_a_name_of_its_own() {
        let mut names: Vec<&str> = ALL.iter().map(|it| it.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
