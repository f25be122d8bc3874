//! Receiving: copies packets out of the shared buffers into the slots of a receive ring. The program
//! sees only the copies, which the peer cannot reach.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::end::{BATCH, Buffer, End};
use super::message::ProtocolError;
use super::ring::{Descriptor, NEXT};
use sluicegate_base::ring::{Meta, Ring, TimestampSource, now_ns};

/// The receiving end of a ring.
#[derive(Debug)]
pub struct Receiver {
    /// This end of the ring.
    pub end: End,
    /// Slots behind the receive ring's tail that hold the beginning of a packet.
    partial: u32,
}

/// Counts of one call to receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Pieces that were taken from the peer.
    pub pieces: u32,
    /// Slots that are handed to the program.
    pub slots: u32,
    /// Packets in them.
    pub packets: u32,
}

impl Receiver {
    /// Starts to receive: a client offers its buffers.
    pub fn new(mut end: End) -> Self {
        end.offer();
        Self { end, partial: 0 }
    }

    /// Receives up to `max` pieces of packets, as many as the ring has room for. A piece that is longer
    /// than a slot's buffer goes on in the next slots.
    ///
    /// # Errors
    /// The first piece is invalid. An invalid one behind it is left to the next call.
    #[inline]
    pub fn receive(&mut self, ring: &mut Ring, max: u32) -> Result<Received, ProtocolError> {
        let room = ring.room();
        let pieces = self.end.claim((room - self.partial).min(max))?;
        let mut received = Received::default();
        if pieces == 0 {
            return Ok(received);
        }
        let now_ns = now_ns();
        let mut next = self.end.pieces(0, pieces);
        'batches: while received.pieces < pieces {
            let batch = next;
            next = self.end.pieces(received.pieces + BATCH, pieces);
            for piece in &batch[..(pieces - received.pieces).min(BATCH) as usize] {
                let (start, slots) = match self.check(ring, piece) {
                    Ok(it) if received.slots + self.partial + it.1 <= room => it,
                    Err(breach) if received.pieces == 0 => return Err(breach),
                    _ => break 'batches,
                };
                self.copy(ring, received.slots, (start, piece.descriptor), now_ns);
                self.end.empty(received.pieces);
                self.partial += slots;
                received.pieces += 1;
                if piece.descriptor.flags & NEXT == 0 {
                    received.slots += std::mem::take(&mut self.partial);
                    received.packets += 1;
                }
            }
        }
        self.end.hand_over(received.pieces);
        if received.slots > 0 {
            ring.publish(ring.after(ring.tail(), received.slots));
        }
        Ok(received)
    }

    /// Where a piece lies, and how many slots it takes.
    ///
    /// # Errors
    /// The piece lies nowhere, or its packet takes more slots than the ring can hold.
    #[inline]
    fn check(&self, ring: &Ring, piece: &Buffer) -> Result<(NonNull<u8>, u32), ProtocolError> {
        let Descriptor { flags, length, .. } = piece.descriptor;
        let Some(start) = piece.start else {
            return Err(self.end.misplaced(piece.descriptor));
        };
        let slots = match slot_bytes(ring) {
            // Nearly all: without a division.
            bytes if length <= bytes => 1,
            bytes => length.div_ceil(bytes),
        };
        match self.partial + slots + u32::from(flags & NEXT != 0) < ring.num_slots() {
            true => Ok((start, slots)),
            false => Err(ProtocolError("a packet of more pieces than there are slots".into())),
        }
    }

    /// Copies a piece into the slots behind those that are filled: `whole` slots of whole packets, and
    /// the beginning of this one. There is room.
    #[inline]
    fn copy(&self, ring: &mut Ring, whole: u32, piece: (NonNull<u8>, Descriptor), now_ns: u64) {
        let (start, Descriptor { flags, length, .. }) = piece;
        let first = ring.after(ring.tail(), whole);
        let mut at = ring.after(first, self.partial);
        let mut meta = Meta::default();
        if self.partial == 0 {
            meta.timestamp_ns = now_ns;
            meta.timestamp_source = TimestampSource::Software;
            meta.wire_bytes = length;
        } else {
            ring.meta_mut(first).wire_bytes += length;
        }
        let mut copied = 0;
        loop {
            let bytes = (length - copied).min(slot_bytes(ring));
            let ends = copied + bytes == length;
            ring.fill(at, bytes as u16, !ends || flags & NEXT != 0, meta);
            // SAFETY: the slot is behind the tail, so it and its buffer are the backend's; `fill` has
            // checked that it has a buffer of at least `bytes` bytes.
            let buffer = unsafe { ring.buffer_unchecked(at) }.as_mut_ptr();
            // SAFETY: `length` bytes from `start` on lie in a region that is mapped, `copied` and `bytes`
            // together are no more, and the buffer, of a pool of our own, is other memory. The peer may
            // store there meanwhile: no reference is made, and any bytes are a packet.
            unsafe {
                let from = start.as_ptr().add(copied as usize);
                from.copy_to_nonoverlapping(buffer, bytes as usize);
            }
            if ends {
                break;
            }
            copied += bytes;
            at = ring.next(at);
            meta = Meta::default();
        }
    }
}

/// The most bytes of a packet that a slot holds.
#[inline]
fn slot_bytes(ring: &Ring) -> u32 {
    ring.buffer_bytes().min(u16::MAX.into())
}
