//! `packet:any`, the packets of all interfaces of a network namespace, including those created later.
//!
//! One socket that is bound to no interface receives each packet with its own link-layer header and the
//! number of its device. Each device becomes an interface of the port with its first packet. One interface
//! `any`, with cooked headers, represents all devices beyond the first [`MAX_DEVICES`]. If a device's
//! link-layer header has no LINKTYPE_ number here, a [cooked](super::link_header) header replaces it. With
//! `cooked=on` that applies to all packets, under one interface `any`.
//!
//! A filter must work for all devices, but a BPF program is made for one link-layer header. So the socket's
//! program first reads the hardware type of the device (SKF_AD_HATYPE) and jumps to one of two programs.
//! One is compiled for Ethernet. The other is compiled for IP, and its offsets count from the network
//! header (SKF_NET_OFF), wherever that is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::fanout::{NET, load_from};
use super::link_header::{LINKTYPE_RAW, LINKTYPE_SLL2, link_type_of};
use crate::error::Result;
use crate::filter::cbpf::{Compare, Op, Operand, Size};
use crate::filter::{Filter, Instruction};
use crate::link::LinkNames;
use crate::port::options::Fallback;
use crate::port::packet_socket::Socket;
use sluicegate_base::ring::{Interface, LINKTYPE_ETHERNET};

/// The name of the port.
pub(super) const ANY: &str = "any";
/// Minimum number of bytes of each packet that the kernel puts into the ring: more than any link-layer
/// header (LL_MAX_HEADER, linux/netdevice.h).
pub(super) const MIN_ADMITTED: u32 = 256;

/// Maximum number of devices with their own interface; all other devices share one interface.
const MAX_DEVICES: usize = 4096;

/// The devices of received packets, numbered in order. All queues of a port have the same numbers.
#[derive(Debug)]
pub(super) struct Devices {
    /// None if all packets belong to one interface, with cooked headers.
    shared: Option<Arc<Mutex<KnownDevices>>>,
    /// The interfaces that this queue knows.
    interfaces: Vec<Interface>,
    origins: HashMap<DeviceKey, DeviceOrigin>,
    /// The device of the last packet, which is usually also that of the next.
    last: (DeviceKey, DeviceOrigin),
    /// Template of the port's interfaces, without name and link type.
    described: Interface,
}

/// A device: its index, and its hardware type, which may change.
type DeviceKey = (i32, u16);

/// The devices that all queues of a port know.
#[derive(Debug)]
struct KnownDevices {
    /// In the order of their numbers; the interface of all further devices has no key.
    devices: Vec<(Option<DeviceKey>, Interface)>,
    numbers: HashMap<DeviceKey, usize>,
    names: LinkNames,
}

/// The interface of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceOrigin {
    /// The interface's number in the port.
    pub number: u32,
    /// True if a cooked header replaces the link-layer header.
    pub cooked: bool,
}

impl Devices {
    /// Makes an empty list. Interfaces differ from `described` in name and link type. Without `names`, all
    /// packets belong to one interface, with cooked headers.
    pub(super) fn new(described: Interface, names: Option<LinkNames>) -> Self {
        let shared = |names| KnownDevices { devices: Vec::new(), numbers: HashMap::new(), names };
        Self::of(described, names.map(|names| Arc::new(Mutex::new(shared(names)))))
    }

    fn of(described: Interface, shared: Option<Arc<Mutex<KnownDevices>>>) -> Self {
        // No device has index 0.
        let last = ((0, 0), DeviceOrigin { number: 0, cooked: true });
        Self { shared, interfaces: Vec::new(), origins: HashMap::new(), last, described }
    }

    /// Shares the devices with another queue.
    pub(super) fn share(&self) -> Self {
        Self::of(self.described.clone(), self.shared.clone())
    }

    /// Returns the interfaces known before the first packet.
    pub(super) fn interfaces(&self) -> Vec<Interface> {
        match self.shared {
            None => vec![Interface { link_type: LINKTYPE_SLL2, ..self.described.clone() }],
            Some(_) => Vec::new(),
        }
    }

