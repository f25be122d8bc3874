//! dumpcap: what Wireshark captures with.

use super::{Peer, receives};
use crate::ladder::{Kind, Place};
use crate::process::{Program, Ready, Said};
use crate::step::Step;

/// How it is called.
pub const PEER: Peer = Peer {
    name: "dumpcap",
    command: "dumpcap",
    package: "wireshark-common",
    version: &["dumpcap", "--version"],
    steps,
};

fn steps(kind: Kind, place: &Place<'_>) -> Vec<Step> {
    let flags = ["-q", "-i", place.right(), "-B", "64", "-w", "/dev/null"];
    let program = Program::tool("dumpcap", flags);
    let ready = Ready::Says("File: ");
    match kind {
        Kind::Rx => vec![receives(&PEER, "-w /dev/null", place, program, ready, captured)],
        _ => Vec::new(),
    }
}

/// "Packets captured: 123"
fn captured(said: &Said) -> Option<u64> {
    let (_, rest) = said.err.rsplit_once("Packets captured: ")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_count_is_read() {
        let err = "Capturing on 'right0'\nFile: /dev/null\nPackets captured: 287360\n\
                   Packets received/dropped on interface 'right0': 287360/0 (100.0%)\n";
        let said = Said { out: String::new(), err: err.into() };
        assert_eq!(captured(&said), Some(287_360));
    }
}
