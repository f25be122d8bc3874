//! The ledger of every packet's fate.
//!
//! Inputs, outputs and losses have names. The rest is [`unexplained`](Ledger::unexplained): zero in a correct
//! run, negative if more packets went out than are known to have come in. If other programs use the same
//! counters, or a `memif:` peer leaves, some packets are [`uncertain`](Section::Uncertain): out or lost. Packets that the user does not
//! want are [`omitted`](Section::Omitted). Notes are figures outside of the sum, such as the host's own drops.

use std::borrow::Cow;

use sluicegate::port::{Kind, QueueStats};

/// The section of the ledger that an entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Packets that came in.
    In,
    /// Packets that reached their target.
    Out,
    /// Packets that were lost.
    Loss,
    /// Packets that the user's flags leave out.
    Omitted,
    /// Packets that went out or were lost: it is unknown which.
    Uncertain,
    /// A figure beside the sum.
    Note,
}

/// A named count of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Its place in the sum.
    pub section: Section,
    /// The place or cause: "written", "ring_full". Unique within a section.
    pub name: &'static str,
    /// The number of packets.
    pub packets: u64,
}

/// The fate of every packet: in = out + losses + omitted + uncertain + unexplained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    entries: Vec<LedgerEntry>,
    /// The remedies of losses whose cause is known, by the losses' names.
    advice: Vec<(&'static str, &'static str)>,
    /// The interface that the remedies concern, if it is only one.
    interface: Option<String>,
}

impl Ledger {
    /// Creates a ledger of packets of one interface.
    pub fn of(interface: &str) -> Self {
        Self { interface: Some(interface.into()), ..Self::default() }
    }

    /// Creates an empty ledger of the same interface.
    pub fn emptied(&self) -> Self {
        Self { interface: self.interface.clone(), ..Self::default() }
    }

    /// Adds packets under a name; entries keep the order in which they were first added.
    pub fn add(&mut self, section: Section, name: &'static str, packets: u64) {
        match self.entries.iter_mut().find(|e| e.section == section && e.name == name) {
            Some(entry) => entry.packets += packets,
            None => self.entries.push(LedgerEntry { section, name, packets }),
        }
    }

    /// Sets the remedy of a loss whose cause is known.
    pub fn advise(&mut self, loss: &'static str, remedy: &'static str) {
        self.advice.push((loss, remedy));
    }

    /// Sets the remedy of unsent packets by the kind of the port that they were for.
    pub fn advise_unsent(&mut self, backend: &str) {
        let is_unsent = |loss: &LedgerEntry| loss.name == "unsent" && loss.packets > 0;
        if self.entries(Section::Loss).any(is_unsent) {
            let is_memif = backend == Kind::Memif.prefix();
            self.advise("unsent", if is_memif { UNSENT_TO_MEMIF } else { UNSENT_TO_INTERFACE });
        }
    }

    /// Adds the packets that queues received and lost; those received after the end were dropped.
    pub fn add_received(&mut self, stats: &QueueStats, after_end: u64) {
        self.add(Section::In, "received", stats.received.saturating_sub(after_end));
        self.add(Section::Loss, "ring_full", stats.dropped_ring_full - stats.lost_long);
        self.add(Section::Loss, "too_long", stats.lost_long);
        self.add(Section::Note, "after_end", after_end);
        self.add(Section::Note, "ring_full_events", stats.ring_full_events);
    }

    /// Adds the packets that queues were given and did not provably send.
    pub fn add_unsent(&mut self, stats: &QueueStats) {
        let named = stats.too_long + stats.unsent;
        self.add(Section::Loss, "refused", stats.refused.saturating_sub(named));
        self.add(Section::Loss, "too_long", stats.too_long);
        self.add(Section::Loss, "unsent", stats.unsent);
        self.add(Section::Uncertain, "sent_or_lost", stats.sent_or_lost);
    }

    /// Adds all of another ledger's entries.
    pub fn merge(&mut self, other: &Self) {
        for entry in &other.entries {
            self.add(entry.section, entry.name, entry.packets);
        }
        self.advice.extend(&other.advice);
    }

    /// The entries of one section, in the order they were named.
    pub fn entries(&self, section: Section) -> impl Iterator<Item = &LedgerEntry> {
        self.entries.iter().filter(move |e| e.section == section)
    }

    /// The packets of one section.
    pub fn total(&self, section: Section) -> u64 {
        self.entries(section).map(|e| e.packets).sum()
    }

