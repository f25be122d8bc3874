//! Live frames: packets that an eBPF program makes in the kernel and sends at once. A plan becomes
//! straight-line code ([`program`](self)): no packet is interpreted. Each worker has its own
//! program, counters and thread.

pub(crate) mod arith;
mod counter_layout;
mod pace;
mod program;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sluicegate::error::{Error, Result};
use sluicegate::link::Interface;
use sluicegate::xdp::RedirectCounts;
use sluicegate::xdp::live::{
    Exit, LiveProgram, LiveThread, LiveThreadConfig, Next, SharedCounters,
};

use crate::plan::Plan;
use crate::rate::{Dial, Gaps, Pace, Period};
use counter_layout::{CounterLayout, Table, word};
use program::MakeJob;

/// Runs of the program at first: there is much to do, and to begin a run takes a moment.
const FIRST_RUNS: u32 = 1 << 20;

/// Runs that take a few milliseconds where no packet is due.
const FEW_RUNS: u64 = 1 << 15;
/// A time that it is not worth sleeping for.
const NEAR: Duration = Duration::from_millis(2);
/// The last packets of a run are due within this time.
const SOON: Duration = Duration::from_millis(50);
/// The longest sleep: another pace is seen after it.
const MAX_SLEEP: Duration = Duration::from_millis(20);

/// One worker's share of a plan, ready to be sent.
#[derive(Debug)]
pub struct Live {
    sheet: Arc<SharedCounters>,
    gaps: Table,
    maker: LiveProgram,
    exit: Arc<Exit>,
    paced: bool,
    worker: (u32, u32),
}

/// One worker, sending.
#[derive(Debug)]
pub struct Sending {
    sheet: Arc<SharedCounters>,
    gaps: Table,
    limit: Option<u64>,
    done: Arc<OnceLock<Instant>>,
    running: LiveThread,
    paced: bool,
    worker: (u32, u32),
}

/// Counters of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed to the interface.
    pub packets: u64,
    /// Their bytes, without the frame check sequence.
    pub bytes: u64,
    /// Packets that the kernel did not let become as long as they should be.
    pub refused: u64,
    /// Times it was too far behind its timetable, and began a new one.
    pub restarts: u64,
}

impl Live {
    /// Makes the program of worker `worker` of `workers`, which sends out of `interface`, of this
    /// thread's network namespace; a dial has the pace of all workers together, which take turns, to
    /// begin with. Linux 5.18, CAP_BPF and CAP_NET_ADMIN.
    ///
    /// # Errors
    /// A missing privilege; a plan too large for a program.
    pub fn new(
        plan: &Plan,
        (worker, workers): (u32, u32),
        interface: &Interface,
        dial: Option<&Dial>,
    ) -> Result<Self> {
        if let Some(most) = program::too_much(plan) {
            return Err(Error::Unsupported {
                feature: format!("a program of the kernel for more than {most}"),
                remedy: "send by another method".into(),
            });
        }
        let exit = Arc::new(Exit::by(interface)?);
        let most_behind = dial.map(Dial::most_behind);
        let job = MakeJob { plan, worker, workers, exit: Some(&exit), most_behind };
        let sheet = SharedCounters::new(&program::sheet(&job))?;
        sheet.set(word::LIMIT as usize / 8, u64::MAX);
        if let Some(dial) = dial {
            sheet.set(word::BURST as usize / 8, dial.burst().into());
            // No burst is on its way.
            sheet.set(word::IDLE as usize / 8, 1);
            set_period(&sheet, dial.period(), (worker, workers));
        }
        let instructions = program::program(&job, &sheet).map_err(|fault| {
            Error::Usage(format!("the plan is too large for a program of the kernel: {fault}"))
        })?;
        let maker = LiveProgram::load(c"sluice_live", &instructions, job.frame())?;
        Ok(Self {
            sheet: Arc::new(sheet),
            gaps: CounterLayout::gaps(plan),
            maker,
            exit,
            paced: dial.is_some(),
            worker: (worker, workers),
        })
    }

    /// The next packet, which is not sent.
    ///
    /// # Errors
    /// The program refused to make it, or it is not due yet.
    pub fn next_packet(&self) -> Result<Vec<u8>> {
        self.maker.once()
    }

