//! tcpdump: what people capture with.

use super::{Peer, Work};
use crate::process::Program;
use crate::said::Count;

/// Its buffer is large (64 MiB), and it stays the user it is.
pub const PEER: Peer = Peer::new(
    "tcpdump",
    &[Work::Receives {
        how: "-w /dev/null",
        program: |place| {
            let flags = ["-n", "-i", place.right(), "-B", "65536", "-Z", "root", "-w", "/dev/null"];
            Some(Program::tool("tcpdump", flags))
        },
        ready: "listening on",
        count: Count::Before("captured"),
    }],
);
