//! A ring: a circular array of slots with two cursors. Each slot has one owner at a time.
//!
//! ```text
//!                  head                       tail
//!                    v                          v
//!   +----+----+----+----+----+----+----+----+----+----+----+----+
//!   | b  | b  | b  | p  | p  | p  | p  | p  | b  | b  | b  | b  |
//!   +----+----+----+----+----+----+----+----+----+----+----+----+
//!                    <----- the program's ---->
//!         <- the backend's ->                  <- the backend's ->
//! ```
//!
//! The program owns the slots in [head, tail), circularly; the backend owns the rest. The program moves
//! head (gives slots back). The backend moves tail (gives slots out), and only inside `sync`, which borrows
//! the queue mutably: while the program holds a slice of a packet, no sync can run, so no byte changes
//! under it. The semantics are netmap's; the memory layout differs from the one that netmap programs see.
//!
//! | | receive ring | transmit ring |
//! | --- | --- | --- |
//! | slots in [head, tail) | packets to read | room for packets to send |
//! | program moves head past a slot | has read the packet | submits it |
//! | backend moves tail past a slot | a packet has arrived | an earlier one was sent |
//! | at the start | none | all but one |
//!
//! One slot always stays with the backend, so that head = tail means "none". A slot with a buffer number
//! other than 0 is that buffer's only holder, no matter which side owns the slot. An INDIRECT slot points at
//! the backend's own bytes (a kernel block, a file's buffer). These stay valid until the sync after the
//! program has given the slot back. A SHARED slot points at bytes that a peer may write: see
//! [`flags::SHARED`].
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr::NonNull;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::{Pool, prefetch};

mod backend;
pub mod cursor;
mod packet;
mod ring_mut;
mod slot;
#[cfg(test)]
mod tests;

pub use cursor::{AtomicU16, AtomicU32, Ordering, fence};
pub use packet::{Packet, Packets, Segments};
pub use ring_mut::{Filled, RingMut, Swapped};
pub use slot::{
    Direction, Interface, LINKTYPE_ETHERNET, Meta, Slot, TimestampSource, flags, now_ns,
};

/// Slots from the SHARED one that is copied to the one that is prefetched.
const AHEAD: u32 = 8;

/// A receive or transmit ring. One thread uses it at a time.
#[derive(Debug)]
pub struct Ring {
    /// In cells, because a SHARED slot changes at the first look.
    slots: Box<[Cell<Slot>]>,
    /// One entry per slot.
    metas: Box<[Meta]>,
    /// The first slot that the program owns.
    head: u32,
    /// The first slot that the program does not own.
    tail: u32,
    transmits: bool,
    pool: Arc<Pool>,
}

impl Ring {
    /// Makes a receive ring of `num_slots` slots, with a pool buffer in each.
    ///
    /// # Errors
    /// No slots were requested, or the pool has fewer free buffers.
    pub fn receive(pool: &Arc<Pool>, num_slots: u32) -> Result<Self> {
        Self::new(pool, num_slots, false, true)
    }

    /// Makes a receive ring of INDIRECT slots only: it takes no buffers.
    ///
    /// # Errors
    /// No slots were requested.
    pub fn receive_indirect(pool: &Arc<Pool>, num_slots: u32) -> Result<Self> {
        Self::new(pool, num_slots, false, false)
    }

    /// Makes a transmit ring of `num_slots` slots, with a pool buffer in each.
    ///
    /// # Errors
    /// No slots were requested, or the pool has fewer free buffers.
    pub fn transmit(pool: &Arc<Pool>, num_slots: u32) -> Result<Self> {
        Self::new(pool, num_slots, true, true)
    }

    /// Makes the ring for a direction that a queue does not have. It never holds a packet.
    pub fn absent(pool: &Arc<Pool>) -> Result<Self> {
        Self::new(pool, 1, false, false)
    }

    fn new(pool: &Arc<Pool>, num_slots: u32, transmits: bool, buffers: bool) -> Result<Self> {
        if num_slots == 0 {
            return Err(Error::Usage("a ring of 0 slots: use at least 2".into()));
        }
        let n = num_slots as usize;
        let taken = if buffers { pool.take(n)? } else { vec![0; n] };
        Ok(Self {
            slots: taken.into_iter().map(|buf| Slot { buf, ..Slot::default() }.into()).collect(),
            metas: vec![Meta::default(); n].into(),
            head: 0,
            tail: if transmits { num_slots - 1 } else { 0 },
            transmits,
            pool: Arc::clone(pool),
        })
    }

    /// Returns true for the ring of a direction that the queue does not have: it never holds a packet.
    #[inline]
    pub fn is_absent(&self) -> bool {
        self.slots.len() == 1
    }

