//! Tunnels.

use super::*;

/// Returns a policy with all tunnels, and more of its text.
fn with_tunnels(text: &str) -> Policy {
    Policy::parse(&format!("tunnels = ['gre', 'ipip']\n{text}")).unwrap()
}

fn in_gre(spec: &FrameSpec) -> FrameSpec {
    spec.inside(&FrameSpec::default().between("203.0.113.1", "203.0.113.2"), TunnelSpec::Gre(0))
}

#[test]
fn the_packet_inside_of_a_tunnel_decides_and_its_frame_is_charged() {
    let text = "[[rule]]\nname = 'a'\nmatch = { dport = 9, length = 30, src = '192.0.2.1' }\naction = 'drop'\n";
    let (without, with) = (Policy::parse(text).unwrap(), with_tunnels(text));
    let spec = FrameSpec::udp(1, 9, &[0; 2]);
    assert_eq!(first(&without, &in_gre(&spec)), passes(Cause::Default));
    assert_eq!(first(&with, &in_gre(&spec)), drops(Cause::Rule(0)));
    let one_level = in_gre(&in_gre(&spec));
    assert_eq!(first(&with, &one_level), passes(Cause::Default));
    let explained = Oracle::new(&with).explain(&in_gre(&spec).build(), 1).to_string();
    let lines: Vec<_> = explained.lines().take(2).collect();
    assert_eq!(
        lines,
        [
            "frame: 68 bytes: protocol 47 203.0.113.1 to 203.0.113.2, 54 bytes, ttl 64",
            "tunnel: gre: UDP 192.0.2.1 port 1 to 198.51.100.1 port 9, 30 bytes, ttl 64",
        ]
    );
    let limit = Limit { rate: Rate::Bits(68 * 8), ..once(LimitKey::All) };
    let profiles = vec![Profile { limits: vec![limit], ..Profile::default() }];
    let mut oracle = Oracle::new(&Policy { profiles, ..with });
    let times = [1_000_000_000, 1_999_999_999, 2_000_000_000];
    let frame = in_gre(&FrameSpec { dport: 10, ..spec }).build();
    let verdicts = times.map(|now| oracle.decide(&frame, now).verdict);
    assert_eq!(verdicts, [Verdict::Pass, Verdict::Drop, Verdict::Pass], "68 bytes a second");
}

#[test]
fn a_tunnel_to_an_unprotected_destination_decides_itself() {
    let policy = with_tunnels(
        "[protect.web]\nnetworks = ['203.0.113.0/24', '198.51.100.0/24']\n\
         [[rule]]\nname = 'gre'\nmatch = { protocol = 47 }\naction = 'drop'\n",
    );
    let spec = FrameSpec::default();
    assert_eq!(first(&policy, &in_gre(&spec)), passes(Cause::Default));
    let elsewhere = in_gre(&spec.clone().between("192.0.2.1", "192.0.2.2"));
    assert_eq!(first(&policy, &elsewhere), drops(Cause::Rule(0)));
    let explained = Oracle::new(&policy).explain(&elsewhere.build(), 1).to_string();
    let decides =
        "network: 192.0.2.2: not protected, the tunnel decides\nnetwork: 203.0.113.2: in ";
    assert!(explained.contains(decides), "{explained}");
    let both = elsewhere.between("192.0.2.3", "192.0.2.4");
    assert_eq!(first(&policy, &both), passes(Cause::Unprotected));
}

#[test]
fn nothing_is_answered_inside_of_a_tunnel() {
    const SECOND: u64 = 1_000_000_000;
    let policy = with_tunnels(
        "profile.default.tcp = 'always'\n\
         [[rule]]\nname = 'a2s'\nmatch = { dport = 27015 }\nchallenge = 'a2s'\n",
    );
    let mut oracle = Oracle::new(&policy);
    let syn = FrameSpec { tcp_flags: 2, ..FrameSpec::default() };
    let answer = Decision { verdict: Verdict::Answer, cause: Cause::Challenge };
    assert_eq!(oracle.decide(&syn.build(), SECOND), answer);
    // As on level 1: the retransmission passes, and verifies the source for that level.
    let inside = in_gre(&syn).build();
    for (ms, decision) in [
        (1000, drops(Cause::FirstSyn)),
        (1500, drops(Cause::FirstSyn)),
        (2000, passes(Cause::Default)),
        (2001, passes(Cause::Default)),
        (62_001, drops(Cause::FirstSyn)),
    ] {
        assert_eq!(oracle.decide(&inside, ms * SECOND / 1000), decision, "{ms}");
    }
    let query = FrameSpec::udp(1, 27015, b"\xff\xff\xff\xffTSource Engine Query\0");
    let answer = Decision { verdict: Verdict::Answer, cause: Cause::ChallengeA2s };
    assert_eq!(first(&policy, &query), answer);
    assert_eq!(first(&policy, &in_gre(&query)), passes(Cause::Default));
}
