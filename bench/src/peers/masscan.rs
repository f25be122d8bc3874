//! masscan: sends TCP SYN packets as fast as it can, as scans do.

use std::time::Duration;

use super::{Peer, sends};
use crate::ladder::{Kind, Place};
use crate::process::{Program, Ready};
use crate::step::Step;

/// How it is called.
pub const PEER: Peer = Peer {
    name: "masscan",
    command: "masscan",
    package: "masscan",
    version: &["masscan", "--version"],
    steps,
};

fn steps(kind: Kind, place: &Place<'_>) -> Vec<Step> {
    // Addresses and ports for years; packets of its own size, to nobody's address.
    let program = Program::tool("masscan", ["198.18.0.0/16", "-p1-60000", "--rate", "100000000"])
        .and(["--adapter", place.left(), "--adapter-ip", "198.18.0.1", "--wait", "0"])
        .and(["--adapter-mac", "02-00-00-00-00-01", "--router-mac", "02-00-00-00-00-99"]);
    match kind {
        Kind::Tx if place.setting.size == 60 => {
            vec![sends(&PEER, "SYN", place, program, Ready::After(Duration::ZERO))]
        }
        _ => Vec::new(),
    }
}
