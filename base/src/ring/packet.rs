//! Packets as the program sees them: bytes in one or several pieces, and metadata.
#![allow(unsafe_code)]

use super::{Meta, Ring, flags};

/// A packet in a ring or in other memory. It stays on the thread of its ring.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    meta: &'a Meta,
    bytes: PacketBytes<'a>,
}

/// The bytes of a packet.
#[derive(Clone, Copy, Debug)]
enum PacketBytes<'a> {
    /// In one piece.
    Slice(&'a [u8]),
    /// In slots of a ring: the first index, and the number of slots, at least one. A slice of them is made
    /// when a caller asks for it, because that copies the bytes of a SHARED slot.
    Slots(&'a Ring, u32, u32),
}

impl<'a> Packet<'a> {
    /// Makes a packet of one piece.
    #[inline]
    pub fn new(meta: &'a Meta, bytes: &'a [u8]) -> Self {
        Self { meta, bytes: PacketBytes::Slice(bytes) }
    }

    /// Makes the packet in `slots` slots of `ring`, at least one, from `first` on.
    ///
    /// # Safety
    /// The bytes of these slots are valid, and only the ring itself writes them while it is borrowed.
    #[inline]
    pub(super) unsafe fn in_slots(ring: &'a Ring, first: u32, slots: u32) -> Self {
        Self { meta: ring.meta(first), bytes: PacketBytes::Slots(ring, first, slots) }
    }

    /// Returns the metadata.
    #[inline]
    pub fn meta(&self) -> &'a Meta {
        self.meta
    }

    /// Returns the packet with other metadata.
    #[inline]
    pub fn with_meta<'b>(&self, meta: &'b Meta) -> Packet<'b>
    where
        'a: 'b,
    {
        Packet { meta, ..*self }
    }

    /// Returns the first piece: the whole packet if it fits in one slot, otherwise in most ports the link,
    /// network and transport headers. `memif:` may have slots of 64 bytes: [`contiguous`](Self::contiguous)
    /// returns all bytes.
    #[inline]
    pub fn head(&self) -> &'a [u8] {
        match self.bytes {
            PacketBytes::Slice(bytes) => bytes,
            // SAFETY: the caller of `in_slots` guarantees that the bytes are valid and unchanging.
            PacketBytes::Slots(ring, first, _) => unsafe { ring.bytes_unchecked(first) },
        }
    }

    /// Returns the pieces in order; nearly every packet has one.
    #[inline]
    pub fn segments(&self) -> Segments<'a> {
        Segments(Some(*self))
    }

    /// Returns the number of bytes of all pieces together.
    #[inline]
    pub fn captured_bytes(&self) -> usize {
        match self.bytes {
            PacketBytes::Slice(bytes) => bytes.len(),
            PacketBytes::Slots(ring, first, slots) => {
                (0..slots).map(|i| usize::from(ring.slot(ring.after(first, i)).bytes())).sum()
            }
        }
    }

    /// Returns the number of slots that the packet takes.
    #[inline]
    pub fn slots(&self) -> u32 {
        match self.bytes {
            PacketBytes::Slice(_) => 1,
            PacketBytes::Slots(.., slots) => slots,
        }
    }

    /// Returns the packet in one piece: in place, or assembled in `scratch`.
    #[inline]
    pub fn contiguous<'s>(&self, scratch: &'s mut Vec<u8>) -> &'s [u8]
    where
        'a: 's,
    {
        if self.slots() == 1 {
            return self.head();
        }
        scratch.clear();
        self.segments().for_each(|segment| scratch.extend_from_slice(segment));
        scratch
    }
}

/// The pieces of a packet; see [`Packet::segments`].
#[derive(Clone, Debug)]
pub struct Segments<'a>(Option<Packet<'a>>);

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let packet = self.0.as_mut()?;
        let head = packet.head();
        match &mut packet.bytes {
            PacketBytes::Slots(ring, first, slots) if *slots > 1 => {
                (*first, *slots) = (ring.next(*first), *slots - 1);
            }
            _ => self.0 = None,
        }
        Some(head)
    }
}

/// The packets in a ring; see [`Ring::packets`].
///
/// Invariant: the bytes of the `left` slots from `at` on are valid, and only the ring itself writes them while
/// it is borrowed.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    pub(super) ring: &'a Ring,
    pub(super) at: u32,
    pub(super) left: u32,
}

impl<'a> Iterator for Packets<'a> {
    type Item = Packet<'a>;

    // A loop that looks at the length alone need not make the packet.
    #[inline(always)]
    fn next(&mut self) -> Option<Packet<'a>> {
        if self.left == 0 {
            return None;
        }
        let (ring, first) = (self.ring, self.at);
        let slot = ring.slot(first);
        self.at = ring.next(first);
        self.left -= 1;
        if slot.flags & (flags::MOREFRAG | flags::SHARED) == 0 {
            // SAFETY: the iterator walks [head, tail) as it was when it borrowed the ring, and neither cursor
            // can change while the ring is borrowed, nor a slot that is not SHARED; or it walks slots of a
            // transmit ring, whose pool buffers nothing writes while the ring is borrowed.
            return Some(Packet::new(ring.meta(first), unsafe { ring.bytes_unchecked(first) }));
        }
        Some(self.in_slots(first))
    }

    #[inline]
    fn count(self) -> usize {
        let (mut packets, mut at, mut continues) = (0, self.at, false);
        for _ in 0..self.left {
            continues = self.ring.slot(at).continues();
            packets += usize::from(!continues);
            at = self.ring.next(at);
        }
        packets + usize::from(continues)
    }
}

impl<'a> Packets<'a> {
    /// The packet that begins in slot `first`, shared or in pieces.
    fn in_slots(&mut self, first: u32) -> Packet<'a> {
        let ring = self.ring;
        let (mut slots, mut continues) = (1, ring.slot(first).continues());
        while continues && self.left > 0 {
            continues = ring.slot(self.at).continues();
            self.at = ring.next(self.at);
            self.left -= 1;
            slots += 1;
        }
        // SAFETY: the loop above has walked the slots that follow, so the reason given in `next` for the first
        // holds for them.
        unsafe { Packet::in_slots(ring, first, slots) }
    }
}
