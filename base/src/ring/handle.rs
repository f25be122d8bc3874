//! The program's hold on a ring: all it may do, and not the ring itself.
//!
//! A queue lends its rings through [`RingMut`] and not as `&mut Ring`, for two `&mut Ring` can
//! be exchanged: a ring whose slots point into one queue's memory would then stay with another
//! queue, and outlive that memory.

use std::ops::Deref;

use super::meta::Meta;
use super::packet::Packet;
use super::{Filled, Ring, Slot, Swapped};

/// A ring to work on, lent by the queue of a port. To look, it is a [`Ring`].
#[derive(Debug)]
pub struct RingMut<'a>(&'a mut Ring);

impl<'a> RingMut<'a> {
    /// Lends a ring to a program.
    pub fn new(ring: &'a mut Ring) -> Self {
        Self(ring)
    }

    /// Gives the first `n` slots back to the backend: seen, or to be sent.
    ///
    /// # Panics
    /// If the program owns fewer.
    #[inline]
    pub fn release(&mut self, n: u32) {
        self.0.release(n);
    }

    /// The bytes in a slot the program owns, to rewrite in place.
    ///
    /// # Panics
    /// On a slot the program does not own.
    #[inline]
    pub fn bytes_mut(&mut self, index: u32) -> &mut [u8] {
        self.0.bytes_mut(index)
    }

    /// The metadata beside a slot the program owns, to write.
    ///
    /// # Panics
    /// On a slot the program does not own.
    #[inline]
    pub fn meta_mut(&mut self, index: u32) -> &mut Meta {
        self.0.assert_owned(index);
        self.0.meta_mut(index)
    }

    /// The whole buffer of a slot the program owns, to build a packet in; empty where the slot
    /// has none. Follow with [`set_bytes`](Self::set_bytes).
    ///
    /// # Panics
    /// On a slot the program does not own.
    #[inline]
    pub fn buffer_mut(&mut self, index: u32) -> &mut [u8] {
        self.0.buffer_mut(index)
    }

    /// Says how many bytes of a slot's buffer are packet, and whether it goes on in the next
    /// slot.
    ///
    /// # Panics
    /// If the buffer is shorter, or on a slot the program does not own.
    #[inline]
    pub fn set_bytes(&mut self, index: u32, bytes: u16, continues: bool) {
        self.0.assert_owned(index);
        self.0.set_bytes(index, bytes, continues);
    }

    /// Takes the buffer out of a slot the program owns: the caller holds it from now on, and the slot has
    /// none until [`fill_at`](Self::fill_at) gives it one.
    ///
    /// # Panics
    /// On a slot the program does not own.
    ///
    /// # Safety
    /// The slot gets a buffer again before it is released: backends rely on one in each slot.
    #[inline]
    #[allow(unsafe_code, reason = "buffers change hands by number")]
    pub unsafe fn take(&mut self, index: u32) -> Slot {
        self.0.assert_owned(index);
        self.0.take(index)
    }

    /// Exchanges the buffer of a slot the program owns, with a packet at `offset`. Returns the buffer that
    /// the slot held before, which the caller holds from now on.
    ///
    /// # Panics
    /// If the buffer ends before the packet, on buffer 0, or on a slot the program does not own.
    ///
    /// # Safety
    /// The caller alone holds `buffer`, which is of the ring's pool, and holds it no longer after this.
    #[inline]
    #[allow(unsafe_code, reason = "buffers change hands by number")]
    pub unsafe fn fill_at(
        &mut self,
        index: u32,
        buffer: u32,
        offset: u16,
        bytes: u16,
        continues: bool,
    ) -> u32 {
        self.0.assert_owned(index);
        // SAFETY: the caller's contract.
        unsafe { self.0.fill_at(index, buffer, offset, bytes, continues) }
    }

    /// Copies one packet into the transmit ring, over as many slots as it needs, and gives them
    /// to the backend. False if there is no room; nothing has happened then.
    #[inline]
    pub fn push(&mut self, packet: &Packet<'_>) -> bool {
        self.0.push(packet)
    }

    /// Builds up to `most` packets, each in a slot's buffer, as many as there is room for: `build` is
    /// given the whole buffer and says how many bytes of it are the packet, or None to end with the
    /// one before. Ends at a slot without a buffer. Metadata stay as they were. Gives the slots to the
    /// backend.
    ///
    /// # Panics
    /// If a packet is longer than its buffer.
    #[inline]
    pub fn build(&mut self, most: u32, build: impl FnMut(&mut [u8]) -> Option<usize>) -> Filled {
        self.0.build(most, build)
    }

    /// Puts `head` in place of the first `cut` bytes of a slot the program owns. False where there are
    /// fewer, or no room for what is longer; nothing has happened then.
    ///
    /// # Panics
    /// On a slot the program does not own.
    #[inline]
    pub fn replace_front(&mut self, index: u32, cut: usize, head: &[u8]) -> bool {
        self.0.replace_front(index, cut, head)
    }

    /// Moves whole packets to a transmit ring of the same pool by exchanging buffers: not a byte
    /// is copied. Stops before `max` slots are exceeded, at the end of either ring, or before a
    /// packet that has to be copied (a slot of it is INDIRECT). Gives the slots of both rings back
    /// and says how many it moved.
    #[inline]
    pub fn swap_into(&mut self, to: &mut RingMut<'_>, max: u32) -> u32 {
        self.swap_packets(to, max).slots
    }

    /// Moves packets like [`swap_into`](Self::swap_into), and returns all counts.
    #[inline]
    pub fn swap_packets(&mut self, to: &mut RingMut<'_>, max: u32) -> Swapped {
        self.0.swap_into(to.0, max)
    }
}

impl Deref for RingMut<'_> {
    type Target = Ring;

    #[inline]
    fn deref(&self) -> &Ring {
        self.0
    }
}
