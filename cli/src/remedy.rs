//! Names the remedy of each kind of loss in a ledger.

use crate::ledger::{Ledger, Role};

/// Losses by name, and the remedy.
const REMEDIES: &[(&str, &str)] = &[
    (
        "rx_missed",
        "give the card larger rings (ethtool -G IFACE rx N), spread its queues over more CPUs, or take \
         packets by xdp:",
    ),
    (
        "ring_full",
        "take fewer packets by a filter, share them over more --threads, pin these with --cpus, or \
         enlarge the port's ring (blocks=, buffer=, ring_size=, ring_size=, ring_size=, whichever the port has); a \
         forwarder whose target is the limit sends more by live frames (xdp:IFACE?send=live: 3 to 4 \
         times as many as AF_XDP in copy mode, for a CPU and some latency)",
    ),
    ("not_written", "free some space, write to a faster disk, or compress (-w FILE.zst)"),
    ("not_printed", "keep the reader of the lines open"),
    (
        "refused",
        "check that the interface is up, that its MTU allows the packets, and that its queueing \
         discipline has room (qdisc=bypass avoids it)",
    ),
    (
        "too_long",
        "raise the interface's MTU (ip link set IFACE mtu N) or send shorter packets; where the source \
         puts TCP packets together, end that (ethtool -K IFACE gro off); live frames have 3368 bytes at \
         most, packet: sends longer ones",
    ),
    ("too_short", "leave packets out that are shorter than an Ethernet header"),
    (
        "not_ethernet",
        "replay files of Ethernet packets; use packet: for interfaces of another type",
    ),
    ("other_link_type", "replay to a port of the file's link type"),
    (
        "unsent",
        "bring the interface up where it is down; let the run go on longer, or send at a lower --rate",
    ),
    ("disconnected", "keep the peer connected until the run has ended"),
    (
        "interface_dropped",
        "see that the interface has a carrier; send at a lower --rate, or give the receiving end more CPU: \
         on a veth its far end is the limit",
    ),
    (
        "interface_errors",
        "look at `ip -s -s link show IFACE`; a tunnel needs a route to its remote end, a card a carrier",
    ),
    (
        "queue_dropped",
        "send at a lower --rate, lengthen the queue (ip link set IFACE txqueuelen N), or use \
         qdisc=bypass; see `tc -s qdisc show dev IFACE`",
    ),
    ("interface_down", "bring the interface up: ip link set IFACE up"),
    ("interface_removed", "start again when the interface is back"),
    (
        "no_xdp_transmit",
        "make the interface take redirected frames: on a veth bring its far end up, and switch GRO on there \
         (ethtool -K OTHER_END gro on), open the TAP device in a program, on a card attach a program (sluice \
         attach IFACE); or use --method sendmmsg, a port packet:",
    ),
    (
        "redirect_failed",
        "see which errors the kernel tells: perf trace -e xdp:xdp_redirect_err; as root, or with \
         CAP_PERFMON, the ledger names the cause",
    ),
    ("port_full", "give the port a faster way out (send=live), or the sender a lower rate"),
    ("port_down", "bring the port's interface up: ip link set IFACE up"),
    ("lost_with_port", "add the port again: sluice switch has --control for it"),
    ("malformed", "look at what sends frames without a valid Ethernet header"),
    ("cut", "raise the source port's snaplen="),
    ("link_local", "none is needed: a switch does not pass on link-local frames (STP, LLDP)"),
    ("vlan", "add the VLAN to the port: --access, --trunk or --native"),
    ("storm_limit", "raise --storm-limit, or look at what sends broadcasts"),
    ("same_port", "none is needed: the destination is behind the port that the packet came from"),
    ("no_port", "add a port for the VLAN"),
];

/// The remedy for a loss; none if the loss is unknown.
pub fn remedy(loss: &str) -> Option<&'static str> {
    REMEDIES.iter().find(|(name, _)| *name == loss).map(|(_, remedy)| *remedy)
}

/// The losses of a ledger with their remedies, the largest first.
pub fn remedies(ledger: &Ledger) -> Vec<(&'static str, &'static str)> {
    let mut losses: Vec<_> = ledger.entries(Role::Loss).filter(|entry| entry.packets > 0).collect();
    losses.sort_by_key(|entry| std::cmp::Reverse(entry.packets));
    losses.iter().filter_map(|entry| Some((entry.name, remedy(entry.name)?))).collect()
}

#[cfg(test)]
mod tests {
    use sluicegate_switch::CAUSES;

    use super::*;

    /// The names in the rows of a role, of the table of ledger entries.
    fn documented<'a>(design: &'a str, role: &str) -> Vec<&'a str> {
        let rows = design.lines().filter(|line| {
            line.strip_prefix("| ").is_some_and(|line| {
                let roles = line.split(" | ").next().unwrap_or_default();
                roles.split(", ").any(|one| one == role)
            })
        });
        let names = rows.filter_map(|row| row.split(" | ").nth(1));
        names.flat_map(|names| names.split('`').skip(1).step_by(2)).collect()
    }

    #[test]
    fn every_loss_that_is_documented_has_a_remedy_and_the_other_way_round() {
        let design = include_str!("../../docs/design/accounting.md");
        let losses = documented(design, "loss");
        assert!(losses.len() > 10, "{losses:?}");
        for name in losses.iter().copied().chain(CAUSES.map(|(_, name)| name)) {
            assert!(remedy(name).is_some(), "{name} has no remedy");
        }
        for (name, _) in REMEDIES {
            let known = losses.contains(name) || CAUSES.iter().any(|(_, cause)| cause == name);
            assert!(known, "{name} is not in docs/design/accounting.md");
        }
    }
}
