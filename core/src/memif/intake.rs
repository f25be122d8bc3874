//! What both roles do with packets that have come: slots fill up, and whole packets are handed to
//! the program.

use super::message::Breach;
use crate::ring::{Meta, Ring, TimestampSource, now_ns};

/// The slots of a receive ring that are being filled.
#[derive(Debug, Default)]
pub(super) struct Intake {
    /// Slots behind the ring's tail with a packet whose end has not come.
    partial: u32,
    /// The slot that it begins in.
    first: u32,
    /// Slots of whole packets since the last [`hand_over`](Self::hand_over), and how many packets.
    whole: u32,
    packets: u32,
}

/// What was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    /// Pieces that were taken from the peer.
    pub pieces: u32,
    /// Slots that are handed to the program.
    pub slots: u32,
    /// Packets in them.
    pub packets: u32,
}

impl Intake {
    /// How many slots can be filled.
    #[inline]
    pub(super) fn room(&self, ring: &Ring) -> u32 {
        ring.room() - self.partial - self.whole
    }

    /// The slot to be filled next.
    #[inline]
    fn at(&self, ring: &Ring) -> u32 {
        ring.after(ring.tail(), self.partial + self.whole)
    }

    /// Fills slots with the next `pieces` pieces of packets. `place` does it: it has the ring, the
    /// slot, and which piece it is, and says how many bytes that has and whether the packet goes on.
    /// Returns how many there were, up to one that makes no sense: the next call begins with it.
    ///
    /// # Errors
    /// The first makes no sense.
    #[inline]
    pub(super) fn fill(
        &mut self,
        ring: &mut Ring,
        pieces: u32,
        mut place: impl FnMut(&mut Ring, u32, u32) -> Result<(u16, bool), Breach>,
    ) -> Result<u32, Breach> {
        if pieces == 0 {
            return Ok(0);
        }
        let now_ns = now_ns();
        let mut at = self.at(ring);
        for i in 0..pieces {
            match place(ring, at, i) {
                Ok((bytes, continues)) => {
                    self.filled(ring, at, bytes.into(), continues, now_ns);
                    at = ring.next(at);
                }
                Err(breach) if i == 0 => return Err(breach),
                Err(_) => return Ok(i),
            }
        }
        Ok(pieces)
    }

    /// Slots that are filled and not handed over.
    #[inline]
    pub(super) fn partial(&self) -> u32 {
        self.partial
    }

    /// Slot `at` has been filled with so many bytes.
    #[inline]
    fn filled(&mut self, ring: &mut Ring, at: u32, bytes: u32, continues: bool, now_ns: u64) {
        if self.partial == 0 {
            self.first = at;
            *ring.meta_mut(at) = Meta {
                timestamp_ns: now_ns,
                timestamp_source: TimestampSource::Software,
                wire_bytes: bytes,
                ..Meta::default()
            };
        } else {
            ring.meta_mut(self.first).wire_bytes += bytes;
        }
        if continues {
            self.partial += 1;
        } else {
            self.whole += self.partial + 1;
            self.packets += 1;
            self.partial = 0;
        }
    }

    /// Hands whole packets to the program, when so many pieces have been taken.
    ///
    /// # Errors
    /// The packet that is coming has more slots than the ring.
    #[inline]
    pub(super) fn hand_over(&mut self, ring: &mut Ring, pieces: u32) -> Result<Received, Breach> {
        let (slots, packets) = (self.whole, self.packets);
        (self.whole, self.packets) = (0, 0);
        if slots > 0 {
            ring.publish(ring.after(ring.tail(), slots));
        }
        match self.partial > 0 && self.partial == ring.num_slots() - 1 {
            true => Err(Breach("a packet of more pieces than there are slots".into())),
            false => Ok(Received { pieces, slots, packets }),
        }
    }
}
