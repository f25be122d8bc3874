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
//! | ring | entries | we | the kernel |
//! | --- | --- | --- | --- |
//! | fill | addresses of empty frames | [`Producer`] | consumes |
//! | receive | `xdp_desc`: packets | [`Consumer`] | produces |
//! | transmit | `xdp_desc`: packets | [`Producer`] | consumes |
//! | completion | addresses of frames that are sent | [`Consumer`] | produces |
//!
//! Work goes in batches: look at n, work, hand over n by one store. Nothing here waits, and
//! nothing is allocated. Source: net/xdp/xsk_queue.h.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::ptr::NonNull;

use libc::{c_int, xdp_desc, xdp_ring_offset};
use sluicegate_base::memory::Mmap;
use sluicegate_base::ring::cursor::Cursor;
use sluicegate_base::ring::{AtomicU32, Ordering};

use super::calls::Descriptor;
use crate::error::{Error, Result};

#[cfg(all(test, not(loom)))]
mod tests;

/// Element type of a ring.
///
/// # Safety
/// Made of integers only: every bit pattern is a value.
pub(super) unsafe trait Entry: Copy {}
// SAFETY: an integer: the address of a frame, from the start of the UMEM.
unsafe impl Entry for u64 {}
// SAFETY: a C struct of integers without padding.
unsafe impl Entry for libc::xdp_desc {}

/// A ring's memory, and where in it things are.
#[derive(Debug)]
struct RingMemory<T> {
    /// Holds the addresses below.
    _map: Mmap,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
}

// SAFETY: the addresses lead into `_map`, which moves with them and belongs to no thread.
unsafe impl<T: Entry> Send for RingMemory<T> {}
// SAFETY: through `&Memory` only atomics are read; entries need `&mut` of the ring.
unsafe impl<T: Entry> Sync for RingMemory<T> {}

impl<T: Entry> RingMemory<T> {
    /// Finds a ring in a mapping of it, where the kernel says its parts are.
    fn new(map: Mmap, offsets: &libc::xdp_ring_offset, entries: u32) -> Result<Self> {
        let index = |offset: u64| part::<AtomicU32>(&map, offset, 1);
        let memory = (|| {
            let (producer, consumer) = (index(offsets.producer)?, index(offsets.consumer)?);
            let flags = index(offsets.flags)?;
            let first = part::<T>(&map, offsets.desc, entries)?;
            entries.is_power_of_two().then_some((producer, consumer, flags, first))
        })();
        let (producer, consumer, flags, first) = memory.ok_or_else(|| Error::Unsupported {
            feature: "the layout of this kernel's AF_XDP rings".into(),
            remedy: "use a packet: port".into(),
        })?;
        Ok(Self { _map: map, producer, consumer, flags, entries: first, mask: entries - 1 })
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: `part` has checked place and alignment, the mapping lives as long as `self`,
        // and both sides access the index atomically only.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    /// The other side asks to be woken by a system call. Relaxed: the flag publishes nothing,
    /// and is looked at in each sync as long as there is something the other side has not
    /// consumed, so that a look that came too early is made good by the next.
    #[inline]
    fn needs_wakeup(&self) -> bool {
        // SAFETY: as in `producer`.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline]
    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: masked, the index is below the number of entries that `part` found room for.
        unsafe { self.entries.add((index & self.mask) as usize) }
    }

    #[inline]
    fn size(&self) -> u32 {
        self.mask + 1
    }
}

/// Where `count` values begin in a mapping; None if they do not lie in it, aligned.
fn part<P>(map: &Mmap, offset: u64, count: u32) -> Option<NonNull<P>> {
    let offset = usize::try_from(offset).ok()?;
    let end = size_of::<P>().checked_mul(count as usize)?.checked_add(offset)?;
    // A mapping begins on a page, so the offset's alignment is the address's.
    (count > 0 && end <= map.bytes() && offset % align_of::<P>() == 0)
        .then(|| map.at(offset).cast())
}

/// Our side of a ring that the kernel consumes: fill and transmit.
#[derive(Debug)]
pub(super) struct Producer<T> {
    memory: RingMemory<T>,
    cursor: Cursor,
    _entries: PhantomData<T>,
}

impl<T: Entry> Producer<T> {
    /// The ring in a mapping; it must be empty.
    pub(super) fn new(map: Mmap, offsets: &libc::xdp_ring_offset, entries: u32) -> Result<Self> {
        let memory = RingMemory::new(map, offsets, entries)?;
        // Relaxed: our own index, which nobody else stores.
        let start = memory.producer().load(Ordering::Relaxed);
        Ok(Self { memory, cursor: Cursor::producing(entries, start), _entries: PhantomData })
    }

