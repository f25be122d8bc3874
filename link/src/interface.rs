//! Attributes and counters of an interface, from rtnetlink.
//!
//! Attributes are read one by one, and only those needed: an exotic attribute of an exotic
//! device then hides nothing else. Source: linux/if_link.h, `struct rtnl_link_stats64`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use netlink_packet_core::{NlasIterator, Parseable, ParseableParametrized};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkMessage, LinkXdp, Stats64,
};

use super::Netlink;
use super::netlink::attribute;
use sluicegate_base::error::{Error, Result};

// The attributes of a link that are read here: linux/if_link.h.
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_STATS64: u16 = 23;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_XDP: u16 = 43;

const LINK_HEADER_BYTES: usize = 16;

/// An interface at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its number in its namespace, from 1.
    pub index: u32,
    /// Its name: "eth0".
    pub name: String,
    /// Its kind: "veth", "bridge"; empty for a card and for loopback.
    pub kind: String,
    /// Its hardware type, an `ARPHRD_` number (linux/if_arp.h): 1 is Ethernet.
    pub hardware: u16,
    /// Its Ethernet address, where it has one.
    pub mac: Option<Mac>,
    /// The most bytes of a packet after the link-layer header.
    pub mtu: u32,
    /// True if it is switched on (`IFF_UP`).
    pub up: bool,
    /// True if it is on and has a carrier (`IFF_RUNNING`).
    pub running: bool,
    /// True if it is a loopback interface.
    pub loopback: bool,
    /// Receive queues it was made with.
    pub rx_queues: u32,
    /// Transmit queues it was made with.
    pub tx_queues: u32,
    /// True if its driver runs an XDP program on received packets (reported since Linux 4.20).
    pub native_xdp: bool,
    /// Its IP addresses.
    pub addresses: Vec<Address>,
    /// Its counters since it was made.
    pub stats: LinkStats,
}

impl Interface {
    /// "up", "no carrier" or "down".
    pub fn state(&self) -> &'static str {
        match (self.up, self.running) {
            (true, true) => "up",
            (true, false) => "no carrier",
            (false, _) => "down",
        }
    }
}

/// One line: name, kind, state, hardware and IP addresses.
impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.kind.as_str(), self.loopback) {
            ("", true) => "loopback",
            ("", false) => "card",
            (kind, _) => kind,
        };
        write!(f, "{:<15} {kind:<9} {:<10}", self.name, self.state())?;
        match self.mac {
            Some(mac) => write!(f, " {mac}")?,
            None => write!(f, " {:17}", "")?,
        }
        for address in &self.addresses {
            write!(f, " {address}")?;
        }
        Ok(())
    }
}

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Six bytes in hex, with colons between.
impl FromStr for Mac {
    type Err = NotMac;

    fn from_str(text: &str) -> std::result::Result<Self, NotMac> {
        let byte = |part: &str| {
            let hex = (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
            hex.then(|| u8::from_str_radix(part, 16).ok()).flatten().ok_or(NotMac)
        };
        let bytes = text.split(':').map(byte).collect::<std::result::Result<Vec<u8>, _>>()?;
        bytes.try_into().map(Self).map_err(|_| NotMac)
    }
}

/// A text that is no Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an Ethernet address is like 02:00:00:00:00:01")]
pub struct NotMac;

/// An IP address and the length of its network's prefix in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The prefix's length in bits.
    pub prefix: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

/// Counters of an interface since it was made: packets, and bytes of layer 2 without the
/// frame check sequence. The meanings are those of `struct rtnl_link_stats64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the kernel's, by its names")]
pub struct LinkStats {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub rx_errors: u64,
    /// Received, then dropped by the host: no memory, no protocol.
    pub rx_dropped: u64,
    /// Dropped by the card, because the host gave it no buffer in time.
    pub rx_missed: u64,
    /// Overflows of the card's own queue; may overlap with the others.
    pub rx_fifo: u64,
    /// Dropped because the interface is an inactive member of a bond or team.
    pub rx_nohandler: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
    /// Dropped on the way to the card.
    pub tx_dropped: u64,
    /// Underruns of the card's own queue; part of `tx_errors`.
    pub tx_fifo: u64,
}

impl From<Stats64> for LinkStats {
    fn from(stats: Stats64) -> Self {
        Self {
            rx_packets: stats.rx_packets,
            rx_bytes: stats.rx_bytes,
            rx_errors: stats.rx_errors,
            rx_dropped: stats.rx_dropped,
            rx_missed: stats.rx_missed_errors,
            rx_fifo: stats.rx_fifo_errors,
            rx_nohandler: stats.rx_nohandler,
            tx_packets: stats.tx_packets,
            tx_bytes: stats.tx_bytes,
            tx_errors: stats.tx_errors,
            tx_dropped: stats.tx_dropped,
            tx_fifo: stats.tx_fifo_errors,
        }
    }
}

impl Netlink {
    /// The interfaces there are, with their addresses, in the kernel's order.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn interfaces(&mut self) -> Result<Vec<Interface>> {
        let mut interfaces = self.links()?;
        for (index, address) in self.addresses()? {
            if let Some(interface) = interfaces.iter_mut().find(|i| i.index == index) {
                interface.addresses.push(address);
            }
        }
        Ok(interfaces)
    }

