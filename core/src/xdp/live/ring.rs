//! Packets that are written here and sent there: slots in the memory of a BPF array, which a
//! program in the kernel copies into live frames.
//!
//! ```text
//!   the value of the array
//!   +-----------+-----------+------------------+--------+--------+-----+--------+
//!   | tail      | head      | the program's    | slot 0 | slot 1 |     | slot   |
//!   | index     | index     | own: copies of   | length | length | ... | 2ⁿ - 1 |
//!   |           |           | both, counters   | packet | packet |     |        |
//!   +-----------+-----------+------------------+--------+--------+-----+--------+
//!    we write    the program  the program reads  full: [head, tail)
//!    it          writes it    and writes
//! ```
//!
//! Both sides look rarely at what the other writes, for each look takes a line of the cache from one
//! CPU to the other: the program at `tail` when its copy says that there is nothing more, we at
//! `head` when ours says that there is no room; and the program says how far it has come once in
//! [`PUBLISH`] packets and when it has found nothing more.
//!
//! Neither believes the other. An index that cannot be is not taken over, and the program masks and
//! bounds what it reads: whatever stands in this memory, it copies bytes of this memory into a frame
//! that has room for them, or refuses to.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::privileged;
use crate::error::Result;
use crate::xdp::bpf;
use sluicegate_base::memory::{Mmap, PAGE_BYTES};
use sluicegate_base::ring::cursor::Cursor;
use sluicegate_base::ring::{AtomicU32, Ordering, Packet};

/// Where the parts stand. Two lines each, for processors fetch lines in pairs.
pub(super) mod at {
    /// u32: packets written, ever.
    pub(crate) const TAIL: i16 = 0;
    /// u32: packets sent or refused, ever, as far as the program has said.
    pub(crate) const HEAD: i16 = 128;
    /// u32: `HEAD`, as the program knows it.
    pub(crate) const OWN_HEAD: i16 = 256;
    /// u32: `TAIL`, when the program last looked.
    pub(crate) const OWN_TAIL: i16 = 260;
    /// u64: times in a row that it looked and there was nothing.
    pub(crate) const EMPTY: i16 = 264;
    /// u64: packets handed to the interface.
    pub(crate) const PACKETS: i16 = 272;
    /// u64: packets that it refused: of a length that cannot be.
    pub(crate) const REFUSED: i16 = 280;
    /// u64: looks at a `TAIL` that cannot be.
    pub(crate) const FAULTS: i16 = 288;
    /// The first slot.
    pub(crate) const SLOTS: i32 = 384;
}

/// Where the parts of a slot stand.
pub(super) mod slot {
    /// u32: bytes of the packet.
    pub(crate) const LENGTH: i16 = 0;
    /// The packet. With its length a packet of 60 bytes takes one line.
    pub(crate) const PACKET: i32 = 4;
}

/// Packets between two times that the program says how far it has come.
pub(super) const PUBLISH: u32 = 32;
/// An Ethernet header: nothing shorter is a packet.
pub(crate) const MIN_BYTES: u32 = 14;
/// The most that a live frame can have, on pages of 4 KiB and with the usual 17 fragments of a packet
/// (CONFIG_MAX_SKB_FRAGS): of a page the kernel takes the headroom of 256 bytes, 320 for `skb_shared_info`
/// behind, and for its own notes 112 to 152, the most on Linux 6.1 (net/bpf/test_run.c, `xdp_page_head`).
pub const MAX_BYTES: u32 = 3368;
/// Slots begin on lines of their own.
const LINE: u32 = 64;

/// What the slots look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// A power of two.
    pub slots: u32,
    /// The most bytes of a packet.
    pub most_bytes: u32,
}

impl Geometry {
    /// Bytes of a slot: an odd number of lines, so that the beginnings of slots, which are all that
    /// short packets take, spread over all sets of the cache.
    pub(crate) fn slot_bytes(self) -> u32 {
        ((self.most_bytes + slot::PACKET as u32).div_ceil(LINE) | 1) * LINE
    }

    /// Bytes of everything.
    pub(crate) fn bytes(self) -> u32 {
        at::SLOTS as u32 + self.slots * self.slot_bytes()
    }
}

/// The memory, and the map that the program knows it by.
#[derive(Debug)]
pub(crate) struct LiveMemory {
    geometry: Geometry,
    mapping: Mmap,
    map: OwnedFd,
}

