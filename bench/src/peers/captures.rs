//! Programs that capture.

use super::{Peer, Work};
use crate::process::Program;
use crate::process_output::Count;

/// tcpdump. Its buffer is large (64 MiB), and it stays the user it is.
pub const TCPDUMP: Peer = Peer::new(
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

/// dumpcap, which Wireshark captures with. Its buffer is large (64 MiB).
pub const DUMPCAP: Peer = Peer {
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

/// netsniff-ng receives by TPACKET_V3.
pub const NETSNIFF_NG: Peer = Peer::new(
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
