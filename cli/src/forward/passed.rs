//! What a relay counts.

use sluicegate::forward::Moved;
use sluicegate::port::QueueStats;

/// What became of the packets of one side.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passed {
    pub swapped: u64,
    pub copied: u64,
    pub bytes: u64,
    /// They need more slots than the target has.
    pub too_long: u64,
    /// They came in after the end, and were let go.
    pub after_end: u64,
    /// They came in before the end, and there was nowhere to go to any more.
    pub unsent: u64,
    /// What the side's queues counted, received and sent.
    pub stats: QueueStats,
    /// How often its interface went down.
    pub downs: u32,
}

impl Passed {
    pub fn moved(&mut self, moved: &Moved) {
        self.swapped += u64::from(moved.swapped_packets);
        self.copied += u64::from(moved.copied_packets);
        self.bytes += moved.bytes;
        self.too_long += u64::from(moved.too_long_packets);
    }

    pub fn packets(&self) -> u64 {
        self.swapped + self.copied
    }

    /// This and another thread's.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            swapped: self.swapped + other.swapped,
            copied: self.copied + other.copied,
            bytes: self.bytes + other.bytes,
            too_long: self.too_long + other.too_long,
            after_end: self.after_end + other.after_end,
            unsent: self.unsent + other.unsent,
            stats: self.stats.plus(other.stats),
            // All of a port's queues see the same.
            downs: self.downs.max(other.downs),
        }
    }
}
