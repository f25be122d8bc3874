//! The pool: memory for rings, and a memory file of packet buffers that others can share.
//!
//! ```text
//!   ring area: this process's own        buffers × buffer size: a file
//!   +-----------+-----------+-----+      +-----+-----+-----+- - -+-----+
//!   | ring      | ring      | ... |      |  0  |  1  |  2  |     | n-1 |
//!   +-----------+-----------+-----+      +-----+-----+-----+- - -+-----+
//!                                         reserved, as in netmap
//! ```
//!
//! Rings are never in the file: whoever can write a slot can have it name any bytes.
//!
//! A buffer is known by its number. At any time exactly one holder has it: the free list or
//! one slot of one ring; it moves between slots by swapping, never by copying the number.
//! That is what makes `&mut` to a slot's bytes sound, and what makes forwarding free of
//! copies. Taking and returning lock a mutex: ports do it when they open and close, not per
//! packet.
//!
//! The file of a pool that is served to another process has images of the rings before the buffers,
//! which that process may write.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::mmap::{Mmap, PAGE_BYTES};
use crate::error::{Error, Result};

/// Buffers 0 and 1 belong to nobody: 0 stands for "no buffer" (netmap's convention).
const RESERVED: u32 = 2;

/// The most that a pool may have: what an address space has room for, and far from overflow.
const MAX_BYTES: usize = 1 << 46;

/// Rings begin at multiples of this: two lines of the cache, as netmap's header has it.
pub const RING_ALIGNMENT: usize = 128;

/// The size of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// How many buffers a user can have.
    pub buffers: u32,
    /// Bytes in each: a multiple of 64, and of 2048 or 4096 where AF_XDP shall use the pool.
    pub buffer_bytes: u32,
    /// Room for rings, in bytes.
    pub ring_area_bytes: usize,
    /// Pages of 2 MiB where the system has them to spare.
    pub huge_pages: bool,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self { buffers: 4096, buffer_bytes: 2048, ring_area_bytes: 1 << 20, huge_pages: false }
    }
}

/// Packet buffers of one size, and the rings that name them.
#[derive(Debug)]
pub struct Pool {
    /// Behind `map`.
    fd: OwnedFd,
    map: Mmap,
    /// The ring area: memory that no other process has.
    rings: Mmap,
    buffers_at: usize,
    buffers: u32,
    buffer_bytes: u32,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    buffers: Vec<u32>,
    /// Unused parts of the ring area, in order, no two adjacent.
    ring_area: Vec<Range<usize>>,
}

impl Pool {
    /// Makes a pool.
    ///
    /// # Errors
    /// No memory, or a size that cannot be.
    pub fn new(config: PoolConfig) -> Result<Arc<Self>> {
        Self::sized(config, false)
    }

