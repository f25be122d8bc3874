//! Next hops: the Ethernet destination of packets to an IP address on an interface.
//!
//! ```text
//!   destination --> route --> gateway, or the destination itself --> neighbour table --> MAC
//!                                             resolved by the kernel: ARP, neighbour discovery
//! ```
//!
//! The kernel's own tables decide, so packets take the same path as the host's own. An unknown neighbour gets
//! an empty datagram, which makes the kernel resolve it. `NTF_USE` would do this without a datagram, but
//! needs `CAP_NET_ADMIN`, and for IPv6 a link-local address, because the request's source is the datagram's
//! source or that address (net/ipv6/ndisc.c, `ndisc_solicit`, Linux 6.18). Sources: rtnetlink(7), arp(7),
//! net/ipv4/route.c (`inet_rtm_getroute`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use libc::{EACCES, EHOSTUNREACH, EINVAL, ENETDOWN, ENETUNREACH, ENODEV, ESRCH};
use libc::{NUD_DELAY, NUD_NOARP, NUD_PERMANENT, NUD_PROBE, NUD_REACHABLE, NUD_STALE};
use netlink_sys::Socket;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::netlink::{Body, attribute, family, half, ip, subscribe, word};
use super::{Interface, Mac, Netlink, netns};
use sluicegate_base::error::{Error, Result};

/// The time to wait for an answer. The kernel gives up after three requests, one second apart
/// (`mcast_solicit`, `retrans_time_ms`).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The port of the discard service, which does not answer.
const DISCARD: u16 = 9;
/// Bytes of a `struct rtmsg`, and of a `struct ndmsg` (linux/rtnetlink.h, linux/neighbour.h).
pub(crate) const HEADER_BYTES: usize = 12;

/// The states in which the kernel uses an entry's address (include/net/neighbour.h).
const NUD_VALID: u16 =
    NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_PROBE | NUD_STALE | NUD_DELAY;

/// No route; one of the types unreachable, prohibit and blackhole; an interface without this protocol.
const NO_ROUTE: [i32; 7] = [ENETUNREACH, EHOSTUNREACH, ESRCH, EACCES, EINVAL, ENODEV, ENETDOWN];

/// The receiver of packets on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// A fixed Ethernet address: broadcast, multicast, or the host itself.
    Mac(Mac),
    /// The neighbour with this IP address: the gateway or the destination.
    Neighbour(IpAddr),
}

/// Finds the next hops of packets that leave by one interface.
///
/// ```no_run
/// use sluicegate_link::{NextHops, interface};
///
/// let mut hops = NextHops::open(None, &interface(None, "eth0")?)?;
/// let mac = hops.mac("198.18.0.2".parse().expect("an address"))?; // of the gateway, or the host itself
/// println!("{mac}");
/// # Ok::<(), sluicegate_base::Error>(())
/// ```
#[derive(Debug)]
pub struct NextHops {
    netlink: Netlink,
    netns: Option<String>,
    interface: Interface,
}

impl NextHops {
    /// Opens a query for packets that leave by `interface`, in the namespace `netns`.
    ///
    /// # Errors
    /// The errors of [`Netlink::open`].
    pub fn open(netns: Option<&str>, interface: &Interface) -> Result<Self> {
        let netlink = Netlink::open(netns)?;
        Ok(Self { netlink, netns: netns.map(str::to_owned), interface: interface.clone() })
    }

