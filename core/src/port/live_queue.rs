//! A queue that sends by live frames: it copies packets from the transmit ring into the ring that a program
//! in the kernel reads. For `live:`, and `xdp:` with `send=live`.

use std::time::{Duration, Instant};

use super::backend::Backend;
use super::interface::LengthLimits;
use super::rings::TxProgress;
use super::stats::QueueStats;
use crate::error::Result;
use crate::headers::VLAN_TAG_BYTES;
use crate::link::{self, LinkState, may_pin};
use crate::xdp::live::{LiveRingConfig, LiveSender, MAX_BYTES, MIN_BYTES};
use sluicegate_base::ring::{LINKTYPE_ETHERNET, Meta, Packet, Ring};

/// The default size of the program's ring: a short ring stays in the cache.
pub(super) const DEFAULT_RING: u32 = 2048;
/// Number of packets published at once: the program starts on them while more are written.
const BATCH: u32 = 64;
/// The interval of checks for the last packets to be sent.
const CLOSE_INTERVAL: Duration = Duration::from_micros(50);

/// A queue whose packets are sent by live frames.
#[derive(Debug)]
pub(super) struct LiveQueue {
    sender: LiveSender,
    presence: LinkState,
    limits: LengthLimits,
    progress: TxProgress,
    /// True if sending has ended.
    ended: bool,
}

/// Returns the dimensions of a program's ring with `slots` packets of an interface.
pub(super) fn geometry(slots: u32, interface: &link::Interface) -> LiveRingConfig {
    let frame = interface.mtu.saturating_add(MIN_BYTES + VLAN_TAG_BYTES as u32);
    LiveRingConfig { slots, max_bytes: frame.min(MAX_BYTES) }
}

/// Starts a sender to an interface of this thread's network namespace, on a CPU. While the interface is
/// down, the sender `waits` or ends.
pub(super) fn open_sender(
    slots: u32,
    cpu: Option<usize>,
    interface: &link::Interface,
    waits: bool,
) -> Result<LiveSender> {
    // The thread would report it, too, but after opening has succeeded.
    cpu.map_or(Ok(()), may_pin)?;
    LiveSender::open(geometry(slots, interface), interface, cpu, waits)
}

/// Returns the limits of live frames on an interface, in frames of at most `max_bytes`.
fn limits(interface: &link::Interface, max_bytes: u32) -> LengthLimits {
    let mut limits = LengthLimits::of(interface, LINKTYPE_ETHERNET);
    limits.set_room(max_bytes as usize);
    limits
}

/// Returns true if an interface can send a frame as a live frame: it fits a page with the kernel's overhead, and
/// the MTU.
pub fn fits_live_frames(interface: &link::Interface, frame: &[u8]) -> bool {
    let max_bytes = geometry(1, interface).max_bytes;
    limits(interface, max_bytes).allow(&Packet::new(&Meta::default(), frame))
}

impl LiveQueue {
    /// Makes the queue of a sender to an interface of this thread's network namespace.
    pub(super) fn new(sender: LiveSender, interface: &link::Interface) -> Result<Self> {
        let limits = limits(interface, sender.memory.config.max_bytes);
        let presence = LinkState::of(interface)?;
        Ok(Self { sender, presence, limits, progress: TxProgress::default(), ended: false })
    }

    fn write(&mut self, ring: &Ring) {
        let mut written = 0;
        let Self { sender, limits, progress, .. } = self;
        for packet in ring.pending_tx(progress.next) {
            if !limits.allow(&packet) {
                progress.refuse(ring, packet.slots(), limits.is_too_long(&packet));
                continue;
            }
            if sender.writer.room(1) == 0 {
                break;
            }
            sender.writer.write(&packet);
            written += 1;
            if written % BATCH == 0 {
                sender.publish();
            }
            progress.next = ring.after(progress.next, packet.slots());
        }
        sender.publish();
    }
}

impl Backend for LiveQueue {
    /// Writes released packets while there is room. Returns the number of freed slots.
    #[inline]
    fn sync_tx(&mut self, ring: &mut Ring) -> Result<u32> {
        if self.ended {
            return Ok(self.progress.give_up(ring));
        }
        if self.sender.thread.is_finished() {
            self.ended = true;
            // The sender returns the reason; waiting packets are counted.
            let result = self.sender.thread.end();
            self.progress.give_up(ring);
            return result.map(|()| 0);
        }
        match self.sender.thread.mtu() {
            // Packets written now would be sent late.
            0 => drop(self.presence.check_up()?),
            mtu => self.limits.set_mtu(mtu as usize),
        }
        let before = self.progress.next;
        self.write(ring);
        let taken = self.progress.publish(ring, before);
        if taken == 0 {
            match self.sender.alone {
                // The sending thread needs this CPU. The call returns at once if the thread sleeps.
                true => std::thread::yield_now(),
                false => self.sender.set_writer_cpu(),
            }
        }
        Ok(taken)
    }

    /// Checks that the interface exists: the thread does not check while it sends nothing.
    fn check(&mut self) -> Result<()> {
        self.presence.query().map(|_| ())
    }

    /// Waits up to `timeout` until everything is sent, and ends.
    fn close_tx(&mut self, ring: &mut Ring, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        let mut result = Ok(());
        while !self.ended && Instant::now() < end {
            result = self.sync_tx(ring).map(|_| ());
            if result.is_err() || self.progress.next == ring.head() && self.sender.waiting() == 0 {
                break;
            }
            std::thread::sleep(CLOSE_INTERVAL);
        }
        if !self.ended {
            self.ended = true;
            result = result.and(self.sender.thread.end());
        }
        self.progress.give_up(ring);
        result
    }

    fn sends_live(&self) -> bool {
        true
    }

    fn stats(&mut self) -> Result<QueueStats> {
        // The fate of a packet is counted after it was handed over.
        let redirects = self.sender.thread.redirects();
        let counts = self.sender.memory.counts();
        let left = if self.ended { u64::from(self.sender.waiting()) } else { 0 };
        Ok(QueueStats {
            sent: counts.sent,
            redirects,
            untraced: counts.sent.saturating_sub(redirects.total()),
            refused: self.progress.refused + counts.refused + left,
            unsent: self.progress.unsent + left,
            ..self.progress.stats()
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::tests;
    use sluicegate_base::memory::{Pool, PoolConfig};
    use sluicegate_base::ring::{Meta, Packet, RingMut};

    #[test]
    fn what_has_not_been_sent_at_the_end_is_counted_wherever_it_is() {
        let Some(lab) = tests::lab() else { return };
        let netns = lab.netns("left");
        let left0 = link::interface(Some(&netns), "left0").unwrap();
        let config = LiveRingConfig { slots: 64, max_bytes: 1518 };
        let open = || LiveQueue::new(LiveSender::idle(config, &left0)?, &left0);
        let mut queue = link::netns::run_in(Some(&netns), open).unwrap();
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
