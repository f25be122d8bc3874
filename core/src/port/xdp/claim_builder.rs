//! Opens a port that receives packets into its rings: with one socket per queue, or as copies.
//!
//! Copies are used if they are faster than sockets, and for queues with a socket of another port: the
//! kernel gives a queue to only one AF_XDP socket.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::claim::Claim;
use super::config::{SendPath, XdpConfig, XdpMethod};
use super::in_kernel::described_packets;
use super::queue::{XdpQueue, XdpRx, XdpTx};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::link;
use crate::nic::Deferred;
use crate::port::card_clock;
use crate::port::cell_ring_queue::CellRingPort;
use crate::port::claim_conflict::{self, overlap};
use crate::port::interface::MAX_HEADER_BYTES;
use crate::port::interface_watch::InterfaceWatch;
use crate::port::live_queue::{DEFAULT_RING, LiveQueue, open_sender};
use crate::port::name::PortName;
use crate::port::options::{Directions, Fallback, OpenOptions};
use crate::port::packet_socket::Promiscuous;
use crate::port::queue::{Port, Queue};
use crate::port::rings::{PoolRequirements, RingMaker};
use crate::xdp::live::check_target;
use crate::xdp::resident::{Action, FILTERED, Owner, Resident, WHOLE, metadata_obstacle};
use crate::xdp::rx_metadata::RxMetadata;
use crate::xdp::{BindMode, HEADROOM_BYTES, Mode, ModeFallback, Xsk, XskConfig, buffer_bytes};
use sluicegate_base::ring::{Interface, LINKTYPE_ETHERNET};

/// Maximum time of attempts to bind to a queue that another socket has: it may be closing.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum if other ports take packets of the queue: one of them may keep its socket.
const RETRY_TIMEOUT_WITH_OTHERS: Duration = Duration::from_millis(100);

/// Opens a port with rings: one that receives, sends, or both.
pub(super) fn take(
    name: &PortName,
    config: &XdpConfig,
    interface: &link::Interface,
    options: &OpenOptions,
) -> Result<Port> {
    let mut watch = InterfaceWatch::over(name, interface, options.usage)?;
    // With most drivers, sending without copying also needs a program of ours on the interface.
    let by_card = config.rx_metadata == RxMetadata::Driver && options.usage.receives();
    let obstacle =
        || metadata_obstacle(interface).or_else(|| card_clock::xdp_obstacle(&interface.name));
    let obstacle = by_card.then(obstacle).flatten();
    let read = by_card && obstacle.is_none();
    let (resident, reason) = Resident::join_for(interface, config.mode, read)?;
    let queues = watch.attached(name)?;
    let mut fallbacks = Fallback::from_native(reason);
    let mut rx_metadata = config.rx_metadata;
    let obstacle = obstacle.or_else(|| resident.no_metadata().map(str::to_owned));
    if by_card && let Some(reason) = obstacle {
        fallbacks.push(no_card_clock(reason));
        rx_metadata = RxMetadata::Kernel;
    }
    let filter = name.filter(LINKTYPE_ETHERNET)?;
    let promiscuous = config.promiscuous && options.usage.receives();
    let promiscuous = promiscuous.then(|| Promiscuous::new(name, interface.index)).transpose()?;
    let builder = ClaimBuilder {
        name,
        config,
        interface,
        options,
        resident: Arc::new(resident),
        filter,
        queues,
        watch: Arc::new(watch),
        fallbacks,
        rx_metadata,
        promiscuous: promiscuous.map(Arc::new),
    };
    builder.open()
}

/// The parts of a port that is being opened.
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
    rx_metadata: RxMetadata,
    promiscuous: Option<Arc<Promiscuous>>,
}

