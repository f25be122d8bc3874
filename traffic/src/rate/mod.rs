//! How fast packets are sent, and how near to it they came.

mod histogram;
mod timetable;

use std::time::Duration;

pub use histogram::{Gaps, Histogram, Latencies};
pub use timetable::Timetable;

/// A pace: a burst of packets, back to back, again and again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Packets a second, on average; above 0.
    pub pps: f64,
    /// Packets a burst; 1 spreads them evenly.
    pub burst: u32,
}

/// Bits behind the point of a [`Pace::period`].
pub const PERIOD_BITS: u32 = 16;
/// How far behind a sender may be and still make up for it. Beyond, it starts its timetable anew.
pub const MOST_BEHIND: Duration = Duration::from_millis(100);

/// A timetable that has come so far, in its units, begins to count anew: it would be full after three
/// days.
pub(crate) const LONG: u64 = 1 << 56;

impl Pace {
    /// From one burst to the next, in ns with [`PERIOD_BITS`] bits behind the point. At least a
    /// bit, so that a pace is never none.
    pub fn period(&self) -> u64 {
        let ns = 1e9 * f64::from(self.burst.max(1)) / self.pps;
        ((ns * f64::from(1u32 << PERIOD_BITS)).round() as u64).max(1)
    }

    /// What each of several workers does, so that all together keep this pace.
    pub fn shared_by(self, workers: u32) -> Self {
        Self { pps: self.pps / f64::from(workers.max(1)), ..self }
    }
}
