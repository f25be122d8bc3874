//! The XDP program skips look-ups whose results it knows, and decides as if it did not.

use std::net::Ipv4Addr;

use sluicegate::link::{self, Allowed};
use sluicegate_scrub::cause::Cause;
use sluicegate_scrub::oracle::Oracle;
use sluicegate_scrub::policy::{Policy, Verdict};
use sluicegate_scrub::program::Program;
use sluicegate_scrub::tables::Tables;
use sluicegate_scrub::testing::{Fragment, FrameSpec, Random, TunnelSpec};

mod root;

const NOW: u64 = 1_000_000_000;

const DROPPED: (Verdict, Cause) = (Verdict::Drop, Cause::Default);
const PASSED: (Verdict, Cause) = (Verdict::Pass, Cause::Default);
const UNPROTECTED: (Verdict, Cause) = (Verdict::Pass, Cause::Unprotected);

/// A program and the oracle, with one policy.
struct ComparedProgram {
    program: Program,
    oracle: Oracle,
}

impl ComparedProgram {
    fn new() -> Self {
        // Each CPU remembers a destination.
        link::pin_thread(Allowed::here().unwrap().cpus().next().unwrap()).unwrap();
        let program = Program::for_rehearsal(64).unwrap();
        program.set_time(NOW);
        Self { program, oracle: Oracle::new(&Policy::default()) }
    }

    fn install(&mut self, policy: &str) {
        let policy = Policy::parse(policy).unwrap();
        self.program.install(&Tables::build(&policy, 5).unwrap()).unwrap();
        self.oracle = Oracle::new(&policy);
    }

    fn decide(&mut self, spec: &FrameSpec) -> (Verdict, Cause) {
        let frame = spec.build();
        let found = self.program.rehearse(&frame).unwrap();
        assert_eq!(found, self.oracle.decide(&frame, NOW), "{}", self.oracle.explain(&frame, NOW));
        (found.verdict, found.cause)
    }
}

/// A policy that protects a network, and drops or passes what goes there.
fn protecting(network: &str, default: &str) -> String {
    format!("protect.one.networks = ['{network}']\nprofile.default.default = '{default}'\n")
}

#[test]
fn the_last_destination_is_not_that_of_another_policy() {
    if !root::is_root() {
        return;
    }
    let mut compared = ComparedProgram::new();
    let spec = FrameSpec::default();
    for (network, default, decision) in [
        ("198.51.100.0/24", "drop", DROPPED),
        ("203.0.113.0/24", "drop", UNPROTECTED),
        ("198.51.100.0/24", "pass", PASSED),
    ] {
        compared.install(&protecting(network, default));
        assert_eq!([compared.decide(&spec), compared.decide(&spec)], [decision; 2], "{network}");
    }
    // Without a packet in between, the tables are on the same side again.
    compared.install(&protecting("198.51.100.0/24", "drop"));
    compared.install(&protecting("203.0.113.0/24", "drop"));
    assert_eq!(compared.decide(&spec), UNPROTECTED);
}

/// Networks that need several segments of 4 MiB.
const MANY: usize = 200_000;

#[test]
fn images_of_several_segments_and_of_one_follow_each_other() {
    if !root::is_root() {
        return;
    }
    let mut compared = ComparedProgram::new();
    let mut random = Random::new(9);
    // Excludes addresses that are invalid as sources.
    let addresses: Vec<_> =
        (0..MANY).map(|_| Ipv4Addr::from(random.number() as u32 & !(3 << 30) | 1 << 28)).collect();
    let listing = |addresses: &[Ipv4Addr]| {
        let all = addresses.iter().map(|it| format!("'{it}',")).collect::<String>();
        format!("set.list = {{ action = 'drop', networks = [{all}] }}\n")
    };
    for count in [MANY, 1, MANY, 2, MANY / 2] {
        let policy = listing(&addresses[..count]);
        let bytes = Tables::build(&Policy::parse(&policy).unwrap(), 5).unwrap().bytes();
        assert_eq!(bytes > 8 << 20, count > 2, "{count} networks take {bytes} bytes");
        compared.install(&policy);
        for at in (0..MANY).step_by(MANY / 1000) {
            let near = Ipv4Addr::from(addresses[at].to_bits() ^ 1);
            let [listed, _] = [addresses[at], near].map(|source| {
                compared.decide(&FrameSpec::default().between(&source.to_string(), "198.51.100.2"))
            });
            assert_eq!(listed.0 == Verdict::Drop, at < count, "{}", addresses[at]);
        }
    }
}

