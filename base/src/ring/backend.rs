//! The backend's side of a ring: the operations that only `sync` performs.
//!
//! The backend owns the slots outside [head, tail). It fills those of a receive ring with packets, takes
//! submitted packets from those of a transmit ring, and hands slots out by moving the tail.

use std::ptr::NonNull;

use super::{Meta, Packets, Ring, Slot, assert_fits, flags};

/// Operations for backends only. A program uses [`RingMut`](super::RingMut).
#[doc(hidden)]
impl Ring {
    /// Returns the packets in [`from`, head) of a transmit ring, which the program has released to send.
    /// Whole packets only: a packet without its last slot is left for later.
    ///
    /// # Panics
    /// On a receive ring, whose slots the kernel may be writing, or on an index without a slot.
    #[inline]
    pub fn pending_tx(&self, from: u32) -> Packets<'_> {
        assert!(self.transmits, "a receive ring has nothing to send");
        assert!(from < self.num_slots(), "slot {from} of {}", self.num_slots());
        Packets { ring: self, at: from, left: self.whole_slots(from, u32::MAX) }
    }

    /// Returns how many of the slots in [`from`, head), at most `most`, belong to whole packets.
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
    /// If `tail` is not a slot.
    #[inline]
    pub fn publish(&mut self, tail: u32) {
        assert!(tail < self.num_slots(), "slot {tail} of {}", self.num_slots());
        self.tail = tail;
    }

    /// Returns the whole buffer of the slot at the tail, which the backend fills next. None if there is no
    /// room; empty if the slot has no buffer.
    #[inline]
    pub fn tail_buffer(&mut self) -> Option<&mut [u8]> {
        let at = self.tail();
        // SAFETY: there is room, so the backend owns the slot, and only this slot holds its buffer.
        (self.backend_slots() > 0).then(|| unsafe { self.buffer_unchecked(at) })
    }

    /// Fills a slot that the backend owns: the packet is the first `bytes` bytes of the slot's own buffer.
    #[inline]
    pub fn fill(&mut self, index: u32, bytes: u16, continues: bool, meta: Meta) {
        let limit = self.pool.buffer_bytes();
        let slot = self.slot_mut(index);
        assert_fits(slot.buf, 0, bytes, limit);
        (slot.ptr, slot.len) = (0, bytes);
        slot.flags = if continues { flags::MOREFRAG } else { 0 };
        *self.meta_mut(index) = meta;
    }

    /// Fills a slot that the backend owns by exchange: the slot takes `buffer`, with its packet at
    /// `offset`. Returns the slot's previous buffer, which the caller holds from now on. The caller writes
    /// the metadata.
    ///
    /// # Panics
    /// If the buffer ends before the packet, or on buffer 0.
    ///
    /// # Safety
    /// The caller alone holds `buffer`, which is from the ring's pool, and stops holding it with this call.
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

    /// Returns the `n` bytes before the packet in a slot that the backend owns; None if its buffer has
    /// fewer there.
    #[inline]
    pub fn headroom_mut(&mut self, index: u32, n: u16) -> Option<&mut [u8]> {
        let slot = self.slot(index);
        let start = slot.offset().checked_sub(n).filter(|_| slot.buf != 0)?;
        let first = self.pool.address(slot.buf).map_addr(|at| at.saturating_add(start.into()));
        // SAFETY: only this slot holds the buffer, and the buffer's first `offset` bytes are in it; `&mut
        // self` makes it the only access.
        Some(unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), n.into()) })
    }

    /// Empties a slot that the backend owns: the caller holds its buffer from now on, and the slot has none
    /// until [`fill_at`](Self::fill_at) gives it one.
    #[inline]
    pub fn take(&mut self, index: u32) -> Slot {
        std::mem::take(self.slot_mut(index))
    }

    /// Points a slot that the backend owns at bytes outside the pool. The caller writes the metadata.
    ///
    /// # Safety
    /// The bytes at `start` are valid to read and write, and nothing else accesses them until the first
    /// sync after the program has given the slot back.
    #[inline]
    pub unsafe fn point(&mut self, index: u32, start: NonNull<u8>, bytes: u16, continues: bool) {
        let more = if continues { flags::MOREFRAG } else { 0 };
        let slot = self.slot_mut(index);
        slot.ptr = start.as_ptr().expose_provenance() as u64;
        slot.len = bytes;
        slot.flags = flags::INDIRECT | more;
    }

    /// Points a slot that the backend owns at bytes that another process may write
    /// ([`SHARED`](flags::SHARED)). The caller writes the metadata.
    ///
    /// # Panics
    /// If the slot's buffer is shorter.
    ///
    /// # Safety
    /// The bytes at `start` are valid to read until the program has given the slot back, or
    /// [`copy_in_first`](Self::copy_in_first) has copied them. A slot that was given back is filled again
    /// before it is published.
    #[inline]
    pub unsafe fn share(&mut self, index: u32, start: NonNull<u8>, bytes: u16, continues: bool) {
        let limit = self.pool.buffer_bytes();
        let more = if continues { flags::MOREFRAG } else { 0 };
        let slot = self.slot_mut(index);
        assert_fits(slot.buf, 0, bytes, limit);
        slot.ptr = start.as_ptr().expose_provenance() as u64;
        slot.len = bytes;
        slot.flags = flags::SHARED | more;
    }

    /// Copies the bytes of SHARED slots among the `n` slots from the head on.
    ///
    /// # Safety
    /// The program owns these slots, or the backend has filled them since the program gave them back.
    #[inline]
    pub unsafe fn copy_in_first(&mut self, n: u32) {
        (0..n).for_each(|i| self.copy_in(self.after(self.head, i)));
    }
}
