//! The rings of an AF_XDP socket: entries in memory shared with the kernel, two indices, flags.
//!
//! ```text
//!   producer            consumer            flags
//!   +----------+        +----------+        +-------------+
//!   | index    |        | index    |        | NEED_WAKEUP |
//!   +----------+        +----------+        +-------------+
//!        |                   |
//!        |     consumer      v           producer v
//!   +----+----+----+----+----+----+----+----+----+----+----+----+
//!   | free    |    |    | e  | e  | e  | e  | e  | free         |    2ⁿ entries
//!   +----+----+----+----+----+----+----+----+----+----+----+----+
//! ```
//!
//! | ring | entries | this side | the kernel |
//! | --- | --- | --- | --- |
//! | fill | addresses of empty frames | [`Producer`] | consumes |
//! | receive | `xdp_desc`: packets | [`Consumer`] | produces |
//! | transmit | `xdp_desc`: packets | [`Producer`] | consumes |
//! | completion | addresses of sent frames | [`Consumer`] | produces |
//!
//! Work is done in batches: peek at n entries, process them, commit them by one store. Nothing here waits
//! or allocates. Source: net/xdp/xsk_queue.h.
#![allow(unsafe_code)]

use std::mem::{align_of, size_of};
use std::os::fd::AsFd;
use std::ptr::NonNull;

use libc::{c_int, xdp_desc, xdp_mmap_offsets, xdp_ring_offset};
use sluicegate_base::memory::Mmap;
use sluicegate_base::ring::cursor::Cursor;
use sluicegate_base::ring::{AtomicU32, Ordering};

use crate::error::{Error, Result};
use crate::raw_socket::{Pod, RawSocket};

#[cfg(all(test, not(loom)))]
mod tests;

/// A ring's memory and the addresses of its parts.
#[derive(Debug)]
struct RingMemory<T> {
    /// Owns the memory of the addresses below.
    _map: Mmap,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
}

// SAFETY: the addresses point into `_map`, which moves with them and is not tied to a thread.
unsafe impl<T: Pod> Send for RingMemory<T> {}

impl<T: Pod> RingMemory<T> {
    /// Finds the ring's parts in a mapping of it, at the offsets that the kernel has reported.
    fn new(map: Mmap, offsets: &xdp_ring_offset, entries: u32) -> Result<Self> {
        let unsupported = || Error::Unsupported {
            feature: "the layout of this kernel's AF_XDP rings".into(),
            remedy: "use a packet: port".into(),
        };
        Self::find(map, offsets, entries).ok_or_else(unsupported)
    }

    fn find(map: Mmap, offsets: &xdp_ring_offset, entries: u32) -> Option<Self> {
        let index = |offset: u64| part::<AtomicU32>(&map, offset, 1);
        let (producer, consumer) = (index(offsets.producer)?, index(offsets.consumer)?);
        let flags = index(offsets.flags)?;
        let first = part::<T>(&map, offsets.desc, entries)?;
        let mask = entries.is_power_of_two().then(|| entries - 1)?;
        Some(Self { _map: map, producer, consumer, flags, entries: first, mask })
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: `part` has checked bounds and alignment, the mapping lives as long as `self`,
        // and both sides access the index atomically only.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    /// Returns true if the kernel requests a wake-up by a system call. Relaxed: the flag publishes nothing,
    /// and each sync reads it again while the kernel has entries to consume.
    #[inline]
    fn needs_wakeup(&self) -> bool {
        // SAFETY: as in `producer`.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline]
    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the masked index is below the number of entries, for which `part` has checked the room.
        unsafe { self.entries.add((index & self.mask) as usize) }
    }

    #[inline]
    fn size(&self) -> u32 {
        self.mask + 1
    }
}

/// Returns the address of `count` values in a mapping. None if they are not aligned or not within it.
fn part<P>(map: &Mmap, offset: u64, count: u32) -> Option<NonNull<P>> {
    let offset = usize::try_from(offset).ok()?;
    let end = size_of::<P>().checked_mul(count as usize)?.checked_add(offset)?;
    // A mapping is page-aligned, so the address is aligned if the offset is.
    (count > 0 && end <= map.bytes() && offset % align_of::<P>() == 0)
        .then(|| map.at(offset).cast())
}

/// This side of a ring that the kernel consumes: fill and transmit.
#[derive(Debug)]
pub(super) struct Producer<T> {
    memory: RingMemory<T>,
    cursor: Cursor,
}

impl<T: Pod> Producer<T> {
    /// Takes over the ring in a mapping; the ring must be empty.
    pub(super) fn new(map: Mmap, offsets: &xdp_ring_offset, entries: u32) -> Result<Self> {
        let memory = RingMemory::new(map, offsets, entries)?;
        // Relaxed: only this side stores it.
        let start = memory.producer().load(Ordering::Relaxed);
        Ok(Self { memory, cursor: Cursor::producing(entries, start) })
    }

