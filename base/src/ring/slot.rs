//! One place in a ring: 16 bytes that name a packet's bytes.

/// Flags of a [`Slot`], with netmap's values (sys/net/netmap.h).
pub mod flags {
    /// The slot's buffer was exchanged since the last sync.
    pub const BUF_CHANGED: u16 = 1;
    /// The bytes are at the slot's pointer, not in the pool: look or copy, but do not swap.
    pub const INDIRECT: u16 = 0x10;
    /// The packet continues in the next slot.
    pub const MOREFRAG: u16 = 0x20;
}

/// The buffer number, length, flags and pointer of a packet, or of a piece of one.
///
/// Only the ring changes a slot, so a buffer number is never in two slots and `ptr` never comes from
/// outside. `ptr` is an address in an INDIRECT slot; in any other it is the packet's offset in the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    pub(super) ptr: u64,
    pub(super) buf: u32,
    pub(super) len: u16,
    pub(super) flags: u16,
}

impl Slot {
    /// The pool's number for the slot's buffer; 0 for none.
    #[inline]
    pub fn buffer(&self) -> u32 {
        self.buf
    }

    /// Bytes of the packet in this slot.
    #[inline]
    pub fn bytes(&self) -> u16 {
        self.len
    }

    /// Where in the slot's buffer the packet starts; 0 if the bytes are outside the pool.
    #[inline]
    pub fn offset(&self) -> u16 {
        if self.is_indirect() { 0 } else { self.ptr as u16 }
    }

    /// See [`flags`].
    #[inline]
    pub fn flags(&self) -> u16 {
        self.flags
    }

    /// The packet continues in the next slot.
    #[inline]
    pub fn continues(&self) -> bool {
        self.flags & flags::MOREFRAG != 0
    }

    /// The bytes are outside the pool.
    #[inline]
    pub fn is_indirect(&self) -> bool {
        self.flags & flags::INDIRECT != 0
    }
}
