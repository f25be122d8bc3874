//! Computes the fate of packets that a command handed to an interface.
//!
//! The kernel tells the fate of each frame that XDP redirects (`QueueStats::redirects`). Of other
//! packets only the interface's counters tell, which contain everybody's: they give bounds. With A
//! packets handed over by this command, and S sent, L lost and W waiting by the interface's counters
//! in the same time, others handed over S + L + W - A. Of ours at most min(A, S) are out, and at least
//! A - L - W, because each packet that the interface took stands in one of its counters.

use crate::ledger::{Ledger, Role};
use nix::errno::Errno;
use sluicegate::error::Error;
use sluicegate::port::QueueStats;
use sluicegate::xdp::RedirectCounts;

use crate::card::{Card, Removed, Transmitted};

/// Packets that a command handed to an interface.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandedOver {
    pub packets: u64,
    /// Attempts besides, which the interface or its queue counted as dropped.
    pub rejected: u64,
    /// Counts of XDP redirects: a part of `packets`, whose fate is known.
    pub redirects: RedirectCounts,
    /// Of `packets`, those that may have vanished before the interface counted them.
    pub untraced: u64,
}

impl From<&QueueStats> for HandedOver {
    fn from(stats: &QueueStats) -> Self {
        Self {
            packets: stats.sent,
            rejected: stats.rejected,
            redirects: stats.redirects,
            untraced: stats.untraced,
        }
    }
}

/// Where the packets went.
#[derive(Debug, Default)]
pub struct Wire {
    /// Packets of all senders that the interface sent meanwhile; none if it does not count them.
    pub interface_sent: Option<u64>,
    /// Packets that are out for certain.
    pub sent: u64,
    /// Packets that are out or lost: others sent at the same time.
    pub uncertain: u64,
    losses: Vec<(&'static str, u64)>,
}

impl Wire {
    /// The packets handed over to the interface behind a card; none if it is not an interface.
    pub fn of(mut card: Option<&mut Card>, handed: HandedOver) -> Option<Self> {
        let HandedOver { packets, rejected, redirects, untraced } = handed;
        let known = redirects.total();
        if known == packets && known > 0 {
            let interface_sent = card.as_mut().and_then(|card| card.sent_now());
            let (sent, losses) = (redirects.sent, redirect_losses(redirects));
            return Some(Self { interface_sent, sent, uncertain: 0, losses });
        }
        let Some(card) = card else {
            // A ledger of a run that goes on: some are on their way.
            let (sent, losses) = (redirects.sent, redirect_losses(redirects));
            let uncertain = packets.saturating_sub(known);
            return (known > 0).then_some(Self { interface_sent: None, sent, uncertain, losses });
        };
        if known > packets {
            // Others redirect between the same interfaces.
            let lost = redirect_losses(redirects);
            let bounds = Bounds::of(packets, redirects.sent, lost, Vanished::default());
            return Some(bounds.wire(card.sent_now()));
        }
        let rest = packets - known;
        let Some(counters) = card.transmitted(packets, rejected) else {
            let losses = redirect_losses(redirects);
            let (sent, uncertain) = (redirects.sent, rest);
            return Some(Self { interface_sent: None, sent, uncertain, losses });
        };
        let Transmitted { sent, dropped, errors, queue_dropped, waiting, removed } = counters;
        let lost = vec![
            ("interface_dropped", dropped.saturating_sub(redirects.dropped)),
            ("interface_errors", errors),
            ("queue_dropped", queue_dropped),
            ("unsent", waiting),
        ];
        let vanished = match removed {
            // The interface took along the packets in its queue, or in a veth's ring.
            Some(Removed { ring }) => Vanished::at_most(ring.unwrap_or(rest), "interface_removed"),
            _ if untraced > 0 => Vanished::at_most(untraced, "redirect_failed"),
            _ => Vanished::default(),
        };
        let bounds = Bounds::of(rest, sent.saturating_sub(redirects.sent), lost, vanished);
        let mut wire = bounds.wire(removed.is_none().then_some(sent));
        wire.sent += redirects.sent;
        wire.losses.extend(redirect_losses(redirects));
        Some(wire)
    }

    /// Packets that still waited in the host's queue.
    pub fn waiting(&self) -> u64 {
        let waiting = self.losses.iter().find(|(name, _)| *name == "unsent");
        waiting.map_or(0, |(_, packets)| *packets)
    }

    /// Adds what became of the packets to a ledger.
    pub fn account(&self, ledger: &mut Ledger) {
        ledger.add(Role::Out, "sent", self.sent);
        ledger.add(Role::Uncertain, "sent_or_lost", self.uncertain);
        for &(name, packets) in &self.losses {
            ledger.add(Role::Loss, name, packets);
        }
    }
}

/// Bounds of how many packets are out, by counters that contain others' packets, too.
#[derive(Debug, PartialEq, Eq)]
struct Bounds {
    sent: u64,
    uncertain: u64,
    losses: Vec<(&'static str, u64)>,
}

/// Packets that no counter has.
#[derive(Clone, Copy, Debug, Default)]
struct Vanished {
    max: u64,
    /// The name of those that vanished for certain; without one they are unexplained.
    name: Option<&'static str>,
}

impl Vanished {
    fn at_most(max: u64, name: &'static str) -> Self {
        Self { max, name: Some(name) }
    }
}

impl Bounds {
    /// Computes the bounds for `packets`, where `sent` and `lost` were counted of all senders together.
    fn of(
        packets: u64,
        sent: u64,
        mut losses: Vec<(&'static str, u64)>,
        vanished: Vanished,
    ) -> Self {
        let max_lost = losses.iter().map(|(_, packets)| packets).sum::<u64>() + vanished.max;
        let max = packets.min(sent);
        let min = packets.saturating_sub(max_lost).min(max);
        // Those that cannot be out, as far as they have a name.
        let mut left = packets - max;
        for (_, packets) in &mut losses {
            *packets = left.min(*packets);
            left -= *packets;
        }
        losses.extend(vanished.name.map(|name| (name, left)));
        Self { sent: min, uncertain: max - min, losses }
    }

    fn wire(self, interface_sent: Option<u64>) -> Wire {
        let Self { sent, uncertain, losses } = self;
        Wire { interface_sent, sent, uncertain, losses }
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
    fn the_truth_lies_within_the_bounds_whatever_others_send() {
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
            let vanished = match max_vanished {
                0 => Vanished::default(),
                max => Vanished::at_most(max, "redirect_failed"),
            };
            let losses = vec![("interface_dropped", dropped)];
            let bounds = Bounds::of(100, interface_sent, losses, vanished);
            let named: u64 = bounds.losses.iter().map(|(_, packets)| packets).sum();
            assert_eq!(
                (bounds.sent, bounds.uncertain, named),
                (sent, uncertain, lost),
                "{sentence}"
            );
        }
    }
}