    /// Returns the name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface.name
    }

    /// Returns the next hop of packets to `destination`.
    ///
    /// # Errors
    /// No route to it leaves by the interface. The error contains the route that the kernel takes.
    pub fn to(&mut self, destination: IpAddr) -> Result<NextHop> {
        if self.interface.loopback {
            return Ok(NextHop::Mac(self.interface.mac.unwrap_or_default()));
        }
        if let Some(mac) = group(destination) {
            return Ok(NextHop::Mac(mac));
        }
        let route = match self.route(destination, None)? {
            Some(route) if route.check_target(&self.interface) => route,
            Some(route) if route.kind == libc::RTN_LOCAL => {
                return Err(self.unresolved(destination, "it is an address of this host"));
            }
            other => match self.equal_route(destination)? {
                Some(route) => route,
                None => return Err(self.no_route(destination, other)),
            },
        };
        Ok(match route.kind {
            libc::RTN_BROADCAST => NextHop::Mac(Mac([0xff; 6])),
            _ => NextHop::Neighbour(route.gateway.unwrap_or(destination)),
        })
    }

    /// Returns the Ethernet address of a next hop, if the kernel knows it.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn known_mac(&mut self, hop: NextHop) -> Result<Option<Mac>> {
        match hop {
            NextHop::Mac(mac) => Ok(Some(mac)),
            NextHop::Neighbour(address) => Ok(self.neighbour(address)?.and_then(|entry| entry.mac)),
        }
    }

    /// Returns the Ethernet address of a next hop as [`known_mac`](Self::known_mac) does. Also makes the kernel
    /// ask a neighbour that it does not know, or has not heard of for a while, without waiting for the answer.
    ///
    /// # Errors
    /// The kernel does not answer; the interface is down.
    pub fn confirmed_mac(&mut self, hop: NextHop) -> Result<Option<Mac>> {
        let NextHop::Neighbour(address) = hop else { return self.known_mac(hop) };
        let found = self.neighbour(address)?;
        if found.as_ref().is_none_or(|it| it.stale || it.mac.is_none()) {
            self.send_probe(address)?;
        }
        Ok(found.and_then(|it| it.mac))
    }

    /// Returns the Ethernet address of the next hop of packets to `destination`. The kernel resolves it if
    /// necessary.
    ///
    /// # Errors
    /// The errors of [`to`](Self::to); the neighbour does not answer (after 3 s).
    pub fn mac(&mut self, destination: IpAddr) -> Result<Mac> {
        let hop = self.to(destination)?;
        if let Some(mac) = self.known_mac(hop)? {
            return Ok(mac);
        }
        let NextHop::Neighbour(address) = hop else { return Ok(Mac::default()) };
        match self.ask(address)? {
            Some(mac) => Ok(mac),
            None => Err(self.silent(destination, address)),
        }
    }

    /// Makes the kernel resolve a neighbour, and waits until it has an answer or has given up.
    fn ask(&mut self, address: IpAddr) -> Result<Option<Mac>> {
        // Subscribed before the request, so that no change is missed.
        let changes = subscribe(self.netns.as_deref(), libc::RTMGRP_NEIGH, |_| Ok(()))?;
        self.send_probe(address)?;
        let end = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match self.neighbour(address)? {
                Some(Neighbour { mac: Some(mac), .. }) => return Ok(Some(mac)),
                Some(Neighbour { failed: true, .. }) => return Ok(None),
                _ => {}
            }
            if !wait(&changes, end).map_err(|e| Error::system("wait for", "neighbours", e))? {
                return Ok(None);
            }
        }
    }

    fn send_probe(&self, address: IpAddr) -> Result<()> {
        let name = &self.interface.name;
        let sent = netns::run_in(self.netns.as_deref(), || Ok(probe(&self.interface, address)))?;
        sent.map_err(|e| Error::system("ask for neighbour", format!("{address} on {name}"), e))
    }

    /// Returns the entry of an address in the interface's neighbour table.
    fn neighbour(&mut self, address: IpAddr) -> Result<Option<Neighbour>> {
        let index = self.interface.index;
        let parse = |body: &[u8]| Neighbour::parse(body, index, address);
        let request = neighbour(address, 0, libc::NUD_NONE);
        let found = self.netlink.dump(libc::RTM_GETNEIGH, &request, parse);
        let found = found.map_err(|e| Error::system("list", "neighbours", e))?;
        Ok(found.into_iter().next())
    }

    /// Returns the kernel's route to an address, restricted to one interface if given; `None` if there is
    /// none, or it rejects packets.
    fn route(&mut self, to: IpAddr, out_of: Option<u32>) -> Result<Option<Route>> {
        self.get_route(to, out_of, 0, Route::parse)
    }

    /// Returns a route to an address out of the interface that is as specific as the kernel's choice: the
    /// other of two default routes, or one of several next hops.
    fn equal_route(&mut self, to: IpAddr) -> Result<Option<Route>> {
        let index = Some(self.interface.index);
        // With this flag the kernel does not invent a route for a request with an interface.
        let bits = |body: &[u8]| body.get(1).copied();
        let taken = self.get_route(to, None, libc::RTM_F_FIB_MATCH, bits)?;
        let ours = self.get_route(to, index, libc::RTM_F_FIB_MATCH, bits)?;
        if taken.is_none() || taken != ours {
            return Ok(None);
        }
        let route = self.route(to, index)?;
        Ok(route.filter(|route| route.check_target(&self.interface)))
    }

    fn get_route<T>(
        &mut self,
        to: IpAddr,
        out_of: Option<u32>,
        flags: u32,
        parse: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Option<T>> {
        let bits = if to.is_ipv4() { 32 } else { 128 };
        let mut request = Body::begin([family(to), bits, 0, 0], &[0, flags]);
        request = request.with_ip(libc::RTA_DST, to);
        if let Some(index) = out_of {
            request = request.with_number(libc::RTA_OIF, index);
        }
        match self.netlink.get(libc::RTM_GETROUTE, &request, parse) {
            Ok(route) => Ok(route),
            Err(error) => match error.raw_os_error() {
                Some(errno) if NO_ROUTE.contains(&errno) => Ok(None),
                _ => Err(Error::system("look up the route to", to.to_string(), error)),
            },
        }
    }

    fn no_route(&mut self, destination: IpAddr, taken: Option<Route>) -> Error {
        let name = &self.interface.name;
        let links = self.netlink.links().unwrap_or_default();
        let other = taken.and_then(|route| links.into_iter().find(|link| link.index == route.out));
        let reason = match other {
            _ if !self.interface.up => {
                return Error::Usage(format!(
                    "cannot resolve the next-hop MAC of {destination} on {name}: the interface is \
                     down: ip link set {name} up"
                ));
            }
            Some(other) => format!("its route leaves by {}", other.name),
            None => format!("no route to it leaves by {name}"),
        };
        self.unresolved(destination, &reason)
    }

    /// Makes the error for a neighbour that does not answer.
    fn silent(&self, destination: IpAddr, neighbour: IpAddr) -> Error {
        let reason = match neighbour == destination {
            true => "no neighbour answers".into(),
            false => format!("its gateway {neighbour} does not answer"),
        };
        let remedy = format!(
            "check that a host on that link is up and has {neighbour}, or set the destination MAC"
        );
        self.unresolved_with_remedy(destination, &reason, &remedy)
    }

    fn unresolved(&self, destination: IpAddr, reason: &str) -> Error {
        let remedy = "set the destination MAC or choose an on-link address";
        self.unresolved_with_remedy(destination, reason, remedy)
    }

    fn unresolved_with_remedy(&self, destination: IpAddr, reason: &str, remedy: &str) -> Error {
        let name = &self.interface.name;
        let text = format!(
            "cannot resolve the next-hop MAC of {destination} on {name}: {reason}; {remedy}"
        );
        Error::Usage(text)
    }
}

