//! Layout of the memory that the program shares with this process: one block per CPU, in words of
//! 64 bits.

use crate::rate::Latencies;

/// Streams that there is room for, and workers in each. Powers of two.
pub(super) const STREAMS: usize = 16;
pub(super) const WORKERS: usize = 16;
/// Words of a track's window: a bit for each of 4096 numbers.
pub(super) const WINDOW_WORDS: usize = 64;

/// A CPU's words before its tables, by their offsets in bytes.
pub(super) mod word {
    /// Packets without a stamp.
    pub const UNSTAMPED: i16 = 0;
    /// Corrupt ones of no stream that is known.
    pub const CORRUPT: i16 = 8;
    /// Stamped ones that there is no room for.
    pub const UNTRACKED: i16 = 16;
    /// Stamped packets that were truncated within a checksum's coverage.
    pub const UNCHECKED: i16 = 24;
    /// The current packet: bytes before its transport header,
    pub const UPPER_AT: i16 = 32;
    /// the bytes from there on,
    pub const UPPER_BYTES: i16 = 40;
    /// the bytes before the stamp, 0 if there is none,
    pub const STAMP_AT: i16 = 48;
    /// and its condition: [`super::INTACT`] and what is worse.
    pub const CONDITION: i16 = 56;
    pub const END: usize = 64;
}

/// Conditions, of which the greater are worse.
pub(super) const INTACT: i32 = 0;
pub(super) const UNCHECKED: i32 = 1;
pub(super) const CORRUPT: i32 = 2;

/// A stream's times on the way, by their offsets in bytes.
pub(super) mod delay {
    pub const LONGEST: i16 = 0;
    pub const OTHER_CLOCK: i16 = 8;
    pub const CLASSES: i16 = 16;
    pub const BYTES: usize = CLASSES as usize + super::Latencies::CLASSES * 8;
}

/// A track, by its offsets in bytes.
pub(super) mod track {
    pub const RECEIVED: i16 = 0;
    pub const DUPLICATES: i16 = 8;
    pub const REORDERED: i16 = 16;
    pub const LATE: i16 = 24;
    pub const CORRUPT: i16 = 32;
    /// The run: how many different numbers came.
    pub const DIFFERENT: i16 = 40;
    pub const FIRST: i16 = 48;
    /// 0 as long as there is no run.
    pub const LAST: i16 = 56;
    pub const FIRST_NS: i16 = 64;
    pub const LAST_NS: i16 = 72;
    /// Runs that have ended, and what was lost in those that are not in `RUNS` any more.
    pub const ENDED: i16 = 80;
    pub const ENDED_LOST: i16 = 88;
    pub const WINDOW: i16 = 96;
    /// The last runs that have ended, each where its number modulo `RUNS_MAX` says.
    pub const RUNS: i16 = WINDOW + super::WINDOW_WORDS as i16 * 8;
    pub const BYTES: usize = (RUNS + RUNS_MAX * RUN_BYTES) as usize;

    /// Where a run's words stand.
    pub const RUN: i16 = DIFFERENT;
    pub const RUN_BYTES: i16 = ENDED - RUN;
    /// A power of two.
    pub const RUNS_MAX: i16 = 8;

    /// Where a word of the run stands in the first place of `RUNS`.
    pub const fn in_runs(at: i16) -> i16 {
        RUNS + at - RUN
    }
}

/// Bytes before the tables of delays, and of tracks; and of all.
pub(super) const DELAYS: usize = word::END;
pub(super) const TRACKS: usize = DELAYS + STREAMS * delay::BYTES;
pub(super) const CPU_BYTES: usize =
    (TRACKS + STREAMS * WORKERS * track::BYTES).next_multiple_of(64);