    /// The interfaces there are, without their addresses: one question instead of two.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn links(&mut self) -> Result<Vec<Interface>> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        self.dump(&request, parse_link).map_err(|e| Error::system("list", "interfaces", e))
    }

    /// One interface by name.
    ///
    /// # Errors
    /// Where there is none of that name, the error lists those there are.
    pub fn interface(&mut self, name: &str) -> Result<Interface> {
        let mut interface = self.link(name)?;
        let addresses = self.addresses()?.into_iter();
        let of_it = addresses.filter_map(|(i, a)| (i == interface.index).then_some(a));
        interface.addresses = of_it.collect();
        Ok(interface)
    }

    /// The number of the interface of that name.
    pub(super) fn index(&mut self, name: &str) -> Result<u32> {
        self.link(name).map(|link| link.index)
    }

    /// One interface by name, without its addresses: one question instead of two.
    ///
    /// # Errors
    /// As [`interface`](Self::interface).
    pub fn link(&mut self, name: &str) -> Result<Interface> {
        match self.get(by_name(name), parse_link) {
            Ok(link) => link.ok_or_else(|| removed(name)),
            Err(e) => match e.raw_os_error() {
                // EINVAL, ERANGE: longer than a name can be.
                Some(libc::ENODEV | libc::EINVAL | libc::ERANGE) => Err(self.unknown(name)),
                _ => Err(Error::system("look up", name, e)),
            },
        }
    }

    /// The alias of an interface (`ip link set alias`), if it has one.
    ///
    /// # Errors
    /// No such interface.
    pub fn alias(&mut self, name: &str) -> Result<Option<String>> {
        let parse = |body: &[u8]| {
            let text = attribute(body.get(LINK_HEADER_BYTES..)?, IFLA_IFALIAS)?;
            Some(String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned())
        };
        self.get(by_name(name), parse).map_err(|e| Error::system("look up", name, e))
    }

    /// An interface in use as it is now, without its addresses. It is known by its index: a new name
    /// changes nothing.
    ///
    /// # Errors
    /// [`Error::Removed`] if it was removed; any other where the kernel does not answer, and the next
    /// question may tell.
    pub fn again(&mut self, interface: &Interface) -> Result<Interface> {
        let mut message = LinkMessage::default();
        message.header.index = interface.index;
        match self.get(RouteNetlinkMessage::GetLink(message), parse_link) {
            Ok(now) => now.ok_or_else(|| Error::removed(&interface.name)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                Err(Error::removed(&interface.name))
            }
            Err(error) => Err(Error::system("look up", &interface.name, error)),
        }
    }

    fn unknown(&mut self, name: &str) -> Error {
        let links = self.links().unwrap_or_default();
        let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
        Error::Usage(format!("no interface '{name}'; there are: {}", names.join(", ")))
    }

    fn addresses(&mut self) -> Result<Vec<(u32, Address)>> {
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.dump(&request, parse_address).map_err(|e| Error::system("list", "addresses", e))
    }
}

fn removed(name: &str) -> Error {
    Error::Removed {
        object: format!("interface '{name}'"),
        remedy: "it was removed just now: try again".into(),
    }
}

fn by_name(name: &str) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    RouteNetlinkMessage::GetLink(message)
}