    /// Returns the number of slots; the ring holds one packet fewer.
    #[inline]
    pub fn num_slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the first slot that the program owns.
    #[inline]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Returns the first slot that the program does not own.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Returns the number of slots that the program owns: packets to read, or room to send.
    #[inline]
    pub fn available(&self) -> u32 {
        self.distance(self.head(), self.tail())
    }

    /// Returns the number of slots that the backend owns and may hand over: room for packets that arrive.
    #[inline]
    pub fn backend_slots(&self) -> u32 {
        self.num_slots() - 1 - self.available()
    }

    /// Returns the number of steps from one slot to another, counting up.
    #[inline]
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { to + self.num_slots() - from }
    }

    /// Returns the slot after this one.
    #[inline]
    pub fn next(&self, index: u32) -> u32 {
        if index + 1 >= self.num_slots() { 0 } else { index + 1 }
    }

    /// Returns the slot `n` steps after this one; `n` is at most the number of slots.
    #[inline]
    pub fn after(&self, index: u32, n: u32) -> u32 {
        let sum = index + n;
        if sum >= self.num_slots() { sum - self.num_slots() } else { sum }
    }

    /// Returns the slot before this one.
    #[inline]
    pub fn before(&self, index: u32) -> u32 {
        if index == 0 { self.num_slots() - 1 } else { index - 1 }
    }

    /// Returns the size of the slots' buffers.
    #[inline]
    pub fn buffer_bytes(&self) -> u32 {
        self.pool.buffer_bytes()
    }

    /// Returns the slot at an index below [`num_slots`](Self::num_slots), owned by either side.
    #[inline]
    pub fn slot(&self, index: u32) -> Slot {
        self.slots[index as usize].get()
    }

    /// Returns a slot's metadata.
    #[inline]
    pub fn meta(&self, index: u32) -> &Meta {
        &self.metas[index as usize]
    }

    #[inline]
    fn slot_mut(&mut self, index: u32) -> &mut Slot {
        self.slots[index as usize].get_mut()
    }

    /// Returns a slot's metadata for writing.
    #[inline]
    pub fn meta_mut(&mut self, index: u32) -> &mut Meta {
        &mut self.metas[index as usize]
    }

    /// Returns true if the program owns the slot.
    #[inline]
    fn owns(&self, index: u32) -> bool {
        index < self.num_slots() && self.distance(self.head(), index) < self.available()
    }

    #[inline]
    pub(super) fn assert_owned(&self, index: u32) {
        assert!(self.owns(index), "slot {index} is the backend's");
    }

    /// Returns the bytes in a slot that the program owns.
    ///
    /// # Panics
    /// On a slot the program does not own.
    #[inline]
    pub fn bytes(&self, index: u32) -> &[u8] {
        self.assert_owned(index);
        // SAFETY: the program owns the slot.
        unsafe { self.bytes_unchecked(index) }
    }

    /// Returns the bytes in a slot.
    ///
    /// # Safety
    /// `index` is below `num_slots`, and the program owns the slot, or the backend knows that its bytes are
    /// valid and unchanging.
    #[inline]
    pub unsafe fn bytes_unchecked(&self, index: u32) -> &[u8] {
        debug_assert!(index < self.num_slots());
        // SAFETY: the caller's contract: the index is in range.
        let slot = unsafe { self.slots.get_unchecked(index as usize) }.get();
        let start = self.start_of(index, slot);
        // SAFETY: a pool buffer has `len` bytes from the slot's offset on (all that set a length or an offset
        // check this), and only this slot holds it. The caller of `point` guarantees an INDIRECT range. Both
        // stay valid and unchanged while `self` is borrowed, because only a sync or `&mut self` changes them,
        // and `copy_in` writes a buffer once, before its first slice.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), usize::from(slot.len)) }
    }

    /// Returns the whole buffer of a slot.
    ///
    /// # Safety
    /// As [`bytes_unchecked`](Self::bytes_unchecked).
    #[inline]
    pub unsafe fn buffer_unchecked(&mut self, index: u32) -> &mut [u8] {
        let buf = self.slot(index).buf;
        let len = if buf == 0 { 0 } else { self.pool.buffer_bytes() as usize };
        // SAFETY: only this slot holds buffer `buf`, which has `buffer_bytes` bytes; `&mut self` makes it
        // the only access.
        unsafe { std::slice::from_raw_parts_mut(self.pool.address(buf).as_ptr(), len) }
    }

    /// Returns the address of a slot's bytes. Copies those of a SHARED slot first.
    #[inline]
    fn start_of(&self, index: u32, slot: Slot) -> NonNull<u8> {
        if slot.is_indirect()
            && let Some(start) = slot.external_address()
        {
            return start;
        }
        if slot.is_shared() {
            self.copy_shared(index, slot);
        }
        let offset = usize::from(slot.offset());
        self.pool.address(slot.buf).map_addr(|buffer| buffer.saturating_add(offset))
    }

    /// Copies the bytes of a SHARED slot into its buffer. Leaves any other slot unchanged.
    #[inline]
    fn copy_in(&self, index: u32) {
        let slot = self.slot(index);
        if slot.is_shared() {
            self.copy_shared(index, slot);
        }
    }

    /// Copies the bytes of a SHARED slot. Not inlined: it would take registers of loops over other slots.
    #[cold]
    #[inline(never)]
    fn copy_shared(&self, index: u32, slot: Slot) {
        // Packets are looked at in order; the bytes are in the cache of the peer's CPU.
        if let Some(later) = self.slots.get((index + AHEAD) as usize)
            && later.get().is_shared()
        {
            prefetch(std::ptr::with_exposed_provenance(later.get().ptr as usize));
        }
        if let Some(start) = slot.external_address() {
            let buffer = self.pool.address(slot.buf).as_ptr();
            // SAFETY: the caller of `share` guarantees `len` bytes at `start`, and has checked that the
            // buffer has as many. Only this slot holds the buffer, and nobody has a slice of it as long as the
            // slot is SHARED. The other process may write the source meanwhile: no reference is made, and
            // any bytes are valid.
            unsafe { start.as_ptr().copy_to_nonoverlapping(buffer, slot.len.into()) };
        }
        self.slots[index as usize].set(Slot { ptr: 0, flags: slot.flags & !flags::SHARED, ..slot });
    }

    /// Sets the packet's offset to the first byte of its buffer. Leaves an INDIRECT slot unchanged, because
    /// its length belongs to its address.
    #[inline]
    fn start_at_zero(&mut self, index: u32) {
        let slot = self.slot_mut(index);
        if !slot.is_indirect() {
            slot.ptr = 0;
        }
    }

    /// Sets the packet's length in a slot's buffer, and whether the packet continues in the next slot.
    /// Leaves the packet's offset unchanged.
    ///
    /// # Panics
    /// If the buffer ends before the packet.
    #[inline]
    pub fn set_bytes(&mut self, index: u32, bytes: u16, continues: bool) {
        let limit = self.pool.buffer_bytes();
        let slot = self.slot_mut(index);
        let offset = slot.offset();
        assert_fits(slot.buf, offset, bytes, limit);
        slot.ptr = u64::from(offset);
        slot.len = bytes;
        slot.flags = if continues { flags::MOREFRAG } else { 0 };
    }

    /// Returns the packets that the program owns, in order. Give them back with
    /// [`release`](RingMut::release).
    #[inline]
    pub fn packets(&self) -> Packets<'_> {
        Packets { ring: self, at: self.head(), left: self.available() }
    }

    /// Gives `n` slots back to the backend: packets that were read, or packets to send.
    ///
    /// # Panics
    /// If the program owns fewer slots.
    #[inline]
    pub fn release(&mut self, n: u32) {
        assert!(n <= self.available(), "releasing {n} slots, owning {}", self.available());
        self.head = self.after(self.head, n);
    }

    /// Returns true if two rings share a pool, so that slots can be swapped between them.
    #[inline]
    pub fn shares_pool(&self, other: &Self) -> bool {
        self.uses_pool(&other.pool)
    }

    /// Returns true if the ring's buffers are from this pool.
    #[inline]
    pub fn uses_pool(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }
}

