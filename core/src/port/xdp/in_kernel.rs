//! Counting in the kernel: the program drops, passes or forwards packets, and the port reads the program's
//! counters.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::XdpConfig;
use crate::error::Result;
use crate::filter::Filter;
use crate::link::{self, LinkState, netns};
use crate::port::backend::{Backend, WakeSource};
use crate::port::claim_conflict;
use crate::port::interface::{described, find_ethernet};
use crate::port::name::PortName;
use crate::port::options::{Fallback, OpenOptions};
use crate::port::packet_socket::Promiscuous;
use crate::port::queue::{Port, Queue};
use crate::port::rings::PoolRequirements;
use crate::port::stats::QueueStats;
use crate::xdp::Inspect;
use crate::xdp::redirects::RedirectSender;
use crate::xdp::resident::{
    Action, COUNTERS, DROP, FILTERED, FORWARD, MIRRORS, Owner, Resident, Stage, StageCounters,
    WHOLE, load_forwarding, load_program,
};
use sluicegate_base::ring::{Interface, LINKTYPE_ETHERNET, Readiness, Ring};

/// The interval of reads of the counters.
const COUNT_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum time that a packet takes through the program.
const DRAIN_TIME: Duration = Duration::from_millis(2);
/// The interval of checks of the interface.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A queue whose packets stay in the kernel.
#[derive(Debug)]
struct InKernel {
    resident: Arc<Resident>,
    presence: LinkState,
    /// True if the interface was up at the last check.
    up: bool,
    action: Action,
    /// The stage, until receiving is stopped.
    stage: Option<Stage>,
    /// The counts when receiving was stopped.
    last: Option<StageCounters>,
    taken: (u64, u64),
    taken_at: Instant,
    resources: ForwardResources,
    checked: Instant,
    /// True if the interface is down, and a wait has reported it.
    down: bool,
}

/// Resources held as long as packets are forwarded in the kernel.
#[derive(Debug, Default)]
struct ForwardResources {
    /// The interface through which packets leave, and the program on it.
    pub target: Option<(LinkState, Resident)>,
    /// Counts the results of redirects, if packets are redirected.
    pub redirects: Option<RedirectSender>,
    pub _promiscuous: Option<Promiscuous>,
}

impl InKernel {
    /// Returns the stage's counters, or the last ones after receiving was stopped.
    fn tally(&self) -> StageCounters {
        match &self.stage {
            Some(stage) => stage.tally(),
            None => self.last.unwrap_or_default(),
        }
    }

    /// Returns the number of packets and bytes so far.
    fn counted(&self) -> (u64, u64) {
        let tally = self.tally();
        match self.action {
            Action::Drop => (tally.dropped, tally.dropped_bytes),
            _ => (tally.packets, tally.bytes),
        }
    }
}

