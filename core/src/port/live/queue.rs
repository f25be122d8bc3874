//! One queue of a `live:` port: from the slots of a transmit ring into the program's.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::link::{self, LinkState, netns};
use crate::port::QueueStats;
use crate::port::backend::Backend;
use crate::port::limits::LengthLimits;
use crate::xdp::live::LiveSender;
use sluicegate_base::ring::Ring;

/// Packets that are handed over at once: the program begins while more are written.
const BATCH: u32 = 64;
/// Between two looks at whether the last packets are sent.
const LAST_LOOK: Duration = Duration::from_micros(50);

/// One queue of a `live:` port.
#[derive(Debug)]
pub(crate) struct LiveQueue {
    sender: LiveSender,
    presence: LinkState,
    limits: LengthLimits,
    /// The first slot that is not written.
    next: u32,
    /// Packets that are not written and never will be; then the part that was too long, and the part
    /// that still waited when sending ended.
    refused: u64,
    too_long: u64,
    unsent: u64,
    /// Nothing more is sent.
    ended: bool,
}

impl LiveQueue {
    pub(super) fn new(
        sender: LiveSender,
        interface: &link::Interface,
        netns: Option<&str>,
        mut limits: LengthLimits,
    ) -> Result<Self> {
        limits.set_room(sender.geometry().most_bytes as usize);
        let presence = netns::run_in(netns, || LinkState::of(interface))?;
        Ok(Self {
            sender,
            presence,
            limits,
            next: 0,
            refused: 0,
            too_long: 0,
            unsent: 0,
            ended: false,
        })
    }

    fn write(&mut self, ring: &Ring) {
        let mut written = 0;
        let Self { sender, limits, next, refused, too_long, .. } = self;
        for packet in ring.pending_tx(*next) {
            if limits.allow(&packet) {
                if sender.writer().room(1) == 0 {
                    break;
                }
                sender.writer().write(&packet);
                written += 1;
                if written % BATCH == 0 {
                    sender.publish();
                }
            } else {
                *refused += 1;
                *too_long += u64::from(limits.is_too_long(&packet));
            }
            *next = ring.after(*next, packet.slots());
        }
        sender.publish();
    }

    /// Counts all that waits as never to be sent. Returns how many slots are room again.
    fn give_up(&mut self, ring: &mut Ring) -> u32 {
        let before = self.next;
        let waiting = ring.pending_tx(self.next).count() as u64;
        (self.refused, self.unsent) = (self.refused + waiting, self.unsent + waiting);
        self.next = ring.head();
        ring.publish(ring.before(self.next));
        ring.distance(before, self.next)
    }
}

impl Backend for LiveQueue {
    /// Writes what the program has released and there is room for. Returns how many slots are room
    /// again.
    #[inline]
    fn sync_tx(&mut self, ring: &mut Ring) -> Result<u32> {
        if self.ended {
            return Ok(self.give_up(ring));
        }
        if self.sender.is_finished() {
            self.ended = true;
            // It says why; what it was too late for is counted.
            let result = self.sender.end();
            self.give_up(ring);
            return result.map(|()| 0);
        }
        match self.sender.mtu() {
            // What would be written now would be sent when it is old.
            0 => drop(self.presence.check_up()?),
            mtu => self.limits.set_mtu(mtu as usize),
        }
        let before = self.next;
        self.write(ring);
        if ring.is_endless(self.next) {
            (self.refused, self.too_long) = (self.refused + 1, self.too_long + 1);
            self.next = ring.head();
        }
        // One slot stays with the backend: room ends before the first slot still to be written.
        ring.publish(ring.before(self.next));
        let taken = ring.distance(before, self.next);
        if taken == 0 {
            match self.sender.is_alone() {
                // The sending thread waits for the same CPU.
                true => std::thread::yield_now(),
                false => self.sender.say_where(),
            }
        }
        Ok(taken)
    }

    /// Checks that the interface exists and is up: the thread does not while it sends nothing.
    fn check(&mut self) -> Result<()> {
        self.presence.check_up().map(|_| ())
    }

    /// Waits until all is sent, for so long at most, and ends.
    fn close_tx(&mut self, ring: &mut Ring, patience: Duration) -> Result<()> {
        let end = Instant::now() + patience;
        let mut result = Ok(());
        while !self.ended && Instant::now() < end {
            result = self.sync_tx(ring).map(|_| ());
            if result.is_err() || self.next == ring.head() && self.sender.waiting() == 0 {
                break;
            }
            std::thread::sleep(LAST_LOOK);
        }
        if !self.ended {
            self.ended = true;
            result = result.and(self.sender.end());
        }
        self.give_up(ring);
        result
    }

    fn sends_live(&self) -> bool {
        true
    }

    fn stats(&mut self) -> Result<QueueStats> {
        // The fate of a packet is counted after it was handed over.
        let redirects = self.sender.redirects();
        let counts = self.sender.counts();
        let left = if self.ended { u64::from(self.sender.waiting()) } else { 0 };
        Ok(QueueStats {
            sent: counts.sent,
            redirects,
            untraced: counts.sent.saturating_sub(redirects.total()),
            refused: self.refused + counts.refused + left,
            too_long: self.too_long,
            unsent: self.unsent + left,
            ..QueueStats::default()
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::for_tests;
    use crate::port::LINKTYPE_ETHERNET;
    use crate::xdp::live::Geometry;
    use sluicegate_base::memory::{Pool, PoolConfig};
    use sluicegate_base::ring::{Meta, Packet, RingMut};

    #[test]
    fn what_has_not_been_sent_at_the_end_is_counted_wherever_it_is() {
        let Some(lab) = for_tests::lab() else { return };
        let netns = lab.netns("left");
        let left0 = link::interface(Some(&netns), "left0").unwrap();
        let geometry = Geometry { slots: 64, most_bytes: 1518 };
        let sender = netns::run_in(Some(&netns), || LiveSender::at_rest(geometry, &left0)).unwrap();
        let limits = LengthLimits::of(&left0, LINKTYPE_ETHERNET);
        let mut queue = LiveQueue::new(sender, &left0, Some(&netns), limits).unwrap();
        let pool = Pool::new(PoolConfig { buffers: 512, ..PoolConfig::default() }).unwrap();
        let mut ring = Ring::transmit(&pool, 256).unwrap();
        let counts = |queue: &mut LiveQueue| {
            let stats = queue.stats().unwrap();
            (stats.sent, stats.refused, stats.too_long, stats.unsent)
        };
        for bytes in [1515].into_iter().chain([60; 100]) {
            assert!(RingMut::new(&mut ring).push(&Packet::new(&Meta::default(), &vec![7; bytes])));
        }
        assert_eq!(queue.sync_tx(&mut ring).unwrap(), 65, "one is too long, 64 have room");
        assert_eq!(counts(&mut queue), (0, 1, 1, 0), "so far");
        queue.close_tx(&mut ring, Duration::ZERO).unwrap();
        assert_eq!(counts(&mut queue), (0, 101, 1, 100), "64 are in the one ring, 36 in the other");
        assert_eq!(ring.available(), 255, "the slots are free again");
    }
}
