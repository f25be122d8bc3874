//! `xdp:`, packets of an interface taken before the host has made anything of them: the host
//! does not get them. What the filter does not match stays with the host.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `filter` | a pcap-filter expression: what is taken | everything |
//! | `action` | `take`, to this port; `drop` or `pass`, which only count, in the kernel | take |
//! | `method` | `af_xdp`, sockets; `ring`, copies, to receive only | see below |
//! | `send` | what packets leave by: `af_xdp`, the socket; `live`, live frames, as of a [`live:`](super::live) port, with a thread for each queue | af_xdp |
//! | `mode` | `zero-copy`, `copy` (both native), `native`, `skb`: this one or none | the first that goes |
//! | `promisc` | packets for other hosts too, while the port is open | off |
//! | `snaplen` | most bytes of a packet that are kept | all |
//! | `timestamp` | `xdp`: taken where the packet comes in; `hardware`: the card's, and its hash; `off` saves some nanoseconds a packet | xdp |
//! | `ring_size` | buffers a queue has, those in its slots included | 4096 |
//! | `busy_poll` | time to poll the driver from system calls (SO_PREFER_BUSY_POLL); 0 not to | off |
//! | `slots` | slots in the ring | 512 |
//! | `latency` | how long a packet may lie there before the reader, asleep, sees it; 0 is at once | see `OpenOptions` |
//!
//! Two ways lead to the port. AF_XDP sockets (`af_xdp`) hand over the driver's own buffers where
//! the driver can (zero-copy), take part in pools and swaps, and send. Where the driver cannot,
//! the kernel copies each packet behind the program, by a dozen calls; the program itself does it
//! in less time, into rings as those of `mirror:` (`ring`). So a port that only
//! receives, in native mode and without zero-copy, gets rings, unless `method`, `mode`,
//! `busy_poll` or a pool of its own says that it is to be sockets.
//!
//! virtio_net has more queues while a native program is attached, made for XDP's own sending. A
//! port receives by them, too, and sends by the others, by which the host sends as well: a queue that
//! only receives has no transmit ring.
//!
//! A queue has one socket. Where that of another port has it already, there are rings, too. With
//! different filters, any number of processes so take different packets of one queue.
//!
//! Needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_SYS_ADMIN, and Linux 5.10.

mod claim;
mod config;
mod hardware;
mod in_kernel;
mod pace;
mod queue;
mod tx_path;

pub(super) use in_kernel::InKernel;
pub(super) use queue::XdpQueue;
use queue::{Polled, QueueContext, RxPath};

use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use claim::Claim;
use config::{XdpConfig, XdpMethod};

use super::mirror::HEADER_BYTES;
use super::packet::Promiscuous;
use super::pool_sizing::PoolRequirements;
use super::queue::Queue;
use super::watch::InterfaceWatch;
use super::{
    Fallback, Inspect, LINKTYPE_ETHERNET, OpenOptions, Port, PortName, Use, claim_conflict, lookup,
};
use crate::error::Result;
use crate::filter::Filter;
use crate::link::{self, Ethtool, Netlink, netns};
use crate::nic::{self, Deferred};
use crate::xdp::resident::{
    Action, COUNTERS, DROP, FILTERED, MIRRORS, Owner, QUEUES_MAX, Resident, WHOLE, load_program,
};
use crate::xdp::stamp::Stamp;
use crate::xdp::{BindMode, HEADROOM_BYTES, Mode, ModeFallback, XskConfig, buffer_bytes};
use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::ring::Ring;

/// The timeout of attempts to bind to a queue that another socket has: it may be closing.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout if other ports take packets of the queue: one of them may keep its socket.
const RETRY_TIMEOUT_WITH_OTHERS: Duration = Duration::from_millis(100);

/// Opens the port.
pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    let config = XdpConfig::of(name)?;
    let netns = options.netns.as_deref();
    let interface = lookup::interface(name, netns)?;
    if interface.hardware != libc::ARPHRD_ETHER {
        return Err(name.error("XDP is for Ethernet interfaces; packet: takes all kinds"));
    }
    if config.send == config::Send::Live && options.usage == Use::Receive {
        return Err(name.error("send=live is for ports that send, and this one only receives"));
    }
    if config.action != Action::Take {
        if options.usage != Use::Receive {
            return Err(name.error("action=drop and action=pass only count what comes in"));
        }
        in_kernel::refuse_unused(name)?;
    }
    netns::run_in(netns, || {
        // If that fails, the caller that needs other settings reports it.
        let _ = nic::restore_interrupts(&interface);
        match config.action {
            Action::Take => take(name, &config, &interface, options),
            _ => count_in_kernel(name, &config, interface, options.inspect.as_deref()),
        }
    })
}