/// The wait ends when packets have been counted. It reads the counters at intervals, because constant reads
/// would slow down the program, which writes them.
impl Backend for InKernel {
    /// Checks the interface and its program, and those through which packets leave.
    fn check(&mut self) -> Result<()> {
        self.checked = Instant::now();
        self.up = self.presence.query()?.up;
        self.resident.check_attached()?;
        if let Some((target, resident)) = &self.resources.target {
            target.query()?;
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

    /// Returns the packets to the host.
    fn stop_rx(&mut self) -> Result<()> {
        if let Some(stage) = self.stage.take() {
            stage.stop();
            std::thread::sleep(DRAIN_TIME);
            self.last = Some(stage.tally());
        }
        Ok(())
    }

    fn stats(&mut self) -> Result<QueueStats> {
        // The fate of a packet is counted after it was redirected.
        let redirects = self.resources.redirects.as_ref().map(RedirectSender::counts);
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
        let news = self.taken_at.elapsed() >= COUNT_INTERVAL && self.counted() != self.taken;
        Ok(news.then_some(Readiness::Ready))
    }

    fn wake_source(&mut self) -> WakeSource<'_> {
        WakeSource::Nap(COUNT_INTERVAL)
    }

    fn slept(&mut self, _ready: bool) -> Result<Readiness> {
        if self.checked.elapsed() >= CHECK_INTERVAL {
            self.check()?;
        }
        let was_down = std::mem::replace(&mut self.down, !self.up);
        Ok(if self.down && !was_down { Readiness::Down } else { Readiness::TimedOut })
    }
}

/// Options for packets that reach the port.
const FOR_PACKETS: &[&str] =
    &["method", "send", "ring_size", "slots", "snaplen", "timestamp", "busy_poll"];

/// Rejects options that have no effect if packets are only counted.
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
    // `timestamp=off` describes what such a port does.
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

impl Port {
    /// Opens a port that forwards packets to the interface of another port, in the kernel: the packets that
    /// match its filter, or all. Both names are of `xdp:` ports. The port's only queue counts the packets
    /// ([`take_kernel_counters`](Queue::take_kernel_counters)). Wait for it, call `sync_rx` and close it like
    /// others. When it is dropped, or its process is killed, the packets return to the host. Packets that
    /// could not be sent are in the counters of the other interface. If that interface is removed, the port
    /// fails.
    ///
    /// Needs Linux 5.10 and a driver that sends packets redirected by XDP (`ndo_xdp_xmit`). Most drivers do
    /// so only while a program is attached, so this attaches one.
    ///
    /// # Errors
    /// As [`open`](Self::open); also if another owner already has all packets of the interface.
    pub fn redirect(from: &PortName, to: &PortName, options: &OpenOptions) -> Result<Self> {
        let config = XdpConfig::of(from)?;
        refuse_unused(from)?;
        let netns = options.netns.as_deref();
        let find = |name| find_ethernet(name, netns, "XDP is for Ethernet interfaces");
        let (source, target) = (find(from)?, find(to)?);
        netns::run_in(netns, || redirect(from, &config, source, (to, target)))
    }
}

/// Describes the packets of an `xdp:` port.
pub(super) fn described_packets(interface: &link::Interface, comment: &str) -> Interface {
    Interface { snaplen: u16::MAX.into(), ..described(&*interface.name, comment) }
}

/// Opens a port whose packets leave through the interface `target`.
fn redirect(
    name: &PortName,
    config: &XdpConfig,
    source: link::Interface,
    (to, target): (&PortName, link::Interface),
) -> Result<Port> {
    let filter = name.filter(LINKTYPE_ETHERNET)?;
    // The resident program itself can forward everything; a filter needs a program.
    let stages = if filter.is_some() { FILTERED } else { FORWARD..FORWARD + 1 };
    let work = KernelWork { name, config, filter, action: Action::Forward, stages };
    work.open("redirect", source, |work, resident, stage, source| {
        let (there, _) = Resident::join(&target, XdpConfig::of(to)?.mode)?;
        stage.forward_to(&target)?;
        let program = work.filter.as_ref().map(|filter| load_forwarding(stage, resident, filter));
        let program = program.transpose()?;
        let promiscuous = work.config.promiscuous.then(|| Promiscuous::new(name, source.index));
        let resources = ForwardResources {
            redirects: stage.count_redirects(source, &target),
            target: Some((LinkState::of(&target)?, there)),
            _promiscuous: promiscuous.transpose()?,
        };
        Ok((program, resources))
    })
}

/// Opens a port that counts packets in the kernel. It has one queue, for all queues of the interface.
pub(super) fn count(
    name: &PortName,
    config: &XdpConfig,
    interface: link::Interface,
    inspect: Option<&dyn Inspect>,
) -> Result<Port> {
    let (filter, action) = (name.filter(LINKTYPE_ETHERNET)?, config.action);
    // A program that inspects all packets runs before the claims that take some of them.
    let stages = match (action, &filter, inspect) {
        (_, Some(_), _) => FILTERED,
        (Action::Drop, None, Some(_)) => WHOLE,
        (_, None, Some(_)) => MIRRORS,
        (Action::Drop, None, None) => DROP..DROP + 1,
        (_, None, None) => COUNTERS,
    };
    let work = KernelWork { name, config, filter, action, stages };
    work.open("count", interface, |work, resident, stage, _| {
        let filter = work.filter.as_ref();
        let load = || load_program(stage, resident, action, filter, None, inspect);
        let program = (filter.is_some() || inspect.is_some()).then(load).transpose()?;
        Ok((program, ForwardResources::default()))
    })
}

/// A task for the kernel with the packets of a port.
struct KernelWork<'a> {
    name: &'a PortName,
    config: &'a XdpConfig,
    filter: Option<Filter>,
    action: Action,
    /// Range of stages that its program may take.
    stages: Range<u32>,
}

impl KernelWork<'_> {
    /// Opens the port. `prepare` makes the stage's program, if it needs one.
    fn open(
        self,
        method: &'static str,
        interface: link::Interface,
        prepare: impl FnOnce(
            &Self,
            &Arc<Resident>,
            &Stage,
            &link::Interface,
        ) -> Result<(Option<OwnedFd>, ForwardResources)>,
    ) -> Result<Port> {
        let (resident, reason) = Resident::join(&interface, self.config.mode)?;
        let resident = Arc::new(resident);
        let expression = self.filter.as_ref().map_or("", Filter::expression);
        let owner = Owner::myself(self.action, expression, 0..=interface.rx_queues.max(1) - 1);
        let presence = LinkState::of(&interface)?;
        let stage = claim_conflict::take(self.name, &resident, self.stages.clone(), &owner)?;
        let (program, resources) = prepare(&self, &resident, &stage, &interface)?;
        let opened_at = Instant::now();
        if !COUNTERS.contains(&stage.number()) {
            stage.complete(program.as_ref().map(AsFd::as_fd))?;
        }
        let pool = PoolRequirements::usual(0, 0).pool()?;
        let described = described_packets(&interface, "packets taken by XDP");
        let mode = Some(resident.mode().name());
        let queue = InKernel {
            resident,
            presence,
            up: interface.up,
            action: self.action,
            stage: Some(stage),
            last: None,
            taken: (0, 0),
            taken_at: Instant::now(),
            resources,
            checked: Instant::now(),
            // The first wait reports an interface that is already down.
            down: false,
        };
        let (rx, tx) = (Ring::absent(&pool)?, Ring::absent(&pool)?);
        let queue = Queue::new(0, rx, tx, queue, vec![described]).receiving_since(opened_at);
        let fallbacks = Fallback::from_native(reason);
        Ok(Port { method, mode, fallbacks, ..Port::plain(self.name, vec![queue]) })
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