impl ClaimBuilder<'_> {
    /// Opens the port with the fastest method, or the requested one: sockets without copying, copies,
    /// sockets with copying. If another socket has one of the queues, uses copies.
    fn open(mut self) -> Result<Port> {
        let others = self.others()?;
        let timeout = if others.is_empty() { RETRY_TIMEOUT } else { RETRY_TIMEOUT_WITH_OTHERS };
        if self.config.method == Some(XdpMethod::CellRing) {
            return match self.options.usage {
                Directions::Receive => self.by_cell_rings(None),
                _ => Err(self.name.error("method=ring only receives; method=af_xdp sends")),
            };
        }
        let before_copies = self.fallbacks.len();
        if self.needs_no_socket() {
            let fallback = match self.lacks_zero_copy() {
                Some(reason) => Fallback::new("zero-copy", "copy", reason),
                None => match self.by_sockets(Some(BindMode::ZeroCopy), timeout) {
                    Ok(port) => return Ok(port),
                    Err(error) if self.may_copy(&error) => beside(&others, &error),
                    Err(error) => Fallback::new("zero-copy", "copy", error.to_string()),
                },
            };
            match self.by_cell_rings(Some(fallback)) {
                Ok(port) => return Ok(port),
                // Sockets may work, as on kernels before 5.18.
                Err(error) => {
                    self.fallbacks.push(Fallback::new("cell ring", "af_xdp", error.to_string()));
                }
            }
        }
        match self.by_sockets(self.config.bind, timeout) {
            Err(error) if self.may_copy(&error) => {
                // A failure of the first attempt to copy would contradict the success of this one.
                self.fallbacks.truncate(before_copies);
                self.by_cell_rings(Some(beside(&self.others()?, &error)))
            }
            result => result,
        }
    }

    fn by_sockets(&self, bind: Option<BindMode>, timeout: Duration) -> Result<Port> {
        let &Self { name, config, interface, options, ref resident, .. } = self;
        let count = self.queues.clone().count();
        name.check_queue_count(options, count)?;
        let (receives, sends) = (options.usage.receives(), options.usage.sends());
        let mut fallbacks = self.fallbacks.clone();
        let claim =
            || Claim::new(name, resident, self.filter.as_ref(), self.rx_metadata, &self.owner());
        let claim = receives.then(claim).transpose()?.map(|claim| Arc::new(Mutex::new(claim)));
        let by_live = config.send == SendPath::Live;
        if by_live {
            check_target(interface, None)?;
        }
        // One for each queue, before any socket: if a sender fails, nothing is left behind.
        let open = |_| LiveQueue::new(open_sender(DEFAULT_RING, None, interface, true)?, interface);
        let live = by_live.then(|| self.queues.clone().map(open).collect::<Result<Vec<_>>>());
        let mut live = live.transpose()?.map(Vec::into_iter);
        // In copy mode the kernel writes packets into frames of any size.
        let by_card = match (bind, receives) {
            (Some(BindMode::Copy), _) | (_, false) => 0,
            _ => buffer_bytes(None, &interface.name, interface.mtu),
        };
        let bytes = by_card.max(bytes_for_a_frame(interface.mtu, resident.frags()));
        let requirements = requirements_of(config, count as u32, (receives, sends), bytes);
        let pool = requirements.pool_of(options)?;
        let deferred = config.busy_poll.map(|_| Deferred::new(interface)).transpose()?;
        let deferred = deferred.map(Arc::new);
        let latency = name.latency(options)?;
        let rings = RingMaker { pool, usage: options.usage, slots: config.slots };
        let mut binds = Vec::new();
        let mut opened = Vec::new();
        for number in self.queues.clone() {
            let sends = by_live || self.watch.sends(number);
            // A socket needs at least one ring.
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
                busy_timeout: timeout,
                ..XskConfig::default()
            };
            let Xsk { socket, mut receiver, sender, mode, fallback, .. } = xsk.open(&rings.pool)?;
            if let Some(receiver) = &mut receiver {
                receiver.read_rx_metadata(self.rx_metadata);
                config.snaplen.into_iter().for_each(|bytes| receiver.set_snaplen(bytes));
            }
            binds.push(mode);
            if let Some(ModeFallback { from, to, reason, detail }) = fallback
                && !fallbacks.iter().any(|said| said.from == from.name())
            {
                let (from, to) = (from.name(), to.name());
                fallbacks.push(Fallback { from, to, reason, detail });
            }
            let (rx, tx) = (rings.receive(receives)?, rings.transmit(sends)?);
            // Busy polling drives the queue by polling for packets.
            let latency = latency.filter(|_| config.busy_poll.is_none());
            let live = live.as_mut().and_then(Iterator::next).map(XdpTx::Live);
            let queue = XdpQueue {
                number,
                object: format!("xdp:{}/{number}", interface.name),
                claim: claim.clone(),
                receiver,
                tx: live.or_else(|| sender.map(|sender| XdpTx::Socket { sender, unsent: 0 })),
                socket,
                watch: Arc::clone(&self.watch),
                _deferred: deferred.clone(),
                _promiscuous: self.promiscuous.clone(),
                resident: Arc::clone(resident),
                checks_polling: config.busy_poll.is_some(),
                rx: XdpRx::new(config.frames - config.slots, latency),
                checked_at: 0,
                rx_closed: None,
                down: false,
            };
            opened.push((number, queue, rx, tx));
        }
        if receives && !resident.frags() {
            let room = rings.pool.buffer_bytes() - HEADROOM_BYTES;
            let then = "do not fit the buffers and are lost (ring_full): start again, after \
                        `sluice detach` where the XDP program stays";
            self.watch.limit(room, then, interface.mtu);
        }
        // All are open, so packets may arrive now.
        let opened_at = Instant::now();
        if let Some(claim) = &claim {
            let mut claim = claim.lock().unwrap_or_else(PoisonError::into_inner);
            opened
                .iter()
                .try_for_each(|(number, queue, ..)| claim.join(*number, &*queue.socket))?;
            claim.begin()?;
        }
        let mut described = described(interface, self.rx_metadata);
        described.snaplen = config.snaplen.unwrap_or(described.snaplen).min(described.snaplen);
        let queues = opened.into_iter().map(|(number, queue, rx, tx)| {
            let queue = Queue::new(number, rx, tx, queue, vec![described.clone()]);
            queue.receiving_since(opened_at)
        });
        let mode = Some(slowest(resident.mode(), &binds));
        let method = if by_live { "af_xdp+live" } else { "af_xdp" };
        Ok(Port { method, mode, fallbacks, ..Port::plain(self.name, queues.collect()) })
    }

    /// Returns the other owners that take packets of our queues.
    ///
    /// # Errors
    /// Another owner has all packets, and this port requests all of them, too.
    fn others(&self) -> Result<Vec<Owner>> {
        let claims = self.resident.owned_stages()?;
        if self.options.usage.receives() {
            claim_conflict::refuse_second(self.name, &claims, &self.owner(), WHOLE.start)?;
        }
        let owners = claims.into_iter().map(|claim| claim.owner);
        let take = |owner: &Owner| owner.action == Action::Take && overlap(owner, &self.queues);
        Ok(owners.filter(take).collect())
    }

    /// Returns the reason not to try zero-copy. None if the kernel does not report it (before 6.3).
    fn lacks_zero_copy(&self) -> Option<String> {
        let abilities = link::xdp_abilities(None, self.interface).ok()??;
        let lacks = !abilities.zero_copy();
        lacks.then(|| format!("the driver of {} has no zero-copy", self.interface.name))
    }

    /// Returns true if no option requires sockets, and the port only receives and shares no pool.
    fn needs_no_socket(&self) -> bool {
        self.config.method.is_none()
            && self.options.usage == Directions::Receive
            && self.options.pool.is_none()
            && self.config.bind.is_none()
            && self.config.busy_poll.is_none()
            && self.rx_metadata != RxMetadata::Driver
            && self.resident.mode() == Mode::Native
    }

    /// Returns true if copies can replace a socket: another owner has a queue, and the user requested
    /// packets, not a socket.
    fn may_copy(&self, error: &Error) -> bool {
        let socket = self.config.method == Some(XdpMethod::Sockets)
            || matches!(self.name.option("mode"), Some("zero-copy" | "copy"));
        error.errno() == Some(libc::EBUSY) && self.options.usage == Directions::Receive && !socket
    }

    fn by_cell_rings(&self, fallback: Option<Fallback>) -> Result<Port> {
        let mut fallbacks = self.fallbacks.clone();
        fallbacks.extend(fallback);
        if self.rx_metadata == RxMetadata::Driver {
            fallbacks.push(no_card_clock("a copy has the time at which it was made".into()));
        }
        let job = CellRingPort {
            name: self.name,
            interface: self.interface,
            resident: &self.resident,
            filter: self.filter.as_ref(),
            action: Action::Take,
            stages: if self.filter.is_some() { FILTERED } else { WHOLE },
            queues: self.queues.clone(),
            watch: &self.watch,
            slots: self.config.slots,
            snaplen: self.config.snaplen,
            cells: self.config.cells,
            stamped: self.rx_metadata != RxMetadata::None,
            latency: self.name.latency(self.options)?,
            promiscuous: self.promiscuous.clone(),
        };
        let mode = Some(slowest(self.resident.mode(), &[BindMode::Copy]));
        let queues = job.open(self.options)?;
        Ok(Port { method: "ring", mode, fallbacks, ..Port::plain(self.name, queues) })
    }

    fn owner(&self) -> Owner {
        let expression = self.filter.as_ref().map_or("", Filter::expression);
        Owner::myself(Action::Take, expression, self.queues.clone())
    }
}

