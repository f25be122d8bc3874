//! The side that watches: the cells of a ring as the slots of a [`Ring`].
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::ring::Shared;
use crate::error::Result;
use crate::ring::cursor::Cursor;
use crate::ring::{Meta, Ring, TimestampSource};

/// Reads one ring. Nobody else does.
#[derive(Debug)]
pub(crate) struct Reader {
    shared: Shared,
    cursor: Cursor,
    /// Cells that stand in slots, and have not been given back.
    held: u32,
    /// What the ring had lost before the last packet that was read.
    lost: u32,
    /// The slots' head when we last looked.
    head: u32,
}

impl Reader {
    /// Of a ring that another process has made. `object` is for messages.
    ///
    /// # Errors
    /// It is none.
    pub fn new(file: &OwnedFd, object: &str) -> Result<Self> {
        let shared = Shared::of(file, object)?;
        let cursor = Cursor::consuming(shared.geometry.cells, 0);
        Ok(Self { shared, cursor, held: 0, lost: 0, head: 0 })
    }

    /// Most bytes of a packet that are kept.
    pub fn snaplen(&self) -> u32 {
        self.shared.geometry.snaplen
    }

    /// Packets known to be there that stand in no slot yet.
    pub fn unread(&self) -> u32 {
        self.cursor.known() - self.held
    }

    /// Looks what has been written since the last look; how many packets stand in no slot yet.
    pub fn look(&mut self) -> u32 {
        self.cursor.look(self.shared.produced(), u32::MAX);
        self.unread()
    }

    /// Gives the cells back whose slots the program has released.
    pub fn give_back(&mut self, ring: &Ring) {
        let released = ring.distance(self.head, ring.head()).min(self.held);
        self.head = ring.head();
        if released > 0 {
            self.held -= released;
            self.cursor.hand_over(self.shared.consumed(), released);
        }
    }

    /// Points slots at the packets that are known to be there. How many.
    pub fn fill(&mut self, ring: &mut Ring) -> u32 {
        let slots = self.unread().min(ring.room());
        let mut tail = ring.tail();
        for _ in 0..slots {
            let (header, packet) = self.shared.read(self.cursor.index(self.held));
            // SAFETY: the bytes are in a cell of the mapping, which lives as long as the queue that
            // has the ring, and cut to the cell. The cell is ours until it is given back, which is
            // at the first sync after the slot was released.
            unsafe { ring.point(tail, packet, header.captured_bytes as u16, false) };
            *ring.meta_mut(tail) = Meta {
                timestamp_ns: header.timestamp_ns,
                timestamp_source: TimestampSource::Software,
                wire_bytes: header.wire_bytes,
                lost_before: header.lost.wrapping_sub(self.lost),
                direction: header.direction(),
                ..Meta::default()
            };
            self.lost = header.lost;
            self.held += 1;
            tail = ring.next(tail);
        }
        ring.publish(tail);
        slots
    }

    /// Says that no more is wanted.
    pub fn close(&self) {
        // Relaxed: a wish by itself.
        self.shared.closed().store(1, Ordering::Relaxed);
    }

    /// Whether nothing more will be written: what there is, the next look finds.
    pub fn has_ended(&self) -> bool {
        // Acquire: pairs with the writer's releasing store behind its last index and counts.
        self.shared.ended().load(Ordering::Acquire) != 0
    }

    /// Packets that were to be copied, and of these those that found the ring full.
    pub fn counts(&self) -> (u64, u64) {
        let lost = self.shared.lost().load(Ordering::Relaxed);
        (self.shared.offered().load(Ordering::Relaxed), lost)
    }
}
