//! A port in a switch: its queues, configuration and state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate::error::Result;
use sluicegate::link::{self, Ethtool, LinkState, netns};
use sluicegate::memory::Pool;
use sluicegate::monitor::Writer;
use sluicegate::port::{
    Directions, Kind, LINKTYPE_ETHERNET, OpenOptions, Port, PortName, Queue, QueueStats,
};
use sluicegate::ring::{Direction, Packet};

use crate::counts::SwitchCounts;
use crate::storm::StormLimit;
use crate::vlan::Vlans;

/// The configuration of a port in a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberConfig {
    /// Its VLANs, for a switch with VLANs.
    pub vlans: Vlans,
    /// Maximum of flooded packets per second; `None` for no limit.
    pub storm: Option<u32>,
    /// The directions in which the port is used; by default the port's kind decides.
    pub usage: Option<Directions>,
}

/// The time for a removed port to deliver the packets it has received.
const REMOVED_RX_TIMEOUT: Duration = Duration::from_millis(1500);

/// A port in a switch.
#[derive(Debug)]
pub struct Member {
    pub(crate) name: String,
    /// The caller's number for the port.
    pub(crate) id: u64,
    /// The link state of its interface, if it has one.
    pub(crate) link: Option<LinkState>,
    kind: Kind,
    interface: InterfaceId,
    pub(crate) receives: bool,
    pub(crate) queues: Vec<Queue>,
    /// The indices of queues that send; empty for a port that only receives.
    pub(crate) senders: Vec<usize>,
    pub(crate) config: MemberConfig,
    pub(crate) storm: Option<StormLimit>,
    pub(crate) counts: SwitchCounts,
    /// The interface was down at the last check.
    pub(crate) down: bool,
    /// Packets were submitted to it since its last sync.
    pub(crate) given: bool,
    /// The last batch that found it full and synced it.
    pub(crate) tried: u64,
    /// The last sync left packets unsent.
    pub(crate) unsent: bool,
    /// The time of its removal; it still delivers received packets.
    pub(crate) leaving: Option<Instant>,
    /// Its monitors, by number.
    pub(crate) watchers: Vec<(u64, Writer)>,
}

/// The state of a port.
#[derive(Clone, Debug)]
pub struct MemberState {
    /// Its name in the switch.
    pub name: String,
    /// The number given to [`Switch::add`](super::Switch::add).
    pub id: u64,
    /// Its VLANs, in a switch with VLANs; `None` once it is removed.
    pub vlans: Option<Vlans>,
    /// The switch's counters of the port.
    pub counts: SwitchCounts,
    /// The sum of its queues' counters.
    pub stats: QueueStats,
    /// Entries of the table that it has learned.
    pub learned: u32,
    /// The number of its monitors.
    pub watchers: usize,
    /// Packets that its monitors lost.
    pub watchers_lost: u64,
    /// The interface is down.
    pub down: bool,
    /// The port has failed, and its packets are lost.
    pub failed: bool,
}

/// An open port that can be added to a switch.
#[derive(Debug)]
pub struct OpenedPort {
    /// The port; its queues go into the switch with it.
    pub port: Port,
    /// A likely problem of the port, and the remedy.
    pub advice: Option<String>,
    link: Option<LinkState>,
    interface: InterfaceId,
    receives: bool,
}

