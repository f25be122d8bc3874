//! When a packet came in: the claim's program writes the time in front of it.
//!
//! ```text
//!   frame   headroom ... | hash, 8 bytes | mark, 8 bytes | time, 8 bytes | packet
//!                        `- a driver's -'                                ^ data
//! ```
//!
//! The mark says whose time it is: the kernel's CLOCK_MONOTONIC (bpf_ktime_get_ns), which
//! [`super::clock`] turns into the time of day, or the card's own, which is taken as it is.

use nix::time::ClockId;

use super::clock::{WallClock, now_ns};
use sluicegate_base::ring::{Meta, TimestampSource};

/// Says that the kernel's time follows. No packet's bytes are there: it is written before each
/// packet and taken away when it is read.
pub(crate) const MARK: u64 = 0x5d1c_e57a_3b91_06f4;
/// Says that the card's time follows.
pub(crate) const CARD_MARK: u64 = MARK ^ 1;

/// Stamp that a claim's program writes in front of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// Nothing.
    #[default]
    None,
    /// The kernel's time.
    Kernel,
    /// The card's time, or the kernel's where the packet has none of the card's; and the hash.
    Driver,
}

impl Stamp {
    /// Bytes in front of the packet: a multiple of 4, and 32 at most (xdp_metalen_invalid).
    #[inline]
    pub(crate) fn bytes(self) -> u16 {
        match self {
            Self::None => 0,
            Self::Kernel => 16,
            Self::Driver => 24,
        }
    }

    /// Where the mark is; the time is behind it, a driver's hash at the start.
    pub(crate) fn mark_at(self) -> i16 {
        self.bytes().saturating_sub(16).cast_signed()
    }
}

/// Gives packets their times.
#[derive(Debug)]
pub(crate) struct Stamps {
    stamp: Stamp,
    clock: WallClock,
    /// When the batch was received, if a packet without a stamp has asked already.
    batch_ns: Option<u64>,
}

impl Stamps {
    /// For packets with such stamps in front.
    pub(crate) fn new(stamp: Stamp) -> Self {
        Self { stamp, clock: WallClock::new(), batch_ns: None }
    }

    /// Bytes to look at in front of a packet.
    #[inline]
    pub(crate) fn bytes(&self) -> u16 {
        self.stamp.bytes()
    }

    /// A new batch is received.
    #[inline]
    pub(crate) fn begin_batch(&mut self) {
        self.batch_ns = None;
    }

    /// Fills in what the bytes in front of a packet say; where they say no time, the time at
    /// which the batch was received.
    #[inline]
    pub(crate) fn read(&mut self, front: Option<&mut [u8]>, meta: &mut Meta) {
        let found = front.and_then(|bytes| take(self.stamp, bytes));
        meta.hash = found.map_or(0, |found| found.hash);
        (meta.timestamp_ns, meta.timestamp_source) = match found {
            Some(StampReading { of_card: true, time_ns, .. }) => {
                (time_ns, TimestampSource::Hardware)
            }
            Some(StampReading { time_ns, .. }) => {
                (self.clock.wall_ns(time_ns), TimestampSource::Software)
            }
            None => {
                let now = || now_ns(ClockId::CLOCK_REALTIME);
                (*self.batch_ns.get_or_insert_with(now), TimestampSource::Software)
            }
        };
    }
}

/// What a stamp says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StampReading {
    time_ns: u64,
    of_card: bool,
    hash: u32,
}

/// Takes a stamp out of its bytes; none if no program wrote one.
#[inline]
fn take(stamp: Stamp, bytes: &mut [u8]) -> Option<StampReading> {
    let (front, rest) = bytes.split_at_mut_checked(stamp.mark_at() as usize)?;
    let (mark, rest) = rest.split_first_chunk_mut::<8>()?;
    let time = rest.first_chunk::<8>()?;
    // The frame comes back one day with another packet, perhaps without a stamp.
    let found = u64::from_ne_bytes(std::mem::take(mark));
    let hash = front.first_chunk().map_or(0, |hash| u64::from_ne_bytes(*hash)) as u32;
    let of_card = found == CARD_MARK;
    (of_card || found == MARK).then_some(StampReading {
        time_ns: u64::from_ne_bytes(*time),
        of_card,
        hash,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program writes.
    fn written(mark: u64, hash: u64) -> Vec<u8> {
        [hash.to_ne_bytes(), mark.to_ne_bytes(), 77u64.to_ne_bytes()].concat()
    }

    #[test]
    fn a_stamp_is_read_once() {
        let found = |of_card, hash| Some(StampReading { time_ns: 77, of_card, hash });
        let rows = [
            ("nobody wrote one", Stamp::Driver, vec![0; 24], None),
            (
                "the kernel's time alone",
                Stamp::Kernel,
                written(MARK, 5).split_off(8),
                found(false, 0),
            ),
            ("the card's", Stamp::Driver, written(CARD_MARK, 5), found(true, 5)),
            ("no time of the card's, but a hash", Stamp::Driver, written(MARK, 6), found(false, 6)),
            ("too short", Stamp::Kernel, written(MARK, 5).split_off(16), None),
            ("too short for a driver's", Stamp::Driver, written(MARK, 5).split_off(8), None),
        ];
        for (sentence, stamp, mut bytes, expected) in rows {
            assert_eq!(take(stamp, &mut bytes), expected, "{sentence}");
            assert_eq!(take(stamp, &mut bytes), None, "{sentence}: it was another packet's");
        }
    }

    #[test]
    fn the_cards_time_is_left_as_it_is() {
        let mut stamps = Stamps::new(Stamp::Driver);
        let mut meta = Meta::default();
        stamps.read(Some(&mut written(CARD_MARK, 9)), &mut meta);
        let read = (meta.timestamp_ns, meta.timestamp_source, meta.hash);
        assert_eq!(read, (77, TimestampSource::Hardware, 9));
        stamps.read(Some(&mut written(MARK, 9)), &mut meta);
        assert_eq!(meta.timestamp_source, TimestampSource::Software);
        assert!(meta.timestamp_ns > 77 + 1_000_000_000, "the time of day");
        stamps.read(None, &mut meta);
        assert_eq!((meta.timestamp_source, meta.hash), (TimestampSource::Software, 0));
    }
}
