//! Timestamps of received packets: a claim's program writes the time in front of each packet.
//!
//! ```text
//!   frame   headroom ... | hash, 8 bytes | mark, 8 bytes | time, 8 bytes | packet
//!                        `- from drivers'                                ^ data
//! ```
//!
//! The mark identifies the clock: the kernel's CLOCK_MONOTONIC (bpf_ktime_get_ns), which [`WallClock`]
//! converts, or the card's own, whose times are used unchanged.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use nix::time::{ClockId, clock_gettime};

use sluicegate_base::ring::{Meta, TimestampSource};

/// Mark of a kernel timestamp: random, because a frame without metadata may have bytes of an earlier packet in
/// its headroom. The high bit makes the claim's program equally long for each mark.
pub(crate) static MARK: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0) | 1 << 63);

/// The bit in which the mark of a card's timestamp differs.
pub(crate) const CARD_BIT: u64 = 1;

/// The kind of timestamp that a claim's program writes in front of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RxMetadata {
    /// Nothing.
    #[default]
    None,
    /// The kernel's time.
    Kernel,
    /// The card's time, or the kernel's for packets without one; and the hash.
    Driver,
}

impl RxMetadata {
    /// Returns the metadata's size: a multiple of 4, and at most 32 (xdp_metalen_invalid).
    #[inline]
    pub(crate) fn bytes(self) -> u16 {
        match self {
            Self::None => 0,
            Self::Kernel => 16,
            Self::Driver => 24,
        }
    }

    /// Returns the mark's offset. The time follows the mark; a driver's hash is at the start.
    pub(crate) fn mark_at(self) -> i16 {
        self.bytes().saturating_sub(16).cast_signed()
    }
}

/// Reads the timestamps of received packets.
#[derive(Debug)]
pub(crate) struct RxMetadataReader {
    rx_metadata: RxMetadata,
    mark: u64,
    clock: WallClock,
    /// The time at which the batch was received, once a packet without metadata needed it.
    batch_ns: Option<u64>,
}

impl RxMetadataReader {
    pub(crate) fn new(rx_metadata: RxMetadata) -> Self {
        Self { rx_metadata, mark: *MARK, clock: WallClock::new(), batch_ns: None }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> u16 {
        self.rx_metadata.bytes()
    }

    #[inline]
    pub(crate) fn begin_batch(&mut self) {
        self.batch_ns = None;
    }

    /// Fills in time and hash from the bytes in front of a packet. Without metadata, the time is that of
    /// receiving the batch.
    #[inline]
    pub(crate) fn read(&mut self, front: Option<&mut [u8]>, meta: &mut Meta) {
        let found = front.and_then(|bytes| take(self.rx_metadata, self.mark, bytes));
        meta.hash = found.map_or(0, |found| found.hash);
        (meta.timestamp_ns, meta.timestamp_source) = match found {
            Some(found) if found.of_card => (found.time_ns, TimestampSource::Hardware),
            Some(found) => (self.clock.wall_ns(found.time_ns), TimestampSource::Software),
            None => {
                let now = || now_ns(ClockId::CLOCK_REALTIME);
                (*self.batch_ns.get_or_insert_with(now), TimestampSource::Software)
            }
        };
    }
}

/// Contents of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MetadataReading {
    time_ns: u64,
    of_card: bool,
    hash: u32,
}

/// Reads and clears metadata. None if no program wrote any.
#[inline]
fn take(rx_metadata: RxMetadata, kernel_mark: u64, bytes: &mut [u8]) -> Option<MetadataReading> {
    let (front, rest) = bytes.split_at_mut_checked(rx_metadata.mark_at() as usize)?;
    let (mark, rest) = rest.split_first_chunk_mut::<8>()?;
    let time = rest.first_chunk::<8>()?;
    // Cleared, because the frame's next packet may have no metadata.
    let found = u64::from_ne_bytes(std::mem::take(mark));
    let hash = front.first_chunk().map_or(0, |hash| u64::from_ne_bytes(*hash)) as u32;
    let of_card = found == kernel_mark ^ CARD_BIT;
    (of_card || found == kernel_mark).then_some(MetadataReading {
        time_ns: u64::from_ne_bytes(*time),
        of_card,
        hash,
    })
}

// The time of day is CLOCK_MONOTONIC plus an offset that changes only when the clock is set: both are
// slewed alike. The offset is measured by reading both clocks. Its error is half the duration of the reads:
// below a microsecond unless the thread is interrupted. It is measured again after 10 ms of packet time,
// and replaced only if it differs by more than the errors, so that timestamps do not jitter. After the
// clock is set, packets of up to 10 ms still have the old time.

/// Packet time after which the offset is measured again.
const OFFSET_INTERVAL_NS: u64 = 10_000_000;
/// Number of measurements; the fastest one is used.
const READINGS: usize = 3;

/// The difference between the time of day and CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
struct Offset {
    /// The time of day minus CLOCK_MONOTONIC; modulo 2⁶⁴.
    ns: u64,
    error_ns: u64,
    /// CLOCK_MONOTONIC at the measurement.
    at_ns: u64,
}

impl Offset {
    fn measure() -> Self {
        let reading = || {
            let before = now_ns(ClockId::CLOCK_MONOTONIC);
            let wall = now_ns(ClockId::CLOCK_REALTIME);
            let after = now_ns(ClockId::CLOCK_MONOTONIC);
            let half = after.saturating_sub(before) / 2;
            Self { ns: wall.wrapping_sub(before + half), error_ns: half + 1, at_ns: after }
        };
        let first = reading();
        (1..READINGS)
            .map(|_| reading())
            .fold(first, |best, next| if next.error_ns < best.error_ns { next } else { best })
    }

