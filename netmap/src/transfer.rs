//! Moves slots from a ring to its image and back.
//!
//! ```text
//!   the server's                        shared with the program
//!   +--------------+   hand_out         +---------------+
//!   | Ring         | -----------------> | Image         |
//!   | slots, metas | <----------------- | header, slots |
//!   +--------------+   take_back        +---------------+
//!           \                              /
//!            \---- buffers, by number ----/      each with the ring, the image's server side,
//!                                                or the program ([`LentBuffers`])
//! ```
//!
//! A transmit ring and its image move in step: while the program has a slot, the ring's slot has no buffer,
//! and later gets the one that the program returns. So a buffer stays with its slot, as netmap programs
//! expect. A receive ring's slot and the image's slot exchange buffers, and the ring gets its slot back at
//! once. Bytes outside the pool (INDIRECT) are copied into as many buffers as they need, so that no program
//! holds a block of the kernel.
#![allow(unsafe_code)]

use std::sync::Arc;

use sluicegate_base::memory::Pool;
use sluicegate_base::ring::{Meta, RingMut, Slot};
use sluicegate_base::{Error, Result};

use crate::abi::{self, flags};
use crate::image::{Image, ImageFault, RingArea};
use crate::lent_buffers::LentBuffers;

/// The image of a transmit ring: slots move from the program to the ring.
#[derive(Debug)]
pub(crate) struct Outgoing {
    image: Image,
    lent: Arc<LentBuffers>,
}

impl Outgoing {
    /// Creates the image of a transmit ring, and hands out all its room.
    pub(crate) fn new(
        ring: &mut RingMut<'_>,
        number: u32,
        area: &Arc<RingArea>,
        lent: &Arc<LentBuffers>,
    ) -> Result<Self> {
        if !ring.uses_pool(area.pool()) {
            let reason = "this kind of port has buffers of its own, so it cannot be served";
            return Err(Error::Usage(reason.into()));
        }
        let image = Image::new(area, ring.num_slots(), (number, true), ring.head())?;
        let mut outgoing = Self { image, lent: Arc::clone(lent) };
        outgoing.hand_out(ring);
        Ok(outgoing)
    }

    /// Returns the offset of the image in the region.
    pub(crate) fn offset(&self) -> usize {
        self.image.offset()
    }

    /// Moves the slots that the program has returned to the ring. Sync the ring afterwards.
    ///
    /// # Errors
    /// An invalid slot. Nothing is sent by this call; the slots before the invalid one stay in the ring.
    pub(crate) fn take_back(&mut self, ring: &mut RingMut<'_>) -> Result<(), ImageFault> {
        let (from, head) = (self.image.head, self.image.given_back()?);
        debug_assert_eq!(from, ring.head(), "ring and image go in step");
        let mut n = 0;
        while self.image.head != head {
            let at = self.image.head;
            let slot = self.image.take_back(&self.lent)?;
            let goes_on = slot.flags & flags::MOREFRAG != 0;
            // SAFETY: the image has checked that the buffer was lent to the program, and takes it back.
            let held =
                unsafe { ring.fill_at(at, slot.buf_idx, slot.ptr as u16, slot.len, goes_on) };
            debug_assert_eq!(held, 0, "slot {at} had a buffer while the program had the slot");
            *ring.meta_mut(at) = Meta::default();
            n += 1;
        }
        ring.release(n);
        Ok(())
    }

    /// Hands out the room in the ring. Returns the number of new slots.
    pub(crate) fn hand_out(&mut self, ring: &mut RingMut<'_>) -> u32 {
        let mut n = 0;
        while self.image.tail != ring.tail() {
            let at = self.image.tail;
            let slot = *ring.slot(at);
            // SAFETY: the slot stays unreleased until `take_back` has given it a buffer.
            let buf_idx = unsafe { ring.take(at) }.buffer();
            let ptr = slot.offset().into();
            let slot = abi::Slot { buf_idx, flags: 0, len: slot.bytes(), ptr };
            self.image.hand_out(slot, &self.lent);
            n += 1;
        }
        self.image.publish();
        n
    }
}

/// The image of a receive ring: slots move from the ring to the program.
#[derive(Debug)]
pub(crate) struct Incoming {
    image: Image,
    lent: Arc<LentBuffers>,
    pool: Arc<Pool>,
    /// The buffers of the image's slots that the program does not have.
    spare_buffers: Vec<u32>,
    /// Packets that need more slots than the image has.
    pub(crate) too_long: u64,
}

