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
pub use packet::RETIRE;
pub use queue::{Batch, Queue, QueueStats};
pub use wait::wait_any;

pub use sluicegate_base::ring::{Interface, LINKTYPE_ETHERNET};

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::file::write::FileAccess;
use sluicegate_base::memory::Pool;

/// The [`latency`](OpenOptions::latency) of a program that shows or sends nothing on at once: while
/// packets come it wakes 50 times a second, and when a quarter of a ring is full.
pub const RECORDING: Duration = Duration::from_millis(20);

/// The directions that a port is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Use {
    /// To receive.
    #[default]
    Receive,
    /// To send.
    Send,
    /// Both.
    Both,
}

/// How to open a port, besides its name.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The directions in use.
    pub usage: Use,
    /// The network namespace to open it in, as `ip netns` names it; this process's if none.
    pub netns: Option<String>,
    /// Queues, where the name does not say; 0 leaves it to the port.
    pub queues: u32,
    /// The pool to share with other ports, so that packets swap; one of its own if none.
    pub pool: Option<Arc<Pool>>,
    /// The permissions of a capture file that is written.
    pub access: FileAccess,
    /// How long a packet may lie where the kernel, or another process, has put it before a program
    /// that sleeps sees it: a long time spares wake-ups, zero is at once. Where neither this nor the
    /// name's `latency=` says, rings of copies wake at once and blocks of a packet socket within
    /// [`RETIRE`]. A program that only records or counts does well with [`RECORDING`].
    pub latency: Option<Duration>,
    /// Inspects the packets of a port that only counts them; other ports have none.
    pub inspect: Option<Arc<dyn Inspect>>,
}

/// A fallback from the requested method to a slower one. The command prints each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The method that was tried.
    pub from: &'static str,
    /// The method in use.
    pub to: &'static str,
    /// Why.
    pub reason: String,
    /// The kernel's own answer, where the reason leaves it out.
    pub detail: Option<String>,
}

impl Fallback {
    /// A fall for a reason that says all.
    pub fn new(from: &'static str, to: &'static str, reason: String) -> Self {
        Self { from, to, reason, detail: None }
    }
}

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
