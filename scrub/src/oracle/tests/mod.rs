mod explanations;
mod limits;
mod tunnels;

use std::time::Duration;

use ipnet::IpNet;

use super::*;
use crate::cause::Defect;
use crate::packet::{Tunnels, protocol};
use crate::policy::{
    AMPLIFICATION, AddressCondition, ClassAction, Conditions, FlagCondition, FragmentAction, Limit,
    LimitKey, PayloadCondition, ProtectedNetwork, Range, Rate, Rule, RuleAction, Set, SetAction,
};
use crate::testing::{Fragment, FrameGenerator, FrameSpec, Random, TunnelSpec, random_policy};

const V6: (&str, &str) = ("2001:db8::1", "2001:db8::2");

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn protected(networks: &[&str], profile: usize) -> ProtectedNetwork {
    let networks = networks.iter().map(|it| net(it)).collect();
    ProtectedNetwork { name: "a network".into(), networks, profile }
}

fn set(action: SetAction, networks: &[&str]) -> Set {
    Set { name: "a set".into(), action, networks: networks.iter().map(|it| net(it)).collect() }
}

fn rule(conditions: Conditions, action: RuleAction) -> Rule {
    Rule { name: "a rule".into(), conditions, action, sample: 0, mark: None, line: None }
}

fn any(action: RuleAction) -> Rule {
    rule(Conditions::default(), action)
}

/// Returns a limit that refuses all but the first packet.
fn once(by: LimitKey) -> Limit {
    Limit { by, rate: Rate::Packets(1), burst: Duration::ZERO }
}

fn with_class(name: &str, action: ClassAction) -> Profile {
    let mut profile = Profile::default();
    let place = AMPLIFICATION.iter().position(|class| class.name == name).unwrap();
    profile.amplification[place] = action;
    profile
}

fn with_default(default: Verdict) -> Profile {
    Profile { default, ..Profile::default() }
}

fn class(name: &str) -> usize {
    AMPLIFICATION.iter().position(|class| class.name == name).unwrap()
}

