//! Copies the packets of a running command to another process without blocking the command: the thread that
//! handles a packet copies it into a ring in shared memory (`cell_ring`), and the *watcher*, a `monitor:` port,
//! copies it out.
//!
//! The writer never waits: a packet without room in the ring is dropped for this watcher, and counted. The
//! memory's size is sealed. Each side marks its end in the ring. If a process is killed, the kernel closes
//! the control socket that passed the ring, and the socket that wakes the watcher.

use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::cell_ring::{
    self, CellGeometry, CellHeader, CellRing, MAX_RING_BYTES, MAX_SNAPLEN, Reader, WakeSource,
};
use crate::error::{Error, Result};
use crate::filter::Filter;
use sluicegate_base::ring::{Direction, LINKTYPE_ETHERNET, Packet};

/// Default number of bytes kept of a packet: an ordinary frame.
pub const DEFAULT_SNAPLEN: u32 = 2016;
/// Default number of packets in a ring.
pub const DEFAULT_CELLS: u32 = 8192;
/// A request to watch a port, as a line: `watch PORT SNAPLEN CELLS [FILTER]`. The answer is a line with two
/// files for each ring, its memory and the socket that wakes its reader, or a line that describes the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// The port to watch.
    pub port: String,
    /// The maximum number of bytes kept of a packet.
    pub snaplen: u32,
    /// The number of packets that the ring holds, rounded up to a power of two.
    pub cells: u32,
    /// A pcap-filter expression that selects the packets; empty for all.
    pub filter: String,
}

impl fmt::Display for WatchRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, snaplen, cells, filter } = self;
        write!(f, "watch {port} {snaplen} {cells} {filter}")
    }
}

impl FromStr for WatchRequest {
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

/// Returns the geometry of the ring that a watcher requests.
fn geometry(watch: &WatchRequest) -> Result<CellGeometry> {
    let cells = watch.cells.clamp(2, 1 << 20).next_power_of_two();
    let geometry = CellGeometry { cells, snaplen: watch.snaplen.clamp(1, MAX_SNAPLEN) };
    match geometry.ring_bytes() {
        bytes if bytes > MAX_RING_BYTES => Err(Error::Usage(format!(
            "a ring for a watcher would take {} MiB, and {} MiB is the most: use fewer ring_size= or a \
             smaller snaplen=",
            bytes >> 20,
            MAX_RING_BYTES >> 20
        ))),
        _ => Ok(geometry),
    }
}

/// Makes readers of another process's rings from the files of its answer: for each ring its memory and the
/// socket that wakes its reader. `object` names the rings in error messages.
///
/// # Errors
/// A file is not a ring, or the socket of a ring is missing.
pub(crate) fn readers(files: Vec<OwnedFd>, object: &str) -> Result<Vec<Reader>> {
    let mut readers = Vec::new();
    let mut files = files.into_iter();
    while let Some(ring) = files.next() {
        let ring = CellRing::of_file(&ring, object)?;
        let waker = files.next().ok_or_else(|| {
            let source = std::io::Error::from(std::io::ErrorKind::InvalidData);
            Error::system("watch", object, source).remedy("both sides have to be of one version")
        })?;
        readers.push(Reader::new([ring], true, WakeSource::Socket(waker)).copying());
    }
    Ok(readers)
}

/// Copies packets for one watcher. Used by one thread.
#[derive(Debug)]
pub struct Writer {
    ring: cell_ring::Writer,
    filter: Option<Filter>,
    scratch: Vec<u8>,
}

impl Writer {
    /// Makes the ring that a watcher has requested. Returns the files for the watcher: the ring, and the
    /// socket that wakes it.
    ///
    /// # Errors
    /// The filter is invalid, the ring too large, or no memory available.
    pub fn new(watch: &WatchRequest) -> Result<(Self, [OwnedFd; 2])> {
        let filter = match &watch.filter[..] {
            "" => None,
            expression => Some(Filter::compile(expression, LINKTYPE_ETHERNET)?),
        };
        let (ring, file) = CellRing::in_file(geometry(watch)?)?;
        let (family, kind) = (AddressFamily::Unix, SockType::Datagram);
        let (ours, theirs) = socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC)
            .map_err(|error| Error::system("create", "a pair of sockets", error))?;
        let ring = cell_ring::Writer::new(ring, ours);
        Ok((Self { ring, filter, scratch: Vec::new() }, [file, theirs]))
    }

    /// Copies a packet, or drops it for this watcher if the ring is full. The watcher sees it after the
    /// next [`publish`](Self::publish).
    #[inline]
    pub fn offer(&mut self, packet: &Packet<'_>, direction: Direction, timestamp_ns: u64) {
        let passes = |filter: &Filter| filter.matches_packet(packet, &mut self.scratch);
        if self.ring.is_closed() || !self.filter.as_ref().is_none_or(passes) {
            return;
        }
        let header = CellHeader {
            time_ns: timestamp_ns,
            wire_bytes: packet.meta().wire_bytes,
            direction: CellHeader::number_of(direction),
            ..CellHeader::default()
        };
        self.ring.offer(header, packet.segments());
    }

    /// Returns the number of packets lost for this watcher.
    pub fn lost(&self) -> u64 {
        self.ring.lost()
    }

    /// Publishes the copied packets, and wakes the watcher if it sleeps. Call it once per batch, and when
    /// idle.
    pub fn publish(&mut self) {
        self.ring.publish();
    }
}

#[cfg(test)]
mod tests;
