//! All keys but those of matches.

use std::time::Duration;

use sluicegate_scrub::packet::Tunnels;
use sluicegate_scrub::policy::{
    AMPLIFICATION, AddressCondition, Challenge, ClassAction, FragmentAction, Handover, Limit,
    LimitKey, MAX_LIMITS, MAX_NETWORKS, MAX_PROFILES, MAX_RULES, MAX_SETS, Policy, Profile, Rate,
    RuleAction, SetAction, TcpProtection, Threshold, UdpChallenge, UdpQuery, Verdict,
};

const POLICY: &str = r#"
[[rule]]
name = "no-telnet"
match = { protocol = "tcp", dport = [23, 2323] }
action = "drop"

[[rule]]
name = "dns answers"
match = "udp and src port 53"
limit = [{ packets = "10kpps", bits = "100Mbps", by = "source", burst = "200ms" },
         { packets = 7, by = "all" }]
sample = 1000
mark = "ef"

[[rule]]
name = "friends"
match = { src_set = "friends", dst_set = ["friends", "bad"] }
action = "pass"

[[rule]]
name = "all"
match = {}
action = "continue"
mark = 46

[protect.web]
networks = ["198.18.1.0/24", "2001:db8:18:1::/64", "198.18.2.7"]
profile = "web"

[protect.other]
networks = "198.18.0.0/15"

[set.friends]
action = "pass"
networks = ["192.0.2.0/24"]

[set.bad]
action = "drop"
networks = []

[set.named]
networks = "2001:db8::1"

[profile.web]
fragments = "drop"
amplification = { default = "drop", dns = { bits = "1Gbps" }, ntp = "continue", ssdp = { packets = "1kpps", by = "all" } }
default = "drop"
limits = [ { by = "source-network", packets = "5kpps" }, { by = "destination", bits = "1.5Gbps" }, { packets = 9 } ]

[profile.simple]
amplification = "drop"
fragments = "follow"
default = "pass"
limits = { packets = "1Mpps", burst = "1.5s" }
"#;

fn limit(by: LimitKey, rate: Rate, ms: u64) -> Limit {
    Limit { by, rate, burst: Duration::from_millis(ms) }
}

#[test]
fn rules_are_read_in_order() {
    let policy = Policy::parse(POLICY).unwrap();
    let [telnet, dns, friends, all] = policy.rules.as_slice() else { panic!("{policy:?}") };
    assert_eq!((telnet.name.as_str(), &telnet.action), ("no-telnet", &RuleAction::Drop));
    assert_eq!((telnet.sample, telnet.mark, telnet.line), (0, None, Some(2)));
    let limits = vec![
        limit(LimitKey::Source, Rate::Packets(10_000), 200),
        limit(LimitKey::Source, Rate::Bits(100_000_000), 200),
        limit(LimitKey::All, Rate::Packets(7), 100),
    ];
    assert_eq!(dns.action, RuleAction::Limit(limits));
    assert_eq!((dns.sample, dns.mark, dns.line), (1000, Some(46), Some(7)));
    assert_eq!(friends.action, RuleAction::Pass);
    let set = AddressCondition::Set;
    assert_eq!(friends.conditions.src, [set(0)]);
    assert_eq!(friends.conditions.dst, [set(0), set(1)]);
    assert_eq!((&all.action, all.mark, all.line), (&RuleAction::Continue, Some(46), Some(20)));
    assert_eq!(all.conditions, Default::default());
}

#[test]
fn networks_and_sets_are_read_in_order() {
    let policy = Policy::parse(POLICY).unwrap();
    let named = |name| policy.profiles.iter().position(|it| it.name == name).unwrap();
    let [web, other] = policy.networks.as_slice() else { panic!("{policy:?}") };
    assert_eq!((web.name.as_str(), web.profile), ("web", named("web")));
    assert_eq!(web.networks.len(), 3);
    assert_eq!(web.networks[2], "198.18.2.7/32".parse().unwrap());
    assert_eq!((other.name.as_str(), other.profile), ("other", 0));
    let sets: Vec<_> =
        policy.sets.iter().map(|it| (it.name.as_str(), it.action, it.networks.len())).collect();
    let expected = [
        ("friends", SetAction::Pass, 1),
        ("bad", SetAction::Drop, 0),
        ("named", SetAction::None, 1),
    ];
    assert_eq!(sets, expected);
}

