//! The XDP program and the oracle decide alike.

use std::collections::HashMap;

use sluicegate_scrub::cause::Cause;
use sluicegate_scrub::oracle::Oracle;
use sluicegate_scrub::packet::{Parsed, parse_inside};
use sluicegate_scrub::policy::{Policy, Verdict};
use sluicegate_scrub::program::Program;
use sluicegate_scrub::tables::{Tables, TablesError};
use sluicegate_scrub::testing::{
    FrameGenerator, FrameSpec, Random, TcpScenario, TunnelSpec, UdpScenario, random_policy,
};

mod root;

/// Frames for each policy.
const FRAMES: usize = 10_000;

/// The number of policies, from the environment: `make soak` takes more.
fn policies() -> u64 {
    std::env::var("SCRUB_POLICIES").map_or(100, |it| it.parse().expect("a number"))
}

/// A million pairs of policy and frame.
#[test]
fn verdicts_and_causes_are_equal() {
    if !root::is_root() {
        return;
    }
    let mut program = Program::for_rehearsal(1 << 16).unwrap();
    let seed = std::env::var("SCRUB_SEED").map_or(1, |it| it.parse().expect("a number"));
    let mut random = Random::new(seed);
    let mut now = 1_000_000_000;
    let (mut causes, mut too_large, mut inside) = (HashMap::<Cause, u64>::new(), 0, 0);
    for number in 0..policies() {
        let policy = random_policy(&mut random);
        let tables = match Tables::build(&policy, random.number()) {
            Ok(tables) => tables,
            // Some random rules have too many alternatives.
            Err(TablesError::Rules(_) | TablesError::TooManyAlternatives { .. }) => {
                too_large += 1;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        program.install(&tables).unwrap();
        let mut oracle = Oracle::new(&policy);
        // Keys, sources and flows of earlier policies are forgotten after a day.
        now += 86_400_000_000_000;
        let frames = FrameGenerator::new(&policy);
        for _ in 0..FRAMES {
            let frame = frames.frame(&mut random);
            // BPF_PROG_RUN takes no shorter ones.
            if frame.len() < 14 {
                continue;
            }
            now += 1000;
            program.set_time(now);
            let found = program.rehearse(&frame).unwrap();
            let right = oracle.decide(&frame, now);
            assert_eq!(
                found,
                right,
                "policy {number} of seed {seed}: {policy:?}\n{}{frame:02x?}",
                oracle.explain(&frame, now)
            );
            *causes.entry(without_place(right.cause)).or_default() += 1;
            if let Parsed::Packet(packet) = parse_inside(&frame, policy.tunnels) {
                inside += u64::from(packet.tunnel.is_some());
            }
        }
    }
    // A few policies may miss a cause, or not fit.
    if policies() < 100 {
        return;
    }
    assert!(causes.len() >= 22, "{causes:?}");
    assert!(inside > policies() * 50, "{inside} packets inside of tunnels");
    assert!(too_large <= policies() / 20, "{too_large} policies do not fit");
}

/// Returns a packet as it is, or inside of a tunnel.
fn perhaps_inside(spec: &FrameSpec, random: &mut Random) -> FrameSpec {
    match random.below(8) {
        0 => spec.inside(&FrameSpec::default(), TunnelSpec::Gre(0x2000)),
        1 => {
            let outer = FrameSpec { extensions: vec![60], ..FrameSpec::default() };
            spec.inside(&outer.between("2001:db8::1", "2001:db8::2"), TunnelSpec::IpIp)
        }
        _ => spec.clone(),
    }
}

/// Returns a cause of the same kind, of the first place.
fn without_place(cause: Cause) -> Cause {
    match cause {
        Cause::Set(_) => Cause::Set(0),
        Cause::Rule(_) => Cause::Rule(0),
        Cause::Amplification(_) => Cause::Amplification(0),
        Cause::Limit(_) => Cause::Limit(0),
        other => other,
    }
}

#[test]
fn sequences_of_tcp_packets_are_treated_alike() {
    if !root::is_root() {
        return;
    }
    let mut program = Program::for_rehearsal(1 << 18).unwrap();
    let mut random = Random::new(2);
    let key = [1, 2];
    program.set_cookie_key(key);
    let mut now = 1_000_000_000_u64;
    let (mut causes, mut inside) = (HashMap::new(), 0);
    let servers = ["198.51.100.1", "198.51.100.2", "2001:db8::80"].map(|it| it.parse().unwrap());
    for challenge in ["auto", "auto", "always", "off"] {
        for state in ["on", "off"] {
            for (above, below) in [(1, 1), (5, 3), (20, 5)] {
                let text = format!(
                    "tunnels = ['gre', 'ipip']\nprofile.default.tcp = {{ challenge = '{challenge}', above = {above}, below = {below}, state = '{state}' }}"
                );
                let policy = Policy::parse(&text).unwrap();
                program.install(&Tables::build(&policy, 5).unwrap()).unwrap();
                let mut oracle = Oracle::new(&policy);
                oracle.set_cookie_key(key);
                // Forgets what the tables of TCP have.
                now += 86_400_000_000_000;
                let mut scenario = TcpScenario::new(&servers);
                for _ in 0..3000 {
                    let cookie =
                        |spec: &FrameSpec| oracle.acknowledgement(&spec.build(), now).unwrap();
                    let (spec, wait) = scenario.next(&mut random, cookie);
                    now += wait;
                    program.set_time(now);
                    let sent = perhaps_inside(&spec, &mut random);
                    let frame = sent.build();
                    let (ours, answer) = program.rehearse_answer(&frame).unwrap();
                    let explained = oracle.explain(&frame, now);
                    assert_eq!(ours, explained.decision, "{text}, {now}: {explained}");
                    if sent != spec {
                        assert_ne!(ours.verdict, Verdict::Answer, "{explained}");
                        inside += 1;
                    }
                    if let Some(number) = answer
                        .get(14 + 4 * spec.tags.len() + if spec.src.is_ipv4() { 28 } else { 48 }..)
                    {
                        let number = u32::from_be_bytes(*number.first_chunk().unwrap());
                        assert_eq!(Some(number), oracle.acknowledgement(&frame, now));
                    }
                    *causes.entry(ours).or_insert(0) += 1;
                }
            }
        }
    }
    println!("{causes:#?}, {inside} in tunnels");
    let enough = causes.values().all(|count| *count > 100);
    assert!(causes.len() == 5 && enough, "{causes:?}");
}

#[test]
fn sequences_of_queries_are_treated_alike() {
    if !root::is_root() {
        return;
    }
    let mut program = Program::for_rehearsal(1 << 18).unwrap();
    let mut random = Random::new(3);
    let key = [1, 2];
    program.set_cookie_key(key);
    let mut now = 1_000_000_000_u64;
    let (mut causes, mut inside) = (HashMap::new(), 0);
    let servers = ["198.51.100.1", "198.51.100.2", "2001:db8::80"].map(|it| it.parse().unwrap());
    for above in ["", "above = 1", "above = 5", "above = 20"] {
        for verified_for in ["10s", "10m"] {
            let rule = |name: &str, port: u16| {
                format!(
                    "[[rule]]\nname = '{name}'\nmatch = {{ dport = {port} }}\nchallenge = '{name}'\n{above}\n"
                )
            };
            let rules = rule("a2s", UdpScenario::A2S_PORT) + &rule("dns", UdpScenario::DNS_PORT);
            let profile = format!(
                "tunnels = ['gre', 'ipip']\nprofile.default.tcp = {{ verified_for = '{verified_for}' }}\n"
            );
            let policy = Policy::parse(&(profile + &rules)).unwrap();
            program.install(&Tables::build(&policy, 5).unwrap()).unwrap();
            let mut oracle = Oracle::new(&policy);
            oracle.set_cookie_key(key);
            now += 86_400_000_000_000;
            let mut scenario = UdpScenario::new(&servers);
            let mut verified = 0;
            for _ in 0..10_000 {
                let cookie = |spec: &FrameSpec| oracle.cookie(&spec.build(), now).unwrap();
                let (spec, wait) = scenario.next(&mut random, cookie);
                now += wait;
                program.set_time(now);
                let sent = perhaps_inside(&spec, &mut random);
                let frame = sent.build();
                let (ours, answer) = program.rehearse_answer(&frame).unwrap();
                let explained = oracle.explain(&frame, now);
                assert_eq!(ours, explained.decision, "{rules}, {now}: {explained}");
                if sent != spec {
                    assert_ne!(ours.verdict, Verdict::Answer, "{explained}");
                    inside += 1;
                }
                if ours.cause == Cause::ChallengeA2s {
                    let at = 14 + 4 * spec.tags.len() + if spec.src.is_ipv4() { 33 } else { 53 };
                    let number = u32::from_be_bytes(*answer[at..].first_chunk().unwrap());
                    assert_eq!(Some(number), oracle.cookie(&frame, now));
                }
                verified += u32::from(explained.to_string().contains("has a cookie"));
                *causes.entry(ours).or_insert(0) += 1;
            }
            assert!(verified > 100, "{rules}: {verified}");
        }
    }
    println!("{causes:#?}, {inside} in tunnels");
    let enough = causes.values().all(|count| *count > 1000);
    assert!(causes.len() == 3 && enough, "{causes:?}");
}
