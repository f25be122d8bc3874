//! The queues of a thread, and the paths between them.

use std::time::{Duration, Instant};

use sluicegate::error::{Error, Result};
use sluicegate::port::Queue;
use sluicegate::ring::Packet;

use crate::interface_counters::is_down;

/// A queue and its use.
pub struct ForwardQueue {
    pub queue: Queue,
    /// The port, of the two, that it belongs to.
    pub side: usize,
    pub receives: bool,
    pub sends: bool,
    /// Sending can resume when its interface comes up again.
    pub waits: bool,
    /// When the interface went down; nothing has moved since.
    pub down_since: Option<Instant>,
    /// Number of its interfaces that are described to the target.
    pub described: usize,
}

impl ForwardQueue {
    pub fn new(queue: Queue, side: usize) -> Self {
        Self {
            queue,
            side,
            receives: false,
            sends: false,
            waits: true,
            down_since: None,
            described: 0,
        }
    }

    /// Describes its interfaces to the target, as far as there are new ones.
    pub fn describe_to(&mut self, target: &mut Self) -> Result<()> {
        let interfaces = self.queue.interfaces();
        if self.described < interfaces.len() {
            target.queue.describe_sent(interfaces)?;
            self.described = interfaces.len();
        }
        Ok(())
    }

    /// The received packets that begin in slots `seen..slots`.
    pub fn unseen(&self, seen: u32, slots: u32) -> impl Iterator<Item = Packet<'_>> {
        let mut at = 0;
        let places = self.queue.rx().packets().map(move |packet| {
            let first = at;
            at += packet.slots();
            (first, packet)
        });
        let unseen = places.skip_while(move |(first, _)| *first < seen);
        unseen.take_while(move |(first, _)| *first < slots).map(|(_, packet)| packet)
    }

    /// Releases all received packets, and returns their number.
    pub fn discard(&mut self) -> u64 {
        let packets = self.queue.rx().packets().count() as u64;
        let slots = self.queue.rx().available();
        self.queue.rx_mut().release(slots);
        packets
    }

    /// Returns true if the queue holds packets that it has not sent.
    pub fn is_sending(&self) -> bool {
        self.sends && self.queue.tx().available() + 1 < self.queue.tx().num_slots()
    }

    /// Returns true if packets wait for another call of [`send`](Self::send).
    pub fn is_stuck(&mut self) -> bool {
        self.sends && self.queue.needs_sync_tx()
    }

    /// Sends as many of its packets as the interface accepts. Returns the number of freed slots, and whether
    /// the interface is down.
    pub fn send(&mut self) -> Result<(u32, bool)> {
        match self.queue.sync_tx() {
            Ok(slots) => Ok((slots, false)),
            // It may come up again; until then packets wait.
            Err(error) if self.may_come_up(&error) => Ok((0, true)),
            Err(error) => Err(error),
        }
    }

    /// Sends its packets for at most this time, then stops.
    pub fn end(&mut self, timeout: Duration) -> Result<()> {
        match self.queue.close_tx_within(timeout) {
            // Unsent packets are counted.
            Err(error) if self.may_come_up(&error) => Ok(()),
            result => result,
        }
    }

    fn may_come_up(&self, error: &Error) -> bool {
        self.waits && is_down(error)
    }
}

/// A path from queue to queue, by their indices in the thread.
#[derive(Debug, Default)]
pub struct QueuePair {
    pub from: usize,
    pub to: usize,
    /// The target was full at the last attempt.
    pub blocked: bool,
    /// Slots of waiting packets at the source that were inspected before.
    pub seen: u32,
}

#[cfg(test)]
mod tests {
    use sluicegate::port::{OpenOptions, Port};

    use super::*;

    #[test]
    fn inspected_packets_are_not_inspected_again() {
        let name = "null:?slots=8".parse().unwrap();
        let mut port = Port::open(&name, &OpenOptions::default()).unwrap();
        let mut served = ForwardQueue::new(port.queues.remove(0), 0);
        served.queue.sync_rx().unwrap();
        for (seen, slots, left) in
            [(0, 7, 7), (3, 7, 4), (7, 7, 0), (9, 7, 0), (2, 5, 3), (5, 5, 0)]
        {
            assert_eq!(served.unseen(seen, slots).count(), left, "{seen} seen of {slots}");
        }
    }
}
