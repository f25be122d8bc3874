//! Which of several rings is read next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Packets of a turn, where packets have no times: about as many as a CPU deals with before it
/// looks for other work (NAPI_POLL_WEIGHT of linux/netdevice.h).
const TURN: u32 = 64;

/// The rings that have packets to be read, and their order.
///
/// A reader takes a ring from it once for each run of packets, which costs by the logarithm of how
/// many rings have packets: on a machine of many CPUs most have none, and packets come in bursts.
#[derive(Debug)]
pub(super) struct MergeQueue {
    /// By the time of each ring's next packet; otherwise one after the other.
    by_time: bool,
    /// The first is to be read first: its time, or which turn it is, and the ring.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    /// Turns given, where there are no times.
    given: u64,
}

/// What may be read of one ring before another one's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MergeBound {
    pub ring: usize,
    /// Packets up to this time, if there is another ring; the first in any case.
    pub until_ns: Option<u64>,
    /// So many at most.
    pub packets: u32,
}

impl MergeQueue {
    pub(super) fn new(rings: usize, by_time: bool) -> Self {
        Self { by_time, waiting: BinaryHeap::with_capacity(rings), given: 0 }
    }

    /// Takes a ring in that has packets and is not in yet. `next_ns` is the time of the first.
    pub(super) fn add(&mut self, ring: usize, next_ns: u64) {
        self.given += 1;
        let key = if self.by_time { next_ns } else { self.given };
        self.waiting.push(Reverse((key, ring)));
    }

    /// The ring to be read now, which is out until it is [added](Self::add) again.
    pub(super) fn take(&mut self) -> Option<MergeBound> {
        let Reverse((_, ring)) = self.waiting.pop()?;
        let other = self.waiting.peek().map(|&Reverse((key, _))| key);
        Some(match other {
            Some(_) if !self.by_time => MergeBound { ring, until_ns: None, packets: TURN },
            until_ns => MergeBound { ring, until_ns, packets: u32::MAX },
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn turn(ring: usize, until_ns: Option<u64>, packets: u32) -> Option<MergeBound> {
        Some(MergeBound { ring, until_ns, packets })
    }

    #[test]
    fn the_ring_with_the_earliest_packet_goes_on_until_another_one_has_an_earlier() {
        let mut queue = MergeQueue::new(3, true);
        for (ring, next_ns) in [(0, 70), (1, 50), (2, 60)] {
            queue.add(ring, next_ns);
        }
        assert_eq!(queue.take(), turn(1, Some(60), u32::MAX));
        queue.add(1, 65);
        assert_eq!(queue.take(), turn(2, Some(65), u32::MAX));
        assert_eq!(queue.take(), turn(1, Some(70), u32::MAX));
        assert_eq!(queue.take(), turn(0, None, u32::MAX), "the only one need not be compared");
        assert_eq!(queue.take(), None);
    }

    #[test]
    fn without_times_each_has_its_turn() {
        let mut queue = MergeQueue::new(3, false);
        (0..3).for_each(|ring| queue.add(ring, 0));
        for round in 0..3 {
            for ring in 0..3 {
                assert_eq!(queue.take(), turn(ring, None, TURN), "round {round}");
                queue.add(ring, 0);
            }
        }
        (0..2).for_each(|ring| assert_eq!(queue.take(), turn(ring, None, TURN)));
        assert_eq!(queue.take(), turn(2, None, u32::MAX), "the only one need not stop");
    }
}
