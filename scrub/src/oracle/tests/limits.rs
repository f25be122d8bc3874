//! Limits.

use super::*;

/// Returns the oracle of a profile with limits.
fn limited(limits: Vec<Limit>) -> Oracle {
    let profile = Profile { limits, ..Profile::default() };
    Oracle::new(&Policy { profiles: vec![profile], ..Policy::default() })
}

/// Returns how many of 1000 packets at once are accepted.
fn accepted_at(oracle: &mut Oracle, spec: &FrameSpec, now_ns: u64) -> usize {
    let frame = spec.build();
    (0..1000).filter(|_| oracle.decide(&frame, now_ns).verdict == Verdict::Pass).count()
}

#[test]
fn numbers_of_limits_are_places_in_the_policy() {
    let random = &mut Random::new(3);
    for _ in 0..300 {
        let policy = random_policy(random);
        let oracle = Oracle::new(&policy);
        let limits: Vec<_> = policy.limits().collect();
        let is_same = |first: usize, list: &[Limit]| {
            list.iter().zip(&limits[first..]).all(|(one, other)| std::ptr::eq(one, *other))
        };
        for (rule, first) in policy.rules.iter().zip(&oracle.numbers.rules) {
            let RuleAction::Limit(limits) = &rule.action else { continue };
            assert!(is_same(*first, limits));
        }
        for (place, profile) in policy.profiles.iter().enumerate() {
            assert!(is_same(oracle.numbers.profiles[place], &profile.limits));
            for (class, first) in profile.amplification.iter().zip(&oracle.numbers.classes[place]) {
                let ClassAction::Limit(limits) = class else { continue };
                assert!(is_same(*first, limits));
            }
        }
    }
}

#[test]
fn rates_and_bursts() {
    const MS: u64 = 1_000_000;
    let spec = FrameSpec { padding: 60, ..FrameSpec::default() };
    let limit = |rate, burst| Limit { by: LimitKey::All, rate, burst };
    // One packet more than fit in the burst, because the first one finds the limit at rest.
    let oracle = &mut limited(vec![limit(Rate::Packets(1000), Duration::from_millis(20))]);
    assert_eq!(accepted_at(oracle, &spec, 5 * MS), 21);
    assert_eq!(accepted_at(oracle, &spec, 6 * MS - 1), 0);
    assert_eq!(accepted_at(oracle, &spec, 6 * MS), 1);
    assert_eq!(accepted_at(oracle, &spec, 9 * MS), 3);
    assert_eq!(accepted_at(oracle, &spec, 10_000 * MS), 21);
    let oracle = &mut limited(vec![limit(Rate::Packets(1000), Duration::ZERO)]);
    assert_eq!(accepted_at(oracle, &spec, 0), 1);
    assert_eq!(accepted_at(oracle, &spec, MS - 1), 0);
    assert_eq!(accepted_at(oracle, &spec, MS), 1);
    // Frames of 114 bytes, padding included: 912 bits, a little less than 1 ms each.
    assert_eq!(spec.build().len(), 114);
    let oracle = &mut limited(vec![limit(Rate::Bits(912_000), Duration::from_millis(9))]);
    assert_eq!(accepted_at(oracle, &spec, 0), 10);
    assert_eq!(accepted_at(oracle, &spec, 2 * MS), 2);
}

#[test]
fn keys_of_limits() {
    let cases = [
        (LimitKey::Source, "192.0.2.1", "10.0.0.1", true),
        (LimitKey::Source, "192.0.2.2", "10.0.0.9", false),
        (LimitKey::Source, "2001:db8::1", "2001:db8:1::1", true),
        (LimitKey::Source, "2001:db8::ffff:0:0:1", "2001:db8:1::1", true),
        (LimitKey::Source, "2001:db8:0:1::1", "2001:db8:1::1", false),
        (LimitKey::SourceNetwork, "192.0.2.255", "10.0.0.1", true),
        (LimitKey::SourceNetwork, "192.0.3.1", "10.0.0.9", false),
        (LimitKey::SourceNetwork, "2001:db8:0:ffff::1", "2001:db8:1::1", true),
        (LimitKey::SourceNetwork, "2001:db8:1::1", "2001:db8:2::1", false),
        (LimitKey::Destination, "11.0.0.1", "10.0.0.9", true),
        (LimitKey::Destination, "192.0.2.1", "10.0.0.8", false),
        (LimitKey::Destination, "2001:db9::1", "2001:db8:1::9", true),
        (LimitKey::Destination, "2001:db8::1", "2001:db8:1::8", false),
        (LimitKey::All, "1.0.0.1", "2.0.0.1", true),
        (LimitKey::All, "2001:db9::1", "2001:db9::2", true),
    ];
    for (by, src, dst, is_charged) in cases {
        let oracle = &mut limited(vec![once(by)]);
        for (src, dst) in [("192.0.2.1", "10.0.0.9"), ("2001:db8::1", "2001:db8:1::9")] {
            oracle.decide(&FrameSpec::default().between(src, dst).build(), 1);
        }
        let decision = oracle.decide(&FrameSpec::default().between(src, dst).build(), 1);
        let expected = if is_charged { Cause::Limit(0) } else { Cause::Default };
        assert_eq!(decision.cause, expected, "{by:?} {src} {dst}");
    }
}

#[test]
fn limits_before_the_refusing_one_stay_charged() {
    let limit = |rate| Limit { by: LimitKey::All, rate, burst: Duration::from_secs(1) };
    let limits = vec![limit(Rate::Packets(4)), once(LimitKey::Source), limit(Rate::Packets(2))];
    let oracle = &mut limited(limits);
    let from = |src| FrameSpec::default().between(src, "10.0.0.1").build();
    let causes: Vec<_> = ["10.0.0.2", "10.0.0.2", "10.0.0.3", "10.0.0.3", "10.0.0.4", "10.0.0.5"]
        .into_iter()
        .map(|src| oracle.decide(&from(src), 0).cause)
        .collect();
    let (accepted, refused) = (Cause::Default, Cause::Limit);
    assert_eq!(causes, [accepted, refused(1), accepted, refused(1), accepted, refused(0)]);
}

/// Networks with the same profile share its limits, others do not.
#[test]
fn limits_belong_to_profiles() {
    let profile = || Profile { limits: vec![once(LimitKey::All)], ..Profile::default() };
    let policy = Policy {
        networks: vec![
            protected(&["10.0.0.0/8"], 0),
            protected(&["11.0.0.0/8"], 0),
            protected(&["12.0.0.0/8"], 1),
        ],
        profiles: vec![profile(), profile()],
        ..Policy::default()
    };
    let oracle = &mut Oracle::new(&policy);
    let mut to = |dst| oracle.decide(&FrameSpec::default().between("9.0.0.1", dst).build(), 0);
    assert_eq!(to("10.0.0.1"), passes(Cause::Default));
    assert_eq!(to("11.0.0.1"), drops(Cause::Limit(0)));
    assert_eq!(to("12.0.0.1"), passes(Cause::Default));
    assert_eq!(to("12.0.0.1"), drops(Cause::Limit(1)));
}
