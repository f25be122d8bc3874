//! How fast packets are sent, and how near to it they came.

mod dial;
mod histogram;
mod period;
mod timetable;

use std::time::Duration;

pub use dial::Dial;
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

/// What a pace is of. Mostly packets; where their lengths differ and bits are to be even, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A packet.
    Packet,
    /// A byte.
    Byte {
        /// What counts besides each packet's own.
        besides: u32,
    },
}

impl Unit {
    /// With what is around each frame on the wire: preamble and start 8, check sequence 4, gap 12.
    pub const BYTE_OF_LAYER1: Self = Self::Byte { besides: 24 };
    /// Of the frames themselves.
    pub const BYTE_OF_LAYER2: Self = Self::Byte { besides: 0 };
}

/// How far behind a sender may be and still make up for it, unless less is said
/// ([`Dial::catching_up`]). Beyond, it starts its timetable anew.
pub const MAX_BEHIND: Duration = Duration::from_millis(100);
/// Who is behind when another pace begins stays so by as many packets, unless they would take longer
/// then than is made up for; not where periods are longer than this, a minute.
pub(crate) const LONG_PERIOD_NS: u64 = 1 << 36;

impl Pace {
    /// Bursts of so many packets, from each one's begin so long to the next one's.
    pub fn of_bursts(burst: u32, gap: Duration) -> Self {
        Self { pps: f64::from(burst) / gap.as_secs_f64(), burst }
    }
}
