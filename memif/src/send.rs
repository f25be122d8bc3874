//! Sending: copies packets out of the slots of a transmit ring into the buffers of the shared ring.
#![allow(unsafe_code)]

use std::ops::Range;

use super::end::{BATCH, End};
use super::message::ProtocolError;
use sluicegate_base::ring::{Packet, Ring};

/// Counts of one call to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Slots, including those of packets that were too long.
    pub slots: u32,
    /// Packets handed to the peer.
    pub packets: u32,
    /// Packets with more pieces than the whole ring has entries for.
    pub too_long: u32,
}

impl End {
    /// Copies whole packets from slot `first` on into this end's entries, as many as there is room for.
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
                // The buffers may be smaller than slots, and a packet take more of them.
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

    /// Copies the packets in `slots` slots from `at` on into as many `entries`, up to a packet that lies
    /// in several slots or is longer than the next buffer. Returns how many they were.
    #[inline]
    fn copy_whole(&mut self, ring: &Ring, mut at: u32, slots: u32, entries: Range<u32>) -> u32 {
        let end = entries.end.min(entries.start.saturating_add(slots));
        if slots == 0 || ring.slot(at).continues() {
            return 0;
        }
        let mut next = self.rooms(entries.start, end);
        let mut entry = entries.start;
        while entry < end {
            let rooms = next;
            next = self.rooms(entry + BATCH, end);
            for room in &rooms[..(end - entry).min(BATCH) as usize] {
                if ring.slot(at).continues() {
                    return entry - entries.start;
                }
                // SAFETY: the program has given the slot, one of `slots`, to be sent; nobody writes its
                // bytes while the ring is borrowed.
                let packet = unsafe { ring.bytes_unchecked(at) };
                let fits = packet.len() <= room.descriptor.length as usize;
                let Some(start) = room.start.filter(|_| fits) else {
                    return entry - entries.start;
                };
                // SAFETY: `descriptor.length` bytes from `start` on lie in a region that is mapped, the
                // packet has no more, and the pool that it lies in is other memory.
                unsafe { packet.as_ptr().copy_to_nonoverlapping(start.as_ptr(), packet.len()) };
                self.fill(entry, room.descriptor, packet.len(), true);
                at = ring.next(at);
                entry += 1;
            }
        }
        entry - entries.start
    }

    /// Copies a packet into the buffers of the entries from `used` on, whatever pieces there are at both
    /// ends. Returns how many it took; 0 if there are too few.
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
