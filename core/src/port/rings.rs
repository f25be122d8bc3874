//! The rings of queues: the pool of their buffers, and how much of a transmit ring has been sent.

use std::sync::Arc;

use super::backend::Backend;
use super::options::{Directions, OpenOptions};
use super::queue::Queue;
use super::stats::QueueStats;
use crate::error::Result;
use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::ring::{Interface, Ring};

/// The buffers that a port needs from a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PoolRequirements {
    pub buffers: u32,
    /// Size of a buffer: a minimum, unless another port uses the buffers for AF_XDP.
    pub buffer_bytes: u32,
    /// True if AF_XDP uses the buffers, which limits their size. Other ports put a longer packet into
    /// several buffers.
    pub af_xdp: bool,
}

impl PoolRequirements {
    /// Returns the requirements of `queues` queues of `buffers` buffers each.
    pub(super) fn of_queues(queues: u32, buffers: u32, buffer_bytes: u32) -> Self {
        Self { buffers: buffers.saturating_mul(queues), buffer_bytes, af_xdp: false }
    }

    /// Returns the requirements of queues with buffers of the default size.
    pub(super) fn usual(queues: u32, buffers: u32) -> Self {
        Self::of_queues(queues, buffers, PoolConfig::default().buffer_bytes)
    }

    /// Returns the requirements of two ports in one pool.
    pub(super) fn and(self, other: Self) -> Self {
        let buffer_bytes = match (self.af_xdp, other.af_xdp) {
            (true, false) => self.buffer_bytes,
            (false, true) => other.buffer_bytes,
            _ => self.buffer_bytes.max(other.buffer_bytes),
        };
        Self {
            buffers: self.buffers.saturating_add(other.buffers),
            buffer_bytes,
            af_xdp: self.af_xdp || other.af_xdp,
        }
    }

    /// Makes a pool of this size.
    pub(super) fn pool(self) -> Result<Arc<Pool>> {
        let Self { buffers, buffer_bytes, .. } = self;
        Pool::new(PoolConfig { buffers, buffer_bytes, ..PoolConfig::default() })
    }

    /// Returns the pool of the options, or makes one of this size.
    pub(super) fn pool_of(self, options: &OpenOptions) -> Result<Arc<Pool>> {
        options.pool.as_ref().map_or_else(|| self.pool(), |pool| Ok(Arc::clone(pool)))
    }
}

/// Makes the rings of a port's queues.
#[derive(Debug)]
pub(super) struct RingMaker {
    pub pool: Arc<Pool>,
    pub usage: Directions,
    /// Slots of each ring.
    pub slots: u32,
}

impl RingMaker {
    /// Makes the rings of the next queue, to receive and to send; an unused one is absent.
    pub(super) fn make(&self) -> Result<(Ring, Ring)> {
        Ok((self.receive(self.usage.receives())?, self.transmit(self.usage.sends())?))
    }

    /// Makes a receive ring with buffers; absent if the queue only sends.
    pub(super) fn receive(&self, used: bool) -> Result<Ring> {
        if used { Ring::receive(&self.pool, self.slots) } else { Ring::absent(&self.pool) }
    }

    /// Makes a receive ring whose slots point at the backend's own memory.
    pub(super) fn receive_indirect(&self) -> Result<Ring> {
        Ring::receive_indirect(&self.pool, self.slots)
    }

    /// Makes a transmit ring; absent if the queue only receives.
    pub(super) fn transmit(&self, used: bool) -> Result<Ring> {
        if used { Ring::transmit(&self.pool, self.slots) } else { Ring::absent(&self.pool) }
    }

    /// Makes the queues of a port on one interface, each of a number and a backend.
    pub(super) fn queues<B: Backend + 'static>(
        &self,
        interface: &Interface,
        backends: impl IntoIterator<Item = (u32, B)>,
    ) -> Result<Vec<Queue>> {
        let queue = |(number, backend)| {
            let (rx, tx) = self.make()?;
            Ok(Queue::new(number, rx, tx, backend, vec![interface.clone()]))
        };
        backends.into_iter().map(queue).collect()
    }
}

/// How much of a transmit ring has been sent, and the fate of its packets.
#[derive(Debug, Default)]
pub(super) struct TxProgress {
    /// The first slot that was not sent.
    pub next: u32,
    /// Packets that were sent. The other counts: packets that will never be sent (`refused`), of which some
    /// were too long and some were still waiting when sending ended.
    pub sent: u64,
    pub refused: u64,
    pub too_long: u64,
    pub too_long_bytes: u64,
    pub unsent: u64,
}

impl TxProgress {
    /// Records that the next packets, in `slots` slots, were sent.
    #[inline]
    pub(super) fn sent(&mut self, ring: &Ring, packets: usize, slots: u32) {
        self.sent += packets as u64;
        self.next = ring.after(self.next, slots);
    }

    /// Skips the next packet, in `slots` slots.
    #[inline]
    pub(super) fn refuse(&mut self, ring: &Ring, slots: u32, too_long: bool) {
        self.refused += 1;
        if too_long {
            self.too_long += 1;
            let bytes = (0..slots).map(|i| u64::from(ring.slot(ring.after(self.next, i)).bytes()));
            self.too_long_bytes += bytes.sum::<u64>();
        }
        self.next = ring.after(self.next, slots);
    }

    /// Frees the slots of packets sent since `before`. Returns the number of freed slots.
    #[inline]
    pub(super) fn publish(&mut self, ring: &mut Ring, before: u32) -> u32 {
        if ring.is_endless(self.next) {
            self.refuse(ring, ring.distance(self.next, ring.head()), true);
        }
        // One slot stays with the backend: free slots end before the first slot that is still to be sent.
        ring.publish(ring.before(self.next));
        ring.distance(before, self.next)
    }

    /// Returns true if packets have been released and not sent.
    pub(super) fn is_waiting(&self, ring: &Ring) -> bool {
        ring.pending_tx(self.next).next().is_some()
    }

    /// Counts waiting packets as refused and unsent. Returns the number of freed slots.
    pub(super) fn give_up(&mut self, ring: &mut Ring) -> u32 {
        let before = self.next;
        let waiting = ring.pending_tx(before).count() as u64;
        (self.refused, self.unsent) = (self.refused + waiting, self.unsent + waiting);
        self.next = ring.head();
        self.publish(ring, before)
    }

    /// Returns the counts of packets to send.
    pub(super) fn stats(&self) -> QueueStats {
        let &Self { sent, refused, too_long, too_long_bytes, unsent, .. } = self;
        QueueStats { sent, refused, too_long, too_long_bytes, unsent, ..QueueStats::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn af_xdp_decides_the_size_of_shared_buffers() {
        let of = |buffer_bytes, af_xdp| PoolRequirements { buffers: 8, buffer_bytes, af_xdp };
        for (one, other, both) in [
            (of(2048, false), of(4096, false), (4096, false)),
            (of(2048, true), of(9216, false), (2048, true)),
            (of(9216, false), of(2048, true), (2048, true)),
            (of(2048, true), of(4096, true), (4096, true)),
        ] {
            let expected = PoolRequirements { buffers: 16, ..of(both.0, both.1) };
            assert_eq!(one.and(other), expected);
        }
    }
}