/// Returns an answer of the class "dns".
fn dns_answer() -> FrameSpec {
    FrameSpec::udp(53, 1000, &[0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}

fn part(spec: FrameSpec, offset: u16, more: bool) -> FrameSpec {
    FrameSpec { fragment: Some(Fragment { offset, more }), ..spec }
}

/// Returns the decision on the first packet.
fn first(policy: &Policy, spec: &FrameSpec) -> Decision {
    Oracle::new(policy).decide(&spec.build(), 1)
}

fn cause(policy: &Policy, spec: &FrameSpec) -> Cause {
    first(policy, spec).cause
}

fn passes(cause: Cause) -> Decision {
    Decision { verdict: Verdict::Pass, cause }
}

fn drops(cause: Cause) -> Decision {
    Decision { verdict: Verdict::Drop, cause }
}

#[test]
fn empty_policy_passes_what_is_well_formed() {
    let policy = Policy::default();
    let tagged = FrameSpec { tags: vec![(0x8100, 1); 3], ..FrameSpec::default() };
    assert_eq!(first(&policy, &tagged), passes(Cause::NotIp));
    assert_eq!(first(&policy, &FrameSpec::default()), passes(Cause::Default));
    let land = FrameSpec::default().between("192.0.2.1", "192.0.2.1");
    assert_eq!(first(&policy, &land), drops(Cause::Malformed(Defect::SameAddress)));
    assert_eq!(first(&policy, &dns_answer()), passes(Cause::Default));
    assert_eq!(first(&policy, &part(dns_answer(), 2, true)), passes(Cause::Default));
}

/// A packet that each stage would decide on, and policies without the stages that come first.
#[test]
fn order_of_stages() {
    let profile = || Profile {
        fragments: FragmentAction::Drop,
        limits: vec![Limit { rate: Rate::Packets(1), ..once(LimitKey::All) }],
        default: Verdict::Drop,
        ..with_class("dns", ClassAction::Drop)
    };
    let mut policy = Policy {
        networks: vec![protected(&["10.0.0.0/8"], 0)],
        profiles: vec![profile()],
        sets: vec![
            set(SetAction::Drop, &["0.0.0.0/0"]),
            set(SetAction::Drop, &["0.0.0.0/0"]),
            set(SetAction::Pass, &["192.0.2.0/24"]),
            set(SetAction::Pass, &["192.0.2.1/32"]),
        ],
        rules: vec![any(RuleAction::Drop), any(RuleAction::Pass)],
        ..Policy::default()
    };
    let spec = part(dns_answer(), 0, true);
    let second = |policy: &Policy| {
        let mut oracle = Oracle::new(policy);
        let frame = spec.build();
        oracle.decide(&frame, 5);
        oracle.decide(&frame, 5)
    };
    assert_eq!(second(&policy), passes(Cause::Unprotected));
    policy.networks.push(protected(&["198.51.100.0/24"], 0));
    assert_eq!(second(&policy), passes(Cause::Set(2)));
    policy.sets.truncate(2);
    assert_eq!(second(&policy), drops(Cause::Set(0)));
    policy.sets.clear();
    assert_eq!(second(&policy), drops(Cause::Rule(0)));
    policy.rules.remove(0);
    assert_eq!(second(&policy), passes(Cause::Rule(0)));
    // The class's limits are charged before the profile's, those of the rule before both.
    policy.rules = vec![any(RuleAction::Limit(vec![once(LimitKey::All)])), any(RuleAction::Drop)];
    policy.profiles[0].fragments = FragmentAction::Follow;
    policy.profiles[0].amplification[class("dns")] =
        ClassAction::Limit(vec![once(LimitKey::All), once(LimitKey::Source)]);
    assert_eq!(second(&policy), drops(Cause::Limit(0)));
    policy.rules[0].action = RuleAction::Continue;
    assert_eq!(second(&policy), drops(Cause::Limit(0)));
    policy.rules[0].action =
        RuleAction::Limit(vec![Limit { burst: Duration::from_secs(9), ..once(LimitKey::All) }]);
    assert_eq!(second(&policy), drops(Cause::Limit(1)));
    policy.rules.clear();
    policy.profiles[0] = profile();
    assert_eq!(second(&policy), drops(Cause::Amplification(class("dns"))));
    policy.profiles[0].amplification.fill(ClassAction::Continue);
    assert_eq!(second(&policy), drops(Cause::Fragment));
    policy.profiles[0].fragments = FragmentAction::Follow;
    assert_eq!(second(&policy), drops(Cause::Limit(0)));
    policy.profiles[0].limits.clear();
    assert_eq!(second(&policy), drops(Cause::Default));
}

#[test]
fn neighbor_discovery_passes_before_all_but_malformed() {
    let policy = Policy {
        networks: vec![protected(&["10.0.0.0/8", "2001:db8::/32"], 0)],
        profiles: vec![with_default(Verdict::Drop)],
        sets: vec![set(SetAction::Drop, &["::/0"])],
        rules: vec![any(RuleAction::Drop)],
        tunnels: Tunnels { gre: true, ipip: true },
    };
    let spec = FrameSpec { protocol: 58, icmp_type: 135, ttl: 255, ..FrameSpec::default() };
    let neighbor = spec.clone().between(V6.0, V6.1);
    assert_eq!(first(&policy, &neighbor), passes(Cause::Neighbor));
    assert_eq!(
        first(&policy, &neighbor.clone().between("fe80::1", "ff02::1")),
        passes(Cause::Neighbor)
    );
    assert_eq!(
        first(&policy, &neighbor.clone().between("ff02::1", "fe80::1")),
        drops(Cause::Malformed(Defect::BadSource))
    );
    let routed = FrameSpec { ttl: 254, ..neighbor.clone() };
    assert_eq!(first(&policy, &routed), drops(Cause::Set(0)));
    let inside = neighbor.inside(&FrameSpec::default(), TunnelSpec::IpIp);
    assert_eq!(first(&policy, &inside), drops(Cause::Set(0)), "any sender may have put it there");
    assert_eq!(first(&policy, &spec), passes(Cause::Unprotected));
}

#[test]
fn longest_protected_network_decides() {
    let profiles = vec![with_default(Verdict::Pass), with_default(Verdict::Drop)];
    let networks = vec![
        protected(&["10.0.0.0/8", "10.1.1.1/32", "2001:db8::/32"], 0),
        protected(&["10.1.0.0/16", "2001:db8::2/128", "10.0.0.0/8"], 1),
        protected(&["10.1.1.0/24"], 1),
    ];
    let policy = Policy { networks, profiles, ..Policy::default() };
    let cases = [
        ("10.0.0.1", passes(Cause::Default)),
        ("10.255.255.255", passes(Cause::Default)),
        ("10.1.0.0", drops(Cause::Default)),
        ("10.1.255.255", drops(Cause::Default)),
        ("10.1.1.0", drops(Cause::Default)),
        ("10.1.1.1", passes(Cause::Default)),
        ("10.2.0.0", passes(Cause::Default)),
        ("11.0.0.0", passes(Cause::Unprotected)),
        ("9.255.255.255", passes(Cause::Unprotected)),
    ];
    for (dst, expected) in cases {
        let spec = FrameSpec::default().between("192.0.2.1", dst);
        assert_eq!(first(&policy, &spec), expected, "{dst}");
    }
    for (dst, expected) in [
        ("2001:db8::2", drops(Cause::Default)),
        ("2001:db8::3", passes(Cause::Default)),
        ("2001:db9::", passes(Cause::Unprotected)),
        ("::ffff:10.1.1.1", passes(Cause::Unprotected)),
    ] {
        let spec = FrameSpec::default().between(V6.0, dst);
        assert_eq!(first(&policy, &spec), expected, "{dst}");
    }
}

#[test]
fn protection_without_networks() {
    let profiles = vec![with_default(Verdict::Drop), with_default(Verdict::Pass)];
    let policy = Policy { profiles, ..Policy::default() };
    assert_eq!(first(&policy, &FrameSpec::default()), drops(Cause::Default));
    // A list of networks without any protects nothing.
    let policy = Policy { networks: vec![protected(&[], 0)], ..policy };
    assert_eq!(first(&policy, &FrameSpec::default()), passes(Cause::Unprotected));
    // The profile that is built in.
    let all = vec![protected(&["0.0.0.0/0"], 0)];
    let policy = Policy { networks: all, ..Policy::default() };
    assert_eq!(first(&policy, &FrameSpec::default()), passes(Cause::Default));
    let spec = FrameSpec::default().between(V6.0, V6.1);
    assert_eq!(first(&policy, &spec), passes(Cause::Unprotected));
}

#[test]
fn sets_decide_by_the_source() {
    let mut sets = vec![set(SetAction::None, &[]); 64];
    sets[3] = set(SetAction::None, &["0.0.0.0/0", "::/0"]);
    sets[5] = set(SetAction::Drop, &["192.0.2.0/25", "10.0.0.0/8", "2001:db8::/64"]);
    sets[6] = set(SetAction::Drop, &["192.0.2.7/25"]);
    sets[62] = set(SetAction::Pass, &["192.0.2.128/32"]);
    sets[63] = set(SetAction::Pass, &["10.1.0.0/16", "192.0.2.128/25", "2001:db8::/128"]);
    let policy = Policy { sets, ..Policy::default() };
    let cases = [
        ("192.0.2.0", drops(Cause::Set(5))),
        ("192.0.2.127", drops(Cause::Set(5))),
        ("192.0.2.128", passes(Cause::Set(62))),
        ("192.0.2.129", passes(Cause::Set(63))),
        ("10.1.2.3", passes(Cause::Set(63))),
        ("10.2.0.0", drops(Cause::Set(5))),
        ("192.0.3.0", passes(Cause::Default)),
    ];
    for (src, expected) in cases {
        let spec = FrameSpec::default().between(src, "192.0.2.1");
        assert_eq!(first(&policy, &spec), expected, "{src}");
    }
    let from = |src| first(&policy, &FrameSpec::default().between(src, "::1:2:3"));
    assert_eq!(from("2001:db8::"), passes(Cause::Set(63)));
    assert_eq!(from("2001:db8::ffff:0:0:1"), drops(Cause::Set(5)));
    assert_eq!(from("2001:db8:0:1::"), passes(Cause::Default));
}

#[test]
fn first_rule_that_matches_acts_alone() {
    let port = |port| Conditions {
        dport: vec![Range { first: port, last: port }],
        ..Conditions::default()
    };
    let policy = Policy {
        rules: vec![
            rule(port(80), RuleAction::Continue),
            rule(port(81), RuleAction::Drop),
            rule(port(82), RuleAction::Limit(vec![once(LimitKey::All)])),
            any(RuleAction::Drop),
        ],
        profiles: vec![with_default(Verdict::Pass)],
        ..Policy::default()
    };
    let to = |dport| FrameSpec { dport, ..FrameSpec::default() };
    assert_eq!(first(&policy, &to(80)), passes(Cause::Default));
    assert_eq!(first(&policy, &to(81)), drops(Cause::Rule(1)));
    assert_eq!(first(&policy, &to(82)), passes(Cause::Default));
    assert_eq!(first(&policy, &to(83)), drops(Cause::Rule(3)));
}

fn ranges<T: Copy>(edges: &[(T, T)]) -> Vec<Range<T>> {
    edges.iter().map(|(first, last)| Range { first: *first, last: *last }).collect()
}

/// For each field: conditions, a packet that meets them and one that does not.
#[test]
fn conditions() {
    let none = Conditions::default;
    let tcp = FrameSpec::default;
    let tcp6 = || tcp().between(V6.0, V6.1);
    let udp = || FrameSpec::udp(53, 80, b"payload");
    let icmp = || FrameSpec { protocol: 1, icmp_type: 3, icmp_code: 4, ..tcp() };
    let icmp6 = || FrameSpec { protocol: 58, icmp_type: 3, icmp_code: 4, ..tcp6() };
    let network = |text| vec![AddressCondition::Network(net(text))];
    let flags = |mask, value| vec![FlagCondition { mask, value }];
    let bytes = |offset, value: &[u8], mask: &[u8]| {
        Some(PayloadCondition { offset, value: value.to_vec(), mask: mask.to_vec() })
    };
    let port = || ranges(&[(50, 53), (60, 79)]);
    let syn = || FrameSpec { tcp_flags: 0x02, ..tcp() };
    let synack = || FrameSpec { tcp_flags: 0x12, ..tcp() };
    let cases = [
        (Conditions { version: Some(4), ..none() }, tcp(), tcp6()),
        (Conditions { version: Some(6), ..none() }, tcp6(), tcp()),
        (Conditions { src: network("192.0.2.1/32"), ..none() }, tcp(), tcp6()),
        (Conditions { dst: network("198.51.100.0/31"), ..none() }, tcp(), tcp6()),
        (Conditions { src: network("0.0.0.0/0"), ..none() }, tcp(), tcp6()),
        (Conditions { dst: network("::/0"), ..none() }, tcp6(), tcp()),
        (
            Conditions { src: vec![AddressCondition::Set(1)], ..none() },
            tcp().between("10.0.0.1", "10.0.0.2"),
            tcp().between("11.0.0.1", "10.0.0.2"),
        ),
        (
            Conditions { dst: vec![AddressCondition::Set(1)], ..none() },
            tcp().between("11.0.0.1", "10.255.0.2"),
            tcp().between("10.0.0.1", "9.0.0.2"),
        ),
        (Conditions { protocol: vec![1, 6], ..none() }, tcp(), udp()),
        (Conditions { protocol: vec![17], ..none() }, part(udp(), 2, true), tcp()),
        (Conditions { port: port(), ..none() }, udp(), tcp()),
        (Conditions { port: ranges(&[(80, 80)]), ..none() }, udp(), part(udp(), 2, true)),
        (Conditions { port: ranges(&[(0, 65_535)]), ..none() }, udp(), icmp()),
        (Conditions { sport: port(), ..none() }, udp(), FrameSpec::udp(54, 53, &[])),
        (Conditions { dport: port(), ..none() }, FrameSpec::udp(1, 60, &[]), udp()),
        (Conditions { dport: ranges(&[(0, 65_535)]), ..none() }, tcp6(), icmp6()),
        (Conditions { sport: ranges(&[(0, 0)]), ..none() }, FrameSpec::udp(0, 1, &[]), icmp()),
        (Conditions { length: ranges(&[(35, 35)]), ..none() }, udp(), tcp()),
        (
            Conditions { length: ranges(&[(60, 60)]), ..none() },
            FrameSpec { padding: 9, ..tcp6() },
            tcp(),
        ),
        (Conditions { ttl: ranges(&[(64, 64)]), ..none() }, tcp(), FrameSpec { ttl: 65, ..tcp() }),
        (
            Conditions { dscp: ranges(&[(46, 63)]), ..none() },
            FrameSpec { dscp: 63, ..tcp6() },
            FrameSpec { dscp: 45, ..tcp() },
        ),
        (Conditions { tcp_flags: flags(0x12, 0x02), ..none() }, syn(), synack()),
        (Conditions { tcp_flags: flags(0, 0), ..none() }, syn(), udp()),
        // Values of bits that do not matter.
        (Conditions { tcp_flags: flags(0x12, 0xef), ..none() }, syn(), synack()),
        (Conditions { fragment: flags(4, 4), ..none() }, part(udp(), 0, true), udp()),
        (Conditions { fragment: flags(2, 2), ..none() }, part(udp(), 3, true), udp()),
        (Conditions { fragment: flags(8, 8), ..none() }, part(udp(), 3, false), udp()),
        (Conditions { fragment: flags(1, 1), ..none() }, FrameSpec { df: true, ..udp() }, tcp6()),
        (Conditions { fragment: flags(15, 0), ..none() }, udp(), FrameSpec { df: true, ..tcp() }),
        (Conditions { icmp_type: ranges(&[(3, 3)]), ..none() }, icmp(), udp()),
        (Conditions { icmp_type: ranges(&[(0, 255)]), ..none() }, icmp6(), part(icmp(), 2, true)),
        (Conditions { icmp_code: ranges(&[(4, 4)]), ..none() }, icmp6(), tcp()),
        (
            Conditions { vlan: ranges(&[(0, 0)]), ..none() },
            FrameSpec { tags: vec![(0x8100, 0xf000)], ..tcp() },
            FrameSpec { tags: vec![(0x88a8, 1), (0x8100, 0)], ..tcp() },
        ),
        (
            Conditions { vlan: ranges(&[(4095, 4095)]), ..none() },
            FrameSpec { tags: vec![(0x8100, 0xffff), (0x8100, 1)], ..tcp() },
            tcp(),
        ),
        (
            Conditions { flow_label: ranges(&[(0xf_ffff, 0xf_ffff)]), ..none() },
            FrameSpec { flow_label: 0xf_ffff, ..tcp6() },
            FrameSpec { flow_label: 0xf_fffe, ..tcp6() },
        ),
        (Conditions { flow_label: ranges(&[(0, 9)]), ..none() }, tcp6(), tcp()),
        (Conditions { payload: bytes(0, b"pay", &[0xff; 3]), ..none() }, udp(), tcp()),
        (
            Conditions { payload: bytes(6, b"\xed", &[0x7f]), ..none() },
            FrameSpec::udp(53, 80, b"aaaaaam"),
            FrameSpec::udp(53, 80, b"aaaaaa"),
        ),
        (
            Conditions { payload: bytes(5, b"ad", &[0xff, 0xdf]), ..none() },
            FrameSpec::udp(53, 80, b"paylOaD"),
            FrameSpec { padding: 4, ..FrameSpec::udp(53, 80, b"paylOa") },
        ),
        (
            Conditions { payload: bytes(0, b"rest", &[0xff; 4]), ..none() },
            FrameSpec { payload: b"rest".to_vec(), ..part(udp(), 3, false) },
            part(udp(), 3, false),
        ),
        // All fields must be met.
        (Conditions { protocol: vec![17], version: Some(4), ..none() }, udp(), tcp()),
        (Conditions { protocol: vec![17], version: Some(4), ..none() }, udp(), icmp6()),
    ];
    for (place, (conditions, met, other)) in cases.into_iter().enumerate() {
        let policy = Policy {
            sets: vec![set(SetAction::None, &["0.0.0.0/0"]), set(SetAction::None, &["10.0.0.0/8"])],
            rules: vec![rule(conditions, RuleAction::Drop)],
            ..Policy::default()
        };
        assert_eq!(cause(&policy, &met), Cause::Rule(0), "case {place}");
        assert_eq!(cause(&policy, &other), Cause::Default, "case {place}");
    }
}

#[test]
fn answers_of_each_class() {
    for (place, class) in AMPLIFICATION.iter().enumerate() {
        let profile = with_class(class.name, ClassAction::Drop);
        let policy = Policy { profiles: vec![profile], ..Policy::default() };
        let mut payload = vec![0; class.min_payload.into()];
        if let Some(byte) = class.byte {
            payload[usize::from(byte.offset)] = byte.value | !byte.mask;
        }
        let answer = FrameSpec::udp(class.port, 9, &payload);
        let expected = drops(Cause::Amplification(place));
        assert_eq!(first(&policy, &answer), expected, "{}", class.name);
        assert_eq!(first(&policy, &answer.clone().between(V6.0, V6.1)), expected);
        assert_eq!(first(&policy, &part(answer.clone(), 0, true)), expected);
        let mut short = FrameSpec { padding: 9, ..answer.clone() };
        short.payload.pop();
        let tcp = FrameSpec { protocol: protocol::TCP, ..answer.clone() };
        let other_port = FrameSpec { sport: 9, dport: class.port, ..answer.clone() };
        let later = part(answer.clone(), 2, true);
        let mut others = vec![short, tcp, other_port, later];
        if let Some(byte) = class.byte {
            let mut request = payload.clone();
            request[usize::from(byte.offset)] = !byte.value;
            others.push(FrameSpec::udp(class.port, 9, &request));
        }
        for other in others {
            assert_eq!(cause(&policy, &other), Cause::Default, "{} {other:?}", class.name);
        }
    }
}

#[test]
fn fragments_of_a_profile() {
    let profile = Profile { fragments: FragmentAction::Drop, ..Profile::default() };
    let policy = Policy { profiles: vec![profile], ..Policy::default() };
    let tcp6 = FrameSpec::default().between(V6.0, V6.1);
    for spec in [FrameSpec::default(), tcp6.clone()] {
        for (offset, more) in [(0, true), (2, true), (2, false)] {
            assert_eq!(first(&policy, &part(spec.clone(), offset, more)), drops(Cause::Fragment));
        }
        assert_eq!(first(&policy, &part(spec, 0, false)), passes(Cause::Default));
    }
    let whole = FrameSpec { df: true, ..FrameSpec::default() };
    assert_eq!(cause(&policy, &whole), Cause::Default);
}
