//! A check for an interface with a default route.

use sluicegate_base::error::{Error, Result};

use super::Netlink;
use super::netlink::{Body, attribute, half, word};
use super::next_hop::HEADER_BYTES;

/// Returns true if a default route of the host leaves by this interface, or by one above it: a bridge or a bond that it
/// belongs to, a VLAN or a tunnel on it.
///
/// # Errors
/// No such interface; the kernel does not answer.
pub fn carries_default_route(netns: Option<&str>, interface: &str) -> Result<bool> {
    let mut netlink = Netlink::open(netns)?;
    let index = netlink.index(interface)?;
    let stack = with_upper(&netlink.lower_links()?, index);
    let all = Body::begin([0; 4], &[0, 0]);
    let routes = netlink.dump(libc::RTM_GETROUTE, &all, |body| default_route(body, &stack));
    Ok(!routes.map_err(|e| Error::system("list", "routes", e))?.is_empty())
}

/// Returns an interface and all above it, from pairs of an interface and one directly above it.
fn with_upper(pairs: &[(u32, u32)], index: u32) -> Vec<u32> {
    let mut stack = vec![index];
    let mut next = 0;
    while let Some(lower) = stack.get(next).copied() {
        next += 1;
        // The ends of a veth pair are above each other, but frames pass from one to the other.
        let is_pair = |upper| pairs.contains(&(upper, lower)) && pairs.contains(&(lower, upper));
        let upper = pairs.iter().filter(|it| it.0 == lower && !is_pair(it.1)).map(|it| it.1);
        let new: Vec<_> = upper.filter(|it| !stack.contains(it)).collect();
        stack.extend(new);
    }
    stack
}

/// Parses a message; returns `Some` for a default route with a next hop that is, or may be, on one of these interfaces.
fn default_route(body: &[u8], interfaces: &[u32]) -> Option<()> {
    const NEXT_HOP_BYTES: usize = 8;
    /// linux/rtnetlink.h
    const RTA_NH_ID: u16 = 30;
    let (bits, kind) = (*body.get(1)?, *body.get(7)?);
    let attributes = body.get(HEADER_BYTES..)?;
    let one = attribute(attributes, libc::RTA_OIF).and_then(|index| word(index, 0));
    let many = attribute(attributes, libc::RTA_MULTIPATH);
    // A nexthop object, whose interfaces the message omits (net.ipv4.nexthop_compat_mode=0): one of these
    // may be among them.
    let unknown = one.is_none() && many.is_none() && attribute(attributes, RTA_NH_ID).is_some();
    // Next hops are `struct rtnexthop`s, which begin with their length and have the interface in the second
    // word.
    let mut rest = many.unwrap_or_default();
    let several = std::iter::from_fn(|| {
        let out = word(rest, 4)?;
        let bytes = usize::from(half(rest, 0)?).max(NEXT_HOP_BYTES).next_multiple_of(4);
        rest = rest.get(bytes..).unwrap_or_default();
        Some(out)
    });
    let leaves = one.into_iter().chain(several).any(|out| interfaces.contains(&out));
    let is_default = bits == 0 && kind == libc::RTN_UNICAST;
    (is_default && (leaves || unknown)).then_some(())
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    #[test]
    fn a_default_route_is_found_by_its_next_hops() {
        let route = |bits, kind| {
            let rest = u32::from_ne_bytes([libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, 0, kind]);
            Body::begin([libc::AF_INET as u8, bits, 0, 0], &[rest, 0])
        };
        let hop = |index| Body::begin([8, 0, 0, 0], &[index]).as_ref().to_vec();
        let hops = [hop(3), hop(7)].concat();
        for (sentence, route, found) in [
            ("one hop", route(0, libc::RTN_UNICAST).with_number(libc::RTA_OIF, 7), true),
            ("another interface", route(0, libc::RTN_UNICAST).with_number(libc::RTA_OIF, 3), false),
            ("several", route(0, libc::RTN_UNICAST).with(libc::RTA_MULTIPATH, &hops), true),
            (
                "cut short",
                route(0, libc::RTN_UNICAST).with(libc::RTA_MULTIPATH, &hops[..11]),
                false,
            ),
            ("an object", route(0, libc::RTN_UNICAST).with_number(30, 1), true),
            ("a network", route(24, libc::RTN_UNICAST).with_number(libc::RTA_OIF, 7), false),
            ("refuses", route(0, libc::RTN_UNREACHABLE).with_number(libc::RTA_OIF, 7), false),
        ] {
            assert_eq!(default_route(route.as_ref(), &[1, 7]).is_some(), found, "{sentence}");
        }
        assert_eq!(default_route(&[2, 0, 0], &[7]), None);
    }

    #[test]
    fn interfaces_above_are_found_through_several() {
        // A card (1) in a bond (2) with a VLAN (3) in a bridge (4); a veth pair (5, 6), of which one is in it, too.
        let pairs = [(3, 4), (2, 3), (1, 2), (5, 6), (6, 5), (6, 4)];
        for (index, stack) in
            [(1, &[1, 2, 3, 4][..]), (3, &[3, 4]), (4, &[4]), (5, &[5]), (6, &[6, 4])]
        {
            assert_eq!(with_upper(&pairs, index), stack, "{index}");
        }
    }

    #[test]
    fn a_host_has_the_default_route_that_it_was_given() {
        let Some(lab) = crate::for_tests::lab() else { return };
        let left = lab.netns("left");
        for (prefix, gateway) in [("0.0.0.0", "198.18.0.2"), ("::", "2001:db8:18::2")] {
            let ip = prefix.parse().unwrap();
            let carries = || carries_default_route(Some(&left), "left0").unwrap();
            if ip == IpAddr::from(Ipv4Addr::UNSPECIFIED) {
                assert!(!carries(), "before");
            }
            let mut netlink = Netlink::open(Some(&left)).unwrap();
            let prefix = crate::Address { ip, prefix: 0 };
            netlink.add_route("left0", prefix, gateway.parse().unwrap()).unwrap();
            assert!(carries(), "{prefix}");
        }
        assert!(!carries_default_route(Some(&left), "lo").unwrap());
    }
}