/// Returns the fallback to copies because another port's socket has a queue.
fn beside(others: &[Owner], error: &Error) -> Fallback {
    let reason = match others.first() {
        Some(owner) => format!("{owner} has the queue, and a queue has one socket"),
        None => error.to_string(),
    };
    Fallback::new("af_xdp", "cell ring", reason)
}

/// Returns the fallback of a port that gets no timestamps from the card.
fn no_card_clock(reason: String) -> Fallback {
    Fallback::new("hardware timestamps", "xdp timestamps", reason)
}

/// Describes a queue's packets and their timestamps.
fn described(interface: &link::Interface, rx_metadata: RxMetadata) -> Interface {
    let comment = match rx_metadata {
        RxMetadata::None => "packets taken by XDP",
        RxMetadata::Kernel => "timestamps: software (kernel), taken in XDP",
        RxMetadata::Driver => {
            "timestamps: hardware (card), software (kernel, taken in XDP) where it gave none"
        }
    };
    described_packets(interface, comment)
}

/// Returns the size of a buffer for a whole frame, or for a part of one if frames may have several buffers.
pub(super) fn bytes_for_a_frame(mtu: u32, frags: bool) -> u32 {
    let frame_bytes = mtu.saturating_add(MAX_HEADER_BYTES);
    if frags || frame_bytes <= 2048 - HEADROOM_BYTES { 2048 } else { 4096 }
}

pub(super) fn requirements_of(
    config: &XdpConfig,
    queues: u32,
    (receives, sends): (bool, bool),
    buffer_bytes: u32,
) -> PoolRequirements {
    let frames = if receives { config.frames } else { 0 } + if sends { config.slots } else { 0 };
    // Sending without copying may need some more frames for the fill ring.
    let requirements = PoolRequirements::of_queues(queues, frames + 64, buffer_bytes);
    PoolRequirements { af_xdp: true, ..requirements }
}

/// Returns the mode of a port, which is that of its slowest queue.
fn slowest(attached: Mode, binds: &[BindMode]) -> &'static str {
    match attached {
        Mode::Skb => "skb",
        Mode::Native if binds.contains(&BindMode::Copy) => "native-copy",
        Mode::Native => "native-zero-copy",
    }
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
