//! Traffic control: the state of an interface's queueing discipline, and filters where packets enter
//! and leave an interface: eBPF programs on its `clsact` discipline, which queues nothing.
//!
//! Filters stay when their maker exits; the kernel removes them with the interface. Changes need
//! `CAP_NET_ADMIN`.
//! Sources: tc-bpf(8), rtnetlink(7), linux/pkt_cls.h, linux/pkt_sched.h, linux/gen_stats.h,
//! net/sched/cls_bpf.c.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{DefaultNla, Emitable, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAction, TcActionAttribute, TcActionMirror, TcActionMirrorOption, TcActionOption,
    TcActionType, TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader,
    TcMessage, TcMirror, TcMirrorActionType, TcOption,
};

use super::netlink::attribute;
use super::{Interface, Netlink};
use sluicegate_base::error::{Error, Result};

/// A message before its attributes.
const HEADER_BYTES: usize = 20;
// linux/rtnetlink.h, linux/pkt_cls.h
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_BPF_ACT: u16 = 1;
const TCA_BPF_NAME: u16 = 7;
// linux/gen_stats.h
const TCA_STATS_QUEUE: u16 = 3;
/// The words of a `struct gnet_stats_queue`.
const QLEN: usize = 0;
const DROPS: usize = 2;
const CLSACT: &str = "clsact";

/// Which packets a filter sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Those that come in.
    Ingress,
    /// Those that leave.
    Egress,
}

impl Side {
    fn parent(self) -> TcHandle {
        let minor = match self {
            Self::Ingress => TcHandle::MIN_INGRESS,
            Self::Egress => TcHandle::MIN_EGRESS,
        };
        TcHandle { minor, ..TcHandle::CLSACT }
    }
}

/// Where a filter stands among those of its side, and what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterPlace {
    /// The direction of the packets that it sees.
    pub side: Side,
    /// The lower are asked first.
    pub priority: u16,
    /// Its number among those of its priority, from 1 on.
    pub handle: u32,
    /// The name that `tc` shows.
    pub name: String,
}

/// The fate of packets after a filter's program.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    /// The program's return value decides.
    AsProgramSays,
    /// They enter this interface, as if they came in there; the program has said -1. In place of
    /// `bpf_redirect`, for a packet that came so is not shown to XDP in skb mode once more
    /// (net/core/dev.c, `netif_receive_generic_xdp`).
    Enter(u32),
}

