//! Compares the counters of an interface and the host before and after a run: packets lost before a
//! port received them, in the card or in the host's queue between driver and stack, and packets sent.
//!
//! The kernel reports the fate of each frame that XDP redirects (`QueueStats::redirects`). For other packets
//! there are only the interface's counters, which include all senders and so give bounds. If this command
//! submitted A packets, and the interface counted S sent, L lost and W waiting in the same time, other
//! senders submitted S + L + W - A. Of this command's packets at most min(A, S) are out, and at least A - L -
//! W, because one of the counters includes each accepted packet.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use sluicegate::error::Error;
use sluicegate::link::{
    self, Backlog, Backlogged, Interface, LinkStats, Netlink, TxCounters, TxCounts, cpu_counters,
};
use sluicegate::port::{Kind, PortName, QueueStats};
use sluicegate::xdp::RedirectCounts;

use crate::ledger::{Ledger, Section};

/// An interface may count its last packets this much later than it accepted them. Cards count packets that
/// have left, and a veth counts packets that its far end has taken, whose CPU may be busy
/// (drivers/net/veth.c, `veth_xdp_rcv`).
const COUNTING_TIMEOUT: Duration = Duration::from_millis(500);
/// The interface counts the last packets within this time if others send, too.
const SETTLING_TIME: Duration = Duration::from_millis(50);
/// Interval between reads of the counters meanwhile.
const READ_INTERVAL: Duration = Duration::from_millis(10);
/// Packets in the ring of a veth's receive queue (VETH_RING_SIZE, drivers/net/veth.c).
const VETH_RING_PACKETS: u64 = 256;

/// An interface's own counters since the beginning of a run.
#[derive(Debug)]
pub struct InterfaceCounters {
    netlink: Netlink,
    interface: Interface,
    softnet_before: u64,
    after: Option<RxCounts>,
    tx: Option<(TxCounters, TxCounts)>,
    queue: Option<(Backlog, Backlogged)>,
    /// The filter might have rejected the packets that the card missed.
    filtered: bool,
}

/// The receive counters when reception stopped.
#[derive(Debug)]
struct RxCounts {
    stats: LinkStats,
    softnet_dropped: u64,
}

/// Packets of all senders that an interface and its queue handled since the run began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transmitted {
    pub sent: u64,
    pub dropped: u64,
    pub errors: u64,
    pub queue_dropped: u64,
    pub waiting: u64,
    /// True if a queueing discipline was removed: packets that it held are not counted.
    pub queue_removed: bool,
    pub removed: bool,
    /// Maximum of uncounted packets in a removed veth's ring; `None` if that is unknown, or if a queue stood
    /// before it.
    pub max_in_ring: Option<u64>,
}

impl InterfaceCounters {
    /// Reads the counters; `None` if the port is not an interface, or the counters are unreadable.
    pub fn watch(port: &PortName, netns: Option<&str>) -> Option<Self> {
        if !matches!(port.kind(), Kind::Packet | Kind::Xdp | Kind::Mirror | Kind::Live) {
            return None;
        }
        let mut netlink = Netlink::open(netns).ok()?;
        let interface = link::interface(netns, port.name()).ok()?;
        let tx = TxCounters::open(netns, &interface).ok();
        let tx = tx.and_then(|mut counters| counters.read().map(|before| (counters, before)));
        // XDP and live frames bypass it.
        let queued = port.kind() == Kind::Packet && port.option("qdisc") != Some("bypass");
        let queue = queued.then(|| Backlog::open(netns, &interface).ok()).flatten();
        let queue = queue.and_then(|mut queue| queue.read().ok().map(|before| (queue, before)));
        Some(Self {
            softnet_before: softnet_dropped()?,
            interface: netlink.again(&interface).ok()?,
            netlink,
            after: None,
            tx,
            queue,
            filtered: port.option("filter").is_some(),
        })
    }

    /// Reads the receive counters for the last time.
    pub fn read_last(&mut self) {
        self.after = self.received();
    }

    fn received(&mut self) -> Option<RxCounts> {
        let stats = self.netlink.again(&self.interface).ok()?.stats;
        Some(RxCounts { stats, softnet_dropped: softnet_dropped()? })
    }

    /// Returns the packets of all senders that the interface has sent so far; `None` if it was removed.
    pub fn sent_now(&mut self) -> Option<u64> {
        let sent = self.transmitted_now()?.sent;
        (!self.is_removed()).then_some(sent)
    }

    fn transmitted_now(&mut self) -> Option<TxCounts> {
        let (counters, before) = self.tx.as_mut()?;
        Some(counters.read()?.since(*before))
    }

    fn is_removed(&self) -> bool {
        self.tx.as_ref().is_some_and(|(counters, _)| counters.is_removed())
    }

