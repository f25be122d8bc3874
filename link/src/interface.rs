//! Attributes and counters of an interface, from rtnetlink.
//!
//! Attributes are parsed one by one, and only those needed, so an unusual attribute of an unusual device
//! hides no other. Source: linux/if_link.h, `struct rtnl_link_stats64`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::Netlink;
use super::netlink::{Body, attribute, attributes, half, ip, text, word};
use sluicegate_base::error::{Error, Result};

/// Bytes of a `struct ifinfomsg`, and of a `struct ifaddrmsg`.
const LINK_HEADER_BYTES: usize = 16;
const ADDRESS_HEADER_BYTES: usize = 8;
/// In `IFLA_XDP`, the program that the driver runs (linux/if_link.h).
const IFLA_XDP_DRV_PROG_ID: u16 = 5;

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
    /// Its Ethernet address, if it has one.
    pub mac: Option<Mac>,
    /// Maximum bytes of a packet after the link-layer header.
    pub mtu: u32,
    /// True if it is switched on (`IFF_UP`).
    pub up: bool,
    /// True if it is on and has a carrier (`IFF_RUNNING`).
    pub running: bool,
    /// True if it is a loopback interface.
    pub loopback: bool,
    /// Its number of receive queues at creation.
    pub rx_queues: u32,
    /// Its number of transmit queues at creation.
    pub tx_queues: u32,
    /// True if its driver runs an XDP program on received packets (reported since Linux 4.19).
    pub native_xdp: bool,
    /// Its IP addresses.
    pub addresses: Vec<Address>,
    /// Its counters since its creation.
    pub stats: LinkStats,
}

impl Interface {
    /// Returns "up", "no carrier" or "down".
    pub fn state(&self) -> &'static str {
        match (self.up, self.running) {
            (true, true) => "up",
            (true, false) => "no carrier",
            (false, _) => "down",
        }
    }
}

/// Formats one line: name, kind, state, hardware and IP addresses.
impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.kind.as_str(), self.loopback) {
            ("", true) => "loopback",
            ("", false) => "card",
            (kind, _) => kind,
        };
        write!(f, "{:<15} {kind:<9} {:<10}", self.name, self.state())?;
        write!(f, " {:17}", self.mac.map(|mac| mac.to_string()).unwrap_or_default())?;
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

/// Parses six bytes in hexadecimal, separated by colons.
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

/// The error for a text that is not an Ethernet address.
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

/// Counters of an interface since its creation: packets, and bytes of layer 2 without the frame check
/// sequence. They are defined by `struct rtnl_link_stats64`.
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

impl LinkStats {
    /// Parses a `struct rtnl_link_stats64`. A word that an older kernel lacks is zero.
    fn parse(value: &[u8]) -> Self {
        let words = value.as_chunks().0;
        let at = |index: usize| words.get(index).map_or(0, |word| u64::from_ne_bytes(*word));
        Self {
            rx_packets: at(0),
            tx_packets: at(1),
            rx_bytes: at(2),
            tx_bytes: at(3),
            rx_errors: at(4),
            tx_errors: at(5),
            rx_dropped: at(6),
            tx_dropped: at(7),
            rx_fifo: at(14),
            rx_missed: at(15),
            tx_fifo: at(18),
            rx_nohandler: at(23),
        }
    }
}

impl Netlink {
    /// Returns all interfaces with their addresses, in the kernel's order.
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

    /// Returns all interfaces without their addresses, by one request instead of two.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn links(&mut self) -> Result<Vec<Interface>> {
        let links = self.dump(libc::RTM_GETLINK, &link(0), parse_link);
        links.map_err(|e| Error::system("list", "interfaces", e))
    }

    /// Returns one interface by name.
    ///
    /// # Errors
    /// No interface has this name; the error lists all names.
    pub fn interface(&mut self, name: &str) -> Result<Interface> {
        let mut interface = self.link(name)?;
        let addresses = self.addresses()?.into_iter();
        let of_it = addresses.filter_map(|(i, a)| (i == interface.index).then_some(a));
        interface.addresses = of_it.collect();
        Ok(interface)
    }

    /// Returns the number of the interface with this name.
    pub(super) fn index(&mut self, name: &str) -> Result<u32> {
        self.link(name).map(|link| link.index)
    }

    /// Returns one interface by name without its addresses, by one request instead of two.
    ///
    /// # Errors
    /// The errors of [`interface`](Self::interface).
    pub fn link(&mut self, name: &str) -> Result<Interface> {
        match self.get(libc::RTM_GETLINK, &by_name(name), parse_link) {
            Ok(link) => link.ok_or_else(|| Error::removed(format!("interface '{name}'"))),
            Err(e) => match e.raw_os_error() {
                // EINVAL, ERANGE: the name is too long.
                Some(libc::ENODEV | libc::EINVAL | libc::ERANGE) => Err(self.unknown(name)),
                _ => Err(Error::system("look up", name, e)),
            },
        }
    }

    /// Returns pairs of an interface and one directly above it: its bridge or bond, a VLAN or tunnel on it.
    pub(super) fn lower_links(&mut self) -> Result<Vec<(u32, u32)>> {
        let pairs = self.dump(libc::RTM_GETLINK, &link(0), parse_pairs);
        Ok(pairs.map_err(|e| Error::system("list", "interfaces", e))?.concat())
    }

    /// Returns the alias of an interface (`ip link set alias`), if it has one.
    ///
    /// # Errors
    /// No such interface.
    pub fn alias(&mut self, name: &str) -> Result<Option<String>> {
        let parse =
            |body: &[u8]| attribute(body.get(LINK_HEADER_BYTES..)?, libc::IFLA_IFALIAS).map(text);
        let alias = self.get(libc::RTM_GETLINK, &by_name(name), parse);
        alias.map_err(|e| Error::system("look up", name, e))
    }

    /// Reads an interface again, without its addresses. It is identified by its index, so a new name has no
    /// effect.
    ///
    /// # Errors
    /// [`Error::Removed`] if it was removed. Another error means that the kernel did not answer; the next
    /// call may succeed.
    pub fn again(&mut self, interface: &Interface) -> Result<Interface> {
        match self.get(libc::RTM_GETLINK, &link(interface.index), parse_link) {
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
        Error::Usage(format!("no interface '{name}'; available: {}", names.join(", ")))
    }

    fn addresses(&mut self) -> Result<Vec<(u32, Address)>> {
        let addresses = self.dump(libc::RTM_GETADDR, &Body::of(&[0, 0]), parse_address);
        addresses.map_err(|e| Error::system("list", "addresses", e))
    }
}