/// A route, resolved by the kernel for one address.
#[derive(Debug)]
struct Route {
    /// The type, an `RTN_` number.
    kind: u8,
    /// The index of the outgoing interface.
    out: u32,
    gateway: Option<IpAddr>,
}

impl Route {
    fn parse(body: &[u8]) -> Option<Self> {
        let (kind, attributes) = (*body.get(7)?, body.get(HEADER_BYTES..)?);
        let out = attribute(attributes, libc::RTA_OIF).and_then(|index| word(index, 0));
        // An IPv4 route may have an IPv6 gateway (RFC 5549): a `struct rtvia`, with the family first.
        let via = || attribute(attributes, libc::RTA_VIA)?.get(2..);
        let gateway = attribute(attributes, libc::RTA_GATEWAY).or_else(via).and_then(ip);
        Some(Self { kind, out: out.unwrap_or_default(), gateway })
    }

    fn check_target(&self, interface: &Interface) -> bool {
        self.out == interface.index && self.kind != libc::RTN_LOCAL
    }
}

/// An entry of the neighbour table.
#[derive(Debug)]
struct Neighbour {
    /// Its Ethernet address, while it is valid.
    mac: Option<Mac>,
    /// True if the kernel's requests had no answer.
    failed: bool,
    /// True if its address is valid, but was not confirmed for a while.
    stale: bool,
}

