//! Regions: the memory that programs map, and its allocator of interfaces, rings and buffers.
//!
//! ```text
//!   0             interfaces      rings                     buffers 0, 1, 2 ...
//!   +-------------+---------------+-------------------------+-----+-----+-----+- - -
//! ```
//!
//! The size is fixed before the first program maps the region, with room for everything that comes later:
//! pages that nobody uses take no memory. Buffers 0 and 1 are reserved, as in netmap.
//!
//! A program may write any buffer number into its slots, so a slot does not prove that its ring has the buffer. The
//! allocator has a bit for each: a ring that ends returns the buffers that its slots name, each once. A buffer
//! that a program has lost comes back with the whole region, when its last port is closed.

use std::mem::{offset_of, size_of};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use super::memory::RegionMemory;
use crate::abi::structures::{InterfaceHeader, NI_PRIV_MEM};

/// Bytes in a buffer.
pub(super) const BUFFER_BYTES: u32 = 2048;
/// Buffers that are never handed out.
const RESERVED_BUFFERS: u32 = 2;
/// Alignment of rings and interfaces.
const ALIGNMENT: usize = 128;
const PAGE_BYTES: usize = 4096;

/// Room in a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionSize {
    /// Bytes for interfaces.
    pub(super) interfaces: usize,
    /// Bytes for rings.
    pub(super) rings: usize,
    /// Buffers, with the reserved ones.
    pub(super) buffers: u32,
}

impl RegionSize {
    /// The region of all cards, as large as netmap's by default: programs bridge cards by swapping buffers.
    pub(super) const CARDS: Self =
        Self { interfaces: 1 << 20, rings: 200 * 36_864, buffers: 163_840 };
    /// The region of a port of its own, such as a VALE port, with its pipes.
    pub(super) const PRIVATE: Self =
        Self { interfaces: 256 << 10, rings: 128 * 36_864, buffers: 65_536 };
}

/// The memory of ports that share their buffers.
#[derive(Debug)]
pub(super) struct RegionState {
    /// Its number for programs: `nr_mem_id`, from 1 on.
    pub(super) id: u16,
    /// True if it belongs to one port and its pipes.
    private: bool,
    pub(super) memory: RegionMemory,
    buffers_at: usize,
    rings_at: usize,
    buffers: u32,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    interfaces: Ranges,
    rings: Ranges,
    /// Free buffers; the lowest are taken first.
    buffers: Vec<u32>,
    /// True for each buffer that is not free.
    taken: Vec<bool>,
    /// Ports that use the region.
    users: usize,
}

impl Free {
    fn new(size: RegionSize, rings_at: usize, buffers_at: usize) -> Self {
        Self {
            interfaces: Ranges::new(0..rings_at),
            rings: Ranges::new(rings_at..buffers_at),
            buffers: (RESERVED_BUFFERS..size.buffers).rev().collect(),
            taken: vec![false; size.buffers as usize],
            users: 0,
        }
    }
}