impl LiveMemory {
    /// Makes an empty one whose indices stand at `start`.
    ///
    /// # Errors
    /// The kernel has no memory for it; a missing privilege.
    pub(crate) fn new(geometry: Geometry, start: u32, object: &str) -> Result<Arc<Self>> {
        let failed = |error| {
            privileged(error, "make a ring for", object).remedy(format!(
                "{} KiB are needed: use a smaller ring_size=",
                geometry.bytes().div_ceil(1024)
            ))
        };
        let bytes = (geometry.bytes() as usize).next_multiple_of(PAGE_BYTES);
        let map = bpf::create_mapped_array(c"sluice_ring", bytes as u32, 1).map_err(failed)?;
        let mapping = Mmap::shared(map.as_fd(), bytes).map_err(failed)?;
        let memory = Self { geometry, mapping, map };
        for place in [at::TAIL, at::HEAD, at::OWN_HEAD, at::OWN_TAIL] {
            // Nobody else has it yet.
            memory.index(place).store(start, Ordering::Relaxed);
        }
        Ok(Arc::new(memory))
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// One of the indices.
    #[inline]
    pub(super) fn index(&self, place: i16) -> &AtomicU32 {
        // SAFETY: the word lies in the mapping, which `self` keeps, and is aligned to 4; both sides
        // access it as a whole, and we as an atomic only.
        unsafe { self.mapping.at(place as usize).cast().as_ref() }
    }

    /// What the program has counted: exact, of some moment.
    pub(super) fn count(&self, place: i16) -> u64 {
        // SAFETY: as in `index`, aligned to 8.
        let counter: &AtomicU64 = unsafe { self.mapping.at(place as usize).cast().as_ref() };
        // Pairs with the program's plain stores; nothing follows from it.
        counter.load(Ordering::Relaxed)
    }

    /// Where a packet's slot begins, and there something.
    #[inline]
    pub(super) fn slot(&self, index: u32, offset: usize) -> NonNull<u8> {
        let number = index & (self.geometry.slots - 1);
        let before = number as usize * self.geometry.slot_bytes() as usize;
        self.mapping.at(at::SLOTS as usize + before + offset)
    }

    /// Packets that wait for the program, as the thread sees it that runs it, between two runs. 0
    /// where the index cannot be.
    pub(crate) fn waiting(&self) -> u32 {
        // Acquire: pairs with `Writer::publish`, for who sleeps after it has seen none.
        let tail = self.index(at::TAIL).load(Ordering::Acquire);
        // The program does not run, and it ran on this thread.
        let waiting = tail.wrapping_sub(self.index(at::OWN_HEAD).load(Ordering::Relaxed));
        if waiting <= self.geometry.slots { waiting } else { 0 }
    }

    /// The length of the longest of the first few packets that wait for the program, as the thread
    /// sees it that runs it, between two runs.
    pub(crate) fn longest_waiting(&self) -> Option<usize> {
        const FEW: u32 = 32;
        let first = self.index(at::OWN_HEAD).load(Ordering::Relaxed);
        let lengths = (0..self.waiting().min(FEW)).map(|i| {
            let place = self.slot(first.wrapping_add(i), slot::LENGTH as usize);
            // SAFETY: in the mapping, aligned to a line; the packet is handed over, so nobody writes
            // it until the program has sent it, which runs on this thread.
            unsafe { place.cast::<u32>().read() }
        });
        let longest = lengths.max()?.clamp(MIN_BYTES, self.geometry.most_bytes);
        Some(longest as usize)
    }

    /// How often in a row the program has found nothing.
    pub(crate) fn empty_looks(&self) -> u64 {
        self.count(at::EMPTY)
    }

    /// What has become of packets.
    pub(crate) fn counts(&self) -> LiveCounts {
        LiveCounts { sent: self.count(at::PACKETS), refused: self.count(at::REFUSED) }
    }
}

impl AsFd for LiveMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// What the program has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveCounts {
    /// Packets handed to the interface.
    pub sent: u64,
    /// Packets whose length could not be.
    pub refused: u64,
}

/// Who writes packets: there is one.
#[derive(Debug)]
pub(crate) struct LiveWriter {
    memory: Arc<LiveMemory>,
    cursor: Cursor,
    /// Packets written and not published.
    written: u32,
}

impl LiveWriter {
    /// The writer of a new one whose indices stand at `start`.
    pub(crate) fn new(memory: &Arc<LiveMemory>, start: u32) -> Self {
        let cursor = Cursor::producing(memory.geometry.slots, start);
        Self { memory: Arc::clone(memory), cursor, written: 0 }
    }

    /// For how many of `wanted` packets there is room.
    #[inline]
    pub(crate) fn room(&mut self, wanted: u32) -> u32 {
        let head = self.memory.index(at::HEAD);
        self.cursor.look(head, wanted + self.written) - self.written
    }

    /// Writes a packet, for which there is [`room`](Self::room), and whose length is one of
    /// [`MIN_BYTES`] to the most that a slot holds.
    #[inline]
    pub(crate) fn write(&mut self, packet: &Packet<'_>) {
        let bytes = packet.captured_bytes();
        let most = self.memory.geometry.most_bytes as usize;
        assert!(self.written < self.cursor.known() && bytes <= most, "no room for {bytes} bytes");
        let index = self.cursor.index(self.written);
        let mut to = self.memory.slot(index, slot::PACKET as usize);
        for segment in packet.segments() {
            // SAFETY: the slot has room for `most` bytes, and the segments have no more together;
            // it is ours until it is published, for the program has said that it is done with what
            // was there. A program that says so and is not only sends what it should not.
            unsafe {
                to.copy_from_nonoverlapping(NonNull::from(segment).cast(), segment.len());
                to = to.add(segment.len());
            }
        }
        let length = self.memory.slot(index, slot::LENGTH as usize);
        // SAFETY: as above; the length stands in front of the packet, aligned to a line.
        unsafe { length.cast::<u32>().write(bytes as u32) };
        self.written += 1;
    }

    /// Hands over what is written. Release: pairs with the program's look at the tail.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.written > 0 {
            self.cursor.hand_over(self.memory.index(at::TAIL), std::mem::take(&mut self.written));
        }
    }

    /// Packets that the program has not said it is done with.
    pub(crate) fn waiting(&mut self) -> u32 {
        self.cursor.others(self.memory.index(at::HEAD))
    }
}
