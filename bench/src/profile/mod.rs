//! The causes of a step's rate: where CPU time goes while it runs.
//!
//! ```text
//!   perf --> sampler ----> findings --> advice
//!            call chains   by cause     one sentence
//!                             ^
//!                          causes: from a call chain
//! ```
//!
//! Needs perf(1) and `CAP_PERFMON` (root before Linux 5.8); without them a bench runs without causes.

mod advice;
mod causes;
mod findings;
mod sampler;

use sluicegate::error::Result;
use sluicegate::link::{Rates, Sample, Sampler};

use crate::measurement::{CpuShare, Explanation};
use findings::{Cpu, Findings};
use sampler::{Recording, Sampling};

/// Checks that all CPUs can be sampled.
///
/// # Errors
/// perf or a privilege is missing; the error has the remedy.
pub fn check() -> Result<()> {
    Sampling::start().map(drop)
}

/// Processes by their part in a step.
#[derive(Clone, Debug, Default)]
pub struct Participants {
    /// The measured processes; empty if the kernel alone is measured.
    pub measured: Vec<u32>,
    /// The processes that make packets for them. Softirqs that interrupt a process to receive packets count
    /// as measured work.
    pub sender: Vec<u32>,
}

/// A running measurement of all CPUs: their counters, and samples of what they run.
#[derive(Debug)]
pub struct Profiler {
    /// None if no causes are wanted.
    sampling: Option<Result<Sampling>>,
    before: Sample,
}

impl Profiler {
    /// Starts to measure all CPUs, and with `causes` to sample them. If that fails, the explanation has the
    /// reason.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn start(causes: bool) -> Result<Self> {
        let sampling = causes.then(Sampling::start);
        Ok(Self { sampling, before: counters()? })
    }

    /// Stops. The processes must not have exited before, so that their functions have names.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn stop(self) -> Result<Recorded> {
        let rates = Rates::between(&self.before, &counters()?);
        let recording = self.sampling.map(|sampling| sampling.and_then(Sampling::stop));
        Ok(Recorded { rates, recording })
    }
}

/// A finished measurement, to be explained once the step's result is known.
#[derive(Debug)]
pub struct Recorded {
    rates: Rates,
    recording: Option<Result<Recording>>,
}

impl Recorded {
    /// The load of the CPUs while they handled `packets` packets and lost the share `lost`; with samples also
    /// its causes, and advice.
    pub fn explain(&self, participants: &Participants, packets: u64, lost: f64) -> Explanation {
        let cpus = self.rates.cpus.iter().map(|cpu| {
            let ns = cpu.busy * self.rates.seconds * 1e9 / packets.max(1) as f64;
            CpuShare { cpu: cpu.cpu, busy: cpu.busy, ns }
        });
        let cpus = cpus.collect();
        let Some(Ok(recording)) = &self.recording else {
            let failed = self.recording.as_ref().and_then(|it| it.as_ref().err());
            let doubt = failed.map(|error| format!("no causes: {error}"));
            return Explanation { cpus, doubt, ..Explanation::default() };
        };
        let findings = Findings { packets, lost, ..self.findings(recording, participants) };
        Explanation {
            cpus,
            causes: findings.report(),
            advice: advice::advice(&findings),
            doubt: advice::doubt(&findings),
        }
    }

    fn findings(&self, recording: &Recording, participants: &Participants) -> Findings {
        let Rates { seconds, ref cpus, .. } = self.rates;
        let count = |rate: f64| (rate * seconds).round() as u64;
        let counters = cpus.iter().map(|cpu| Cpu {
            cpu: cpu.cpu,
            processed: count(cpu.processed),
            dropped: count(cpu.dropped),
            squeezed: count(cpu.time_squeeze),
            ..Cpu::default()
        });
        let stacks = findings::named(recording, participants);
        let samples = stacks.len() as u64 + recording.lost;
        let lost_samples = recording.lost as f64 / samples.max(1) as f64;
        Findings { lost_samples, ..Findings::of(&stacks, counters.collect(), seconds) }
    }
}

/// The kernel's counters of all CPUs now.
fn counters() -> Result<Sample> {
    // Every sample has the counters of all CPUs, whatever the interface.
    Sampler::open(None, &["lo".into()])?.sample()
}