impl RegionState {
    /// Makes a region.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn new(id: u16, size: RegionSize, private: bool) -> Result<Self, Errno> {
        let rings_at = size.interfaces.next_multiple_of(PAGE_BYTES);
        let buffers_at = (rings_at + size.rings).next_multiple_of(PAGE_BYTES);
        let bytes = buffers_at + size.buffers as usize * BUFFER_BYTES as usize;
        let memory = RegionMemory::new(bytes)?;
        let free = Mutex::new(Free::new(size, rings_at, buffers_at));
        Ok(Self { id, private, memory, buffers_at, rings_at, buffers: size.buffers, free })
    }

    /// Returns the number of buffers, with the reserved ones.
    #[inline]
    pub(super) fn buffers(&self) -> u32 {
        self.buffers
    }

    /// Returns the offsets of the rings' area and of buffer 0.
    pub(super) fn areas(&self) -> (usize, usize) {
        (self.rings_at, self.buffers_at)
    }

    /// Returns the offset of a buffer. None if a program must not use it.
    #[inline]
    pub(super) fn buffer(&self, number: u32) -> Option<usize> {
        let valid = (RESERVED_BUFFERS..self.buffers).contains(&number);
        valid.then(|| self.buffers_at + number as usize * BUFFER_BYTES as usize)
    }

    /// Takes `n` buffers off the free list.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn take_buffers(&self, n: usize) -> Result<Vec<u32>, Errno> {
        let mut free = self.free();
        let rest = free.buffers.len().checked_sub(n).ok_or(Errno::ENOMEM)?;
        let mut taken = free.buffers.split_off(rest);
        taken.reverse();
        taken.iter().for_each(|&buffer| free.taken[buffer as usize] = true);
        Ok(taken)
    }

    /// Returns buffers to the free list; those that are invalid or free already are ignored.
    pub(super) fn give_buffers(&self, buffers: impl IntoIterator<Item = u32>) {
        let free = &mut *self.free();
        for buffer in buffers {
            if let Some(taken) = free.taken.get_mut(buffer as usize).filter(|taken| **taken) {
                *taken = false;
                free.buffers.push(buffer);
            }
        }
    }

    /// Returns the number of free buffers.
    pub(super) fn free_buffers(&self) -> usize {
        self.free().buffers.len()
    }

    /// Takes room for a ring. Returns its offset.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn take_ring(&self, bytes: usize) -> Result<usize, Errno> {
        self.free().rings.take(bytes)
    }

    /// Returns the room of a ring.
    pub(super) fn give_ring(&self, offset: usize, bytes: usize) {
        self.free().rings.give(offset, bytes);
    }

    /// Makes a list of the extra buffers that a program asked for, as many as there are, in a port's header. Returns
    /// their number.
    pub(super) fn take_extra_buffers(&self, interface: usize, wanted: u32) -> u32 {
        let n = self.free().buffers.len().min(wanted as usize);
        let buffers = self.take_buffers(n).unwrap_or_default();
        let next = buffers.iter().skip(1).copied().chain([0]);
        for (&buffer, next) in buffers.iter().zip(next) {
            self.memory.store(self.buffers_at + buffer as usize * BUFFER_BYTES as usize, next);
        }
        let first = buffers.first().copied().unwrap_or(0);
        self.memory.store(interface + offset_of!(InterfaceHeader, ni_bufs_head), first);
        buffers.len() as u32
    }

    /// Takes back the extra buffers in a program's list, up to a number that it cannot have exceeded.
    pub(super) fn give_extra_buffers(&self, interface: usize) {
        let mut next = self.memory.load(interface + offset_of!(InterfaceHeader, ni_bufs_head));
        // Bounded, because the program may have made a loop of it.
        for _ in 0..self.buffers {
            let Some(at) = self.buffer(next) else { break };
            let buffer = std::mem::replace(&mut next, self.memory.load(at));
            self.give_buffers([buffer]);
        }
    }

    /// Makes a port's header. Returns its offset.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn make_interface(&self, interface: &NewInterface<'_>) -> Result<usize, Errno> {
        let rings = interface.ring_offsets;
        let header = size_of::<InterfaceHeader>();
        let at = self.free().interfaces.take(header + rings.len() * 8)?;
        self.memory.clear(at, header);
        let name = interface.name.as_bytes();
        self.memory.write(at, &name[..name.len().min(15)]);
        let flags = if self.private { NI_PRIV_MEM } else { 0 };
        let [tx, rx, host_tx, host_rx] = interface.counts;
        for (field, value) in [
            (offset_of!(InterfaceHeader, ni_version), API_VERSION),
            (offset_of!(InterfaceHeader, ni_flags), flags),
            (offset_of!(InterfaceHeader, ni_tx_rings), tx),
            (offset_of!(InterfaceHeader, ni_rx_rings), rx),
            (offset_of!(InterfaceHeader, ni_host_tx_rings), host_tx),
            (offset_of!(InterfaceHeader, ni_host_rx_rings), host_rx),
        ] {
            self.memory.store(at + field, value);
        }
        for (i, ring) in rings.iter().enumerate() {
            let offset = ring.map_or(0, |ring| ring as i64 - at as i64);
            self.memory.write(at + header + i * 8, &offset.to_ne_bytes());
        }
        Ok(at)
    }

    /// Returns the room of a port's header with `rings` rings.
    pub(super) fn give_interface(&self, offset: usize, rings: usize) {
        self.free().interfaces.give(offset, size_of::<InterfaceHeader>() + rings * 8);
    }

    /// Counts a port that uses the region.
    pub(super) fn join(&self) {
        self.free().users += 1;
    }

    /// Counts a port that no longer uses it. The last one returns what programs have lost.
    pub(super) fn leave(&self) {
        let mut free = self.free();
        free.users -= 1;
        if free.users == 0 {
            let Free { buffers, taken, .. } = &mut *free;
            let lost = (0..self.buffers).filter(|&buffer| taken[buffer as usize]);
            buffers.extend(lost);
            taken.fill(false);
            buffers.sort_unstable_by(|one, other| other.cmp(one));
        }
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        // Consistent between any two statements that can panic.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The version of the API that interfaces show.
pub(super) const API_VERSION: u32 = 14;

/// The values of a port's header.
#[derive(Debug)]
pub(super) struct NewInterface<'a> {
    pub(super) name: &'a str,
    /// Transmit, receive, host transmit and host receive rings.
    pub(super) counts: [u32; 4],
    /// The offset of each ring in the region, if the program has it.
    pub(super) ring_offsets: &'a [Option<usize>],
}

