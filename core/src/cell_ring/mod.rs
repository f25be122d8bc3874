//! A ring of cells in shared memory: one writer copies packets into the cells, one reader looks at
//! them there, or copies them out.
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
//! There are two writers: the resident XDP program, which copies packets into BPF arrays
//! (`xdp/copies`), and a thread of a switch or forwarder that is watched ([`Writer`], `monitor`).
//! The [`Reader`] is the same for both. It copies what a thread of another process writes.
//!
//! Each part has cache lines of its own. The two sides run on two CPUs, and a read of the other side's word
//! takes the line away from its CPU, so reads are rare: the writer reads `consumed` only if the ring is full
//! by its own copy, the reader reads `produced` only if it has no known packets, after a pause
//! (`port/cells.rs`).
//!
//! Neither side trusts the other: it ignores an impossible index, cuts a length to the cell, and masks its
//! indices. A full ring loses packets and counts them; the writer never waits.
//!
//! A reader that goes to sleep sets a flag in the ring, and the writer wakes it (`wake`).

mod memory;
mod reader;
#[cfg(all(test, not(loom)))]
mod tests;
mod wake;
mod writer;

pub(crate) use memory::CellRing;
pub(crate) use reader::{Counts, Reader};
pub(crate) use wake::WakeSource;
pub(crate) use writer::Writer;

use sluicegate_base::ring::Direction;

/// Offsets of a ring's parts. Two cache lines each, because processors fetch lines in pairs.
pub(crate) mod at {
    /// u32: cells written, ever.
    pub(crate) const PRODUCED: i16 = 0;
    /// u32: cells read, ever.
    pub(crate) const CONSUMED: i16 = 128;
    /// u32: the XDP program's copy of `PRODUCED`.
    pub(crate) const OWN_PRODUCED: i16 = 256;
    /// u32: the XDP program's copy of `CONSUMED`.
    pub(crate) const OWN_CONSUMED: i16 = 260;
    /// u64: packets that were to be copied.
    pub(crate) const MATCHED: i16 = 264;
    /// u64: of these, packets that found the ring full.
    pub(crate) const LOST: i16 = 272;
    /// u32: not 0 when the reader wants no more packets. The reader stores it once.
    pub(crate) const CLOSED: i16 = 280;
    /// u32: not 0 while the reader sleeps. The reader sets it, the writer that wakes the reader
    /// clears it.
    pub(crate) const ASLEEP: i16 = 284;
    /// u32: the value of `PRODUCED` at which a sleeping reader wants to be woken.
    pub(crate) const WAKE_AT: i16 = 288;
    /// u32: not 0 when nothing more will be written.
    pub(crate) const ENDED: i16 = 292;
    /// u64, u32, u32: what the ring is, its cells and their bytes; of rings in files only.
    pub(crate) const MAGIC: i16 = 320;
    pub(crate) const CELL_COUNT: i16 = 328;
    pub(crate) const SNAPLEN: i16 = 332;
    /// The first cell.
    pub(crate) const CELLS: i32 = 384;
}

/// Offsets of a cell's parts.
pub(crate) mod cell {
    /// u64: the packet's time in ns, 0 where none is taken. CLOCK_MONOTONIC if the XDP program
    /// writes, otherwise the time of day.
    pub(crate) const TIME: i16 = 0;
    /// u32: bytes of the packet on the wire.
    pub(crate) const WIRE_BYTES: i16 = 8;
    /// u32: bytes of it in the cell.
    pub(crate) const CAPTURED_BYTES: i16 = 12;
    /// u32: packets that the ring had lost before this one, ever.
    pub(crate) const LOST: i16 = 16;
    /// The packet. The u32 before it is the direction: the XDP program leaves it 0, which is in.
    pub(crate) const PACKET: i32 = 24;
}

/// Cells begin on cache lines of their own.
const CELL_UNIT: u32 = 64;
/// A slot's length has 16 bits.
pub(crate) const MAX_SNAPLEN: u32 = u16::MAX as u32;
/// The most memory of a ring: the verifier follows offsets in a value up to 2²⁹.
pub(crate) const MAX_RING_BYTES: u64 = 256 << 20;

/// The sizes of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellGeometry {
    /// Cells: a power of two.
    pub cells: u32,
    /// The most bytes that are kept of a packet.
    pub snaplen: u32,
}

impl CellGeometry {
    /// Bytes of a cell.
    pub(crate) fn cell_bytes(&self) -> u32 {
        (self.snaplen + cell::PACKET as u32).next_multiple_of(CELL_UNIT)
    }

    /// Bytes of a ring.
    pub(crate) fn ring_bytes(&self) -> u64 {
        at::CELLS as u64 + u64::from(self.cells) * u64::from(self.cell_bytes())
    }
}

/// The header in front of a packet in its cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct CellHeader {
    pub time_ns: u64,
    pub wire_bytes: u32,
    pub captured_bytes: u32,
    /// Packets that the ring had lost by then.
    pub lost: u32,
    /// A number of [`CellHeader::number_of`].
    pub direction: u32,
}

const _: () = {
    assert!(size_of::<CellHeader>() == cell::PACKET as usize);
    assert!(std::mem::offset_of!(CellHeader, wire_bytes) == cell::WIRE_BYTES as usize);
    assert!(std::mem::offset_of!(CellHeader, captured_bytes) == cell::CAPTURED_BYTES as usize);
    assert!(std::mem::offset_of!(CellHeader, lost) == cell::LOST as usize);
};

impl CellHeader {
    /// How a direction is written.
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
