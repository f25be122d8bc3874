//! A ring of cells in shared memory: one writer copies packets into the cells, and one reader reads them in
//! place or copies them out.
//!
//! ```text
//!   +-----------+-----------+---------------------+--------+--------+-----+--------+
//!   | produced  | consumed  | the writer's own:   | cell 0 | cell 1 |     | cell   |
//!   | index     | index     | copies of both,     | header | header | ... | 2ⁿ - 1 |
//!   |           |           | counters; requests  | packet | packet |     |        |
//!   +-----------+-----------+---------------------+--------+--------+-----+--------+
//!    the writer  the reader  the writer; requests   full: [consumed, produced)
//!    stores      stores      are the reader's, rare
//! ```
//!
//! A ring has one of two writers: the resident XDP program, which copies packets into BPF arrays
//! (`xdp/cell_rings`), or a thread of a monitored switch or forwarder ([`Writer`], `monitor`). The [`Reader`] is
//! the same for both. It copies packets out of a ring that another process can write.
//!
//! Each part has its own cache lines. The two sides run on two CPUs, and a read of the other side's word
//! takes the cache line away from that CPU, so reads are rare: the writer reads `consumed` only if its own
//! copy shows a full ring; the reader reads `produced` only if it has no known packets, after a pause
//! (`port/cell_ring_rx.rs`).
//!
//! Neither side trusts the other: it ignores an invalid index, limits a length to the cell, and masks its
//! indices. If the ring is full, the writer drops the packet and counts it; the writer never waits.
//!
//! A reader that goes to sleep sets a flag in the ring, and the writer wakes it (`wake`).

mod memory;
mod reader;
#[cfg(all(test, not(loom)))]
mod tests;
mod wake;
mod writer;

pub(crate) use memory::CellRing;
pub(crate) use reader::{CellRingCounts, Reader};
pub(crate) use wake::WakeSource;
pub(crate) use writer::Writer;

use sluicegate_base::ring::Direction;

/// Offsets of a ring's parts. Each side's words have two cache lines, because processors fetch lines in
/// pairs.
pub(crate) mod at {
    /// u32: cells written since the ring was made.
    pub(crate) const PRODUCED: i16 = 0;
    /// u32: cells read since the ring was made.
    pub(crate) const CONSUMED: i16 = 128;
    /// u32: the XDP program's copy of `PRODUCED`.
    pub(crate) const OWN_PRODUCED: i16 = 256;
    /// u32: the XDP program's copy of `CONSUMED`.
    pub(crate) const OWN_CONSUMED: i16 = 260;
    /// u64: packets to copy, including lost ones.
    pub(crate) const MATCHED: i16 = 264;
    /// u64: packets that were lost because the ring was full.
    pub(crate) const LOST: i16 = 272;
    /// u32: nonzero if the reader wants no more packets. The reader stores it once.
    pub(crate) const CLOSED: i16 = 280;
    /// u32: nonzero while the reader sleeps. The reader sets it; the writer clears it when it wakes the
    /// reader.
    pub(crate) const ASLEEP: i16 = 284;
    /// u32: the value of `PRODUCED` at which a sleeping reader wants to be woken.
    pub(crate) const WAKE_AT: i16 = 288;
    /// u32: nonzero if the writer has ended.
    pub(crate) const ENDED: i16 = 292;
    /// u64, u32, u32: the magic number, the number of cells, the snap length; only in rings in files.
    pub(crate) const MAGIC: i16 = 320;
    pub(crate) const CELL_COUNT: i16 = 328;
    pub(crate) const SNAPLEN: i16 = 332;
    /// The first cell.
    pub(crate) const CELLS: i32 = 384;
}

/// Offsets of a cell's parts.
pub(crate) mod cell {
    /// u64: the packet's time in ns, 0 without a timestamp. CLOCK_MONOTONIC if the XDP program writes,
    /// otherwise the time of day.
    pub(crate) const TIME: i16 = 0;
    /// u32: the packet's length on the wire.
    pub(crate) const WIRE_BYTES: i16 = 8;
    /// u32: bytes of the packet in the cell.
    pub(crate) const CAPTURED_BYTES: i16 = 12;
    /// u32: packets that the ring had lost before this one.
    pub(crate) const LOST: i16 = 16;
    /// The packet. The u32 before it is the direction; the XDP program leaves it 0, which means received.
    pub(crate) const PACKET: i32 = 24;
}

/// Alignment of cells: a cache line.
const CELL_UNIT: u32 = 64;
/// The slot's length field has 16 bits.
pub(crate) const MAX_SNAPLEN: u32 = u16::MAX as u32;
/// The maximum size of a ring: the verifier tracks offsets in a map value up to 2²⁹.
pub(crate) const MAX_RING_BYTES: u64 = 256 << 20;

/// The dimensions of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellGeometry {
    /// Number of cells: a power of two.
    pub cells: u32,
    /// The maximum number of bytes kept of a packet.
    pub snaplen: u32,
}

impl CellGeometry {
    /// Returns the size of a cell.
    pub(crate) fn cell_bytes(&self) -> u32 {
        (self.snaplen + cell::PACKET as u32).next_multiple_of(CELL_UNIT)
    }

    /// Returns the size of a ring.
    pub(crate) fn ring_bytes(&self) -> u64 {
        at::CELLS as u64 + u64::from(self.cells) * u64::from(self.cell_bytes())
    }
}

/// The header before a packet in its cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct CellHeader {
    pub time_ns: u64,
    pub wire_bytes: u32,
    pub captured_bytes: u32,
    /// Packets that the ring had lost before this one.
    pub lost: u32,
    /// The direction, as a number of [`CellHeader::number_of`].
    pub direction: u32,
}

const _: () = {
    assert!(size_of::<CellHeader>() == cell::PACKET as usize);
    assert!(std::mem::offset_of!(CellHeader, wire_bytes) == cell::WIRE_BYTES as usize);
    assert!(std::mem::offset_of!(CellHeader, captured_bytes) == cell::CAPTURED_BYTES as usize);
    assert!(std::mem::offset_of!(CellHeader, lost) == cell::LOST as usize);
};

impl CellHeader {
    /// Returns the number that stands for a direction.
    pub(crate) fn number_of(direction: Direction) -> u32 {
        match direction {
            Direction::In => 0,
            Direction::Out => 1,
            Direction::Unknown => 2,
        }
    }

    pub(crate) fn direction(&self) -> Direction {
        match self.direction {
            0 => Direction::In,
            1 => Direction::Out,
            _ => Direction::Unknown,
        }
    }
}
