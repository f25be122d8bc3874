//! Copies packets from a transmit ring's slots into shared buffers, and points the slots of a receive ring at
//! shared buffers (SHARED slots). A program that looks at a packet gets a copy, which the peer cannot access.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;

use super::end::{AHEAD, RingEnd};
use super::message::ProtocolError;
use super::ring::{Buffer, Descriptor, NEXT, OwnBuffers};
use sluicegate_base::ring::{Meta, Packet, Ring, TimestampSource, now_ns};

/// Counts of one call to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Slots, including those of packets that were too long.
    pub slots: u32,
    /// Packets passed to the peer.
    pub packets: u32,
    /// Packets that need more entries than the whole ring has.
    pub too_long: u32,
}

impl RingEnd {
    /// Copies whole packets from slot `first` on into this end's entries, as far as there is room.
    #[inline]
    pub fn send(&mut self, ring: &Ring, first: u32) -> Result<SendCounts, ProtocolError> {
        let mut sent = SendCounts::default();
        let wanted = ring.whole_slots(first, u32::MAX);
        if wanted == 0 {
            return Ok(sent);
        }
        let mut room = self.claim(wanted)?;
        let mut used = 0;
        loop {
            let at = ring.after(first, sent.slots);
            let whole = self.copy_whole(ring, at, wanted - sent.slots, used..room);
            used += whole;
            sent.slots += whole;
            sent.packets += whole;
            let Some(packet) = ring.pending_tx(ring.after(first, sent.slots)).next() else { break };
            let pieces = self.copy_in_pieces(&packet, used, room)?;
            if pieces == 0 {
                // The buffers may be smaller than slots, so that a packet takes more of them.
                let all = self.claim(u32::MAX)?;
                if all > room {
                    room = all;
                    continue;
                }
            }
            match pieces {
                0 if room == self.entries() && used == 0 => {
                    return Ok(SendCounts { slots: packet.slots(), packets: 0, too_long: 1 });
                }
                0 => break,
                _ => used += pieces,
            }
            sent.slots += packet.slots();
            sent.packets += 1;
        }
        self.publish(used);
        Ok(sent)
    }

    /// Copies the packets in `slots` slots from `at` on into as many `entries`. Stops at a packet that takes
    /// several slots or is longer than the next buffer. Returns the number copied.
    #[inline]
    fn copy_whole(&mut self, ring: &Ring, at: u32, slots: u32, entries: Range<u32>) -> u32 {
        let end = entries.end.min(entries.start.saturating_add(slots));
        match self.own() {
            _ if slots == 0 || ring.slot(at).continues() => 0,
            Some(own) => self.copy_to_own(own, ring, at, entries.start..end),
            None => self.copy_to_peers(ring, at, entries.start..end),
        }
    }

    /// [`copy_whole`](Self::copy_whole) into a client's own buffers, whose places are known.
    #[inline]
    fn copy_to_own(
        &mut self,
        own: OwnBuffers,
        ring: &Ring,
        mut at: u32,
        entries: Range<u32>,
    ) -> u32 {
        for entry in entries.clone() {
            if !self.copy_packet(ring, at, entry, &own.at(self.place(entry))) {
                return entry - entries.start;
            }
            at = ring.next(at);
        }
        entries.end - entries.start
    }

    /// [`copy_whole`](Self::copy_whole) into a peer's buffers, which its descriptors locate.
    #[inline]
    fn copy_to_peers(&mut self, ring: &Ring, mut at: u32, entries: Range<u32>) -> u32 {
        let mut rooms = [[Buffer::default(); AHEAD as usize]; 2];
        let [mut now, mut next] = rooms.each_mut();
        self.find_rooms(next, entries.start, entries.end);
        let mut entry = entries.start;
        while entry < entries.end {
            std::mem::swap(&mut now, &mut next);
            self.find_rooms(next, entry + AHEAD, entries.end);
            for room in &now[..(entries.end - entry).min(AHEAD) as usize] {
                if !self.copy_packet(ring, at, entry, room) {
                    return entry - entries.start;
                }
                at = ring.next(at);
                entry += 1;
            }
        }
        entry - entries.start
    }

