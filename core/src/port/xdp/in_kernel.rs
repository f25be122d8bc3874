//! Counting in the kernel: packets are dropped or passed on where they come in, and what is
//! read here are the counters.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::ring::{Readiness, Ring};

use super::config::XdpConfig;
use super::{fallbacks, mode_name};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::link::{self, Netlink, netns};
use crate::port::backend::{Backend, WakeSource};
use crate::port::packet::Promiscuous;
use crate::port::queue::Queue;
use crate::port::{
    Interface, LINKTYPE_ETHERNET, OpenOptions, Port, PortName, QueueStats, claim_conflict, lookup,
};
use crate::xdp::redirects::RedirectSender;
use crate::xdp::resident::{
    Action, Counters, FILTERED, FORWARD, Owner, Resident, Stage, load_forwarding,
};

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
    /// The counts at the time the intake was closed.
    last: Option<Counters>,
    taken: (u64, u64),
    taken_at: Instant,
    kept: Kept,
    checked: Instant,
    /// The interface is down, and that was returned.
    down: bool,
}

/// Stays open as long as packets are forwarded in the kernel.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The interface that they go out by, and the program there.
    pub target: Option<(link::Interface, Resident)>,
    /// Counts the results of redirects, if packets are redirected.
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

    /// Keeps something as long as the queue exists.
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

/// Waits until packets have been counted. The program writes the counters: constant reads would
/// slow it down.
impl Backend for InKernel {
    /// Looks whether the interface is still there, and the program on it; and the same of the interface
    /// that packets go out by.
    fn check(&mut self) -> Result<()> {
        self.checked = Instant::now();
        // Without an answer the next look may bring one.
        match self.netlink.again(&self.interface) {
            Ok(now) => self.interface.up = now.up,
            Err(error @ Error::Removed { .. }) => return Err(error),
            Err(_) => {}
        }
        self.resident.check_attached()?;
        if let Some((target, resident)) = &self.kept.target {
            if let Err(error @ Error::Removed { .. }) = self.netlink.again(target) {
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

/// Describes a queue's packets.
pub(super) fn described(interface: &link::Interface) -> Interface {
    Interface {
        name: interface.name.clone(),
        link_type: crate::port::LINKTYPE_ETHERNET,
        snaplen: u16::MAX.into(),
        comment: "packets taken by XDP".into(),
    }
}

impl Port {
    /// A port whose packets go out by the interface of another, in the kernel: those that match
    /// its filter, all unless it has one. Both names are of `xdp:` ports. Its one queue only counts
    /// them ([`take_kernel_counters`](Queue::take_kernel_counters)); it is to be waited for, synced and closed like
    /// others, and when it goes, or its process is killed, the packets are the host's again. What
    /// the other interface does not send shows in its own counters. If it is removed the port fails.
    ///
    /// Linux 5.10; a driver that sends what XDP redirects to it (`ndo_xdp_xmit`), with most only while
    /// a program is attached: so one is.
    ///
    /// # Errors
    /// As [`open`](Self::open); somebody has all packets of the interface already.
    pub fn redirect(from: &PortName, to: &PortName, options: &OpenOptions) -> Result<Self> {
        let config = XdpConfig::of(from)?;
        refuse_unused(from)?;
        let netns = options.netns.as_deref();
        let [source, target] = [from, to].map(|name| ethernet(name, netns));
        let (source, target) = (source?, target?);
        netns::run_in(netns, || redirect(from, &config, source, (to, target)))
    }
}

fn ethernet(name: &PortName, netns: Option<&str>) -> Result<link::Interface> {
    let interface = lookup::interface(name, netns)?;
    match interface.hardware {
        libc::ARPHRD_ETHER => Ok(interface),
        _ => Err(name.error("XDP is for Ethernet interfaces")),
    }
}

fn redirect(
    from: &PortName,
    config: &XdpConfig,
    source: link::Interface,
    (to, target): (&PortName, link::Interface),
) -> Result<Port> {
    let filter = config.filter.as_deref();
    let filter = filter.map(|text| Filter::compile(text, LINKTYPE_ETHERNET)).transpose()?;
    let (resident, reason) = Resident::join(&source, config.mode)?;
    let (there, _) = Resident::join(&target, XdpConfig::of(to)?.mode)?;
    let resident = Arc::new(resident);
    let queues = 0..=source.rx_queues.max(1) - 1;
    let expression = filter.as_ref().map_or("", Filter::expression);
    let owner = Owner::myself(Action::Forward, expression, queues);
    // Everything the resident program forwards itself; a filter needs a program.
    let places = if filter.is_some() { FILTERED } else { FORWARD..FORWARD + 1 };
    let netlink = Netlink::open(None)?;
    let stage = claim_conflict::take(from, &resident, places, &owner)?;
    stage.forward_to(&target)?;
    let program = filter.as_ref().map(|filter| load_forwarding(&stage, &resident, filter));
    let program = program.transpose()?;
    let promiscuous = config.promiscuous.then(|| Promiscuous::new(from, source.index));
    let kept = Kept {
        redirects: stage.count_redirects(&source, &target),
        target: Some((target, there)),
        _promiscuous: promiscuous.transpose()?,
    };
    stage.complete(program.as_ref().map(AsFd::as_fd))?;
    let pool = Pool::new(PoolConfig { buffers: 0, ..PoolConfig::default() })?;
    let (rx, tx) = (Ring::absent(&pool)?, Ring::absent(&pool)?);
    let described = described(&source);
    let mode = mode_name(resident.mode());
    let counting = InKernel::new(resident, source, netlink, Action::Forward, stage).keep(kept);
    Ok(Port {
        name: from.clone(),
        method: "redirect",
        mode: Some(mode),
        fallbacks: fallbacks(reason),
        queues: vec![Queue::new(0, rx, tx, counting, vec![described])],
    })
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