/// Creates a `struct ifinfomsg` with an interface's number; 0 for all, or for one named by an attribute.
pub(super) fn link(index: u32) -> Body {
    Body::of(&[0, index, 0, 0])
}

fn by_name(name: &str) -> Body {
    link(0).with_text(libc::IFLA_IFNAME, name)
}

pub(super) fn parse_link(body: &[u8]) -> Option<Interface> {
    let flags = word(body, 8)?.cast_signed();
    let has = |flag: i32| flags & flag != 0;
    let mut link = Interface {
        hardware: half(body, 2)?,
        index: word(body, 4)?,
        up: has(libc::IFF_UP),
        running: has(libc::IFF_UP) && has(libc::IFF_RUNNING),
        loopback: has(libc::IFF_LOOPBACK),
        ..Interface::default()
    };
    for (kind, value) in attributes(body.get(LINK_HEADER_BYTES..)?) {
        let number = || word(value, 0).unwrap_or_default();
        match kind {
            libc::IFLA_ADDRESS => link.mac = value.try_into().ok().map(Mac),
            libc::IFLA_IFNAME => link.name = text(value),
            libc::IFLA_MTU => link.mtu = number(),
            libc::IFLA_STATS64 => link.stats = LinkStats::parse(value),
            libc::IFLA_NUM_TX_QUEUES => link.tx_queues = number(),
            libc::IFLA_NUM_RX_QUEUES => link.rx_queues = number(),
            libc::IFLA_XDP => {
                let program = attribute(value, IFLA_XDP_DRV_PROG_ID).and_then(|id| word(id, 0));
                link.native_xdp = program.is_some_and(|id| id > 0);
            }
            libc::IFLA_LINKINFO => {
                link.kind = attribute(value, libc::IFLA_INFO_KIND).map(text).unwrap_or_default();
            }
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

/// Parses an interface; returns pairs of an interface and one directly above it.
fn parse_pairs(body: &[u8]) -> Option<Vec<(u32, u32)>> {
    let (index, attributes) = (word(body, 4)?, body.get(LINK_HEADER_BYTES..)?);
    let number = |kind| attribute(attributes, kind).and_then(|value| word(value, 0));
    // One in another namespace has its number there.
    let is_local = attribute(attributes, libc::IFLA_LINK_NETNSID).is_none();
    let lower = number(libc::IFLA_LINK).filter(|it| is_local && *it != index);
    let upper = number(libc::IFLA_MASTER).map(|upper| (index, upper));
    Some(upper.into_iter().chain(lower.map(|lower| (lower, index))).collect())
}

fn parse_address(body: &[u8]) -> Option<(u32, Address)> {
    let (prefix, index) = (*body.get(1)?, word(body, 4)?);
    let attributes = body.get(ADDRESS_HEADER_BYTES..)?;
    // On a point-to-point link IFA_ADDRESS is the peer's address and IFA_LOCAL this host's. Without a peer
    // IPv6 has only the former.
    let local = attribute(attributes, libc::IFA_LOCAL);
    let ip = ip(local.or_else(|| attribute(attributes, libc::IFA_ADDRESS))?)?;
    Some((index, Address { ip, prefix }))
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
            assert!(text.starts_with(&format!("no interface '{name}'; available: lo")), "{text}");
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
        let name = [8, 0, libc::IFLA_IFNAME as u8, 0, b'a', b'b', 0, 0];
        let cut = [200, 0, libc::IFLA_MTU as u8, 0, 1, 2];
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
