//! Paces, timetables, and the lateness of packets against a timetable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A pace: repeated bursts of back-to-back packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Packets per second, on average; 0 for none.
    pub pps: f64,
    /// Packets per burst; 1 spreads them evenly.
    pub burst: u32,
}

/// The unit of a pace: packets, or bytes, which keep the bit rate even with packets of different lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A packet.
    Packet,
    /// A byte.
    Byte {
        /// Bytes counted per packet in addition to its own.
        besides: u32,
    },
}

impl Unit {
    /// Bytes on the wire: with each frame's preamble and start (8), check sequence (4) and gap (12).
    pub const BYTE_OF_LAYER1: Self = Self::Byte { besides: 24 };
    /// Bytes of the frames alone.
    pub const BYTE_OF_LAYER2: Self = Self::Byte { besides: 0 };
}

/// The maximum delay that a sender makes up for, and the default of [`Dial::catching_up`]. A later sender
/// restarts its timetable.
pub const MAX_LAG: Duration = Duration::from_millis(100);
/// A change of pace keeps a worker's delay, counted in packets, if the new period is shorter than this (about
/// a minute).
pub(crate) const LONG_PERIOD_NS: u64 = 1 << 36;

impl Pace {
    /// Returns the period from burst to burst: never 0, and [`Period::NEVER`] for the slowest paces.
    pub fn period(&self) -> Period {
        let ns = 1e9 * f64::from(self.burst.max(1)) / self.pps.max(0.0);
        let parts = ns * (1_u64 << FRACTION_BITS) as f64;
        // The conversion saturates; `of_whole` then caps the period.
        Period::of_whole((parts.round() as u128).max(1))
    }

    /// Creates a pace of bursts of `burst` packets, `gap` from start to start.
    pub fn of_bursts(burst: u32, gap: Duration) -> Self {
        Self { pps: f64::from(burst) / gap.as_secs_f64(), burst }
    }
}

/// A pace set by one thread and followed by all workers of a run. The length of bursts is constant.
#[derive(Clone, Debug)]
pub struct Dial {
    /// The pace in packets per second, as bits of an `f64`.
    pps: Arc<AtomicU64>,
    burst: u32,
    max_lag: Duration,
}

impl Dial {
    /// Creates a dial with a pace of all workers together.
    pub fn new(pace: Pace) -> Self {
        let pps = Arc::new(pace.pps.to_bits().into());
        Self { pps, burst: pace.burst.max(1), max_lag: MAX_LAG }
    }

    /// Limits the delay that workers make up for, to at most [`MAX_LAG`].
    #[must_use]
    pub fn catching_up(self, max_lag: Duration) -> Self {
        Self { max_lag: max_lag.min(MAX_LAG), ..self }
    }

    /// Sets the pace.
    pub fn set(&self, pace: Pace) {
        // Pairs with the load in `period`, and publishes nothing else.
        self.pps.store(pace.pps.to_bits(), Ordering::Relaxed);
    }

    /// Returns the period from burst to burst over all workers.
    #[inline]
    pub fn period(&self) -> Period {
        // Pairs with the store in `set`.
        let pps = f64::from_bits(self.pps.load(Ordering::Relaxed));
        Pace { pps, burst: self.burst }.period()
    }

    /// Returns the maximum delay that workers make up for.
    pub fn max_lag(&self) -> Duration {
        self.max_lag
    }

    /// Returns the packets per burst.
    pub fn burst(&self) -> u32 {
        self.burst
    }
}

/// Fractional bits of a [`Period`] in ns.
pub(crate) const FRACTION_BITS: u32 = 32;

/// A span of time in whole ns and 2⁻³² parts of one, so that sums stay exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Whole ns.
    pub ns: u64,
    /// The fraction of a ns, in units of 2⁻³².
    pub fraction: u32,
}

impl Period {
    /// 36 years: no burst is ever due. Longer periods are capped to it, so that sums of a few times and
    /// periods always fit.
    pub const NEVER: Self = Self { ns: 1 << 60, fraction: 0 };

    /// Reports whether the period is a pause.
    #[inline]
    pub fn is_never(self) -> bool {
        self.ns >= Self::NEVER.ns
    }

