//! How fast packets are sent, and how near to it they came.

mod histogram;
mod period;
mod timetable;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use histogram::{Gaps, Histogram, Latencies};
pub(crate) use period::FRACTION_BITS;
pub use period::Period;
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
