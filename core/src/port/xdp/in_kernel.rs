//! Counting in the kernel: packets are dropped or passed on where they come in, and what is
//! read here are the counters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::link::{self, Netlink};
use crate::port::{Interface, QueueStats};
use crate::ring::Readiness;
use crate::xdp::resident::{Action, Resident, Stage, Tally};

/// Between two looks at the counters.
const LOOK: Duration = Duration::from_millis(10);
/// A packet that is on its way through the program is counted within this time.
const SETTLE: Duration = Duration::from_millis(2);
/// Between two looks at whether the interface is still there.
const CHECK: Duration = Duration::from_millis(500);

/// A queue whose packets stay in the kernel.
#[derive(Debug)]
pub(crate) struct InKernel {
    resident: Arc<Resident>,
    interface: link::Interface,
    /// Opened in the interface's namespace, for a process that gives its privileges up.
    netlink: Netlink,
    action: Action,
    /// The place in the chain; none where every packet is only counted, or nothing more is.
    stage: Option<Stage>,
    before: Tally,
    /// What was counted until the intake was closed.
    last: Option<Tally>,
    taken: (u64, u64),
    checked: Instant,
}

impl InKernel {
    /// `before` is what the interface had counted when none of it was ours.
    pub(super) fn new(
        resident: Arc<Resident>,
        interface: link::Interface,
        netlink: Netlink,
        action: Action,
        stage: Option<Stage>,
        before: Tally,
    ) -> Self {
        let checked = Instant::now();
        Self {
            resident,
            interface,
            netlink,
            action,
            stage,
            before,
            last: None,
            taken: (0, 0),
            checked,
        }
    }

    /// What was counted where the packets are: at our place, or, of all, at the end of the chain.
    fn tally(&self) -> Tally {
        self.last.unwrap_or_else(|| match &self.stage {
            Some(stage) => stage.tally(),
            None => self.resident.total().since(self.before),
        })
    }

    /// Packets and bytes so far.
    fn counted(&self) -> (u64, u64) {
        let tally = self.tally();
        match self.action {
            Action::Drop => (tally.dropped, tally.dropped_bytes),
            _ => (tally.packets, tally.bytes),
        }
    }

    pub(crate) fn take_counted(&mut self) -> (u64, u64) {
        let (packets, bytes) = self.counted();
        let news = (packets - self.taken.0, bytes - self.taken.1);
        self.taken = (packets, bytes);
        news
    }

    pub(crate) fn wait_rx(&mut self, timeout: Duration) -> Result<Readiness> {
        std::thread::sleep(timeout.min(LOOK));
        if self.checked.elapsed() < CHECK {
            return Ok(Readiness::TimedOut);
        }
        self.checked = Instant::now();
        match self.netlink.again(&self.interface) {
            Err(error @ Error::Gone { .. }) => Err(error),
            // Where there is no answer, the next look may tell.
            _ => self.resident.check_attached().map(|()| Readiness::TimedOut),
        }
    }

    /// From now on the packets are the host's.
    pub(crate) fn close_intake(&mut self) {
        if self.last.is_none() {
            if let Some(stage) = &self.stage {
                stage.stop();
                std::thread::sleep(SETTLE);
            }
            self.last = Some(self.tally());
            self.stage = None;
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.last.is_some() && self.counted() == self.taken
    }

    pub(crate) fn stats(&self) -> QueueStats {
        QueueStats { offered: self.counted().0, ..QueueStats::default() }
    }
}

/// What a queue says of its packets.
pub(super) fn described(interface: &link::Interface) -> Interface {
    Interface {
        name: interface.name.clone(),
        link_type: crate::port::LINKTYPE_ETHERNET,
        snaplen: u16::MAX.into(),
        comment: "packets taken by XDP".into(),
    }
}
