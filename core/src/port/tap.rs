//! `tap:`, a TAP device: an interface of the host whose wire is this port. The port receives the packets
//! that the host sends through the interface, and the host receives the packets that are sent to the port.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `persist` | keeps the device when the port is closed | off; an existing one stays as it is |
//! | `up` | switches the device on | on |
//! | `mtu` | maximum bytes of a packet after its Ethernet header, 68 to 65521 | as it is: 1500 |
//! | `ring_size` | packets that can wait for each queue of the port, 1 to 65536 | as it is: 1000 |
//! | `slots` | slots in each of a queue's rings | 512 |
//!
//! The port makes the device if its namespace has none with that name. The kernel assigns each flow to one
//! queue. Frames are as on a wire: the kernel first segments large packets (GSO) and computes checksums. A
//! VLAN tag is part of the frame.
//!
//! Each packet takes a system call in either direction; the device has no other interface. A packet's
//! timestamp is the time at which its batch was read. Packets without room are lost, and the first queue
//! counts them for all (`ring_full`).
//!
//! Needs CAP_NET_ADMIN.

use super::name::PortName;
use super::options::OpenOptions;
use super::queue::Port;
use super::tap_queue::{DeviceDrops, TapQueue, described, frame_bytes, rings};
use crate::error::Result;
use crate::link::{self, LinkState, Making, Netlink, Tap, netns};

/// The default of a TAP device (drivers/net/tun.c, `TUN_READQ_SIZE`, and net/ethernet/eth.c).
const DEFAULT_RING: u32 = 1000;
/// Minimum and maximum MTU of a TAP device with Ethernet (drivers/net/tun.c).
const MTUS: std::ops::RangeInclusive<u32> = 68..=65_521;

/// The values of the options.
struct TapConfig {
    persist: Option<bool>,
    up: bool,
    mtu: Option<u32>,
    ring: Option<u32>,
}

/// Opens the port.
pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    let config = TapConfig {
        persist: name.switch("persist")?,
        up: name.switch("up")?.unwrap_or(true),
        mtu: name.count("mtu", MTUS)?,
        ring: name.count("ring_size", 1..=65_536)?,
    };
    let slots = name.slots(2..=65_536)?;
    let numbers = name.queue_numbers(options);
    let count = numbers.clone().count();
    let frame_bytes = frame_bytes(config.mtu.unwrap_or_default());
    let rings = rings(name, options, slots, count, frame_bytes)?;
    let netns = options.netns.as_deref();
    let opened = netns::run_in(netns, || open_device(name.name(), &config, count))?;
    let queues = rings.queues(&described(name.name()), numbers.zip(opened))?;
    Ok(Port::plain(name, queues))
}

/// Opens the queues of a device in this thread's network namespace, and configures it.
fn open_device(device: &str, config: &TapConfig, queues: usize) -> Result<Vec<TapQueue>> {
    let taps = Tap::open(device, queues, Making::OrUse)?;
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
    let mut drops = Some(DeviceDrops::of(device)?);
    let waiting = config.ring.unwrap_or(DEFAULT_RING);
    let presences = taps.iter().map(|_| LinkState::of(&interface)).collect::<Result<Vec<_>>>()?;
    // Last, because a port that fails to open leaves the device as it was.
    if let (Some(persist), Some(tap)) = (config.persist, taps.first()) {
        tap.set_persistent(device, persist)?;
    }
    let queue =
        |(tap, presence)| TapQueue::new(tap, device, presence, drops.take(), waiting, interface.up);
    Ok(taps.into_iter().zip(presences).map(queue).collect())
}
