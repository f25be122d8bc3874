//! Rings into which the resident program copies packets: memory of a BPF array that can be
//! mapped, and no socket. Their owner reads the packets where the program has put them (Linux
//! 5.18, for `bpf_xdp_load_bytes`).
//!
//! ```text
//!   one ring, a value of the array
//!   +-----------+-----------+------------------+--------+--------+-----+--------+
//!   | produced  | consumed  | the program's    | cell 0 | cell 1 |     | cell   |
//!   | index     | index     | own: copies of   | header | header | ... | 2ⁿ - 1 |
//!   |           |           | both, counters   | packet | packet |     |        |
//!   +-----------+-----------+------------------+--------+--------+-----+--------+
//!    the program  we write    the program reads  full: [consumed, produced)
//!    writes       it          and writes
//! ```
//!
//! Each of the three parts has lines of the cache of its own. The two sides run on two CPUs, and
//! every look at what the other has written takes a line away from it, so both look rarely: the
//! program at `consumed` only when its own copy says that the ring is full, we at `produced` only
//! when all we know of is read (and not at once again, which is for who calls
//! [`Reader::look`] to see to). A short ring stays in the cache; a long one bridges the time in
//! which the reader's CPU is taken away from it.
//!
//! A ring has one writer at a time: one for each receive queue, which most drivers serve on one
//! CPU at a time; in skb mode, and with drivers that do it otherwise (`port/mirror/serving.rs`),
//! one for each CPU, for there packets of one queue come on several. A reader of several rings
//! brings their packets into the order of their times. What a CPU is still copying when the reader
//! looks it gets at the next look, behind later packets of other CPUs; and where packets have no
//! times, rings are read in turns.
//! A ring that is full loses packets, and nothing else happens: neither the host nor another
//! reader notices.

mod reader;
#[cfg(all(test, not(loom)))]
mod tests;
mod turns;

pub(crate) use super::clock::WallClock;
pub(crate) use reader::Reader;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::bpf;
use crate::error::{Error, Result};
use crate::memory::{Mmap, PAGE_BYTES};

/// Where the parts of a ring stand. Two lines each, for processors fetch lines in pairs.
pub(crate) mod at {
    /// u32: cells written, ever.
    pub const PRODUCED: i16 = 0;
    /// u32: cells read, ever.
    pub const CONSUMED: i16 = 128;
    /// u32: `PRODUCED`, as the program knows it.
    pub const OWN_PRODUCED: i16 = 256;
    /// u32: `CONSUMED`, when the program last looked.
    pub const OWN_CONSUMED: i16 = 260;
    /// u64: packets that were to be copied.
    pub const MATCHED: i16 = 264;
    /// u64: of these, those that found the ring full.
    pub const LOST: i16 = 272;
    /// u32: not 0 when the owner wants no more. Only the owner writes it, once.
    pub const CLOSED: i16 = 280;
    /// The first cell.
    pub const CELLS: i32 = 384;
}

/// Where the parts of a cell stand.
pub(crate) mod cell {
    /// u64: CLOCK_MONOTONIC, in ns; 0 where nobody wants it.
    pub const TIME: i16 = 0;
    /// u32: bytes of the packet on the wire.
    pub const WIRE_BYTES: i16 = 8;
    /// u32: bytes of it here.
    pub const CAPTURED_BYTES: i16 = 12;
    /// u32: packets lost at this ring before it, ever.
    pub const LOST: i16 = 16;
    /// The packet.
    pub const PACKET: i32 = 24;
}

