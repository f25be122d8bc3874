//! What an interface and the host have counted meanwhile: packets lost before a port could have them,
//! in the card or in the host's queue between the driver and the stack; and packets sent.

use sluicegate::ledger::{Ledger, Role};
use sluicegate::link::{Backlog, Sample, Sampler};
use sluicegate::port::{Kind, PortName};

/// An interface's own counters, from the moment a run begins.
#[derive(Debug)]
pub struct Card {
    sampler: Sampler,
    before: Sample,
    after: Option<Sample>,
    /// What waits in the host's queue; nobody knows where it cannot be asked.
    backlog: Option<Backlog>,
    /// Packets that the card missed might not have passed.
    filtered: bool,
}

impl Card {
    /// Looks at the counters now; none for ports that are no interface, or where they cannot be
    /// read: the ledger goes without them then.
    pub fn watch(port: &PortName, netns: Option<&str>) -> Option<Self> {
        if !matches!(port.kind(), Kind::Packet | Kind::Xdp | Kind::Mirror | Kind::Live) {
            return None;
        }
        let mut sampler = Sampler::open(netns, &[port.name().to_owned()]).ok()?;
        let before = sampler.sample().ok()?;
        let filtered = port.option("filter").is_some();
        let backlog = Backlog::open(netns, port.name()).ok();
        Some(Self { sampler, before, after: None, backlog, filtered })
    }

    /// Looks at the counters for the last time.
    pub fn look(&mut self) {
        self.after = self.sampler.sample().ok();
    }

    /// Packets that wait in the host's queue to be sent, from whomever they came.
    pub fn waiting(&mut self) -> u64 {
        let packets = self.backlog.as_mut().map(Backlog::packets);
        packets.and_then(Result::ok).unwrap_or(0)
    }

    /// Packets that the interface has sent since the beginning, and that it dropped in place of
    /// sending them; from whomever they came.
    pub fn sent(&mut self) -> Option<(u64, u64)> {
        self.look();
        let stats = |sample: &Sample| sample.interfaces.first().map(|i| i.interface.stats);
        let (before, after) = (stats(&self.before)?, stats(self.after.as_ref()?)?);
        let sent = after.tx_packets.saturating_sub(before.tx_packets);
        Some((sent, after.tx_dropped.saturating_sub(before.tx_dropped)))
    }

    /// Adds what the counters said then, or say now. A packet that the card had no buffer for has
    /// come in and is lost; where there is a filter, nobody knows whether it would have passed.
    /// Returns what the host has dropped, of all its interfaces together: a note, for once a run.
    pub fn account(mut self, ledger: &mut Ledger) -> u64 {
        if self.after.is_none() {
            self.look();
        }
        let Some(after) = self.after else { return 0 };
        let stats = |sample: &Sample| sample.interfaces.first().map(|i| i.interface.stats);
        if let (Some(before), Some(after)) = (stats(&self.before), stats(&after)) {
            let missed = after.rx_missed.saturating_sub(before.rx_missed);
            if self.filtered {
                ledger.add(Role::Note, "card_missed", missed);
            } else if missed > 0 {
                ledger.add(Role::In, "card_missed", missed);
                ledger.add(Role::Loss, "card_missed", missed);
            }
            let received = after.rx_packets.saturating_sub(before.rx_packets);
            ledger.add(Role::Note, "card_received", received);
        }
        let dropped = |sample: &Sample| sample.cpus.iter().map(|cpu| cpu.dropped).sum::<u64>();
        dropped(&after).saturating_sub(dropped(&self.before))
    }
}
