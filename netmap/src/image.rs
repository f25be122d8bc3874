//! The image of a ring: the memory that a program in another process reads and writes.
//!
//! The program may write any byte of it and of its buffers at any time. So the server makes no reference to
//! packets there, and reads nothing twice: it copies a value and checks the copy. It keeps values that the
//! program must not change (the ring's size, the position of its buffers, `tail`) outside the image.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::size_of;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
// Not loom's atomics, because another process accesses these.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::{Error, Result};

use crate::abi::{RingHeader, Slot, flags};
use crate::lent_buffers::LentBuffers;

/// Flags that a program may set in a slot that it returns. INDIRECT is not among them, because it would be an
/// address in the server.
const KNOWN_FLAGS: u16 =
    flags::BUF_CHANGED | flags::REPORT | flags::FORWARD | flags::NO_LEARN | flags::MOREFRAG;

/// An invalid value written into an image by its program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageFault {
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

/// A ring's image, in the ring area of its region.
#[derive(Debug)]
pub(crate) struct Image {
    header: NonNull<RingHeader>,
    slots: NonNull<Slot>,
    num_slots: u32,
    area: Arc<RingArea>,
    range: Range<usize>,
    /// The buffers of the slots that the program does not have; 0 for the others.
    spare_buffers: Vec<u32>,
    /// The first slot that the program has not returned, as last checked.
    pub(crate) head: u32,
    /// The first slot not handed out to the program.
    pub(crate) tail: u32,
}

// SAFETY: the pointers lead into memory of `area`, which the image keeps alive; it is shared with
// another process anyway and is only accessed as this module does.
unsafe impl Send for Image {}

impl Image {
    /// Creates an image in which every slot belongs to the server, and takes a buffer for each.
    pub(crate) fn new(
        area: &Arc<RingArea>,
        num_slots: u32,
        (number, transmits): (u32, bool),
    ) -> Result<Self> {
        let range = area.take(size_of::<RingHeader>() + num_slots as usize * size_of::<Slot>())?;
        let pool = area.pool();
        let mut image = Self {
            header: pool.header_address(range.start).cast(),
            slots: pool.header_address(range.start + size_of::<RingHeader>()).cast(),
            num_slots,
            area: Arc::clone(area),
            spare_buffers: Vec::new(),
            head: 0,
            tail: 0,
            range,
        };
        // A missing direction of the queue takes no buffers.
        image.spare_buffers = pool.take(if num_slots > 1 { num_slots as usize } else { 0 })?;
        let buf_ofs = (pool.buffers_at() - image.range.start) as i64;
        let sizes = (num_slots, pool.buffer_bytes());
        let header = RingHeader::new(buf_ofs, sizes, (number as u16, transmits));
        // SAFETY: `range` is aligned (RingArea::ALIGNMENT), is long enough for header and slots, and was
        // just taken.
        unsafe { image.header.write_volatile(header) };
        (0..num_slots).for_each(|index| image.write(index, Slot::default()));
        Ok(image)
    }

    /// Returns the offset of the image in the region.
    pub(crate) fn offset(&self) -> usize {
        self.range.start
    }

    /// Returns the number of slots that the program has.
    pub(crate) fn out(&self) -> u32 {
        self.distance(self.head, self.tail)
    }

    /// Returns the number of slots that may be handed out.
    pub(crate) fn room(&self) -> u32 {
        self.num_slots - 1 - self.out()
    }

    /// Returns the number of slots in the ring.
    pub(crate) fn num_slots(&self) -> u32 {
        self.num_slots
    }

