//! The next hop that packets share: a command sends all packets of one kind to one MAC.

use std::collections::BTreeSet;
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

/// Returns the next hop that most destinations have, and one of these. Up to half of the destinations
/// may have none: packets of both directions also go to addresses of this host.
///
/// # Errors
/// No destination, or too few to which a route out of the interface leads; next hops that differ.
/// `packets` names the packets.
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
    let distinct: BTreeSet<IpAddr> = destinations.iter().copied().collect();
    let (mut found, mut unresolved) = (Vec::new(), Vec::new());
    for destination in distinct {
        match hops.to(destination) {
            Ok(hop) => found.push((destination, hop)),
            Err(error) => unresolved.push(error),
        }
    }
    if unresolved.len() > found.len() {
        return Err(unresolved.swap_remove(0));
    }
    let share = |hop: NextHop| found.iter().filter(|(_, other)| *other == hop).count();
    match (found.iter().find(|(_, hop)| share(*hop) * 2 > found.len()), &found[..]) {
        (Some(most), _) => Ok(*most),
        (None, [(a, _), (b, _), ..]) => failed(&format!("{a} and {b} have different next hops")),
        (None, _) => failed("they have no IP destination"),
    }
}
