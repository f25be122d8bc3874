//! The backend's side of a ring: the operations that only `sync` performs.
//!
//! The slots outside [head, tail) are the backend's. It fills those of a receive ring with
//! packets, takes submitted packets from those of a transmit ring, and hands slots out by
//! moving the tail.

use std::ptr::NonNull;

use super::{Meta, Packets, Ring, Slot, assert_fits, flags};

impl Ring {
    /// The packets in [`from`, head) of a transmit ring: what the program has given to send.
    /// Whole packets only; one whose end the program still holds back is left for later.
    ///
    /// # Panics
    /// On a receive ring, whose slots the kernel may be writing; if there is no such slot.
    #[inline]
    pub fn pending_tx(&self, from: u32) -> Packets<'_> {
        assert!(self.transmits, "a receive ring has nothing to send");
        assert!(from < self.num_slots(), "slot {from} of {}", self.num_slots());
        Packets { ring: self, at: from, left: self.whole_slots(from, u32::MAX) }
    }

    /// How many of the slots in [`from`, head), `most` at most, are those of whole packets.
    #[inline]
    pub fn whole_slots(&self, from: u32, most: u32) -> u32 {
        let mut slots = self.distance(from, self.head()).min(most);
        while slots > 0 && self.slot(self.after(from, slots - 1)).continues() {
            slots -= 1;
        }
        slots
    }

    /// Returns true if the packet that begins at `from` in a transmit ring can never be complete: it has taken
    /// every slot that the program can give and still continues.
    #[inline]
    pub fn is_endless(&self, from: u32) -> bool {
        self.distance(from, self.head()) == self.num_slots() - 1
            && self.pending_tx(from).left == 0
            && self.num_slots() > 1
    }

    /// Hands the slots before `tail` to the program.
    ///
    /// # Panics
    /// If there is no such slot.
    #[inline]
    pub fn publish(&mut self, tail: u32) {
        assert!(tail < self.num_slots(), "slot {tail} of {}", self.num_slots());
        self.tail = tail;
    }

    /// The whole buffer of the slot at the tail, where the backend has room: the next to be filled.
    /// None where there is no room; empty where the slot has no buffer.
    #[inline]
    pub fn tail_buffer(&mut self) -> Option<&mut [u8]> {
        let at = self.tail();
        // SAFETY: there is room, so the slot is the backend's; its buffer is held by it alone.
        (self.room() > 0).then(|| unsafe { self.buffer_unchecked(at) })
    }

    /// Fills a slot the backend owns: `bytes` bytes in its own buffer.
    #[inline]
    pub fn fill(&mut self, index: u32, bytes: u16, continues: bool, meta: Meta) {
        self.start_at_zero(index);
        self.set_bytes(index, bytes, continues);
        *self.meta_mut(index) = meta;
    }

    /// Fills a slot the backend owns by exchange: it takes `buffer`, with its packet at
    /// `offset`. Returns the buffer it held before, which the caller holds from now on. Its
    /// metadata is the caller's to write.
    ///
    /// # Panics
    /// If the buffer ends before the packet, or on buffer 0.
    ///
    /// # Safety
    /// The caller alone holds `buffer`, which is of the ring's pool, and holds it no longer after this.
    #[inline]
    pub unsafe fn fill_at(
        &mut self,
        index: u32,
        buffer: u32,
        offset: u16,
        bytes: u16,
        continues: bool,
    ) -> u32 {
        assert_fits(buffer, offset, bytes, self.pool.buffer_bytes());
        let slot = self.slot_mut(index);
        slot.ptr = u64::from(offset);
        slot.len = bytes;
        slot.flags = if continues { flags::MOREFRAG } else { 0 };
        std::mem::replace(&mut slot.buf, buffer)
    }

    /// The `n` bytes in front of the packet in a slot the backend owns; None where its buffer has
    /// fewer there.
    #[inline]
    pub fn headroom_mut(&mut self, index: u32, n: u16) -> Option<&mut [u8]> {
        let slot = *self.slot(index);
        let start = slot.offset().checked_sub(n).filter(|_| slot.buf != 0)?;
        let first = self.pool.address(slot.buf).map_addr(|at| at.saturating_add(start.into()));
        // SAFETY: the buffer is held by this slot alone, and its first `offset` bytes are in it;
        // `&mut self` makes it the only access.
        Some(unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), n.into()) })
    }

    /// Empties a slot the backend owns: the caller holds its buffer from now on, and the slot has
    /// none until [`fill_at`](Self::fill_at) gives it one.
    #[inline]
    pub fn take(&mut self, index: u32) -> Slot {
        std::mem::take(self.slot_mut(index))
    }

    /// Points a slot the backend owns at bytes outside the pool. Its metadata is the caller's
    /// to write.
    ///
    /// # Safety
    /// The bytes at `start` are valid to read and write and are touched by nobody else until
    /// the first sync after the program has given the slot back.
    #[inline]
    pub unsafe fn point(&mut self, index: u32, start: NonNull<u8>, bytes: u16, continues: bool) {
        let more = if continues { flags::MOREFRAG } else { 0 };
        let slot = self.slot_mut(index);
        slot.ptr = start.as_ptr().expose_provenance() as u64;
        slot.len = bytes;
        slot.flags = flags::INDIRECT | more;
    }
}
