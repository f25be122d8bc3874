//! How fast packets are sent, and how near to it they came.

mod histogram;
mod timetable;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use histogram::{Gaps, Histogram, Latencies};
pub use timetable::Timetable;

/// A pace: a burst of packets, back to back, again and again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Packets a second, on average; 0 is none at all.
    pub pps: f64,
    /// Packets a burst; 1 spreads them evenly.
    pub burst: u32,
}

/// The unit of a pace: packets, or bytes where lengths differ and bits should be spread evenly.
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
    /// With what is around each frame on the wire: preamble and start 8, check sequence 4, gap 12.
    pub const BYTE_OF_LAYER1: Self = Self::Byte { besides: 24 };
    /// The frames' bytes alone.
    pub const BYTE_OF_LAYER2: Self = Self::Byte { besides: 0 };
}

/// How far behind a sender may be and still make up for it, unless less is said
/// ([`Dial::catching_up`]). Beyond, it starts its timetable anew.
pub const MAX_BEHIND: Duration = Duration::from_millis(100);
/// A change of pace keeps a worker's delay in packets, limited to the time that is made up for, if
/// its period is shorter than this (a minute).
pub(crate) const LONG_PERIOD_NS: u64 = 1 << 36;

impl Pace {
    /// Creates a pace of bursts of `burst` packets, `gap` from start to start.
    pub fn of_bursts(burst: u32, gap: Duration) -> Self {
        Self { pps: f64::from(burst) / gap.as_secs_f64(), burst }
    }
}

/// A pace that all workers of a run look at, and one thread sets. How long bursts are stays.
#[derive(Clone, Debug)]
pub struct Dial {
    shared: Arc<PaceCell>,
    burst: u32,
    most_behind: Duration,
}

#[derive(Debug)]
struct PaceCell {
    ns: AtomicU64,
    fraction: AtomicU64,
}

impl Dial {
    /// That stands at a pace: of all workers together.
    pub fn new(pace: Pace) -> Self {
        let Period { ns, fraction } = pace.period();
        let shared = PaceCell { ns: ns.into(), fraction: u64::from(fraction).into() };
        Self { shared: Arc::new(shared), burst: pace.burst.max(1), most_behind: MAX_BEHIND }
    }

    /// Makes up for less lag: at most this, and never more than [`MAX_BEHIND`].
    #[must_use]
    pub fn catching_up(self, most_behind: Duration) -> Self {
        Self { most_behind: most_behind.min(MAX_BEHIND), ..self }
    }

    /// Another pace from now on.
    pub fn set(&self, pace: Pace) {
        let Period { ns, fraction } = pace.period();
        // Both pair with the loads of `period`. Nothing else is published. A reader that sees one
        // of the two before the other is wrong by less than a ns once.
        self.shared.fraction.store(fraction.into(), Ordering::Relaxed);
        self.shared.ns.store(ns, Ordering::Relaxed);
    }

    /// Returns the period from burst to burst over all workers.
    #[inline]
    pub fn period(&self) -> Period {
        // Both pair with the stores of `set`.
        let fraction = self.shared.fraction.load(Ordering::Relaxed) as u32;
        Period { ns: self.shared.ns.load(Ordering::Relaxed), fraction }
    }

    /// How far behind a worker may be and still make up for it.
    pub fn most_behind(&self) -> Duration {
        self.most_behind
    }

    /// Packets a burst.
    pub fn burst(&self) -> u32 {
        self.burst
    }
}

/// Bits behind the point of a [`Period`], in ns.
pub(crate) const FRACTION_BITS: u32 = 32;

/// A span of time: whole ns and 2⁻³² parts of one, so that what adds up stays exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Whole ns.
    pub ns: u64,
    /// Parts of the next, in 2⁻³².
    pub fraction: u32,
}

impl Period {
    /// Longer than anything runs, 36 years: nothing is due any more. What is longer is as long as
    /// this, so that sums of a few times and periods always fit.
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

    /// A part of it, in whole ns: `part` of `of`. What is never has no beginning either.
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

impl Pace {
    /// From one burst to the next: never none, and [`Period::NEVER`] if it is too slow to be kept.
    pub fn period(&self) -> Period {
        let ns = 1e9 * f64::from(self.burst.max(1)) / self.pps.max(0.0);
        let parts = ns * (1_u64 << FRACTION_BITS) as f64;
        // What is too great is as great as can be, and then too long.
        Period::of_whole((parts.round() as u128).max(1))
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
            // A number of packets an hour is not exact itself.
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
}
