//! The client's side of a ring: each entry has a buffer of the pool, which a slot takes in exchange
//! for its own. No byte is copied.

use super::doorbell::Doorbell;
use super::handshake::{BUFFERS, End};
use super::intake::{Intake, Received};
use super::message::Breach;
use super::ring::{Descriptor, Memory, NEXT, Sent};
use crate::memory::Pool;
use crate::ring::cursor::Producing;
use crate::ring::{AtomicU16, Ring};

/// The client's side of a ring in either direction.
#[derive(Debug)]
pub(crate) struct ClientRing {
    memory: Memory,
    bell: Doorbell,
    cursor: Producing<AtomicU16>,
    /// By its place in the ring.
    entries: Vec<Entry>,
    /// Buffers that a shorter ring leaves over.
    spare: Vec<u32>,
    /// Where buffer 0 begins in its region, and bytes of each.
    buffers_at: u32,
    buffer_bytes: u32,
    intake: Intake,
}

/// What an entry has.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// It alone holds this buffer.
    buffer: u32,
    /// The last piece of a packet.
    ends: bool,
}

impl ClientRing {
    /// Of a new ring, with as many buffers as it has entries at least; the caller holds them no
    /// longer.
    pub(crate) fn new(end: End, mut buffers: Vec<u32>, pool: &Pool) -> Self {
        let End { memory, bell, .. } = end;
        let spare = buffers.split_off(memory.entries() as usize);
        let entries = buffers.into_iter().map(|buffer| Entry { buffer, ends: true }).collect();
        let cursor = Producing::new(memory.entries(), 0);
        let intake = Intake::default();
        // Who shares a pool has seen that the buffers are within 32 bits.
        let (buffers_at, buffer_bytes) = (pool.buffers_at() as u32, pool.buffer_bytes());
        Self { memory, bell, cursor, entries, spare, buffers_at, buffer_bytes, intake }
    }

    /// Takes the buffers back: the caller holds them from now on.
    pub(crate) fn into_buffers(self) -> Vec<u32> {
        self.entries.into_iter().map(|entry| entry.buffer).chain(self.spare).collect()
    }

    /// The event file that wakes who receives from the ring.
    pub(crate) fn bell(&self) -> (&Doorbell, &Memory) {
        (&self.bell, &self.memory)
    }

    /// Where a buffer begins in its region.
    #[inline]
    fn offset(&self, buffer: u32) -> u32 {
        self.buffers_at + buffer * self.buffer_bytes
    }

    /// The other side's index makes no sense.
    #[inline]
    fn check_index(&self) -> Result<(), Breach> {
        match self.cursor.faults {
            0 => Ok(()),
            _ => Err(Breach("a ring's tail that cannot be".into())),
        }
    }

    /// Sends whole packets from slot `first` on, as many as there is room for.
    #[inline]
    pub(crate) fn send(&mut self, ring: &mut Ring, first: u32) -> Result<Sent, Breach> {
        let wanted = ring.whole_slots(first, self.memory.entries());
        if wanted == 0 {
            return Ok(ring
                .to_send(first)
                .next()
                .map_or(Sent::default(), |it| Sent::too_long(&it)));
        }
        let slots = match self.cursor.reserve(self.memory.tail(), wanted) {
            room if room < wanted => ring.whole_slots(first, room),
            _ => wanted,
        };
        self.check_index()?;
        let (mut at, mut packets) = (first, 0);
        for i in 0..slots {
            let index = self.cursor.index(i);
            let slot = *ring.slot(at);
            let ends = !slot.continues();
            self.memory.write(
                index,
                Descriptor {
                    flags: if ends { 0 } else { NEXT },
                    region: BUFFERS,
                    length: slot.bytes().into(),
                    offset: self.offset(slot.buffer()) + u32::from(slot.offset()),
                    metadata: 0,
                },
            );
            // The server is done with what the entry had: there is room for it.
            let entry = &mut self.entries[self.memory.place(index)];
            entry.buffer = ring.fill_at(at, entry.buffer, 0, 0, false);
            entry.ends = ends;
            packets += u32::from(ends);
            at = ring.next(at);
        }
        if slots > 0 {
            self.cursor.submit(self.memory.head(), slots);
            self.bell.ring(&self.memory);
        }
        Ok(Sent { slots, packets, too_long: 0 })
    }

    /// Packets that were sent and that the server has not said it has taken.
    pub(crate) fn in_flight(&mut self) -> u64 {
        let waiting = self.cursor.waiting(self.memory.tail());
        let entry = |back: u32| self.memory.place(self.cursor.index(back.wrapping_neg()));
        (1..=waiting).filter(|&back| self.entries[entry(back)].ends).count() as u64
    }

    /// Offers all entries' buffers to the server, for the first time.
    pub(crate) fn offer(&mut self) {
        for i in 0..self.memory.entries() {
            self.offer_again(i);
        }
        self.cursor.submit(self.memory.head(), self.memory.entries());
    }

    /// Describes the buffer of the entry `i` steps behind the last one offered.
    #[inline]
    fn offer_again(&mut self, i: u32) {
        let index = self.cursor.index(i);
        let buffer = self.entries[self.memory.place(index)].buffer;
        let (offset, length) = (self.offset(buffer), self.buffer_bytes);
        let empty = Descriptor { flags: 0, region: BUFFERS, length, offset, metadata: 0 };
        self.memory.write(index, empty);
    }

    /// How many pieces of packets have come; looks only where fewer are known than wanted.
    #[inline]
    pub(crate) fn arrived(&mut self, wanted: u32) -> u32 {
        self.cursor.reserve(self.memory.tail(), wanted)
    }

    /// Receives up to `most` pieces of packets, as many as the ring has room for.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        ring: &mut Ring,
        most: u32,
        now_ns: impl FnOnce() -> u64,
    ) -> Result<Received, Breach> {
        let mut pieces = self.arrived(self.intake.room(ring).min(most));
        self.check_index()?;
        if pieces == 0 {
            return self.intake.hand_over(ring, 0);
        }
        let now_ns = now_ns();
        let mut at = self.intake.at(ring);
        for i in 0..pieces {
            let index = self.cursor.index(i);
            let place = self.memory.place(index);
            let Descriptor { flags, length, .. } = self.memory.read(index);
            if length > self.buffer_bytes.min(u16::MAX.into()) {
                if i == 0 {
                    let room = self.buffer_bytes;
                    return Err(Breach(format!("{length} bytes in a buffer of {room}")));
                }
                // What came before it counts; the next call begins with it.
                pieces = i;
                break;
            }
            let continues = flags & NEXT != 0;
            let buffer = self.entries[place].buffer;
            self.entries[place].buffer = ring.fill_at(at, buffer, 0, length as u16, continues);
            self.offer_again(i);
            self.intake.filled(ring, at, length, continues, now_ns);
            at = ring.next(at);
        }
        self.cursor.submit(self.memory.head(), pieces);
        self.intake.hand_over(ring, pieces)
    }
}
