//! The side that has the packets.

use std::os::fd::OwnedFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::{WatchRequest, geometry};
use crate::cell_ring::{self, CellHeader, CellRing};
use crate::error::{Error, Result};
use crate::filter::Filter;
use sluicegate_base::ring::{Direction, LINKTYPE_ETHERNET, Packet};

/// Copies packets for one watcher. One thread has it.
#[derive(Debug)]
pub struct Writer {
    ring: cell_ring::Writer,
    filter: Option<Filter>,
    scratch: Vec<u8>,
}

impl Writer {
    /// Makes the ring that a watcher has asked for. The files are for the watcher: the ring, and the
    /// socket that wakes it.
    ///
    /// # Errors
    /// A filter that makes no sense; a ring that is too large; no memory.
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

    /// Copies a packet, or loses it for this watcher. It is there for him after the next
    /// [`publish`](Self::publish).
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

    /// Packets that were lost for this watcher.
    pub fn lost(&self) -> u64 {
        self.ring.lost()
    }

    /// Hands over what was copied, and wakes the watcher if it sleeps: once a batch, and when there is
    /// nothing to do.
    pub fn publish(&mut self) {
        self.ring.publish();
    }
}