    /// Returns the maximum of packets that can have been sent.
    pub fn max_out(&self) -> u64 {
        self.total(Section::Out) + self.total(Section::Uncertain)
    }

    /// Packets that came in and are neither out nor omitted nor known to be lost.
    pub fn unexplained(&self) -> i64 {
        let known = self.max_out() + self.total(Section::Loss) + self.total(Section::Omitted);
        self.total(Section::In).wrapping_sub(known).cast_signed()
    }
}

const UNSENT_TO_MEMIF: &str = "start or speed up the peer; run longer, or at a lower --rate";
const UNSENT_TO_INTERFACE: &str =
    "bring the interface and its far end up; run longer, or at a lower --rate";

/// Losses by name, and the remedy.
pub const REMEDIES: &[(&str, &str)] = &[
    (
        "rx_missed",
        "enlarge the card's rings (ethtool -G IFACE rx N), spread its queues over more CPUs, or use \
         an xdp: port",
    ),
    (
        "ring_full",
        "reduce the packets by a filter, use more --threads, pin them with --cpus, or enlarge the \
         port's ring (blocks=, buffer= or ring_size=); if a forwarder's target is the limit, send \
         live frames (xdp:IFACE?send=live: 3 to 4 times as many as AF_XDP in copy mode, for a CPU \
         and some latency); with memif:, speed up the peer, or use ring_size= or more queues",
    ),
    ("not_written", "free some space, write to a faster disk, or compress (-w FILE.zst)"),
    ("not_printed", "keep the reader of the lines running, or free some space for their file"),
    (
        "refused",
        "an interface: check that it is up and that its MTU allows the packets; packet: also needs room in \
         its queueing discipline (qdisc=bypass avoids it); pcap: check that the disk has room",
    ),
    (
        "too_long",
        "raise the interface's MTU (ip link set IFACE mtu N) or send shorter packets; if the source \
         merges TCP packets, turn GRO off (ethtool -K IFACE gro off); live frames have at most 3368 \
         bytes, packet: sends longer ones",
    ),
    ("too_short", "remove packets that are shorter than an Ethernet header"),
    (
        "not_ethernet",
        "replay files of Ethernet packets; use packet: for interfaces of another type",
    ),
    ("other_link_type", "replay to a port of the file's link type"),
    (
        "unsent",
        "bring the interface and its far end up, with memif: start or speed up the peer; run longer, or at a \
         lower --rate",
    ),
    (
        "interface_dropped",
        "check the interface's carrier; on a veth bring the far end up, and raise its MTU to the interface's; \
         send at a lower --rate, or give the receiver more CPU, because a veth is limited by its far end",
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
    ("interface_removed", "start again when the interface exists again"),
    (
        "no_xdp_transmit",
        "make the interface accept redirected frames: on a veth bring its far end up and turn GRO on there \
         (ethtool -K OTHER_END gro on); open a TAP device in a program; on a card attach a program (sluice \
         attach IFACE). Or send by a packet: port (--method sendmmsg)",
    ),
    (
        "redirect_failed",
        "see the kernel's errors: perf trace -e xdp:xdp_redirect_err; as root, or with CAP_PERFMON, the \
         ledger names the cause",
    ),
    (
        "port_full",
        "use a faster sending method (send=live; memif: a faster peer, more queues), or a lower rate",
    ),
    ("port_down", "bring the port's interface up: ip link set IFACE up"),
    ("lost_with_port", "add the port again: sluice switch add PORT"),
    ("malformed", "find the sender of frames without a valid Ethernet header"),
    ("cut", "raise the source port's snaplen="),
    (
        "link_local",
        "none needed: a switch drops link-local frames (STP, LLDP); --forward-link-local floods them",
    ),
    ("vlan", "add the VLAN to the port: --access, --trunk or --native"),
    ("storm_limit", "raise --storm-limit, or find the sender of the broadcasts"),
    ("same_port", "none needed: the destination is behind the port that received the packet"),
    ("no_port", "add a port for the VLAN"),
];

/// The remedy for a loss; none if the loss is unknown.
pub fn remedy(loss: &str) -> Option<&'static str> {
    REMEDIES.iter().find(|(name, _)| *name == loss).map(|(_, remedy)| *remedy)
}