/// A port whose packets come to its rings: by a socket for each queue, or, where another socket
/// has one of the queues, as copies.
fn take(
    name: &PortName,
    config: &XdpConfig,
    interface: &link::Interface,
    options: &OpenOptions,
) -> Result<Port> {
    let mut watch = InterfaceWatch::over(name, interface, options.usage)?;
    // Sending without copying takes a program of ours on the interface, too, with most drivers.
    let by_card = config.stamp == Stamp::Driver && options.usage != Use::Send;
    let obstacle = if by_card { hardware::obstacle(interface) } else { None };
    let read = by_card && obstacle.is_none();
    let (resident, reason) = Resident::join_for(interface, config.mode, read)?;
    let queues = watch.attached(name)?;
    let mut fallbacks = fallbacks(reason);
    let mut stamp = config.stamp;
    if by_card && let Some(reason) = hardware::reason(obstacle, &resident) {
        fallbacks.push(hardware::fallback(reason));
        stamp = Stamp::Kernel;
    }
    let filter = config.filter.as_deref();
    let filter = filter.map(|text| Filter::compile(text, LINKTYPE_ETHERNET)).transpose()?;
    let promiscuous = config.promiscuous && options.usage != Use::Send;
    let promiscuous = promiscuous.then(|| Promiscuous::new(name, interface.index)).transpose()?;
    let mut taking = ClaimBuilder {
        name,
        config,
        interface,
        options,
        resident: Arc::new(resident),
        filter,
        queues,
        watch: Arc::new(watch),
        fallbacks,
        stamp,
        promiscuous: promiscuous.map(Arc::new),
    };
    let others = taking.others()?;
    let patience = if others.is_empty() { RETRY_TIMEOUT } else { RETRY_TIMEOUT_WITH_OTHERS };
    match taking.by_faster_copies(&others, patience)? {
        Some(port) => Ok(port),
        None => match taking.by_sockets(config.bind, patience) {
            Err(error) if taking.may_copy(&error) => {
                taking.by_copies_beside(&taking.others()?, &error)
            }
            result => result,
        },
    }
}

/// A port on its way, for packets that come to it.
struct ClaimBuilder<'a> {
    name: &'a PortName,
    config: &'a XdpConfig,
    interface: &'a link::Interface,
    options: &'a OpenOptions,
    resident: Arc<Resident>,
    filter: Option<Filter>,
    queues: RangeInclusive<u32>,
    watch: Arc<InterfaceWatch>,
    fallbacks: Vec<Fallback>,
    /// The metadata in front of each packet.
    stamp: Stamp,
    promiscuous: Option<Arc<Promiscuous>>,
}