#[inline]
fn assert_fits(buffer: u32, offset: u16, bytes: u16, limit: u32) {
    assert!(
        buffer != 0 && u32::from(offset) + u32::from(bytes) <= limit,
        "{bytes} bytes at {offset} in buffer {buffer} of {limit}"
    );
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: each buffer is held by one slot alone, and the slots end here.
        unsafe { self.pool.give(self.slots.iter().map(|it| it.get().buf).filter(|&buf| buf != 0)) };
    }
}

/// How a thread waits for packets: by default it spins for 20 µs, then sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Never sleeps: the shortest delay, but occupies a core.
    Spin,
    /// Sleeps in ppoll(2) at once: the least processor time.
    Sleep,
    /// Spins for this time, then sleeps.
    Adaptive(Duration),
}

impl Default for Wait {
    /// Spins for 20 µs, about what a sleep and a wake-up cost, then sleeps.
    fn default() -> Self {
        Self::Adaptive(Duration::from_micros(20))
    }
}

impl FromStr for Wait {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "spin" => Ok(Self::Spin),
            "sleep" => Ok(Self::Sleep),
            "adaptive" => Ok(Self::default()),
            _ => Err(Error::Usage(format!("wait '{text}': use spin, sleep or adaptive"))),
        }
    }
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// A sync has work to do. Some ports are ready as long as the program holds packets: a program that
    /// keeps packets because a target is full must sleep by itself.
    Ready,
    /// The timeout has expired.
    TimedOut,
    /// The interface is down, reported once. Packets arrive again when it is up: go on waiting.
    Down,
}
