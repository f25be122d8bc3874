//! Why a step is as fast as it is: where all CPUs' time went while it ran.
//!
//! ```text
//!   perf events --> collect --> names --> findings --> advice
//!   a ring a CPU    addresses   functions  by cause     one sentence
//!                                            ^
//!                                          table: what a chain of functions means
//! ```
//!
//! [`Profiler`] samples all CPUs until it is stopped, about a thousand times a second each;
//! [`Recorded::explain`] says what it saw. Linux 5.1, `CAP_PERFMON` (root before 5.8); without them a
//! bench goes on, without causes.

mod advice;
mod collect;
mod findings;
mod named;
mod names;
mod perf;
mod perf_event;
mod table;

use sluicegate::error::Result;
use sluicegate::link::{Rates, Sample, Sampler};

use collect::{Collector, Recording};
pub use findings::Waits;
use findings::{Cpu, Findings};
pub use table::Wait;

use crate::measurement::Cause;

/// Samples a second and CPU. Not a round number: nothing else should keep step with it.
const PER_SECOND: u32 = 997;

/// Processes by their part in a step.
#[derive(Clone, Debug, Default)]
pub struct Participants {
    /// The processes that are measured; none of them where that is the kernel alone. Absent: all but
    /// the others named here.
    pub measured: Option<Vec<u32>>,
    /// The processes that make packets for them. What a process does as it is interrupted by
    /// packets that come in counts as the measured work.
    pub sender: Vec<u32>,
    /// Runs of live frames make packets for what is measured, and are not themselves measured.
    pub live_frames_send: bool,
}

/// Result of a step while it was sampled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Achieved {
    /// Packets handled.
    pub packets: u64,
    /// The share that was lost, from 0 to 1; 0 where that is not known.
    pub lost: f64,
}

/// Where the time went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The largest share first.
    pub causes: Vec<Cause>,
    /// Why threads left their CPUs, the most frequent first.
    pub waits: Vec<Waits>,
    /// Advice; none if nothing stands out.
    pub advice: Option<String>,
    /// Why these figures are doubtful; none where they are not.
    pub doubt: Option<String>,
}

/// Sampling that goes on.
#[derive(Debug)]
pub struct Profiler {
    collector: Collector,
    before: Sample,
}

impl Profiler {
    /// Samples all CPUs from now on.
    ///
    /// # Errors
    /// `CAP_PERFMON` is missing, or the kernel hides its names, or has no perf events; the error
    /// says what to do, and a bench can go on without.
    pub fn start() -> Result<Self> {
        let collector = Collector::start(PER_SECOND)?;
        Ok(Self { collector, before: counters()? })
    }

    /// Ends. The processes should be there until now, for their names.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn stop(self) -> Result<Recorded> {
        let after = counters()?;
        let recording = self.collector.stop()?;
        Ok(Recorded { recording, before: self.before, after })
    }
}

/// Finished samples, to be explained once the step's result is known.
#[derive(Debug)]
pub struct Recorded {
    recording: Recording,
    before: Sample,
    after: Sample,
}

impl Recorded {
    /// Says where the time went, and what to do about it.
    pub fn explain(&self, participants: &Participants, achieved: Achieved) -> Profile {
        let Self { recording, before, after } = self;
        let rates = Rates::between(before, after);
        let seconds = rates.seconds;
        let whole = |rate: f64| (rate * seconds).round() as u64;
        let switches = |cpu| {
            let of = recording.switches.iter().find(|(number, _)| *number == cpu);
            of.map_or(0, |(_, switches)| *switches)
        };
        let cpus = rates.cpus.iter().map(|cpu| Cpu {
            cpu: cpu.cpu,
            processed: whole(cpu.processed),
            dropped: whole(cpu.dropped),
            squeezed: whole(cpu.time_squeeze),
            switches: switches(cpu.cpu),
            ..Cpu::default()
        });
        let busy_ns = rates.cpus.iter().map(|cpu| (cpu.cpu, cpu.busy * seconds * 1e9)).collect();
        let places = named::named(recording, participants, &busy_ns);
        let mut findings = Findings::of(&places, cpus.collect(), seconds);
        (findings.packets, findings.lost) = (achieved.packets, achieved.lost);
        let records = recording.samples + recording.lost;
        findings.lost_samples = recording.lost as f64 / records.max(1) as f64;
        Profile {
            causes: findings.report(),
            advice: advice::advice(&findings),
            doubt: advice::doubt(&findings),
            waits: findings.waits,
        }
    }
}

/// The kernel's counters of all CPUs now.
fn counters() -> Result<Sample> {
    // Every sample has the counters of all CPUs, whatever the interface.
    Sampler::open(None, &["lo".into()])?.sample()
}
