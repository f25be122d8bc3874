//! `tap:`, a TAP device: an interface of the host's whose wire is this port. It receives what the
//! host sends out of the interface, and the host receives what is sent to it.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `persist` | whether the device stays when the port is closed | off; an existing one stays as it is |
//! | `up` | switches the device on | on |
//! | `mtu` | most bytes of a packet behind its Ethernet header, 68 to 65521 | as it is: 1500 |
//! | `ring_size` | packets that wait for each queue of the port before the next is lost, 1 to 65536 | as it is: 1000 |
//! | `slots` | slots in each of a queue's rings | 512 |
//!
//! The device is made where there is none of that name, in the namespace the port is opened in. Of
//! several queues the kernel gives each flow one. Frames come whole, as on a wire: the kernel cuts
//! what the host handed over in one piece (GSO) and fills in checksums first. A VLAN tag stands in
//! the frame.
//!
//! Each packet takes a system call in either direction; the device has no other way. Times are of
//! the moment a batch is read. What found no room is lost, and
//! counted (`ring_full`), by the first queue for all.
//!
//! Needs CAP_NET_ADMIN, and Linux 3.8 for several queues.

mod queue;

use std::sync::Arc;

pub(super) use queue::{Drops, TapQueue};
use queue::{MAX_BYTES, slots_for};

use super::backend::Backend;
use super::pool_sizing::PoolRequirements;
use super::queue::Queue;
use super::{Interface, LINKTYPE_ETHERNET, OpenOptions, Port, PortName, Use};
use crate::error::Result;
use crate::link::{self, LinkState, Making, Netlink, Tap, netns};
use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::ring::Ring;

/// The default of a TAP device (drivers/net/tun.c, `TUN_READQ_SIZE`, and net/ethernet/eth.c).
const DEFAULT_RING: u32 = 1000;
/// The least and the most MTU of an Ethernet device that is a TAP (drivers/net/tun.c).
const MTUS: std::ops::RangeInclusive<u64> = 68..=65_521;

/// The description of an interface's times.
const CLOCK: &str = "timestamps: software, taken when a batch is read";

/// The values of the options.
struct TapConfig {
    persist: Option<bool>,
    up: bool,
    mtu: Option<u32>,
    ring: Option<u32>,
    slots: u32,
}

impl TapConfig {
    fn of(name: &PortName) -> Result<Self> {
        Ok(Self {
            persist: name.switch("persist")?,
            up: name.switch("up")?.unwrap_or(true),
            mtu: name.count("mtu", MTUS)?.map(|mtu| mtu as u32),
            ring: name.count("ring_size", 1..=65_536)?.map(|packets| packets as u32),
            slots: name.count("slots", 2..=65_536)?.unwrap_or(512) as u32,
        })
    }
}

/// Opens the port.
pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    let config = TapConfig::of(name)?;
    let numbers = name.queues().unwrap_or(0..=options.queues.max(1) - 1);
    let count = numbers.clone().count();
    let mtu = config.mtu.unwrap_or_default();
    let rings = TapRings::new(name, options, config.slots, count, frame_bytes(mtu))?;
    let netns = options.netns.as_deref();
    let opened = netns::run_in(netns, || open_device(name.name(), &config, count))?;
    let queues = rings.queues(name.name(), numbers.zip(opened))?;
    Ok(Port::plain(name, queues))
}

/// Opens the queues of a device of this thread's network namespace, and sets it up.
fn open_device(device: &str, config: &TapConfig, queues: usize) -> Result<Vec<TapQueue>> {
    let taps = Tap::open(device, queues, Making::OrUse)?;
    if let (Some(persist), Some(tap)) = (config.persist, taps.first()) {
        tap.set_persistent(device, persist)?;
    }
    let mut netlink = Netlink::open(None)?;
    if let Some(mtu) = config.mtu {
        netlink.set_mtu(device, mtu)?;
    }
    if let Some(packets) = config.ring {
        netlink.set_queue_length(device, packets)?;
    }
    if config.up {
        netlink.set_up(device, true)?;
    }
    let interface = link::interface(None, device)?;
    let mut drops = Some(Drops::of(device)?);
    let waiting = config.ring.unwrap_or(DEFAULT_RING);
    taps.into_iter()
        .map(|tap| {
            let presence = LinkState::of(&interface)?;
            Ok(TapQueue::new(tap, device, presence, drops.take(), waiting, interface.up))
        })
        .collect()
}

/// Bytes of a frame at an MTU, with a header and a tag.
pub(super) fn frame_bytes(mtu: u32) -> u32 {
    mtu.saturating_add(18)
}

/// The pool and size of the rings of a port's queues.
pub(super) struct TapRings {
    pool: Arc<Pool>,
    usage: Use,
    slots: u32,
}

impl TapRings {
    /// Plans the rings of a port with `queues` queues and frames of the usual size: in a pool of
    /// its own a frame has one slot.
    pub fn new(
        name: &PortName,
        options: &OpenOptions,
        slots: u32,
        queues: usize,
        frame_bytes: u32,
    ) -> Result<Self> {
        let usage = options.usage;
        let pool = match &options.pool {
            Some(pool) => Arc::clone(pool),
            None => {
                let buffers = if usage == Use::Both { 2 * slots } else { slots };
                let usual = PoolConfig::default().buffer_bytes;
                let bytes = frame_bytes.next_multiple_of(64).max(usual);
                PoolRequirements::of_queues(queues as u32, buffers, bytes).pool()?
            }
        };
        let least = slots_for(MAX_BYTES, pool.buffer_bytes()) + 1;
        if usage != Use::Send && slots < least {
            let advice = format!("the longest frame needs {least} in this pool");
            return Err(name.bad_option("slots", &slots.to_string(), &advice));
        }
        Ok(Self { pool, usage, slots })
    }

    /// The port's queues, of which each has a number and a backend.
    pub fn queues(
        &self,
        interface: &str,
        backends: impl Iterator<Item = (u32, impl Backend + 'static)>,
    ) -> Result<Vec<Queue>> {
        let described = Interface {
            name: interface.to_owned(),
            link_type: LINKTYPE_ETHERNET,
            snaplen: 0,
            comment: CLOCK.into(),
        };
        let queue = |(number, backend)| {
            let (rx, tx) = self.make()?;
            Ok(Queue::new(number, rx, tx, backend, vec![described.clone()]))
        };
        backends.map(queue).collect()
    }

    /// Those of the next queue: to receive and to send.
    fn make(&self) -> Result<(Ring, Ring)> {
        let rx = match self.usage {
            Use::Send => Ring::absent(&self.pool)?,
            Use::Receive | Use::Both => Ring::receive(&self.pool, self.slots)?,
        };
        let tx = match self.usage {
            Use::Receive => Ring::absent(&self.pool)?,
            Use::Send | Use::Both => Ring::transmit(&self.pool, self.slots)?,
        };
        Ok((rx, tx))
    }
}
