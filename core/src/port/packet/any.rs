//! `packet:any`, the packets of all interfaces of a network namespace, those that come later too.
//!
//! One socket that is bound to no interface receives each packet with its own link-layer header and
//! the number of its device. An interface of the port stands for each device, from its first packet
//! on. Devices whose link-layer header has no LINKTYPE_ number here get a
//! [cooked](super::cooked) header in its place, and with `cooked=on` all packets do, under one
//! interface `any`.
//!
//! A filter has to hold for all devices, but a BPF program is for one link-layer header. So the socket's
//! program asks for the hardware type of the device first (SKF_AD_HATYPE) and goes on in one of two
//! programs. One is compiled for Ethernet. The other is compiled for IP, and its offsets count from the
//! network header (SKF_NET_OFF), wherever that is.

use std::sync::{Arc, Mutex, PoisonError};

use super::cooked::LINKTYPE_SLL2;
use super::fanout::{NET, load_from};
use super::link_type::{LINKTYPE_RAW, link_type_of};
use super::socket::Socket;
use crate::error::Result;
use crate::filter::{Filter, Instruction};
use crate::port::{Fallback, LINKTYPE_ETHERNET};
use crate::ring::Interface;

/// The name of the port.
pub(super) const ANY: &str = "any";
/// Bytes of each packet that the kernel puts into the ring at least: more than any link-layer header has
/// (LL_MAX_HEADER, linux/netdevice.h), behind which the network header begins.
pub(super) const MIN_ADMITTED: u32 = 256;

/// The devices that packets have come from, numbered as they appeared; all queues of a port have the
/// same numbers.
#[derive(Debug)]
pub(super) struct Devices {
    shared: Arc<Mutex<Vec<Device>>>,
    known: Vec<Device>,
    /// All packets belong to one interface, with cooked headers.
    cooked: bool,
    /// An interface of the port, but for its name and link type.
    described: Interface,
}

#[derive(Clone, Debug)]
struct Device {
    index: i32,
    hardware: u16,
    interface: Interface,
}

/// The interface of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// Its number in the port.
    pub number: u32,
    /// Whether a cooked header takes the place of the link-layer header.
    pub cooked: bool,
}

impl Devices {
    /// No devices yet. Each interface is described so, but for its name and link type.
    pub fn new(described: Interface, cooked: bool) -> Self {
        Self { shared: Arc::default(), known: Vec::new(), cooked, described }
    }

    /// The same devices, for another queue.
    pub fn share(&self) -> Self {
        let Self { shared, cooked, described, .. } = self;
        Self {
            shared: Arc::clone(shared),
            known: Vec::new(),
            cooked: *cooked,
            described: described.clone(),
        }
    }

    /// The interfaces there are before the first packet.
    pub fn interfaces(&self) -> Vec<Interface> {
        match self.cooked {
            true => vec![Interface { link_type: LINKTYPE_SLL2, ..self.described.clone() }],
            false => Vec::new(),
        }
    }

    /// The interface of a packet that came with this address. The socket is asked for the name of a new
    /// device.
    #[inline]
    pub fn origin(&mut self, address: &libc::sockaddr_ll, socket: &Socket) -> Origin {
        if self.cooked {
            return Origin { number: 0, cooked: true };
        }
        let is_it = |device: &Device| {
            device.index == address.sll_ifindex && device.hardware == address.sll_hatype
        };
        let at = self.known.iter().position(is_it);
        let at = at.unwrap_or_else(|| self.meet(address, socket));
        let cooked = self.known[at].interface.link_type == LINKTYPE_SLL2;
        Origin { number: at as u32, cooked }
    }

    /// Adds a device, unless another queue has; its number.
    #[cold]
    fn meet(&mut self, address: &libc::sockaddr_ll, socket: &Socket) -> usize {
        let mut devices = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let (index, hardware) = (address.sll_ifindex, address.sll_hatype);
        let known = devices.iter().position(|it| it.index == index && it.hardware == hardware);
        let at = known.unwrap_or_else(|| {
            // It may be removed by now.
            let name = socket.device_name(index).unwrap_or_else(|| format!("if{index}"));
            let link_type = link_type_of(hardware).unwrap_or(LINKTYPE_SLL2);
            let interface = Interface { name, link_type, ..self.described.clone() };
            devices.push(Device { index, hardware, interface });
            devices.len() - 1
        });
        self.known.clone_from(&devices);
        at
    }

