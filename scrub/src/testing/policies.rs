//! Random policies.

use std::collections::HashSet;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::Random;
use crate::packet::Tunnels;
use crate::policy::{
    AMPLIFICATION, AddressCondition, Challenge, ClassAction, Conditions, FlagCondition,
    FragmentAction, Handover, Limit, LimitKey, MAX_SETS, PayloadCondition, Policy, Profile,
    ProtectedNetwork, Range, Rate, Rule, RuleAction, Set, SetAction, TcpProtection, UdpChallenge,
    UdpQuery, Verdict,
};

/// Networks are near these addresses, so that they nest.
const BASES_V4: [u32; 4] = [0xc000_0201, 0xc612_0001, 0x0a01_0203, 0xcb00_714d];
const BASES_V6: [u128; 3] = [0x2001_0db8 << 96 | 1, 0x2001_0db8_0001_0002 << 64 | 9, 0xfd00 << 112];
const LENGTHS_V4: [u8; 16] = [0, 1, 7, 8, 9, 15, 16, 17, 21, 22, 23, 24, 25, 30, 31, 32];
const LENGTHS_V6: [u8; 18] =
    [0, 1, 16, 17, 23, 24, 25, 31, 32, 47, 48, 49, 63, 64, 65, 96, 127, 128];
const MANY_RULES: usize = 200;

/// Returns a valid policy: one in 16 is empty, one in 16 has all sets, one in 16 has 200 rules.
pub fn random_policy(random: &mut Random) -> Policy {
    if random.one_in(16) {
        return Policy::default();
    }
    let profiles = match random.below(4) {
        0 => Vec::new(),
        _ => (0..=random.below(4)).map(|place| random_profile(random, place)).collect(),
    };
    let sets = if random.one_in(16) { MAX_SETS } else { random.below(9) };
    let rules = if random.one_in(16) { MANY_RULES } else { random.below(16) };
    let mut policy = Policy {
        networks: random_protected(random, profiles.len().max(1)),
        sets: (0..sets).map(|place| random_set(random, place)).collect(),
        rules: Vec::new(),
        profiles,
        tunnels: Tunnels { gre: random.one_in(2), ipip: random.one_in(2) },
    };
    for place in 0..rules {
        let conditions = match place {
            // With the fields of another rule, and one changed.
            1.. if random.one_in(3) => {
                let mut conditions = random.pick(&policy.rules).conditions;
                add_condition(&mut conditions, random, sets);
                conditions
            }
            _ => random_conditions(random, sets, rules == MANY_RULES),
        };
        policy.rules.push(random_rule(random, place, conditions));
    }
    policy
}

fn random_protected(random: &mut Random, profiles: usize) -> Vec<ProtectedNetwork> {
    let count = random.below(6);
    let mut seen = HashSet::new();
    let mut protected: Vec<_> = (0..count)
        .map(|place| ProtectedNetwork {
            name: format!("network{place}"),
            // A policy must name each network once.
            networks: (0..=random.below(4))
                .map(|_| random_network(random))
                .filter(|network| seen.insert(*network))
                .collect(),
            profile: random.below(profiles),
        })
        .collect();
    if let Some(first) = protected.first_mut()
        && random.one_in(2)
    {
        let all = [Ipv4Net::default().into(), Ipv6Net::default().into()];
        first.networks.extend(all.into_iter().filter(|network| seen.insert(*network)));
    }
    protected
}

fn random_profile(random: &mut Random, place: usize) -> Profile {
    let amplification = AMPLIFICATION.iter().map(|_| match random.below(6) {
        0 | 1 => ClassAction::Drop,
        2 => ClassAction::Limit(random_limits(random)),
        _ => ClassAction::Continue,
    });
    Profile {
        name: if place == 0 { "default".into() } else { format!("profile{place}") },
        amplification: amplification.collect(),
        fragments: random.pick(&[
            FragmentAction::Follow,
            FragmentAction::Known,
            FragmentAction::Drop,
        ]),
        tcp: random_tcp(random),
        limits: if random.one_in(2) { random_limits(random) } else { Vec::new() },
        default: random.pick(&[Verdict::Pass, Verdict::Pass, Verdict::Drop]),
    }
}