/// Free ranges of an area: in order, no two adjacent.
#[derive(Debug)]
struct Ranges(Vec<Range<usize>>);

impl Ranges {
    fn new(all: Range<usize>) -> Self {
        Self(vec![all])
    }

    fn take(&mut self, bytes: usize) -> Result<usize, Errno> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        let range = self.0.iter_mut().find(|range| range.len() >= bytes).ok_or(Errno::ENOMEM)?;
        let start = range.start;
        range.start += bytes;
        self.0.retain(|range| !range.is_empty());
        Ok(start)
    }

    fn give(&mut self, offset: usize, bytes: usize) {
        self.0.push(offset..offset + bytes.next_multiple_of(ALIGNMENT));
        self.0.sort_by_key(|range| range.start);
        self.0.dedup_by(|next, range| {
            let adjacent = range.end == next.start;
            if adjacent {
                range.end = next.end;
            }
            adjacent
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: RegionSize = RegionSize { interfaces: 4096, rings: 4096, buffers: 10 };

    fn region() -> RegionState {
        RegionState::new(1, SMALL, false).unwrap()
    }

    #[test]
    fn room_is_used_again() {
        let region = region();
        let taken = [1000, 1000, 2000].map(|bytes| region.take_ring(bytes).unwrap());
        assert_eq!(taken, [4096, 5120, 6144]);
        assert_eq!(region.take_ring(129), Err(Errno::ENOMEM));
        for (at, bytes) in [(4096, 1000), (6144, 2000), (5120, 1000)] {
            region.give_ring(at, bytes);
        }
        assert_eq!(region.take_ring(4096), Ok(4096), "neighbours are joined");
    }

    #[test]
    fn a_buffer_comes_back_once_and_lost_ones_with_the_region() {
        let region = region();
        region.join();
        assert_eq!(region.take_buffers(9), Err(Errno::ENOMEM), "two are reserved");
        assert_eq!(region.take_buffers(3).unwrap(), [2, 3, 4]);
        region.give_buffers([0, 1, 3, 3, 7, 99, u32::MAX]);
        assert_eq!(region.free_buffers(), 6, "only buffer 3 was taken and is valid");
        region.leave();
        assert_eq!(region.take_buffers(8).unwrap(), [2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn extra_buffers_are_a_list_that_a_program_may_spoil() {
        let region = region();
        let interface = NewInterface {
            name: "a-name-that-is-too-long",
            counts: [1, 1, 0, 0],
            ring_offsets: &[Some(4096), None],
        };
        let header = region.make_interface(&interface).unwrap();
        let mut name = [0; 16];
        region.memory.read(header, &mut name);
        assert_eq!(&name, b"a-name-that-is-\0");
        assert_eq!(region.take_extra_buffers(header, 20), 8, "as many as there are");
        let at = |buffer| region.buffer(buffer).unwrap();
        let first = region.memory.load(header + offset_of!(InterfaceHeader, ni_bufs_head));
        assert_eq!([first, region.memory.load(at(2)), region.memory.load(at(9))], [2, 3, 0]);
        // A loop of two buffers.
        region.memory.store(at(3), 2);
        region.give_extra_buffers(header);
        assert_eq!(region.free_buffers(), 2);
    }
}
