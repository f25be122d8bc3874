//! The image of a ring: what another process sees of it, and writes.
//!
//! The memory is the other process's as much as ours, and it may write any byte of it at any time.
//! So nothing in it is believed, and nothing is read twice: what is read is a copy, and the copy is
//! checked. What the program may not write (the ring's size, where its buffers are, `tail`) is
//! known from elsewhere.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::size_of;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
// Not loom's: these lie where another process sees them.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::layout::{RingHeader, Slot, flags};
use super::lent_buffers::LentBuffers;
use crate::error::Result;
use crate::memory::Pool;

/// What a program may say of a slot that it gives back; INDIRECT is not of these, for its address
/// would be one of ours.
const KNOWN_FLAGS: u16 =
    flags::BUF_CHANGED | flags::REPORT | flags::FORWARD | flags::NO_LEARN | flags::MOREFRAG;

/// What a program has written that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFault {
    slot: Option<u32>,
    field: &'static str,
    value: u64,
    why: String,
}

impl fmt::Display for ImageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(slot) = self.slot {
            write!(f, "slot {slot}: ")?;
        }
        write!(f, "{} is {}, {}", self.field, self.value, self.why)
    }
}

/// A ring's image, in the ring area of its pool.
#[derive(Debug)]
pub(super) struct Image {
    header: NonNull<RingHeader>,
    slots: NonNull<Slot>,
    num_slots: u32,
    pool: Arc<Pool>,
    place: Range<usize>,
    /// The first slot that the program has not given back, as far as its word was taken.
    pub(super) head: u32,
    /// The first slot that the program was not given.
    pub(super) tail: u32,
}

// SAFETY: the pointers lead into memory of `pool`, which the image keeps alive; it is shared with
// another process anyway and is only accessed as this module does.
unsafe impl Send for Image {}

impl Image {
    /// An image in which every slot is the server's: head and tail both stand at `start`.
    pub(super) fn new(
        pool: &Arc<Pool>,
        num_slots: u32,
        (number, transmit): (u32, bool),
        start: u32,
    ) -> Result<Self> {
        let place =
            pool.take_ring(size_of::<RingHeader>() + num_slots as usize * size_of::<Slot>())?;
        let image = Self {
            header: pool.image_at(place.start).cast(),
            slots: pool.image_at(place.start + size_of::<RingHeader>()).cast(),
            num_slots,
            pool: Arc::clone(pool),
            head: start,
            tail: start,
            place,
        };
        let buf_ofs = (pool.buffers_at() - image.place.start) as i64;
        let mut header = RingHeader::new(buf_ofs, num_slots, pool.buffer_bytes(), transmit);
        header.ringid = number as u16;
        (header.head, header.cur, header.tail) = (start, start, start);
        // SAFETY: `place` is aligned (RING_ALIGNMENT), is long enough for header and slots, and was just
        // taken.
        unsafe { image.header.write_volatile(header) };
        (0..num_slots).for_each(|index| image.write(index, Slot::default()));
        Ok(image)
    }

    /// Where it begins, from the start of the memory.
    pub(super) fn offset(&self) -> usize {
        self.place.start
    }

    /// Slots that the program has.
    pub(super) fn out(&self) -> u32 {
        self.distance(self.head, self.tail)
    }

    /// Slots that it may be given.
    pub(super) fn room(&self) -> u32 {
        self.num_slots - 1 - self.out()
    }

    /// Slots in the ring.
    pub(super) fn num_slots(&self) -> u32 {
        self.num_slots
    }

    /// The slot after this one.
    pub(super) fn next(&self, index: u32) -> u32 {
        if index + 1 >= self.num_slots { 0 } else { index + 1 }
    }

    fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { to + self.num_slots - from }
    }

    /// Up to where the program has given slots back.
    ///
    /// # Errors
    /// A cursor that is not where it can be: head and cur between the last head and tail, cur not
    /// before head, tail where we have put it.
    pub(super) fn given_back(&self) -> Result<u32, ImageFault> {
        // SAFETY: the header lies in the mapping, and its cursors are 4-byte aligned; they are only
        // accessed as atomics from `new` on.
        let (head, cur, tail) = unsafe {
            let header = self.header.as_ptr();
            (
                AtomicU32::from_ptr(&raw mut (*header).head),
                AtomicU32::from_ptr(&raw mut (*header).cur),
                AtomicU32::from_ptr(&raw mut (*header).tail),
            )
        };
        // Acquire: pairs with the program's store of head, or the call by which it asks for the
        // sync, and publishes the slots before it and their buffers.
        let head = head.load(Ordering::Acquire);
        let (cur, tail) = (cur.load(Ordering::Relaxed), tail.load(Ordering::Relaxed));
        let fault = |field, value: u32, why| {
            Err(ImageFault { slot: None, field, value: value.into(), why })
        };
        if tail != self.tail {
            return fault("tail", tail, format!("and only the server moves it, to {}", self.tail));
        }
        let between = |first| format!("not in {first}..={tail}, round the ring's end");
        if head >= self.num_slots || self.distance(self.head, head) > self.out() {
            return fault("head", head, between(self.head));
        }
        if cur >= self.num_slots || self.distance(head, cur) > self.distance(head, tail) {
            return fault("cur", cur, between(head));
        }
        Ok(head)
    }

    /// Takes back the slot at head: a copy that has been checked, whose buffer the caller holds.
    ///
    /// # Errors
    /// What the slot says cannot be. Its buffer, whichever it is, stays where it was.
    pub(super) fn take_back(&mut self, held: &LentBuffers) -> Result<Slot, ImageFault> {
        let slot = self.read(self.head);
        let fault =
            |field, value, why| Err(ImageFault { slot: Some(self.head), field, value, why });
        let limit = u64::from(self.pool.buffer_bytes());
        if slot.ptr > limit {
            return fault("ptr", slot.ptr, format!("and a buffer has {limit} bytes"));
        }
        if u64::from(slot.len) > limit - slot.ptr {
            let why = format!("from {} on, and a buffer has {limit} bytes", slot.ptr);
            return fault("len", slot.len.into(), why);
        }
        let unknown = slot.flags & !KNOWN_FLAGS;
        if unknown != 0 {
            return fault("flags", slot.flags.into(), format!("and {unknown:#x} has no meaning"));
        }
        if !held.take_back(slot.buf) {
            return fault("buf_idx", slot.buf.into(), "which the program does not have".into());
        }
        self.head = self.next(self.head);
        Ok(slot)
    }

    /// Writes the slot at tail, which is the program's from the next `publish` on.
    pub(super) fn hand_out(&mut self, slot: Slot, held: &LentBuffers) {
        held.lend(slot.buf);
        self.write(self.tail, slot);
        self.tail = self.next(self.tail);
    }

    /// Shows the program the slots up to tail.
    pub(super) fn publish(&self) {
        // SAFETY: as in `given_back`.
        let tail = unsafe { AtomicU32::from_ptr(&raw mut (*self.header.as_ptr()).tail) };
        // Release: pairs with the program's read of tail, or the return from its call, and
        // publishes the slots before it and their buffers.
        tail.store(self.tail, Ordering::Release);
    }

    /// Copies bytes to the start of a buffer that the server holds.
    ///
    /// # Panics
    /// If it has fewer.
    pub(super) fn copy_in(&self, buffer: u32, bytes: &[u8]) {
        assert!(bytes.len() <= self.pool.buffer_bytes() as usize && buffer < self.pool.buffers());
        // SAFETY: the buffer has as many bytes, and `bytes` are elsewhere: no slice is ever made of
        // a buffer that the server holds. Only the other process may write there meanwhile.
        unsafe {
            self.pool.address(buffer).as_ptr().copy_from(bytes.as_ptr(), bytes.len());
        }
    }

    /// A copy of a slot, each byte of it read once.
    fn read(&self, index: u32) -> Slot {
        let [first, ptr] = self.halves(index).map(|half| half.load(Ordering::Relaxed));
        let [a, b, c, d, len @ .., f, g] = first.to_ne_bytes();
        let (buf, flags) = (u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([f, g]));
        Slot { buf, len: u16::from_ne_bytes(len), flags, ptr }
    }

    fn write(&self, index: u32, slot: Slot) {
        let ([a, b, c, d], [e, f], [g, h]) =
            (slot.buf.to_ne_bytes(), slot.len.to_ne_bytes(), slot.flags.to_ne_bytes());
        let first = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        let halves = self.halves(index);
        halves[0].store(first, Ordering::Relaxed);
        halves[1].store(slot.ptr, Ordering::Relaxed);
    }

    /// A slot's two words. Relaxed is enough for both: head and tail publish them.
    fn halves(&self, index: u32) -> [&AtomicU64; 2] {
        assert!(index < self.num_slots);
        // SAFETY: the slot lies in the mapping, is 8-byte aligned, and is only accessed as these
        // atomics.
        unsafe {
            let first = self.slots.add(index as usize).cast::<u64>().as_ptr();
            [AtomicU64::from_ptr(first), AtomicU64::from_ptr(first.add(1))]
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.pool.give_ring(self.place.clone());
    }
}