fn random_tcp(random: &mut Random) -> TcpProtection {
    // Destinations share meters in the program: only high rates make no difference.
    let above = random.pick(&[20_000, 1_000_000]);
    TcpProtection {
        challenge: random.pick(&[
            Challenge::Off,
            Challenge::Auto,
            Challenge::Auto,
            Challenge::Always,
        ]),
        above,
        below: random.between(1, above.into()) as u32,
        verified_for: Duration::from_secs(random.pick(&[10, 600])),
        state: random.one_in(2),
        handover: Handover::Auto,
    }
}

fn random_set(random: &mut Random, place: usize) -> Set {
    let actions = [SetAction::None, SetAction::None, SetAction::None, SetAction::Pass];
    let action = if random.one_in(5) { SetAction::Drop } else { random.pick(&actions) };
    // Sets that act have few networks and no short ones, so that packets reach the other stages.
    let networks: Vec<_> = (0..random.below(20)).map(|_| random_network(random)).collect();
    let networks = if action == SetAction::None || random.one_in(8) {
        networks
    } else {
        networks.into_iter().filter(|it| it.prefix_len() >= 24).take(4).collect()
    };
    Set { name: format!("set{place}"), action, networks }
}

fn random_rule(random: &mut Random, place: usize, conditions: Conditions) -> Rule {
    let action = match random.below(9) {
        0..=2 => RuleAction::Drop,
        3 => RuleAction::Pass,
        4 | 5 => RuleAction::Limit(random_limits(random)),
        6 => {
            let (query, cache) = random.pick(&[
                (UdpQuery::A2s, None),
                (UdpQuery::A2s, Some(Duration::from_secs(60))),
                (UdpQuery::Dns, None),
            ]);
            // As of TCP.
            let above = random.pick(&[None, Some(1_000_000)]);
            RuleAction::Challenge(UdpChallenge { query, above, cache })
        }
        _ => RuleAction::Continue,
    };
    Rule {
        line: None,
        name: format!("rule{place}"),
        conditions,
        action,
        sample: random.pick(&[0, 0, 0, 1, 1000]),
        mark: random.pick(&[None, None, None, Some(46)]),
    }
}

/// Returns one to three limits. Rates of bits are 1000 or more.
fn random_limits(random: &mut Random) -> Vec<Limit> {
    const BURSTS: [Duration; 6] = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_micros(10),
        Duration::from_millis(1),
        Duration::from_millis(100),
        Duration::from_secs(10),
    ];
    let keys = [LimitKey::Source, LimitKey::SourceNetwork, LimitKey::Destination, LimitKey::All];
    (0..random.pick(&[1, 1, 1, 2, 3]))
        .map(|_| Limit {
            by: random.pick(&keys),
            rate: match random.below(2) {
                0 => Rate::Packets(random.pick(&[1, 3, 1000, 999_983, 148_809_523, 1 << 40])),
                _ => Rate::Bits(random.pick(&[1000, 8001, 1_000_003, 10_000_000_000, 1 << 48])),
            },
            burst: random.pick(&BURSTS),
        })
        .collect()
}

/// Returns conditions as operators write them: on few fields. Seldom on none, which hides all later rules.
fn random_conditions(random: &mut Random, sets: usize, are_narrow: bool) -> Conditions {
    let mut conditions = Conditions::default();
    let fields = match random.below(64) {
        0 => 0,
        _ if are_narrow => 2 + random.below(4),
        _ => 1 + random.below(4),
    };
    (0..fields).for_each(|_| add_condition(&mut conditions, random, sets));
    conditions
}

/// Sets the condition on one field, or on two that belong together.
fn add_condition(conditions: &mut Conditions, random: &mut Random, sets: usize) {
    match random.below(17) {
        0 => conditions.version = Some(random.pick(&[4, 6])),
        1 | 2 => conditions.src = random_addresses(random, sets),
        3 | 4 => conditions.dst = random_addresses(random, sets),
        5 => conditions.protocol = random_protocols(random),
        6 => conditions.port = random_ranges(random, &PORTS, u16::MAX.into()),
        7 => conditions.sport = random_ranges(random, &PORTS, u16::MAX.into()),
        8 => conditions.dport = random_ranges(random, &PORTS, u16::MAX.into()),
        9 => conditions.length = random_ranges(random, &[40, 64, 576, 1500], u16::MAX.into()),
        10 => conditions.ttl = random_ranges(random, &[1, 32, 64, 128], u8::MAX.into()),
        11 => conditions.dscp = random_ranges(random, &[8, 10, 46], 63),
        12 => conditions.tcp_flags = random_flags(random, 0xff, &[0x02, 0x12, 0x10, 0x04]),
        13 => conditions.fragment = random_flags(random, 0x0f, &[0x01, 0x02, 0x04, 0x0a]),
        14 => {
            conditions.icmp_type = random_ranges(random, &[3, 8, 128, 135], u8::MAX.into());
            if random.one_in(2) {
                conditions.icmp_code = random_ranges(random, &[1, 4], u8::MAX.into());
            }
        }
        15 if random.one_in(2) => conditions.vlan = random_ranges(random, &[1, 100, 4094], 0xfff),
        15 => conditions.flow_label = random_ranges(random, &[1, 0x1234, 0xf_0000], 0xf_ffff),
        _ => conditions.payload = Some(random_payload(random)),
    }
}

