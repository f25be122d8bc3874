//! A plan of traffic: the constant bytes of frames, the edits from packet to packet, and the
//! checksums that depend on them.
//!
//! ```text
//!   specification --> plan --+--> FrameBuilder: the packets in memory, one after the other
//!   (a file, flags)          +--> eBPF: the same packets, made in the kernel
//! ```
//!
//! Both follow the same rules, so every sender sends the same packets:
//!
//! - A worker is a sending thread. Its packet `n` belongs to stream `turns[n % turns.len()]`. The packets of
//!   a stream in a worker are numbered from 0.
//! - Worker `w` of `W` sends the flows `w`, `w + W`, `w + 2 W`, … of a stream in turn.
//! - A random number is a hash ([`hash()`]) of a key and the number of the packet or its flow. There is no
//!   state, so any packet can be made without its predecessors.

mod frame_builder;

pub(crate) use frame_builder::constants;
pub(crate) use frame_builder::words;
pub use frame_builder::{FrameBuilder, RandomKey, fold, hash};

/// A plan of the packets to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Seed of the random numbers.
    pub seed: u64,
    /// The streams.
    pub streams: Vec<StreamPlan>,
    /// The order of streams, which repeats. Each stream occurs as often as its weight.
    pub turns: Vec<u16>,
    /// Streams have their own rates: turns of a stream that has sent its count pass without a packet.
    /// Otherwise the other streams take them.
    pub has_rates: bool,
}

/// Packets with the same layers and varying numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPlan {
    /// The stream's name in reports.
    pub name: String,
    /// The longest frame, with zeros for edits and checksums. Shorter frames are its beginning.
    pub template: Vec<u8>,
    /// The sizes of frames, without the frame check sequence.
    pub sizes: Sizes,
    /// The number of its packets, over all workers; `None` for an endless stream.
    pub count: Option<u64>,
    /// The number of flows, over all workers; at least 1.
    pub flows: u32,
    /// The number of 64-bit random numbers that a packet and a flow need.
    pub words: RandomWordCounts,
    /// Fields that change. No two edits touch the same byte.
    pub edits: Vec<Edit>,
    /// Checksums, inner before outer.
    pub sums: Vec<Sum>,
}

/// Counts of 64-bit random numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomWordCounts {
    /// For each packet.
    pub packet: u8,
    /// For each flow.
    pub flow: u8,
}

/// The sizes of frames, in bytes without the frame check sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// The template's length.
    Fixed,
    /// One after the other, repeated.
    InTurn(Vec<u16>),
    /// `first` and the `count - 1` sizes above it, at random.
    AtRandom {
        /// The shortest size.
        first: u16,
        /// The number of sizes; at least 1.
        count: u16,
        /// The bits of the packet's random numbers.
        draw: Draw,
    },
}

/// A changing number of one, two, four or eight bytes, in network byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The offset of its first byte in the frame.
    pub at: u16,
    /// Its length in bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    /// The constant bits.
    pub keep: u64,
    /// The changing bits.
    pub parts: Vec<Part>,
}

/// Some bits of an [`Edit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The bits of the edit.
    pub mask: u64,
    /// The offset of the bits from the right end.
    pub shift: u8,
    /// The number added to the source's.
    pub base: u64,
    /// The source of the number.
    pub source: FieldSource,
}

/// A number that depends on the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldSource {
    /// An index times `step`, wrapping: a counter up or down, or a random number in a range.
    Steps {
        /// The number of steps.
        index: Index,
        /// The size of a step.
        step: u64,
    },
    /// A number of a list.
    List {
        /// The index in the list; its count is the list's length.
        index: Index,
        /// The list; at least one number.
        values: Vec<u64>,
    },
    /// The frame's bytes less `headers`, for length fields.
    Length {
        /// Bytes before the part that the length covers.
        headers: u16,
    },
    /// The packet's number in its stream and worker.
    Sequence,
    /// The number of the worker.
    Worker,
    /// The time when the packet is made, in ns of CLOCK_MONOTONIC. The only source that is not reproducible.
    Time,
}

/// A number below `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// The kind of number that it depends on.
    pub per: VariesBy,
    /// The number of values; at least 1.
    pub count: u64,
    /// The random bits of a random index; `None` for values in turn.
    pub random: Option<Draw>,
}

/// The number that a change depends on: the packet's or the flow's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariesBy {
    /// Every packet has its own.
    Packet,
    /// All packets of a flow have the same.
    Flow,
}

/// Some bits of a packet's or a flow's random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The index of the random number.
    pub word: u8,
    /// The shift to the right: small ranges share a number.
    pub shift: u8,
}

/// The Internet checksum (RFC 1071) of a part of the frame, and of a pseudo header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The offset of its two bytes in the frame.
    pub at: u16,
    /// The sum of the constant 16-bit numbers in network byte order, not folded.
    pub constant: u32,
    /// The sum of the template's bytes in a frame of each size, shortest first. Empty if all sums are equal.
    pub by_size: Vec<u16>,
    /// Edits and sums that the checksum covers.
    pub terms: Vec<Term>,
    /// The last step of the checksum.
    pub finish: Finish,
}

