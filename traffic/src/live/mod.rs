//! Live frames: packets that an eBPF program makes in the kernel and sends at once. A plan is translated to
//! straight-line code ([`program`](self)), not interpreted for each packet. Each worker has its own program,
//! counters and thread.

pub(crate) mod emit;
mod pace;
mod program;

use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sluicegate::error::{Error, Result};
use sluicegate::link::Interface;
use sluicegate::xdp::live::{
    LiveProgram, LiveThread, LiveThreadConfig, RedirectTarget, SharedCounters, ThreadAction,
};

use crate::plan::{Plan, Sizes, StreamTotals};
use crate::rate::{Dial, Gaps, Pace, Period};
use program::MakeJob;

/// The number of program runs in the first call: large, because a start takes some time.
const FIRST_RUNS: u32 = 1 << 20;

/// A number of runs that takes a few milliseconds if no packet is due.
const FEW_RUNS: u64 = 1 << 15;
/// A time too short to sleep.
const NEAR: Duration = Duration::from_millis(2);
/// The last packets of a run are due within this time.
const SOON: Duration = Duration::from_millis(50);
/// The longest sleep, and delay of a change of pace.
const MAX_SLEEP: Duration = Duration::from_millis(20);

/// One worker's share of a plan, ready to be sent.
#[derive(Debug)]
pub struct Live {
    counters: WorkerCounters,
    program: LiveProgram,
    target: Arc<RedirectTarget>,
}

/// A sending worker.
#[derive(Debug)]
pub struct Sending {
    counters: WorkerCounters,
    limit: Option<u64>,
    done: Arc<OnceLock<Instant>>,
    /// The sending thread. To end several senders, request the end of each before you wait for one. The
    /// counters stay readable.
    pub thread: LiveThread,
}

/// Counters of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets passed to the interface.
    pub packets: u64,
    /// Their bytes, without the frame check sequence.
    pub bytes: u64,
    /// Packets whose length the kernel refused.
    pub refused: u64,
    /// Restarts of the timetable after too long a delay.
    pub restarts: u64,
}

impl Live {
    /// Makes the program of worker `worker` of `workers` for an interface of this thread's network namespace.
    /// The dial sets the initial pace of all workers together. Needs Linux 5.18, CAP_BPF and CAP_NET_ADMIN.
    ///
    /// # Errors
    /// A missing privilege; a plan too large for a program.
    pub fn new(
        plan: &Arc<Plan>,
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
        let target = Arc::new(RedirectTarget::by(interface)?);
        let max_lag = dial.map(Dial::max_lag);
        let job = MakeJob { plan, worker, workers, target: &target, max_lag };
        let shared = SharedCounters::new(&job.initial_counters())?;
        let instructions = job.instructions(shared.as_fd()).map_err(|fault| {
            Error::Usage(format!("the plan is too large for a program of the kernel: {fault}"))
        })?;
        let program = LiveProgram::load(c"sluice_live", &instructions, job.frame())?;
        let counters = WorkerCounters {
            plan: Arc::clone(plan),
            shared: Arc::new(shared),
            gaps: CounterLayout::gaps(plan),
            paced: dial.is_some(),
            worker: (worker, workers),
        };
        counters.set(word::LIMIT, u64::MAX);
        if let Some(dial) = dial {
            counters.set(word::BURST, dial.burst().into());
            // No burst has begun.
            counters.set(word::IDLE, 1);
            counters.set_period(dial.period());
        }
        Ok(Self { counters, program, target })
    }

    /// Makes the next packet without sending it.
    ///
    /// # Errors
    /// The program rejected the packet, or no packet is due yet.
    pub fn next_packet(&self) -> Result<Vec<u8>> {
        self.program.once()
    }

    /// Returns the totals of each stream, including refused packets.
    pub fn streams(&self) -> Vec<StreamTotals> {
        self.counters.streams()
    }

    /// Starts a thread that sends `packets` packets, or those of the streams' counts, or without end; pins it to
    /// `cpu`, if given.
    ///
    /// # Errors
    /// The system has no thread left, or no socket.
    pub fn start(self, packets: Option<u64>, cpu: Option<usize>) -> Result<Sending> {
        let Self { counters, program, target } = self;
        let streams = counters.plan.count_of(counters.worker);
        let packets = packets.into_iter().chain(streams).min();
        let limit = packets.unwrap_or(u64::MAX);
        counters.set(word::LIMIT, limit);
        let made = counters.clone();
        let done = Arc::<OnceLock<Instant>>::default();
        let done_at = Arc::clone(&done);
        let next = move || {
            // The time read in the previous call is old.
            made.set(word::CLOCK_LEFT, 0);
            let left = limit.saturating_sub(made.get(word::PACKETS) + made.get(word::REFUSED));
            match (left, made.paced) {
                (0, _) => {
                    done_at.get_or_init(Instant::now);
                    ThreadAction::End
                }
                // With a timetable most runs make no packet; the program itself stops after the last packet.
                (_, true) => ThreadAction::Run(made.rest().min(made.until_end(left))),
                (_, false) => ThreadAction::Run(packets.map_or(u64::MAX, |_| left)),
            }
        };
        let config = LiveThreadConfig { target, cpu, first_runs: FIRST_RUNS, waits: false };
        let thread = LiveThread::start(program, &config, next)?;
        Ok(Sending { counters, limit: packets, done, thread })
    }

