//! masscan: sends TCP SYN packets as fast as it can, as scans do.

use super::{Peer, Work};
use crate::process::Program;

/// Addresses and ports for years; packets of its own size, to nobody's address.
pub const PEER: Peer = Peer::new(
    "masscan",
    &[Work::Sends {
        how: "SYN",
        program: |place| {
            let ports = ["198.18.0.0/16", "-p1-60000", "--rate", "100000000", "--wait", "0"];
            let program = Program::tool("masscan", ports)
                .and(["--adapter", place.left(), "--adapter-ip", "198.18.0.1"])
                .and(["--adapter-mac", "02-00-00-00-00-01", "--router-mac", "02-00-00-00-00-99"]);
            (place.setting.size == 60).then_some(program)
        },
    }],
);
