//! The writer for a thread of this process. The other writer is the XDP program
//! (`xdp/resident/program/cell_ring.rs`).

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::wake::{SleepFlag, wake};
use super::{CellHeader, CellRing, at};
use sluicegate_base::ring::cursor::Cursor;

/// Copies packets into one ring. It never waits: a packet without room is dropped and counted.
#[derive(Debug)]
pub(crate) struct Writer {
    ring: CellRing,
    cursor: Cursor,
    /// Cells written and not yet published.
    pending: u32,
    offered: u64,
    lost: u64,
    /// The other end of the socket pair that the reader waits on.
    waker: OwnedFd,
    /// The reader wants no more packets.
    closed: bool,
}

impl Writer {
    /// Makes the writer of an unused ring.
    pub(crate) fn new(ring: CellRing, waker: OwnedFd) -> Self {
        let cursor = Cursor::producing(ring.geometry().cells, 0);
        Self { ring, cursor, pending: 0, offered: 0, lost: 0, waker, closed: false }
    }

    /// Copies a packet, or drops it if the ring is full. The reader sees it after the next
    /// [`publish`](Self::publish).
    #[inline]
    pub(crate) fn offer<'a>(
        &mut self,
        header: CellHeader,
        segments: impl Iterator<Item = &'a [u8]>,
    ) {
        self.offered += 1;
        let consumed = self.ring.word(at::CONSUMED);
        if self.cursor.peek(consumed, self.pending + 1) <= self.pending {
            self.lost += 1;
            return;
        }
        let header = CellHeader { lost: self.lost as u32, ..header };
        self.ring.write(self.cursor.index(self.pending), header, segments);
        self.pending += 1;
    }

    /// Returns the number of lost packets.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns true if the reader wants no more packets, or writing has ended.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Publishes the copied packets, and wakes a sleeping reader if it has asked for that. Call it once per
    /// batch.
    pub(crate) fn publish(&mut self) {
        if self.closed {
            return;
        }
        // Pairs with the loads of `Reader::counts`: independent counters. The reader has seen `ENDED` before
        // it reads the last ones.
        self.ring.counter(at::MATCHED).store(self.offered, Ordering::Relaxed);
        self.ring.counter(at::LOST).store(self.lost, Ordering::Relaxed);
        if self.pending > 0 {
            self.cursor.submit(self.ring.word(at::PRODUCED), std::mem::take(&mut self.pending));
            if SleepFlag::of(&self.ring).due(self.cursor.index(0)) {
                wake(&self.waker);
            }
        }
        // Pairs with the store of `Reader::close`: an independent request.
        if self.ring.word(at::CLOSED).load(Ordering::Relaxed) != 0 {
            self.end();
        }
    }

    /// Ends writing, and tells the reader.
    fn end(&mut self) {
        self.closed = true;
        // Release: pairs with the reader's acquiring load, and publishes the last counts and index.
        self.ring.word(at::ENDED).store(1, Ordering::Release);
        wake(&self.waker);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.publish();
        if !self.closed {
            self.end();
        }
    }
}
