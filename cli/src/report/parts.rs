//! Parts of a report: packets and rates, threads, directions, files, memory.

use std::time::Duration;

use serde::Serialize;

use super::json::is_zero;

/// Bytes of a frame on the wire that are not counted here: preamble and start delimiter 8, frame check
/// sequence 4, gap between frames 12.
pub const L1_OVERHEAD_BYTES: u64 = 24;

/// Packets and their rates over a time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Traffic {
    pub packets: u64,
    /// Layer 2, without the frame check sequence.
    pub bytes: u64,
    pub pps: f64,
    pub bps_l1: f64,
    pub bps_l2: f64,
}

/// Packets that were forwarded from one port to the other.
#[derive(Clone, Debug, Serialize)]
pub struct DirectionReport {
    pub from: String,
    pub to: String,
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Packets moved by exchange of buffers, and by copy.
    pub swapped: u64,
    pub copied: u64,
}

/// One thread's share.
#[derive(Clone, Debug, Serialize)]
pub struct Thread {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    pub queue: u32,
    pub packets: u64,
    /// The share of time on a CPU.
    pub busy: f64,
}

/// Files written.
#[derive(Debug, Serialize)]
pub struct FilesReport {
    pub path: String,
    pub count: u64,
    pub bytes: u64,
    pub deleted: u64,
    /// Files that are deleted once the program of `--post-rotate` has run.
    #[serde(skip_serializing_if = "is_zero")]
    pub to_delete: u64,
}

/// Packets in memory, of `capture --keep`.
#[derive(Debug, Serialize)]
pub struct MemoryReport {
    pub packets: u64,
    /// The time from the oldest to the newest.
    pub period_s: f64,
    /// Memory has been too small for the time to keep.
    pub short: bool,
}

impl Traffic {
    /// Rates over `elapsed`.
    pub fn over(packets: u64, bytes: u64, elapsed: Duration) -> Self {
        let per_second = |n: u64| match elapsed.as_secs_f64() {
            0.0 => 0.0,
            seconds => n as f64 / seconds,
        };
        Self {
            packets,
            bytes,
            pps: per_second(packets),
            bps_l1: per_second((bytes + packets * L1_OVERHEAD_BYTES) * 8),
            bps_l2: per_second(bytes * 8),
        }
    }
}