    /// Adds the interfaces of devices that are new since the last call.
    #[inline]
    pub fn add_to(&self, interfaces: &mut Vec<Interface>) {
        let new = self.known.iter().skip(interfaces.len());
        interfaces.extend(new.map(|device| device.interface.clone()));
    }
}

// linux/filter.h, linux/if_packet.h
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const HARDWARE_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_HATYPE).cast_unsigned();
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();

/// The program of the sockets: the filter, for devices of all kinds; or for Ethernet alone, with the
/// reason, where the filter is about Ethernet. A packet that the host sends to itself by a loopback
/// device is seen as it is received only, as in libpcap.
pub(super) fn program(filter: Option<&str>) -> Result<(Vec<Instruction>, Option<Fallback>)> {
    let everything = || vec![op(RETURN, u32::MAX)];
    let mut fallback = None;
    let (ethernet, others) = match filter {
        None => (everything(), everything()),
        Some(expression) => (
            Filter::compile(expression, LINKTYPE_ETHERNET)?.for_packet_socket()?,
            match Filter::compile(expression, LINKTYPE_RAW) {
                Ok(filter) => {
                    let mut program = filter.for_packet_socket()?;
                    program.iter_mut().for_each(|op| op.k = load_from(NET, op.code, op.k));
                    program
                }
                Err(error) => {
                    let (from, to) = ("all interfaces", "Ethernet interfaces");
                    fallback = Some(Fallback::new(from, to, error.to_string()));
                    vec![op(RETURN, 0)]
                }
            },
        ),
    };
    let branch = |value: u16, jt, jf| Instruction { jt, jf, ..op(JUMP_IF_EQUAL, value.into()) };
    let mut program = vec![
        op(LOAD, HARDWARE_TYPE),
        branch(libc::ARPHRD_ETHER, 5, 0),
        branch(libc::ARPHRD_LOOPBACK, 1, 0),
        // To `others`, behind the rest of this and `ethernet`.
        op(JUMP, 3 + ethernet.len() as u32),
        op(LOAD, PACKET_TYPE),
        branch(libc::PACKET_OUTGOING.into(), 0, 1),
        op(RETURN, 0),
    ];
    program.extend(ethernet);
    program.extend(others);
    Ok((program, fallback))
}

fn op(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(index: i32, hardware: u16) -> libc::sockaddr_ll {
        libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: 0,
            sll_ifindex: index,
            sll_hatype: hardware,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        }
    }

    #[test]
    fn queues_number_devices_alike_and_a_name_that_is_removed_is_a_number() {
        let Ok(socket) = Socket::open("packet:any") else {
            return println!("skipped: needs CAP_NET_RAW; get it by sudo");
        };
        let described =
            Interface { name: ANY.into(), link_type: 0, snaplen: 96, comment: "clock".into() };
        let mut first = Devices::new(described, false);
        let mut second = first.share();
        let removed = 1 << 30;
        let ether = address(removed, libc::ARPHRD_ETHER);
        let gre = address(removed + 1, 778);
        let raw = |number| Origin { number, cooked: false };
        let cooked = |number| Origin { number, cooked: true };
        assert_eq!(first.origin(&gre, &socket), cooked(0));
        assert_eq!(second.origin(&ether, &socket), raw(1));
        assert_eq!(second.origin(&gre, &socket), cooked(0));
        assert_eq!(first.origin(&ether, &socket), raw(1));
        assert_eq!(first.origin(&address(1, libc::ARPHRD_LOOPBACK), &socket), raw(2));
        let mut interfaces = Vec::new();
        first.add_to(&mut interfaces);
        let shown: Vec<_> = interfaces.iter().map(|it| (&it.name[..], it.link_type)).collect();
        let names = [removed + 1, removed].map(|index| format!("if{index}"));
        assert_eq!(shown, [(&names[0][..], 276), (&names[1], 1), ("lo", 1)]);
        assert!(interfaces.iter().all(|it| it.snaplen == 96 && it.comment == "clock"));
    }
}
