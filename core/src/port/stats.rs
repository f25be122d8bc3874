//! The counts of a queue.

use crate::xdp::RedirectCounts;

/// The counts of a backend since the queue was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Packets that passed the filter and were the queue's to take, taken or lost.
    pub received: u64,
    /// The part of these that was lost because the queue's buffer had no room.
    pub dropped_ring_full: u64,
    /// The part of these that was longer than a frame of the buffer, whether it was full or not; of
    /// `packet:` with `method=frames` only.
    pub lost_long: u64,
    /// How often the buffer ran full.
    pub ring_full_events: u64,
    /// Packets sent; for a file, written; of live frames and forwarding in the kernel, handed to the
    /// interface.
    pub sent: u64,
    /// The part of these that XDP redirected to an interface, and the known results.
    pub redirects: RedirectCounts,
    /// The part of these that XDP redirected while the kernel does not report failures: without
    /// CAP_PERFMON, or BTF.
    pub untraced: u64,
    /// Attempts to send that the kernel answered with a drop, which the interface or its queue counted.
    /// Most packets are tried again.
    pub rejected: u64,
    /// Packets given to send that never will be: too long for the interface, a full disk.
    pub refused: u64,
    /// The part of these that was longer than the port can send; not of `xdp:` and `tap:`.
    pub too_long: u64,
    /// The part of these that was still not sent when sending ended.
    pub unsent: u64,
    /// The part of these that a peer of `memif:` had not taken when it disconnected.
    pub disconnected: u64,
}

impl QueueStats {
    /// Returns the sum of two queues' counts.
    pub fn plus(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            dropped_ring_full: self.dropped_ring_full + other.dropped_ring_full,
            lost_long: self.lost_long + other.lost_long,
            ring_full_events: self.ring_full_events + other.ring_full_events,
            sent: self.sent + other.sent,
            redirects: self.redirects.plus(other.redirects),
            untraced: self.untraced + other.untraced,
            rejected: self.rejected + other.rejected,
            refused: self.refused + other.refused,
            too_long: self.too_long + other.too_long,
            unsent: self.unsent + other.unsent,
            disconnected: self.disconnected + other.disconnected,
        }
    }
}
