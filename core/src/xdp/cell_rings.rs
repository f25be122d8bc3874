//! Rings into which the resident program copies packets: the mapped memory of a BPF array, without a
//! socket (Linux 5.18, for `bpf_xdp_load_bytes`). The rings themselves are `cell_ring`'s.
//!
//! A ring has one writer at a time. Most drivers serve a receive queue on one CPU at a time: one ring per
//! queue. In skb mode, and with other drivers (`port/cell_ring_queue.rs`), packets of one queue arrive on
//! several CPUs: one ring per CPU, and the reader merges them by time. A packet that a CPU is still copying
//! when the reader polls is delivered later, after packets of other CPUs. Packets without timestamps are
//! read round robin. A full ring loses packets, with no effect on the host or other readers.
//!
//! The program wakes each reader through a BPF ring buffer, selected by the number of the ring that it
//! wrote to.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::bpf;
use crate::cell_ring::{self, CellRing, MAX_RING_BYTES, MAX_SNAPLEN, Reader, WakeSource};
use crate::error::{Error, Result};
use sluicegate_base::memory::{Mmap, PAGE_BYTES};

/// Memory limits of a ring and of all rings together, if no number of cells is given.
const RING_BYTES: u64 = 32 << 20;
const ALL_RINGS_BYTES: u64 = 128 << 20;
const DEFAULT_CELLS: u32 = 16_384;
/// With fewer cells, a ring would lose the first burst.
const MIN_CELLS: u32 = 16;

/// Assignment of packets to rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingAssignment {
    /// One ring per receive queue.
    Queue,
    /// One ring per CPU.
    Cpu,
}

/// Configuration of one owner's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellRingsConfig {
    /// Number of rings.
    pub rings: u32,
    pub assignment: RingAssignment,
    /// The first of the receive queues whose packets are copied.
    pub first_queue: u32,
    /// Number of queues.
    pub queues: u32,
    /// Sizes of each ring.
    pub ring: cell_ring::CellGeometry,
    /// Writes a timestamp for each packet.
    pub stamped: bool,
}

impl CellRingsConfig {
    /// Sizes rings for packets of at most `snaplen` bytes, with `cells` cells or as many as the memory
    /// limits allow.
    ///
    /// # Errors
    /// The rings need more memory than allowed: the text says how much.
    pub(crate) fn new(
        assignment: RingAssignment,
        rings: u32,
        queues: std::ops::RangeInclusive<u32>,
        snaplen: u32,
        cells: Option<u32>,
    ) -> Result<Self, String> {
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
        let ring_bytes = cell_bytes * cells_of_one;
        if ring_bytes > MAX_RING_BYTES {
            return Err(too_large(1, ring_bytes, MAX_RING_BYTES));
        }
        let bytes = ring_bytes * u64::from(rings);
        if cells.is_none() && bytes > ALL_RINGS_BYTES {
            return Err(too_large(rings, bytes, ALL_RINGS_BYTES));
        }
        let ring = cell_ring::CellGeometry { cells: cells_of_one as u32, ..ring };
        Ok(Self { rings, assignment, first_queue, queues, ring, stamped: true })
    }
}

/// Describes an error: rings that need more memory than allowed.
fn too_large(rings: u32, bytes: u64, max: u64) -> String {
    let [bytes, max] = [bytes, max].map(|bytes| bytes.div_ceil(1 << 20));
    let rings = if rings == 1 { "a cell ring".into() } else { format!("{rings} cell rings") };
    format!("{rings} would take {bytes} MiB, and {max} MiB is the most")
}

/// The rings of one owner, as maps that the program uses.
#[derive(Debug)]
pub(crate) struct CellRings {
    config: CellRingsConfig,
    fd: OwnedFd,
    /// For each ring, the BPF ring buffer that wakes its reader.
    wakers: OwnedFd,
}