    /// Multiplies the period, for workers that take turns. A finite period stays below
    /// [`Period::NEVER`], so that its first burst is due.
    pub fn times(self, count: u32) -> Self {
        if self.is_never() {
            return Self::NEVER;
        }
        let whole = self.whole().saturating_mul(count.into());
        match Self::of_whole(whole) {
            Self::NEVER => Self { ns: Self::NEVER.ns - 1, fraction: 0 },
            period => period,
        }
    }

    /// Returns the fraction `part / of` of the period, in whole ns; a pause stays a pause.
    pub fn part_ns(self, part: u32, of: u32) -> u64 {
        if self.is_never() {
            return self.ns;
        }
        let whole = self.whole() * u128::from(part) / u128::from(of.max(1));
        (whole >> FRACTION_BITS) as u64
    }

    fn whole(self) -> u128 {
        (u128::from(self.ns) << FRACTION_BITS) | u128::from(self.fraction)
    }

    fn of_whole(whole: u128) -> Self {
        match u64::try_from(whole >> FRACTION_BITS) {
            Ok(ns) if ns < Self::NEVER.ns => Self { ns, fraction: whole as u32 },
            _ => Self::NEVER,
        }
    }
}

/// A worker's timetable of bursts, in ns of a clock that never goes back. The programs of
/// [`crate::live`] keep the same timetable.
#[derive(Clone, Debug)]
pub struct Timetable {
    dial: Dial,
    worker: u32,
    workers: u32,
    /// The dial's period when it was last read.
    asked: Period,
    /// The period from burst to burst of this worker.
    period: Period,
    /// The due time of the next burst; `None` before the first call of [`due`](Self::due).
    due_ns: Option<u64>,
    /// The fraction of that time, as [`Period::fraction`].
    due_fraction: u32,
    /// Packets of bursts that are due and not sent.
    open: u32,
    gaps: Gaps,
    restarts: u64,
}

impl Timetable {
    /// Creates the timetable of worker `worker` of `workers`, which take turns. It begins with the first call
    /// of [`due`](Self::due), and follows the dial.
    pub fn of(dial: Dial, (worker, workers): (u32, u32)) -> Self {
        let asked = dial.period();
        Self {
            dial,
            worker,
            workers,
            asked,
            period: asked.times(workers),
            due_ns: None,
            due_fraction: 0,
            open: 0,
            gaps: Gaps::default(),
            restarts: 0,
        }
    }

    /// Returns the number of packets due now, at most `most`. The caller reports sent packets to
    /// [`sent`](Self::sent).
    pub fn due(&mut self, now_ns: u64, most: u32) -> u32 {
        let asked = self.dial.period();
        if asked != self.asked {
            self.change(asked, now_ns);
        }
        let max_lag = self.dial.max_lag().as_nanos();
        let mut due = self.due_ns.unwrap_or_else(|| now_ns + self.phase_ns());
        while self.open < most && due <= now_ns {
            let late = now_ns - due;
            if u128::from(late) > max_lag {
                // Too late to make up for it.
                (due, self.due_fraction) = (now_ns, 0);
                self.restarts += 1;
            }
            self.gaps.add(late);
            let (fraction, carried) = self.due_fraction.overflowing_add(self.period.fraction);
            self.due_fraction = fraction;
            due += self.period.ns + u64::from(carried);
            self.open = self.open.saturating_add(self.dial.burst());
        }
        self.due_ns = Some(due);
        // In a pause the rest of a burst waits.
        if self.period.is_never() { 0 } else { self.open.min(most) }
    }

    /// Follows a change of pace: the next burst is due one new period after the last, or now if that time has
    /// passed. A delay stays, counted in packets.
    fn change(&mut self, asked: Period, now_ns: u64) {
        let before = std::mem::replace(&mut self.period, asked.times(self.workers));
        self.asked = asked;
        // The first burst has not begun.
        let Some(due) = self.due_ns else { return };
        if due <= now_ns && self.period.ns < LONG_PERIOD_NS {
            let lag = self.lag_ns(now_ns - due, before);
            self.due_ns = Some(now_ns.saturating_sub(lag));
            return;
        }
        // A due time that was rounded up may be a period and one ns away.
        let since = (now_ns + before.ns).saturating_sub(due);
        self.due_ns = Some(match self.period.ns.checked_sub(since) {
            Some(left) => now_ns + left,
            None => now_ns + self.phase_ns(),
        });
    }

