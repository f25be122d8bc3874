//! Builds the packets of a plan in memory.

use std::borrow::Borrow;

use super::{
    Draw, Edit, FieldSource, Finish, Index, Operand, Part, Plan, Sizes, StreamPlan, StreamTotals,
    Sum, Term, VariesBy,
};

/// Makes the packets of one worker, from a borrowed or shared plan.
#[derive(Clone, Debug)]
pub struct FrameBuilder<P> {
    plan: P,
    worker: u32,
    /// The position in the plan's turns.
    turn: usize,
    progress: Vec<StreamProgress>,
    time_ns: fn() -> u64,
}

/// A stream's progress.
#[derive(Clone, Debug)]
struct StreamProgress {
    packets: RandomKey,
    flows: RandomKey,
    /// The number of its next packet.
    number: u64,
    /// The bytes of its packets, if their lengths are random; other lengths follow from the number.
    random_bytes: u64,
    /// The length of its shortest packets.
    shortest: u64,
    own: OwnFlows,
}

/// The flows of a stream that belong to a worker. A counter selects the next one, because a division takes
/// longer than the rest of a plain packet.
#[derive(Clone, Copy, Debug)]
struct OwnFlows {
    first: u64,
    /// The difference between two flows.
    step: u64,
    count: u64,
    turn: u64,
}

/// The inputs of one packet's edits and checksums.
struct PacketInputs<'a> {
    worker: u32,
    number: u64,
    flow: u64,
    bytes: u64,
    progress: &'a StreamProgress,
    words: super::RandomWordCounts,
    time_ns: fn() -> u64,
}

impl<P: Borrow<Plan>> FrameBuilder<P> {
    /// Creates the packets of worker `worker` of `workers`. `time_ns` supplies the times in packets.
    ///
    /// # Panics
    /// The worker does not exist, or the plan has no turns.
    pub fn new(plan: P, worker: u32, workers: u32, time_ns: fn() -> u64) -> Self {
        assert!(worker < workers, "worker {worker} of {workers}");
        let Plan { seed, streams, turns, .. } = plan.borrow();
        assert!(!turns.is_empty(), "a plan without turns");
        let progress = (0..streams.len()).map(|stream| StreamProgress {
            packets: RandomKey::of_packets(*seed, stream, worker),
            flows: RandomKey::of_flows(*seed, stream),
            number: 0,
            random_bytes: 0,
            shortest: streams[stream].sizes.shortest(&streams[stream].template) as u64,
            own: OwnFlows::of(streams[stream].flows, worker, workers),
        });
        let progress = progress.collect();
        Self { plan, worker, turn: 0, progress, time_ns }
    }

    /// Writes the next packet into `room` and returns its length; `None`, without a change, if it does not
    /// fit.
    // Always inlined: the compiler would judge it too large, and the call costs five instructions a packet.
    #[inline(always)]
    pub fn next_into(&mut self, room: &mut [u8]) -> Option<usize> {
        let plan = self.plan.borrow();
        let index = usize::from(plan.turns[self.turn]);
        let stream = &plan.streams[index];
        let progress = &mut self.progress[index];
        let number = progress.number;
        let bytes = stream.size(progress);
        let Some(frame) = room.get_mut(..bytes) else {
            progress.forget(stream, bytes);
            return None;
        };
        progress.number += 1;
        self.turn += 1;
        if self.turn == plan.turns.len() {
            self.turn = 0;
        }
        let flow = progress.own.next();
        frame.copy_from_slice(&stream.template[..bytes]);
        if stream.changes() {
            self.change(index, number, flow, frame);
        }
        Some(bytes)
    }

    /// Returns the totals of each stream so far.
    pub fn totals(&self) -> Vec<StreamTotals> {
        let streams = self.plan.borrow().streams.iter().zip(&self.progress);
        let totals =
            streams.map(|(it, progress)| it.totals(progress.number, progress.random_bytes));
        totals.collect()
    }

    /// Returns the plan's turns.
    pub(crate) fn turns(&self) -> &[u16] {
        &self.plan.borrow().turns
    }

    /// Returns the position of the next packet's turn.
    pub(crate) fn turn(&self) -> usize {
        self.turn
    }

    /// Returns the index of the stream of the next packet.
    pub(crate) fn next_stream(&self) -> usize {
        self.turns()[self.turn].into()
    }

    /// Skips turns.
    pub(crate) fn skip(&mut self, turns: u32) {
        self.turn = (self.turn + turns as usize) % self.turns().len();
    }

    /// Returns the index of the stream of the last packet.
    pub(crate) fn last_stream(&self) -> usize {
        let turns = self.turns();
        let last = self.turn.checked_sub(1).unwrap_or(turns.len() - 1);
        turns[last].into()
    }

