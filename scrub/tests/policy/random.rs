//! Any text is a policy or an error.

use proptest::prelude::*;
use sluicegate_scrub::policy::Policy;

use crate::conditions;

const PARTS: &[&str] = &[
    "[protect.web]\n",
    "[set.s]\n",
    "[[rule]]\n",
    "[profile.p]\n",
    "[profile.default]\n",
    "name = 'x'\n",
    "networks = ['198.18.0.0/15']\n",
    "networks = '2001:db8::/129'\n",
    "profile = 'p'\n",
    "action = 'drop'\n",
    "action = \"pass\"\n",
    "match = { ",
    "} \n",
    "protocol = 'tcp'",
    ", ",
    "dport = ['5-9', '!7']",
    "src_set = 's'",
    "match = 'udp and port 53'\n",
    "limit = { packets = '1kpps' }\n",
    "limits = [{ bits = 1, by = 'all' }]\n",
    "amplification = { dns = 'drop', default = { bits = '1Gbps' } }\n",
    "fragments = 'drop'\n",
    "challenge = 'dns'\n",
    "above = '5kpps'\n",
    "cache = '2s'\n",
    "sample = 1\n",
    "mark = 'ef'\n",
    "payload = { bytes = 'ff', mask = '0f' }",
    "tcp_flags = 'syn,!ack'",
    "icmp_type = 'redirect'",
    "fragment = 'any'",
    "[",
    "]",
    "{",
    "}",
    "'",
    "\"",
    "=",
    "é",
    "-1",
    "99999999999999999999",
    "\r\n",
    "#",
];

const WORDS: &[&str] = &[
    "ip",
    "ip6",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "sctp",
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
    "or",
    "not",
    "!",
    "&&",
    "||",
    "(",
    ")",
    "tcp[tcpflags]",
    "[",
    "]",
    "13",
    "&",
    "|",
    "=",
    "!=",
    "tcp-syn",
    "0",
    "5",
    "65535",
    "4294967295",
    "0x",
    "1-5",
    "198.18",
    "198.18.0.0/15",
    "2001:db8::1",
    "é",
    "mask",
];

#[test]
fn deep_lists_and_tables_are_errors() {
    for deep in
        ["x = ".to_owned() + &"[".repeat(100_000), "set = ".to_owned() + &"{ x = ".repeat(100_000)]
    {
        assert!(Policy::parse(&deep).is_err());
    }
}

proptest! {
    #[test]
    fn no_text_is_too_strange(text in ".{0,64}") {
        let _ = Policy::parse(&text).map_err(|error| error.to_string());
    }

    #[test]
    fn no_joined_parts_are_too_strange(parts in proptest::collection::vec(0..PARTS.len(), 0..24)) {
        let text: String = parts.into_iter().map(|it| PARTS[it]).collect();
        let _ = Policy::parse(&text).map_err(|error| error.to_string());
    }

    #[test]
    fn no_expression_is_too_strange(words in proptest::collection::vec(0..WORDS.len(), 0..16), any in ".{0,8}") {
        let words: Vec<_> = words.into_iter().map(|it| WORDS[it]).collect();
        let text = format!("{} {any}", words.join(" "));
        for quote in ["'", "\"", "'''"] {
            let _ = conditions(&format!("{quote}{text}{quote}")).map_err(|error| error.to_string());
        }
    }
}
