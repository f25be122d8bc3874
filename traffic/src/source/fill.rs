//! From packets to slots: filling a port's transmit ring.

use std::sync::Arc;

use sluicegate::ring::RingMut;

use super::Filled;
use crate::plan::{Frames, Plan};

/// Puts a worker's packets into transmit rings.
#[derive(Debug)]
pub(super) struct Filler {
    frames: Frames<Arc<Plan>>,
    /// A packet that is longer than a slot's buffer, on its way into several.
    long: Vec<u8>,
    /// How many of its bytes there are; 0 where none waits.
    waiting: usize,
    too_long: u64,
}

impl Filler {
    /// Of these packets, of which none is longer than `longest` bytes.
    pub fn new(frames: Frames<Arc<Plan>>, longest: usize) -> Self {
        Self { frames, long: vec![0; longest], waiting: 0, too_long: 0 }
    }

    /// Packets that were left out, because the ring has fewer slots than they need.
    pub fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Puts up to `most` packets into the ring, as many as it has room for, and gives their slots
    /// to the backend.
    pub fn fill(&mut self, ring: &mut RingMut<'_>, most: u32) -> Filled {
        let mut filled = Filled::default();
        loop {
            if self.waiting == 0 {
                let frames = &mut self.frames;
                let built = ring.build(most - filled.packets, |buffer| frames.next_into(buffer));
                filled.packets += built.packets;
                filled.bytes += built.bytes;
            }
            if filled.packets == most || ring.available() == 0 {
                return filled;
            }
            let Some(bytes) = self.split(ring) else { return filled };
            filled.packets += 1;
            filled.bytes += bytes as u64;
        }
    }

    /// Puts a packet into several slots and gives them to the backend: its bytes. `None` if it needs
    /// more slots than there are; it waits then.
    #[cold]
    fn split(&mut self, ring: &mut RingMut<'_>) -> Option<usize> {
        if self.waiting == 0 {
            self.waiting = self.frames.next_into(&mut self.long)?;
        }
        let mut at = ring.head();
        let buffer = ring.buffer_mut(at).len();
        let slots = self.waiting.div_ceil(buffer.max(1)) as u32;
        if slots >= ring.num_slots() {
            // It would wait for ever.
            self.waiting = 0;
            self.too_long += 1;
            return None;
        }
        if slots > ring.available() || buffer == 0 {
            return None;
        }
        let bytes = std::mem::take(&mut self.waiting);
        let mut pieces = self.long[..bytes].chunks(buffer).peekable();
        while let Some(piece) = pieces.next() {
            ring.buffer_mut(at)[..piece.len()].copy_from_slice(piece);
            ring.set_bytes(at, piece.len() as u16, pieces.peek().is_some());
            at = ring.next(at);
        }
        ring.release(slots);
        Some(bytes)
    }
}