    /// Copies a packet of one slot into the room of an entry. False if it takes several slots or does not fit.
    #[inline(always)]
    fn copy_packet(&mut self, ring: &Ring, at: u32, entry: u32, room: &Buffer) -> bool {
        if ring.slot(at).continues() {
            return false;
        }
        // SAFETY: the program has submitted the slot; nobody writes its bytes while the ring is borrowed.
        let packet = unsafe { ring.bytes_unchecked(at) };
        let fits = packet.len() <= room.descriptor.length as usize;
        let Some(start) = room.start.filter(|_| fits) else { return false };
        // SAFETY: `descriptor.length` bytes from `start` on lie in a region that is mapped, the packet has no
        // more, and the pool that it lies in is other memory.
        unsafe { packet.as_ptr().copy_to_nonoverlapping(start.as_ptr(), packet.len()) };
        self.fill(entry, room.descriptor, packet.len(), true);
        true
    }

    /// Copies a packet of several pieces into the buffers of the entries from `used` on. Returns the number
    /// of entries used; 0 if there are too few.
    #[inline(never)]
    fn copy_in_pieces(
        &mut self,
        packet: &Packet<'_>,
        used: u32,
        room: u32,
    ) -> Result<u32, ProtocolError> {
        let mut segments = packet.segments();
        let mut segment = segments.next().unwrap_or_default();
        for pieces in 0..room - used {
            let buffer = self.room(used + pieces);
            let length = buffer.descriptor.length as usize;
            let Some(start) = buffer.start.filter(|_| length > 0) else {
                return Err(self.misplaced(buffer.descriptor));
            };
            let mut filled = 0;
            let ends = loop {
                let bytes = segment.len().min(length - filled);
                let (now, later) = segment.split_at(bytes);
                // SAFETY: `length` bytes from `start` on lie in a region that is mapped, `filled` and
                // `bytes` together are no more, and the pool that the packet lies in is other memory.
                unsafe { now.as_ptr().copy_to_nonoverlapping(start.as_ptr().add(filled), bytes) };
                filled += bytes;
                segment = later;
                if !segment.is_empty() {
                    break false;
                }
                match segments.next() {
                    Some(next) => segment = next,
                    None => break true,
                }
            };
            self.fill(used + pieces, buffer.descriptor, filled, ends);
            if ends {
                return Ok(pieces + 1);
            }
        }
        Ok(0)
    }
}

/// The receiving end of a ring.
#[derive(Debug)]
pub struct RxEnd {
    /// This end of the ring.
    pub end: RingEnd,
    /// Slots after the receive ring's tail that hold the beginning of a packet.
    partial: u32,
    /// Entries that the next call returns to the peer, because slots may point at their buffers until then.
    pub taken: u32,
}

/// Counts of one call to receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Pieces taken from the peer.
    pub pieces: u32,
    /// Slots passed to the program.
    pub slots: u32,
    /// Packets in them.
    pub packets: u32,
}

impl RxEnd {
    /// Starts to receive: a client offers its buffers.
    pub fn new(mut end: RingEnd) -> Self {
        end.offer();
        Self { end, partial: 0, taken: 0 }
    }

    /// Returns how many of `wanted` pieces of packets can be received.
    #[inline]
    pub fn arrived(&mut self, wanted: u32) -> u32 {
        self.end.peek(self.taken + wanted) - self.taken
    }