pub(super) fn parse_link(body: &[u8]) -> Option<Interface> {
    let header = LinkHeader::parse(body).ok()?;
    let flags = header.flags;
    let mut link = Interface {
        index: header.index,
        hardware: header.link_layer_type.into(),
        up: flags.contains(LinkFlags::Up),
        running: flags.contains(LinkFlags::Up) && flags.contains(LinkFlags::Running),
        loopback: flags.contains(LinkFlags::Loopback),
        ..Interface::default()
    };
    for nla in NlasIterator::new(body.get(LINK_HEADER_BYTES..)?) {
        let Ok(nla) = nla else { break };
        let wanted = matches!(
            nla.kind(),
            IFLA_ADDRESS
                | IFLA_IFNAME
                | IFLA_MTU
                | IFLA_LINKINFO
                | IFLA_STATS64
                | IFLA_NUM_TX_QUEUES
                | IFLA_NUM_RX_QUEUES
                | IFLA_XDP
        );
        if !wanted {
            continue;
        }
        match LinkAttribute::parse_with_param(&nla, header.interface_family) {
            Ok(LinkAttribute::Address(bytes)) => link.mac = bytes.try_into().ok().map(Mac),
            Ok(LinkAttribute::IfName(name)) => link.name = name,
            Ok(LinkAttribute::Mtu(mtu)) => link.mtu = mtu,
            Ok(LinkAttribute::Stats64(stats)) => link.stats = stats.into(),
            Ok(LinkAttribute::NumTxQueues(queues)) => link.tx_queues = queues,
            Ok(LinkAttribute::NumRxQueues(queues)) => link.rx_queues = queues,
            Ok(LinkAttribute::Xdp(told)) => {
                link.native_xdp =
                    told.iter().any(|x| matches!(x, LinkXdp::DrvProgId(id) if *id > 0));
            }
            Ok(LinkAttribute::LinkInfo(infos)) => {
                link.kind = infos.iter().find_map(kind_of).unwrap_or_default();
            }
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

fn kind_of(info: &LinkInfo) -> Option<String> {
    match info {
        LinkInfo::Kind(kind) => Some(kind.to_string()),
        _ => None,
    }
}

fn parse_address(body: &[u8]) -> Option<(u32, Address)> {
    let message = AddressMessage::parse(body).ok()?;
    // On a point-to-point link IFA_ADDRESS is the peer's and IFA_LOCAL ours; IPv6 has only the
    // former where there is no peer.
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    let ip = local.or_else(|| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })?;
    let prefix = message.header.prefix_len;
    Some((message.header.index, Address { ip, prefix }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_there_and_is_one() {
        let lo = super::super::interface(None, "lo").unwrap();
        assert_eq!(lo.index, 1);
        assert!(lo.loopback);
        assert_eq!(lo.hardware, libc::ARPHRD_LOOPBACK);
        assert_eq!(lo.mac, Some(Mac::default()));
    }

    #[test]
    fn an_unknown_interface_is_said_with_those_there_are() {
        for name in ["no-such-iface", "a-name-that-is-much-too-long", ""] {
            let error = super::super::interface(None, name).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with(&format!("no interface '{name}'; there are: lo")), "{text}");
        }
    }

    #[test]
    fn an_interface_is_itself_as_long_as_it_has_its_number() {
        let lo = super::super::interface(None, "lo").unwrap();
        let mut netlink = Netlink::open(None).unwrap();
        assert_eq!(netlink.again(&lo).unwrap().index, 1);
        let renamed = Interface { name: "no-such-iface".into(), ..lo.clone() };
        assert_eq!(netlink.again(&renamed).unwrap().name, "lo", "it has another name now");
        let other = Interface { index: 1 << 30, ..lo };
        let error = netlink.again(&other).unwrap_err();
        assert!(matches!(error, Error::Removed { .. }), "another of its name: {error}");
    }

    #[test]
    fn an_interface_is_told_in_one_line() {
        let mut card = Interface {
            name: "eth0".into(),
            mac: Some(Mac([2, 0, 198, 18, 0, 1])),
            up: true,
            ..Interface::default()
        };
        assert_eq!(card.to_string(), "eth0            card      no carrier 02:00:c6:12:00:01");
        card.running = true;
        card.kind = "veth".into();
        card.addresses = vec![Address { ip: [198, 18, 0, 1].into(), prefix: 24 }];
        assert_eq!(
            card.to_string(),
            "eth0            veth      up         02:00:c6:12:00:01 198.18.0.1/24"
        );
    }

    #[test]
    fn broken_messages_are_passed_over() {
        let name = [8, 0, IFLA_IFNAME as u8, 0, b'a', b'b', 0, 0];
        let cut = [200, 0, IFLA_MTU as u8, 0, 1, 2];
        let mut stub = vec![0; LINK_HEADER_BYTES];
        for (sentence, body, found) in [
            ("a short header", &[0; 7][..], false),
            ("no name", &stub.clone()[..], false),
            ("an attribute longer than the message", &cut[..], false),
            (
                "a name before a cut attribute",
                {
                    stub.extend(name);
                    stub.extend(cut);
                    &stub[..]
                },
                true,
            ),
        ] {
            assert_eq!(parse_link(body).is_some(), found, "{sentence}");
        }
        assert_eq!(parse_address(&[2, 24]), None);
    }
}
