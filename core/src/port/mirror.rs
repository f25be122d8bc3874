//! `mirror:`, copies of an interface's packets, made by XDP before the host's stack; the host still gets its
//! packet. Faster than `packet:`, but without packets that the host sends.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `filter` | a pcap-filter expression: the packets to copy | all |
//! | `snaplen` | maximum bytes kept of a packet | a frame of the interface's MTU |
//! | `promisc` | also receives packets for other hosts, while the port is open | on |
//! | `mode` | `native` or `skb`: only this mode | native if the driver can |
//! | `ring_size` | packets in a queue's cell ring, a power of two | 16384, or 32 MiB |
//! | `slots` | slots in the ring | 512 |
//! | `timestamp` | `xdp`: the time of the copy; `off` | `xdp` |
//! | `latency` | maximum time that a packet waits for a sleeping reader; 0 wakes it at once | see `OpenOptions` |
//!
//! Each port has rings of its own (`xdp/cell_rings`), so a slow reader loses only its own copies. In skb mode one
//! queue reads the rings of all CPUs. The same holds if the driver runs the program for one queue on several
//! CPUs: bonds, hv_netvsc and TAP.
//!
//! Times are the kernel's, taken when the packet was copied (see `xdp/rx_metadata.rs` for their
//! error). Needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_SYS_ADMIN, and Linux 5.18.

use std::sync::Arc;

use super::cell_ring_queue::CellRingPort;
use super::interface::find_ethernet;
use super::interface_watch::InterfaceWatch;
use super::name::PortName;
use super::options::{Directions, Fallback, OpenOptions};
use super::packet_socket::Promiscuous;
use super::queue::Port;
use crate::error::Result;
use crate::link::netns;
use crate::xdp::Mode;
use crate::xdp::resident::{Action, MIRRORS, ModeRequest, Resident};
use sluicegate_base::ring::LINKTYPE_ETHERNET;

/// Opens the port.
pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    if options.usage != Directions::Receive {
        return Err(name.error("it only receives; xdp: and packet: send"));
    }
    let modes =
        [("native", ModeRequest::Only(Mode::Native)), ("skb", ModeRequest::Only(Mode::Skb))];
    let request = name.choice("mode", &modes)?.unwrap_or_default();
    let slots = name.slots(2..=16_384)?;
    let snaplen = name.number("snaplen", 1..=262_144)?;
    let cells = name.count("ring_size", 2..=65_536)?;
    let filter = name.filter(LINKTYPE_ETHERNET)?;
    let netns = options.netns.as_deref();
    let otherwise = "XDP is for Ethernet interfaces; packet: takes all kinds";
    let interface = find_ethernet(name, netns, otherwise)?;
    let promiscuous = name.switch("promisc")?.unwrap_or(true);
    let stamped = name.choice("timestamp", &[("xdp", true), ("off", false)])?.unwrap_or(true);
    netns::run_in(netns, || {
        // Like `xdp:`, restores settings that killed processes left on the interface.
        let _ = crate::nic::restore_interrupts(&interface);
        let promiscuous =
            promiscuous.then(|| Promiscuous::new(name, interface.index)).transpose()?;
        let mut watch = InterfaceWatch::over(name, &interface, options.usage)?;
        let (resident, reason) = Resident::join(&interface, request)?;
        let queues = watch.attached(name)?;
        let job = CellRingPort {
            name,
            interface: &interface,
            resident: &Arc::new(resident),
            filter: filter.as_ref(),
            action: Action::Mirror,
            stages: MIRRORS,
            queues,
            watch: &Arc::new(watch),
            slots,
            snaplen,
            cells,
            stamped,
            latency: name.latency(options)?,
            promiscuous: promiscuous.map(Arc::new),
        };
        Ok(Port {
            name: name.clone(),
            method: "ring",
            mode: Some(job.resident.mode().name()),
            fallbacks: Fallback::from_native(reason),
            queues: job.open(options)?,
        })
    })
}
