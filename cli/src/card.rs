//! What an interface and the host have counted meanwhile: packets lost before a port could have them,
//! in the card or in the host's queue between the driver and the stack; and packets sent.

use std::time::{Duration, Instant};

use sluicegate::ledger::{Ledger, Role};
use sluicegate::link::{Backlog, Sample, Sampler, Sent, SentCounters};
use sluicegate::port::{Kind, PortName};

/// How much later than it took them an interface may count its last packets: cards count what has left, and
/// a veth what its other end has taken, whose CPU may be busy (drivers/net/veth.c, `veth_xdp_rcv`).
const LATE: Duration = Duration::from_millis(500);
/// Between two looks at the counters then.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The way of packets to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The host's queue, where they may wait.
    HostQueue,
    /// XDP redirects them, past that.
    Redirect,
}

/// An interface's own counters, from the moment a run begins.
#[derive(Debug)]
pub struct Card {
    sampler: Sampler,
    before: Sample,
    after: Option<Sample>,
    /// What it has sent, and had when the run began.
    sent: Option<(SentCounters, Sent)>,
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
        let sent = SentCounters::open(netns, port.name()).ok();
        let sent = sent.and_then(|counters| counters.read().map(|before| (counters, before)));
        Some(Self { sampler, before, after: None, sent, backlog, filtered })
    }

    /// Looks at the counters for the last time.
    pub fn look(&mut self) {
        self.after = self.sampler.sample().ok();
    }

    /// Packets that the interface has sent since the beginning, and that it dropped in place of
    /// sending them; from whomever they came.
    fn sent(&self) -> Option<(u64, u64)> {
        let (counters, before) = self.sent.as_ref()?;
        let after = counters.read()?;
        let dropped = after.dropped.saturating_sub(before.dropped);
        Some((after.packets.saturating_sub(before.packets), dropped))
    }

    /// The same of who sent so many, and with it the packets that wait in the host's queue, from
    /// whomever they came, if they go that way. Where all are sent nobody is asked about
    /// these: the answer may take time. Those that nobody knows of are waited for.
    pub fn sent_of(&mut self, accepted: u64, by: By) -> Option<((u64, u64), u64)> {
        let end = Instant::now() + LATE;
        loop {
            // Asked before the look: one comes when the time is over, too.
            let last = Instant::now() >= end;
            let sent = self.sent()?;
            if sent.0 >= accepted {
                return Some((sent, 0));
            }
            // What waits first: who leaves between the two looks is seen in one of them.
            let packets =
                self.backlog.as_mut().filter(|_| by == By::HostQueue).map(Backlog::packets);
            let waiting = packets.and_then(Result::ok).unwrap_or(0);
            let sent = self.sent()?;
            if sent.0 + sent.1 + waiting >= accepted || last {
                return Some((sent, waiting));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
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
