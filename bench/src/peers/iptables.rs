//! iptables: rules in the table raw, the first that a packet to the host meets.

use super::{Peer, none};
use crate::ladder::Place;
use crate::ladder::drop::{by_kernel, order, ports, rules};
use crate::process::Program;
use crate::step::{Setting, Step, Tally};

/// How it is called.
pub const PEER: Peer = Peer {
    name: "iptables",
    command: "iptables",
    package: "iptables",
    version: &["iptables", "--version"],
    steps: none,
};

/// Its step in the ladder of dropping.
pub fn steps(place: &Place<'_>) -> Vec<Step> {
    let rules = rules(place);
    let lines = ports(rules).map(|port| format!("-A PREROUTING -p udp --dport {port} -j DROP\n"));
    let table = ["*raw\n".to_owned()].into_iter().chain(lines).chain(["COMMIT\n".to_owned()]);
    let restore = Program::tool("iptables-restore", ["--noflush"]).reading(table.collect());
    let list = ["-t", "raw", "-L", "PREROUTING", "-v", "-x", "-n", "-w"];
    let tally = Tally { program: Program::tool("iptables", list), read: dropped };
    let setting = Setting { rules: Some(rules), ..place.plain() };
    let flush = Program::tool("iptables", ["-t", "raw", "-F", "PREROUTING", "-w"]);
    vec![
        by_kernel("iptables", "iptables, raw PREROUTING", setting, tally)
            .with(order(restore), order(flush)),
    ]
}

/// The packets of the last rule: the first word of its line.
fn dropped(text: &str) -> Option<u64> {
    let line = text.lines().rev().find(|line| line.contains("DROP"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rule_s_packets_are_read() {
        let text = "\
Chain PREROUTING (policy ACCEPT 3 packets, 900 bytes)
    pkts      bytes target     prot opt in     out     source               destination
       0        0 DROP       17   --  *      *       0.0.0.0/0            0.0.0.0/0            udp dpt:20000
  123456  5678976 DROP       17   --  *      *       0.0.0.0/0            0.0.0.0/0            udp dpt:9
";
        assert_eq!(dropped(text), Some(123_456));
        assert_eq!(dropped("Chain PREROUTING (policy ACCEPT 3 packets)"), None);
    }
}
