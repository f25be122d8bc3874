//! Keeps a file's packets in memory, if it is replayed several times and is small enough. Each
//! worker keeps its packets while it sends them for the first time.

use std::path::Path;

use sluicegate::port::PortName;
use sluicegate::ring::{Meta, Packet};

use super::position::Position;
use super::{Hand, ReplayOptions};

/// Bytes and packets allocated at once: a full chunk never moves.
const CHUNK_BYTES: usize = 1 << 20;
const CHUNK_PACKETS: usize = 1 << 13;

/// One worker's packets so far, in the first round.
#[derive(Debug)]
pub(super) struct Keeping {
    chunks: Vec<Chunk>,
    /// Memory that all workers' packets take; each worker counts it by itself.
    taken: usize,
    most: usize,
}

/// A chunk of consecutive packets.
#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    entries: Vec<KeptPacket>,
}

/// A packet's offset in its chunk, and its metadata.
#[derive(Debug)]
struct KeptPacket {
    at: usize,
    bytes: u32,
    /// It cannot be sent, and is only counted.
    other_link_type: bool,
    position: Position,
    meta: Meta,
}

impl Keeping {
    /// Returns `None` if the file is sent once or is too large.
    pub(super) fn of(file: &PortName, options: &ReplayOptions) -> Option<Self> {
        let on_disk = Path::new(file.name()).metadata().map_or(0, |metadata| metadata.len());
        let keeps = options.rounds != 1 && on_disk <= options.keep_bytes as u64;
        keeps.then(|| Self { chunks: Vec::new(), taken: 0, most: options.keep_bytes })
    }

    /// Counts a packet, and keeps it if it is this worker's `own`; only the entry of a packet that
    /// does not fit. Returns false when memory runs out, for all workers at the same packet.
    #[inline]
    pub(super) fn take(
        &mut self,
        packet: &Packet<'_>,
        fits: bool,
        own: bool,
        position: Position,
    ) -> bool {
        let bytes = if fits { packet.captured_bytes() } else { 0 };
        self.taken += bytes + size_of::<KeptPacket>();
        if self.taken > self.most {
            return false;
        }
        if own {
            self.keep(packet, fits.then_some(bytes), position);
        }
        true
    }

    #[inline]
    fn keep(&mut self, packet: &Packet<'_>, bytes: Option<usize>, position: Position) {
        let (other_link_type, bytes) = (bytes.is_none(), bytes.unwrap_or(0));
        let chunk = match self.chunks.last_mut() {
            Some(chunk) if chunk.has_room(bytes) => chunk,
            _ => self.chunks.push_mut(Chunk::of(bytes)),
        };
        let at = chunk.bytes.len();
        if !other_link_type {
            packet.segments().for_each(|segment| chunk.bytes.extend_from_slice(segment));
        }
        let mut meta = *packet.meta();
        meta.interface = 0;
        chunk.entries.push(KeptPacket { at, bytes: bytes as u32, other_link_type, position, meta });
    }
}

impl Chunk {
    fn of(bytes: usize) -> Self {
        let bytes = Vec::with_capacity(bytes.max(CHUNK_BYTES));
        Self { bytes, entries: Vec::with_capacity(CHUNK_PACKETS) }
    }

    #[inline]
    fn has_room(&self, bytes: usize) -> bool {
        self.entries.len() < CHUNK_PACKETS && self.bytes.capacity() - self.bytes.len() >= bytes
    }
}

/// One worker's packets of a file, from the second round on.
#[derive(Debug)]
pub(super) struct Kept {
    chunks: Vec<Chunk>,
    /// The next packet: chunk and index in it.
    next: (usize, usize),
    /// The length of a round in the file, other workers' packets included.
    round: Position,
    /// Where this round began.
    base: Position,
    /// Rounds after this one; `None` means endless.
    rounds: Option<u64>,
    /// Packet limit over all rounds and workers.
    most: Option<u64>,
    finished: bool,
}

impl Kept {
    /// Replays the kept packets of a round from `base` on, with `rounds` more rounds after the
    /// first.
    pub(super) fn new(
        keeping: Keeping,
        round: Position,
        base: Position,
        rounds: Option<u64>,
        most: Option<u64>,
    ) -> Self {
        let finished = keeping.chunks.is_empty();
        Self { chunks: keeping.chunks, next: (0, 0), round, base, rounds, most, finished }
    }

    /// Gives packets to a hand until it takes no more or the round ends.
    pub(super) fn give(&mut self, hand: &mut Hand<'_, '_>) {
        if self.finished {
            return;
        }
        let (mut at, mut next) = self.next;
        while let Some(chunk) = self.chunks.get(at) {
            for entry in &chunk.entries[next..] {
                let position = self.base.plus(entry.position);
                if self.most.is_some_and(|most| position.packets >= most) {
                    self.finished = true;
                    return;
                }
                if entry.other_link_type {
                    hand.left_out.other_link_type += 1;
                } else {
                    let bytes = &chunk.bytes[entry.at..entry.at + entry.bytes as usize];
                    if !hand.take(&Packet::new(&entry.meta, bytes), position) {
                        self.next = (at, next);
                        return;
                    }
                }
                next += 1;
            }
            (at, next) = (at + 1, 0);
        }
        self.next = (0, 0);
        self.finished = self.rounds == Some(0);
        self.rounds = self.rounds.map(|rounds| rounds.saturating_sub(1));
        self.base = self.base.after_round(self.round);
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }
}
