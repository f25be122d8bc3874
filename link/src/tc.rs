//! Traffic control: the state of an interface's queueing discipline, and filters for packets that enter and
//! leave an interface: eBPF programs on its `clsact` discipline, which queues nothing.
//!
//! Filters stay after their process exits; the kernel removes them with the interface. Changes need
//! `CAP_NET_ADMIN`. Sources: tc-bpf(8), rtnetlink(7), linux/pkt_cls.h, linux/pkt_sched.h, linux/gen_stats.h,
//! net/sched/cls_bpf.c.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libc::{NLM_F_CREATE, NLM_F_EXCL, TCA_KIND, TCA_OPTIONS, TCA_STATS2};
use netlink_sys::Socket;

use super::link_state::interface_filter;
use super::netlink::{BUFFER_BYTES, Body, attribute, receive, subscribe, text, word};
use super::{Interface, Netlink};
use sluicegate_base::error::{Error, Result};
use sluicegate_filter::cbpf;

/// Bytes of a `struct tcmsg` (linux/rtnetlink.h).
const HEADER_BYTES: usize = 20;
/// Bytes of a `struct nlmsghdr`.
const MESSAGE_HEADER_BYTES: usize = 16;
// linux/pkt_sched.h
const TC_H_ROOT: u32 = u32::MAX;
const TC_H_CLSACT: u32 = 0xffff_fff1;
const TC_H_MIN_INGRESS: u32 = 0xfff2;
const TC_H_MIN_EGRESS: u32 = 0xfff3;
const TC_H_MAJ_MASK: u32 = 0xffff_0000;
// linux/pkt_cls.h
const TCA_BPF_ACT: u16 = 1;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TC_ACT_STOLEN: u32 = 4;
// linux/tc_act/tc_mirred.h
const TCA_MIRRED_PARMS: u16 = 2;
const TCA_INGRESS_REDIR: u32 = 3;
// linux/gen_stats.h
const TCA_STATS_QUEUE: u16 = 3;
/// The words of a `struct gnet_stats_queue`.
const QLEN: usize = 0;
const DROPS: usize = 2;
const CLSACT: &str = "clsact";
const BPF: &str = "bpf";

/// The direction of the packets that a filter sees.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcHook {
    /// Received packets.
    Ingress = TC_H_MIN_INGRESS,
    /// Sent packets.
    Egress = TC_H_MIN_EGRESS,
}

impl TcHook {
    fn parent(self) -> u32 {
        TC_H_CLSACT & TC_H_MAJ_MASK | self as u32
    }
}

/// The position of a filter among those of its hook, and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterPlace {
    /// The direction of the packets that it sees.
    pub hook: TcHook,
    /// Its priority; lower numbers run first.
    pub priority: u16,
    /// Its number within the priority, from 1.
    pub handle: u32,
    /// The name that `tc` shows.
    pub name: String,
}

/// The fate of packets after a filter's program.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    /// The program's return value decides.
    AsProgramSays,
    /// They enter this interface as if received there; the program must return -1. Unlike `bpf_redirect`,
    /// this does not pass the packet to XDP in skb mode again (net/core/dev.c, `netif_receive_generic_xdp`).
    Enter(u32),
}

