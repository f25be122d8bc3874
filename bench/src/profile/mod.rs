//! Why a step is as fast as it is: the causes that CPU time goes to while it runs.
//!
//! ```text
//!   perf events --> sampler --> symbols --> findings --> advice
//!   a ring a CPU    addresses   functions   by cause     one sentence
//!                                              ^
//!                                           causes: what a chain of functions means
//! ```
//!
//! Linux 5.1, `CAP_PERFMON` (root before 5.8); a bench goes on without them, and without causes.

mod advice;
mod causes;
mod findings;
mod perf_event;
mod sampler;
mod symbols;

use sluicegate::error::Result;
use sluicegate::link::{Rates, Sample, Sampler};

use crate::measurement::Cause;
use findings::{Cpu, Findings};
use sampler::{Recording, Sampling};

/// Processes by their part in a step.
#[derive(Clone, Debug, Default)]
pub struct Participants {
    /// The measured processes; empty if the kernel alone is measured. Absent: all but the others named here.
    pub measured: Option<Vec<u32>>,
    /// The processes that make packets for them. Softirqs that interrupt a process to receive packets count
    /// as measured work.
    pub sender: Vec<u32>,
    /// True if runs of live frames make packets for the measured processes, and are not measured themselves.
    pub live_frames_send: bool,
}

/// Result of a step while it was sampled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Achieved {
    /// Packets handled.
    pub packets: u64,
    /// The share that was lost, from 0 to 1; 0 if that is unknown.
    pub lost: f64,
}

/// The causes of the time, and advice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The largest share first.
    pub causes: Vec<Cause>,
    /// Sleeps for a time, a second, of each measured process; the most frequent sleeper first.
    pub sleeps: Vec<(String, f64)>,
    /// Advice; none if no rule applies.
    pub advice: Option<String>,
    /// Why these figures are doubtful; none if they are not.
    pub doubt: Option<String>,
}

/// A running profile of all CPUs.
#[derive(Debug)]
pub struct Profiler {
    sampling: Sampling,
    before: Sample,
}

impl Profiler {
    /// Starts to sample all CPUs.
    ///
    /// # Errors
    /// `CAP_PERFMON` is missing, or the kernel hides its names, or has no perf events; the error
    /// has the remedy.
    pub fn start() -> Result<Self> {
        let sampling = Sampling::start()?;
        Ok(Self { sampling, before: counters()? })
    }

    /// Stops. The processes must not have exited before, so that their functions have names.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn stop(self) -> Result<Recorded> {
        let after = counters()?;
        let recording = self.sampling.stop()?;
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
    /// Finds the causes of the time, and advice.
    pub fn explain(&self, participants: &Participants, achieved: Achieved) -> Profile {
        let Self { recording, before, after } = self;
        let rates = Rates::between(before, after);
        let seconds = rates.seconds;
        let count = |rate: f64| (rate * seconds).round() as u64;
        let cpus = rates.cpus.iter().map(|cpu| Cpu {
            cpu: cpu.cpu,
            processed: count(cpu.processed),
            dropped: count(cpu.dropped),
            squeezed: count(cpu.time_squeeze),
            switches: recording.switches.get(&cpu.cpu).copied().unwrap_or(0),
            ..Cpu::default()
        });
        let busy_ns = rates.cpus.iter().map(|cpu| (cpu.cpu, cpu.busy * seconds * 1e9)).collect();
        let stacks = findings::named(recording, participants, &busy_ns);
        let records = recording.samples + recording.lost;
        let findings = Findings {
            packets: achieved.packets,
            lost: achieved.lost,
            lost_samples: recording.lost as f64 / records.max(1) as f64,
            ..Findings::of(&stacks, cpus.collect(), seconds)
        };
        Profile {
            causes: findings.report(),
            advice: advice::advice(&findings),
            doubt: advice::doubt(&findings),
            sleeps: findings.sleeps,
        }
    }
}

/// The kernel's counters of all CPUs now.
pub(crate) fn counters() -> Result<Sample> {
    // Every sample has the counters of all CPUs, whatever the interface.
    Sampler::open(None, &["lo".into()])?.sample()
}
