//! Lists of rules as ClassBench makes them: of a firewall in front of some networks.

use std::collections::HashSet;

use ipnet::{IpNet, Ipv4Net};

use super::Random;
use crate::packet::protocol::{ICMP, TCP, UDP};
use crate::policy::{AddressCondition, Conditions, FlagCondition, Range, Rule, RuleAction};
use crate::program::cost::DrawnPacket;

/// Ports of services.
const SERVICES: [u16; 14] = [20, 21, 22, 25, 53, 80, 110, 123, 161, 389, 443, 1433, 1900, 3306];

fn network(address: u32, bits: u8) -> Vec<AddressCondition> {
    let net = Ipv4Net::new(address.into(), bits).expect("a length of at most 32").trunc();
    if bits == 0 { Vec::new() } else { vec![AddressCondition::Network(IpNet::V4(net))] }
}

/// Returns an address in one of some networks, the first ones more often than the last.
fn clustered(random: &mut Random, networks: &[u32]) -> u32 {
    let at = random.below(networks.len()).min(random.below(networks.len()));
    networks[at] | random.number() as u32 & 0xffff
}

fn bits(addresses: &[AddressCondition]) -> u8 {
    match addresses {
        [AddressCondition::Network(net)] => net.prefix_len(),
        _ => 0,
    }
}

/// Returns a number of rules that drop, without two equal ones. A rule for any source names a server and a port; others
/// name two networks.
pub fn rule_list(random: &mut Random, count: usize) -> Vec<Rule> {
    let sources: Vec<_> = (0..200).map(|_| random.number() as u32 & 0xffff_0000).collect();
    let targets: Vec<_> = (0..8).map(|at| 0xc612_0000 + (at << 16)).collect();
    let mut rules = Vec::new();
    let mut known = HashSet::new();
    while rules.len() < count {
        let mut rule = Conditions { version: Some(4), ..Conditions::default() };
        let lengths = [0, 0, 0, 8, 12, 16, 16, 20, 22, 24, 24, 24, 26, 28, 30, 32, 32, 32, 32];
        rule.src = network(clustered(random, &sources), random.pick(&lengths));
        let lengths =
            [0, 16, 20, 22, 24, 24, 24, 24, 26, 27, 28, 29, 30, 31, 32, 32, 32, 32, 32, 32];
        rule.dst = network(clustered(random, &targets), random.pick(&lengths));
        rule.protocol = match random.below(7) {
            0..=2 => vec![TCP],
            3 | 4 => vec![UDP],
            5 => vec![ICMP],
            _ => Vec::new(),
        };
        if matches!(rule.protocol[..], [TCP | UDP]) {
            let first = random.below(60_000) as u16;
            let service = random.pick(&SERVICES);
            rule.dport = match random.below(10) {
                0..=2 => Vec::new(),
                3 => vec![Range { first: 1024, last: u16::MAX }],
                4 => vec![Range { first, last: first + random.below(2000) as u16 }],
                5 => vec![Range { first, last: first }],
                _ => vec![Range { first: service, last: service }],
            };
            rule.sport = match random.below(20) {
                0 => vec![Range { first: service, last: service }],
                1 => vec![Range { first: 1024, last: u16::MAX }],
                _ => Vec::new(),
            };
        }
        if rule.protocol == [TCP] && random.one_in(10) {
            rule.tcp_flags = vec![FlagCondition { mask: 0x12, value: random.pick(&[0x02, 0x12]) }];
        }
        let single = rule.dport.first().is_some_and(|it| it.first == it.last);
        let (src, dst) = (bits(&rule.src), bits(&rule.dst));
        let server = dst >= 28 || single && dst >= 24;
        let general = if src < 16 { !server } else { dst < 20 && src < 24 };
        if !general && known.insert(format!("{rule:?}")) {
            let name = format!("rule {}", rules.len());
            let action = RuleAction::Drop;
            rules.push(Rule { name, conditions: rule, action, sample: 0, mark: None, line: None });
        }
    }
    rules
}

/// Returns a packet: every second one meets the conditions of a rule of the list, except those on its flags.
pub fn drawn_packet(random: &mut Random, rules: &[Rule]) -> DrawnPacket {
    let any = Conditions::default();
    let rule = &rules[random.below(rules.len())].conditions;
    let rule = if random.one_in(2) { rule } else { &any };
    let mut address = |conditions: &[AddressCondition], others: u32| match conditions {
        [AddressCondition::Network(IpNet::V4(net))] => {
            u32::from(net.addr()) | random.number() as u32 & u32::from(net.hostmask())
        }
        _ => others | random.number() as u32 & !0xfff8_0000,
    };
    let (src, dst) = (address(&rule.src, 0x0a00_0000), address(&rule.dst, 0xc610_0000));
    let mut port = |ranges: &[Range<u16>]| match ranges {
        [range, ..] => random.between(range.first.into(), range.last.into()) as u16,
        [] => 1 + random.below(65_535) as u16,
    };
    let ports = [port(&rule.sport), port(&rule.dport)];
    let protocol = rule.protocol.first().copied().unwrap_or(random.pick(&[TCP, UDP]));
    let tcp_flags = random.pick(&[0x02, 0x10, 0x12, 0x18]);
    DrawnPacket { addresses: [src, dst], ports, protocol, tcp_flags }
}