impl Netlink {
    /// Adds the `clsact` discipline to an interface; false if it already has one.
    pub fn add_clsact(&mut self, interface: u32) -> io::Result<bool> {
        match self.change(libc::RTM_NEWQDISC, &clsact(interface), NLM_F_CREATE | NLM_F_EXCL) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Removes the `clsact` discipline and all its filters.
    pub fn delete_clsact(&mut self, interface: u32) -> io::Result<()> {
        self.change(libc::RTM_DELQDISC, &clsact(interface), 0)
    }

    /// Returns the number of packets dropped by the filters of both sides, in 32 bits; `None` without
    /// `clsact`.
    pub fn clsact_drops(&mut self, interface: u32) -> io::Result<Option<u32>> {
        self.get(libc::RTM_GETQDISC, &clsact(interface), |body| {
            queue_statistic(body.get(HEADER_BYTES..)?, DROPS)
        })
    }

    /// Adds a program as a filter for packets of all protocols. The interface needs `clsact`.
    pub fn add_filter(
        &mut self,
        interface: u32,
        place: &FilterPlace,
        program: BorrowedFd<'_>,
        then: Then,
    ) -> io::Result<()> {
        let options = Body::default()
            .with_number(TCA_BPF_FD, program.as_raw_fd().cast_unsigned())
            .with_text(TCA_BPF_NAME, &place.name);
        let options = match then {
            Then::AsProgramSays => options.with_number(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT),
            Then::Enter(target) => options.with(TCA_BPF_ACT, entering(target)),
        };
        let request = filter(interface, place).with(TCA_OPTIONS, options);
        self.change(libc::RTM_NEWTFILTER, &request, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Removes a filter.
    pub fn delete_filter(&mut self, interface: u32, place: &FilterPlace) -> io::Result<()> {
        self.change(libc::RTM_DELTFILTER, &filter(interface, place), 0)
    }

    /// Returns the filters of one hook of an interface; empty without `clsact`. Filters other than BPF
    /// programs have no name.
    pub fn filters(&mut self, interface: u32, hook: TcHook) -> io::Result<Vec<FilterPlace>> {
        let request = Body::of(&[0, interface, 0, hook.parent(), 0]);
        match self.dump(libc::RTM_GETTFILTER, &request, |body| found(body, interface, hook)) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(Vec::new()),
            other => other,
        }
    }
}

fn clsact(interface: u32) -> Body {
    let handle = TC_H_CLSACT & TC_H_MAJ_MASK;
    Body::of(&[0, interface, handle, TC_H_CLSACT, 0]).with_text(TCA_KIND, CLSACT)
}

fn filter(interface: u32, place: &FilterPlace) -> Body {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    let info = u32::from(place.priority) << 16 | u32::from(protocol);
    let header = [0, interface, place.handle, place.hook.parent(), info];
    Body::of(&header).with_text(TCA_KIND, BPF)
}

/// Creates a list of one action, which makes packets enter an interface.
fn entering(interface: u32) -> Body {
    // struct tc_mirred: index, capabilities, action, two counts, the operation, the interface.
    let mirred = [0, 0, TC_ACT_STOLEN, 0, 0, TCA_INGRESS_REDIR, interface];
    let options = Body::default().with(TCA_MIRRED_PARMS, Body::of(&mirred));
    let action = Body::default().with_text(TCA_ACT_KIND, "mirred").with(TCA_ACT_OPTIONS, options);
    Body::default().with(1, action)
}

/// Parses a message; returns its filter if that is on this interface.
fn found(body: &[u8], interface: u32, hook: TcHook) -> Option<FilterPlace> {
    let (index, handle, info) = (word(body, 4)?, word(body, 8)?, word(body, 16)?);
    let attributes = body.get(HEADER_BYTES..)?;
    // The kernel also reports each priority itself, without a handle.
    if index != interface || handle == 0 {
        return None;
    }
    let is_bpf = text(attribute(attributes, TCA_KIND)?) == BPF;
    let options = attribute(attributes, TCA_OPTIONS).filter(|_| is_bpf);
    let name = options.and_then(|options| attribute(options, TCA_BPF_NAME)).map(text);
    let priority = (info >> 16) as u16;
    Some(FilterPlace { hook, priority, handle, name: name.unwrap_or_default() })
}

/// The discipline of an interface without a queue.
const NO_QUEUE: &[u8] = b"noqueue\0";

/// Queries the state of an interface's queueing discipline.
#[derive(Debug)]
pub struct Backlog {
    netlink: Netlink,
    /// Receives the messages about removed disciplines of the interface.
    removals: Socket,
    removed: bool,
    name: String,
    index: u32,
}

/// The state of a queueing discipline, over all senders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlogged {
    /// True if the interface has one.
    pub exists: bool,
    /// Packets waiting in it.
    pub waiting: u32,
    /// Packets dropped since its creation; the count wraps.
    pub dropped: u32,
    /// True if a discipline with a queue was removed or replaced since the query was opened. The kernel
    /// frees the packets in it without counting them (net/sched/sch_generic.c, `qdisc_reset`).
    pub removed: bool,
}

impl Backlog {
    /// Opens a query for an interface of a network namespace, or of this thread's.
    ///
    /// # Errors
    /// No such namespace; no socket is available.
    pub fn open(netns: Option<&str>, interface: &Interface) -> Result<Self> {
        let (name, index) = (interface.name.clone(), interface.index);
        let filter = interface_filter(libc::RTM_DELQDISC, index);
        let attach = |socket: &Socket| cbpf::attach_to_socket(socket.as_fd(), &filter);
        let removals = subscribe(netns, libc::RTMGRP_TC, attach)?;
        Ok(Self { netlink: Netlink::open(netns)?, removals, removed: false, name, index })
    }

    /// Returns its current state; without a discipline no packet waits.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn read(&mut self) -> Result<Backlogged> {
        let index = self.index;
        let request = Body::of(&[0, index, 0, 0, 0]);
        let found = self.netlink.dump(libc::RTM_GETQDISC, &request, |body| root_queue(body, index));
        let found = found.map_err(|e| Error::system("ask for the queue of", &*self.name, e))?;
        self.removed |= self.has_removals();
        Ok(Backlogged { removed: self.removed, ..found.into_iter().next().unwrap_or_default() })
    }

    /// Reads the messages; returns true if one of them is about a discipline with a queue.
    fn has_removals(&self) -> bool {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut found = false;
        loop {
            match receive(&self.removals, &mut buffer) {
                Ok(message) => found |= message.get(MESSAGE_HEADER_BYTES..).is_none_or(has_queue),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return found,
                // Messages were lost, because there were too many.
                Err(_) => return true,
            }
        }
    }
}

/// Returns false for a discipline that never holds packets: `noqueue`, `clsact`, `ingress`.
fn has_queue(body: &[u8]) -> bool {
    let kind = body.get(HEADER_BYTES..).and_then(|attributes| attribute(attributes, TCA_KIND));
    kind != Some(NO_QUEUE) && word(body, 12) != Some(TC_H_CLSACT)
}

/// Parses a message; returns the discipline if it is the root of this interface. Its counts include those of
/// all below it.
fn root_queue(body: &[u8], index: u32) -> Option<Backlogged> {
    if word(body, 4)? != index || word(body, 12)? != TC_H_ROOT {
        return None;
    }
    let attributes = body.get(HEADER_BYTES..)?;
    let exists = attribute(attributes, TCA_KIND)? != NO_QUEUE;
    let statistic = |word| queue_statistic(attributes, word);
    let (waiting, dropped) = (statistic(QLEN)?, statistic(DROPS)?);
    Some(Backlogged { exists, waiting, dropped, removed: false })
}

/// Returns one word of a discipline's `struct gnet_stats_queue`.
fn queue_statistic(attributes: &[u8], number: usize) -> Option<u32> {
    word(attribute(attribute(attributes, TCA_STATS2)?, TCA_STATS_QUEUE)?, number * 4)
}
