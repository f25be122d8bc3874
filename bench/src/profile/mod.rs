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
mod functions;
mod named;
mod names;
mod perf;
mod spread;
mod table;

use sluicegate::error::Result;

use collect::{Collector, Recording};
use findings::Findings;
pub use findings::{Cpu, Waits};
use spread::SampledCounters;
pub use table::Wait;

use crate::measurement::Cause;

/// Samples a second and CPU. Not a round number: nothing else should keep step with it.
const PER_SECOND: u32 = 997;

/// Who has what part in a step.
#[derive(Clone, Debug, Default)]
pub struct Who {
    /// The processes that are measured; none of them where that is the kernel alone. Absent: all but
    /// the others named here.
    pub measured: Option<Vec<u32>>,
    /// The processes that make packets for them. What a process does as it is interrupted by
    /// packets that come in counts as the measured work.
    pub sender: Vec<u32>,
    /// Runs of live frames make packets for what is measured, and are not themselves measured.
    pub live_frames_send: bool,
}

/// What a step achieved while it was sampled.
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
    /// What measured it: `cycles`, or `cpu-clock` where the machine does not count them.
    pub clock: String,
    /// Seconds that it took.
    pub elapsed_s: f64,
    /// Samples taken, and those lost for want of room.
    pub samples: u64,
    /// See there.
    pub lost_samples: u64,
    /// The largest share first.
    pub causes: Vec<Cause>,
    /// By number.
    pub cpus: Vec<Cpu>,
    /// Why threads left their CPUs, the most frequent first.
    pub waits: Vec<Waits>,
    /// What to do about it; none where nothing stands out.
    pub advice: Option<String>,
    /// Why these figures are doubtful; none where they are not.
    pub doubt: Option<String>,
}

/// Sampling that goes on.
#[derive(Debug)]
pub struct Profiler {
    collector: Collector,
    before: SampledCounters,
}

impl Profiler {
    /// Samples all CPUs from now on.
    ///
    /// # Errors
    /// `CAP_PERFMON` is missing, or the kernel hides its names, or has no perf events; the error
    /// says what to do, and a bench can go on without.
    pub fn start() -> Result<Self> {
        let collector = Collector::start(PER_SECOND)?;
        Ok(Self { collector, before: SampledCounters::read()? })
    }

    /// Ends. The processes should be there until now, for their names.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn stop(self) -> Result<Recorded> {
        let after = SampledCounters::read()?;
        let recording = self.collector.stop()?;
        Ok(Recorded { recording, before: self.before, after })
    }
}

/// What was sampled, until it is known what the step achieved meanwhile.
#[derive(Debug)]
pub struct Recorded {
    recording: Recording,
    before: SampledCounters,
    after: SampledCounters,
}

impl Recorded {
    /// Says where the time went, and what to do about it.
    pub fn explain(&self, who: &Who, achieved: Achieved) -> Profile {
        let Self { recording, before, after } = self;
        let seconds = after.seconds_since(before);
        let mut cpus = after.since(before);
        for (number, switches) in &recording.switches {
            if let Some(cpu) = cpus.iter_mut().find(|cpu| cpu.cpu == *number) {
                cpu.switches = *switches;
            }
        }
        let places = named::named(recording, who, &after.busy_ns_since(before));
        let mut findings = Findings::of(&places, cpus, seconds);
        (findings.packets, findings.lost) = (achieved.packets, achieved.lost);
        Profile {
            clock: recording.clock.name().into(),
            elapsed_s: seconds,
            samples: recording.samples,
            lost_samples: recording.lost,
            causes: findings.report(),
            advice: advice::advice(&findings),
            doubt: advice::doubt(&findings),
            cpus: findings.cpus,
            waits: findings.waits,
        }
    }
}
