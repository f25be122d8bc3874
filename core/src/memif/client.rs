//! The client's side of a ring: each entry has a buffer of the pool, which a slot takes in exchange
//! for its own. No byte is copied.

use super::doorbell::Doorbell;
use super::handshake::{BUFFERS, End};
use super::intake::{Intake, Received};
use super::message::Breach;
use super::ring::{Descriptor, Memory, NEXT, Sent};
use crate::memory::Pool;
use crate::ring::cursor::Cursor;
use crate::ring::{AtomicU16, Ring};

/// The client's side of a ring in either direction.
#[derive(Debug)]
pub(crate) struct ClientRing {
    memory: Memory,
    bell: Doorbell,
    cursor: Cursor<AtomicU16>,
    /// By its place in the ring.
    entries: Vec<Entry>,
    /// Buffers that a shorter ring leaves over.
    spare: Vec<u32>,
    buffers: Buffers,
    intake: Intake,
}

/// Where the pool's buffers are.
#[derive(Clone, Copy, Debug)]
struct Buffers {
    /// Where buffer 0 begins in their region.
    start: u32,
    /// Bytes of each.
    bytes: u32,
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
        let cursor = Cursor::producing(memory.entries(), 0);
        let intake = Intake::default();
        // Who shares a pool has seen that the buffers are within 32 bits.
        let buffers = Buffers { start: pool.buffers_at() as u32, bytes: pool.buffer_bytes() };
        Self { memory, bell, cursor, entries, spare, buffers, intake }
    }

    /// Takes the buffers back: the caller holds them from now on.
    pub(crate) fn into_buffers(self) -> Vec<u32> {
        self.entries.into_iter().map(|entry| entry.buffer).chain(self.spare).collect()
    }

    /// The event file that wakes who receives from the ring.
    pub(crate) fn bell(&self) -> (&Doorbell, &Memory) {
        (&self.bell, &self.memory)
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
        let slots = match self.cursor.look(self.memory.tail(), wanted) {
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
                    offset: self.buffers.offset(slot.buffer()) + u32::from(slot.offset()),
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
            self.cursor.hand_over(self.memory.head(), slots);
            self.bell.ring(&self.memory);
        }
        Ok(Sent { slots, packets, too_long: 0 })
    }

    /// Packets that were sent and that the server has not said it has taken.
    pub(crate) fn in_flight(&mut self) -> u64 {
        let waiting = self.cursor.others(self.memory.tail());
        let entry = |back: u32| self.memory.place(self.cursor.index(back.wrapping_neg()));
        (1..=waiting).filter(|&back| self.entries[entry(back)].ends).count() as u64
    }

    /// Offers all entries' buffers to the server, for the first time.
    pub(crate) fn offer(&mut self) {
        for i in 0..self.memory.entries() {
            let index = self.cursor.index(i);
            let entry = self.entries[self.memory.place(index)];
            self.memory.write(index, self.buffers.empty(entry.buffer));
        }
        self.cursor.hand_over(self.memory.head(), self.memory.entries());
    }

    /// How many pieces of packets have come; looks only where fewer are known than wanted.
    #[inline]
    pub(crate) fn arrived(&mut self, wanted: u32) -> u32 {
        self.cursor.look(self.memory.tail(), wanted)
    }

    /// Receives up to `most` pieces of packets, as many as the ring has room for.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        ring: &mut Ring,
        most: u32,
        now_ns: impl FnOnce() -> u64,
    ) -> Result<Received, Breach> {
        let pieces = self.arrived(self.intake.room(ring).min(most));
        self.check_index()?;
        let room = self.buffers.bytes.min(u16::MAX.into());
        let taken = self.intake.fill(ring, pieces, now_ns, |ring, at, i| {
            let index = self.cursor.index(i);
            let Descriptor { flags, length, .. } = self.memory.read(index);
            if length > room {
                return Err(too_long(length, room));
            }
            let (bytes, continues) = (length as u16, flags & NEXT != 0);
            let entry = &mut self.entries[self.memory.place(index)];
            entry.buffer = ring.fill_at(at, entry.buffer, 0, bytes, continues);
            self.memory.write(index, self.buffers.empty(entry.buffer));
            Ok((bytes, continues))
        })?;
        if taken > 0 {
            self.cursor.hand_over(self.memory.head(), taken);
        }
        self.intake.hand_over(ring, taken)
    }
}

impl Buffers {
    /// Where a buffer begins in its region.
    #[inline]
    fn offset(&self, buffer: u32) -> u32 {
        self.start + buffer * self.bytes
    }

    /// Says that a buffer is there to be filled.
    #[inline]
    fn empty(&self, buffer: u32) -> Descriptor {
        let offset = self.offset(buffer);
        Descriptor { flags: 0, region: BUFFERS, length: self.bytes, offset, metadata: 0 }
    }
}

#[cold]
fn too_long(length: u32, room: u32) -> Breach {
    Breach(format!("{length} bytes in a buffer of {room}"))
}
