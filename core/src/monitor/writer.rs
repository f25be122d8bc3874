//! The side that has the packets.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::ring::{Header, Shared};
use super::{Geometry, Watch};
use crate::error::Result;
use crate::filter::Filter;
use crate::ring::cursor::Cursor;
use crate::ring::{Direction, LINKTYPE_ETHERNET, Packet};

/// Copies packets for one watcher. One thread has it.
#[derive(Debug)]
pub struct Writer {
    shared: Shared,
    cursor: Cursor,
    /// Cells written and not handed over.
    pending: u32,
    offered: u64,
    lost: u64,
    filter: Option<Filter>,
    scratch: Vec<u8>,
    /// The watcher wants no more.
    closed: bool,
}

impl Writer {
    /// Makes the ring that a watcher has asked for; the file is for the watcher.
    ///
    /// # Errors
    /// A filter that makes no sense; a ring that is too large; no memory.
    pub fn new(watch: &Watch) -> Result<(Self, OwnedFd)> {
        let filter = match &watch.filter[..] {
            "" => None,
            expression => Some(Filter::compile(expression, LINKTYPE_ETHERNET)?),
        };
        let geometry = Geometry::new(watch.cells, watch.snaplen)?;
        let (shared, file) = Shared::make(geometry)?;
        let writer = Self {
            shared,
            cursor: Cursor::producing(geometry.cells, 0),
            pending: 0,
            offered: 0,
            lost: 0,
            filter,
            scratch: Vec::new(),
            closed: false,
        };
        Ok((writer, file))
    }

    /// Copies a packet, or loses it for this watcher. It is there for him after the next
    /// [`publish`](Self::publish).
    #[inline]
    pub fn offer(&mut self, packet: &Packet<'_>, direction: Direction, timestamp_ns: u64) {
        let passes = |filter: &Filter| filter.matches_packet(packet, &mut self.scratch);
        if self.closed || !self.filter.as_ref().is_none_or(passes) {
            return;
        }
        self.offered += 1;
        if self.cursor.look(self.shared.consumed(), self.pending + 1) <= self.pending {
            self.lost += 1;
            return;
        }
        let header = Header {
            timestamp_ns,
            wire_bytes: packet.meta().wire_bytes,
            captured_bytes: 0,
            lost: self.lost as u32,
            direction: Header::of(direction),
        };
        self.shared.write(self.cursor.index(self.pending), header, packet.segments());
        self.pending += 1;
    }

    /// Packets that were lost for this watcher.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Hands over what was copied, once a batch and when there is nothing to do.
    pub fn publish(&mut self) {
        if self.closed {
            return;
        }
        // Relaxed: counts by themselves; who reads the last ones has seen `ended` first.
        self.shared.offered().store(self.offered, Ordering::Relaxed);
        self.shared.lost().store(self.lost, Ordering::Relaxed);
        self.cursor.hand_over(self.shared.produced(), std::mem::take(&mut self.pending));
        // Relaxed: a wish by itself.
        if self.shared.closed().load(Ordering::Relaxed) != 0 {
            self.end();
        }
    }

    /// Nothing more is written.
    fn end(&mut self) {
        self.closed = true;
        // Release: pairs with the reader's acquiring look, and publishes the last counts and index.
        self.shared.ended().store(1, Ordering::Release);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.publish();
        self.end();
    }
}
