//! Policies of the filter: any text is a policy within its limits, or an error on one of its lines.

use std::collections::HashSet;

use bolero::TypeGenerator;
use sluicegate_scrub::policy::{
    AMPLIFICATION, AddressCondition, MAX_LIMITS, MAX_NETWORKS, MAX_PROFILES, MAX_RULES, MAX_SETS,
    Policy, Range,
};

/// Lines of policies, valid and invalid.
const LINES: &[&str] = &[
    "[protect.web]",
    "[protect.other]",
    "[profile.web]",
    "[profile.default]",
    "[set.friends]",
    "[set.bad]",
    "[[rule]]",
    "name = 'a'",
    "name = 'b'",
    "networks = ['198.18.0.0/15', '2001:db8::/32']",
    "networks = '192.0.2.1'",
    "networks = []",
    "files = ['/dev/null']",
    "files = '.'",
    "profile = 'web'",
    "action = 'pass'",
    "action = 'drop'",
    "action = 'continue'",
    "limit = { packets = '1kpps', bits = 1, burst = '1s' }",
    "limits = [{ bits = '1Gbps', by = 'all' }]",
    "amplification = { default = { bits = 1 }, dns = 'drop' }",
    "amplification = 'drop'",
    "fragments = 'drop'",
    "default = 'drop'",
    "challenge = 'dns'",
    "above = '5kpps'",
    "sample = 9",
    "mark = 'ef'",
];

/// Fields of matches.
const FIELDS: &[&str] = &[
    "version = 4",
    "src = '198.18.0.0/15'",
    "dst = ['2001:db8::/32', '192.0.2.1']",
    "src_set = 'friends'",
    "dst_set = ['bad', 'friends']",
    "protocol = ['tcp', 17]",
    "protocol = '!icmp'",
    "port = '-53'",
    "dport = ['!5', '!7-']",
    "length = '0-65535'",
    "ttl = 1",
    "dscp = 'af11'",
    "tcp_flags = 'syn,!ack'",
    "fragment = ['any', 'no']",
    "icmp_type = 'echo-request'",
    "icmp_code = [1, 1]",
    "vlan = 0",
    "flow_label = '1048575-'",
    "payload = { offset = 3, bytes = 'ff 00', mask = 'ff00' }",
];

/// Words of expressions.
const WORDS: &[&str] = &[
    "ip",
    "ip6",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "src",
    "dst",
    "host",
    "net",
    "port",
    "portrange",
    "proto",
    "less",
    "greater",
    "vlan",
    "and",
    "and",
    "and",
    "or",
    "or",
    "not",
    "(",
    ")",
    "tcp[tcpflags]",
    "icmp[icmptype]",
    "& (tcp-syn|tcp-ack)",
    "= tcp-syn",
    "!= 0",
    "5",
    "53",
    "1-1023",
    "198.18",
    "198.18.0.0/15",
    "2001:db8::1",
    "65536",
    "0xff",
    "[",
    "]",
    "é",
];

#[derive(Clone, Debug, TypeGenerator)]
enum Part {
    Line(u8),
    Fields(Vec<u8>),
    Expression(Vec<u8>),
    /// A rule that is valid but for its expression.
    Rule(u8, Vec<u8>),
    Odd(char),
}

impl Part {
    fn write(&self, text: &mut String) {
        let join = |of: &[&str], numbers: &[u8], joint: &str| {
            let parts = numbers.iter().take(12).map(|&it| of[usize::from(it) % of.len()]);
            parts.collect::<Vec<_>>().join(joint)
        };
        *text += &match self {
            Self::Line(line) => format!("{}\n", LINES[usize::from(*line) % LINES.len()]),
            Self::Fields(fields) => format!("match = {{ {} }}\n", join(FIELDS, fields, ", ")),
            Self::Expression(words) => format!("match = \"{}\"\n", join(WORDS, words, " ")),
            Self::Rule(name, words) => {
                let words = join(WORDS, words, " ");
                format!("[[rule]]\nname = '{name}'\naction = 'drop'\nmatch = '{words}'\n")
            }
            Self::Odd(odd) => odd.to_string(),
        };
    }
}

#[test]
fn policy() {
    bolero::check!().with_type::<(Vec<Part>, Option<(u16, char)>)>().for_each(|(parts, odd)| {
        let mut text = String::new();
        parts.iter().for_each(|part| part.write(&mut text));
        if let Some((at, odd)) = odd {
            text.insert(text.floor_char_boundary(usize::from(*at).min(text.len())), *odd);
        }
        match Policy::parse(&text) {
            Ok(policy) => check(&policy),
            Err(error) => {
                let message = error.to_string();
                assert!(!message.is_empty());
                let lines = text.matches('\n').count() + 1;
                assert!(error.line().is_none_or(|line| (1..=lines).contains(&line)), "{message}");
            }
        }
    });
}

fn check(policy: &Policy) {
    assert!(policy.rules.len() <= MAX_RULES && policy.sets.len() <= MAX_SETS);
    assert!((1..=MAX_PROFILES).contains(&policy.profiles.len()));
    assert_eq!(policy.profiles[0].name, "default");
    assert!(policy.limits().count() <= MAX_LIMITS);
    assert!(policy.networks.iter().map(|it| it.networks.len()).sum::<usize>() <= MAX_NETWORKS);
    assert!(policy.networks.iter().all(|it| it.profile < policy.profiles.len()));
    assert!(policy.profiles.iter().all(|it| it.amplification.len() == AMPLIFICATION.len()));
    let names: HashSet<_> = policy.rules.iter().map(|it| &it.name).collect();
    assert_eq!(names.len(), policy.rules.len());
    for rule in &policy.rules {
        let it = &rule.conditions;
        let sets = it.src.iter().chain(&it.dst).all(|it| match it {
            AddressCondition::Set(set) => *set < policy.sets.len(),
            AddressCondition::Network(network) => network.trunc() == *network,
        });
        let flags = it.tcp_flags.iter().chain(&it.fragment).all(|it| it.value & !it.mask == 0);
        assert!(sets && flags && rule.mark.is_none_or(|mark| mark < 64), "{rule:?}");
        assert!(matches!(it.version, None | Some(4 | 6)), "{rule:?}");
        for ports in [&it.port, &it.sport, &it.dport, &it.length, &it.vlan] {
            assert!(in_order(ports), "{rule:?}");
        }
        for bytes in [&it.ttl, &it.dscp, &it.icmp_type, &it.icmp_code] {
            assert!(in_order(bytes), "{rule:?}");
        }
        assert!(in_order(&it.flow_label), "{rule:?}");
    }
}

/// Returns if no range is empty, and all are in order without overlaps.
fn in_order<T: PartialOrd>(ranges: &[Range<T>]) -> bool {
    ranges.iter().all(|it| it.first <= it.last)
        && ranges.windows(2).all(|it| it[0].last < it[1].first)
}