/// The contribution of an edit or another checksum to a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The number added.
    pub of: Operand,
    /// The number is at an odd offset from the beginning of the sum.
    pub odd: bool,
}

/// A number that a sum depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// An edit, by its index.
    Edit(u16),
    /// An earlier checksum, by its index.
    Sum(u16),
    /// A length without an edit, or repeated in a pseudo header: see [`FieldSource::Length`].
    Length {
        /// Bytes before the part that the length covers.
        headers: u16,
    },
}

/// The last step of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The right checksum.
    Plain,
    /// The right checksum, but never zero, which means no checksum (UDP; RFC 768).
    NeverZero,
    /// A wrong checksum that is not zero.
    Wrong,
}

impl Sizes {
    /// Returns the length of the shortest frame.
    pub fn shortest(&self, template: &[u8]) -> usize {
        match self {
            Self::Fixed => template.len(),
            Self::InTurn(sizes) => sizes.iter().min().map_or(0, |size| (*size).into()),
            Self::AtRandom { first, .. } => usize::from(*first),
        }
    }
}

impl Part {
    /// Returns the index that the part depends on.
    fn index(&self) -> Option<&Index> {
        match &self.source {
            FieldSource::Steps { index, .. } | FieldSource::List { index, .. } => Some(index),
            _ => None,
        }
    }
}

/// Packets of a stream, and their bytes without the frame check sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTotals {
    /// The number of packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl StreamTotals {
    /// Returns the sum of two workers' totals.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

impl StreamPlan {
    /// Returns the totals of the first `packets` packets of a worker. `random_bytes` is the sum of their
    /// lengths, if these are random; the others follow from the plan.
    pub(crate) fn totals(&self, packets: u64, random_bytes: u64) -> StreamTotals {
        let bytes = match &self.sizes {
            Sizes::Fixed => packets * self.template.len() as u64,
            Sizes::InTurn(sizes) => {
                let sum = |sizes: &[u16]| sizes.iter().map(|&size| u64::from(size)).sum::<u64>();
                let (rounds, rest) = (packets / sizes.len() as u64, packets % sizes.len() as u64);
                rounds * sum(sizes) + sum(&sizes[..rest as usize])
            }
            Sizes::AtRandom { .. } => random_bytes,
        };
        StreamTotals { packets, bytes }
    }

    /// Returns the part of the stream's count of worker `worker` of `workers`.
    pub(crate) fn count_of(&self, (worker, workers): (u32, u32)) -> Option<u64> {
        let (worker, workers) = (u64::from(worker), u64::from(workers));
        self.count.map(|count| count / workers + u64::from(worker < count % workers))
    }

    /// Reports whether a field depends on the flow.
    pub(crate) fn uses_flows(&self) -> bool {
        let mut indices = self.edits.iter().flat_map(|edit| &edit.parts).filter_map(Part::index);
        indices.any(|index| index.per == VariesBy::Flow)
    }

    fn mean_bytes(&self) -> f64 {
        match &self.sizes {
            Sizes::Fixed => self.template.len() as f64,
            Sizes::InTurn(sizes) => {
                sizes.iter().map(|&size| f64::from(size)).sum::<f64>() / sizes.len() as f64
            }
            Sizes::AtRandom { first, count, .. } => f64::from(*first) + f64::from(count - 1) / 2.0,
        }
    }
}

impl Plan {
    /// Makes a plan of one stream.
    pub fn of_stream(stream: &StreamPlan) -> Self {
        Self { seed: 0, streams: vec![stream.clone()], turns: vec![0], has_rates: false }
    }

    /// Returns the number of packets of worker `worker` of `workers`, if all streams have a count.
    pub(crate) fn count_of(&self, worker: (u32, u32)) -> Option<u64> {
        let mut counts = self.streams.iter().map(|stream| stream.count_of(worker));
        counts.try_fold(0_u64, |sum, count| Some(sum.saturating_add(count?)))
    }

    /// Returns the index of the first stream with random lengths.
    pub(crate) fn first_random(&self) -> Option<usize> {
        self.streams.iter().position(|stream| matches!(stream.sizes, Sizes::AtRandom { .. }))
    }

    /// Returns the length of the longest frame.
    pub fn longest(&self) -> usize {
        self.streams.iter().map(|stream| stream.template.len()).max().unwrap_or(0)
    }

    /// Returns the mean length of frames, without the frame check sequence.
    pub fn mean_bytes(&self) -> f64 {
        let means: Vec<f64> = self.streams.iter().map(StreamPlan::mean_bytes).collect();
        let sum: f64 = self.turns.iter().map(|&turn| means[usize::from(turn)]).sum();
        sum / self.turns.len().max(1) as f64
    }
}