    /// Combines the offset with a later measurement.
    fn then(self, next: Self) -> Self {
        let apart = (next.ns.wrapping_sub(self.ns) as i64).unsigned_abs();
        if apart > self.error_ns + next.error_ns {
            return next;
        }
        let (ns, error_ns) = match next.error_ns < self.error_ns {
            true => (next.ns, next.error_ns),
            false => (self.ns, self.error_ns),
        };
        Self { ns, error_ns, at_ns: next.at_ns }
    }
}

/// Returns by how many ns the time of day is ahead of CLOCK_MONOTONIC. The error is below a microsecond
/// even if the thread is interrupted meanwhile.
pub fn wall_ahead_ns() -> i64 {
    Offset::measure().ns.cast_signed()
}

fn now_ns(clock: ClockId) -> u64 {
    // These clocks always exist.
    clock_gettime(clock).map_or(0, |time| {
        (time.tv_sec() as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec() as u64)
    })
}

/// Converts times of CLOCK_MONOTONIC into ns since 1970 (UTC).
#[derive(Debug)]
pub(crate) struct WallClock(Offset);

impl WallClock {
    pub(crate) fn new() -> Self {
        Self(Offset::measure())
    }

    /// Converts the time of a packet.
    #[inline]
    pub(crate) fn wall_ns(&mut self, monotonic_ns: u64) -> u64 {
        if monotonic_ns.saturating_sub(self.0.at_ns) > OFFSET_INTERVAL_NS {
            self.measure_again();
        }
        monotonic_ns.wrapping_add(self.0.ns)
    }

    #[cold]
    fn measure_again(&mut self) {
        self.0 = self.0.then(Offset::measure());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns metadata as programs write it.
    fn written(mark: u64, hash: u64) -> Vec<u8> {
        [hash.to_ne_bytes(), mark.to_ne_bytes(), 77u64.to_ne_bytes()].concat()
    }

    #[test]
    fn metadata_is_read_once() {
        let found = |of_card, hash| Some(MetadataReading { time_ns: 77, of_card, hash });
        let rows = [
            ("no metadata", RxMetadata::Driver, vec![0; 24], None),
            (
                "the kernel's time alone",
                RxMetadata::Kernel,
                written(*MARK, 5).split_off(8),
                found(false, 0),
            ),
            ("the card's", RxMetadata::Driver, written(*MARK ^ CARD_BIT, 5), found(true, 5)),
            (
                "no time of the card's, but a hash",
                RxMetadata::Driver,
                written(*MARK, 6),
                found(false, 6),
            ),
            ("too short", RxMetadata::Kernel, written(*MARK, 5).split_off(16), None),
            ("too short for a driver's", RxMetadata::Driver, written(*MARK, 5).split_off(8), None),
        ];
        for (sentence, rx_metadata, mut bytes, expected) in rows {
            assert_eq!(take(rx_metadata, *MARK, &mut bytes), expected, "{sentence}");
            assert_eq!(
                take(rx_metadata, *MARK, &mut bytes),
                None,
                "{sentence}: it was another packet's"
            );
        }
    }

    #[test]
    fn the_cards_time_is_left_as_it_is() {
        let mut metadata_reader = RxMetadataReader::new(RxMetadata::Driver);
        let mut meta = Meta::default();
        metadata_reader.read(Some(&mut written(*MARK ^ CARD_BIT, 9)), &mut meta);
        let read = (meta.timestamp_ns, meta.timestamp_source, meta.hash);
        assert_eq!(read, (77, TimestampSource::Hardware, 9));
        metadata_reader.read(Some(&mut written(*MARK, 9)), &mut meta);
        assert_eq!(meta.timestamp_source, TimestampSource::Software);
        assert!(meta.timestamp_ns > 77 + 1_000_000_000, "the time of day");
        metadata_reader.read(None, &mut meta);
        assert_eq!((meta.timestamp_source, meta.hash), (TimestampSource::Software, 0));
    }

    #[test]
    fn an_offset_stays_until_the_clock_is_set() {
        let offset = |ns, error_ns, at_ns| Offset { ns, error_ns, at_ns };
        let rows = [
            ("within the errors of both it stays", (1000, 50), (1080, 40), (1080, 40)),
            ("and of two the better one counts", (1000, 50), (1080, 60), (1000, 50)),
            ("the clock was set forward", (1000, 50), (5000, 90), (5000, 90)),
            ("the clock was set back, before 1970", (1000, 50), (u64::MAX, 1), (u64::MAX, 1)),
            ("about zero", (3, 9), (u64::MAX - 3, 9), (3, 9)),
        ];
        for (sentence, old, new, expected) in rows {
            let then = offset(old.0, old.1, 7).then(offset(new.0, new.1, 8));
            assert_eq!(
                (then.ns, then.error_ns, then.at_ns),
                (expected.0, expected.1, 8),
                "{sentence}"
            );
        }
    }

    #[test]
    fn now_is_now() {
        let mut clock = WallClock::new();
        for _ in 0..3 {
            let before = now_ns(ClockId::CLOCK_REALTIME);
            let now = clock.wall_ns(now_ns(ClockId::CLOCK_MONOTONIC));
            let after = now_ns(ClockId::CLOCK_REALTIME);
            // Other threads may take the CPU in between, but not for a second.
            assert!(before.abs_diff(now) < 1_000_000_000 && after.abs_diff(now) < 1_000_000_000);
            clock.0.at_ns = 0;
        }
    }
}
