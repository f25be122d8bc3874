//! Analyses stamped packets: losses, duplicates, late, reordered and corrupt packets, and one-way
//! delays.
//!
//! ```text
//!   frame --> header_walk: headers, checksums --> stamp --> track: numbers received --.
//!                                                    `----> delays: time since sending +--> Analysis
//! ```
//!
//! Each queue has its own [`Analyser`], which receives a part of the packets. A number missing in one queue
//! may have arrived in another, so losses are computed at the end, from the first and last number and the
//! count of different ones.

mod header_walk;
mod kernel;
mod report;
mod track;

use std::collections::BTreeMap;

use sluicegate::ring::{Packet, TimestampSource};

pub use header_walk::{Condition, WalkResult, inspect};
pub use kernel::InKernel;
pub use report::{Analysis, Delays, Others, Share, StreamAnalysis, WorkerAnalysis};
use track::Track;
pub use track::{NumberRun, StreamCounts, TrackShare, WINDOW};

/// Maximum of tracks of an analyser, one per worker and stream. The window of a track takes 8 KiB.
const TRACKS_MAX: usize = 1024;

/// Analyses the packets of one queue.
#[derive(Debug)]
pub struct Analyser {
    /// The number, from 1, of the track of each stream and worker; 0 for none.
    of: Vec<u16>,
    tracks: Vec<Track>,
    delays: Vec<Delays>,
    /// Corrupt packets, by the stream and worker in their stamps.
    corrupt: BTreeMap<(u8, u8), u64>,
    others: Others,
    /// The lead of the clock of received packets over that of stamps, in ns.
    ahead: fn() -> i64,
    ahead_ns: i64,
    scratch: Vec<u8>,
}

impl Analyser {
    /// Creates an analyser without packets. `ahead` returns the lead, in ns, of the time of day (in received
    /// packets) over CLOCK_MONOTONIC (in stamps).
    pub fn new(ahead: fn() -> i64) -> Self {
        Self {
            of: vec![0; 1 << 16],
            tracks: Vec::new(),
            delays: vec![Delays::default(); 1 << 8],
            corrupt: BTreeMap::new(),
            others: Others::default(),
            ahead,
            ahead_ns: ahead(),
            scratch: Vec::new(),
        }
    }

    /// Begins a batch: reads the lead of the clocks again, because the time of day may have been set.
    pub fn begin_batch(&mut self) {
        self.ahead_ns = (self.ahead)();
    }

    /// Analyses an Ethernet packet.
    #[inline]
    pub fn packet(&mut self, packet: &Packet<'_>) {
        let meta = packet.meta();
        let bytes = packet.contiguous(&mut self.scratch);
        let found = inspect(bytes, bytes.len() >= meta.wire_bytes as usize);
        let came_ns = match meta.timestamp_source {
            TimestampSource::None => None,
            _ => Some(meta.timestamp_ns.wrapping_sub(self.ahead_ns.cast_unsigned())),
        };
        self.found(found, came_ns);
    }

    /// Counts a packet of another link type than Ethernet.
    pub fn unstamped(&mut self) {
        self.others.unstamped += 1;
    }

    /// Counts a walked packet that arrived at a time of CLOCK_MONOTONIC.
    #[inline]
    pub fn found(&mut self, found: WalkResult, came_ns: Option<u64>) {
        let Some(stamp) = found.stamp else {
            match found.condition {
                Condition::Corrupt => self.others.corrupt += 1,
                _ => self.others.unstamped += 1,
            }
            return;
        };
        if found.condition == Condition::Corrupt {
            // The stamp itself may be corrupt. The report omits streams that no queue received.
            *self.corrupt.entry((stamp.stream, stamp.worker)).or_default() += 1;
            return;
        }
        if found.condition == Condition::Unchecked {
            self.others.unchecked += 1;
        }
        let at = usize::from(stamp.stream) << 8 | usize::from(stamp.worker);
        if self.of[at] == 0 && !self.begin(at, stamp) {
            self.others.untracked += 1;
            return;
        }
        self.tracks[usize::from(self.of[at]) - 1].packet(stamp.number, stamp.time_ns);
        if let Some(came_ns) = came_ns {
            self.delays[usize::from(stamp.stream)].add(stamp.time_ns, came_ns);
        }
    }

    /// Begins the track of a worker in a stream; false if there is no room for it.
    #[cold]
    fn begin(&mut self, at: usize, stamp: Stamp) -> bool {
        if self.tracks.len() == TRACKS_MAX {
            return false;
        }
        self.tracks.push(Track::of(stamp.stream, stamp.worker));
        self.of[at] = self.tracks.len() as u16;
        true
    }

    /// Returns the counts so far.
    pub fn share(&self) -> Share {
        let delays = (0..=u8::MAX).zip(&self.delays).filter(|(_, delays)| delays.is_any());
        Share { delays: delays.map(|(n, delays)| (n, delays.clone())).collect(), ..self.counts() }
    }

    /// Returns the counts without delays, which are large to copy.
    pub fn counts(&self) -> Share {
        let tracks = self.tracks.iter().map(Track::share);
        let corrupt = self.corrupt.iter().map(|(&(stream, worker), &corrupt)| TrackShare {
            stream,
            worker,
            counts: StreamCounts { corrupt, ..StreamCounts::default() },
            ..TrackShare::default()
        });
        Share { tracks: tracks.chain(corrupt).collect(), others: self.others, ..Share::default() }
    }
}

/// The fields of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The stream's number in its specification.
    pub stream: u8,
    /// The sending worker.
    pub worker: u8,
    /// The packet's number in stream and worker, modulo 2³².
    pub number: u32,
    /// The time when the packet was made, in ns of the sender's CLOCK_MONOTONIC.
    pub time_ns: u64,
}

impl Stamp {
    /// The length of a stamp in bytes.
    pub const BYTES: usize = 16;
    /// Its first two bytes.
    pub const MAGIC: [u8; 2] = *b"Sl";

    /// Reads a stamp at the start of some bytes.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let &[s, l, stream, worker, a, b, c, d, ref time @ ..] = bytes.first_chunk::<16>()?;
        let (number, time_ns) = (u32::from_be_bytes([a, b, c, d]), u64::from_be_bytes(*time));
        ([s, l] == Self::MAGIC).then_some(Self { stream, worker, number, time_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_where_it_is_whole() {
        let bytes = b"Sl\x07\x02\x00\x01\x00\x09\x00\x00\x00\x00\x00\x00\x01\x00and on";
        let stamp = Stamp { stream: 7, worker: 2, number: 0x1_0009, time_ns: 256 };
        assert_eq!(Stamp::read(bytes), Some(stamp));
        assert_eq!(Stamp::read(&bytes[..16]), Some(stamp), "nothing behind it");
        assert_eq!(Stamp::read(&bytes[..15]), None, "cut");
        assert_eq!(Stamp::read(&bytes[1..]), None, "something else");
    }
}
