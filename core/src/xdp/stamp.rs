//! When a packet came in: the claim's program writes the time in front of it.
//!
//! ```text
//!   frame   headroom ... | mark, 8 bytes | time, 8 bytes | packet
//!                        ^ data_meta                     ^ data
//! ```
//!
//! The time is the kernel's CLOCK_MONOTONIC (bpf_ktime_get_ns), which [`super::clock`] turns into
//! the time of day.

use nix::time::ClockId;

use super::clock::{WallClock, now_ns};

/// Says that a time follows. No packet's bytes are there: it is written before each packet and
/// taken away when it is read.
pub(crate) const MARK: u64 = 0x5d1c_e57a_3b91_06f4;
/// Bytes in front of the packet.
pub(crate) const STAMP_BYTES: u16 = 16;

/// Gives packets their times.
#[derive(Debug)]
pub(crate) struct Stamps {
    clock: WallClock,
    /// When the batch was received, if a packet without a stamp has asked already.
    batch_ns: Option<u64>,
}

impl Stamps {
    pub fn new() -> Self {
        Self { clock: WallClock::new(), batch_ns: None }
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
            Some(monotonic_ns) => self.clock.wall_ns(monotonic_ns),
            None => *self.batch_ns.get_or_insert_with(|| now_ns(ClockId::CLOCK_REALTIME)),
        }
    }
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