#[test]
fn profiles_are_read_behind_the_default() {
    let policy = Policy::parse(POLICY).unwrap();
    let [default, web, simple] = policy.profiles.as_slice() else { panic!("{policy:?}") };
    assert_eq!(default, &Profile::default());
    assert_eq!((web.fragments, web.default), (FragmentAction::Drop, Verdict::Drop));
    let limits = [
        limit(LimitKey::SourceNetwork, Rate::Packets(5000), 100),
        limit(LimitKey::Destination, Rate::Bits(1_500_000_000), 100),
        limit(LimitKey::Source, Rate::Packets(9), 100),
    ];
    assert_eq!(web.limits, limits);
    for (class, action) in AMPLIFICATION.iter().zip(&web.amplification) {
        let expected = match class.name {
            "dns" => vec![limit(LimitKey::Destination, Rate::Bits(1_000_000_000), 100)],
            "ssdp" => vec![limit(LimitKey::All, Rate::Packets(1000), 100)],
            name => {
                let continues = name == "ntp";
                assert_eq!(
                    action,
                    if continues { &ClassAction::Continue } else { &ClassAction::Drop }
                );
                continue;
            }
        };
        assert_eq!(action, &ClassAction::Limit(expected), "{}", class.name);
    }
    assert!(simple.amplification.iter().all(|it| *it == ClassAction::Drop));
    assert_eq!((simple.fragments, simple.default), (FragmentAction::Follow, Verdict::Pass));
    assert_eq!(simple.limits, [limit(LimitKey::Source, Rate::Packets(1_000_000), 1500)]);
}

#[test]
fn an_empty_policy_has_the_default_profile() {
    let policy = Policy::parse("").unwrap();
    assert_eq!(policy, Policy { profiles: vec![Profile::default()], ..Policy::default() });
    let policy = Policy::parse("profile.default.default = 'drop'\n[profile.x]\n").unwrap();
    let names: Vec<_> = policy.profiles.iter().map(|it| (it.name.as_str(), it.default)).collect();
    assert_eq!(names, [("default", Verdict::Drop), ("x", Verdict::Pass)]);
}

#[test]
fn tunnels_are_named() {
    let tunnels = |text: &str| Policy::parse(text).unwrap().tunnels;
    assert_eq!(tunnels(""), Tunnels { gre: false, ipip: false });
    assert_eq!(tunnels("tunnels = 'gre'"), Tunnels { gre: true, ipip: false });
    assert_eq!(
        tunnels("tunnels = ['ipip']\n[set.a]\nnetworks = []"),
        Tunnels { gre: false, ipip: true }
    );
    assert_eq!(tunnels("tunnels = ['ipip', 'gre']"), Tunnels { gre: true, ipip: true });
}

/// Returns a policy with a number of parts.
type Text<'a> = &'a dyn Fn(usize) -> String;

#[test]
fn as_many_parts_as_permitted_are_read() {
    let repeat =
        |count: usize, part: &dyn Fn(usize) -> String| -> String { (0..count).map(part).collect() };
    let rule = |it| format!("[[rule]]\nname = '{it}'\nmatch = {{}}\naction = 'drop'\n");
    let limited =
        |it| format!("[[rule]]\nname = '{it}'\nmatch = {{}}\nlimit = {{ packets = 1 }}\n");
    let set = |it| format!("[set.s{it}]\nnetworks = []\n");
    let profile = |it| format!("[profile.p{it}]\n");
    let network = |it| format!("'198.18.{}.{}',", it / 256, it % 256);
    let networks = |count| format!("[protect.x]\nnetworks = [{}]\n", repeat(count, &network));
    let rows: [(&str, usize, Text, &str); 5] = [
        ("rules", MAX_RULES, &|count| repeat(count, &rule), "rule: more than 16384 rules"),
        (
            "limits",
            MAX_LIMITS,
            &|count| repeat(count, &limited),
            "rule 1024: limit: more than 1024 limits in all",
        ),
        ("sets", MAX_SETS, &|count| repeat(count, &set), "set s64: more than 64 sets"),
        (
            "profiles",
            MAX_PROFILES - 1,
            &|count| repeat(count, &profile),
            "profile p63: more than 64 profiles",
        ),
        (
            "networks",
            MAX_NETWORKS,
            &networks,
            "protect x: networks: more than 1024 protected networks",
        ),
    ];
    for (what, most, text, error) in rows {
        Policy::parse(&text(most)).unwrap_or_else(|error| panic!("{what}: {error}"));
        let message = Policy::parse(&text(most + 1)).unwrap_err().to_string();
        assert!(message.contains(error), "{what}: {message}");
    }
    // A limit by default counts once for each class.
    let profile = |number| {
        format!("[profile.x{number}]\namplification = {{ default = {{ packets = 1 }} }}\n")
    };
    let text = |profiles| (0..profiles).map(profile).collect::<String>();
    let most = MAX_LIMITS / AMPLIFICATION.len();
    let policy = Policy::parse(&text(most)).unwrap();
    assert_eq!(policy.limits().count(), most * AMPLIFICATION.len());
    let error = Policy::parse(&text(most + 1)).unwrap_err().to_string();
    assert!(error.contains("amplification: default: more than 1024 limits"), "{error}");
}

