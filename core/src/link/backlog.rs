//! What waits in the host's queue of an interface: its queueing discipline's.
//!
//! Sources: rtnetlink(7), linux/pkt_sched.h, linux/gen_stats.h.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcHandle, TcHeader, TcMessage};

use super::netlink::attribute;
use super::{Netlink, interface};
use crate::error::{Error, Result};

/// A message about a queueing discipline before its attributes.
const HEADER_BYTES: usize = 20;
const TCA_STATS2: u16 = 7;
const TCA_STATS_QUEUE: u16 = 3;

/// A way to ask how much waits to leave an interface.
#[derive(Debug)]
pub struct Backlog {
    netlink: Netlink,
    name: String,
    index: i32,
}

impl Backlog {
    /// Of an interface of a network namespace, or of this thread's.
    ///
    /// # Errors
    /// No such interface or namespace, or no socket is to be had.
    pub fn open(netns: Option<&str>, name: &str) -> Result<Self> {
        let index = interface(netns, name)?.index.cast_signed();
        Ok(Self { netlink: Netlink::open(netns)?, name: name.to_owned(), index })
    }

    /// Packets that wait there now, of whomever they are.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn packets(&mut self) -> Result<u64> {
        let index = self.index;
        let question = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::with_index(index));
        let waiting = self.netlink.dump(&question, |body| waiting_in(body, index));
        let waiting = waiting.map_err(|e| Error::system("ask for the queue of", &*self.name, e))?;
        Ok(waiting.into_iter().map(u64::from).sum())
    }
}

/// What waits in the discipline that a message tells of, if it is the root of this interface: that
/// has all below it, too.
fn waiting_in(body: &[u8], index: i32) -> Option<u32> {
    let header = TcHeader::parse(body).ok()?;
    if header.index != index || header.parent != TcHandle::ROOT {
        return None;
    }
    let statistics = attribute(body.get(HEADER_BYTES..)?, TCA_STATS2)?;
    let queue = attribute(&statistics, TCA_STATS_QUEUE)?;
    queue.first_chunk().map(|packets| u32::from_ne_bytes(*packets))
}
