//! tcpreplay: sending what a capture file holds.

use std::time::Duration;

use super::{Peer, sends};
use crate::ladder::{Kind, Place};
use crate::process::{Program, Ready};
use crate::step::Step;

/// How it is called.
pub const PEER: Peer = Peer {
    name: "tcpreplay",
    command: "tcpreplay",
    package: "tcpreplay",
    version: &["tcpreplay", "--version"],
    steps,
};

fn steps(kind: Kind, place: &Place<'_>) -> Vec<Step> {
    let file = place.capture_file();
    let flags = ["--quiet", "--topspeed", "--preload-pcap", "--loop=0", "-i", place.left(), &file];
    let program = Program::tool("tcpreplay", flags);
    let step = sends(&PEER, "--topspeed", place, program, Ready::After(Duration::ZERO));
    match kind {
        Kind::Tx => vec![place.with_capture_file(step)],
        _ => Vec::new(),
    }
}
