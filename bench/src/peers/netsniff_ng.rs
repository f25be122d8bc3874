//! netsniff-ng: capturing by TPACKET_V3, for speed.

use super::{Peer, last_count, receives};
use crate::ladder::{Kind, Place};
use crate::process::{Program, Ready, Said};
use crate::step::Step;

/// How it is called.
pub const PEER: Peer = Peer {
    name: "netsniff-ng",
    command: "netsniff-ng",
    package: "netsniff-ng",
    version: &["netsniff-ng", "--version"],
    steps,
};

fn steps(kind: Kind, place: &Place<'_>) -> Vec<Step> {
    let flags = ["--in", place.right(), "--out", "/dev/null", "--silent", "--ring-size", "64MiB"];
    let program = Program::tool("netsniff-ng", flags);
    let ready = Ready::Says("Running!");
    match kind {
        Kind::Rx => vec![receives(&PEER, "--out /dev/null", place, program, ready, passed)],
        _ => Vec::new(),
    }
}

/// "886784  packets passed filter"
fn passed(said: &Said) -> Option<u64> {
    last_count(&said.out, "passed filter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_count_is_read() {
        let out = "Running! Hang up with ^C!\n\n      886784  packets incoming (0 unread on exit)\n\
                   \u{20}     886700  packets passed filter\n          84  packets failed filter\n";
        let said = Said { out: out.into(), err: String::new() };
        assert_eq!(passed(&said), Some(886_700));
    }
}