    /// Sets the pace, like [`Sending::set_pace`].
    pub fn set_pace(&self, pace: Pace) {
        self.counters.set_pace(pace);
    }
}

impl Sending {
    /// Sets the pace of all workers together; the length of bursts stays. A worker started without a pace
    /// ignores it.
    pub fn set_pace(&self, pace: Pace) {
        self.counters.set_pace(pace);
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        Counters {
            packets: self.counters.get(word::PACKETS),
            bytes: self.counters.get(word::BYTES),
            refused: self.counters.get(word::REFUSED),
            restarts: self.counters.get(word::RESTARTS),
        }
    }

    /// Returns the totals of each stream, including refused packets.
    pub fn streams(&self) -> Vec<StreamTotals> {
        self.counters.streams()
    }

    /// Returns the lateness of each burst's first packet against the timetable.
    pub fn gaps(&self) -> Gaps {
        let WorkerCounters { shared, gaps, .. } = &self.counters;
        let first = gaps.at as usize / 8;
        Gaps::from_counts((first..).take(Gaps::CLASSES).map(|index| shared.get(index)))
    }

    /// Reports whether the worker ended before all packets were sent.
    pub fn has_failed(&self) -> bool {
        let Counters { packets, refused, .. } = self.counters();
        self.thread.is_finished() && self.limit.is_none_or(|limit| packets + refused < limit)
    }

    /// Reports whether the worker is done, or failed.
    pub fn is_finished(&self) -> bool {
        let all = |limit| self.counters().packets >= limit;
        self.thread.is_finished() || self.limit.is_some_and(all)
    }

    /// Returns the time at which the worker had sent all packets; with a pace, about a millisecond late.
    pub fn done_at(&self) -> Option<Instant> {
        self.done.get().copied()
    }
}

/// The memory that a worker's program and this process share.
#[derive(Clone, Debug)]
struct WorkerCounters {
    plan: Arc<Plan>,
    shared: Arc<SharedCounters>,
    gaps: CounterTable,
    /// The program keeps a timetable.
    paced: bool,
    /// The number of this worker, and the number of workers.
    worker: (u32, u32),
}

impl WorkerCounters {
    fn get(&self, word: i16) -> u64 {
        self.shared.get(word as usize / 8)
    }

    fn set(&self, word: i16, number: u64) {
        self.shared.set(word as usize / 8, number);
    }

    /// Returns the totals of each stream, including refused packets.
    fn streams(&self) -> Vec<StreamTotals> {
        let word = |at: u32| self.shared.get(at as usize / 8);
        let streams = self.plan.streams.iter().enumerate();
        let totals = streams.map(|(index, stream)| {
            let random_bytes = CounterLayout::random_bytes_of(&self.plan, index).map_or(0, word);
            stream.totals(word(CounterLayout::number_of(index)), random_bytes)
        });
        let mut totals: Vec<StreamTotals> = totals.collect();
        if let Some(first) = self.plan.first_random() {
            let others: u64 = totals.iter().map(|totals| totals.bytes).sum();
            totals[first].bytes = self.get(word::BYTES).saturating_sub(others);
        }
        totals
    }

    fn set_pace(&self, pace: Pace) {
        if self.paced {
            self.set_period(pace.period());
        }
    }

    /// Sets the period. The program may read one word before the other is written, which makes one period
    /// wrong by less than a ns.
    fn set_period(&self, period: Period) {
        let (worker, workers) = self.worker;
        let period = period.times(workers);
        self.set(word::PHASE, period.part_ns(worker, workers));
        self.set(word::FRACTION, period.fraction.into());
        // The program detects changes by the period; 0 means none.
        self.set(word::PERIOD, period.ns.max(1));
    }

    /// Sleeps if no packet is due soon. Returns the number of program runs for the next call.
    fn rest(&self) -> u64 {
        let idle = Duration::from_nanos(self.get(word::IDLE));
        if idle < NEAR {
            let period = Duration::from_nanos(self.get(word::PERIOD));
            return if !idle.is_zero() && period > 2 * NEAR { FEW_RUNS } else { u64::MAX };
        }
        // The idle time is unknown until the program runs again.
        self.set(word::IDLE, 0);
        // A request to end wakes the thread.
        std::thread::park_timeout((idle - NEAR / 2).min(MAX_SLEEP));
        // One run suffices to measure the rest of a long sleep.
        if idle > MAX_SLEEP + NEAR { 1 } else { FEW_RUNS }
    }

