//! Between a ring and its image: carries slots to a program in another process and back.
//!
//! ```text
//!   the server's own                    the program's, too
//!   +--------------+   hand_out         +---------------+
//!   | Ring         | -----------------> | Image         |
//!   | slots, metas | <----------------- | header, slots |
//!   +--------------+   take_back        +---------------+
//!           \                              /
//!            \---- buffers, by number ----/      each with the ring, the image's server side,
//!                                                or the program ([`LentBuffers`])
//! ```
//!
//! A transmit ring and its image go in step: a slot of the ring has no buffer while the program has
//! the slot, and gets the one that the program gives back; so a buffer stays with its slot, as
//! netmap's programs expect. A receive ring goes its own way: its slot and the image's exchange
//! buffers, and it gets its slots back at once. What lies outside the pool (INDIRECT) is copied into
//! as many buffers as it needs, so no program keeps a block of the kernel's.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::image::{Image, ImageFault};
use super::layout::{Slot, flags};
use super::lent_buffers::LentBuffers;
use super::meta::Meta;
use super::ring::Ring;
use crate::error::{Error, Result};
use crate::memory::Pool;

/// A transmit ring's way: from the program to the ring.
#[derive(Debug)]
pub struct Outgoing {
    image: Image,
    held: Arc<LentBuffers>,
}

impl Outgoing {
    /// Serves a transmit ring of `pool`; all its room is handed out.
    pub fn new(
        ring: &mut Ring,
        number: u32,
        pool: &Arc<Pool>,
        held: &Arc<LentBuffers>,
    ) -> Result<Self> {
        if !ring.uses_pool(pool) {
            return Err(Error::Usage("a port that has no use for a pool cannot be served".into()));
        }
        let image = Image::new(pool, ring.num_slots(), (number, true), ring.head())?;
        let mut outgoing = Self { image, held: Arc::clone(held) };
        outgoing.hand_out(ring);
        Ok(outgoing)
    }

    /// Where the image begins, from the start of the memory.
    pub fn offset(&self) -> usize {
        self.image.offset()
    }

    /// Gives the ring the slots that the program has given back. Sync the ring then.
    ///
    /// # Errors
    /// One of them cannot be. None of this call's is sent; what was carried stays in the ring.
    pub fn take_back(&mut self, ring: &mut Ring) -> Result<(), ImageFault> {
        let (from, head) = (self.image.head, self.image.given_back()?);
        debug_assert_eq!(from, ring.head(), "ring and image go in step");
        let mut n = 0;
        while self.image.head != head {
            let at = self.image.head;
            let slot = self.image.take_back(&self.held)?;
            // SAFETY: the image has checked that the buffer was lent to the program, and takes it back.
            let held =
                unsafe { ring.fill_at(at, slot.buf, slot.offset(), slot.len, slot.continues()) };
            debug_assert_eq!(held, 0, "slot {at} had a buffer while the program had the slot");
            *ring.meta_mut(at) = Meta::default();
            n += 1;
        }
        ring.release(n);
        Ok(())
    }

    /// Hands out the room that the ring has got. Returns how many slots are new.
    pub fn hand_out(&mut self, ring: &mut Ring) -> u32 {
        let mut n = 0;
        while self.image.tail != ring.tail() {
            let at = self.image.tail;
            let slot = *ring.slot(at);
            let (buf, ptr) = (ring.take(at).buffer(), slot.offset().into());
            self.image.hand_out(Slot { buf, flags: 0, len: slot.len, ptr }, &self.held);
            n += 1;
        }
        self.image.publish();
        n
    }
}

/// A receive ring's way: from the ring to the program.
#[derive(Debug)]
pub struct Incoming {
    image: Image,
    held: Arc<LentBuffers>,
    pool: Arc<Pool>,
    /// For each slot of the image that the program does not have, its buffer.
    kept: Vec<u32>,
    /// Packets of more slots than the image has.
    pub too_long: u64,
}

impl Incoming {
    /// Serves a receive ring, with as many buffers of `pool` as the ring has slots.
    pub fn new(
        ring: &Ring,
        number: u32,
        pool: &Arc<Pool>,
        held: &Arc<LentBuffers>,
    ) -> Result<Self> {
        let slots = ring.num_slots();
        let image = Image::new(pool, slots, (number, false), 0)?;
        // A direction that the queue does not have takes no buffer.
        let kept = if slots > 1 { pool.take(slots as usize)? } else { Vec::new() };
        Ok(Self { image, held: Arc::clone(held), pool: Arc::clone(pool), kept, too_long: 0 })
    }

    /// Where the image begins, from the start of the memory.
    pub fn offset(&self) -> usize {
        self.image.offset()
    }

    /// Takes back the slots that the program is done with.
    ///
    /// # Errors
    /// One of them cannot be.
    pub fn take_back(&mut self) -> Result<(), ImageFault> {
        let head = self.image.given_back()?;
        while self.image.head != head {
            let at = self.image.head as usize;
            self.kept[at] = self.image.take_back(&self.held)?.buf;
        }
        Ok(())
    }

    /// Hands out the packets in the ring, whole ones, as far as there is room. Returns how many
    /// slots are new.
    pub fn hand_out(&mut self, ring: &mut Ring) -> u32 {
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

    /// The next packet's slots in the ring, and those that it needs in the image.
    fn next_packet(&self, ring: &Ring) -> Option<(u32, u32)> {
        let (mut at, mut needed) = (ring.head(), 0);
        for n in 1..=ring.available() {
            let slot = ring.slot(at);
            let buffers = u32::from(slot.len).div_ceil(self.pool.buffer_bytes()).max(1);
            needed += if self.can_exchange(ring, slot) { 1 } else { buffers };
            if !slot.continues() || n == ring.available() {
                return Some((n, needed));
            }
            at = ring.next(at);
        }
        None
    }

    fn can_exchange(&self, ring: &Ring, slot: &Slot) -> bool {
        !slot.is_indirect() && slot.buf != 0 && ring.uses_pool(&self.pool)
    }

    /// Hands one slot of the ring over: by exchange, or copied.
    fn hand_over(&mut self, ring: &mut Ring, at: u32) {
        let slot = *ring.slot(at);
        if self.can_exchange(ring, &slot) {
            let kept = std::mem::take(&mut self.kept[self.image.tail as usize]);
            // SAFETY: the buffer is out of `kept`, of the pool that the ring draws from (`can_exchange`).
            let buf = unsafe { ring.fill_at(at, kept, 0, 0, false) };
            let (flags, ptr) = (slot.flags & flags::MOREFRAG, slot.offset().into());
            return self.image.hand_out(Slot { buf, len: slot.len, flags, ptr }, &self.held);
        }
        // SAFETY: the slot is in [head, tail), and we are the ring's program.
        let mut rest = unsafe { ring.bytes_unchecked(at) };
        loop {
            let (now, later) = rest.split_at(rest.len().min(self.pool.buffer_bytes() as usize));
            let goes_on = slot.continues() || !later.is_empty();
            let buf = std::mem::take(&mut self.kept[self.image.tail as usize]);
            self.image.copy_in(buf, now);
            let flags = if goes_on { flags::MOREFRAG } else { 0 };
            self.image.hand_out(Slot { buf, len: now.len() as u16, flags, ptr: 0 }, &self.held);
            rest = later;
            if rest.is_empty() {
                return;
            }
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // SAFETY: `kept` alone holds them, and ends here.
        unsafe { self.pool.give(self.kept.iter().copied().filter(|&buffer| buffer != 0)) };
    }
}