impl ClaimBuilder<'_> {
    fn by_sockets(&self, bind: Option<BindMode>, patience: Duration) -> Result<Port> {
        let &Self { config, interface, options, ref resident, .. } = self;
        let receives = options.usage != Use::Send;
        let sends = options.usage != Use::Receive;
        let mut fallbacks = self.fallbacks.clone();
        let claim = match receives {
            true => {
                let owner = self.owner();
                let claim =
                    Claim::new(self.name, resident, self.filter.as_ref(), self.stamp, &owner)?;
                Some(Arc::new(Mutex::new(claim)))
            }
            false => None,
        };
        let mut live = self.by_live_frames()?.map(Vec::into_iter);
        let by_live = live.is_some();
        let count = self.queues.clone().count() as u32;
        let pool = match &options.pool {
            Some(pool) => Arc::clone(pool),
            None => {
                // In copy mode the kernel puts packets into whatever there is.
                let by_card = match (bind, receives) {
                    (Some(BindMode::Copy), _) | (_, false) => 0,
                    _ => buffer_bytes(None, &interface.name, interface.mtu),
                };
                let bytes = by_card.max(bytes_for_a_frame(interface.mtu, resident.frags()));
                needs_of(config, count, (receives, sends), bytes).pool()?
            }
        };
        let deferred = match config.busy_poll {
            Some(_) => Some(Arc::new(Deferred::new(interface)?)),
            None => None,
        };
        let latency = self.name.latency(self.options)?;
        let mut binds = Vec::new();
        let mut opened = Vec::new();
        for number in self.queues.clone() {
            let sends = by_live || self.watch.sends(number);
            // A socket has one ring at least.
            let sends_itself = sends && !(by_live && receives);
            let xsk = XskConfig {
                interface: interface.name.clone(),
                queue: number,
                receive_frames: if receives { config.frames - config.slots } else { 0 },
                send_slots: if sends_itself { config.slots } else { 0 },
                mode: match resident.mode() {
                    Mode::Native => bind,
                    Mode::Skb => Some(BindMode::Copy),
                },
                multi_buffer: resident.frags(),
                busy_poll: config.busy_poll,
                patience,
                ..XskConfig::default()
            };
            let mut xsk = xsk.open(&pool)?;
            if let (Some(bytes), Some(receiver)) = (config.snaplen, &mut xsk.receiver) {
                receiver.set_snaplen(bytes);
            }
            binds.push(xsk.mode);
            if let Some(ModeFallback { from, to, reason, detail }) = &xsk.fallback
                && !fallbacks.iter().any(|said| said.from == from.name())
            {
                let reason = reason.clone();
                let detail = detail.clone();
                fallbacks
                    .push(Fallback { detail, ..Fallback::new(from.name(), to.name(), reason) });
            }
            let rx = match receives {
                true => Ring::receive(&pool, config.slots)?,
                false => Ring::absent(&pool)?,
            };
            let tx = match sends {
                true => Ring::transmit(&pool, config.slots)?,
                false => Ring::absent(&pool)?,
            };
            let upkeep = QueueContext {
                watch: Arc::clone(&self.watch),
                _deferred: deferred.clone(),
                _promiscuous: self.promiscuous.clone(),
                resident: Arc::clone(resident),
                polled: if config.busy_poll.is_some() { Polled::Unknown } else { Polled::Known },
            };
            // Busy polling drives the queue on by looking.
            let latency = latency.filter(|_| config.busy_poll.is_none());
            let intake = RxPath::new(config.frames - config.slots, latency);
            let at = (interface.name.as_str(), number);
            let live = live.as_mut().and_then(Iterator::next);
            let queue = XdpQueue::new(at, xsk, live, claim.clone(), self.stamp, intake, upkeep);
            opened.push((number, queue, rx, tx));
        }
        if receives && !resident.frags() {
            let room = pool.buffer_bytes() - HEADROOM_BYTES;
            let then = "do not fit the buffers and are lost (ring_full): start again, after \
                        `sluice detach` where the XDP program stays";
            self.watch.limit(room, then, interface.mtu);
        }
        // All are open: now packets may come.
        if let Some(claim) = &claim {
            let mut claim = claim.lock().unwrap_or_else(PoisonError::into_inner);
            opened
                .iter()
                .try_for_each(|(number, queue, ..)| claim.join(*number, queue.socket()))?;
            claim.begin()?;
        }
        let mut described = hardware::described(interface, self.stamp);
        described.snaplen = config.snaplen.unwrap_or(described.snaplen).min(described.snaplen);
        let queues = opened.into_iter().map(|(number, queue, rx, tx)| {
            Queue::new(number, rx, tx, queue, vec![described.clone()])
        });
        let mode = Some(slowest(resident.mode(), &binds));
        let (name, queues) = (self.name.clone(), queues.collect());
        let method = if by_live { "af_xdp+live" } else { "af_xdp" };
        Ok(Port { name, method, mode, fallbacks, queues })
    }

    fn owner(&self) -> Owner {
        let expression = self.filter.as_ref().map_or("", Filter::expression);
        Owner::myself(Action::Take, expression, self.queues.clone())
    }
}

/// Bytes of a buffer that a whole frame fits in, or a part of one where frames may have several.
fn bytes_for_a_frame(mtu: u32, frags: bool) -> u32 {
    let frame_bytes = mtu.saturating_add(HEADER_BYTES);
    if frags || frame_bytes <= 2048 - HEADROOM_BYTES { 2048 } else { 4096 }
}

fn needs_of(
    config: &XdpConfig,
    queues: u32,
    (receives, sends): (bool, bool),
    buffer_bytes: u32,
) -> PoolRequirements {
    let frames = if receives { config.frames } else { 0 } + if sends { config.slots } else { 0 };
    // Sending without copying may take some frames more for the fill ring.
    PoolRequirements::of_queues(queues, frames + 64, buffer_bytes)
}

