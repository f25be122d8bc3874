//! tcpdump: what people capture with.

use super::{Peer, last_count, receives};
use crate::ladder::{Kind, Place};
use crate::process::{Program, Ready, Said};
use crate::step::Step;

/// How it is called.
pub const PEER: Peer = Peer {
    name: "tcpdump",
    command: "tcpdump",
    package: "tcpdump",
    version: &["tcpdump", "--version"],
    steps,
};

fn steps(kind: Kind, place: &Place<'_>) -> Vec<Step> {
    // A large buffer (64 MiB), and no change of the user it runs as.
    let flags = ["-n", "-i", place.right(), "-B", "65536", "-Z", "root", "-w", "/dev/null"];
    let program = Program::tool("tcpdump", flags);
    let ready = Ready::Says("listening on");
    match kind {
        Kind::Rx => vec![receives(&PEER, "-w /dev/null", place, program, ready, captured)],
        _ => Vec::new(),
    }
}

/// "123 packets captured"
fn captured(said: &Said) -> Option<u64> {
    last_count(&said.err, "captured")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_count_is_read() {
        let err = "tcpdump: listening on right0, link-type EN10MB (Ethernet)\n\
                   123 packets captured\n130 packets received by filter\n\
                   7 packets dropped by kernel\n";
        let said = Said { out: String::new(), err: err.into() };
        assert_eq!(captured(&said), Some(123));
    }
}