    /// Returns the interface of a packet with this address. Queries the kernel for the name of a new
    /// device.
    #[inline]
    pub(super) fn origin(&mut self, address: &libc::sockaddr_ll, socket: &Socket) -> DeviceOrigin {
        let key = (address.sll_ifindex, address.sll_hatype);
        if self.last.0 != key {
            self.last = (key, self.look_up(key, socket));
        }
        self.last.1
    }

    fn look_up(&mut self, key: DeviceKey, socket: &Socket) -> DeviceOrigin {
        if let Some(origin) = self.origins.get(&key) {
            return *origin;
        }
        let Some(shared) = &self.shared else { return DeviceOrigin { number: 0, cooked: true } };
        // If the interface for further devices exists, this queue knows all others.
        if self.interfaces.len() <= MAX_DEVICES {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            if !shared.numbers.contains_key(&key) {
                shared.add(key, socket, &self.described);
            }
            for (key, interface) in &shared.devices[self.interfaces.len()..] {
                let cooked = interface.link_type == LINKTYPE_SLL2;
                let origin = DeviceOrigin { number: self.interfaces.len() as u32, cooked };
                self.origins.extend(key.map(|key| (key, origin)));
                self.interfaces.push(interface.clone());
            }
        }
        let further = DeviceOrigin { number: MAX_DEVICES as u32, cooked: true };
        self.origins.get(&key).copied().unwrap_or(further)
    }

    /// Adds the interfaces of devices that were added since the last call.
    #[inline]
    pub(super) fn add_to(&self, interfaces: &mut Vec<Interface>) {
        let new = self.interfaces.iter().skip(interfaces.len());
        interfaces.extend(new.cloned());
    }

    /// Reads the names of new and removed devices, so that the kernel has room for more messages.
    pub(super) fn note_names(&self) {
        if let Some(shared) = &self.shared {
            shared.lock().unwrap_or_else(PoisonError::into_inner).names.read();
        }
    }
}

impl KnownDevices {
    /// Adds a device, or the interface for all further ones.
    fn add(&mut self, (index, hardware): DeviceKey, socket: &Socket, described: &Interface) {
        let number = self.devices.len();
        if number > MAX_DEVICES {
            return;
        }
        if number == MAX_DEVICES {
            let interface = Interface { link_type: LINKTYPE_SLL2, ..described.clone() };
            return self.devices.push((None, interface));
        }
        // The device may have been removed.
        let name = socket
            .device_name(index)
            .or_else(|| self.names.get(index.cast_unsigned()).map(str::to_owned))
            .unwrap_or_else(|| format!("if{index}"));
        let link_type = link_type_of(hardware).unwrap_or(LINKTYPE_SLL2);
        let interface = Interface { name, link_type, ..described.clone() };
        self.devices.push((Some((index, hardware)), interface));
        self.numbers.insert((index, hardware), number);
    }
}

// linux/filter.h
const HARDWARE_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_HATYPE).cast_unsigned();
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();

