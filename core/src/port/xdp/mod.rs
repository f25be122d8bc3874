//! `xdp:`, packets that an XDP program takes from an interface before the host's stack sees them. Packets
//! that do not match the filter stay with the host.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `filter` | a pcap-filter expression: the packets to take | all |
//! | `action` | `take`, to this port; `drop` or `pass`: the kernel only counts packets | take |
//! | `method` | `af_xdp`: sockets; `ring`: copies, only for receiving | see below |
//! | `send` | how packets are sent: `af_xdp`, the socket; `live`, live frames as in a [`live:`](super::live) port, with a thread per queue | af_xdp |
//! | `mode` | `zero-copy`, `copy` (both native), `native`, `skb`: only this mode | the first that works |
//! | `promisc` | also receives packets for other hosts, while the port is open | off |
//! | `snaplen` | maximum bytes kept of a packet | all |
//! | `timestamp` | `xdp`: taken by the program; `hardware`: the card's time, and its hash; `off` saves some nanoseconds per packet | xdp |
//! | `ring_size` | a queue's buffers, including those in its slots; with cell rings, packets in a queue's ring | 4096; rings 16384, or 32 MiB |
//! | `busy_poll` | time to poll the driver from system calls (SO_PREFER_BUSY_POLL); 0 means off | off |
//! | `slots` | slots in the ring | 512 |
//! | `latency` | maximum time that a packet waits for a sleeping reader; 0 wakes it at once | see `OpenOptions` |
//!
//! Packets arrive by one of two methods. AF_XDP sockets (`af_xdp`) pass the driver's own buffers if the
//! driver can (zero-copy), share pools, swap buffers, and send. If the driver cannot, the kernel copies
//! each packet after the program has run, in a dozen function calls. The program itself copies faster, into
//! rings like those of `mirror:` (`ring`). docs/ports.md lists the cases in which a port that only receives uses
//! these.
//!
//! virtio_net has more queues while a native program is attached, for packets that XDP sends. A port
//! receives on these, too, and sends on the others, which it shares with the host: a queue that only
//! receives has no transmit ring.
//!
//! With different filters, up to 12 ports take different packets of one interface, and 4 without a filter, on
//! different queues.
//!
//! Needs Linux 5.10, and the privileges in docs/running.md.

mod claim;
mod claim_builder;
mod config;
mod in_kernel;
mod poll_pacer;
mod queue;

use claim_builder::{bytes_for_a_frame, requirements_of};
use config::XdpConfig;

use super::interface::{self, find_ethernet};
use super::name::PortName;
use super::options::{Directions, OpenOptions};
use super::queue::Port;
use super::rings::PoolRequirements;
use crate::error::Result;
use crate::link::{self, Ethtool, netns};
use crate::nic;
use crate::xdp::buffer_bytes;
use crate::xdp::resident::{Action, QUEUES_MAX};

/// Opens the port.
pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    let config = XdpConfig::of(name)?;
    let netns = options.netns.as_deref();
    let otherwise = "XDP is for Ethernet interfaces; packet: takes all kinds";
    let interface = find_ethernet(name, netns, otherwise)?;
    if config.send == config::SendPath::Live && options.usage == Directions::Receive {
        return Err(name.error("send=live is for ports that send, and this one only receives"));
    }
    if config.action != Action::Take {
        if options.usage != Directions::Receive {
            return Err(name.error("action=drop and action=pass only count what comes in"));
        }
        in_kernel::refuse_unused(name)?;
        name.check_queue_count(options, 1)?;
    }
    netns::run_in(netns, || {
        // If it fails, the caller that needs other settings reports that.
        let _ = nic::restore_interrupts(&interface);
        match config.action {
            Action::Take => claim_builder::take(name, &config, &interface, options),
            _ => in_kernel::count(name, &config, interface, options.inspect.as_deref()),
        }
    })
}

/// Returns the pool requirements of a port that receives or sends. The number of queues that a driver adds
/// for a program is not known in advance: one per CPU, if the driver has room.
pub(super) fn requirements(name: &PortName, options: &OpenOptions) -> Result<PoolRequirements> {
    let config = XdpConfig::of(name)?;
    let netns = options.netns.as_deref();
    let interface = interface::find(name, netns)?;
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
    let directions = (options.usage.receives(), options.usage.sends());
    Ok(requirements_of(&config, queues, directions, bytes))
}
