//! trafgen: sending by a transmit ring, from a description of packets.

use std::time::Duration;

use super::{Peer, sends};
use crate::ladder::{Kind, Place};
use crate::measure::NOBODY;
use crate::process::{Program, Ready};
use crate::step::Step;

/// How it is called.
pub const PEER: Peer = Peer {
    name: "trafgen",
    command: "trafgen",
    package: "netsniff-ng",
    version: &["trafgen", "--version"],
    steps,
};

/// Ethernet, IPv4 and UDP headers.
const HEADERS: u32 = 42;

fn steps(kind: Kind, place: &Place<'_>) -> Vec<Step> {
    let packet = format!(
        "{{ eth(da={NOBODY}, sa=02:00:00:00:00:01), ipv4(saddr=198.18.0.1, daddr=198.18.0.2), \
         udp(sp=9, dp=9), fill(0, {}) }}\n",
        place.setting.size - HEADERS
    );
    let flags = ["--dev", place.left(), "--conf", "-", "--cpus", "1", "--no-sock-mem"];
    let program = Program::tool("trafgen", flags).reading(packet);
    match kind {
        Kind::Tx => vec![sends(&PEER, "", place, program, Ready::After(Duration::ZERO))],
        _ => Vec::new(),
    }
}