    /// Returns the number of runs for the remaining packets: few near the end, so that the thread ends soon
    /// after the last packet.
    fn until_end(&self, left: u64) -> u64 {
        let bursts = left / self.get(word::BURST).max(1);
        let left_ns = bursts.saturating_mul(self.get(word::PERIOD));
        if u128::from(left_ns) < SOON.as_nanos() { FEW_RUNS } else { u64::MAX }
    }
}

/// Byte offsets of the words at the start. This process writes PERIOD, BURST, FRACTION, PHASE, LIMIT,
/// and resets IDLE and CLOCK_LEFT; the program writes the others.
mod word {
    /// Packets passed to the interface.
    pub const PACKETS: i16 = 0;
    /// Their bytes.
    pub const BYTES: i16 = 8;
    /// Packets whose length the kernel refused.
    pub const REFUSED: i16 = 16;
    /// The position in the plan's turns.
    pub const TURN: i16 = 24;
    /// The period of this worker's bursts: [`crate::rate::Period::ns`].
    pub const PERIOD: i16 = 32;
    /// Packets per burst.
    pub const BURST: i16 = 40;
    /// The period by which the program computed [`DUE`]; 0 before the first burst.
    pub const KEPT: i16 = 48;
    /// The due time of the next burst, in ns of CLOCK_MONOTONIC.
    pub const DUE: i16 = 56;
    /// Packets left of this burst.
    pub const IN_BURST: i16 = 64;
    /// Restarts of the timetable.
    pub const RESTARTS: i16 = 72;
    /// Maximum of packets.
    pub const LIMIT: i16 = 80;
    /// [`crate::rate::Period::fraction`].
    pub const FRACTION: i16 = 88;
    /// The fraction of [`DUE`].
    pub const DUE_FRACTION: i16 = 96;
    /// The delay of this worker's first burst in a timetable, in ns.
    pub const PHASE: i16 = 104;
    /// The time to the next burst at the last run, in ns; 0 if one was due.
    pub const IDLE: i16 = 112;
    /// The time in stamps that several packets share, in ns of CLOCK_MONOTONIC.
    pub const CLOCK: i16 = 120;
    /// The number of further packets that share [`CLOCK`]; reset before each call.
    pub const CLOCK_LEFT: i16 = 128;
    /// The size of these words in bytes; the streams' packet numbers follow.
    pub const END: usize = 136;
}

/// A table of 64-bit numbers in the shared counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CounterTable {
    /// The offset in bytes from the start of the counters.
    at: u32,
    /// The count of numbers.
    count: u32,
}

/// The offsets of all words and tables, with their initial content.
#[derive(Debug, Default)]
struct CounterLayout {
    /// The initial content.
    words: Vec<u64>,
}

impl CounterLayout {
    /// Creates the counters of a plan and its streams, the histogram of a timetable, and the sums of random
    /// lengths.
    fn new(plan: &Plan) -> Self {
        let mut layout = Self { words: vec![0; word::END / 8 + plan.streams.len()] };
        layout.table(std::iter::repeat_n(0, Gaps::CLASSES));
        layout.table(plan.streams.iter().map(|_| 0));
        layout
    }

    /// Returns the table of the histogram: at the same offset in all programs of a plan.
    fn gaps(plan: &Plan) -> CounterTable {
        CounterTable { at: Self::number_of(plan.streams.len()), count: Gaps::CLASSES as u32 }
    }

    /// Returns the offset of the number of a stream's next packet.
    fn number_of(stream: usize) -> u32 {
        (word::END + stream * 8) as u32
    }

    /// Returns the offset of the sum of a stream's random lengths. The first such stream has none: it has
    /// the bytes that the others lack of the sum of all.
    fn random_bytes_of(plan: &Plan, stream: usize) -> Option<u32> {
        let random = matches!(plan.streams[stream].sizes, Sizes::AtRandom { .. });
        let gaps = Self::gaps(plan);
        (random && plan.first_random() != Some(stream))
            .then_some(gaps.at + (gaps.count as usize + stream) as u32 * 8)
    }

    /// Adds a table.
    fn table(&mut self, numbers: impl IntoIterator<Item = u64>) -> CounterTable {
        let at = self.words.len();
        self.words.extend(numbers);
        CounterTable { at: (at * 8) as u32, count: (self.words.len() - at) as u32 }
    }

    /// Adds bytes.
    fn bytes(&mut self, bytes: &[u8]) -> CounterTable {
        self.table(bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        }))
    }
}
