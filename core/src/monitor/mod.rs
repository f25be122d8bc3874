//! Watching the packets of a command that runs, without being in their way: whoever has them copies
//! them into a ring of shared memory, and the watcher reads them there.
//!
//! ```text
//!   +-------+-----------+-----------+----------+--------+--------+-----+--------+
//!   | sizes | produced  | consumed, | counters,| cell 0 | cell 1 |     | cell   |
//!   |       | index     | closed    | ended    | header | header | ... | 2ⁿ - 1 |
//!   |       |           |           |          | packet | packet |     |        |
//!   +-------+-----------+-----------+----------+--------+--------+-----+--------+
//!   written    the         the         the        full: [consumed, produced)
//!   once       writer's    reader's    writer's
//! ```
//!
//! Each part has lines of the cache of its own. The writer never waits: a packet for which the ring
//! has no room is lost to this watcher, and counted. The writer takes over nothing from the reader but
//! an index, and that only where it can be; the memory's size is sealed. The reader checks what the
//! writer says in the same way. Who ends says so in the ring; who is killed is missed at the control
//! socket that the ring came by.

mod reader;
mod ring;
mod writer;

pub(crate) use reader::Reader;
pub use writer::Writer;

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Bytes of a packet that are kept where nobody says how many: those of an ordinary frame.
pub const DEFAULT_SNAPLEN: u32 = 2016;
/// Packets that there is room for where nobody says how many.
pub const DEFAULT_CELLS: u32 = 8192;
/// A slot's length has 16 bits.
const MOST_SNAPLEN: u32 = u16::MAX as u32;
/// What a ring may take.
const MOST_BYTES: u64 = 256 << 20;

/// What a watcher asks for, as a line: `watch PORT SNAPLEN CELLS [FILTER]`. The answer is a line with
/// the ring's file, or one that says what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The port whose packets it wants.
    pub port: String,
    /// Bytes of a packet that are kept.
    pub snaplen: u32,
    /// Packets there is room for: made a power of two.
    pub cells: u32,
    /// Only those that a pcap-filter expression lets pass; all if empty.
    pub filter: String,
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, snaplen, cells, filter } = self;
        write!(f, "watch {port} {snaplen} {cells} {filter}")
    }
}

impl FromStr for Watch {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let mut words = line.splitn(5, ' ');
        let parsed = (words.next() == Some("watch")).then(|| {
            Some(Self {
                port: words.next()?.to_owned(),
                snaplen: words.next()?.parse().ok()?,
                cells: words.next()?.parse().ok()?,
                filter: words.next().unwrap_or_default().to_owned(),
            })
        });
        parsed.flatten().ok_or_else(|| {
            Error::Usage(format!("'{line}' is not understood: watch PORT SNAPLEN CELLS [FILTER]"))
        })
    }
}

/// The sizes of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Geometry {
    cells: u32,
    snaplen: u32,
}

impl Geometry {
    fn new(cells: u32, snaplen: u32) -> Result<Self> {
        let cells = cells.clamp(2, 1 << 20).next_power_of_two();
        let geometry = Self { cells, snaplen: snaplen.clamp(1, MOST_SNAPLEN) };
        match geometry.bytes() as u64 {
            bytes if bytes > MOST_BYTES => Err(Error::Usage(format!(
                "a ring for a watcher would take {} MiB, and {} MiB is the most: use fewer cells= \
                 or a smaller snaplen=",
                bytes >> 20,
                MOST_BYTES >> 20
            ))),
            _ => Ok(geometry),
        }
    }
}

#[cfg(test)]
mod tests;