    /// Returns the size of a buffer.
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.area.pool().buffer_bytes()
    }

    /// Returns the slot after this one.
    fn next(&self, index: u32) -> u32 {
        if index + 1 >= self.num_slots { 0 } else { index + 1 }
    }

    fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { to + self.num_slots - from }
    }

    /// Reads the program's head: the first slot that it has not returned.
    ///
    /// # Errors
    /// An invalid cursor. Valid are head and cur between the last head and tail, cur not before head, and
    /// tail at the server's value.
    pub(crate) fn given_back(&self) -> Result<u32, ImageFault> {
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

    /// Takes back the slot at head: a checked copy.
    ///
    /// # Errors
    /// An invalid slot. Its buffer stays with its holder.
    pub(crate) fn take_back(&mut self) -> Result<Slot, ImageFault> {
        let slot = self.read(self.head);
        let fault =
            |field, value, why| Err(ImageFault { slot: Some(self.head), field, value, why });
        let limit = u64::from(self.buffer_bytes());
        if slot.ptr > limit.min(u16::MAX.into()) {
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
        if !self.area.lent.take_back(slot.buf_idx) {
            return fault("buf_idx", slot.buf_idx.into(), "which the program does not have".into());
        }
        self.spare_buffers[self.head as usize] = slot.buf_idx;
        self.head = self.next(self.head);
        Ok(slot)
    }

    /// Hands out the slot at tail, with `bytes` in its buffer. The program owns it after the next `publish`.
    ///
    /// # Panics
    /// The buffer is shorter than `bytes`.
    pub(crate) fn hand_out(&mut self, bytes: &[u8], continues: bool) {
        let buf_idx = std::mem::take(&mut self.spare_buffers[self.tail as usize]);
        let flags = if continues { flags::MOREFRAG } else { 0 };
        let slot = Slot { buf_idx, len: bytes.len() as u16, flags, ptr: 0 };
        // SAFETY: as in `copy_out`.
        unsafe { self.address(&slot).copy_from_nonoverlapping(bytes.as_ptr(), slot.len.into()) };
        self.area.lent.lend(buf_idx);
        self.write(self.tail, slot);
        self.tail = self.next(self.tail);
    }

    /// Publishes the slots up to tail to the program.
    pub(crate) fn publish(&self) {
        // SAFETY: as in `given_back`.
        let tail = unsafe { AtomicU32::from_ptr(&raw mut (*self.header.as_ptr()).tail) };
        // Release: pairs with the program's read of tail, or the return from its call, and
        // publishes the slots before it and their buffers.
        tail.store(self.tail, Ordering::Release);
    }

    /// Copies the packet of a slot that was taken back to the start of `buffer`.
    ///
    /// # Panics
    /// `buffer` is shorter than the packet.
    pub(crate) fn copy_out(&self, slot: &Slot, buffer: &mut [u8]) {
        let to = &mut buffer[..slot.len.into()];
        // SAFETY: the packet's bytes lie in the mapping (`address`). They are other memory than `buffer`,
        // because no slice of a region's buffers is ever made. The program may write them meanwhile: any bytes
        // are valid.
        unsafe { self.address(slot).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    /// Returns the address of a slot's packet.
    ///
    /// # Panics
    /// The packet is not within a buffer of the region.
    fn address(&self, slot: &Slot) -> *mut u8 {
        let (pool, end) = (self.area.pool(), slot.ptr.saturating_add(slot.len.into()));
        assert!(slot.buf_idx < pool.buffers() && end <= pool.buffer_bytes().into());
        pool.address(slot.buf_idx).as_ptr().wrapping_add(slot.ptr as usize)
    }

    /// Copies a slot; reads each byte once.
    fn read(&self, index: u32) -> Slot {
        let words: [u64; 2] = self.halves(index).map(|half| half.load(Ordering::Relaxed));
        // SAFETY: a slot is integers without padding (abi), for which any bytes are a value.
        unsafe { std::mem::transmute(words) }
    }

    fn write(&self, index: u32, slot: Slot) {
        // SAFETY: as in `read`.
        let words: [u64; 2] = unsafe { std::mem::transmute(slot) };
        for (half, word) in self.halves(index).into_iter().zip(words) {
            half.store(word, Ordering::Relaxed);
        }
    }

    /// Returns a slot's two words. Relaxed accesses suffice: head and tail publish them.
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
        let spare = self.spare_buffers.iter().copied().filter(|&buffer| buffer != 0);
        // SAFETY: `spare_buffers` alone holds them, and ends here.
        unsafe { self.area.pool().give(spare) };
        self.area.give(self.range.clone());
    }
}

/// A region's memory. The part before its buffers holds the images of rings.
#[derive(Debug)]
pub(crate) struct RingArea {
    pool: Arc<Pool>,
    /// The buffers that the program has.
    pub(crate) lent: LentBuffers,
    /// Free ranges, in order, no two adjacent.
    free: Mutex<Vec<Range<usize>>>,
}

impl RingArea {
    /// Images begin at multiples of this: two cache lines, as `struct netmap_ring` does.
    pub(crate) const ALIGNMENT: usize = 128;

    /// Creates a pool with room for `bytes` bytes of images before its buffers.
    pub(crate) fn new(config: PoolConfig, bytes: usize) -> Result<Self> {
        let pool = Pool::with_header(config, bytes.max(1))?;
        let free = Mutex::new(std::iter::once(0..pool.buffers_at()).collect());
        let lent = LentBuffers::none_of(pool.buffers());
        Ok(Self { pool, lent, free })
    }

    /// Returns the pool of buffers after the area.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Allocates `bytes` bytes, aligned.
    pub(crate) fn take(&self, bytes: usize) -> Result<Range<usize>> {
        let bytes = bytes.next_multiple_of(Self::ALIGNMENT);
        let mut free = self.free();
        let Some(range) = free.iter_mut().find(|range| range.len() >= bytes) else {
            let message = "the region's ring area is full: make it larger";
            return Err(Error::Usage(message.into()));
        };
        let taken = range.start..range.start + bytes;
        range.start = taken.end;
        free.retain(|range| !range.is_empty());
        Ok(taken)
    }

    /// Frees a range.
    pub(crate) fn give(&self, range: Range<usize>) {
        let mut free = self.free();
        free.push(range);
        free.sort_by_key(|range| range.start);
        free.dedup_by(|next, range| {
            let adjacent = range.end == next.start;
            if adjacent {
                range.end = next.end;
            }
            adjacent
        });
    }

    fn free(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_ring_area_is_used_again() {
        let config = PoolConfig { buffers: 1, ..PoolConfig::default() };
        let area = RingArea::new(config, 4000).unwrap();
        let a = area.take(1000).unwrap();
        let b = area.take(1000).unwrap();
        let c = area.take(2000).unwrap();
        assert_eq!((a.len(), c.end), (1024, 4096));
        assert!(area.take(1).is_err());
        area.give(a);
        area.give(c);
        area.give(b);
        assert_eq!(area.take(4096).unwrap(), 0..4096, "neighbours are joined");
    }
}