impl CellRings {
    /// Creates empty rings, and a reader per queue, or one for all CPUs, each with the first queue it
    /// reads. Errors name `object` and the `option` that sets the number of cells.
    ///
    /// # Errors
    /// The kernel has no memory for them.
    pub(crate) fn new(
        config: CellRingsConfig,
        object: &str,
        option: &str,
    ) -> Result<(Self, Vec<(u32, Reader)>)> {
        let CellRingsConfig { rings, assignment, first_queue, ring, stamped, .. } = config;
        let ring_bytes = ring.ring_bytes();
        let failed = |error| {
            let mib = (ring_bytes * u64::from(rings)) >> 20;
            Error::system("make rings for", object, error)
                .remedy(format!("{mib} MiB are needed: use fewer {option} or a smaller snaplen="))
        };
        // A ring has at most MAX_RING_BYTES.
        let fd =
            bpf::create_mapped_array(c"sluice_copies", ring_bytes as u32, rings).map_err(failed)?;
        let bytes = ring_bytes as usize * rings as usize;
        let map = Mmap::shared(fd.as_fd(), bytes.next_multiple_of(PAGE_BYTES)).map_err(failed)?;
        let map = Arc::new(map);
        let buffers: Vec<OwnedFd> =
            (0..if assignment == RingAssignment::Queue { rings } else { 1 })
                .map(|_| bpf::create_ring_buffer(c"sluice_wake", PAGE_BYTES as u32))
                .collect::<std::io::Result<_>>()
                .map_err(failed)?;
        let wakers =
            bpf::create_map_of_maps(c"sluice_wakers", buffers[0].as_fd(), rings).map_err(failed)?;
        for ring in 0..rings {
            let buffer = &buffers[ring as usize % buffers.len()];
            bpf::put(wakers.as_fd(), ring, buffer, bpf::Write::Any).map_err(failed)?;
        }
        let ring_at = |number| CellRing::new(&map, number * ring_bytes as usize, ring);
        let readers = buffers.into_iter().enumerate().map(|(number, buffer)| {
            let wake = WakeSource::of_buffer(buffer).map_err(failed)?;
            let reader = match assignment {
                RingAssignment::Queue => Reader::new([ring_at(number)], stamped, wake),
                RingAssignment::Cpu => Reader::new((0..rings as usize).map(ring_at), stamped, wake),
            };
            Ok((first_queue + number as u32, reader))
        });
        let readers = readers.collect::<Result<_>>()?;
        Ok((Self { config, fd, wakers }, readers))
    }

    pub(crate) fn config(&self) -> &CellRingsConfig {
        &self.config
    }

    /// Returns the map of BPF ring buffers, by ring number.
    pub(crate) fn wakers(&self) -> BorrowedFd<'_> {
        self.wakers.as_fd()
    }
}

impl AsFd for CellRings {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rings_are_as_large_as_memory_allows() {
        let of = |rings, snaplen, cells| {
            CellRingsConfig::new(RingAssignment::Queue, rings, 0..=0, snaplen, cells)
                .map(|g| (g.ring.cells, g.ring.cell_bytes(), g.ring.snaplen))
        };
        let rows = [
            ("frames of 1500 bytes", of(1, 1522, None), Ok((16_384, 1600, 1522))),
            ("jumbo frames", of(1, 9022, None), Ok((2048, 9088, 9022))),
            ("the longest", of(1, 1 << 20, None), Ok((256, 65_600, 65_535))),
            ("short packets", of(1, 96, None), Ok((16_384, 128, 96))),
            ("many CPUs", of(256, 1522, None), Ok((256, 1600, 1522))),
            (
                "as many as one says, and up to a power of two",
                of(1, 96, Some(100)),
                Ok((128, 128, 96)),
            ),
            ("many CPUs and jumbo frames", of(256, 9022, None), Ok((32, 9088, 9022))),
            (
                "many CPUs and the longest",
                of(256, 1 << 20, None),
                Err("256 cell rings would take 257 MiB, and 128 MiB is the most".into()),
            ),
            ("the same, and one says how many", of(256, 1 << 20, Some(8)), Ok((8, 65_600, 65_535))),
            (
                "too many",
                of(1, 65_535, Some(65_536)),
                Err("a cell ring would take 4100 MiB, and 256 MiB is the most".into()),
            ),
            (
                "as many as there are numbers",
                of(1, 1, Some(u32::MAX)),
                Err("a cell ring would take 262144 MiB, and 256 MiB is the most".into()),
            ),
        ];
        for (sentence, got, expected) in rows {
            assert_eq!(got, expected, "{sentence}");
        }
    }
}
