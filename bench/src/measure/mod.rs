//! One turn of one step: what is started when, and what is counted over which time.

mod pipe;
mod receive;

use std::time::{Duration, Instant};

use sluicegate::link::{Sample, Sampler};

use crate::failure::Failure;
use crate::measurement::{CpuShare, Explanation, Figures, Measurement};
use crate::process::{COUNTING, Program, Running};
use crate::profile::{Achieved, Participants, Profile, Profiler, Recorded};
use crate::rounds::BenchObserver;
use crate::step::{Job, Order, Step, Way};
use crate::testbed::{Cpus, End, Side, Testbed};

/// How turns are taken.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// How long packets are sent, each time.
    pub time: Duration,
    /// The CPUs of the two sides.
    pub cpus: Cpus,
    /// Sample where the CPU time goes.
    pub causes: bool,
    /// The longest that a cache line takes between CPUs that are near each other.
    pub near: Duration,
}

/// Runs a step once.
///
/// # Errors
/// The step could not be run, or the observer stopped it. Its changes are undone.
pub fn measure(
    testbed: &Testbed,
    step: &Step,
    conditions: &Conditions,
    watch: &dyn BenchObserver,
) -> Result<Measurement, Failure> {
    let _tidied = prepare(testbed, step)?;
    let run = TurnContext { testbed, conditions, watch };
    match &step.way {
        Way::Receive(intake) => run.receive(step, intake),
        Way::Send(job) => run.send(job),
        Way::Pipe(pipe) => run.pipe(pipe),
    }
}

/// The testbed, conditions and observer of a turn.
#[derive(Clone, Copy)]
struct TurnContext<'a> {
    testbed: &'a Testbed,
    conditions: &'a Conditions,
    watch: &'a dyn BenchObserver,
}

impl TurnContext<'_> {
    /// Has everything that comes to the right end counted and dropped in XDP.
    fn count_in_xdp(self) -> Result<Running, Failure> {
        let port = format!("xdp:{}?action=drop", self.testbed.right.interface);
        let program = Program::sluice(["count", &port, "--json", "--interval", "100ms"]);
        let mut running = program.start(self.testbed, End::Right, None)?;
        running.until(&COUNTING, self.watch)?;
        Ok(running)
    }
}

/// Does what a step wants done before. What it wants done behind is done when the value goes.
fn prepare<'a>(testbed: &'a Testbed, step: &'a Step) -> Result<Tidied<'a>, Failure> {
    let tidied = Tidied { testbed, orders: &step.tidy };
    for Order { end, program } in &step.prepare {
        program.run(testbed, *end)?;
    }
    Ok(tidied)
}

struct Tidied<'a> {
    testbed: &'a Testbed,
    orders: &'a [Order],
}

impl Drop for Tidied<'_> {
    fn drop(&mut self) {
        for Order { end, program } in self.orders {
            // The testbed goes, too: what stays until then changes the next step at worst, which says
            // that it could not be prepared.
            let _ = program.run(self.testbed, *end);
        }
    }
}

/// A running measurement of all CPUs.
struct Load {
    sampler: Sampler,
    before: Sample,
    from: Instant,
    profiler: Option<Profiler>,
}

/// A finished measurement of all CPUs.
struct Loaded {
    before: Sample,
    after: Sample,
    time: Duration,
    recorded: Option<Recorded>,
}

impl Load {
    fn begin(side: &Side, conditions: &Conditions) -> Result<Self, Failure> {
        let mut sampler =
            Sampler::open(side.netns.as_deref(), std::slice::from_ref(&side.interface))?;
        // That it can be was tried before; where it cannot be now there are no causes.
        let profiler = conditions.causes.then(|| Profiler::start().ok()).flatten();
        let before = sampler.sample()?;
        Ok(Self { sampler, before, from: Instant::now(), profiler })
    }

    /// Ends it, while what ran is still there.
    fn end(mut self) -> Result<Loaded, Failure> {
        let after = self.sampler.sample()?;
        let time = self.from.elapsed();
        let recorded = self.profiler.and_then(|profiler| profiler.stop().ok());
        Ok(Loaded { before: self.before, after, time, recorded })
    }
}

impl Loaded {
    /// Adds to the figures of `packets` packets what the CPUs did, and why.
    fn explain(
        &self,
        participants: &Participants,
        packets: u64,
        figures: Figures<f64>,
    ) -> Measurement {
        let cpus = shares(&self.before, &self.after, self.time, packets);
        let achieved = Achieved { packets, lost: figures.lost.unwrap_or(0.0) };
        let profile =
            self.recorded.as_ref().map(|recorded| recorded.explain(participants, achieved));
        let Profile { causes, advice, doubt, .. } = profile.unwrap_or_default();
        let explanation = Explanation { cpus, causes, advice, doubt };
        Measurement { figures, explanation, apart_ns: None }
    }
}

