//! What a server does at its end of a ring: packets lie in the client's memory, are looked at there or
//! copied from there, and are copied there.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;

use super::end::End;
use super::intake::{Intake, Received};
use super::message::Breach;
use super::ring::{Descriptor, NEXT, Sent};
use crate::memory::prefetch_to_write;
use crate::ring::{Meta, Packet, Ring};

/// The buffers of so many entries are asked for at a time, before their turn: the client had them last.
const AHEAD: u32 = 8;

/// A server's ring in either direction.
#[derive(Debug)]
pub(crate) struct ServerRing {
    pub(crate) end: End,
    /// Entries that slots of the receive ring point at, or did until they were released. None where
    /// what comes is copied.
    lent: u32,
    intake: Intake,
}

impl ServerRing {
    /// Of a ring that the client has made.
    pub(crate) fn new(end: End) -> Self {
        Self { end, lent: 0, intake: Intake::default() }
    }

    /// How many pieces of packets have come and are in no slot; looks only where fewer are known
    /// than wanted.
    #[inline]
    pub(crate) fn arrived(&mut self, wanted: u32) -> u32 {
        self.end.look(self.lent + wanted).saturating_sub(self.lent)
    }

    /// Whether slots that the program has point into the client's memory. Those of a packet whose end
    /// has not come do, too, but nobody has seen them.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.lent > self.intake.partial()
    }

    /// Gives entries back to the client whose slots the program has released.
    #[inline]
    pub(crate) fn give_back(&mut self, ring: &Ring) {
        // Slots of copies hold up nothing.
        let released = self.lent.saturating_sub(ring.available() + self.intake.partial());
        self.end.hand_over(released);
        self.lent -= released;
    }

    /// How many pieces can be received, `most` at most.
    #[inline]
    fn claim(&mut self, ring: &Ring, most: u32) -> Result<u32, Breach> {
        let wanted = self.intake.room(ring).min(most);
        Ok(self.end.claim(self.lent + wanted)?.saturating_sub(self.lent))
    }

    /// Receives up to `most` pieces of packets, as many as the ring has room for, where they lie.
    #[inline]
    pub(crate) fn receive(&mut self, ring: &mut Ring, most: u32) -> Result<Received, Breach> {
        self.give_back(ring);
        let pieces = self.claim(ring, most)?;
        let taken = self.intake.fill(ring, pieces, |ring, at, i| {
            let piece = self.end.read(self.lent + i);
            let Descriptor { flags, region, length, offset, .. } = piece;
            let found = self.end.regions().locate(region, offset, length);
            let (Some(start), Ok(bytes)) = (found, u16::try_from(length)) else {
                return Err(nowhere(piece));
            };
            let continues = flags & NEXT != 0;
            // SAFETY: `start` and `length` lie in a region of the client's that stays mapped as long
            // as `self`, whose entry is given back only in a sync or a wait after the slot was
            // released. The client may write there all the same: then the packet's bytes are not
            // what they were, and who reads them has to take them as they come.
            unsafe { ring.point(at, start, bytes, continues) };
            Ok((bytes, continues))
        })?;
        self.lent += taken;
        self.intake.hand_over(ring, taken)
    }

    /// The same, but copies the bytes into the slots' own buffers: from then on the client cannot
    /// change them.
    #[inline]
    pub(crate) fn receive_copies(
        &mut self,
        ring: &mut Ring,
        most: u32,
    ) -> Result<Received, Breach> {
        let pieces = self.claim(ring, most)?;
        let room = ring.buffer_bytes().min(u16::MAX.into());
        let taken = self.intake.fill(ring, pieces, |ring, at, i| {
            let piece = self.end.read(i);
            let Descriptor { flags, region, length, offset, .. } = piece;
            let found = self.end.regions().locate(region, offset, length);
            let Some(start) = found.filter(|_| length <= room) else {
                return Err(found.map_or_else(|| nowhere(piece), |_| too_large(length, room)));
            };
            // SAFETY: the slot is the backend's: it is behind the tail (`Intake::fill`), and so are
            // its bytes, which nobody else reads or writes.
            let buffer = unsafe { ring.buffer_unchecked(at) }.as_mut_ptr();
            // SAFETY: `start` and `length` lie in a region of the client's that is mapped, and
            // `length` in the slot's buffer, which is other memory.
            unsafe { start.as_ptr().copy_to_nonoverlapping(buffer, length as usize) };
            let (bytes, continues) = (length as u16, flags & NEXT != 0);
            ring.fill(at, bytes, continues, Meta::default());
            Ok((bytes, continues))
        })?;
        self.end.hand_over(taken);
        self.intake.hand_over(ring, taken)
    }

    /// Copies whole packets from slot `first` on into the client's buffers, as many as there is room
    /// for.
    #[inline]
    pub(crate) fn send(&mut self, ring: &Ring, first: u32) -> Result<Sent, Breach> {
        let mut sent = Sent::default();
        if ring.to_send(first).next().is_none() {
            return Ok(sent);
        }
        let wanted = ring.whole_slots(first, u32::MAX);
        let mut room = self.end.claim(wanted)?;
        let mut used = 0;
        loop {
            let whole = self.copy_whole(
                ring,
                ring.after(first, sent.slots),
                wanted - sent.slots,
                used..room,
            );
            used += whole;
            sent.slots += whole;
            sent.packets += whole;
            let Some(packet) = ring.to_send(ring.after(first, sent.slots)).next() else { break };
            let pieces = self.copy_in_pieces(&packet, used, room)?;
            if pieces == 0 {
                // The client's buffers may be smaller, and a packet take more of them than slots.
                let all = self.end.claim(u32::MAX)?;
                if all > room {
                    room = all;
                    continue;
                }
            }
            match pieces {
                0 if room == self.end.entries() && used == 0 => {
                    return Ok(Sent::too_long(&packet));
                }
                0 => break,
                _ => used += pieces,
            }
            sent.slots += packet.slots();
            sent.packets += 1;
        }
        self.end.send(used);
        Ok(sent)
    }

    /// Copies the packets in `slots` slots from `at` on into as many `entries`, up to one that lies in
    /// several slots, or finds no buffer that is long enough. Returns how many they were.
    #[inline]
    fn copy_whole(&mut self, ring: &Ring, mut at: u32, slots: u32, entries: Range<u32>) -> u32 {
        let end = entries.end.min(entries.start.saturating_add(slots));
        if slots == 0 || ring.slot(at).continues() {
            // No places are asked for in vain.
            return 0;
        }
        let mut next = self.places(entries.start, end);
        let mut entry = entries.start;
        while entry < end {
            let places = next;
            next = self.places(entry + AHEAD, end);
            for place in &places[..(end - entry).min(AHEAD) as usize] {
                if ring.slot(at).continues() {
                    return entry - entries.start;
                }
                // SAFETY: the program has given the slot, one of `slots`, to be sent; nobody writes its
                // bytes while the ring is borrowed.
                let packet = unsafe { ring.bytes_unchecked(at) };
                let Some(place) = place.filter(|it| packet.len() <= it.bytes as usize) else {
                    return entry - entries.start;
                };
                // SAFETY: `bytes` bytes from `start` on lie in a region of the client's that is mapped,
                // the packet has no more, and our own pool, where it is, is other memory.
                unsafe {
                    packet.as_ptr().copy_to_nonoverlapping(place.start.as_ptr(), packet.len());
                }
                self.end.fill(entry, place.region, packet.len() as u32);
                at = ring.next(at);
                entry += 1;
            }
        }
        entry - entries.start
    }

    /// The places of the entries from `first` on, [`AHEAD`] of them, none of entry `end` and behind it.
    /// Asks for their first lines.
    #[inline]
    fn places(&self, first: u32, end: u32) -> [Option<Place>; AHEAD as usize] {
        let mut places = [None; AHEAD as usize];
        for (entry, place) in (first..end).zip(&mut places) {
            let Descriptor { region, length, offset, .. } = self.end.read(entry);
            if let Some(start) = self.end.regions().locate(region, offset, length) {
                prefetch_to_write(start.as_ptr());
                *place = Some(Place { start, bytes: length, region });
            }
        }
        places
    }

    /// Copies a packet into the buffers of the entries from `used` on, whatever pieces there are at both
    /// ends. Returns how many it took; 0 if there are too few.
    #[inline(never)]
    fn copy_in_pieces(&mut self, packet: &Packet<'_>, used: u32, room: u32) -> Result<u32, Breach> {
        let mut segments = packet.segments();
        let mut segment = segments.next().unwrap_or_default();
        for pieces in 0..room - used {
            let entry = self.end.read(used + pieces);
            let length = entry.length as usize;
            let found = self.end.regions().locate(entry.region, entry.offset, entry.length);
            let Some(start) = found.filter(|_| length > 0) else { return Err(nowhere(entry)) };
            let mut filled = 0;
            let ends = loop {
                let bytes = segment.len().min(length - filled);
                let (now, later) = segment.split_at(bytes);
                // SAFETY: `length` bytes from `start` on lie in a region of the client's that is
                // mapped, `filled` and `bytes` together are no more, and our own pool, where the
                // packet is, is other memory.
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
            let flags = if ends { 0 } else { NEXT };
            let full = Descriptor { flags, length: filled as u32, ..entry };
            self.end.write(used + pieces, full);
            self.end.note_end(used + pieces, ends);
            if ends {
                return Ok(pieces + 1);
            }
        }
        Ok(0)
    }
}

/// Where the client takes bytes.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: NonNull<u8>,
    bytes: u32,
    region: u16,
}

/// What a client with larger buffers may well send.
#[cold]
fn too_large(length: u32, room: u32) -> Breach {
    Breach(format!("{length} bytes in one piece, and what copies (copy=on) takes {room} at most"))
}

#[cold]
fn nowhere(piece: Descriptor) -> Breach {
    let Descriptor { region, length, offset, .. } = piece;
    Breach(format!(
        "a packet of {length} bytes at {offset} in region {region}, which are not there"
    ))
}