    /// Begins to send, from a thread pinned to a CPU if one is given: `packets` packets, or endlessly
    /// many.
    ///
    /// # Errors
    /// The system has no thread left, or no socket.
    pub fn start(self, packets: Option<u64>, cpu: Option<usize>) -> Result<Sending> {
        let Self { sheet, gaps, maker, exit, paced, worker } = self;
        let limit = packets.unwrap_or(u64::MAX);
        sheet.set(word::LIMIT as usize / 8, limit);
        let made = Arc::clone(&sheet);
        let done = Arc::<OnceLock<Instant>>::default();
        let done_at = Arc::clone(&done);
        let next = move || {
            let count = |word: i16| made.get(word as usize / 8);
            // The time of the run before is an old one.
            made.set(word::CLOCK_LEFT as usize / 8, 0);
            let left = limit.saturating_sub(count(word::PACKETS) + count(word::REFUSED));
            match (left, packets.is_some() && !paced) {
                (0, _) => {
                    done_at.get_or_init(Instant::now);
                    Next::End
                }
                (_, true) => Next::Run(left),
                // With a timetable most runs of the program make no packet: it stops by itself.
                (_, false) if paced => Next::Run(rest(&made).min(until_end(&made, left))),
                (_, false) => Next::Run(u64::MAX),
            }
        };
        let seat = LiveThreadConfig { exit, cpu, first_runs: FIRST_RUNS, waits: false };
        let running = LiveThread::start(maker, &seat, next)?;
        Ok(Sending { sheet, gaps, limit: packets, done, running, paced, worker })
    }

    /// Sets the pace, as [`Sending::set_pace`].
    pub fn set_pace(&self, pace: Pace) {
        if self.paced {
            set_period(&self.sheet, pace.period(), self.worker);
        }
    }
}

impl Sending {
    /// Another pace of all workers together, from now on; bursts stay as long as they are. One that
    /// was started without a pace stays as it is.
    pub fn set_pace(&self, pace: Pace) {
        if self.paced {
            set_period(&self.sheet, pace.period(), self.worker);
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        let count = |word: i16| self.sheet.get(word as usize / 8);
        Counters {
            packets: count(word::PACKETS),
            bytes: count(word::BYTES),
            refused: count(word::REFUSED),
            restarts: count(word::RESTARTS),
        }
    }

    /// Returns the fate of packets handed to the interface; exact after the end.
    pub fn redirects(&self) -> RedirectCounts {
        self.running.redirects()
    }

    /// How late packets were against the timetable, each burst's first.
    pub fn gaps(&self) -> Gaps {
        let first = self.gaps.at as usize / 8;
        Gaps::from_counts((first..).take(Gaps::CLASSES).map(|index| self.sheet.get(index)))
    }

    /// Reports whether it failed: it ended before all packets were sent.
    pub fn has_failed(&self) -> bool {
        let Counters { packets, refused, .. } = self.counters();
        self.running.is_finished() && self.limit.is_none_or(|limit| packets + refused < limit)
    }

    /// Reports whether it sends nothing more: it is done, or failed.
    pub fn is_finished(&self) -> bool {
        let all = |limit| self.counters().packets >= limit;
        self.running.is_finished() || self.limit.is_some_and(all)
    }

    /// When all its packets had been sent, if they have: with a pace a millisecond
    /// or so later.
    pub fn done_at(&self) -> Option<Instant> {
        self.done.get().copied()
    }

    /// The share of its time that it was on a CPU, once it has been ended.
    pub fn busy(&self) -> f64 {
        self.running.busy()
    }

    /// Requests the end without waiting. To end several senders, request each before waiting for
    /// one.
    pub fn tell(&self) {
        self.running.tell();
    }

    /// Ends it, within a few milliseconds; its counts stay.
    ///
    /// # Errors
    /// Why it ended before, if it failed.
    pub fn end(&mut self) -> Result<()> {
        self.running.end()
    }
}

/// Sleeps where nothing is due for a while: how often the program runs then.
fn rest(sheet: &SharedCounters) -> u64 {
    let get = |word: i16| Duration::from_nanos(sheet.get(word as usize / 8));
    let idle = get(word::IDLE);
    if idle < NEAR {
        let rarely = !idle.is_zero() && get(word::PERIOD) > 2 * NEAR;
        return if rarely { FEW_RUNS } else { u64::MAX };
    }
    // The idle time is unknown until the program runs again.
    sheet.set(word::IDLE as usize / 8, 0);
    // A request to end unparks the thread.
    std::thread::park_timeout((idle - NEAR / 2).min(MAX_SLEEP));
    // A look is enough where it goes on sleeping.
    if idle > MAX_SLEEP + NEAR { 1 } else { FEW_RUNS }
}

/// The number of runs for the packets left: few towards the end, so that the run does not outlast
/// them by long.
fn until_end(sheet: &SharedCounters, left: u64) -> u64 {
    let get = |word: i16| sheet.get(word as usize / 8);
    let left_ns = (left / get(word::BURST).max(1)).saturating_mul(get(word::PERIOD));
    if u128::from(left_ns) < SOON.as_nanos() { FEW_RUNS } else { u64::MAX }
}

/// The program sees one number before the other, which is wrong by less than a ns once.
fn set_period(sheet: &SharedCounters, period: Period, (worker, workers): (u32, u32)) {
    let period = period.times(workers);
    sheet.set(word::PHASE as usize / 8, period.part_ns(worker, workers));
    sheet.set(word::FRACTION as usize / 8, period.fraction.into());
    // 0 is no period to the program, which tells changes by it.
    sheet.set(word::PERIOD as usize / 8, period.ns.max(1));
}
