//! Merges the counts of all queues into a report by stream and worker.

use std::collections::BTreeMap;

use super::track::{NumberRun, StreamCounts, TrackShare};
use crate::rate::Latencies;

/// The counts of one queue or CPU.
#[derive(Clone, Debug, Default)]
pub struct Share {
    /// The packets of each worker in each stream.
    pub tracks: Vec<TrackShare>,
    /// Delays by stream.
    pub delays: BTreeMap<u8, Delays>,
    /// Packets that belong to no stream.
    pub others: Others,
}

/// Packets that belong to no stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Packets without a stamp after their headers.
    pub unstamped: u64,
    /// Packets with a wrong checksum or length, of no known stream.
    pub corrupt: u64,
    /// Stamped packets of streams and workers without room for a track.
    pub untracked: u64,
    /// Stamped packets with a checksum that covers missing bytes; also counted in their streams.
    pub unchecked: u64,
}

/// One-way delays of packets.
#[derive(Clone, Debug, Default)]
pub struct Delays {
    /// The delays of packets with a stamp of the receiver's clock.
    pub times: Latencies,
    /// The longest delay, in ns.
    pub longest_ns: u64,
    /// Packets with a stamp of another clock: its time lies ahead, or long ago.
    pub other_clock: u64,
}

/// A stamp older than this (an hour) is from another clock.
pub(super) const MAX_NS: u64 = 3_600_000_000_000;

impl Delays {
    /// Counts a packet by the times of its making and arrival.
    #[inline]
    pub fn add(&mut self, made_ns: u64, came_ns: u64) {
        match came_ns.checked_sub(made_ns) {
            Some(delay) if delay <= MAX_NS => {
                self.times.add(delay);
                self.longest_ns = self.longest_ns.max(delay);
            }
            _ => self.other_clock += 1,
        }
    }

    /// Reports whether a packet was counted.
    pub fn is_any(&self) -> bool {
        self.other_clock > 0 || self.times.count() > 0
    }

    /// Adds the delays of another queue.
    pub fn merge(&mut self, other: &Self) {
        self.times.merge(&other.times);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.other_clock += other.other_clock;
    }

    /// Returns the delay that this share of packets does not exceed, in ns; `None` without delays.
    pub fn percentile(&self, share: f64) -> Option<u64> {
        let most = Latencies::longest(Latencies::CLASSES - 1);
        match self.times.percentile(share)? {
            // The last class has no upper limit.
            ns if ns >= most => Some(self.longest_ns),
            ns => Some(ns.min(self.longest_ns)),
        }
    }
}

/// The analysis of all packets.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    /// The analysis of each stream, by number.
    pub streams: Vec<StreamAnalysis>,
    /// Packets of no stream.
    pub others: Others,
}

/// The analysis of a stream.
#[derive(Clone, Debug, Default)]
pub struct StreamAnalysis {
    /// The stream's number.
    pub stream: u8,
    /// The analysis of each sending worker.
    pub workers: Vec<WorkerAnalysis>,
    /// One-way delays.
    pub delays: Delays,
}

/// The analysis of a worker's packets in a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerAnalysis {
    /// The worker's number.
    pub worker: u8,
    /// Packet counts.
    pub counts: StreamCounts,
    /// Numbers between the first and the last that did not arrive intact.
    pub lost: u64,
    /// The first number of the last run.
    pub first: u32,
    /// The last number of the last run.
    pub last: u32,
    /// The number of the sender's restarts.
    pub restarts: u64,
    /// The number of queues or CPUs that received some of the packets.
    pub ways: u64,
}

impl Analysis {
    /// Merges the counts of all queues.
    pub fn of<'a>(shares: impl IntoIterator<Item = &'a Share>) -> Self {
        let mut tracks: BTreeMap<(u8, u8), Vec<&TrackShare>> = BTreeMap::new();
        let mut delays: BTreeMap<u8, Delays> = BTreeMap::new();
        let mut others = Others::default();
        for share in shares {
            for track in &share.tracks {
                tracks.entry((track.stream, track.worker)).or_default().push(track);
            }
            for (&stream, more) in &share.delays {
                delays.entry(stream).or_default().merge(more);
            }
            others.unstamped += share.others.unstamped;
            others.corrupt += share.others.corrupt;
            others.untracked += share.others.untracked;
            others.unchecked += share.others.unchecked;
        }
        let mut streams: Vec<StreamAnalysis> = Vec::new();
        for ((stream, worker), tracks) in tracks {
            let analysis = WorkerAnalysis::of(worker, &tracks);
            if analysis.counts.received == 0 {
                // The stream occurs only in corrupt packets.
                others.corrupt += analysis.counts.corrupt;
                continue;
            }
            match streams.last_mut() {
                Some(last) if last.stream == stream => last.workers.push(analysis),
                _ => {
                    let delays = delays.remove(&stream).unwrap_or_default();
                    streams.push(StreamAnalysis { stream, workers: vec![analysis], delays });
                }
            }
        }
        Self { streams, others }
    }

    /// Returns the packets lost and reordered, over all streams.
    pub fn lost_and_reordered(&self) -> (u64, u64) {
        let workers = self.streams.iter().flat_map(|stream| &stream.workers);
        workers.fold((0, 0), |sum, worker| (sum.0 + worker.lost, sum.1 + worker.counts.reordered))
    }
}

impl StreamAnalysis {
    /// Returns the sum of a number over all workers.
    pub fn sum(&self, of: fn(&WorkerAnalysis) -> u64) -> u64 {
        self.workers.iter().map(of).sum()
    }
}

impl WorkerAnalysis {
    fn of(worker: u8, shares: &[&TrackShare]) -> Self {
        let ways = shares.iter().filter(|share| share.counts.received > 0).count() as u64;
        let mut all = Self { worker, ways, ..Self::default() };
        let mut runs: Vec<NumberRun> = Vec::new();
        for share in shares {
            let StreamCounts { received, duplicates, reordered, late, corrupt } = share.counts;
            all.counts.received += received;
            all.counts.duplicates += duplicates;
            all.counts.reordered += reordered;
            all.counts.late += late;
            all.counts.corrupt += corrupt;
            all.lost += share.forgotten.0;
            all.restarts = all.restarts.max(share.forgotten.1);
            runs.extend(&share.runs);
        }
        runs.sort_by_key(|run| run.first_ns);
        let mut joined: Vec<NumberRun> = Vec::new();
        for run in runs {
            if joined.last_mut().and_then(|last| last.join(&run)).is_none() {
                joined.push(run);
            }
        }
        all.lost += joined.iter().map(NumberRun::lost).sum::<u64>();
        all.restarts += (joined.len() as u64).saturating_sub(1);
        if let Some(run) = joined.last() {
            (all.first, all.last) = (run.first as u32, run.last as u32);
        }
        all
    }
}