impl OpenedPort {
    /// Opens a port as a switch uses it. With `options.pool` it shares that pool, if it can.
    ///
    /// # Errors
    /// The errors of [`Port::open`]; a port without Ethernet; a capture file without a `usage`.
    pub fn open(port: &PortName, usage: Option<Directions>, options: &OpenOptions) -> Result<Self> {
        let mut port = port.clone();
        // Packets sent by the host are not for the other ports, and the switch reads no timestamps.
        port.set_default("tx_copies", "off");
        // Frames are for hosts behind other ports. A card receives only its own otherwise.
        port.set_default("promisc", "on");
        if port.kind() == Kind::Packet {
            // With method `ring` a block may arrive 10 ms late.
            port.set_default("method", "recvmmsg");
        } else {
            port.set_default("timestamp", "off");
        }
        let usage = usage.map_or_else(|| usual(&port), Ok)?;
        let options = OpenOptions { usage, ..options.clone() };
        let (interface, link) = interface(&port, options.netns.as_deref())?;
        let opened = Port::open(&port, &options).or_else(|error| match options.pool {
            // The pool may be full, or have buffers of another size than the port needs.
            Some(_) => {
                let options = OpenOptions { pool: None, ..options.clone() };
                Port::open(&port, &options).map_err(|_| error)
            }
            None => Err(error),
        })?;
        if opened.link_type() != LINKTYPE_ETHERNET {
            return Err(port.error("it carries no Ethernet: a switch needs ports that do"));
        }
        let receives = usage != Directions::Send;
        let advice = if receives { advice(&port, options.netns.as_deref()) } else { None };
        Ok(Self { port: opened, advice, link, interface, receives })
    }
}

/// The default use of a port.
fn usual(port: &PortName) -> Result<Directions> {
    match port.kind() {
        Kind::Mirror | Kind::Monitor => Ok(Directions::Receive),
        Kind::Live => Ok(Directions::Send),
        Kind::Pcap => Err(port.error(
            "a capture file is read or written: say which, by --rx-only NAME to read it or \
             --tx-only NAME to write it",
        )),
        _ => Ok(Directions::Both),
    }
}

/// Advice for packet sockets: they receive merged packets, which no port can send.
fn advice(port: &PortName, netns: Option<&str>) -> Option<String> {
    let name = port.name();
    let merges = || Ethtool::open(netns).and_then(|mut ethtool| ethtool.gro(name)).unwrap_or(false);
    (port.kind() == Kind::Packet && merges()).then(|| {
        format!(
            "{name} merges packets (GRO), and ports lose packets above their MTU; turn it off by \
             `ethtool -K {name} gro off`, or use xdp:{name}"
        )
    })
}

/// A copying port also receives the packets that a `host:` port passes to the host.
const HOST_HAS_IT: &str = "the host would get its packets twice and more; use xdp: beside host:";

/// The interface of a port: the name of its namespace, and its index.
type InterfaceId = Option<(Option<String>, u32)>;

/// The interface of a port, and its link state, which a `host:` port does not follow.
fn interface(port: &PortName, netns: Option<&str>) -> Result<(InterfaceId, Option<LinkState>)> {
    let kinds = [Kind::Packet, Kind::Xdp, Kind::Mirror, Kind::Live, Kind::Host];
    if !kinds.contains(&port.kind()) {
        return Ok((None, None));
    }
    let interface = link::interface(netns, port.name())?;
    let link = match port.kind() {
        Kind::Host => None,
        _ => Some(netns::run_in(netns, || LinkState::of(&interface))?),
    };
    Ok((Some((netns.map(str::to_owned), interface.index)), link))
}

impl Member {
    /// Creates a member from an open port.
    pub(crate) fn new(
        (name, id): (String, u64),
        opened: OpenedPort,
        config: MemberConfig,
        now: Instant,
    ) -> Self {
        let OpenedPort { port, link, interface, receives, .. } = opened;
        let mut queues = port.queues;
        // A ring of one slot holds nothing: the queue does not send.
        let sends = |queue: &mut Queue| queue.tx_mut().num_slots() > 1;
        let senders = (0..queues.len()).filter(|&i| sends(&mut queues[i])).collect();
        Self {
            name,
            id,
            link,
            kind: port.name.kind(),
            interface,
            receives,
            queues,
            senders,
            storm: config.storm.map(|per_second| StormLimit::new(per_second, now)),
            config,
            counts: SwitchCounts::default(),
            down: false,
            given: false,
            tried: 0,
            unsent: false,
            leaving: None,
            watchers: Vec::new(),
        }
    }