#[test]
fn a_22_has_one_class_or_several() {
    if !root::is_root() {
        return;
    }
    let mut compared = ComparedProgram::new();
    let set = |name: &str, networks: &str| {
        format!("set.{name} = {{ action = 'drop', networks = [{networks}] }}\n")
    };
    let few = set("a", "'198.18.0.0/24', '198.18.4.0/24'")
        + &set("b", "'198.18.1.0/24', '198.18.2.7', '198.18.5.7'")
        + &set("c", "'198.18.1.9', '198.18.0.9'");
    // The whole space has a class, or none.
    let whole = few.clone() + &set("whole", "'0.0.0.0/0'");
    for policy in [&few, &whole] {
        compared.install(policy);
        let causes: Vec<_> =
            ["0.1", "0.9", "1.1", "1.9", "2.7", "2.8", "3.1", "4.1", "5.7", "5.8", "6.1"]
                .iter()
                .map(|it| {
                    let source = format!("198.18.{it}");
                    let cause =
                        compared.decide(&FrameSpec::default().between(&source, "203.0.113.1")).1;
                    matches!(cause, Cause::Set(_)).then(|| format!("{cause:?}"))
                })
                .collect();
        let sets: Vec<_> = causes.iter().map(|it| it.as_deref().unwrap_or("none")).collect();
        let rest = if policy == &whole { "Set(3)" } else { "none" };
        let [a, b] = ["Set(0)", "Set(1)"];
        assert_eq!(sets, [a, a, b, b, b, rest, rest, a, b, rest, rest]);
    }
}

/// The byte of a /22 tells 255 kinds apart.
#[test]
fn more_kinds_of_22_than_a_byte_tells_apart() {
    if !root::is_root() {
        return;
    }
    let mut compared = ComparedProgram::new();
    // The numbers of the sets that a /22 is in are the bits of its own.
    let of_22 = |number: u32| Ipv4Addr::from(0x1000_0000 + (number << 10));
    let (sets, last) = (9, 511_u32);
    let list = |set: u32| {
        let networks = (1..=last).filter(|it| it >> set & 1 != 0);
        let networks = networks.map(|it| format!("'{}/23', '{0}',", of_22(it)));
        format!(
            "set.s{set} = {{ action = 'drop', networks = [{}] }}\n",
            networks.collect::<String>()
        )
    };
    compared.install(&(0..sets).map(list).collect::<String>());
    for number in 0..=last + 1 {
        for within in [0, 1, 0x1ff, 0x200, 0x3ff] {
            let source = Ipv4Addr::from(of_22(number).to_bits() + within).to_string();
            let (verdict, cause) =
                compared.decide(&FrameSpec::default().between(&source, "203.0.113.1"));
            let listed = (1..=last).contains(&number) && within < 0x200;
            assert_eq!(verdict == Verdict::Drop, listed, "{source}: {cause:?}");
        }
    }
}

#[test]
fn a_24_has_one_longer_prefix_or_several() {
    if !root::is_root() {
        return;
    }
    let mut compared = ComparedProgram::new();
    for around in ["", "'16.0.0.0/8',", "'0.0.0.0/0',"] {
        let mut networks = String::new();
        for length in 25..=32 {
            networks += &format!("'16.1.{length}.128/{length}', '16.2.{length}.128/{length}',");
            networks += &format!("'16.2.{length}.1',");
        }
        compared.install(&format!(
            "set.around = {{ action = 'drop', networks = [{around}] }}\n\
             set.list = {{ action = 'pass', networks = [{networks}] }}\n"
        ));
        for length in 25..=32 {
            let last = 128 + (1_u32 << (32 - length)) - 1;
            for (network, byte, listed) in [
                (1, 127, false),
                (1, 128, true),
                (1, last, true),
                (1, last + 1, false),
                (1, 1, false),
                (2, 1, true),
                (2, last, true),
                (2, last + 1, false),
            ] {
                if byte > 255 {
                    continue;
                }
                let source = format!("16.{network}.{length}.{byte}");
                let spec = FrameSpec::default().between(&source, "203.0.113.1");
                let expected = match (listed, around) {
                    (true, _) => (Verdict::Pass, Cause::Set(1)),
                    (false, "") => PASSED,
                    (false, _) => (Verdict::Drop, Cause::Set(0)),
                };
                assert_eq!(compared.decide(&spec), expected, "{source}");
            }
        }
    }
}