    /// Edits packet `number` of a stream.
    #[inline(never)]
    fn change(&self, stream: usize, number: u64, flow: u64, frame: &mut [u8]) {
        let progress = &self.progress[stream];
        let stream = &self.plan.borrow().streams[stream];
        let inputs = PacketInputs {
            worker: self.worker,
            number,
            flow,
            bytes: frame.len() as u64,
            progress,
            words: stream.words,
            time_ns: self.time_ns,
        };
        inputs.write(stream, frame);
    }
}

impl StreamProgress {
    /// Takes back the length of a packet that did not fit.
    #[cold]
    fn forget(&mut self, stream: &StreamPlan, bytes: usize) {
        if matches!(stream.sizes, Sizes::AtRandom { .. }) {
            self.random_bytes -= bytes as u64;
        }
    }
}

impl OwnFlows {
    fn of(flows: u32, worker: u32, workers: u32) -> Self {
        let (worker, step, flows) = (u64::from(worker), u64::from(workers), u64::from(flows));
        if worker >= flows {
            // There are more workers than flows, so some workers share a flow.
            return Self { first: worker % flows, step, count: 1, turn: 0 };
        }
        Self { first: worker, step, count: (flows - worker).div_ceil(step), turn: 0 }
    }

    /// Returns the flow of the next packet.
    #[inline]
    fn next(&mut self) -> u64 {
        let flow = self.first + self.turn * self.step;
        self.turn += 1;
        if self.turn == self.count {
            self.turn = 0;
        }
        flow
    }
}

impl StreamPlan {
    /// Reports whether packets differ in more than their length.
    #[inline]
    fn changes(&self) -> bool {
        !self.edits.is_empty() || !self.sums.is_empty()
    }

    /// Returns the length of the next packet, and counts it if it is random.
    #[inline]
    fn size(&self, progress: &mut StreamProgress) -> usize {
        let number = progress.number;
        match &self.sizes {
            Sizes::Fixed => self.template.len(),
            Sizes::InTurn(sizes) => usize::from(sizes[(number % sizes.len() as u64) as usize]),
            Sizes::AtRandom { first, count, draw } => {
                let random = draw.of(&progress.packets, number, self.words.packet);
                let bytes = usize::from(*first) + below(random, u64::from(*count)) as usize;
                progress.random_bytes += bytes as u64;
                bytes
            }
        }
    }
}

impl Draw {
    #[inline]
    fn of(self, key: &RandomKey, number: u64, words: u8) -> u64 {
        let number = number.wrapping_mul(u64::from(words)).wrapping_add(u64::from(self.word));
        hash(*key, number) >> self.shift
    }
}

impl PacketInputs<'_> {
    fn write(&self, stream: &StreamPlan, frame: &mut [u8]) {
        for edit in &stream.edits {
            edit.put(frame, self.edited(edit));
        }
        for sum in &stream.sums {
            let checksum = self.checksum(sum, stream, frame);
            frame[usize::from(sum.at)..][..2].copy_from_slice(&checksum.to_be_bytes());
        }
    }

    fn edited(&self, edit: &Edit) -> u64 {
        edit.parts.iter().fold(edit.keep, |number, part| number | self.part(part))
    }

    fn part(&self, part: &Part) -> u64 {
        let number = match &part.source {
            FieldSource::Steps { index, step } => self.index(index).wrapping_mul(*step),
            FieldSource::List { index, values } => values[self.index(index) as usize],
            FieldSource::Length { headers } => self.length(*headers),
            FieldSource::Sequence => self.number,
            FieldSource::Worker => u64::from(self.worker),
            FieldSource::Time => (self.time_ns)(),
        };
        (number.wrapping_add(part.base) << part.shift) & part.mask
    }

    fn index(&self, index: &Index) -> u64 {
        let (key, number, words) = match index.per {
            VariesBy::Packet => (&self.progress.packets, self.number, self.words.packet),
            VariesBy::Flow => (&self.progress.flows, self.flow, self.words.flow),
        };
        match index.random {
            Some(draw) => below(draw.of(key, number, words), index.count),
            // A wrapping counter and a multiplication by the inverse were both slower when measured.
            None => number % index.count,
        }
    }

    fn length(&self, headers: u16) -> u64 {
        self.bytes - u64::from(headers)
    }

    fn checksum(&self, sum: &Sum, stream: &StreamPlan, frame: &[u8]) -> u16 {
        let by_size = match sum.by_size.as_slice() {
            [] => 0,
            sums => sums[(self.bytes - self.progress.shortest) as usize],
        };
        let mut total = u64::from(sum.constant) + u64::from(by_size);
        for term in &sum.terms {
            total += self.term(term, stream, frame);
        }
        sum.finish.of(!fold(total))
    }

    fn term(&self, term: &Term, stream: &StreamPlan, frame: &[u8]) -> u64 {
        let (number, bytes) = match term.of {
            Operand::Edit(index) => {
                let edit = &stream.edits[usize::from(index)];
                (edit.get(frame), edit.bytes)
            }
            Operand::Sum(index) => {
                let at = usize::from(stream.sums[usize::from(index)].at);
                (u64::from(u16::from_be_bytes([frame[at], frame[at + 1]])), 2)
            }
            Operand::Length { headers } => (self.length(headers), 2),
        };
        // A single byte is the upper half of its pair.
        let number = if bytes == 1 { number << 8 } else { number };
        let folded = fold((number >> 32) + (number & 0xffff_ffff));
        u64::from(if term.odd { folded.swap_bytes() } else { folded })
    }
}

