//! The analyser inside XDP: a program fragment for ports that count packets without taking them from the
//! kernel.
//!
//! ```text
//!   headers ----> checksums ----> stamp ----> track of its stream and worker ----> delay
//!      | (no stamp)                 | (none, or corrupt)                             |
//!      `----------------------------`--------> other counts -----------> code after it
//! ```
//!
//! Each CPU writes its own memory, which this process maps. The program counts as the [`Analyser`] does, with
//! these differences:
//!
//! - It finds stamps after Ethernet, up to two tags, IPv4 or IPv6 without extensions, and UDP or TCP.
//! - It tracks streams 0 to 15 of workers 0 to 15.
//! - The window has 4033 to 4096 numbers.
//! - It checks checksums up to 1536 bytes after the IP header. For longer packets, and frames in several
//!   buffers, it checks only that of the IP header.
//! - It measures the delay of one in 16 packets, chosen by a hash of its number, because reading the
//!   clock costs more than all the rest.
//! - It stores the last eight ended runs; of earlier runs, only their number and total loss.
//!
//! R6 to R8 hold the context and the packet, as in [`Frame`]; R9 holds the CPU's memory.
//!
//! [`Analyser`]: super::Analyser

mod headers;
mod number;

use sluicegate::error::Result;
use sluicegate::filter::Frame;
use sluicegate::filter::ebpf::Reg::*;
use sluicegate::filter::ebpf::{Assembler, Helper, Label, Memory, Reg, Size};
use sluicegate::port::Inspect;
use sluicegate::xdp::live::SharedCounters;

use super::header_walk::Condition;
use super::report::{Delays, Others, Share};
use super::track::{NumberRun, StreamCounts, TrackShare};
use crate::rate::Latencies;

/// The CPU's memory.
const STATE: Reg = R9;

/// An analyser in the kernel.
#[derive(Debug)]
pub struct InKernel {
    counters: SharedCounters,
    cpus: usize,
}

impl InKernel {
    /// Creates an analyser without packets.
    ///
    /// # Errors
    /// The kernel has no memory for it; a missing privilege.
    pub fn new() -> Result<Self> {
        let cpus = sluicegate::link::possible_cpus()?;
        let counters = SharedCounters::zeros(cpus * CPU_BYTES / 8, "an analysis in XDP")?;
        Ok(Self { counters, cpus })
    }

    /// Returns the counts of each CPU that received packets.
    pub fn shares(&self) -> Vec<Share> {
        (0..self.cpus).map(|cpu| self.share(cpu)).collect()
    }

    fn share(&self, cpu: usize) -> Share {
        let cpu = cpu * CPU_BYTES;
        let [unstamped, corrupt, untracked, unchecked] = self.words(cpu + word::UNSTAMPED as usize);
        let delays = |stream| self.delays(cpu + DELAYS + stream * delay::BYTES);
        let delays = (0..STREAMS).map(|stream| (stream as u8, delays(stream)));
        let tracks = (0..STREAMS * WORKERS).map(|index| {
            let (stream, worker) = ((index / WORKERS) as u8, (index % WORKERS) as u8);
            self.track(stream, worker, cpu + TRACKS + index * track::BYTES)
        });
        let is_any = |track: &TrackShare| track.counts.corrupt > 0 || !track.runs.is_empty();
        Share {
            tracks: tracks.filter(is_any).collect(),
            delays: delays.filter(|(_, delays)| delays.is_any()).collect(),
            others: Others { unstamped, corrupt, untracked, unchecked },
        }
    }

    fn delays(&self, at: usize) -> Delays {
        let [longest_ns, other_clock] = self.words(at + delay::MAX as usize);
        let classes: [u64; Latencies::CLASSES] = self.words(at + delay::CLASSES as usize);
        Delays { times: Latencies::from_counts(classes), longest_ns, other_clock }
    }

    fn track(&self, stream: u8, worker: u8, at: usize) -> TrackShare {
        let run = |by: i16| {
            let [first, last, different, first_ns, last_ns] = self.words(at + by as usize);
            NumberRun { first, last, different, first_ns, last_ns }
        };
        let [received, duplicates, reordered, late, corrupt] =
            self.words(at + track::RECEIVED as usize);
        let counts = StreamCounts { received, duplicates, reordered, late, corrupt };
        let [ended, lost] = self.words(at + track::ENDED as usize);
        let many = track::RUNS_MAX as u64;
        let forgotten = ended.saturating_sub(many);
        let stored = |number: u64| track::RUNS + (number % many) as i16 * track::RUN_BYTES;
        let runs = (forgotten..ended).map(stored).chain([track::RUN]).map(run);
        let runs = runs.filter(|run| run.last != 0).collect();
        TrackShare { stream, worker, counts, runs, forgotten: (lost, forgotten) }
    }

    /// Reads words from a byte offset of the memory on.
    fn words<const N: usize>(&self, at: usize) -> [u64; N] {
        std::array::from_fn(|word| self.counters.get(at / 8 + word))
    }
}