    /// Makes a pool whose file has room for images of its rings, too.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_images(config: PoolConfig) -> Result<Arc<Self>> {
        Self::sized(config, true)
    }

    fn sized(config: PoolConfig, images: bool) -> Result<Arc<Self>> {
        let PoolConfig { buffers, buffer_bytes, ring_area_bytes, huge_pages } = config;
        if buffer_bytes == 0 || buffer_bytes % 64 != 0 {
            let reason = format!("a buffer of {buffer_bytes} bytes: use a multiple of 64");
            return Err(Error::Usage(reason));
        }
        let too_large = || Error::Usage("a pool of that size cannot be: make it smaller".into());
        let buffers = buffers.saturating_add(RESERVED);
        // No mapping is empty.
        let ring_area = ring_area_bytes.max(1).checked_next_multiple_of(PAGE_BYTES);
        let ring_area = ring_area.filter(|&bytes| bytes <= MAX_BYTES).ok_or_else(too_large)?;
        let buffers_at = if images { ring_area } else { 0 };
        let bytes = (buffers as usize).checked_mul(buffer_bytes as usize);
        let bytes = bytes.and_then(|bytes| bytes.checked_add(buffers_at));
        let bytes = bytes.filter(|&bytes| bytes <= MAX_BYTES).ok_or_else(too_large)?;
        let (fd, map) = Mmap::memfd(c"sluice-pool", bytes, huge_pages)?;
        let rings = Mmap::anonymous(ring_area)?;
        let free = Free {
            // Taken from the end: low numbers first, so a small user touches few pages.
            buffers: (RESERVED..buffers).rev().collect(),
            ring_area: std::iter::once(0..ring_area).collect(),
        };
        let free = Mutex::new(free);
        Ok(Arc::new(Self { fd, map, rings, buffers_at, buffers, buffer_bytes, free }))
    }

    /// Bytes in each buffer.
    pub fn buffer_bytes(&self) -> u32 {
        self.buffer_bytes
    }

    /// One past the highest buffer number.
    pub fn buffers(&self) -> u32 {
        self.buffers
    }

    /// How many buffers are free to take.
    pub fn free_buffers(&self) -> usize {
        self.free().buffers.len()
    }

    /// Where a buffer begins. Making the address is safe; using it needs the proof that the
    /// caller holds the buffer.
    #[inline]
    pub fn address(&self, buffer: u32) -> NonNull<u8> {
        debug_assert!(buffer < self.buffers);
        self.map.at(self.buffers_at + buffer as usize * self.buffer_bytes as usize)
    }

    /// Where the ring begins that has this part of the ring area.
    pub(crate) fn ring_at(&self, offset: usize) -> NonNull<u8> {
        self.rings.at(offset)
    }

    /// Where the image of a part of the ring area begins, in a pool that has images.
    pub(crate) fn image_at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.buffers_at);
        self.map.at(offset)
    }

    /// Where buffer 0 begins, from the start of the file.
    pub(crate) fn buffers_at(&self) -> usize {
        self.buffers_at
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> usize {
        self.map.bytes()
    }

    /// The file, to share the buffers with another process: its size is sealed, and no ring is in
    /// it. Who has it can read and write every packet in the pool, at any time.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes `n` buffers off the free list; whoever has the number owns the bytes.
    ///
    /// # Errors
    /// The pool has fewer.
    pub fn take(&self, n: usize) -> Result<Vec<u32>> {
        let mut free = self.free();
        let have = free.buffers.len();
        let Some(rest) = have.checked_sub(n) else {
            return Err(Error::Usage(format!(
                "the pool has {have} buffers left, {n} are needed: make it larger"
            )));
        };
        let mut taken = free.buffers.split_off(rest);
        taken.reverse();
        Ok(taken)
    }

    /// Returns buffers to the free list.
    ///
    /// # Safety
    /// The caller got each of them from this pool, holds it alone, and uses it no longer: the next to
    /// take it may write there.
    #[allow(unsafe_code, reason = "the contract is the caller's")]
    pub unsafe fn give(&self, buffers: impl IntoIterator<Item = u32>) {
        self.free().buffers.extend(buffers);
    }

    /// Takes `bytes` of the ring area, aligned.
    pub(crate) fn take_ring(&self, bytes: usize) -> Result<Range<usize>> {
        let bytes = bytes.next_multiple_of(RING_ALIGNMENT);
        let mut free = self.free();
        let fit = free.ring_area.iter_mut().find(|range| range.len() >= bytes);
        let Some(range) = fit else {
            let message = "the pool's ring area is full: make it larger";
            return Err(Error::Usage(message.into()));
        };
        let taken = range.start..range.start + bytes;
        range.start = taken.end;
        free.ring_area.retain(|range| !range.is_empty());
        Ok(taken)
    }

    /// Returns a part of the ring area.
    pub(crate) fn give_ring(&self, range: Range<usize>) {
        let mut free = self.free();
        free.ring_area.push(range);
        free.ring_area.sort_by_key(|range| range.start);
        free.ring_area.dedup_by(|next, range| {
            let adjacent = range.end == next.start;
            if adjacent {
                range.end = next.end;
            }
            adjacent
        });
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        // The lists are whole between any two statements that can panic.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks for the cache line of an address, which another CPU wrote: whoever reads it soon does not wait
/// for that CPU's cache. Any address will do; nothing is read.
#[inline]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Like [`prefetch`], for a write: the other CPU gives the line up.
#[inline]
pub fn prefetch_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        // By name: of the intrinsic the compiler makes one for readers, unless it is told that all
        // CPUs have it. Those that have not take it for nothing.
        use std::arch::asm;
        // SAFETY: as above; nothing is written either.
        unsafe {
            asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    fn pool(buffers: u32) -> Arc<Pool> {
        Pool::new(PoolConfig { buffers, ring_area_bytes: 4096, ..PoolConfig::default() }).unwrap()
    }

    #[test]
    fn a_buffer_is_with_one_holder_at_a_time() {
        let pool = pool(8);
        let first = pool.take(5).unwrap();
        let second = pool.take(3).unwrap();
        let mut all: Vec<u32> = first.iter().chain(&second).copied().collect();
        all.sort_unstable();
        assert_eq!(all, (2..10).collect::<Vec<_>>(), "0 and 1 are never handed out");
        assert!(pool.take(1).is_err());
        // SAFETY: just taken.
        unsafe { pool.give(first) };
        assert_eq!(pool.free_buffers(), 5);
    }

    #[test]
    fn buffers_do_not_overlap_each_other_or_the_rings() {
        let pool = pool(4);
        let first = pool.address(0).as_ptr() as usize;
        assert_eq!(pool.address(3).as_ptr() as usize - first, 3 * 2048);
        let rings = pool.ring_at(0).as_ptr() as usize;
        assert!(rings + 4096 <= first || first + pool.bytes() <= rings);
        let config = PoolConfig { buffers: 4, ring_area_bytes: 4096, ..PoolConfig::default() };
        let pool = Pool::with_images(config).unwrap();
        let image = pool.image_at(0).as_ptr() as usize;
        assert_eq!(pool.address(0).as_ptr() as usize - image, 4096);
    }

    #[test]
    fn the_ring_area_is_used_again() {
        let pool = pool(1);
        let a = pool.take_ring(1000).unwrap();
        let b = pool.take_ring(1000).unwrap();
        let c = pool.take_ring(2000).unwrap();
        assert_eq!((a.len(), c.end), (1024, 4096));
        assert!(pool.take_ring(1).is_err());
        pool.give_ring(a);
        pool.give_ring(c);
        pool.give_ring(b);
        assert_eq!(pool.take_ring(4096).unwrap(), 0..4096, "neighbours are joined");
    }

    #[test]
    fn a_size_that_cannot_be_is_refused() {
        let config = PoolConfig { buffer_bytes: 100, ..PoolConfig::default() };
        assert!(Pool::new(config).unwrap_err().to_string().contains("multiple of 64"));
        for (ring_area_bytes, buffer_bytes) in
            [(usize::MAX, 64), (usize::MAX - 4095, 2048), (1 << 50, 64)]
        {
            let config = PoolConfig { ring_area_bytes, buffer_bytes, ..PoolConfig::default() };
            assert!(Pool::new(config).unwrap_err().to_string().contains("make it smaller"));
        }
    }
}