/// Some 60 places in the table of records have those of several addresses. IPv6 addresses need second lines.
#[test]
fn rules_for_many_addresses_share_places() {
    if !root::is_root() {
        return;
    }
    let mut compared = ComparedProgram::new();
    let address = |rule: u32, at: u32| match rule % 2 {
        0 => format!("203.0.{rule}.{at}"),
        _ => format!("2001:db8::{rule:x}:{at:x}"),
    };
    let rule = |rule: u32| {
        let addresses = (0..100).map(|at| format!("'{}',", address(rule, at))).collect::<String>();
        let ports = (1..=8).map(|it| format!("'{0}000-{0}004',", it)).collect::<String>();
        let dst = format!("dst = [{addresses}], protocol = 'udp', dport = [{ports}]");
        format!("[[rule]]\nname = 'r{rule}'\nmatch = {{ {dst} }}\naction = 'drop'\n")
    };
    compared.install(&(0..20).map(rule).collect::<String>());
    for rule in 0..20 {
        for at in 0..101 {
            let dst = address(rule, at);
            let src = if rule % 2 == 0 { "198.51.100.7" } else { "2001:db8:1::7" };
            for (port, listed) in [(1000, true), (4004, true), (8004, true), (8005, false)] {
                let spec = FrameSpec::udp(1000, port, &[]).between(src, &dst);
                let expected = match listed && at < 100 {
                    true => (Verdict::Drop, Cause::Rule(rule as usize)),
                    false => PASSED,
                };
                assert_eq!(compared.decide(&spec), expected, "{dst} {port}");
            }
        }
    }
}

#[test]
fn the_last_destination_has_a_version() {
    if !root::is_root() {
        return;
    }
    let mut compared = ComparedProgram::new();
    compared.install(&protecting("192.0.2.0/24", "drop"));
    let v4 = FrameSpec::default().between("198.51.100.7", "192.0.2.1");
    // The program stores both addresses as the same words.
    let v6 = FrameSpec::default().between("2001:db8::1", "c000:201::");
    for _ in 0..3 {
        assert_eq!(compared.decide(&v4), DROPPED);
        assert_eq!(compared.decide(&v6), UNPROTECTED);
    }
}

#[test]
fn the_last_destination_is_that_of_the_packet_inside() {
    if !root::is_root() {
        return;
    }
    let mut compared = ComparedProgram::new();
    compared.install(&format!("tunnels = ['ipip']\n{}", protecting("198.51.100.0/24", "drop")));
    let inner = FrameSpec::default().between("192.0.2.9", "203.0.113.9");
    let tunnel = inner.inside(&FrameSpec::default(), TunnelSpec::IpIp);
    for _ in 0..3 {
        // Nobody protects the packet inside: the outer one decides.
        assert_eq!(compared.decide(&tunnel), DROPPED);
        assert_eq!(compared.decide(&inner), UNPROTECTED);
    }
}

#[test]
fn a_rule_finds_its_protocol_behind_all_headers() {
    if !root::is_root() {
        return;
    }
    let mut compared = ComparedProgram::new();
    compared.install("[[rule]]\nname = 'udp'\nmatch = { protocol = 'udp' }\naction = 'drop'\n");
    let udp = FrameSpec::udp(1000, 2000, &[0; 64]);
    let v6 = udp.clone().between("2001:db8::1", "2001:db8::2");
    let later = Some(Fragment { offset: 8, more: false });
    let specs = [
        udp.clone(),
        FrameSpec { fragment: later, ..udp },
        v6.clone(),
        FrameSpec { extensions: vec![60], ..v6.clone() },
        FrameSpec { fragment: later, ..v6.clone() },
        FrameSpec { extensions: vec![0, 60], fragment: later, ..v6 },
    ];
    for spec in &specs {
        assert_eq!(compared.decide(spec), (Verdict::Drop, Cause::Rule(0)), "{spec:?}");
        let tcp = FrameSpec { protocol: 6, ..spec.clone() };
        assert_eq!(compared.decide(&tcp), PASSED, "{tcp:?}");
    }
}

#[test]
fn a_rule_for_one_version_is_not_looked_up_for_the_other() {
    if !root::is_root() {
        return;
    }
    let rule = |version: u8, protocol: &str| {
        let name = format!("{protocol} of {version}");
        format!(
            "[[rule]]\nname = '{name}'\nmatch = {{ version = {version}, protocol = '{protocol}' }}\naction = 'drop'\n"
        )
    };
    let mut compared = ComparedProgram::new();
    compared.install(&(rule(4, "udp") + &rule(6, "tcp")));
    for (src, dst, [udp, tcp]) in [
        ("192.0.2.1", "198.51.100.1", [(Verdict::Drop, Cause::Rule(0)), PASSED]),
        ("2001:db8::1", "2001:db8::2", [PASSED, (Verdict::Drop, Cause::Rule(1))]),
    ] {
        assert_eq!(compared.decide(&FrameSpec::udp(1000, 2000, &[]).between(src, dst)), udp);
        assert_eq!(compared.decide(&FrameSpec::default().between(src, dst)), tcp);
    }
}
