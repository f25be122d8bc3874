//! The host's queue of an interface, its queueing discipline: packets that wait there, and that it
//! dropped.
//!
//! Sources: rtnetlink(7), linux/pkt_sched.h, linux/gen_stats.h.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcHandle, TcHeader, TcMessage};

use super::netlink::attribute;
use super::{Interface, Netlink};
use sluicegate_base::error::{Error, Result};

/// A message about a queueing discipline before its attributes.
const HEADER_BYTES: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_STATS2: u16 = 7;
const TCA_STATS_QUEUE: u16 = 3;

/// The discipline of an interface without a queue.
const NO_QUEUE: &[u8] = b"noqueue\0";

/// Asks for the state of an interface's queueing discipline.
#[derive(Debug)]
pub struct Backlog {
    netlink: Netlink,
    name: String,
    index: i32,
}

/// The state of a queueing discipline, of all senders together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlogged {
    /// The interface has one.
    pub exists: bool,
    /// Packets that wait in it.
    pub waiting: u32,
    /// Packets that it dropped since it was made; it wraps.
    pub dropped: u32,
}

impl Backlog {
    /// The queue of an interface of a network namespace, or of this thread's.
    ///
    /// # Errors
    /// No such namespace, or no socket is to be had.
    pub fn open(netns: Option<&str>, interface: &Interface) -> Result<Self> {
        let (name, index) = (interface.name.clone(), interface.index.cast_signed());
        Ok(Self { netlink: Netlink::open(netns)?, name, index })
    }

    /// Its state now; of no discipline, nothing waits.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn read(&mut self) -> Result<Backlogged> {
        let index = self.index;
        let question = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::with_index(index));
        let found = self.netlink.dump(&question, |body| root_queue(body, index));
        let found = found.map_err(|e| Error::system("ask for the queue of", &*self.name, e))?;
        Ok(found.into_iter().next().unwrap_or_default())
    }
}

/// The discipline in a message, if it is the root of this interface: its counts contain those of all
/// below it. They are `struct gnet_stats_queue`: packets, bytes, drops, ...
fn root_queue(body: &[u8], index: i32) -> Option<Backlogged> {
    let header = TcHeader::parse(body).ok()?;
    if header.index != index || header.parent != TcHandle::ROOT {
        return None;
    }
    let attributes = body.get(HEADER_BYTES..)?;
    let exists = attribute(attributes, TCA_KIND)? != NO_QUEUE;
    let statistics = attribute(attributes, TCA_STATS2)?;
    let queue = attribute(&statistics, TCA_STATS_QUEUE)?;
    let word = |at: usize| queue.get(at * 4..)?.first_chunk().map(|word| u32::from_ne_bytes(*word));
    Some(Backlogged { exists, waiting: word(0)?, dropped: word(2)? })
}
