//! Reads the packets that an interface has sent and dropped, without the kernel's rtnl lock. Netlink's
//! answers wait for that lock, and the end of a live-frame program holds it; `/proc/net/dev` does not take it
//! (net/core/net-procfs.c).
//!
//! The interface is identified by its index, so a new name has no effect. When it is removed, the kernel's
//! last message about it (RTM_DELLINK) contains its drops; a veth has lost its count of sent packets by then.

use std::fs::File;
use std::io::{Read, Seek};

use super::link_state::LinkRemoval;
use super::{Interface, LinkState, LinkStats, netns};
use sluicegate_base::error::{Error, Result};

const PATH: &str = "/proc/thread-self/net/dev";
/// Maximum of attempts: the name may change between two reads.
const MAX_ATTEMPTS: usize = 8;
/// The kind of ifb devices, which drop packets from sockets and count them as received and dropped
/// (drivers/net/ifb.c, `ifb_xmit`).
const IFB: &str = "ifb";

/// The transmit counters of one interface.
#[derive(Debug)]
pub struct TxCounters {
    file: File,
    presence: LinkState,
    removal: LinkRemoval,
    kind: String,
    /// Its drops, after its removal.
    removed: Option<TxCounts>,
}

/// Transmit counters of an interface since its creation, over all senders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxCounts {
    /// Packets that it sent.
    pub sent: u64,
    /// Packets that it dropped.
    pub dropped: u64,
    /// Packets that it could not send: no route for a tunnel, a fault of the card. Some drivers also count
    /// them as dropped.
    pub errors: u64,
}

impl TxCounts {
    /// Returns the counts since an earlier moment.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(earlier.sent),
            dropped: self.dropped.saturating_sub(earlier.dropped),
            errors: self.errors.saturating_sub(earlier.errors),
        }
    }
}

impl TxCounters {
    /// Opens the counters of an interface of a network namespace, or of this thread's.
    ///
    /// # Errors
    /// No such namespace, no privilege to enter it, or no `/proc`.
    pub fn open(netns: Option<&str>, interface: &Interface) -> Result<Self> {
        // Opened first, so that no later removal is missed.
        let removal = LinkRemoval::open(netns, interface.index)?;
        let (file, presence) = netns::run_in(netns, || {
            let file = File::open(PATH).map_err(|error| Error::system("open", PATH, error))?;
            Ok((file, LinkState::of(interface)?))
        })?;
        Ok(Self { file, presence, removal, kind: interface.kind.clone(), removed: None })
    }

    /// True if the last [`read`](Self::read) found the interface removed.
    pub fn is_removed(&self) -> bool {
        self.removed.is_some()
    }

    /// Reads the counters. For a removed interface it returns its drops, and `u64::MAX` as the number sent.
    /// `None` if the kernel does not report them.
    pub fn read(&mut self) -> Option<TxCounts> {
        if self.removed.is_some() {
            return self.removed;
        }
        for _ in 0..MAX_ATTEMPTS {
            match self.presence.name() {
                Ok(name) => {
                    let text = self.text()?;
                    if let Some(stats) = stats_of(&text, &name) {
                        return Some(self.counts(&stats));
                    }
                }
                Err(Error::Removed { .. }) => {
                    let link = self.removal.take()?;
                    self.removed = Some(TxCounts { sent: u64::MAX, ..self.counts(&link.stats) });
                    return self.removed;
                }
                Err(_) => return None,
            }
        }
        None
    }

    fn counts(&self, stats: &LinkStats) -> TxCounts {
        let never_sent = if self.kind == IFB { stats.rx_dropped } else { 0 };
        TxCounts {
            sent: stats.tx_packets,
            dropped: stats.tx_dropped + never_sent,
            errors: stats.tx_errors,
        }
    }

    fn text(&self) -> Option<String> {
        let mut text = Vec::new();
        let mut file = &self.file;
        file.rewind().ok()?;
        file.read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Parses an interface's line: eight numbers for receiving (bytes, packets, errors, drops, ...), then eight
/// for sending.
fn stats_of(text: &str, name: &str) -> Option<LinkStats> {
    // No interface name contains a colon (net/core/dev.c, dev_valid_name).
    let (_, counts) =
        text.lines().filter_map(|line| line.split_once(':')).find(|it| it.0.trim() == name)?;
    let counts: Vec<u64> =
        counts.split_ascii_whitespace().map_while(|count| count.parse().ok()).collect();
    let at = |index: usize| counts.get(index).copied();
    Some(LinkStats {
        rx_dropped: at(3)?,
        tx_packets: at(9)?,
        tx_errors: at(10)?,
        tx_dropped: at(11)?,
        ..LinkStats::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::for_tests::lab;
    use crate::{Netlink, VethEnd};

    const TEXT: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 100       2    0    0    0     0          0         0      100       2    0    0    0     0       0          0
left0:18446744073709551615 7 0 1 0 0 0 0 900 18446744073709551615 5 12 0 0 0 0
 left: 1 2 3 4 5 6 7 8 9 10
";

    #[test]
    fn an_interfaces_line_has_what_it_sent_and_dropped() {
        let stats = |rx_dropped, tx_packets, tx_errors, tx_dropped| {
            Some(LinkStats {
                rx_dropped,
                tx_packets,
                tx_errors,
                tx_dropped,
                ..LinkStats::default()
            })
        };
        for (name, expected) in [
            ("lo", stats(0, 2, 0, 0)),
            ("left0", stats(1, u64::MAX, 5, 12)),
            ("left", None),
            ("eth0", None),
            ("", None),
        ] {
            assert_eq!(stats_of(TEXT, name), expected, "{name}");
        }
    }

    #[test]
    fn the_loopback_interface_has_counters_that_grow() {
        let lo = crate::interface(None, "lo").unwrap();
        let mut counters = TxCounters::open(None, &lo).unwrap();
        let first = counters.read().unwrap();
        assert!(counters.read().unwrap().sent >= first.sent, "they can be read again");
        let nobody = Interface { index: 1 << 30, name: "nobody0".into(), ..lo };
        assert_eq!(TxCounters::open(None, &nobody).unwrap().read(), None);
    }

    #[test]
    fn the_last_counts_of_a_removed_interface_survive_other_changes() {
        let Some(lab) = lab() else { return };
        let netns = lab.netns("left");
        let mut netlink = Netlink::open(Some(&netns)).unwrap();
        let left = netlink.interface("left0").unwrap();
        let mut counters = TxCounters::open(Some(&netns), &left).unwrap();
        let ends = ["other0", "other1"].map(|name| VethEnd { name, netns: None, mac: None });
        // More messages than fit a socket's buffer.
        for _ in 0..60 {
            netlink.add_veth(&ends[0], &ends[1], 1).unwrap();
            netlink.delete("other0").unwrap();
        }
        netlink.delete("left0").unwrap();
        let removed = counters.read().expect("the last message about it");
        assert!(counters.is_removed());
        assert_eq!((removed.sent, removed.errors), (u64::MAX, 0));
    }
}