    /// How many of `wanted` entries there is room for: as many may be written and submitted.
    #[inline]
    pub(super) fn reserve(&mut self, wanted: u32) -> u32 {
        self.cursor.look(self.memory.consumer(), wanted)
    }

    /// Writes the `i`th of the reserved entries.
    ///
    /// # Panics
    /// If there is no room for it.
    #[inline]
    pub(super) fn write(&mut self, i: u32, entry: T) {
        assert!(i < self.cursor.known(), "entry {i} of {} reserved", self.cursor.known());
        // SAFETY: the address is an entry's (`Memory::entry`), and it is not the other side's:
        // it lies in the room that the other side has given up. Volatile, so that one who does
        // not keep to that makes wrong bytes of it and nothing worse.
        unsafe { self.memory.entry(self.cursor.index(i)).write_volatile(entry) };
    }

    /// Hands over the first `n` entries that were written.
    ///
    /// # Panics
    /// If fewer were reserved.
    #[inline]
    pub(super) fn submit(&mut self, n: u32) {
        self.cursor.hand_over(self.memory.producer(), n);
    }

    /// Entries that were handed over and that the kernel has not said it has consumed.
    #[inline]
    pub(super) fn waiting(&mut self) -> u32 {
        self.cursor.others(self.memory.consumer())
    }

    /// The kernel asks for a system call to go on.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.memory.needs_wakeup()
    }

    /// Looks at which the kernel's index made no sense.
    pub(super) fn faults(&self) -> u64 {
        self.cursor.faults
    }
}

/// Our side of a ring that the kernel produces: receive and completion.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    memory: RingMemory<T>,
    cursor: Cursor,
    _entries: PhantomData<T>,
}

impl<T: Entry> Consumer<T> {
    /// The ring in a mapping; nothing in it has been consumed but what its index says.
    pub(super) fn new(map: Mmap, offsets: &libc::xdp_ring_offset, entries: u32) -> Result<Self> {
        let memory = RingMemory::new(map, offsets, entries)?;
        // Relaxed: our own index, which nobody else stores.
        let start = memory.consumer().load(Ordering::Relaxed);
        Ok(Self { memory, cursor: Cursor::consuming(entries, start), _entries: PhantomData })
    }

    /// How many entries there are to read; at most the ring's size.
    #[inline]
    pub(super) fn peek(&mut self) -> u32 {
        self.cursor.look(self.memory.producer(), self.memory.size())
    }

    /// The `i`th of the entries that were peeked at.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub(super) fn read(&self, i: u32) -> T {
        assert!(i < self.cursor.known(), "entry {i} of {}", self.cursor.known());
        // SAFETY: the address is an entry's (`Memory::entry`), any bytes are a T, and the other
        // side has published it and does not write it before it is released. Volatile, so that
        // one who does not keep to that makes wrong bytes of it and nothing worse.
        unsafe { self.memory.entry(self.cursor.index(i)).read_volatile() }
    }

    /// Gives the first `n` entries back.
    ///
    /// # Panics
    /// If fewer were peeked at.
    #[inline]
    pub(super) fn release(&mut self, n: u32) {
        self.cursor.hand_over(self.memory.consumer(), n);
    }

    /// Looks at which the kernel's index made no sense.
    pub(super) fn faults(&self) -> u64 {
        self.cursor.faults
    }
}

/// Entries of a ring that has to be there and is not used.
const UNUSED_ENTRIES: u32 = 2;

