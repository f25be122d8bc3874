//! The rings into which the resident program copies packets: memory of a BPF array that can be
//! mapped, and no socket. Their owner reads the packets where the program has put them (Linux
//! 5.18, for `bpf_xdp_load_bytes`). The rings themselves are `cell_ring`'s.
//!
//! A ring has one writer at a time: one for each receive queue, which most drivers serve on one
//! CPU at a time; in skb mode, and with drivers that do it otherwise (`port/copy_queue.rs`),
//! one for each CPU, for there packets of one queue come on several. A reader of several rings
//! brings their packets into the order of their times. What a CPU is still copying when the reader
//! looks it gets at the next look, behind later packets of other CPUs; and where packets have no
//! times, rings are read in turns.
//! A ring that is full loses packets, and nothing else happens: neither the host nor another
//! reader notices.
//!
//! Each reader has a BPF ring buffer, by which the program wakes it. The program finds it by the
//! number of the ring that it has written to.

#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use super::clock::WallClock;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::bpf;
use crate::cell_ring::{self, CellRing, MAX_RING_BYTES, MAX_SNAPLEN, Reader, WakeSource};
use crate::error::{Error, Result};
use sluicegate_base::memory::{Mmap, PAGE_BYTES};

/// What a ring of long packets may take, and all rings together, where nobody says how many
/// cells they have.
const RING_BYTES: u64 = 32 << 20;
const ALL_RINGS_BYTES: u64 = 128 << 20;
const DEFAULT_CELLS: u32 = 16_384;
/// With fewer, the first burst is lost.
const MIN_CELLS: u32 = 16;

/// Which ring a packet goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The one of its receive queue.
    Queue,
    /// The one of the CPU that deals with it.
    Cpu,
}

/// What the rings of one owner look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// How many rings.
    pub rings: u32,
    /// Which of them a packet goes to.
    pub sharing: Sharing,
    /// The first of the receive queues whose packets are copied.
    pub first_queue: u32,
    /// How many queues.
    pub queues: u32,
    /// The sizes of each ring.
    pub ring: cell_ring::CellGeometry,
    /// Whether each packet's time is taken.
    pub stamped: bool,
}

impl Geometry {
    /// Rings for packets of at most `snaplen` bytes, with as many cells as one may have memory for
    /// if nobody says how many.
    ///
    /// # Errors
    /// That is more memory than they may take.
    pub(crate) fn new(
        sharing: Sharing,
        rings: u32,
        queues: std::ops::RangeInclusive<u32>,
        snaplen: u32,
        cells: Option<u32>,
    ) -> Result<Self, TooLarge> {
        let (first_queue, queues) = (*queues.start(), queues.end() - queues.start() + 1);
        let snaplen = snaplen.clamp(1, MAX_SNAPLEN);
        let ring = cell_ring::CellGeometry { cells: 1, snaplen };
        let budget = RING_BYTES.min(ALL_RINGS_BYTES / u64::from(rings.max(1)));
        let cell_bytes = u64::from(ring.cell_bytes());
        let affordable = (budget / cell_bytes).max(1) as u32;
        let cells_of_one = match cells {
            Some(cells) => u64::from(cells).next_power_of_two(),
            None => (1 << affordable.ilog2()).clamp(MIN_CELLS, DEFAULT_CELLS).into(),
        };
        let of_one = TooLarge { bytes: cell_bytes * cells_of_one, most: MAX_RING_BYTES, rings: 1 };
        if of_one.bytes > of_one.most {
            return Err(of_one);
        }
        let bytes = of_one.bytes * u64::from(rings);
        if cells.is_none() && bytes > ALL_RINGS_BYTES {
            return Err(TooLarge { bytes, most: ALL_RINGS_BYTES, rings });
        }
        let ring = cell_ring::CellGeometry { cells: cells_of_one as u32, ..ring };
        Ok(Self { rings, sharing, first_queue, queues, ring, stamped: true })
    }
}

/// Rings that would take more memory than they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLarge {
    pub bytes: u64,
    pub most: u64,
    /// How many together take it.
    pub rings: u32,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bytes, most] = [self.bytes, self.most].map(|bytes| bytes.div_ceil(1 << 20));
        let rings = match self.rings {
            1 => "a ring".into(),
            rings => format!("{rings} rings"),
        };
        write!(f, "{rings} of copies would take {bytes} MiB, and {most} MiB is the most")
    }
}

/// The rings of one owner: their memory, and the maps that the program knows them by.
#[derive(Debug)]
pub(crate) struct Copies {
    geometry: Geometry,
    fd: OwnedFd,
    /// For each ring the ring buffer by which its reader is woken.
    wakers: OwnedFd,
}

impl Copies {
    /// Makes empty rings, and a reader for each queue, or one for all CPUs, by the first queue it
    /// reads. `object` and `option` are for messages: what the rings are for, and the option that
    /// says how many cells they have.
    ///
    /// # Errors
    /// The kernel has no memory for them.
    pub(crate) fn new(
        geometry: Geometry,
        object: &str,
        option: &str,
    ) -> Result<(Self, Vec<(u32, Reader)>)> {
        let Geometry { rings, sharing, first_queue, .. } = geometry;
        let ring_bytes = geometry.ring.ring_bytes();
        let failed = |error| {
            let mib = (ring_bytes * u64::from(rings)) >> 20;
            Error::system("make rings for", object, error)
                .remedy(format!("{mib} MiB are needed: use fewer {option} or a smaller snaplen="))
        };
        // A ring has MAX_RING_BYTES at most.
        let fd =
            bpf::create_mapped_array(c"sluice_copies", ring_bytes as u32, rings).map_err(failed)?;
        let bytes = ring_bytes as usize * rings as usize;
        let map = Mmap::shared(fd.as_fd(), bytes.next_multiple_of(PAGE_BYTES)).map_err(failed)?;
        let map = Arc::new(map);
        let buffers: Vec<OwnedFd> = (0..if sharing == Sharing::Queue { rings } else { 1 })
            .map(|_| bpf::create_ring_buffer(c"sluice_wake", PAGE_BYTES as u32))
            .collect::<std::io::Result<_>>()
            .map_err(failed)?;
        let wakers =
            bpf::create_map_of_maps(c"sluice_wakers", buffers[0].as_fd(), rings).map_err(failed)?;
        for ring in 0..rings {
            let buffer = &buffers[ring as usize % buffers.len()];
            bpf::put(wakers.as_fd(), ring, buffer, bpf::Write::Any).map_err(failed)?;
        }
        let ring = |number| CellRing::new(&map, number * ring_bytes as usize, geometry.ring);
        let timed = geometry.stamped;
        let readers = buffers.into_iter().enumerate().map(|(number, buffer)| {
            let wake = WakeSource::of_buffer(buffer).map_err(failed)?;
            let reader = match sharing {
                Sharing::Queue => Reader::new([ring(number)], timed, wake),
                Sharing::Cpu => Reader::new((0..rings as usize).map(ring), timed, wake),
            };
            Ok((first_queue + number as u32, reader))
        });
        let readers = readers.collect::<Result<_>>()?;
        Ok((Self { geometry, fd, wakers }, readers))
    }

    /// What the rings look like.
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The map of ring buffers, by the numbers of rings.
    pub(crate) fn wakers(&self) -> BorrowedFd<'_> {
        self.wakers.as_fd()
    }
}

impl AsFd for Copies {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
