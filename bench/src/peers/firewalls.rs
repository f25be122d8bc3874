//! Rules of the kernel that drop.

use super::Peer;
use crate::process::Program;
use crate::process_output::Count;
use crate::step::{Setting, Step, Tally};
use crate::suite::StepContext;
use crate::suite::drop::{by_kernel, listed, order, rules};

/// Its steps are part of the suite of dropping ([`nftables`]).
pub const NFTABLES: Peer = Peer { command: "nft", ..Peer::new("nftables", &[]) };

/// The table that a step makes, and takes away.
const TABLE: &str = "sluice_bench";

/// Rules of nftables one after the other in the hook prerouting, and at the ingress of the interface;
/// there also as a set, which is looked up once.
pub fn nftables(place: &StepContext<'_>) -> Vec<Step> {
    let rules = rules(place);
    let raw = "type filter hook prerouting priority raw;";
    let ingress = format!("type filter hook ingress device \"{}\" priority filter;", place.right());
    let each = ["", "udp dport %s counter name dropped drop", ""];
    let set = ["udp dport {\n", "%s,", "} counter name dropped drop\n"];
    let mut steps = vec![
        step(place, "nftables, raw prerouting", "ip", raw, each),
        step(place, "nftables, netdev ingress", "netdev", &ingress, each),
    ];
    if rules > 1 {
        steps.push(step(place, "nftables, netdev ingress, a set", "netdev", &ingress, set));
    }
    steps
}

/// A table whose chain has these rules: what stands before the ports, a line for each, what stands behind.
fn step(place: &StepContext<'_>, name: &str, family: &str, hook: &str, rules_: [&str; 3]) -> Step {
    let [before, line, after] = rules_;
    let head = format!("table {family} {TABLE} {{\ncounter dropped {{\n}}\nchain c {{\n{hook}\n");
    let (before, after) = (format!("{head}{before}"), format!("{after}}}\n}}\n"));
    let table = listed(rules(place), &before, line, &after);
    let tally = Tally::Says(
        Program::tool("nft", ["list", "counter", family, TABLE, "dropped"]),
        Count::After("packets "),
    );
    let setting = Setting { rules: Some(rules(place)), ..place.plain() };
    by_kernel("nftables", name, setting, tally).with(
        order(Program::tool("nft", ["-f", "-"]).reading(table)),
        order(Program::tool("nft", ["delete", "table", family, TABLE])),
    )
}

/// Its step is part of the suite of dropping ([`iptables`]).
pub const IPTABLES: Peer = Peer::new("iptables", &[]);

/// Rules of iptables in the table raw, the first that a packet to the host meets.
pub fn iptables(place: &StepContext<'_>) -> Vec<Step> {
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
