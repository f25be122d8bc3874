//! The hosts, interfaces and links of each shape of lab.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::{Address, Mac};
use sluicegate_base::error::{Error, Result};

/// The topology of a lab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// `left` and `right`, joined by one link.
    #[default]
    Pair,
    /// `left`, `middle` and `right` in a row; `middle` has no addresses, and its kernel does not forward.
    Line,
    /// `left`, `right`, `upper` and `lower`, each joined to `middle`, which is like that of a line.
    Star,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pair => "pair",
            Self::Line => "line",
            Self::Star => "star",
        })
    }
}

impl FromStr for Shape {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "pair" => Ok(Self::Pair),
            "line" => Ok(Self::Line),
            "star" => Ok(Self::Star),
            _ => Err(Error::Usage(format!("'{text}' is no lab's shape: use pair, line or star"))),
        }
    }
}

/// A host of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// "left", "middle", "right", "upper" or "lower".
    pub name: &'static str,
    /// Its interfaces besides loopback.
    pub interfaces: &'static [HostInterface],
}

/// An interface of a lab's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostInterface {
    /// Its name: "left0".
    pub name: &'static str,
    /// Its Ethernet address.
    pub mac: Mac,
    /// The number of its host in the lab's networks, and that of its gateway; `None` without addresses.
    numbers: Option<[u8; 2]>,
}

impl HostInterface {
    /// Returns its IP addresses: 198.18.0.N/24 (RFC 2544) and 2001:db8:18::N/64 (RFC 3849).
    pub fn addresses(&self) -> Vec<Address> {
        let Some([number, _]) = self.numbers else { return Vec::new() };
        let [v4, v6] = ips(number);
        vec![Address { ip: v4, prefix: 24 }, Address { ip: v6, prefix: 64 }]
    }

    /// Returns its routes, prefix and gateway: the rest of 198.18.0.0/15 and 2001:db8::/32, through another
    /// host.
    pub(super) fn routes(&self) -> Vec<Route> {
        let Some([_, other]) = self.numbers else { return Vec::new() };
        let [v4, v6] = ips(other);
        let tests = Address { ip: Ipv4Addr::new(198, 18, 0, 0).into(), prefix: 15 };
        let examples = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0).into();
        let examples = Address { ip: examples, prefix: 32 };
        vec![(tests, v4), (examples, v6)]
    }
}

/// A prefix and its gateway.
pub(super) type Route = (Address, IpAddr);

/// Returns the addresses of a lab's host.
fn ips(number: u8) -> [IpAddr; 2] {
    let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, number.into());
    [Ipv4Addr::new(198, 18, 0, number).into(), v6.into()]
}

/// A link: the host and interface at each end.
pub(super) type Link = [(&'static str, &'static HostInterface); 2];

/// Returns a locally administered address with 198.18.0 and a number, like the IP addresses.
const fn mac(number: u8) -> Mac {
    Mac([0x02, 0x00, 198, 18, 0, number])
}

const LEFT0: HostInterface = HostInterface { name: "left0", mac: mac(1), numbers: Some([1, 2]) };
const RIGHT0: HostInterface = HostInterface { name: "right0", mac: mac(2), numbers: Some([2, 1]) };
const MIDDLE0: HostInterface = HostInterface { name: "middle0", mac: mac(0x10), numbers: None };
const MIDDLE1: HostInterface = HostInterface { name: "middle1", mac: mac(0x11), numbers: None };
const UPPER0: HostInterface = HostInterface { name: "upper0", mac: mac(3), numbers: Some([3, 4]) };
const LOWER0: HostInterface = HostInterface { name: "lower0", mac: mac(4), numbers: Some([4, 3]) };
const MIDDLE2: HostInterface = HostInterface { name: "middle2", mac: mac(0x12), numbers: None };
const MIDDLE3: HostInterface = HostInterface { name: "middle3", mac: mac(0x13), numbers: None };

const LEFT: Host = Host { name: "left", interfaces: &[LEFT0] };
const MIDDLE: Host = Host { name: "middle", interfaces: &[MIDDLE0, MIDDLE1] };
const RIGHT: Host = Host { name: "right", interfaces: &[RIGHT0] };
const UPPER: Host = Host { name: "upper", interfaces: &[UPPER0] };
const LOWER: Host = Host { name: "lower", interfaces: &[LOWER0] };
const HUB: Host = Host { name: "middle", interfaces: &[MIDDLE0, MIDDLE1, MIDDLE2, MIDDLE3] };

impl Shape {
    /// Returns the hosts, from left to right.
    pub fn hosts(self) -> &'static [Host] {
        match self {
            Self::Pair => &[LEFT, RIGHT],
            Self::Line => &[LEFT, MIDDLE, RIGHT],
            Self::Star => &[LEFT, RIGHT, UPPER, LOWER, HUB],
        }
    }

    /// Returns the links, from left to right.
    pub(super) fn links(self) -> &'static [Link] {
        match self {
            Self::Pair => &[[("left", &LEFT0), ("right", &RIGHT0)]],
            Self::Line => &[
                [("left", &LEFT0), ("middle", &MIDDLE0)],
                [("middle", &MIDDLE1), ("right", &RIGHT0)],
            ],
            Self::Star => &[
                [("left", &LEFT0), ("middle", &MIDDLE0)],
                [("right", &RIGHT0), ("middle", &MIDDLE1)],
                [("upper", &UPPER0), ("middle", &MIDDLE2)],
                [("lower", &LOWER0), ("middle", &MIDDLE3)],
            ],
        }
    }
}

/// Returns the name of a host's namespace.
pub(super) fn netns(lab: &str, host: &str) -> String {
    format!("{lab}-{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_interface_of_a_host_is_one_end_of_one_link() {
        for shape in [Shape::Pair, Shape::Line, Shape::Star] {
            let ends: Vec<_> = shape.links().iter().flatten().collect();
            for host in shape.hosts() {
                for interface in host.interfaces {
                    let end = (host.name, interface);
                    assert_eq!(ends.iter().filter(|e| ***e == end).count(), 1, "{shape} {end:?}");
                }
            }
            let interfaces = shape.hosts().iter().map(|host| host.interfaces.len());
            assert_eq!(interfaces.sum::<usize>(), ends.len(), "{shape}");
            assert_eq!(shape.to_string().parse::<Shape>().unwrap(), shape);
        }
    }

    #[test]
    fn addresses_are_of_the_networks_set_aside_for_tests() {
        let text: Vec<String> = LEFT0.addresses().iter().map(ToString::to_string).collect();
        assert_eq!(text, ["198.18.0.1/24", "2001:db8:18::1/64"]);
        assert_eq!(RIGHT0.mac.to_string(), "02:00:c6:12:00:02");
        assert!(MIDDLE0.addresses().is_empty() && MIDDLE0.routes().is_empty());
    }

    #[test]
    fn routes_lead_through_another_host_of_the_lab() {
        let hosts = Shape::Star.hosts();
        for host in hosts.iter().filter(|host| host.name != "middle") {
            let interface = host.interfaces[0];
            for (prefix, ip) in interface.routes() {
                let has = |it: &&HostInterface| it.addresses().iter().any(|a| a.ip == ip);
                let gateway = hosts.iter().flat_map(|host| host.interfaces).find(has).unwrap();
                assert_ne!(gateway.name, interface.name, "{prefix}");
            }
        }
    }
}