impl Netlink {
    /// Gives an interface room for filters; false if it has it already.
    pub fn add_clsact(&mut self, interface: u32) -> io::Result<bool> {
        let request = RouteNetlinkMessage::NewQueueDiscipline(clsact(interface));
        match self.change(request, NLM_F_CREATE | NLM_F_EXCL) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Takes that room away, with all filters.
    pub fn delete_clsact(&mut self, interface: u32) -> io::Result<()> {
        self.change(RouteNetlinkMessage::DelQueueDiscipline(clsact(interface)), 0)
    }

    /// How many packets filters of an interface have dropped, both sides together, if it has room
    /// for filters. Counted in 32 bits.
    pub fn clsact_drops(&mut self, interface: u32) -> io::Result<Option<u32>> {
        self.get(RouteNetlinkMessage::GetQueueDiscipline(clsact(interface)), |body| {
            queue_statistic(body.get(HEADER_BYTES..)?, DROPS)
        })
    }

    /// Puts a program on an interface that has room for filters, for packets of all protocols.
    pub fn add_filter(
        &mut self,
        interface: u32,
        place: &FilterPlace,
        program: BorrowedFd<'_>,
        then: Then,
    ) -> io::Result<()> {
        let mut options = vec![
            TcFilterBpfOption::ProgFd(program.as_raw_fd().cast_unsigned()),
            TcFilterBpfOption::ProgName(place.name.clone()),
        ];
        options.push(match then {
            Then::AsProgramSays => TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
            Then::Enter(target) => {
                TcFilterBpfOption::Other(DefaultNla::new(TCA_BPF_ACT, entering(target)))
            }
        });
        let mut message = filter(interface, place);
        let options = options.into_iter().map(TcOption::Bpf).collect();
        message.attributes.push(TcAttribute::Options(options));
        let request = RouteNetlinkMessage::NewTrafficFilter(message);
        self.change(request, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Takes a filter away.
    pub fn delete_filter(&mut self, interface: u32, place: &FilterPlace) -> io::Result<()> {
        self.change(RouteNetlinkMessage::DelTrafficFilter(filter(interface, place)), 0)
    }

    /// The filters of one side of an interface; none where it has no room for them. Those of other
    /// kinds have no name.
    pub fn filters(&mut self, interface: u32, side: Side) -> io::Result<Vec<FilterPlace>> {
        let mut message = TcMessage::with_index(interface.cast_signed());
        message.header.parent = side.parent();
        let question = RouteNetlinkMessage::GetTrafficFilter(message);
        match self.dump(&question, |body| found(body, interface, side)) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(Vec::new()),
            other => other,
        }
    }
}

fn clsact(interface: u32) -> TcMessage {
    let mut message = TcMessage::with_index(interface.cast_signed());
    message.header.parent = TcHandle::CLSACT;
    message.header.handle = TcHandle { major: u16::MAX, minor: 0 };
    message.attributes = vec![TcAttribute::Kind(CLSACT.to_owned())];
    message
}

fn filter(interface: u32, place: &FilterPlace) -> TcMessage {
    let mut message = TcMessage::with_index(interface.cast_signed());
    message.header.parent = place.side.parent();
    message.header.handle = place.handle.into();
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    message.header.info = u32::from(place.priority) << 16 | u32::from(protocol);
    message.attributes = vec![TcAttribute::Kind(TcFilterBpf::KIND.to_owned())];
    message
}

/// The attribute of a filter that makes packets enter an interface.
fn entering(interface: u32) -> Vec<u8> {
    let mut mirror = TcMirror::default();
    mirror.generic.action = TcActionType::Stolen;
    mirror.eaction = TcMirrorActionType::IngressRedir;
    mirror.ifindex = interface;
    let mut action = TcAction::default();
    action.attributes = vec![
        TcActionAttribute::Kind(TcActionMirror::KIND.to_owned()),
        TcActionAttribute::Options(vec![TcActionOption::Mirror(TcActionMirrorOption::Parms(
            mirror,
        ))]),
    ];
    let actions = [action];
    let mut bytes = vec![0; actions.as_slice().buffer_len()];
    actions.as_slice().emit(&mut bytes);
    bytes
}

/// The filter that a message tells of, if it is on this interface.
fn found(body: &[u8], interface: u32, side: Side) -> Option<FilterPlace> {
    let header = TcHeader::parse(body).ok()?;
    let attributes = body.get(HEADER_BYTES..)?;
    let handle = u32::from(header.handle);
    // Each priority is told of by itself, too, without a handle.
    if header.index != interface.cast_signed() || handle == 0 {
        return None;
    }
    let kind = attribute(attributes, TCA_KIND)?;
    let is_bpf = kind.strip_suffix(&[0]) == Some(TcFilterBpf::KIND.as_bytes());
    let name = attribute(attributes, TCA_OPTIONS)
        .filter(|_| is_bpf)
        .and_then(|options| attribute(&options, TCA_BPF_NAME))
        .map(|name| String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned());
    let priority = (header.info >> 16) as u16;
    Some(FilterPlace { side, priority, handle, name: name.unwrap_or_default() })
}

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
    /// No such namespace, or the kernel gives no socket.
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
/// below it.
fn root_queue(body: &[u8], index: i32) -> Option<Backlogged> {
    let header = TcHeader::parse(body).ok()?;
    if header.index != index || header.parent != TcHandle::ROOT {
        return None;
    }
    let attributes = body.get(HEADER_BYTES..)?;
    let exists = attribute(attributes, TCA_KIND)? != NO_QUEUE;
    let word = |word| queue_statistic(attributes, word);
    Some(Backlogged { exists, waiting: word(QLEN)?, dropped: word(DROPS)? })
}

/// One word of a discipline's `struct gnet_stats_queue`.
fn queue_statistic(attributes: &[u8], word: usize) -> Option<u32> {
    let queue = attribute(&attribute(attributes, TCA_STATS2)?, TCA_STATS_QUEUE)?;
    queue.get(word * 4..)?.first_chunk().copied().map(u32::from_ne_bytes)
}
