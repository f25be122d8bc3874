//! Explanations.

use std::collections::HashSet;
use std::mem::discriminant;

use super::*;

#[test]
fn an_explanation_has_all_steps() {
    let conditions = Conditions { dport: ranges(&[(443, 443)]), ..Conditions::default() };
    let limits = vec![once(LimitKey::SourceNetwork)];
    let policy = Policy {
        networks: vec![protected(&["198.51.100.0/24"], 0)],
        profiles: vec![Profile { limits, ..with_class("dns", ClassAction::Continue) }],
        rules: vec![rule(conditions, RuleAction::Drop)],
        ..Policy::default()
    };
    let oracle = &mut Oracle::new(&policy);
    let frame = FrameSpec { tags: vec![(0x8100, 7)], ..part(dns_answer(), 0, true) }.build();
    oracle.explain(&frame, 0);
    let expected = "\
frame: 58 bytes: UDP 192.0.2.1 port 53 to 198.51.100.1 port 1000, 40 bytes, ttl 64, first fragment, vlan 7
network: 198.51.100.1: in 198.51.100.0/24 of \"a network\", profile \"default\"
sets: 192.0.2.1: in no set that passes or drops
rules: rule 0 \"a rule\": does not match: dport is 1000
rules: 1 rules: none matches
amplification: class \"dns\": continues
fragments: profile \"default\": continues
limits: limit 0: 1 packets/s from 192.0.2.0/24, burst 0ns: exceeded, drops
drop: limit 0 exceeded";
    assert_eq!(oracle.explain(&frame, 0).to_string(), expected);
}

/// The decision depends on the policy, the frames and times alone, and explanations do not change it.
#[test]
fn decisions_are_a_function_of_policy_and_frames() {
    let mut causes = HashSet::new();
    for seed in 0..300 {
        let random = &mut Random::new(seed);
        let policy = random_policy(random);
        let frames = FrameGenerator::new(&policy);
        let mut oracle = Oracle::new(&policy);
        let mut other = Oracle::new(&policy);
        let mut now = 0;
        for _ in 0..150 {
            let frame = frames.frame(random);
            now += random.pick(&[0, 1, 1000, 1_000_000, 1_000_000_000]);
            let decision = oracle.decide(&frame, now);
            let explanation = other.explain(&frame, now);
            assert_eq!(explanation.decision, decision, "seed {seed}, {explanation}");
            assert!(!explanation.steps.is_empty());
            causes.insert(discriminant(&decision.cause));
        }
    }
    // The random packets reach all stages.
    assert_eq!(causes.len(), 14);
}

#[test]
fn an_explanation_of_the_last_frame_charges_it_once() {
    let limits =
        vec![Limit { rate: Rate::Packets(3), ..once(LimitKey::Source) }, once(LimitKey::All)];
    let policy =
        Policy { profiles: vec![Profile { limits, ..Profile::default() }], ..Policy::default() };
    let frame = FrameSpec::default().build();
    let (mut oracle, mut other) = (Oracle::new(&policy), Oracle::new(&policy));
    for now_ns in (1..40).map(|it| it * 100_000_000) {
        let decision = oracle.decide(&frame, now_ns);
        let explained = oracle.explain_last(&frame, now_ns, decision);
        assert!(explained.decision == decision && !explained.steps.is_empty(), "{explained}");
        assert_eq!(other.decide(&frame, now_ns), decision);
    }
}