    /// Returns the delay after a change of pace, from the delay before it.
    fn lag_ns(&self, late_ns: u64, before: Period) -> u64 {
        let most = self.dial.max_lag().as_nanos() as u64;
        // The products fit 64 bits.
        let lag = if late_ns <= most { late_ns * self.period.ns / before.ns.max(1) } else { 0 };
        if lag <= most { lag } else { 0 }
    }

    /// Returns the delay of this worker's first burst, so that workers do not send at the same time.
    fn phase_ns(&self) -> u64 {
        self.period.part_ns(self.worker, self.workers)
    }

    /// Records that due packets were sent.
    pub fn sent(&mut self, packets: u32) {
        self.open -= packets.min(self.open);
    }

    /// Returns the due time of the next burst; `None` before the first call of [`due`](Self::due).
    pub fn next_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// Returns the number of restarts after too long a delay.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Returns the lateness of bursts.
    pub fn gaps(&self) -> &Gaps {
        &self.gaps
    }
}

/// Lateness of packets against a timetable, with an error of at most one eighth, up to 4 s.
pub type Gaps = Histogram<3, 32>;

/// One-way delays of packets, with an error of at most 1/32, up to 68 s.
pub type Latencies = Histogram<5, 36>;

/// Counts of times in ns, in classes that grow with the times: each power of two has 2^`STEP_BITS` classes.
/// Times of 2^`POWERS` ns and longer are in the last class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram<const STEP_BITS: u32, const POWERS: u32> {
    counts: Vec<u64>,
}

impl<const STEP_BITS: u32, const POWERS: u32> Histogram<STEP_BITS, POWERS> {
    /// The number of classes of each power of two.
    pub(crate) const STEPS: u32 = 1 << STEP_BITS;
    /// The binary logarithm of `STEPS`.
    pub(crate) const STEP_BITS: u32 = STEP_BITS;
    /// Times of 2^`POWERS` ns and longer are in the last class.
    pub(crate) const POWERS: u32 = POWERS;
    /// The number of classes.
    pub const CLASSES: usize = ((POWERS - STEP_BITS + 1) << STEP_BITS) as usize;

    /// Creates a histogram from the counts of its classes.
    pub fn from_counts(counts: impl IntoIterator<Item = u64>) -> Self {
        let mut counts: Vec<u64> = counts.into_iter().collect();
        counts.resize(Self::CLASSES, 0);
        Self { counts }
    }

    /// Returns the class of a time. The shortest times have a class each; then each power of two has
    /// 2^`STEP_BITS`.
    #[inline]
    pub fn class(ns: u64) -> usize {
        let ns = ns.min((1 << POWERS) - 1);
        if ns < u64::from(Self::STEPS) {
            return ns as usize;
        }
        let power = ns.ilog2() - STEP_BITS;
        (power << STEP_BITS) as usize + (ns >> power) as usize
    }

    /// Returns the longest time of a class, in ns; the last class also contains longer ones.
    pub(crate) fn longest(class: usize) -> u64 {
        let class = class as u64;
        let steps = u64::from(Self::STEPS);
        if class < 2 * steps {
            return class;
        }
        let power = class / steps - 1;
        ((class % steps + steps + 1) << power) - 1
    }

    /// Counts a time.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.counts[Self::class(ns)] += 1;
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the longest time in ns and the count of each non-empty class, shortest first.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = self.counts.iter().enumerate();
        all.filter(|(_, count)| **count > 0).map(|(class, &count)| (Self::longest(class), count))
    }

    /// Returns the time that this share of the times does not exceed, in ns: the upper end of its class.
    /// `None` without times.
    pub fn percentile(&self, share: f64) -> Option<u64> {
        let whole = self.count();
        let wanted = ((whole as f64 * share).ceil() as u64).clamp(1, whole.max(1));
        let mut seen = 0;
        let class = self.counts.iter().position(|&count| {
            seen += count;
            seen >= wanted
        })?;
        Some(Self::longest(class))
    }
}