#[test]
fn protection_of_tcp() {
    let read = |text: &str| {
        let policy = Policy::parse(&format!("profile.default.tcp = {text}")).unwrap();
        policy.profiles[0].tcp
    };
    let off = TcpProtection {
        challenge: Challenge::Off,
        above: 20_000,
        below: 5000,
        verified_for: Duration::from_secs(600),
        state: false,
        handover: Handover::Auto,
    };
    assert_eq!(read("'off'"), off);
    assert_eq!(Policy::parse("").unwrap().profiles[0].tcp, off);
    let auto = TcpProtection { challenge: Challenge::Auto, ..off };
    assert_eq!((read("'auto'"), read("{}")), (auto, auto));
    assert_eq!(read("'always'"), TcpProtection { challenge: Challenge::Always, ..off });
    let all = "{ challenge = 'off', above = '3kpps', below = 2, verified_for = '1h', state = 'on', handover = 'off' }";
    let verified_for = Duration::from_secs(3600);
    assert_eq!(
        read(all),
        TcpProtection {
            above: 3000,
            below: 2,
            verified_for,
            state: true,
            handover: Handover::Off,
            ..off
        }
    );
    assert_eq!(read("{ handover = 'on' }"), TcpProtection { handover: Handover::On, ..auto });
    assert_eq!(read("{ above = 3 }"), TcpProtection { above: 3, below: 1, ..auto });
    let level = |above, below| Threshold { above, below };
    assert_eq!(auto.thresholds(), [level(20_000, 5000), level(80_000, 20_000)]);
    let high = read("{ above = 100000 }").thresholds();
    assert_eq!(high, [level(100_000, 25_000), level(262_144, 100_000)]);
    let higher = read("{ above = '1Mpps', below = '1Mpps' }").thresholds();
    assert_eq!(higher, [level(1_000_000, 1_000_000); 2], "no level 1");
}

#[test]
fn challenges_of_rules() {
    let read = |text: &str| {
        let text = format!("[[rule]]\nname = 'x'\nmatch = {{ dport = 53 }}\n{text}\n");
        Policy::parse(&text).unwrap().rules.remove(0).action
    };
    let challenge =
        |query, above, cache| RuleAction::Challenge(UdpChallenge { query, above, cache });
    assert_eq!(read("challenge = 'a2s'"), challenge(UdpQuery::A2s, None, None));
    assert_eq!(read("challenge = 'dns'"), challenge(UdpQuery::Dns, None, None));
    let above = "above = '5kpps'\nchallenge = 'dns'\nmark = 'ef'";
    assert_eq!(read(above), challenge(UdpQuery::Dns, Some(5000), None));
    for (text, ms) in [("100ms", 100), ("2s", 2000), ("1m", 60_000)] {
        let cached = challenge(UdpQuery::A2s, None, Some(Duration::from_millis(ms)));
        assert_eq!(read(&format!("cache = '{text}'\nchallenge = 'a2s'")), cached);
    }
}

#[test]
fn a_policy_reports_whether_it_keeps_answers() {
    let rule = |more: &str| {
        let text = format!("[[rule]]\nname = 'x'\nmatch = {{}}\nchallenge = 'a2s'\n{more}\n");
        Policy::parse(&text).unwrap()
    };
    assert!(rule("cache = '2s'").caches_answers());
    assert!(!rule("").caches_answers() && !Policy::default().caches_answers());
}