fn shares(before: &Sample, after: &Sample, elapsed: Duration, packets: u64) -> Vec<CpuShare> {
    let share = |now: &sluicegate::link::CpuCounters| {
        let then = before.cpus.iter().find(|then| then.cpu == now.cpu)?;
        let total = now.total_ticks.saturating_sub(then.total_ticks);
        let idle = now.idle_ticks.saturating_sub(then.idle_ticks).min(total);
        // Ticks of 10 ms: a CPU that was off meanwhile has none.
        let busy = (total > 0).then(|| (total - idle) as f64 / total as f64)?;
        let ns = busy * elapsed.as_nanos() as f64 / packets.max(1) as f64;
        Some(CpuShare { cpu: now.cpu, busy, ns })
    };
    after.cpus.iter().filter_map(share).collect()
}

/// Packets that have come to the right end's interface and met the XDP program there.
fn seen_in_xdp(testbed: &Testbed) -> Result<u64, Failure> {
    let side = &testbed.right;
    let interface = side.look()?;
    let total = sluicegate::link::netns::run_in(side.netns.as_deref(), || {
        use sluicegate::xdp::resident::Resident;
        Ok(Resident::find(&interface)?.map(|resident| resident.total().packets))
    })?;
    total.ok_or_else(|| Failure::of(format!("the XDP program on {} was removed", side.interface)))
}

/// Packets in millions a second.
fn mpps(packets: u64, time: Duration) -> f64 {
    packets as f64 / time.as_nanos().max(1) as f64 * 1e3
}

/// The share of `sent` that did not arrive, from 0 to 1. A host may send something of its own, so
/// that more arrives: nothing is lost then.
fn lost(sent: u64, arrived: u64) -> f64 {
    sent.saturating_sub(arrived) as f64 / sent.max(1) as f64
}

/// The longest that the first packets are waited for.
const FIRST: Duration = Duration::from_secs(20);
/// Packets that show that traffic flows; a host sends fewer by itself when its interface is new.
const FEW: u64 = 1000;
/// From then on, until the sender has found its pace.
const SETTLE: Duration = Duration::from_millis(300);

impl TurnContext<'_> {
    /// Runs a step once.
    pub fn send(self, job: &Job) -> Result<Measurement, Failure> {
        let Self { testbed, conditions, watch } = self;
        let counter = self.count_in_xdp()?;
        let at_first = seen_in_xdp(testbed)?;
        let mut sender = job.program.start(testbed, End::Left, job.cpu)?;
        sender.until(&job.ready, watch)?;
        self.first_packets(&mut sender, at_first)?;
        watch.pause(SETTLE)?;

        let (from, before) = (Instant::now(), seen_in_xdp(testbed)?);
        let (load, cpu_before) = (Load::begin(&testbed.right, conditions)?, sender.cpu_ns());
        watch.pause(conditions.time)?;
        let (time, after) = (from.elapsed(), seen_in_xdp(testbed)?);
        let cpu_ns = sender.cpu_ns().saturating_sub(cpu_before);
        let packets = after.saturating_sub(before);
        let loaded = load.end()?;
        let participants =
            Participants { measured: Some(vec![sender.pid()]), ..Participants::default() };
        sender.still_runs()?;

        let said = sender.end()?;
        // What is under way arrives.
        watch.pause(SETTLE)?;
        let whole = seen_in_xdp(testbed)?.saturating_sub(at_first);
        counter.end()?;
        let figures = Figures {
            mpps: mpps(packets, time),
            offered_mpps: None,
            lost: job.count.and_then(|count| count.of(&said)).map(|sent| lost(sent, whole)),
            cpu_ns: Some(cpu_ns as f64 / packets.max(1) as f64),
        };
        Ok(loaded.explain(&participants, packets, figures))
    }

    /// Waits until the sender's packets come.
    fn first_packets(self, sender: &mut Running, before: u64) -> Result<(), Failure> {
        let deadline = Instant::now() + FIRST;
        while seen_in_xdp(self.testbed)? < before + FEW {
            sender.still_runs()?;
            if Instant::now() > deadline {
                return Err(Failure::of(format!(
                    "its packets do not come: {}",
                    sender.complaint()
                )));
            }
            self.watch.pause(Duration::from_millis(20))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sluicegate::link::CpuCounters;

    use super::*;

    #[test]
    fn a_cpu_s_share_is_of_its_own_ticks() {
        let at = |ticks: &[(u32, u64, u64)]| Sample {
            at: Instant::now(),
            interfaces: Vec::new(),
            cpus: ticks
                .iter()
                .map(|&(cpu, total_ticks, idle_ticks)| CpuCounters {
                    cpu,
                    total_ticks,
                    idle_ticks,
                    ..CpuCounters::default()
                })
                .collect(),
        };
        let before = at(&[(0, 1000, 900), (1, 50, 50)]);
        let after = at(&[(0, 1100, 925), (1, 50, 50), (2, 5, 5)]);
        let shares = shares(&before, &after, Duration::from_secs(1), 1_000_000);
        let busy = CpuShare { cpu: 0, busy: 0.75, ns: 750.0 };
        assert_eq!(shares, [busy], "a CPU without ticks, or that is new, has no share");
    }

    #[test]
    fn more_than_was_sent_is_no_loss() {
        assert_eq!(lost(100, 75), 0.25);
        assert_eq!(lost(100, 101), 0.0);
        assert_eq!(lost(0, 0), 0.0);
    }
}