/// Returns the program of the sockets: the filter for devices of all types or, if the filter is about
/// Ethernet, for Ethernet only, with the reason. Packets on a loopback device are captured only when they
/// are received, as in libpcap.
pub(super) fn program(filter: Option<&str>) -> Result<(Vec<Instruction>, Option<Fallback>)> {
    let everything = || vec![Op::Return(u32::MAX).encode()];
    let mut fallback = None;
    let (ethernet, others) = match filter {
        None => (everything(), everything()),
        Some(expression) => (
            Filter::compile(expression, LINKTYPE_ETHERNET)?.for_packet_socket()?,
            match Filter::compile(expression, LINKTYPE_RAW) {
                Ok(filter) => {
                    let program = filter.for_packet_socket()?;
                    program.into_iter().map(|op| load_from(NET, op)).collect()
                }
                Err(error) => {
                    let (from, to) = ("all interfaces", "Ethernet interfaces");
                    fallback = Some(Fallback::new(from, to, error.to_string()));
                    vec![Op::Return(0).encode()]
                }
            },
        ),
    };
    let branch = |value: u16, jt, jf| Op::Branch(Compare::Eq, Operand::K(value.into()), jt, jf);
    let choice = [
        Op::Load(Size::W, HARDWARE_TYPE),
        branch(libc::ARPHRD_ETHER, 5, 0),
        branch(libc::ARPHRD_LOOPBACK, 1, 0),
        // Jumps to `others`, after the rest of this and `ethernet`.
        Op::Jump(3 + ethernet.len() as i32),
        Op::Load(Size::W, PACKET_TYPE),
        branch(libc::PACKET_OUTGOING.into(), 0, 1),
        Op::Return(0),
    ];
    let program = choice.into_iter().map(Op::encode).chain(ethernet).chain(others).collect();
    Ok((program, fallback))
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

    const DESCRIBED: fn() -> Interface =
        || Interface { name: ANY.into(), link_type: 0, snaplen: 96, comment: "clock".into() };
    /// An index greater than that of any device on this host.
    const REMOVED: i32 = 1 << 30;

    fn socket() -> Option<Socket> {
        let socket = Socket::open("packet:any").ok();
        if socket.is_none() {
            println!("skipped: needs CAP_NET_RAW; get it by sudo");
        }
        socket
    }

    fn devices() -> Devices {
        Devices::new(DESCRIBED(), Some(LinkNames::open(None).unwrap()))
    }

    #[test]
    fn queues_number_devices_alike_and_a_name_that_is_unknown_is_a_number() {
        let Some(socket) = socket() else { return };
        let mut first = devices();
        let mut second = first.share();
        let ether = address(REMOVED, libc::ARPHRD_ETHER);
        let gre = address(REMOVED + 1, 778);
        let raw = |number| DeviceOrigin { number, cooked: false };
        let cooked = |number| DeviceOrigin { number, cooked: true };
        assert_eq!(first.origin(&gre, &socket), cooked(0));
        assert_eq!(second.origin(&ether, &socket), raw(1));
        assert_eq!(second.origin(&gre, &socket), cooked(0));
        assert_eq!(first.origin(&ether, &socket), raw(1));
        assert_eq!(first.origin(&address(1, libc::ARPHRD_LOOPBACK), &socket), raw(2));
        let mut interfaces = Vec::new();
        first.add_to(&mut interfaces);
        let shown: Vec<_> = interfaces.iter().map(|it| (&it.name[..], it.link_type)).collect();
        let names = [REMOVED + 1, REMOVED].map(|index| format!("if{index}"));
        assert_eq!(shown, [(&names[0][..], 276), (&names[1], 1), ("lo", 1)]);
        assert!(interfaces.iter().all(|it| it.snaplen == 96 && it.comment == "clock"));
    }

    #[test]
    fn devices_beyond_the_most_share_one_interface_in_all_queues() {
        let Some(socket) = socket() else { return };
        let mut first = devices();
        let mut second = first.share();
        let max = MAX_DEVICES as i32;
        let origin = |devices: &mut Devices, number: i32| {
            devices.origin(&address(REMOVED + number, libc::ARPHRD_ETHER), &socket)
        };
        for (sentence, numbers, cooked) in
            [("the first", 0..max, false), ("all further ones", max..max + 10, true)]
        {
            for number in numbers {
                let expected = DeviceOrigin { number: number.min(max) as u32, cooked };
                assert_eq!(origin(&mut first, number), expected, "{sentence}");
                assert_eq!(origin(&mut second, number), expected, "{sentence}, another queue");
            }
        }
        assert_eq!(
            origin(&mut first, 7),
            DeviceOrigin { number: 7, cooked: false },
            "known as before"
        );
        let mut interfaces = Vec::new();
        second.add_to(&mut interfaces);
        let last = interfaces.last().unwrap();
        assert_eq!((interfaces.len(), &last.name[..]), (MAX_DEVICES + 1, ANY));
        assert_eq!((last.link_type, second.origins.len()), (LINKTYPE_SLL2, MAX_DEVICES));
    }
}