impl Neighbour {
    fn parse(body: &[u8], index: u32, address: IpAddr) -> Option<Self> {
        let (of, state) = (word(body, 4)?, half(body, 8)?);
        let attributes = body.get(HEADER_BYTES..)?;
        if of != index || attribute(attributes, libc::NDA_DST).and_then(ip) != Some(address) {
            return None;
        }
        let mac = attribute(attributes, libc::NDA_LLADDR).and_then(|mac| mac.try_into().ok());
        // An address under confirmation is still in use.
        let mac = mac.filter(|_| state & NUD_VALID != 0).map(Mac);
        Some(Self { mac, failed: state == libc::NUD_FAILED, stale: state == NUD_STALE })
    }
}

/// Creates a `struct ndmsg`: an entry for an address, in a state.
pub(super) fn neighbour(ip: IpAddr, index: u32, state: u16) -> Body {
    let [low, high] = state.to_ne_bytes();
    Body::begin([family(ip), 0, 0, 0], &[index, u32::from_ne_bytes([low, high, 0, 0])])
}

/// Sends a neighbour an empty datagram, which leaves by the interface and crosses no router.
fn probe(interface: &Interface, neighbour: IpAddr) -> io::Result<()> {
    let (from, to): (IpAddr, SocketAddr) = match neighbour {
        IpAddr::V4(address) => (Ipv4Addr::UNSPECIFIED.into(), (address, DISCARD).into()),
        // A link-local address needs its interface.
        IpAddr::V6(address) => (
            Ipv6Addr::UNSPECIFIED.into(),
            SocketAddrV6::new(address, DISCARD, 0, interface.index).into(),
        ),
    };
    let socket = UdpSocket::bind((from, 0))?;
    setsockopt(&socket, sockopt::BindToDevice, &interface.name.as_str().into())?;
    setsockopt(&socket, sockopt::DontRoute, &true)?;
    socket.send_to(&[], to).map(drop)
}

/// Returns the Ethernet address of a multicast or broadcast address (RFC 1112, RFC 2464).
fn group(address: IpAddr) -> Option<Mac> {
    match address {
        IpAddr::V4(address) if address.is_broadcast() => Some(Mac([0xff; 6])),
        IpAddr::V4(address) if address.is_multicast() => {
            let [_, b, c, d] = address.octets();
            Some(Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
        }
        IpAddr::V6(address) if address.is_multicast() => {
            let [.., a, b, c, d] = address.octets();
            Some(Mac([0x33, 0x33, a, b, c, d]))
        }
        _ => None,
    }
}

/// Waits for a change, and reads all messages about it; false if there is none until `end`.
fn wait(changes: &Socket, end: Instant) -> io::Result<bool> {
    let left = end.saturating_duration_since(Instant::now());
    // Rounded up, so that the last wait does not spin.
    let timeout = PollTimeout::try_from(left.as_millis() as u64 + 1).unwrap_or(PollTimeout::MAX);
    let mut fds = [PollFd::new(changes.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, timeout) {
        Ok(0) => return Ok(Instant::now() < end),
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    // The content does not matter; a dropped message (ENOBUFS) was a change, too.
    let mut buffer = [0; 4096];
    while changes.recv(&mut &mut buffer[..], 0).is_ok() {}
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_mac_of_its_own() {
        for (sentence, address, mac) in [
            ("broadcast", "255.255.255.255", Some("ff:ff:ff:ff:ff:ff")),
            ("IPv4 multicast, its lower 23 bits", "239.129.2.3", Some("01:00:5e:01:02:03")),
            ("IPv6 multicast, its lower 32 bits", "ff02::1:ff00:2", Some("33:33:ff:00:00:02")),
            ("one host", "198.18.0.2", None),
            ("one host by IPv6", "2001:db8:18::2", None),
        ] {
            let found = group(address.parse().unwrap()).map(|mac| mac.to_string());
            assert_eq!(found.as_deref(), mac, "{sentence}");
        }
    }

    #[test]
    fn broken_messages_are_passed_over() {
        let address = "198.18.0.2".parse().unwrap();
        for body in [&[][..], &[2], &[2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0]] {
            assert!(Route::parse(body).is_none(), "{body:?}");
            assert!(Neighbour::parse(body, 1, address).is_none(), "{body:?}");
        }
    }
}