    /// Reserves up to `wanted` entries, which may then be written and submitted.
    #[inline]
    pub(super) fn reserve(&mut self, wanted: u32) -> u32 {
        self.cursor.peek(self.memory.consumer(), wanted)
    }

    /// Writes the `i`th of the reserved entries.
    ///
    /// # Panics
    /// If there is no room for it.
    #[inline]
    pub(super) fn write(&mut self, i: u32, entry: T) {
        assert!(i < self.cursor.cached(), "entry {i} of {} reserved", self.cursor.cached());
        // SAFETY: the address is an entry's (`RingMemory::entry`), and the kernel has given the entry up.
        // Volatile, so that a kernel that still reads it gets wrong bytes and nothing worse.
        unsafe { self.memory.entry(self.cursor.index(i)).write_volatile(entry) };
    }

    /// Submits the first `n` written entries.
    ///
    /// # Panics
    /// If fewer were reserved.
    #[inline]
    pub(super) fn submit(&mut self, n: u32) {
        self.cursor.submit(self.memory.producer(), n);
    }

    /// Counts the submitted entries that the kernel has not reported as consumed.
    #[inline]
    pub(super) fn waiting(&mut self) -> u32 {
        self.cursor.others(self.memory.consumer())
    }

    /// Returns true if the kernel needs a system call to continue.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.memory.needs_wakeup()
    }

    /// Returns how often the kernel's index was invalid.
    pub(super) fn faults(&self) -> u64 {
        self.cursor.faults
    }
}

/// This side of a ring that the kernel produces: receive and completion.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    memory: RingMemory<T>,
    cursor: Cursor,
}

impl<T: Pod> Consumer<T> {
    /// Takes over the ring in a mapping, starting at its consumer index.
    pub(super) fn new(map: Mmap, offsets: &xdp_ring_offset, entries: u32) -> Result<Self> {
        let memory = RingMemory::new(map, offsets, entries)?;
        // Relaxed: only this side stores it.
        let start = memory.consumer().load(Ordering::Relaxed);
        Ok(Self { memory, cursor: Cursor::consuming(entries, start) })
    }

    /// Returns the number of entries that can be read; at most the ring's size.
    #[inline]
    pub(super) fn peek(&mut self) -> u32 {
        self.cursor.peek(self.memory.producer(), self.memory.size())
    }

    /// Reads the `i`th available entry.
    ///
    /// # Panics
    /// If fewer are available.
    #[inline]
    pub(super) fn read(&self, i: u32) -> T {
        assert!(i < self.cursor.cached(), "entry {i} of {}", self.cursor.cached());
        // SAFETY: the address is an entry's (`RingMemory::entry`), and any bytes are a valid T. The kernel
        // has published the entry and does not write it until it is released. Volatile, so that a kernel
        // that does write causes wrong bytes and nothing worse.
        unsafe { self.memory.entry(self.cursor.index(i)).read_volatile() }
    }

    /// Releases the first `n` entries.
    ///
    /// # Panics
    /// If fewer are available.
    #[inline]
    pub(super) fn release(&mut self, n: u32) {
        self.cursor.submit(self.memory.consumer(), n);
    }