/// The losses of a ledger with their remedies, the largest first.
pub fn remedies(ledger: &Ledger) -> Vec<(&'static str, Cow<'static, str>)> {
    let mut losses: Vec<_> =
        ledger.entries(Section::Loss).filter(|entry| entry.packets > 0).collect();
    losses.sort_by_key(|entry| std::cmp::Reverse(entry.packets));
    let by_cause = |loss| ledger.advice.iter().find(|(name, _)| *name == loss);
    let advice = |loss| {
        let remedy = by_cause(loss).map(|(_, remedy)| *remedy).or_else(|| remedy(loss))?;
        Some(match &ledger.interface {
            Some(interface) => remedy.replace("IFACE", interface).into(),
            None => remedy.into(),
        })
    };
    losses.iter().filter_map(|entry| Some((entry.name, advice(entry.name)?))).collect()
}

#[cfg(test)]
mod tests {
    use sluicegate_switch::CAUSES;

    use super::*;

    #[test]
    fn packets_without_a_named_fate_are_unexplained() {
        let mut ledger = Ledger::default();
        ledger.add(Section::In, "socket", 100);
        ledger.add(Section::Out, "file", 90);
        ledger.add(Section::Loss, "disk", 4);
        ledger.add(Section::Loss, "disk", 3);
        ledger.add(Section::Note, "host drops", 1000);
        assert_eq!(ledger.total(Section::Loss), 7);
        assert_eq!(ledger.unexplained(), 3);
        ledger.add(Section::Out, "file", 5);
        assert_eq!(ledger.unexplained(), -2, "more out than in is shown, not hidden");
        ledger.add(Section::In, "socket", 10);
        ledger.add(Section::Uncertain, "sent_or_lost", 8);
        assert_eq!((ledger.max_out(), ledger.unexplained()), (103, 0), "8 of 10 are out or lost");
        ledger.add(Section::In, "socket", 5);
        ledger.add(Section::Omitted, "filtered", 5);
        assert_eq!((ledger.max_out(), ledger.unexplained()), (103, 0), "5 are not wanted");
    }

    #[test]
    fn merging_adds_like_names() {
        let mut left = Ledger::default();
        left.add(Section::In, "socket", 1);
        let mut right = left.clone();
        right.add(Section::Loss, "ring full", 2);
        left.merge(&right);
        assert_eq!(left.total(Section::In), 2);
        assert_eq!(left.entries(Section::Loss).count(), 1);
    }

    #[test]
    fn a_known_cause_decides_the_remedy() {
        let mut ledger = Ledger::default();
        ledger.add(Section::Loss, "not_written", 2);
        assert_eq!(remedies(&ledger), [("not_written", remedy("not_written").unwrap().into())]);
        ledger.advise("not_written", "keep the reader");
        assert_eq!(remedies(&ledger), [("not_written", "keep the reader".into())]);
        let mut whole = Ledger::default();
        whole.merge(&ledger);
        assert_eq!(remedies(&whole), remedies(&ledger));
    }

    #[test]
    fn the_remedy_of_unsent_packets_is_that_of_their_port() {
        let begin = |backend, unsent| {
            let mut ledger = Ledger::default();
            ledger.add(Section::Loss, "unsent", unsent);
            ledger.advise_unsent(backend);
            ledger
        };
        for (backend, far_end) in [("memif", "the peer"), ("packet", "its far end")] {
            let remedies = remedies(&begin(backend, 1));
            let far_ends = ["the peer", "its far end"].map(|it| remedies[0].1.contains(it));
            assert_eq!(far_ends, ["the peer" == far_end, "the peer" != far_end], "{remedies:?}");
        }
        assert_eq!(begin("memif", 0), begin("packet", 0), "none is unsent");
    }

    #[test]
    fn remedies_name_the_interface_of_the_ledger() {
        let mut ledger = Ledger::of("left0");
        ledger.add(Section::Loss, "interface_down", 1);
        let named = [("interface_down", "bring the interface up: ip link set left0 up".into())];
        assert_eq!(remedies(&ledger), named);
        let mut whole = Ledger::default();
        whole.merge(&ledger);
        assert!(remedies(&whole)[0].1.contains("IFACE"), "it may be that of another port");
    }

    /// The names in the rows of a section, of the table of ledger entries.
    fn documented<'a>(design: &'a str, section: &str) -> Vec<&'a str> {
        let rows = design.lines().filter(|line| {
            line.strip_prefix("| ").is_some_and(|line| {
                let roles = line.split(" | ").next().unwrap_or_default();
                roles.split(", ").any(|one| one == section)
            })
        });
        let names = rows.filter_map(|row| row.split(" | ").nth(1));
        names.flat_map(|names| names.split('`').skip(1).step_by(2)).collect()
    }

    #[test]
    fn documented_losses_and_remedies_are_the_same() {
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
