//! The counts of a queue.

use crate::xdp::RedirectCounts;

/// The counts of a backend since the queue was opened.
///
/// `received` is the number of packets that entered the receive ring, plus `dropped_ring_full`, plus those
/// that the kernel still holds. `sent + sent_or_lost + refused` is the number of packets submitted, less
/// those that are still in the transmit ring. The other counts are parts of these, or events.
///
/// In the command's ledger (docs/design/accounting.md), `ring_full` is `dropped_ring_full` without `lost_long`,
/// `too_long` includes `lost_long`, `refused` excludes `too_long` and `unsent`, and `sent` has
/// only packets that are proven to have left the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Packets for this queue that passed the filter, including lost ones.
    pub received: u64,
    /// Received packets that were lost because the queue's buffer was full or, included in this count,
    /// because they were too long for it. The sum of [`Meta::drops_before`](crate::ring::Meta::drops_before) of
    /// the packets received is at most this.
    pub dropped_ring_full: u64,
    /// Packets in `dropped_ring_full` that were longer than a frame of the buffer; only counted by `packet:`
    /// with `method=frames`.
    pub lost_long: u64,
    /// Number of times that the buffer became full.
    pub ring_full_events: u64,
    /// Packets sent: accepted by the kernel, written to a file, or handed to the interface by live frames
    /// and by forwarding in the kernel. The interface may still drop them: see
    /// [`link::TxCounters`](crate::link::TxCounters).
    pub sent: u64,
    /// Sent packets that XDP redirected to an interface, by known result. For forwarding in the kernel they
    /// include packets that others redirect between the same interfaces, so their total may exceed `sent`.
    pub redirects: RedirectCounts,
    /// Sent packets that XDP redirected without a known result: without CAP_PERFMON or BTF, the kernel does
    /// not report failures. One port of a process counts those between two interfaces; others leave all
    /// untraced.
    pub untraced: u64,
    /// Packets that a peer of `memif:` may have taken, or not, when it disconnected or sending ended. Until
    /// then they count as `sent`.
    pub sent_or_lost: u64,
    /// Attempts to send that ended in a drop, which the interface or its queue counted. Most of these
    /// packets are tried again.
    pub rejected: u64,
    /// Packets that will never be sent: too long for the interface, a full disk.
    pub refused: u64,
    /// Refused packets that were longer than the port can send; not counted by `xdp:` sockets, `tap:`,
    /// `host:` and `pcap:`.
    pub too_long: u64,
    /// Bytes of the packets in `too_long`.
    pub too_long_bytes: u64,
    /// Refused packets that were still waiting when sending ended.
    pub unsent: u64,
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
            sent_or_lost: self.sent_or_lost + other.sent_or_lost,
            redirects: self.redirects.plus(other.redirects),
            untraced: self.untraced + other.untraced,
            rejected: self.rejected + other.rejected,
            refused: self.refused + other.refused,
            too_long: self.too_long + other.too_long,
            too_long_bytes: self.too_long_bytes + other.too_long_bytes,
            unsent: self.unsent + other.unsent,
        }
    }
}