impl Incoming {
    /// Creates the image of a receive ring, with an additional buffer for each slot of the ring.
    pub(crate) fn new(
        ring: &RingMut<'_>,
        number: u32,
        area: &Arc<RingArea>,
        lent: &Arc<LentBuffers>,
    ) -> Result<Self> {
        let slots = ring.num_slots();
        let image = Image::new(area, slots, (number, false), 0)?;
        let pool = Arc::clone(area.pool());
        // A missing direction of the queue takes no buffers.
        let spare_buffers = if slots > 1 { pool.take(slots as usize)? } else { Vec::new() };
        Ok(Self { image, lent: Arc::clone(lent), pool, spare_buffers, too_long: 0 })
    }

    /// Returns the offset of the image in the region.
    pub(crate) fn offset(&self) -> usize {
        self.image.offset()
    }

    /// Takes back the slots that the program has released.
    ///
    /// # Errors
    /// An invalid slot.
    pub(crate) fn take_back(&mut self) -> Result<(), ImageFault> {
        let head = self.image.given_back()?;
        while self.image.head != head {
            let at = self.image.head as usize;
            self.spare_buffers[at] = self.image.take_back(&self.lent)?.buf_idx;
        }
        Ok(())
    }

    /// Hands out the whole packets in the ring, as far as the image has room. Returns the number of new
    /// slots.
    pub(crate) fn hand_out(&mut self, ring: &mut RingMut<'_>) -> u32 {
        let before = self.image.out();
        while let Some((slots, needed)) = self.next_packet(ring) {
            if needed <= self.image.room() {
                let mut at = ring.head();
                for _ in 0..slots {
                    self.hand_over(ring, at);
                    at = ring.next(at);
                }
            } else if needed < self.image.num_slots() {
                break;
            } else {
                self.too_long += 1;
            }
            ring.release(slots);
        }
        self.image.publish();
        self.image.out() - before
    }

    /// Returns the number of the next packet's slots in the ring, and the number that it needs in the image.
    fn next_packet(&self, ring: &RingMut<'_>) -> Option<(u32, u32)> {
        let (mut at, mut needed) = (ring.head(), 0);
        for n in 1..=ring.available() {
            let slot = ring.slot(at);
            let buffers = u32::from(slot.bytes()).div_ceil(self.pool.buffer_bytes()).max(1);
            needed += if self.can_exchange(ring, slot) { 1 } else { buffers };
            if !slot.continues() || n == ring.available() {
                return Some((n, needed));
            }
            at = ring.next(at);
        }
        None
    }

    fn can_exchange(&self, ring: &RingMut<'_>, slot: &Slot) -> bool {
        !slot.is_indirect() && slot.buffer() != 0 && ring.uses_pool(&self.pool)
    }

    /// Hands out one slot of the ring: by exchange of buffers, or by copy.
    fn hand_over(&mut self, ring: &mut RingMut<'_>, at: u32) {
        let slot = *ring.slot(at);
        if self.can_exchange(ring, &slot) {
            let spare = std::mem::take(&mut self.spare_buffers[self.image.tail as usize]);
            // SAFETY: the buffer is out of `spare_buffers`, of the ring's pool (`can_exchange`).
            let buf_idx = unsafe { ring.fill_at(at, spare, 0, 0, false) };
            let flags = if slot.continues() { flags::MOREFRAG } else { 0 };
            let slot = abi::Slot { buf_idx, len: slot.bytes(), flags, ptr: slot.offset().into() };
            return self.image.hand_out(slot, &self.lent);
        }
        let mut rest = ring.bytes(at);
        loop {
            let (now, later) = rest.split_at(rest.len().min(self.pool.buffer_bytes() as usize));
            let goes_on = slot.continues() || !later.is_empty();
            let buf_idx = std::mem::take(&mut self.spare_buffers[self.image.tail as usize]);
            self.image.copy_in(buf_idx, now);
            let flags = if goes_on { flags::MOREFRAG } else { 0 };
            let slot = abi::Slot { buf_idx, len: now.len() as u16, flags, ptr: 0 };
            self.image.hand_out(slot, &self.lent);
            rest = later;
            if rest.is_empty() {
                return;
            }
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let spare = self.spare_buffers.iter().copied().filter(|&buffer| buffer != 0);
        // SAFETY: `spare_buffers` alone holds them, and ends here.
        unsafe { self.pool.give(spare) };
    }
}