    /// Returns the interface's counts once they reach `packets` or a timeout passes; leaves out `rejected`
    /// attempts, which one of the two counted as dropped.
    pub fn transmitted(&mut self, packets: u64, rejected: u64) -> Option<Transmitted> {
        let begin = Instant::now();
        loop {
            // Taken before the read, so that one read follows the end of the time.
            let elapsed = begin.elapsed();
            // The queue first: a packet that leaves it between the two reads is in one of them.
            let queue = self.queue_now();
            let TxCounts { sent, dropped, errors } = self.transmitted_now()?;
            let removed = self.is_removed();
            // More rejections than both counted: others' drops may be among them.
            let counted = rejected <= dropped + u64::from(queue.dropped);
            let rejected = if counted { rejected } else { 0 };
            let by_queue = rejected.min(queue.dropped.into());
            let all = Transmitted {
                sent,
                dropped: dropped.saturating_sub(rejected - by_queue),
                errors,
                queue_dropped: u64::from(queue.dropped) - by_queue,
                waiting: queue.waiting.into(),
                queue_removed: queue.removed,
                removed,
                max_in_ring: self.max_in_ring(),
            };
            let lost = all.dropped + errors + all.queue_dropped + all.waiting;
            let done = match sent.saturating_add(lost).cmp(&packets) {
                Ordering::Equal => true,
                // Others sent, too: some of ours may not be counted yet.
                Ordering::Greater => removed || elapsed >= SETTLING_TIME,
                Ordering::Less => elapsed >= COUNTING_TIMEOUT,
            };
            if done {
                return Some(all);
            }
            std::thread::sleep(READ_INTERVAL);
        }
    }

    /// Returns the packets waiting in the host's queue, and those that it has dropped since the beginning.
    fn queue_now(&mut self) -> Backlogged {
        let Some((queue, before)) = &mut self.queue else { return Backlogged::default() };
        let now = queue.read().unwrap_or(*before);
        // Another discipline in its place begins at 0.
        let dropped = now.dropped.checked_sub(before.dropped).unwrap_or(now.dropped);
        Backlogged { dropped, ..now }
    }

    /// Returns the maximum of packets in a veth's ring; `None` for another interface, or with a queue.
    fn max_in_ring(&self) -> Option<u64> {
        let has_queue = self.queue.as_ref().is_some_and(|(_, before)| before.exists);
        let is_veth = self.interface.kind == "veth" && !has_queue;
        is_veth.then(|| VETH_RING_PACKETS * u64::from(self.interface.tx_queues.max(1)))
    }

    /// Adds the receive counters to a ledger: as of the last read, or of now. A packet for which the card had
    /// no buffer counts as received and lost; with a filter it is unknown whether it would have passed.
    /// Returns the packets that the host dropped on all its interfaces together.
    pub fn account(&mut self, ledger: &mut Ledger) -> u64 {
        let now = if self.after.is_some() { None } else { self.received() };
        let Some(after) = self.after.as_ref().or(now.as_ref()) else { return 0 };
        let before = self.interface.stats;
        let missed = after.stats.rx_missed.saturating_sub(before.rx_missed);
        if self.filtered {
            ledger.add(Section::Note, "rx_missed", missed);
        } else if missed > 0 {
            ledger.add(Section::In, "rx_missed", missed);
            ledger.add(Section::Loss, "rx_missed", missed);
        }
        let received = after.stats.rx_packets.saturating_sub(before.rx_packets);
        ledger.add(Section::Note, "card_received", received);
        after.softnet_dropped.saturating_sub(self.softnet_before)
    }
}

/// Returns the packets that the host dropped before any socket, over all its interfaces.
fn softnet_dropped() -> Option<u64> {
    Some(cpu_counters().ok()?.iter().map(|cpu| cpu.dropped).sum())
}

/// The fate of packets that a command submitted to an interface.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Transmission {
    /// Packets of all senders that the interface sent meanwhile; none if it does not count them.
    pub interface_sent: Option<u64>,
    /// Packets that are out for certain.
    pub sent: u64,
    /// Packets that are out or lost: others sent at the same time.
    pub uncertain: u64,
    losses: Vec<(&'static str, u64)>,
}