    /// Returns the entries of received pieces to the peer. Packets that the program still has are copied, and
    /// so is the beginning of the next.
    #[inline]
    pub fn return_entries(&mut self, ring: &mut Ring) {
        if self.taken > 0 {
            // SAFETY: the program owns the available slots, and `share` has filled the partial ones.
            unsafe { ring.copy_in_first(ring.available() + self.partial) };
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        (0..self.taken).for_each(|i| self.end.empty(i));
        self.end.submit(std::mem::take(&mut self.taken));
    }

    /// Receives up to `max` pieces of packets, as far as the ring has room, and returns the entries of the
    /// last call. Takes at most an eighth of the entries, so that the peer has room for more packets. A piece
    /// longer than a slot's buffer continues in the next slots. Before `self` is dropped, call
    /// [`return_entries`](Self::return_entries), or let no program look at the ring any more.
    ///
    /// # Errors
    /// The first piece is invalid. A later invalid piece is left to the next call.
    #[inline]
    pub fn receive(&mut self, ring: &mut Ring, max: u32) -> Result<Received, ProtocolError> {
        self.return_entries(ring);
        let room = ring.backend_slots();
        let most = (self.end.entries() / 8).max(1);
        let pieces = self.end.claim((room - self.partial).min(max).min(most))?;
        let mut received = Received::default();
        if pieces == 0 {
            return Ok(received);
        }
        let now_ns = now_ns();
        while received.pieces < pieces {
            self.end.prefetch_piece(received.pieces + AHEAD);
            let piece = self.end.piece(received.pieces);
            let (start, slots) = match self.check(ring, &piece) {
                Ok(it) if received.slots + self.partial + it.1 <= room => it,
                Err(breach) if received.pieces == 0 => return Err(breach),
                _ => break,
            };
            self.share(ring, received.slots, (start, piece.descriptor), now_ns);
            self.partial += slots;
            received.pieces += 1;
            if piece.descriptor.flags & NEXT == 0 {
                received.slots += std::mem::take(&mut self.partial);
                received.packets += 1;
            }
        }
        self.taken = received.pieces;
        if received.slots > 0 {
            ring.publish(ring.after(ring.tail(), received.slots));
        }
        Ok(received)
    }

    /// Returns the address of a piece, and the number of slots that it takes.
    ///
    /// # Errors
    /// The piece is in no region, or its packet takes more slots than the ring has.
    #[inline(always)]
    fn check(&self, ring: &Ring, piece: &Buffer) -> Result<(NonNull<u8>, u32), ProtocolError> {
        let Descriptor { flags, length, .. } = piece.descriptor;
        let Some(start) = piece.start else {
            return Err(self.end.misplaced(piece.descriptor));
        };
        let slots = match slot_bytes(ring) {
            // The usual case, without a division.
            bytes if length <= bytes => 1,
            bytes => length.div_ceil(bytes),
        };
        match self.partial + slots + u32::from(flags & NEXT != 0) < ring.num_slots() {
            true => Ok((start, slots)),
            false => Err(ProtocolError("a packet of more pieces than there are slots".into())),
        }
    }

    /// Points the slots after the filled ones at a piece: `whole` slots of whole packets, and the beginning of
    /// this packet. The caller has checked the room.
    #[inline(always)]
    fn share(&self, ring: &mut Ring, whole: u32, piece: (NonNull<u8>, Descriptor), now_ns: u64) {
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
        let mut shared = 0;
        loop {
            let bytes = (length - shared).min(slot_bytes(ring));
            let ends = shared + bytes == length;
            let continues = !ends || flags & NEXT != 0;
            // SAFETY: `length` bytes from `start` on lie in a region that is mapped as long as this end is,
            // and `shared` and `bytes` together are no more. `return_entries` copies what the program has not
            // given back. Slots after the tail are published only after another call has filled them.
            unsafe { ring.share(at, start.add(shared as usize), bytes as u16, continues) };
            *ring.meta_mut(at) = meta;
            if ends {
                break;
            }
            shared += bytes;
            at = ring.next(at);
            meta = Meta::default();
        }
    }
}

/// The peer learns that the last packets were received.
impl Drop for RxEnd {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Returns the maximum bytes of a packet in a slot.
#[inline]
fn slot_bytes(ring: &Ring) -> u32 {
    ring.buffer_bytes().min(u16::MAX.into())
}