/// Cells begin on lines of their own.
const CELL_UNIT: u32 = 64;
/// A slot's length has 16 bits.
pub(crate) const MOST_SNAPLEN: u32 = u16::MAX as u32;
/// What a ring of long packets may take, and all rings together, where nobody says how many
/// cells they have.
const RING_BYTES: u64 = 32 << 20;
const ALL_RINGS_BYTES: u64 = 128 << 20;
const DEFAULT_CELLS: u32 = 16_384;
/// With fewer, the first burst is lost.
const FEWEST_CELLS: u32 = 16;
/// What a ring may take in any case: the verifier follows offsets in a value up to 2²⁹.
const MOST_RING_BYTES: u64 = 256 << 20;

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
    /// Cells in each ring: a power of two.
    pub cells: u32,
    /// Bytes that are kept of a packet.
    pub snaplen: u32,
    /// Whether each packet's time is taken.
    pub stamped: bool,
}

impl Geometry {
    /// Rings for packets of at most `snaplen` bytes, with as many cells as one may have memory for
    /// if nobody says how many.
    ///
    /// # Errors
    /// That is more memory than they may take.
    pub fn new(
        sharing: Sharing,
        rings: u32,
        queues: std::ops::RangeInclusive<u32>,
        snaplen: u32,
        cells: Option<u32>,
    ) -> Result<Self, TooLarge> {
        let (first_queue, queues) = (*queues.start(), queues.end() - queues.start() + 1);
        let snaplen = snaplen.clamp(1, MOST_SNAPLEN);
        let geometry =
            Self { rings, sharing, first_queue, queues, cells: 1, snaplen, stamped: true };
        let budget = RING_BYTES.min(ALL_RINGS_BYTES / u64::from(rings.max(1)));
        let cell_bytes = u64::from(geometry.cell_bytes());
        let affordable = (budget / cell_bytes).max(1) as u32;
        let cells_of_one = match cells {
            Some(cells) => u64::from(cells).next_power_of_two(),
            None => (1 << affordable.ilog2()).clamp(FEWEST_CELLS, DEFAULT_CELLS).into(),
        };
        let of_one = TooLarge { bytes: cell_bytes * cells_of_one, most: MOST_RING_BYTES, rings: 1 };
        if of_one.bytes > of_one.most {
            return Err(of_one);
        }
        let bytes = of_one.bytes * u64::from(rings);
        if cells.is_none() && bytes > ALL_RINGS_BYTES {
            return Err(TooLarge { bytes, most: ALL_RINGS_BYTES, rings });
        }
        Ok(Self { cells: cells_of_one as u32, ..geometry })
    }

    /// Bytes of a cell.
    pub fn cell_bytes(&self) -> u32 {
        (self.snaplen + cell::PACKET as u32).next_multiple_of(CELL_UNIT)
    }

    /// Bytes of a ring.
    pub fn ring_bytes(&self) -> u32 {
        at::CELLS as u32 + self.cells * self.cell_bytes()
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

/// The rings of one owner: their memory, and the map that the program knows them by.
#[derive(Debug)]
pub(crate) struct Copies {
    geometry: Geometry,
    map: Mmap,
    fd: OwnedFd,
}

impl Copies {
    /// Makes empty rings. `object` and `option` are for messages: what they are for, and what says
    /// how many cells they have.
    ///
    /// # Errors
    /// The kernel has no memory for them.
    pub fn new(geometry: Geometry, object: &str, option: &str) -> Result<Arc<Self>> {
        let Geometry { rings, .. } = geometry;
        let failed = |error| {
            let mib = (u64::from(geometry.ring_bytes()) * u64::from(rings)) >> 20;
            Error::system("make rings for", object, error)
                .remedy(format!("{mib} MiB are needed: use fewer {option} or a smaller snaplen="))
        };
        let fd = bpf::create_mapped_array(c"sluice_copies", geometry.ring_bytes(), rings)
            .map_err(failed)?;
        let bytes = geometry.ring_bytes() as usize * rings as usize;
        let map = Mmap::shared(fd.as_fd(), bytes.next_multiple_of(PAGE_BYTES)).map_err(failed)?;
        Ok(Arc::new(Self { geometry, map, fd }))
    }

    /// What the rings look like.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
}

impl AsFd for Copies {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