impl Transmission {
    /// Returns the fate of the packets that queues submitted to an interface; `None` if there is no
    /// interface.
    pub fn of(mut counters: Option<&mut InterfaceCounters>, handed: &QueueStats) -> Option<Self> {
        let QueueStats { sent: packets, redirects, untraced, .. } = *handed;
        let known = redirects.total();
        let (redirected, redirect_losses) = (redirects.sent, redirect_losses(redirects));
        if known >= packets && known > 0 {
            // More are known if others redirect between the same interfaces.
            let bounds = Self::within(packets, redirected, redirect_losses, (0, None));
            let interface_sent = counters.as_mut().and_then(|counters| counters.sent_now());
            return Some(Self { interface_sent, ..bounds });
        }
        let rest = packets.saturating_sub(known);
        let unknown =
            Self { sent: redirected, uncertain: rest, losses: redirect_losses, ..Self::default() };
        let Some(counters) = counters else {
            // The run continues: some packets are in transit.
            return (known > 0).then_some(unknown);
        };
        // The interface or its queue counted rejected attempts, too.
        let Some(counts) = counters.transmitted(packets, handed.rejected) else {
            return Some(unknown);
        };
        let Transmitted { sent, dropped, errors, queue_dropped, waiting, .. } = counts;
        let lost = vec![
            ("interface_dropped", dropped.saturating_sub(redirects.dropped)),
            ("interface_errors", errors),
            ("queue_dropped", queue_dropped),
            ("unsent", waiting),
        ];
        let counted = sent.saturating_add(dropped + errors + queue_dropped + waiting);
        let vanished = match counts.removed {
            // The interface took along the packets in its queue, or in a veth's ring.
            true => (counts.max_in_ring.unwrap_or(rest), Some("interface_removed")),
            _ if untraced > 0 => (untraced, Some("redirect_failed")),
            _ if counts.queue_removed => (packets.saturating_sub(counted), Some("queue_dropped")),
            _ => (0, None),
        };
        let mut all = Self::within(rest, sent.saturating_sub(redirected), lost, vanished);
        all.interface_sent = (!counts.removed).then_some(sent);
        all.sent += redirected;
        all.losses.extend(unknown.losses);
        Some(all)
    }

    /// Computes bounds of the number of `packets` that are out. `sent` and `losses` are counts of all
    /// senders. No counter includes vanished packets: at most this number, with this name if they vanished
    /// for certain; without a name they are unexplained.
    fn within(
        packets: u64,
        sent: u64,
        mut losses: Vec<(&'static str, u64)>,
        (max_vanished, vanished): (u64, Option<&'static str>),
    ) -> Self {
        let max_lost = losses.iter().map(|(_, packets)| packets).sum::<u64>() + max_vanished;
        let max = packets.min(sent);
        let min = packets.saturating_sub(max_lost).min(max);
        // The named losses explain the packets above the maximum, in their order.
        let mut left = packets - max;
        for (_, packets) in &mut losses {
            *packets = left.min(*packets);
            left -= *packets;
        }
        losses.extend(vanished.map(|name| (name, left)));
        Self { interface_sent: None, sent: min, uncertain: max - min, losses }
    }

    /// Returns the packets that still waited in the host's queue.
    pub fn waiting(&self) -> u64 {
        let waiting = self.losses.iter().find(|(name, _)| *name == "unsent");
        waiting.map_or(0, |(_, packets)| *packets)
    }

    /// Adds the fate of the packets to a ledger.
    pub fn account(&self, ledger: &mut Ledger) {
        ledger.add(Section::Out, "sent", self.sent);
        ledger.add(Section::Uncertain, "sent_or_lost", self.uncertain);
        for &(name, packets) in &self.losses {
            ledger.add(Section::Loss, name, packets);
        }
    }
}

/// The kernel's reasons for not sending redirected frames, by name.
fn redirect_losses(counts: RedirectCounts) -> Vec<(&'static str, u64)> {
    vec![
        ("interface_dropped", counts.dropped),
        ("too_long", counts.too_long),
        ("interface_down", counts.down),
        ("interface_removed", counts.removed),
        ("no_xdp_transmit", counts.unsupported),
        ("redirect_failed", counts.failed),
    ]
}

/// Returns true if the error is that the interface is down.
pub fn is_down(error: &Error) -> bool {
    error.errno() == Some(Errno::ENETDOWN as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_hold_the_truth_beside_other_senders() {
        for (counted, max_vanished, sent, uncertain, lost, sentence) in [
            ((100, 0), 0, 100, 0, 0, "all are out"),
            ((90, 10), 0, 90, 0, 10, "the rest was dropped"),
            ((200, 0), 0, 100, 0, 0, "others sent, and nothing was lost"),
            ((200, 30), 0, 70, 30, 0, "others sent, and the 30 may be ours"),
            ((90, 14), 0, 86, 4, 10, "four are others', and may be among either"),
            ((20, 500), 0, 0, 20, 80, "nearly all was lost"),
            ((90, 4), 0, 90, 0, 4, "nobody knows of six"),
            ((90, 4), 100, 0, 90, 10, "live frames that nobody traced: all 90 may be others'"),
            ((0, 0), 100, 0, 0, 100, "and if the interface sent none, ours are lost"),
        ] {
            let (interface_sent, dropped) = counted;
            let vanished = (max_vanished, (max_vanished > 0).then_some("redirect_failed"));
            let losses = vec![("interface_dropped", dropped)];
            let bounds = Transmission::within(100, interface_sent, losses, vanished);
            let named: u64 = bounds.losses.iter().map(|(_, packets)| packets).sum();
            assert_eq!(
                (bounds.sent, bounds.uncertain, named),
                (sent, uncertain, lost),
                "{sentence}"
            );
        }
    }
}
