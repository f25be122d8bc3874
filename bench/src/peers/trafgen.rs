//! trafgen: sending by a transmit ring, from a description of packets.

use super::{Peer, Work};
use crate::process::Program;
use crate::sender::{ADDRESS, NOBODY};

pub const PEER: Peer = Peer {
    package: "netsniff-ng",
    ..Peer::new(
        "trafgen",
        &[Work::Sends {
            how: "",
            program: |place| {
                let flags = ["--dev", place.left(), "--conf", "-", "--cpus", "1", "--no-sock-mem"];
                Some(Program::tool("trafgen", flags).reading(packet(place.setting.size)))
            },
        }],
    )
};

/// Ethernet, IPv4 and UDP headers.
const HEADERS: u32 = 42;

fn packet(size: u32) -> String {
    format!(
        "{{ eth(da={NOBODY}, sa=02:00:00:00:00:01), ipv4(saddr=198.18.0.1, daddr={ADDRESS}), \
         udp(sp=9, dp=9), fill(0, {}) }}\n",
        size - HEADERS
    )
}
