//! Every backend shows the same packets the same way: what one end of a lab's link sends, the
//! other end receives with the same bytes, lengths and order, VLAN tags where they were, times
//! and their source said. Sent through the transmit ring, so that is tested too.
//!
//! The same holds for two interfaces of the machine's (see `hosts`), as far as their drivers go:
//! there, what cannot be opened is said, and left out.

mod frames;
mod gaps;
mod selection;
mod sending;
mod sharing;
mod whole;

use sluicegate::port::{Directions, Port};

use crate::hosts::{self, Wire};
use crate::traffic::{self, open_if_possible as receiver};

/// Ways of receiving by packet sockets.
const METHODS: &[&str] = &[
    "method=recv",
    "method=recvmmsg",
    "method=recvmmsg&batch=3",
    "method=frames",
    "method=frames&slots=16",
    "method=ring",
    "method=ring&block_size=256K&blocks=64&block_timeout=1ms",
    "method=ring&slots=16",
];

/// Ways of receiving by XDP. What is not said is zero-copy where a driver has it, and veth has not.
const XDP: &[&str] = &[
    "xdp:right0?mode=native",
    "xdp:right0?mode=native&filter=not icmp6",
    "xdp:right0?method=ring&slots=16&ring_size=1024",
    "xdp:right0?method=ring&mode=skb&filter=not icmp6",
    "xdp:right0?method=af_xdp",
    "xdp:right0?method=af_xdp&slots=16&ring_size=1024",
    "xdp:right0?method=af_xdp&filter=not icmp6",
    "xdp:right0?method=af_xdp&latency=20ms",
    "xdp:right0?method=ring&latency=20ms",
    "xdp:right0?mode=skb",
];

/// And what only other drivers can, or cannot.
const XDP_OF_DRIVERS: &[&str] =
    &["xdp:right0", "xdp:right0?mode=zero-copy", "xdp:right0?mode=copy"];

/// All that receive and leave the host its packets, in the ways they can.
fn sources() -> Vec<String> {
    let packet = METHODS.iter().map(|method| format!("packet:right0?{method}"));
    let mirror = ["native", "skb"].map(|mode| format!("mirror:right0?ring_size=256&mode={mode}"));
    packet.chain(mirror).collect()
}

/// All that receive by XDP.
fn xdp_sources(lab: &Wire) -> Vec<String> {
    let of_drivers = if lab.is_lab() { &[] } else { XDP_OF_DRIVERS };
    XDP.iter().chain(of_drivers).map(|&name| name.to_owned()).collect()
}

/// A wire for this test, or the reason why there is none.
fn lab() -> Option<Wire> {
    hosts::wire(1)
}

/// A lab whose packets may come in any order.
fn lab_in_any_order() -> Option<Wire> {
    hosts::wire_in_any_order(1)
}

fn open(lab: &Wire, host: &str, name: &str, usage: Directions) -> Port {
    traffic::open(lab, host, name, usage).unwrap()
}
