//! nftables: rules one after the other in the hook prerouting, and at the ingress of the interface;
//! there also as a set, which is looked up once.

use super::Peer;
use crate::ladder::Place;
use crate::ladder::drop::{by_kernel, order, ports, rules};
use crate::process::Program;
use crate::said::Count;
use crate::step::{Setting, Step, Tally};

/// What it does is part of the ladder of dropping.
pub const PEER: Peer = Peer { command: "nft", ..Peer::new("nftables", &[]) };

/// The table that a step makes, and takes away.
const TABLE: &str = "sluice_bench";

/// Its steps in the ladder of dropping.
pub fn steps(place: &Place<'_>) -> Vec<Step> {
    let rules = rules(place);
    let raw = "type filter hook prerouting priority raw;";
    let ingress = format!("type filter hook ingress device \"{}\" priority filter;", place.right());
    let listed: String = ports(rules).map(|port| matching(&port.to_string())).collect();
    let mut steps = vec![
        step(place, "nftables, raw prerouting", "ip", raw, &listed),
        step(place, "nftables, netdev ingress", "netdev", &ingress, &listed),
    ];
    if rules > 1 {
        let ports: Vec<String> = ports(rules).map(|port| port.to_string()).collect();
        let set = matching(&format!("{{ {} }}", ports.join(", ")));
        steps.push(step(place, "nftables, netdev ingress, a set", "netdev", &ingress, &set));
    }
    steps
}

fn matching(ports: &str) -> String {
    format!("udp dport {ports} counter name dropped drop\n")
}

fn step(place: &Place<'_>, name: &str, family: &str, hook: &str, rules_: &str) -> Step {
    let table = format!(
        "table {family} {TABLE} {{\ncounter dropped {{\n}}\nchain c {{\n{hook}\n{rules_}}}\n}}\n"
    );
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