/// What a socket is for: frames to receive into, slots to send from; 0 for not at all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Frames that will be lent by the fill ring.
    pub(super) fill_frames: u32,
    /// Packets that can have arrived.
    pub(super) receive_frames: u32,
    /// Packets that can be on their way.
    pub(super) send_slots: u32,
}

/// The rings that will be used. The kernel wants a fill and a completion ring in any case.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) fill: Option<Producer<u64>>,
    pub(super) receive: Option<Consumer<xdp_desc>>,
    pub(super) transmit: Option<Producer<xdp_desc>>,
    pub(super) completion: Option<Consumer<u64>>,
}

impl Rings {
    /// Gives a socket its rings. The fill ring has twice the room it needs: the kernel says that
    /// it has consumed only when its private batch runs out, so an exact fit would refuse frames
    /// that it has long used.
    pub(super) fn make(fd: &Descriptor, sizes: Sizes, object: &str) -> Result<Self> {
        let failed = |error| Error::system("make the rings of", object, error);
        let Sizes { fill_frames, receive_frames, send_slots } = sizes;
        let [fill, receive, send] =
            [fill_frames * 2, receive_frames, send_slots].map(u32::next_power_of_two);
        let ask = |ring: c_int, entries: u32| fd.set(libc::SOL_XDP, ring, entries);
        let always = |used: bool, entries| if used { entries } else { UNUSED_ENTRIES };
        ask(libc::XDP_UMEM_FILL_RING, always(fill_frames > 0, fill)).map_err(failed)?;
        ask(libc::XDP_UMEM_COMPLETION_RING, always(send_slots > 0, send)).map_err(failed)?;
        if receive_frames > 0 {
            ask(libc::XDP_RX_RING, receive).map_err(failed)?;
        }
        if send_slots > 0 {
            ask(libc::XDP_TX_RING, send).map_err(failed)?;
        }
        let offsets = offsets(fd).map_err(failed)?.ok_or_else(|| Error::Unsupported {
            feature: "AF_XDP with flags in its rings (Linux 5.4)".into(),
            remedy: "use a packet: port".into(),
        })?;
        let desc = size_of::<xdp_desc>();
        let address = size_of::<u64>();
        let map = |ring: u64, of: &xdp_ring_offset, entries: u32, bytes: usize| {
            map(fd, ring, of, entries, bytes).map_err(failed)
        };
        let (fr, rx, tx, cr) = (&offsets.fr, &offsets.rx, &offsets.tx, &offsets.cr);
        let mut rings = Self { fill: None, receive: None, transmit: None, completion: None };
        if fill_frames > 0 {
            let map = map(libc::XDP_UMEM_PGOFF_FILL_RING, fr, fill, address)?;
            rings.fill = Some(Producer::new(map, fr, fill)?);
        }
        if receive_frames > 0 {
            let map = map(libc::XDP_PGOFF_RX_RING as u64, rx, receive, desc)?;
            rings.receive = Some(Consumer::new(map, rx, receive)?);
        }
        if send_slots > 0 {
            let of_tx = map(libc::XDP_PGOFF_TX_RING as u64, tx, send, desc)?;
            rings.transmit = Some(Producer::new(of_tx, tx, send)?);
            let of_cr = map(libc::XDP_UMEM_PGOFF_COMPLETION_RING, cr, send, address)?;
            rings.completion = Some(Consumer::new(of_cr, cr, send)?);
        }
        Ok(rings)
    }
}

/// Where things are in each ring; None from a kernel whose rings have no flags.
fn offsets(fd: &Descriptor) -> io::Result<Option<libc::xdp_mmap_offsets>> {
    let (offsets, bytes) = fd.get::<libc::xdp_mmap_offsets>(libc::XDP_MMAP_OFFSETS)?;
    Ok((bytes >= size_of::<libc::xdp_mmap_offsets>()).then_some(offsets))
}

fn map(
    fd: &Descriptor,
    ring: u64,
    offsets: &xdp_ring_offset,
    entries: u32,
    entry_bytes: usize,
) -> io::Result<Mmap> {
    let first = usize::try_from(offsets.desc).map_err(io::Error::other)?;
    fd.map_ring(ring, first.saturating_add(entries as usize * entry_bytes))
}