    /// Explains why both ports cannot be in a switch: one receives the packets that the other sends.
    pub(crate) fn echo(&self, other: &Self) -> Option<&'static str> {
        if self.interface.is_none() || self.interface != other.interface {
            return None;
        }
        let echoes = |to: &Self, from: &Self| from.receives && !to.senders.is_empty();
        let copies = |member: &Self| matches!(member.kind, Kind::Packet | Kind::Mirror);
        match (self.kind == Kind::Host, other.kind == Kind::Host) {
            (false, false) if echoes(self, other) || echoes(other, self) => {
                Some("packets from one would return to the other; name the interface once")
            }
            (true, false) if copies(other) && echoes(self, other) => Some(HOST_HAS_IT),
            (false, true) if copies(self) && echoes(other, self) => Some(HOST_HAS_IT),
            _ => None,
        }
    }

    /// Reports whether the port accepts packets.
    #[inline]
    pub(crate) fn takes(&self) -> bool {
        !self.senders.is_empty() && self.leaving.is_none()
    }

    /// Returns the queue that sends packets from another port's queue of this number: always the same, to
    /// keep the order of a flow.
    #[inline]
    pub(crate) fn sender(&mut self, number: usize) -> &mut Queue {
        let sender = self.senders[number % self.senders.len()];
        &mut self.queues[sender]
    }

    /// Copies a packet to the monitors.
    #[cold]
    pub(crate) fn show(&mut self, packet: &Packet<'_>, direction: Direction, now_ns: u64) {
        self.watchers.iter_mut().for_each(|(_, writer)| writer.offer(packet, direction, now_ns));
    }

    /// Copies the packets submitted to a queue since `head` to the monitors.
    #[cold]
    pub(crate) fn show_given(&mut self, number: usize, head: u32, now_ns: u64) {
        let sender = self.senders[number % self.senders.len()];
        for packet in self.queues[sender].tx().pending_tx(head) {
            for (_, writer) in &mut self.watchers {
                writer.offer(&packet, Direction::Out, now_ns);
            }
        }
    }

    /// Syncs its sending queues.
    pub(crate) fn flush(&mut self) -> Result<()> {
        (self.given, self.unsent) = (false, false);
        for &sender in &self.senders {
            let queue = &mut self.queues[sender];
            queue.sync_tx()?;
            self.unsent |= queue.needs_sync_tx();
        }
        Ok(())
    }

    /// Reports whether it has unsent packets and its link is up.
    pub(crate) fn is_sending(&self) -> bool {
        self.unsent && !self.down
    }

    /// Stops reception.
    pub(crate) fn stop_rx(&mut self, now: Instant) -> Result<()> {
        if self.leaving.is_some() {
            return Ok(());
        }
        self.leaving = Some(now);
        self.queues.iter_mut().try_for_each(Queue::stop_rx)
    }

    /// Reports whether all packets received before the removal have been forwarded.
    pub(crate) fn has_left(&mut self, now: Instant) -> bool {
        let Some(leaving) = self.leaving else { return false };
        let late = now.saturating_duration_since(leaving) >= REMOVED_RX_TIMEOUT;
        let is_empty = |queue: &mut Queue| queue.is_finished() && queue.rx().available() == 0;
        late || !self.receives || self.queues.iter_mut().all(is_empty)
    }

    /// Returns the sum of its queues' counters, without queues whose counters are unreadable.
    pub(crate) fn stats(&mut self) -> QueueStats {
        let stats = self.queues.iter_mut().map(|queue| queue.stats().unwrap_or_default());
        stats.fold(QueueStats::default(), QueueStats::plus)
    }
}

/// Creates a pool for all ports that can share one, and for one more that is added later. Returns
/// `None` without `xdp:` ports, because other ports copy in any case.
///
/// # Errors
/// No such interface; no memory.
pub fn shared_pool(ports: &[PortName], options: &OpenOptions) -> Result<Option<Arc<Pool>>> {
    let Some(spare) = ports.iter().find(|port| port.kind() == Kind::Xdp) else { return Ok(None) };
    let shared = ports.iter().chain([spare]).map(|port| (port.clone(), Directions::Both));
    Port::pool_for(&shared.collect::<Vec<_>>(), options).map(Some)
}
