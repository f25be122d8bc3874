//! iptables: rules in the table raw, the first that a packet to the host meets.

use super::Peer;
use crate::ladder::Place;
use crate::ladder::drop::{by_kernel, listed, order, rules};
use crate::process::Program;
use crate::said::Count;
use crate::step::{Setting, Step, Tally};

/// What it does is part of the ladder of dropping.
pub const PEER: Peer = Peer::new("iptables", &[]);

/// Its step in the ladder of dropping.
pub fn steps(place: &Place<'_>) -> Vec<Step> {
    let rules = rules(place);
    let table = listed(rules, "*raw\n", "-A PREROUTING -p udp --dport %s -j DROP", "COMMIT\n");
    let restore = Program::tool("iptables-restore", ["--noflush"]).reading(table);
    let list = ["-t", "raw", "-L", "PREROUTING", "-v", "-x", "-n", "-w"];
    let tally = Tally::Says(Program::tool("iptables", list), Count::Before("DROP"));
    let setting = Setting { rules: Some(rules), ..place.plain() };
    let flush = Program::tool("iptables", ["-t", "raw", "-F", "PREROUTING", "-w"]);
    vec![
        by_kernel("iptables", "iptables, raw PREROUTING", setting, tally)
            .with(order(restore), order(flush)),
    ]
}
