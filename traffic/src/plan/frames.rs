//! Builds the packets of a plan in memory.

use std::borrow::Borrow;

use super::hash::{Key, below, hash};
use super::{
    Draw, Edit, FieldSource, Finish, Index, Operand, Part, Per, Plan, Sizes, Stream, Sum, Term,
};

/// Makes the packets of one worker, of a plan that is borrowed or shared.
#[derive(Clone, Debug)]
pub struct Frames<P> {
    plan: P,
    worker: u32,
    /// Where in the turns it is.
    turn: usize,
    progress: Vec<StreamProgress>,
    time_ns: fn() -> u64,
}

/// A stream's progress.
#[derive(Clone, Debug)]
struct StreamProgress {
    packets: Key,
    flows: Key,
    /// The number of its next packet.
    number: u64,
    /// Bytes of its shortest packets.
    shortest: u64,
    own: OwnFlows,
}

/// The flows of a stream that belong to a worker. A counter selects the next one: a division takes
/// longer than the rest of a plain packet.
#[derive(Clone, Copy, Debug)]
struct OwnFlows {
    first: u64,
    /// From one to the next.
    step: u64,
    count: u64,
    turn: u64,
}

/// The inputs of one packet's edits and checksums.
struct Moment<'a> {
    worker: u32,
    number: u64,
    flow: u64,
    bytes: u64,
    progress: &'a StreamProgress,
    words: super::Words,
    time_ns: fn() -> u64,
}

impl<P: Borrow<Plan>> Frames<P> {
    /// The packets of worker `worker` of `workers`. The time is asked where a packet is to
    /// carry it.
    ///
    /// # Panics
    /// If there is no such worker, or nothing to be sent.
    pub fn new(plan: P, worker: u32, workers: u32, time_ns: fn() -> u64) -> Self {
        assert!(worker < workers, "worker {worker} of {workers}");
        let Plan { seed, streams, turns } = plan.borrow();
        assert!(!turns.is_empty(), "a plan without turns");
        let progress = (0..streams.len()).map(|stream| StreamProgress {
            packets: Key::of_packets(*seed, stream, worker),
            flows: Key::of_flows(*seed, stream),
            number: 0,
            shortest: streams[stream].sizes.shortest(&streams[stream].template) as u64,
            own: OwnFlows::of(streams[stream].flows, worker, workers),
        });
        let progress = progress.collect();
        Self { plan, worker, turn: 0, progress, time_ns }
    }

    /// Puts the next packet into `room` and says how many bytes it has; `None`, with nothing
    /// changed, if there is no room for it.
    #[inline]
    pub fn next_into(&mut self, room: &mut [u8]) -> Option<usize> {
        let plan = self.plan.borrow();
        let index = usize::from(plan.turns[self.turn]);
        let stream = &plan.streams[index];
        let progress = &mut self.progress[index];
        let number = progress.number;
        let bytes = stream.size(&progress.packets, number);
        let frame = room.get_mut(..bytes)?;
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

    /// Puts into packet `number` of a stream what is its own.
    #[inline(never)]
    fn change(&self, stream: usize, number: u64, flow: u64, frame: &mut [u8]) {
        let progress = &self.progress[stream];
        let stream = &self.plan.borrow().streams[stream];
        let moment = Moment {
            worker: self.worker,
            number,
            flow,
            bytes: frame.len() as u64,
            progress,
            words: stream.words,
            time_ns: self.time_ns,
        };
        moment.write(stream, frame);
    }
}

impl OwnFlows {
    fn of(flows: u32, worker: u32, workers: u32) -> Self {
        let (worker, step, flows) = (u64::from(worker), u64::from(workers), u64::from(flows));
        if worker >= flows {
            // More workers than flows: some share one.
            return Self { first: worker % flows, step, count: 1, turn: 0 };
        }
        Self { first: worker, step, count: (flows - worker).div_ceil(step), turn: 0 }
    }

    /// The flow of the next packet.
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

impl Stream {
    /// Reports whether packets differ in more than their length.
    #[inline]
    fn changes(&self) -> bool {
        !self.edits.is_empty() || !self.sums.is_empty()
    }

    /// How long a packet of it is.
    #[inline]
    fn size(&self, packets: &Key, number: u64) -> usize {
        match &self.sizes {
            Sizes::Fixed => self.template.len(),
            Sizes::InTurn(sizes) => usize::from(sizes[(number % sizes.len() as u64) as usize]),
            Sizes::AtRandom { first, count, draw } => {
                let random = draw.of(packets, number, self.words.packet);
                usize::from(*first) + below(random, u64::from(*count)) as usize
            }
        }
    }
}

impl Draw {
    #[inline]
    fn of(self, key: &Key, number: u64, words: u8) -> u64 {
        let number = number.wrapping_mul(u64::from(words)).wrapping_add(u64::from(self.word));
        hash(*key, number) >> self.shift
    }
}

impl Moment<'_> {
    fn write(&self, stream: &Stream, frame: &mut [u8]) {
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
            Per::Packet => (&self.progress.packets, self.number, self.words.packet),
            Per::Flow => (&self.progress.flows, self.flow, self.words.flow),
        };
        match index.random {
            Some(draw) => below(draw.of(key, number, words), index.count),
            None => number % index.count,
        }
    }

    fn length(&self, headers: u16) -> u64 {
        self.bytes - u64::from(headers)
    }

    fn checksum(&self, sum: &Sum, stream: &Stream, frame: &[u8]) -> u16 {
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

    fn term(&self, term: &Term, stream: &Stream, frame: &[u8]) -> u64 {
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
        // A byte alone is the upper half of its pair.
        let number = if bytes == 1 { number << 8 } else { number };
        let folded = fold((number >> 32) + (number & 0xffff_ffff));
        u64::from(if term.odd { folded.swap_bytes() } else { folded })
    }
}

impl Edit {
    /// Each size by itself: a store where the compiler knows how long it is, else a call.
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
    /// The checksum that is sent for the right one.
    #[inline]
    pub fn of(self, right: u16) -> u16 {
        match (self, right) {
            (Self::Plain, _) => right,
            (Self::NeverZero, 0) => 0xffff,
            (Self::NeverZero, _) => right,
            // Zero and 0xffff are the same number, and zero may mean that there is none.
            (Self::Wrong, 0x5555) => 1,
            (Self::Wrong, 0xaaaa) => 1,
            (Self::Wrong, _) => right ^ 0x5555,
        }
    }
}

/// A sum of less than 2^48 as one of 16 bits: what is above is added below (RFC 1071).
#[inline]
pub fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}
