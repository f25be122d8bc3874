//! A packet as the program sees it: its bytes in one or several pieces, and its metadata.
#![allow(unsafe_code)]

use super::{Meta, Ring};

/// A packet in a ring or in other memory.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    meta: &'a Meta,
    head: &'a [u8],
    /// The slots with the rest of the packet: the ring, the first index, the number of slots.
    rest: Option<(&'a Ring, u32, u32)>,
}

impl<'a> Packet<'a> {
    /// Makes a packet of one piece.
    #[inline]
    pub fn new(meta: &'a Meta, bytes: &'a [u8]) -> Self {
        Self { meta, head: bytes, rest: None }
    }

    /// Makes a packet that continues in `more` slots of `ring`, from `next` on.
    ///
    /// # Safety
    /// The bytes of these slots are valid, and nothing writes them while the ring is borrowed.
    #[inline]
    pub(super) unsafe fn in_slots(
        meta: &'a Meta,
        head: &'a [u8],
        ring: &'a Ring,
        next: u32,
        more: u32,
    ) -> Self {
        Self { meta, head, rest: Some((ring, next, more)) }
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
        self.head
    }

    /// Returns the pieces in order; nearly every packet has one.
    #[inline]
    pub fn segments(&self) -> Segments<'a> {
        Segments { head: Some(self.head), rest: self.rest }
    }

    /// Returns the number of bytes of all pieces together.
    #[inline]
    pub fn captured_bytes(&self) -> usize {
        match self.rest {
            None => self.head.len(),
            Some(_) => self.segments().map(<[u8]>::len).sum(),
        }
    }

    /// Returns the number of slots that the packet takes.
    #[inline]
    pub fn slots(&self) -> u32 {
        1 + self.rest.map_or(0, |(_, _, more)| more)
    }

    /// Returns the packet in one piece: in place, or assembled in `scratch`.
    #[inline]
    pub fn contiguous<'s>(&self, scratch: &'s mut Vec<u8>) -> &'s [u8]
    where
        'a: 's,
    {
        if self.rest.is_none() {
            return self.head;
        }
        scratch.clear();
        self.segments().for_each(|segment| scratch.extend_from_slice(segment));
        scratch
    }
}

/// The pieces of a packet; see [`Packet::segments`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    head: Option<&'a [u8]>,
    rest: Option<(&'a Ring, u32, u32)>,
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if let Some(head) = self.head.take() {
            return Some(head);
        }
        let (ring, index, more) = self.rest?;
        self.rest = (more > 1).then(|| (ring, ring.next(index), more - 1));
        // SAFETY: the caller of `in_slots` guarantees that these slots' bytes are valid and unchanging.
        (more > 0).then(|| unsafe { ring.bytes_unchecked(index) })
    }
}
