//! The next hop that packets share: a command sends all packets of one kind to one MAC.

use std::net::IpAddr;

use etherparse::{NetSlice, SlicedPacket};
use sluicegate::error::{Error, Result};
use sluicegate::link::{NextHop, NextHops};

/// The destination of a frame's outer IP header, if it has one.
pub fn destination(frame: &[u8]) -> Option<IpAddr> {
    match SlicedPacket::from_ethernet(frame).ok()?.net? {
        NetSlice::Ipv4(ip) => Some(ip.header().destination_addr().into()),
        NetSlice::Ipv6(ip) => Some(ip.header().destination_addr().into()),
        NetSlice::Arp(_) => None,
    }
}

/// The next hop that more than half of the destinations have, and one of these.
///
/// # Errors
/// No destination, or none that a route out of the interface leads to; next hops that differ.
/// `packets` says which packets they are.
pub fn common_hop(
    hops: &mut NextHops,
    packets: &str,
    destinations: &[IpAddr],
) -> Result<(IpAddr, NextHop)> {
    let interface = hops.interface().to_owned();
    let failed = |reason: &str| {
        Err(Error::Usage(format!(
            "cannot resolve the next-hop MAC of {packets} on {interface}: {reason}; set --dmac"
        )))
    };
    let mut found: Vec<(IpAddr, NextHop)> = Vec::new();
    for destination in destinations {
        if found.iter().all(|(other, _)| other != destination) {
            found.push((*destination, hops.to(*destination)?));
        }
    }
    let share = |hop: NextHop| found.iter().filter(|(_, other)| *other == hop).count();
    match (found.iter().find(|(_, hop)| share(*hop) * 2 > found.len()), &found[..]) {
        (Some(most), _) => Ok(*most),
        (None, [(a, _), (b, _), ..]) => failed(&format!("{a} and {b} have different next hops")),
        (None, _) => failed("they have no IP destination"),
    }
}
