//! Counting in the kernel: packets are dropped or passed on where they come in, and what is
//! read here are the counters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::link::{self, Netlink};
use crate::port::backend::{Backend, WakeSource};
use crate::port::packet::Promiscuous;
use crate::port::{Interface, PortName, QueueStats};
use crate::xdp::redirects::RedirectSender;
use crate::xdp::resident::{Action, Counters, Resident, Stage};
use sluicegate_base::ring::Readiness;

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
    /// The place among the stages, until the intake is closed.
    stage: Option<Stage>,
    /// What was counted until the intake was closed.
    last: Option<Counters>,
    taken: (u64, u64),
    taken_at: Instant,
    kept: Kept,
    checked: Instant,
    /// The interface is down, and that was returned.
    down: bool,
}

/// What has to stay as long as packets are forwarded in the kernel.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The interface that they go out by, and the program there.
    pub target: Option<(link::Interface, Resident)>,
    /// What counts where the packets went then.
    pub redirects: Option<RedirectSender>,
    pub _promiscuous: Option<Promiscuous>,
}

impl InKernel {
    pub(super) fn new(
        resident: Arc<Resident>,
        interface: link::Interface,
        netlink: Netlink,
        action: Action,
        stage: Stage,
    ) -> Self {
        let now = Instant::now();
        Self {
            resident,
            interface,
            netlink,
            action,
            stage: Some(stage),
            last: None,
            taken: (0, 0),
            taken_at: now,
            kept: Kept::default(),
            checked: now,
            // The first wait reports an interface that is down already.
            down: false,
        }
    }

    /// Keeps something as long as it is there.
    pub(super) fn keep(self, kept: Kept) -> Self {
        Self { kept, ..self }
    }

    /// The counts of the stage, the last ones where the intake is closed.
    fn tally(&self) -> Counters {
        match &self.stage {
            Some(stage) => stage.tally(),
            None => self.last.unwrap_or_default(),
        }
    }

    /// Packets and bytes so far.
    fn counted(&self) -> (u64, u64) {
        let tally = self.tally();
        match self.action {
            Action::Drop => (tally.dropped, tally.dropped_bytes),
            _ => (tally.packets, tally.bytes),
        }
    }
}

/// What is waited for is that packets have been counted. The counters are the program's to write:
/// to look at them all the time would slow it down.
impl Backend for InKernel {
    /// Looks whether the interface is still there, and the program on it; and the same of the interface
    /// that packets go out by.
    fn check(&mut self) -> Result<()> {
        self.checked = Instant::now();
        // Without an answer the next look may bring one.
        match self.netlink.again(&self.interface) {
            Ok(now) => self.interface.up = now.up,
            Err(error @ Error::Gone { .. }) => return Err(error),
            Err(_) => {}
        }
        self.resident.check_attached()?;
        if let Some((target, resident)) = &self.kept.target {
            if let Err(error @ Error::Gone { .. }) = self.netlink.again(target) {
                return Err(error);
            }
            resident.check_attached()?;
        }
        Ok(())
    }

    fn take_kernel_counters(&mut self) -> (u64, u64) {
        let (packets, bytes) = self.counted();
        let news = (packets - self.taken.0, bytes - self.taken.1);
        self.taken = (packets, bytes);
        self.taken_at = Instant::now();
        news
    }

    fn is_finished(&mut self) -> bool {
        self.last.is_some() && self.counted() == self.taken
    }

    /// From now on the packets are the host's.
    fn stop_rx(&mut self) -> Result<()> {
        if let Some(stage) = self.stage.take() {
            stage.stop();
            std::thread::sleep(SETTLE);
            self.last = Some(stage.tally());
        }
        Ok(())
    }

    fn stats(&mut self) -> Result<QueueStats> {
        // The fate of a packet is counted after it was redirected.
        let redirects = self.kept.redirects.as_ref().map(RedirectSender::counts);
        let received = self.counted().0;
        let sent = if self.action == Action::Forward { received } else { 0 };
        Ok(QueueStats {
            received,
            sent,
            untraced: if redirects.is_some() { 0 } else { sent },
            redirects: redirects.unwrap_or_default(),
            ..QueueStats::default()
        })
    }

    fn look(&mut self) -> Result<Option<Readiness>> {
        let news = self.taken_at.elapsed() >= LOOK && self.counted() != self.taken;
        Ok(news.then_some(Readiness::Ready))
    }

    fn wake_source(&mut self) -> WakeSource<'_> {
        WakeSource::Nap(LOOK)
    }

    fn slept(&mut self, _ready: bool) -> Result<Readiness> {
        if self.checked.elapsed() >= CHECK {
            self.check()?;
        }
        let down = !self.interface.up;
        let was_down = std::mem::replace(&mut self.down, down);
        Ok(if down && !was_down { Readiness::Down } else { Readiness::TimedOut })
    }
}

/// Options for packets that come to the port.
const FOR_PACKETS: &[&str] =
    &["method", "send", "ring_size", "slots", "snaplen", "timestamp", "busy_poll"];

/// Refuses what would do nothing where packets are only counted, so that nobody relies on it.
pub(super) fn refuse_unused(name: &PortName) -> Result<()> {
    let how = match name.option("action") {
        Some(action) => format!("action={action}"),
        None => "forwarding in the kernel".into(),
    };
    if name.queues().is_some() {
        return Err(name.error(format!(
            "{how} is for all queues of the interface: leave the queues out, or say by \
             filter= which packets"
        )));
    }
    // That no times are taken is the case.
    let unused =
        |key: &str| name.option(key).is_some_and(|value| (key, value) != ("timestamp", "off"));
    match FOR_PACKETS.iter().find(|key| unused(key)) {
        Some(key) => Err(name.error(format!(
            "{key}= is for packets that come to the port, and {how} only counts them: \
             leave it out"
        ))),
        None => Ok(()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_do_nothing_is_refused() {
        for (name, said, why) in [
            ("xdp:eth0?action=drop", None, "nothing besides"),
            ("xdp:eth0?action=pass&filter=udp&mode=skb", None, "which packets, and where"),
            ("xdp:eth0?action=drop&timestamp=off", None, "there are no times"),
            ("xdp:eth0/0?action=drop", Some("all queues"), "the queues are not looked at"),
            ("xdp:eth0?action=pass&snaplen=60", Some("snaplen= is for"), "nothing is kept"),
            ("xdp:eth0?action=drop&method=ring", Some("method= is for"), "nothing comes"),
            ("xdp:eth0?action=drop&timestamp=xdp", Some("timestamp= is for"), "no time is taken"),
            ("xdp:eth0?action=drop&busy_poll=50us", Some("busy_poll= is for"), "nobody polls"),
        ] {
            let error = refuse_unused(&name.parse().unwrap()).err().map(|it| it.to_string());
            match (said, &error) {
                (None, None) => {}
                (Some(said), Some(error)) if error.contains(said) => {}
                _ => panic!("{name}: {why}: {error:?}"),
            }
        }
    }
}
