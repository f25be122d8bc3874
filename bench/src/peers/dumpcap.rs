//! dumpcap: what Wireshark captures with.

use super::{Peer, Work};
use crate::process::Program;
use crate::said::Count;

/// Its buffer is large (64 MiB).
pub const PEER: Peer = Peer {
    package: "wireshark-common",
    ..Peer::new(
        "dumpcap",
        &[Work::Receives {
            how: "-w /dev/null",
            program: |place| {
                let flags = ["-q", "-i", place.right(), "-B", "64", "-w", "/dev/null"];
                Some(Program::tool("dumpcap", flags))
            },
            ready: "File: ",
            count: Count::After("Packets captured:"),
        }],
    )
};
