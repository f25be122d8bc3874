//! netsniff-ng: capturing by TPACKET_V3, for speed.

use super::{Peer, Work};
use crate::process::Program;
use crate::said::Count;

pub const PEER: Peer = Peer::new(
    "netsniff-ng",
    &[Work::Receives {
        how: "--out /dev/null",
        program: |place| {
            let flags = ["--in", place.right(), "--out", "/dev/null", "--silent"];
            Some(Program::tool("netsniff-ng", flags).and(["--ring-size", "64MiB"]))
        },
        ready: "Running!",
        count: Count::Before("passed filter"),
    }],
);