    /// Returns how often the kernel's index was invalid.
    pub(super) fn faults(&self) -> u64 {
        self.cursor.faults
    }
}

/// Entries of a ring that the kernel requires although it is unused.
const UNUSED_ENTRIES: u32 = 2;

/// Sizes of a socket's rings; 0 for an unused side.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingSizes {
    /// Number of frames that the fill ring will lend.
    pub(super) fill_frames: u32,
    /// Number of packets that can wait to be received.
    pub(super) receive_frames: u32,
    /// Number of packets that can wait to be sent.
    pub(super) send_slots: u32,
}

/// The used rings of a socket. The kernel requires a fill and a completion ring in any case.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) fill: Option<Producer<u64>>,
    pub(super) receive: Option<Consumer<xdp_desc>>,
    pub(super) transmit: Option<Producer<xdp_desc>>,
    pub(super) completion: Option<Consumer<u64>>,
}

impl Rings {
    /// Creates a socket's rings. The fill ring is twice as large as needed: the kernel reports consumed
    /// entries only when its private batch is used up, so a ring of the exact size would have no room for
    /// frames although the kernel has used earlier ones.
    pub(super) fn create(fd: &RawSocket, sizes: RingSizes, object: &str) -> Result<Self> {
        let failed = |error| Error::system("make the rings of", object, error);
        let RingSizes { fill_frames, receive_frames, send_slots } = sizes;
        let [fill, receive, send] =
            [fill_frames * 2, receive_frames, send_slots].map(u32::next_power_of_two);
        let size = |used: u32, entries: u32| if used > 0 { entries } else { UNUSED_ENTRIES };
        let set = |ring: c_int, entries: u32| fd.set(libc::SOL_XDP, ring, entries).map_err(failed);
        set(libc::XDP_UMEM_FILL_RING, size(fill_frames, fill))?;
        set(libc::XDP_UMEM_COMPLETION_RING, size(send_slots, send))?;
        if receive_frames > 0 {
            set(libc::XDP_RX_RING, receive)?;
        }
        if send_slots > 0 {
            set(libc::XDP_TX_RING, send)?;
        }
        let (offsets, bytes) =
            fd.get::<xdp_mmap_offsets>(libc::SOL_XDP, libc::XDP_MMAP_OFFSETS).map_err(failed)?;
        if bytes < size_of::<xdp_mmap_offsets>() {
            return Err(Error::Unsupported {
                feature: "AF_XDP with flags in its rings (Linux 5.4)".into(),
                remedy: "use a packet: port".into(),
            });
        }
        let map = |ring: u64, offsets: &xdp_ring_offset, entries: u32, entry_bytes: usize| {
            let bytes = offsets.desc as usize + entries as usize * entry_bytes;
            Mmap::shared_at(fd.as_fd(), ring, bytes).map_err(failed)
        };
        let (address, descriptor) = (size_of::<u64>(), size_of::<xdp_desc>());
        let xdp_mmap_offsets { fr, rx, tx, cr } = offsets;
        let mut rings = Self { fill: None, receive: None, transmit: None, completion: None };
        if fill_frames > 0 {
            let map = map(libc::XDP_UMEM_PGOFF_FILL_RING, &fr, fill, address)?;
            rings.fill = Some(Producer::new(map, &fr, fill)?);
        }
        if receive_frames > 0 {
            let map = map(libc::XDP_PGOFF_RX_RING as u64, &rx, receive, descriptor)?;
            rings.receive = Some(Consumer::new(map, &rx, receive)?);
        }
        if send_slots > 0 {
            let of_tx = map(libc::XDP_PGOFF_TX_RING as u64, &tx, send, descriptor)?;
            rings.transmit = Some(Producer::new(of_tx, &tx, send)?);
            let of_cr = map(libc::XDP_UMEM_PGOFF_COMPLETION_RING, &cr, send, address)?;
            rings.completion = Some(Consumer::new(of_cr, &cr, send)?);
        }
        Ok(rings)
    }
}
