//! The next hops of packets, by the kernel's tables, in a lab.

use std::net::IpAddr;

use sluicegate::error::Error;
use sluicegate::link::{self, Mac, NextHops, Shape};

use crate::{lab_of, tool};

/// `right0`'s, which the lab gives it.
const RIGHT: &str = "02:00:c6:12:00:02";

fn ip(netns: &str, words: &str) -> bool {
    tool(&[&["ip", "-n", netns][..], &words.split(' ').collect::<Vec<_>>()].concat()).is_some()
}

fn resolve(netns: &str, destination: &str) -> Result<Mac, Error> {
    let left0 = link::interface(Some(netns), "left0").unwrap();
    let destination: IpAddr = destination.parse().unwrap();
    NextHops::open(Some(netns), &left0).unwrap().mac(destination)
}

#[test]
fn a_next_hop_is_the_gateway_or_the_neighbour_that_has_the_address() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let left = lab.netns("left");
    for (sentence, destination, mac) in [
        ("a neighbour that the kernel knows", "198.18.0.2", RIGHT),
        ("by IPv6", "2001:db8:18::2", RIGHT),
        ("behind a gateway", "198.19.255.254", RIGHT),
        ("behind a gateway, by IPv6", "2001:db8::2", RIGHT),
        ("the network's broadcast", "198.18.0.255", "ff:ff:ff:ff:ff:ff"),
        ("multicast", "224.0.0.9", "01:00:5e:00:00:09"),
    ] {
        let found = resolve(&left, destination).map(|mac| mac.to_string());
        assert_eq!(found.unwrap(), mac, "{sentence}");
    }
}

#[test]
fn the_kernel_asks_for_a_neighbour_that_it_does_not_know() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let left = lab.netns("left");
    for (sentence, neighbour, destination) in [
        ("by ARP", "198.18.0.2", "198.18.0.2"),
        ("by ARP for the gateway", "198.18.0.2", "198.18.1.2"),
        ("by neighbour discovery", "2001:db8:18::2", "2001:db8:18::2"),
        ("by neighbour discovery for the gateway", "2001:db8:18::2", "2001:db8::2"),
    ] {
        if !ip(&left, &format!("neigh del {neighbour} dev left0")) {
            return;
        }
        let found = resolve(&left, destination).map(|mac| mac.to_string());
        assert_eq!(found.unwrap(), RIGHT, "{sentence}");
    }
    let error = resolve(&left, "198.18.0.77").unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot resolve the next-hop MAC of 198.18.0.77 on left0: no neighbour answers; check that a host \
         on that link is up and has 198.18.0.77, or set the destination MAC"
    );
}

#[test]
fn a_route_that_does_not_leave_by_the_interface_is_an_error_that_says_so() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let left = lab.netns("left");
    let set_up = [
        "link add other0 type veth peer other1",
        "link set other0 up",
        "link set other1 up",
        "address add 192.0.2.1/24 dev other0",
        "route add 198.18.7.0/24 dev other0",
        "route add blackhole 198.18.8.0/24",
    ];
    if !set_up.iter().all(|words| ip(&left, words)) {
        return;
    }
    let cases = [
        ("no route", "203.0.113.1", "no route to it leaves by left0"),
        ("no route by IPv6", "100::1", "no route to it leaves by left0"),
        ("another interface's network", "192.0.2.2", "its route leaves by other0"),
        ("a longer prefix out of another", "198.18.7.1", "its route leaves by other0"),
        ("a route that drops", "198.18.8.1", "no route to it leaves by left0"),
        ("the host's own address", "198.18.0.1", "it is an address of this host"),
    ];
    let check = |(sentence, destination, reason): (&str, &str, &str)| {
        let error = resolve(&left, destination).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{sentence}: {error}");
        assert!(error.to_string().contains(reason), "{sentence}: {error}");
    };
    cases.into_iter().for_each(check);
    // Of two routes that are equally specific the one out of the interface counts, though the
    // kernel would take the other.
    for words in
        ["route add default dev other0 metric 1", "route add default via 198.18.0.2 metric 9"]
    {
        assert!(ip(&left, words), "{words}");
    }
    assert_eq!(resolve(&left, "203.0.113.1").unwrap().to_string(), RIGHT);
    assert!(ip(&left, "link set left0 down"));
    check(("an interface that is off", "198.18.0.2", "down: ip link set left0 up"));
}