impl<const STEP_BITS: u32, const POWERS: u32> Default for Histogram<STEP_BITS, POWERS> {
    fn default() -> Self {
        Self::from_counts([])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_have_periods_however_fast_or_slow_they_are() {
        let hour_ns = 3_600_000_000_000;
        let half = 1 << 31;
        for (sentence, pps, burst, ns, fraction) in [
            ("a million a second", 1e6, 1, 1000, 0),
            ("a hundred million", 1e8, 1, 10, 0),
            ("no whole number of ns", 4e8, 1, 2, half),
            ("faster than anything", 1e30, 1, 0, 1),
            ("one an hour", 1.0 / 3600.0, 1, hour_ns, 0),
            ("one a second, in bursts of a million", 1.0, 1_000_000, 1_000_000_000_000_000, 0),
            ("none at all", 0.0, 1, Period::NEVER.ns, 0),
            ("less than can be told", f64::MIN_POSITIVE, 1, Period::NEVER.ns, 0),
        ] {
            let period = Pace { pps, burst }.period();
            // A pace in packets per hour is itself not exact.
            let near = period.ns.abs_diff(ns) <= ns >> 50;
            assert!(
                near && (fraction == 0 || period.fraction == fraction),
                "{sentence}: {period:?}"
            );
        }
    }

    #[test]
    fn workers_share_a_period_and_begin_one_after_the_other() {
        let odd = Pace { pps: 3e6, burst: 1 }.period();
        let own = odd.times(3);
        assert_eq!((own.ns, own.fraction >> 28), (999, 15), "a hair less than a microsecond");
        let starts: Vec<u64> = (0..3).map(|worker| own.part_ns(worker, 3)).collect();
        assert_eq!(starts, [0, 333, 666]);
        assert_eq!(Period::NEVER.times(1024), Period::NEVER);
        let years = Pace { pps: 1e-9, burst: 1 }.period().times(1024);
        assert!(!years.is_never(), "the first worker sends one at once");
        assert_eq!(years.part_ns(0, 1024), 0);
        assert_eq!(Period::NEVER.part_ns(0, 1), Period::NEVER.ns);
    }

    const SECOND: u64 = 1_000_000_000;

    fn pace(pps: f64) -> Pace {
        Pace { pps, burst: 1 }
    }

    /// Sends all packets due at a time; returns their number.
    fn sent(timetable: &mut Timetable, now_ns: u64) -> u32 {
        let packets = timetable.due(now_ns, u32::MAX);
        timetable.sent(packets);
        packets
    }

    /// Returns the packets due at each of these times.
    fn due(pace: Pace, times: &[u64]) -> Vec<u32> {
        let mut timetable = Timetable::of(Dial::new(pace), (0, 1));
        times.iter().map(|&ns| sent(&mut timetable, ns)).collect()
    }

    #[test]
    fn packets_are_due_at_their_times_and_in_their_bursts() {
        assert_eq!(due(pace(1e6), &[5000, 5001, 6000, 6999, 9000]), [1, 0, 1, 0, 3]);
        let bursts = Pace { pps: 1e6, burst: 4 };
        assert_eq!(due(bursts, &[0, 3999, 4000, 12_000]), [4, 0, 4, 8]);
        // Fractions of a ns add up.
        assert_eq!(due(pace(3e6), &[0, 1_000_000]).iter().sum::<u32>(), 3001);
    }

    #[test]
    fn a_timetable_lasts_for_weeks_and_its_bursts_may_be_as_far_apart() {
        let times: Vec<u64> = (0..20_000).map(|burst| burst * 100 * SECOND).collect();
        let slow = due(pace(0.01), &times);
        assert!(slow.iter().all(|&packets| packets == 1), "one in 100 s, for 23 days");
        let rare = Pace { pps: 1.0, burst: 1_000_000 };
        let times = [0, SECOND, 999_999 * SECOND, 1_000_000 * SECOND];
        assert_eq!(due(rare, &times), [1_000_000, 0, 0, 1_000_000], "twelve days apart");
        let hourly = due(pace(1.0 / 3600.0), &[7, 3599 * SECOND, 3600 * SECOND + 7]);
        assert_eq!(hourly, [1, 0, 1], "one an hour, soon after the machine's start");
    }

    #[test]
    fn too_long_a_delay_is_not_made_up_for() {
        assert_eq!(due(pace(1e6), &[0, 50_000_000]), [1, 50_000], "half of what may be");
        let late = due(pace(1e6), &[0, SECOND]);
        assert_eq!(late, [1, 1], "a second");
    }

    #[test]
    fn a_dial_limits_the_delay_that_a_worker_makes_up() {
        let dial = Dial::new(pace(1e6)).catching_up(Duration::from_millis(1));
        let mut timetable = Timetable::of(dial, (0, 1));
        let mut at = |now| sent(&mut timetable, now);
        assert_eq!((at(0), at(1_000_000)), (1, 1000), "as far as may be");
        assert_eq!((at(2_002_000), at(2_003_000)), (1, 1), "what was missed is left out");
        assert_eq!(timetable.restarts(), 1);
    }

    #[test]
    fn workers_take_turns() {
        let dial = Dial::new(pace(1e6));
        let mut workers: Vec<_> =
            (0..4).map(|worker| Timetable::of(dial.clone(), (worker, 4))).collect();
        let mut turns = Vec::new();
        for now in (0..8000).step_by(1000) {
            for (number, worker) in workers.iter_mut().enumerate() {
                turns.extend(std::iter::repeat_n(number, sent(worker, now) as usize));
            }
        }
        assert_eq!(turns, [0, 1, 2, 3, 0, 1, 2, 3], "one a microsecond, each in its turn");
    }

    #[test]
    fn a_new_pace_begins_at_once_without_catching_up() {
        let dial = Dial::new(pace(1.0 / 3600.0));
        let mut timetable = Timetable::of(dial.clone(), (0, 1));
        let mut at = |now| sent(&mut timetable, now);
        assert_eq!((at(0), at(SECOND)), (1, 0));
        dial.set(pace(1e6));
        assert_eq!(at(2 * SECOND), 1, "not the two million of before");
        assert_eq!(at(2 * SECOND + 5000), 5, "and then at once at the new pace");
        dial.set(pace(0.0));
        assert_eq!(at(900_000 * SECOND), 0, "a pause");
        dial.set(pace(1e3));
        assert_eq!(at(900_001 * SECOND), 1, "and on, without the time between");
        dial.set(pace(1.0));
        assert_eq!(at(900_001 * SECOND), 0);
        assert_eq!(at(900_001 * SECOND + 500_000_000), 0, "the last is half a second ago");
        assert_eq!(at(900_002 * SECOND), 1);
    }

    #[test]
    fn a_pause_from_the_beginning_sends_nothing() {
        let dial = Dial::new(pace(0.0));
        let mut timetable = Timetable::of(dial.clone(), (0, 1));
        let mut at = |now| sent(&mut timetable, now);
        assert_eq!((at(SECOND), at(2 * SECOND)), (0, 0));
        dial.set(pace(1e3));
        assert_eq!((at(3 * SECOND), at(3 * SECOND + 1_000_000)), (1, 1));
    }

    #[test]
    fn a_pause_holds_a_burst_that_has_begun() {
        let bursts = |pps| Pace { pps, burst: 1000 };
        let dial = Dial::new(bursts(1e5));
        let mut timetable = Timetable::of(dial.clone(), (0, 1));
        let mut at = |now| {
            let packets = timetable.due(now, 256);
            timetable.sent(packets);
            packets
        };
        assert_eq!(at(SECOND), 256, "as many as were wanted");
        dial.set(bursts(0.0));
        assert_eq!((at(SECOND + 1), at(SECOND + 2)), (0, 0));
        dial.set(bursts(1e5));
        let rest = [(); 4].map(|()| at(SECOND + 3));
        assert_eq!(rest, [256, 256, 232, 0], "what is left of it, and no other before its time");
    }

    #[test]
    fn a_pace_may_change_at_the_very_moment_of_a_burst() {
        let dial = Dial::new(pace(3e6));
        let mut timetable = Timetable::of(dial.clone(), (0, 1));
        let mut now = SECOND;
        for step in 1..10 {
            assert_eq!(sent(&mut timetable, now), 1, "burst {step}");
            // In one case of three the next burst is a ns later than its period implies.
            dial.set(pace(3e6 + f64::from(step)));
            assert_eq!(sent(&mut timetable, now), 0, "burst {step}");
            now = timetable.next_ns().unwrap();
        }
    }

    #[test]
    fn a_change_of_pace_keeps_the_delay_in_packets() {
        for (sentence, before, after, late_ns, packets) in [
            ("as fast", 1e6, 1e6 + 0.1, 10_500, 10),
            ("twice as fast", 1e6, 2e6, 10_500, 10),
            ("half as fast", 1e6, 5e5, 10_500, 10),
            ("so slow that it would take too long", 1e6, 10.0, 10_500, 0),
            ("a pause", 1e6, 0.0, 10_500, -1),
            ("too far behind before", 1e6, 2e6, SECOND, 0),
        ] {
            let dial = Dial::new(pace(before));
            let mut timetable = Timetable::of(dial.clone(), (0, 1));
            sent(&mut timetable, SECOND);
            dial.set(pace(after));
            // Without the packet that is due at once.
            let due = i64::from(sent(&mut timetable, SECOND + 1000 + late_ns)) - 1;
            assert_eq!(due, packets, "{sentence}");
        }
    }

    #[test]
    fn a_late_worker_loses_no_packet_of_a_ramp() {
        // From 0 to 100,000 packets per second within 2 s, polled every 3 ms: 100,000 packets.
        let dial = Dial::new(pace(0.1));
        let mut timetable = Timetable::of(dial.clone(), (0, 1));
        let mut packets = 0;
        for ms in 0..2000_u64 {
            if ms % 20 == 0 {
                dial.set(pace((ms + 10) as f64 * 50.0));
            }
            packets += if ms % 3 == 0 { sent(&mut timetable, ms * 1_000_000) } else { 0 };
        }
        assert!((99_500..=100_500).contains(&packets), "{packets}");
    }

    #[test]
    fn many_small_steps_send_at_their_mean() {
        // From 0 to 100 packets per second within 10 s, in steps of 20 ms: 500 packets.
        let dial = Dial::new(pace(0.1));
        let mut timetable = Timetable::of(dial.clone(), (0, 1));
        let mut packets = 0;
        for step in 0..500_u64 {
            dial.set(pace((step as f64 + 0.5) / 5.0));
            let step_ns = step * 20_000_000;
            packets += (0..200).map(|i| sent(&mut timetable, step_ns + i * 100_000)).sum::<u32>();
        }
        assert!((490..=510).contains(&packets), "{packets}");
    }

    #[test]
    fn classes_follow_one_another_and_know_their_ends() {
        fn check<const STEP_BITS: u32, const POWERS: u32>() {
            type Of<const STEP_BITS: u32, const POWERS: u32> = Histogram<STEP_BITS, POWERS>;
            let around_powers = (0..POWERS).flat_map(|bit| [(1 << bit) - 1, 1 << bit]);
            for ns in (0..10_000).chain(around_powers) {
                let class = Of::<STEP_BITS, POWERS>::class(ns);
                let longest = Of::<STEP_BITS, POWERS>::longest(class);
                assert!(class < Of::<STEP_BITS, POWERS>::CLASSES && longest >= ns, "{ns}");
                assert!(longest <= ns + (ns >> STEP_BITS), "{ns} in {class}");
                let next = Of::<STEP_BITS, POWERS>::class(ns + 1);
                assert!(next == class || next == class + 1, "{ns}");
            }
            let last = Of::<STEP_BITS, POWERS>::class(u64::MAX);
            assert_eq!(last, Of::<STEP_BITS, POWERS>::CLASSES - 1);
        }
        check::<3, 32>();
        check::<5, 36>();
    }

    #[test]
    fn percentiles_are_of_the_times_counted() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.percentile(0.5), None);
        (1..=1000).for_each(|ns| gaps.add(ns));
        for (share, ns) in [(0.0, 1), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let found = gaps.percentile(share).unwrap();
            assert!(found >= ns && found <= ns + ns / 8, "{share}: {found}");
        }
    }
}
