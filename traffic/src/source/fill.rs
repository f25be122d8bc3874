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
        let mut at = ring.head();
        let mut room = ring.available();
        let mut used = 0;
        while filled.packets < most && room > 0 {
            let whole = match self.waiting {
                0 => self.frames.next_into(ring.buffer_mut(at)),
                _ => None,
            };
            let (slots, bytes) = match whole {
                Some(bytes) => {
                    ring.set_bytes(at, bytes as u16, false);
                    (1, bytes)
                }
                None => match self.split(ring, at, room) {
                    Some(split) => split,
                    None => break,
                },
            };
            filled.packets += 1;
            filled.bytes += bytes as u64;
            used += slots;
            room -= slots;
            (0..slots).for_each(|_| at = ring.next(at));
        }
        ring.release(used);
        filled
    }

    /// Puts a packet into several slots from `at` on: how many, and its bytes. `None` if it needs
    /// more than there are; it waits then.
    #[cold]
    fn split(&mut self, ring: &mut RingMut<'_>, mut at: u32, room: u32) -> Option<(u32, usize)> {
        if self.waiting == 0 {
            self.waiting = self.frames.next_into(&mut self.long)?;
        }
        let buffer = ring.buffer_mut(at).len();
        let slots = self.waiting.div_ceil(buffer.max(1)) as u32;
        if slots >= ring.num_slots() {
            // It would wait for ever.
            self.waiting = 0;
            self.too_long += 1;
            return None;
        }
        if slots > room || buffer == 0 {
            return None;
        }
        let bytes = std::mem::take(&mut self.waiting);
        let mut pieces = self.long[..bytes].chunks(buffer).peekable();
        while let Some(piece) = pieces.next() {
            ring.buffer_mut(at)[..piece.len()].copy_from_slice(piece);
            ring.set_bytes(at, piece.len() as u16, pieces.peek().is_some());
            at = ring.next(at);
        }
        Some((slots, bytes))
    }
}
