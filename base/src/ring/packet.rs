//! A packet as the program sees it: its bytes, in one piece or several, and its metadata.
#![allow(unsafe_code)]

use super::{Meta, Ring};

/// A packet that lies in a ring, or anywhere else.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    meta: &'a Meta,
    head: &'a [u8],
    /// The slots the packet goes on in: the ring, the first one's index, how many.
    rest: Option<(&'a Ring, u32, u32)>,
}

impl<'a> Packet<'a> {
    /// A packet in one piece.
    #[inline]
    pub fn new(meta: &'a Meta, bytes: &'a [u8]) -> Self {
        Self { meta, head: bytes, rest: None }
    }

    /// A packet that goes on in `more` slots of `ring` from `next` on.
    ///
    /// # Safety
    /// The bytes of these slots are valid, and nobody writes them while the ring is borrowed.
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

    /// The metadata.
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

    /// The first piece: the whole packet unless it is longer than a slot can hold, and always
    /// the link, network and transport headers of an ordinary packet.
    #[inline]
    pub fn head(&self) -> &'a [u8] {
        self.head
    }

    /// The pieces in order; one for nearly every packet.
    #[inline]
    pub fn segments(&self) -> Segments<'a> {
        Segments { head: Some(self.head), rest: self.rest }
    }

    /// Bytes in all pieces together.
    #[inline]
    pub fn captured_bytes(&self) -> usize {
        match self.rest {
            None => self.head.len(),
            Some(_) => self.segments().map(<[u8]>::len).sum(),
        }
    }

    /// How many slots it takes.
    #[inline]
    pub fn slots(&self) -> u32 {
        1 + self.rest.map_or(0, |(_, _, more)| more)
    }

    /// The packet in one piece: as it lies, or put together in `scratch`.
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
        // SAFETY: `in_slots` was promised that these slots' bytes are valid and unchanging.
        (more > 0).then(|| unsafe { ring.bytes_unchecked(index) })
    }
}