impl Inspect for InKernel {
    fn write(&self, asm: &mut Assembler, frame: &Frame) {
        let mut code = AnalyserCode { done: asm.label(), unstamped: asm.label(), asm, frame };
        let [check, judged] = code.asm.labels();
        code.find_state(&self.counters, self.cpus);
        code.headers(check, judged);
        code.asm.place(check);
        code.checksum(judged);
        code.asm.place(judged);
        code.stamp();
        code.delay();
        code.count_unstamped();
        code.asm.place(code.done);
    }
}

/// The program fragment under construction.
struct AnalyserCode<'a> {
    asm: &'a mut Assembler,
    frame: &'a Frame,
    /// The end of the fragment.
    done: Label,
    /// The target for a packet without a stamp.
    unstamped: Label,
}

impl AnalyserCode<'_> {
    /// R9 = this CPU's memory.
    fn find_state(&mut self, counters: &SharedCounters, cpus: usize) {
        let asm = &mut self.asm;
        asm.call(Helper::CPU);
        asm.mov32(R0, R0).jge(cpus as i32, self.done);
        asm.mul(R0, CPU_BYTES as i32);
        asm.load_map_value(STATE, counters, 0);
        asm.add(STATE, R0);
    }

    /// Increments a counter. Clobbers R0.
    fn count(&mut self, at: Memory) {
        self.asm.load(Size::DW, R0, at).add(1).store(Size::DW, at);
    }

    /// Counts a packet without a stamp, by its condition.
    fn count_unstamped(&mut self) {
        let corrupt = self.asm.label();
        self.asm.place(self.unstamped);
        self.condition().jeq(CORRUPT, corrupt);
        self.count(STATE + word::UNSTAMPED);
        self.asm.jump(self.done);
        self.asm.place(corrupt);
        self.count(STATE + word::CORRUPT);
    }
}

/// The numbers of tracked streams, and of workers in each. Powers of two.
const STREAMS: usize = 16;
const WORKERS: usize = 16;
/// Words of a track's window: a bit for each of 4096 numbers.
const WINDOW_WORDS: usize = 64;

/// Byte offsets of a CPU's words before its tables.
mod word {
    /// Packets without a stamp.
    pub const UNSTAMPED: i16 = 0;
    /// Corrupt packets of no tracked stream.
    pub const CORRUPT: i16 = 8;
    /// Stamped packets of no tracked stream.
    pub const UNTRACKED: i16 = 16;
    /// Stamped packets that were truncated within a checksum's coverage.
    pub const UNCHECKED: i16 = 24;
    /// The current packet: the offset of its transport header.
    pub const UPPER_AT: i16 = 32;
    /// Its bytes from there on.
    pub const UPPER_BYTES: i16 = 40;
    /// The offset of its stamp; 0 for none.
    pub const STAMP_AT: i16 = 48;
    /// Its condition: [`super::INTACT`] or worse.
    pub const CONDITION: i16 = 56;
    pub const END: usize = 64;
}

/// Conditions, worst last.
const INTACT: i32 = Condition::Intact as i32;
const UNCHECKED: i32 = Condition::Unchecked as i32;
const CORRUPT: i32 = Condition::Corrupt as i32;

/// Byte offsets of a stream's delays.
mod delay {
    pub const MAX: i16 = 0;
    pub const OTHER_CLOCK: i16 = 8;
    pub const CLASSES: i16 = 16;
    pub const BYTES: usize = CLASSES as usize + super::Latencies::CLASSES * 8;
}

/// Byte offsets of a track. `shares` reads the counts, and the words of a run, in this order.
mod track {
    pub const RECEIVED: i16 = 0;
    pub const DUPLICATES: i16 = 8;
    pub const REORDERED: i16 = 16;
    pub const LATE: i16 = 24;
    pub const CORRUPT: i16 = 32;
    /// The words of the current run begin here.
    pub const FIRST: i16 = 40;
    /// 0 before the first run. The program stores `DIFFERENT` first, and the reader reads `LAST` first, so
    /// that a packet in between does not count as lost.
    pub const LAST: i16 = 48;
    /// The count of different numbers.
    pub const DIFFERENT: i16 = 56;
    pub const FIRST_NS: i16 = 64;
    pub const LAST_NS: i16 = 72;
    /// The number of ended runs; then the packets lost in runs that `RUNS` no longer holds.
    pub const ENDED: i16 = 80;
    pub const ENDED_LOST: i16 = 88;
    pub const WINDOW: i16 = 96;
    /// The last ended runs, each at its number modulo `RUNS_MAX`.
    pub const RUNS: i16 = WINDOW + super::WINDOW_WORDS as i16 * 8;
    pub const BYTES: usize = (RUNS + RUNS_MAX * RUN_BYTES) as usize;

    /// The words of a run.
    pub const RUN: i16 = FIRST;
    pub const RUN_BYTES: i16 = ENDED - RUN;
    /// A power of two.
    pub const RUNS_MAX: i16 = 8;

    /// The offset of a run's word in the first run of `RUNS`.
    pub const fn in_runs(at: i16) -> i16 {
        RUNS + at - RUN
    }
}

/// Byte offsets of the tables of delays and of tracks, and the bytes of all.
const DELAYS: usize = word::END;
const TRACKS: usize = DELAYS + STREAMS * delay::BYTES;
const CPU_BYTES: usize = (TRACKS + STREAMS * WORKERS * track::BYTES).next_multiple_of(64);