const PORTS: [u32; 8] = [1, 53, 80, 123, 443, 1024, 11_211, 40_000];

/// Returns one to three ranges whose edges are near some values, or at the ends.
fn random_ranges<T: TryFrom<u32> + Copy>(
    random: &mut Random,
    near: &[u32],
    max: u32,
) -> Vec<Range<T>> {
    let edge = |random: &mut Random| match random.below(8) {
        0 => 0,
        1 => max,
        2 => random.below(max as usize + 1) as u32,
        _ => (random.pick(near) + random.below(3) as u32).saturating_sub(1).min(max),
    };
    (0..random.pick(&[1, 1, 1, 2, 3]))
        .map(|_| {
            let one = edge(random);
            let other = if random.one_in(2) { one } else { edge(random) };
            let of = |value| T::try_from(value).ok().expect("max fits the type");
            Range { first: of(one.min(other)), last: of(one.max(other)) }
        })
        .collect()
}

fn random_protocols(random: &mut Random) -> Vec<u8> {
    (0..=random.below(2)).map(|_| random.pick(&[1, 6, 6, 17, 17, 47, 50, 51, 58, 59])).collect()
}

fn random_addresses(random: &mut Random, sets: usize) -> Vec<AddressCondition> {
    (0..random.pick(&[1, 1, 2, 4]))
        .map(|_| match random.below(3) {
            0 if sets > 0 => AddressCondition::Set(random.below(sets)),
            _ => AddressCondition::Network(random_network(random)),
        })
        .collect()
}

/// Returns one or two conditions. A few have values of bits that do not matter.
fn random_flags(random: &mut Random, bits: u8, values: &[u8]) -> Vec<FlagCondition> {
    (0..=random.below(2))
        .map(|_| {
            let value = random.pick(values);
            let mask = if random.one_in(2) { value } else { random.number() as u8 & bits };
            let value = if random.one_in(8) { value } else { value & mask };
            FlagCondition { mask, value }
        })
        .collect()
}

fn random_payload(random: &mut Random) -> PayloadCondition {
    let length = 1 + random.below(8);
    let mask = match random.below(3) {
        0 => random.bytes(length),
        _ => vec![0xff; length],
    };
    // Few values, so that several rules and frames have the same.
    let mut value: Vec<u8> = (0..length).map(|_| random.pick(&[0, 1, 0x80, 0xff])).collect();
    if !random.one_in(8) {
        value.iter_mut().zip(&mask).for_each(|(value, mask)| *value &= mask);
    }
    PayloadCondition { offset: random.pick(&[0, 0, 1, 2, 7, 20, 200]), value, mask }
}

/// Returns a network without host bits.
pub(super) fn random_network(random: &mut Random) -> IpNet {
    let network: IpNet = if random.below(5) < 3 {
        let length = random.pick(&LENGTHS_V4);
        let spread = random.below(33) as u32;
        let bits = (random.number() as u32).checked_shr(spread).unwrap_or(0);
        let address = random.pick(&BASES_V4) ^ bits;
        Ipv4Net::new(address.into(), length).expect("at most 32").into()
    } else {
        let length = random.pick(&LENGTHS_V6);
        let spread = random.below(129) as u32;
        let bits = u128::from(random.number()) << 64 | u128::from(random.number());
        let address = random.pick(&BASES_V6) ^ bits.checked_shr(spread).unwrap_or(0);
        Ipv6Net::new(address.into(), length).expect("at most 128").into()
    };
    network.trunc()
}
