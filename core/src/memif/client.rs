//! What a client does at its end of a ring: each entry has a buffer of the pool, which a slot takes in
//! exchange for its own. No byte is copied.

use super::end::End;
use super::handshake::BUFFERS;
use super::intake::{Intake, Received};
use super::message::Breach;
use super::ring::{Descriptor, NEXT, Sent};
use crate::memory::Pool;
use crate::ring::Ring;

/// A client's ring in either direction.
#[derive(Debug)]
pub(crate) struct ClientRing {
    pub(crate) end: End,
    /// By place: the buffer that the entry alone holds.
    held: Vec<u32>,
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

impl ClientRing {
    /// Of a new ring, with as many buffers as it has entries at least; the caller holds them no
    /// longer.
    pub(crate) fn new(end: End, mut held: Vec<u32>, pool: &Pool) -> Self {
        let spare = held.split_off(end.entries() as usize);
        // Who shares a pool has seen that the buffers are within 32 bits.
        let buffers = Buffers { start: pool.buffers_at() as u32, bytes: pool.buffer_bytes() };
        Self { end, held, spare, buffers, intake: Intake::default() }
    }

    /// Takes the buffers back: the caller holds them from now on.
    pub(crate) fn into_buffers(self) -> Vec<u32> {
        self.held.into_iter().chain(self.spare).collect()
    }

    /// Sends whole packets from slot `first` on, as many as there is room for.
    #[inline]
    pub(crate) fn send(&mut self, ring: &mut Ring, first: u32) -> Result<Sent, Breach> {
        let wanted = ring.whole_slots(first, self.end.entries());
        if wanted == 0 {
            return Ok(ring
                .to_send(first)
                .next()
                .map_or(Sent::default(), |it| Sent::too_long(&it)));
        }
        let slots = match self.end.claim(wanted)? {
            room if room < wanted => ring.whole_slots(first, room),
            _ => wanted,
        };
        let (mut at, mut packets) = (first, 0);
        for i in 0..slots {
            let slot = *ring.slot(at);
            let ends = !slot.continues();
            let full = Descriptor {
                flags: if ends { 0 } else { NEXT },
                region: BUFFERS,
                length: slot.bytes().into(),
                offset: self.buffers.offset(slot.buffer()) + u32::from(slot.offset()),
                metadata: 0,
            };
            self.end.write(i, full);
            self.end.note_end(i, ends);
            // The server is done with what the entry had: there is room for it.
            let held = &mut self.held[self.end.place(i)];
            *held = ring.fill_at(at, *held, 0, 0, false);
            packets += u32::from(ends);
            at = ring.next(at);
        }
        self.end.send(slots);
        Ok(Sent { slots, packets, too_long: 0 })
    }

    /// Offers all entries' buffers to the server, for the first time.
    pub(crate) fn offer(&mut self) {
        for i in 0..self.end.entries() {
            let empty = self.buffers.empty(self.held[self.end.place(i)]);
            self.end.write(i, empty);
        }
        self.end.hand_over(self.end.entries());
    }

    /// How many pieces of packets have come; looks only where fewer are known than wanted.
    #[inline]
    pub(crate) fn arrived(&mut self, wanted: u32) -> u32 {
        self.end.look(wanted)
    }

    /// Receives up to `most` pieces of packets, as many as the ring has room for.
    #[inline]
    pub(crate) fn receive(&mut self, ring: &mut Ring, most: u32) -> Result<Received, Breach> {
        let pieces = self.end.claim(self.intake.room(ring).min(most))?;
        let room = self.buffers.bytes.min(u16::MAX.into());
        let taken = self.intake.fill(ring, pieces, |ring, at, i| {
            let Descriptor { flags, length, .. } = self.end.read(i);
            if length > room {
                return Err(too_long(length, room));
            }
            let (bytes, continues) = (length as u16, flags & NEXT != 0);
            let held = &mut self.held[self.end.place(i)];
            *held = ring.fill_at(at, *held, 0, bytes, continues);
            self.end.write(i, self.buffers.empty(*held));
            Ok((bytes, continues))
        })?;
        self.end.hand_over(taken);
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