/// Returns the pool requirements of a port that receives or sends. The number of queues that a
/// driver adds with a program is not known before: as many as CPUs, if they have room.
pub(super) fn needs(name: &PortName, options: &OpenOptions) -> Result<PoolRequirements> {
    let config = XdpConfig::of(name)?;
    let netns = options.netns.as_deref();
    let interface = lookup::interface(name, netns)?;
    let queues = match name.queues() {
        Some(queues) => queues.count() as u32,
        None => {
            let made = interface.rx_queues.max(interface.tx_queues);
            let there = Ethtool::open(netns).and_then(|mut it| it.channels(&interface.name));
            let there = there.ok().flatten().map(|it| it.combined + it.rx.max(it.tx));
            let added = link::possible_cpus()? as u32;
            there.map_or(made, |there| (there + added).min(made)).clamp(1, QUEUES_MAX)
        }
    };
    let by_card = buffer_bytes(netns, &interface.name, interface.mtu);
    let bytes = by_card.max(bytes_for_a_frame(interface.mtu, false));
    let directions = (options.usage != Use::Send, options.usage != Use::Receive);
    Ok(needs_of(&config, queues, directions, bytes))
}

/// A port whose packets stay in the kernel: one queue, whatever the interface has.
fn count_in_kernel(
    name: &PortName,
    config: &XdpConfig,
    interface: link::Interface,
    inspect: Option<&dyn Inspect>,
) -> Result<Port> {
    let filter = config.filter.as_deref();
    let filter = filter.map(|text| Filter::compile(text, LINKTYPE_ETHERNET)).transpose()?;
    let (resident, reason) = Resident::join(&interface, config.mode)?;
    let resident = Arc::new(resident);
    let expression = filter.as_ref().map_or("", Filter::expression);
    let queues = 0..=interface.rx_queues.max(1) - 1;
    let owner = Owner::myself(config.action, expression, queues);
    let netlink = Netlink::open(None)?;
    // A program that looks at all that comes stands before everybody who takes some of it.
    let places = match (config.action, &filter, inspect) {
        (_, Some(_), _) => FILTERED,
        (Action::Drop, None, Some(_)) => WHOLE,
        (_, None, Some(_)) => MIRRORS,
        (Action::Drop, None, None) => DROP..DROP + 1,
        (_, None, None) => COUNTERS,
    };
    let stage = claim_conflict::take(name, &resident, places, &owner)?;
    if !COUNTERS.contains(&stage.number()) {
        let load =
            || load_program(&stage, &resident, config.action, filter.as_ref(), None, inspect);
        let program = (filter.is_some() || inspect.is_some()).then(load).transpose()?;
        stage.complete(program.as_ref().map(AsFd::as_fd))?;
    }
    let pool = Pool::new(PoolConfig { buffers: 0, ..PoolConfig::default() })?;
    let (rx, tx) = (Ring::absent(&pool)?, Ring::absent(&pool)?);
    let described = in_kernel::described(&interface);
    let mode = mode_name(resident.mode());
    let in_kernel = InKernel::new(resident, interface, netlink, config.action, stage);
    Ok(Port {
        name: name.clone(),
        method: "count",
        mode: Some(mode),
        fallbacks: fallbacks(reason),
        queues: vec![Queue::new(0, rx, tx, in_kernel, vec![described])],
    })
}

/// How the slowest of a port's queues gets its packets: what the port can be relied on for.
fn slowest(attached: Mode, binds: &[BindMode]) -> &'static str {
    match attached {
        Mode::Skb => "skb",
        Mode::Native if binds.contains(&BindMode::Copy) => "native-copy",
        Mode::Native => "native-zero-copy",
    }
}

pub(super) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Native => "native",
        Mode::Skb => "skb",
    }
}

pub(super) fn fallbacks(reason: Option<String>) -> Vec<Fallback> {
    reason.map(|reason| Fallback::new("native", "skb", reason)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ports_mode_is_that_of_its_slowest_queue() {
        use BindMode::{Copy, ZeroCopy};
        for (attached, binds, expected) in [
            (Mode::Native, [ZeroCopy, ZeroCopy], "native-zero-copy"),
            (Mode::Native, [ZeroCopy, Copy], "native-copy"),
            (Mode::Native, [Copy, ZeroCopy], "native-copy"),
            (Mode::Skb, [Copy, Copy], "skb"),
        ] {
            assert_eq!(slowest(attached, &binds), expected, "{binds:?}");
        }
    }
}
