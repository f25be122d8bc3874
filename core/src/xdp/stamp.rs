//! When a packet came in: the claim's program writes the time in front of it.
//!
//! ```text
//!   frame   headroom ... | mark, 8 bytes | time, 8 bytes | packet
//!                        ^ data_meta                     ^ data
//! ```
//!
//! The time is the kernel's CLOCK_MONOTONIC (bpf_ktime_get_ns). What it is on the wall clock is
//! known by the distance of the two clocks, measured now and then: wrong by the time between
//! the two looks (below a microsecond, as a rule), by how far the clocks drift apart between
//! two measurements (NTP slews by 500 parts in a million at most: 5 ns in 10 ms), and by a step
//! of the wall clock until the next one.

use nix::time::{ClockId, clock_gettime};

/// Says that a time follows. No packet's bytes are there: it is written before each packet and
/// taken away when it is read.
pub(crate) const MARK: u64 = 0x5d1c_e57a_3b91_06f4;
/// Bytes in front of the packet.
pub(crate) const STAMP_BYTES: u16 = 16;

/// After so much time the distance of the clocks is measured again.
const LOOK_AGAIN_NS: u64 = 10_000_000;

/// From the kernel's clock to the wall's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallClock {
    /// Wall minus monotonic.
    distance_ns: u64,
    measured_ns: u64,
    /// When the batch was received, on the wall clock, if a packet has asked already.
    batch_ns: Option<u64>,
}

impl WallClock {
    pub fn new() -> Self {
        let mut clock = Self { distance_ns: 0, measured_ns: 0, batch_ns: None };
        clock.measure();
        clock
    }

    /// A time of the kernel's in nanoseconds since 1970 (UTC). Reads the clocks when the time
    /// is far from the last reading, not for each packet.
    #[inline]
    pub fn of(&mut self, monotonic_ns: u64) -> u64 {
        if monotonic_ns.wrapping_sub(self.measured_ns).cast_signed() > LOOK_AGAIN_NS as i64 {
            self.measure();
        }
        monotonic_ns.wrapping_add(self.distance_ns)
    }

    /// A new batch is received.
    #[inline]
    pub fn begin_batch(&mut self) {
        self.batch_ns = None;
    }

    /// The time in a stamp; where none was written, the time at which the batch was received.
    #[inline]
    pub fn time_of(&mut self, stamp: Option<&mut [u8]>) -> u64 {
        match stamp.and_then(read) {
            Some(monotonic_ns) => self.of(monotonic_ns),
            None => *self.batch_ns.get_or_insert_with(|| now(ClockId::CLOCK_REALTIME)),
        }
    }

    #[cold]
    fn measure(&mut self) {
        // The wall's between two of the other: the middle is nearest.
        let before = now(ClockId::CLOCK_MONOTONIC);
        let wall = now(ClockId::CLOCK_REALTIME);
        let after = now(ClockId::CLOCK_MONOTONIC);
        self.measured_ns = after;
        self.distance_ns = wall.wrapping_sub(before + (after - before) / 2);
    }
}

fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
    (time.tv_sec() as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec() as u64)
}

/// The kernel's time in a stamp's bytes; none if no program wrote one.
#[inline]
pub(crate) fn read(stamp: &mut [u8]) -> Option<u64> {
    let (mark, rest) = stamp.split_first_chunk_mut::<8>()?;
    let time = rest.first_chunk::<8>()?;
    let found = u64::from_ne_bytes(*mark) == MARK;
    // The frame comes back one day with another packet, perhaps without a stamp.
    *mark = [0; 8];
    found.then_some(u64::from_ne_bytes(*time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn now_is_now_on_both_clocks() {
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
        let monotonic = time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64;
        let wall = WallClock::new().of(monotonic);
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        // Not a measurement: only that hours, days and leap years are right.
        assert!((since.as_nanos() as u64).abs_diff(wall) < 60_000_000_000);
    }

    #[test]
    fn a_stamp_is_read_once() {
        let mut bytes = [0u8; 16];
        assert_eq!(read(&mut bytes), None, "nobody wrote one");
        bytes[..8].copy_from_slice(&MARK.to_ne_bytes());
        bytes[8..].copy_from_slice(&77u64.to_ne_bytes());
        assert_eq!(read(&mut bytes), Some(77));
        assert_eq!(read(&mut bytes), None, "it was another packet's");
        assert_eq!(read(&mut bytes[..10]), None, "too short");
    }
}