impl Edit {
    /// Stores a number. Each size has its own arm, because a store of constant length is one instruction, any
    /// other is a call.
    fn put(&self, frame: &mut [u8], number: u64) {
        let frame = &mut frame[usize::from(self.at)..];
        match self.bytes {
            1 => frame[0] = number as u8,
            2 => frame[..2].copy_from_slice(&(number as u16).to_be_bytes()),
            4 => frame[..4].copy_from_slice(&(number as u32).to_be_bytes()),
            _ => frame[..8].copy_from_slice(&number.to_be_bytes()),
        }
    }

    fn get(&self, frame: &[u8]) -> u64 {
        match frame[usize::from(self.at)..][..usize::from(self.bytes)] {
            [a] => a.into(),
            [a, b] => u16::from_be_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_be_bytes([a, b, c, d]).into(),
            [a, b, c, d, e, f, g, h] => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            _ => unreachable!("{} bytes in an edit", self.bytes),
        }
    }
}

impl Finish {
    /// Returns the checksum to send, from the right one.
    #[inline]
    pub fn of(self, right: u16) -> u16 {
        match (self, right) {
            (Self::NeverZero, 0) => 0xffff,
            (Self::Plain | Self::NeverZero, _) => right,
            // Zero and 0xffff are the same number, and zero may mean "no checksum".
            (Self::Wrong, 0x5555 | 0xaaaa) => 1,
            (Self::Wrong, _) => right ^ 0x5555,
        }
    }
}

/// Sums 16-bit numbers; an odd last byte is the upper half of one.
pub(crate) fn words(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u64::from);
    bytes.chunks(2).map(word).sum()
}

/// Folds a sum of less than 2^48 into 16 bits: adds the upper bits to the lower (RFC 1071).
#[inline]
pub fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The key of a sequence of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomKey(pub u64);

/// The constants of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, 2014; the mixing function is Stafford's variant 13).
pub(crate) mod constants {
    pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    pub const MIX: [u64; 2] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];
}
use constants::{GOLDEN, MIX};

impl RandomKey {
    /// Returns the key for the packets of a stream in a worker.
    pub fn of_packets(seed: u64, stream: usize, worker: u32) -> Self {
        Self(hash(Self(hash(Self(seed), stream as u64)), u64::from(worker) + 1))
    }

    /// Returns the key for the flows of a stream: the same in all workers.
    pub fn of_flows(seed: u64, stream: usize) -> Self {
        Self(hash(Self(hash(Self(seed), stream as u64)), 0))
    }
}

/// Returns a random number: output `number` of SplitMix64 with `key` as its start.
#[inline]
pub fn hash(key: RandomKey, number: u64) -> u64 {
    let mut mixed = key.0.wrapping_add(number.wrapping_add(1).wrapping_mul(GOLDEN));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(MIX[0]);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(MIX[1]);
    mixed ^ (mixed >> 31)
}

/// Maps random bits to a number below `count`, by operations that eBPF also has.
#[inline]
pub(crate) fn below(random: u64, count: u64) -> u64 {
    if count.is_power_of_two() {
        random & (count - 1)
    } else if count <= 1 << 32 {
        ((random & 0xffff_ffff) * count) >> 32
    } else {
        random % count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_splitmix64() {
        // The generator's first outputs from seed 1234567, as published with many libraries.
        let outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423];
        for (number, &output) in outputs.iter().enumerate() {
            assert_eq!(hash(RandomKey(1_234_567), number as u64), output);
        }
    }

    #[test]
    fn numbers_are_below_their_count_and_reach_both_ends() {
        for count in [1, 2, 3, 10, 65_536, 64_512, 1 << 32, (1 << 32) + 1, 1 << 63] {
            let numbers = (0..20_000).map(|n| below(hash(RandomKey(1), n), count));
            let (least, most) = numbers.fold((u64::MAX, 0), |(l, m), n| (l.min(n), m.max(n)));
            assert!(most < count, "{most} of {count}");
            assert!(least <= count / 1000 && most >= count - 1 - count / 1000, "{count}");
        }
    }
}
