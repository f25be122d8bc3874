//! The CPU time of a program that receives at a rate.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::failure::Failure;
use crate::process::{BEGUN, COUNTING, Program, Ready, find, missing};
use crate::process_output::Count;
use crate::rounds::BenchObserver;
use crate::testbed::{Cpus, End, Testbed};
use crate::testbed::{NOBODY, from_left};

/// From when packets come until it is measured; and about what a program takes to begin.
pub const LEAD: Duration = Duration::from_secs(1);
/// Bytes of the packets.
const SIZE: u32 = 60;

/// A way of receiving.
pub struct Receiver {
    pub name: String,
    by: &'static str,
    program: Program,
    ready: Ready,
    count: Count,
}

/// A way of receiving, at each rate.
#[derive(Debug, Serialize)]
pub struct OfReceiver {
    /// Its name, in the words of the field.
    pub step: String,
    /// The program: "sluice", or a peer's name.
    pub by: &'static str,
    /// The command, as a shell takes it.
    pub command: String,
    /// The CPU time at each rate.
    pub rates: Vec<AtRate>,
    /// Why it could not be measured at a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The cost of receiving at one rate.
#[derive(Debug, Serialize)]
pub struct AtRate {
    /// Packets a second that were to be sent.
    pub pps: u64,
    /// The time that the program's threads were on a CPU, as a share of one.
    pub cpu: f64,
    /// Packets that were sent in all.
    pub sent: u64,
    /// Packets that the program says it has received; absent where it does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
}

/// The ways of receiving at the right end of a testbed.
pub fn receivers(testbed: &Testbed) -> Vec<Receiver> {
    let right = testbed.right.interface.as_str();
    let sluice = |name: &str, port: String| Receiver {
        name: name.into(),
        by: "sluice",
        program: Program::sluice(["count", &port, "--json", "--interval", "1s"]),
        ready: COUNTING,
        count: Count::COUNTED,
    };
    let tool = |name: &'static str, flags: &[&str], ready, count| Receiver {
        name: format!("{name} -w /dev/null"),
        by: name,
        program: Program::tool(name, flags.iter().copied()),
        ready: Ready::Says(ready),
        count,
    };
    vec![
        sluice("TPACKET_V3 ring", format!("packet:{right}")),
        sluice("mirror", format!("mirror:{right}")),
        sluice("XDP copies", format!("xdp:{right}?method=ring")),
        sluice("AF_XDP, copy mode", format!("xdp:{right}?mode=copy")),
        tool(
            "tcpdump",
            &["-n", "-i", right, "-B", "65536", "-Z", "root", "-w", "/dev/null"],
            "listening on",
            Count::Before("captured"),
        ),
        tool(
            "dumpcap",
            &["-q", "-i", right, "-B", "64", "-w", "/dev/null"],
            "File: ",
            Count::After("Packets captured:"),
        ),
    ]
}

impl Receiver {
    /// Its row, without a number yet.
    pub fn row(&self) -> OfReceiver {
        let (step, command) = (self.name.clone(), self.program.typed(None));
        OfReceiver { step, by: self.by, command, rates: Vec::new(), failed: None }
    }

    /// Measures it at a rate.
    pub fn turn(
        &self,
        testbed: &Testbed,
        cpus: &Cpus,
        pps: u64,
        time: Duration,
        watch: &dyn BenchObserver,
    ) -> Result<AtRate, Failure> {
        let needs = self.program.needs();
        if self.by != "sluice" && find(needs).is_none() {
            return Err(Failure::of(missing(needs)));
        }
        let cpu = cpus.receivers(1, 1).first().copied();
        let mut receiver = self.program.start(testbed, End::Right, cpu)?;
        receiver.until(&self.ready, watch)?;
        let mut sender = match pps {
            0 => None,
            _ => {
                let rate = format!("{pps}pps");
                let flags = ["--rate", &rate, "--interval", "200ms"];
                let program = from_left(testbed, &cpus.senders(1), SIZE, NOBODY).and(flags);
                let mut sender = program.start(testbed, End::Left, None)?;
                sender.until(&BEGUN, watch)?;
                Some(sender)
            }
        };
        watch.pause(LEAD.min(time))?;
        let (begin, before_ns) = (Instant::now(), receiver.cpu_ns());
        watch.pause(time)?;
        let (elapsed, after_ns) = (begin.elapsed(), receiver.cpu_ns());
        receiver.still_runs()?;
        if let Some(sender) = &mut sender {
            sender.still_runs()?;
        }
        let sent = sender.map(|sender| sender.end()).transpose()?;
        // A packet ring hands its last block over within 10 ms, tcpdump's within a second.
        watch.pause(Duration::from_millis(100))?;
        let received = self.count.of(&receiver.end()?);
        Ok(AtRate {
            pps,
            cpu: after_ns.saturating_sub(before_ns) as f64 / elapsed.as_nanos() as f64,
            sent: sent.and_then(|said| Count::SENT.of(&said)).unwrap_or(0),
            received,
        })
    }
}
