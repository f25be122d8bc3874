//! xdp-tools: the XDP project's own programs. xdp-trafficgen sends live frames, xdp-filter drops.

use std::time::Duration;

use super::{Peer, sends};
use crate::ladder::drop::{by_kernel, order, ports, rules};
use crate::ladder::{Kind, Place};
use crate::measure::NOBODY;
use crate::process::{Program, Ready};
use crate::step::{Setting, Step, Tally};

/// How it is called.
pub const PEER: Peer = Peer {
    name: "xdp-tools",
    command: "xdp-filter",
    package: "xdp-tools",
    version: &["dpkg-query", "-W", "-f", "xdp-tools ${Version}", "xdp-tools"],
    steps,
};

/// Each rule takes a call of xdp-filter.
const RULES_MAX: u32 = 100;

fn steps(kind: Kind, place: &Place<'_>) -> Vec<Step> {
    match kind {
        Kind::Tx if place.setting.size == 60 => vec![trafficgen(place)],
        Kind::Drop if rules(place) <= RULES_MAX => vec![filter(place)],
        _ => Vec::new(),
    }
}

/// Its packets have one size.
fn trafficgen(place: &Place<'_>) -> Step {
    let flags = ["udp", place.left(), "-m", NOBODY, "-P", "9", "-p", "9", "-t", "1"];
    let program = Program::tool("xdp-trafficgen", flags);
    sends(&PEER, "xdp-trafficgen", place, program, Ready::After(Duration::ZERO))
}

fn filter(place: &Place<'_>) -> Step {
    let rules = rules(place);
    let device = place.right();
    let tool = |arguments: &[&str]| Program::tool("xdp-filter", arguments.iter().copied());
    let tally = Tally { program: tool(&["status"]), read: dropped };
    let setting = Setting { rules: Some(rules), ..place.plain() };
    let load = tool(&["load", device, "-m", "native", "-f", "udp"]);
    let unload = tool(&["unload", device]);
    let mut step =
        by_kernel(PEER.name, "xdp-filter", setting, tally).with(order(load), order(unload));
    for port in ports(rules) {
        step.prepare.push(order(tool(&["port", &port.to_string(), "-p", "udp", "-m", "dst"])));
    }
    step
}

/// "XDP_DROP   123 pkts", in the statistics of a status.
fn dropped(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("XDP_DROP"))?;
    let number =
        line.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    number?.replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_count_is_read() {
        let text = "Aggregate per-action statistics:\n  Action                 Packets           \
                    Bytes\n  XDP_DROP       1,234 pkts           72 KiB\n  XDP_PASS   9 pkts\n";
        assert_eq!(dropped(text), Some(1234));
    }
}
