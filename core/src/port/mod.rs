//! Ports: named sources and sinks of packets, and the queues they open into.
//!
//! A [`Port`] is opened by name and falls apart into [`Queue`]s, each for one thread. Whatever
//! is behind it, a queue shows a receive and a transmit [`Ring`](sluicegate_base::ring::Ring); only
//! [`Queue::sync_rx`] and [`Queue::sync_tx`] differ: they call its `Backend` once a
//! batch. [`Port::open`] alone knows all kinds.

mod backend;
mod cells;
mod host;

mod claim_conflict;
mod limits;
mod live;
mod lookup;
mod memif;
mod mirror;
mod monitor;
mod name;
mod null;
mod options;
mod packet;
mod pcap;
mod pool_sizing;
mod queue;
mod tap;
mod wait;
mod watch;
mod xdp;

pub use crate::xdp::Inspect;
pub use crate::xdp::flows::FlowCounts;
pub use host::{HostFlows, detach_host, host_left, host_owner};
pub use name::{Kind, PortName};
pub use options::{Fallback, OpenOptions, RECORDING, Use};
pub use packet::RETIRE;
pub use queue::{Batch, Queue, QueueStats};
pub use wait::wait_any;

pub use sluicegate_base::ring::{Interface, LINKTYPE_ETHERNET};

use crate::error::Result;

/// An open port.
#[derive(Debug)]
pub struct Port {
    /// Its name as the user wrote it.
    pub name: PortName,
    /// The method in use: "ring", "recvmmsg"; of a `packet:` port that only sends, the way it does:
    /// "sendmmsg". Empty where there is but one.
    pub method: &'static str,
    /// How packets come from the card: "native-zero-copy", "native-copy", "native", "skb"; of
    /// `xdp:` and `mirror:` only. Of several queues the slowest one's.
    pub mode: Option<&'static str>,
    /// Methods that were tried before it.
    pub fallbacks: Vec<Fallback>,
    /// One for each thread that shall serve the port.
    pub queues: Vec<Queue>,
}

impl Port {
    /// Opens a port.
    ///
    /// # Errors
    /// A name or option that makes no sense, a missing privilege, no such interface or file.
    pub fn open(name: &PortName, options: &OpenOptions) -> Result<Self> {
        match name.kind() {
            Kind::Null => null::open(name, options),
            Kind::Packet => packet::open(name, options),
            Kind::Xdp => xdp::open(name, options),
            Kind::Mirror => mirror::open(name, options),
            Kind::Live => live::open(name, options),
            Kind::Host => host::open(name, options),
            Kind::Tap => tap::open(name, options),
            Kind::Memif => memif::open(name, options),
            Kind::Monitor => monitor::open(name, options),
            Kind::Pcap => pcap::open(name, options),
        }
    }

    /// Opens a port that has one queue, with the defaults of [`OpenOptions`]: `packet:eth0`, `xdp:eth0/0`,
    /// `pcap:trace.pcapng`. For programs with one thread.
    ///
    /// # Errors
    /// As those of [`open`](Self::open); the port has several queues and the name does not choose one.
    pub fn open_one(name: &str, usage: Use) -> Result<Queue> {
        let name: PortName = name.parse()?;
        let options = OpenOptions { usage, queues: 1, ..OpenOptions::default() };
        let mut queues = Self::open(&name, &options)?.queues;
        match queues.len() {
            1 => Ok(queues.remove(0)),
            several => {
                let remedy =
                    format!("it has {several} queues: choose one, as in {}/0", name.short());
                Err(name.error(remedy))
            }
        }
    }

    /// An open port of a kind that works in one way only.
    fn plain(name: &PortName, queues: Vec<Queue>) -> Self {
        Self { name: name.clone(), method: "", mode: None, fallbacks: Vec::new(), queues }
    }

    /// Returns the header type of packets sent to it: a LINKTYPE_ number, Ethernet's by default.
    pub fn link_type(&self) -> u16 {
        let first = self.queues.first().and_then(|queue| queue.interfaces().first());
        first.map_or(LINKTYPE_ETHERNET, |interface| interface.link_type)
    }
}
