//! Each error has its line, column, marks, object and remedy.

use std::net::Ipv4Addr;

use sluicegate_scrub::policy::Policy;

/// Checks rows of a text, the marked part of it (its last occurrence), the object, and the begin of the problem.
fn check(rows: &[(&str, &str, &str, &str)]) {
    for (text, marked, object, problem) in rows {
        let Err(error) = Policy::parse(text) else { panic!("nothing is wrong with {text}") };
        let message = error.to_string();
        let at = text.rfind(marked).unwrap();
        let begin = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let (line, column) = (text[..at].matches('\n').count() + 1, at - begin);
        let object = if object.is_empty() { String::new() } else { format!("{object}: ") };
        let head = format!("line {line}, column {}: {object}{problem}", column + 1);
        assert!(message.starts_with(&head), "{text}\n{message}\ninstead of\n{head}");
        let marked = marked.lines().next().unwrap();
        let marks = format!("\n   | {}{}", " ".repeat(column), "^".repeat(marked.len()));
        assert!(message.ends_with(&marks), "{text}\n{message}");
        assert_eq!(error.line(), Some(line));
    }
}

#[test]
fn of_the_top_level() {
    check(&[
        ("[protect]]\n", "]", "TOML", "unexpected key or value, expected newline"),
        (
            "default = 'drop'\n",
            "default",
            "",
            "unknown 'default'; available: tunnels, protect, profile, set, rule",
        ),
        (
            "tunnels = ['gre', 'vxlan']\n",
            "'vxlan'",
            "tunnels",
            "'vxlan' is not what belongs here: \"gre\" or \"ipip\"",
        ),
        (
            "\ntunnels = true\n",
            "true",
            "tunnels",
            "true or false is not what belongs here: \"gre\" or \"ipip\"",
        ),
        ("tunnels = []\n", "[]", "tunnels", "the list is empty: give it a value, or leave it out"),
        (
            "[protect.a]\nnetworks = '::1'\ntunnels = ['gre']\n",
            "tunnels",
            "protect a",
            "unknown 'tunnels'; available: networks, profile",
        ),
        (
            "[rule]\nname = 'x'\n",
            "[rule]",
            "rule",
            "a table is not what belongs here: written [[rule]]",
        ),
        ("set = 1\n", "1", "set", "a number is not what belongs here: written [set.NAME]"),
        (
            "[[protect]]\n",
            "[[protect]]",
            "protect",
            "a list is not what belongs here: written [protect.NAME]",
        ),
        ("set.x = 1\n", "1", "set x", "a number is not what belongs here: a table"),
        ("[set.'']\n", "''", "set ", "a name has 1 to 64 printable characters"),
        ("[set.x]\nnetworks = []\n[set.x]\n", "x", "TOML", "duplicate key"),
    ]);
}

#[test]
fn of_protected_networks() {
    check(&[
        (
            "[protect.web]\nnet = 1\n",
            "net",
            "protect web",
            "unknown 'net'; available: networks, profile",
        ),
        (
            "[protect.web]\nprofile = 'default'\n",
            "[protect.web]",
            "protect web",
            "it has no networks: give it some",
        ),
        (
            "[protect.web]\nnetworks = []\n",
            "[]",
            "protect web: networks",
            "the list is empty: give it a value",
        ),
        (
            "[protect.web]\nnetworks = [5]\n",
            "5",
            "protect web: networks",
            "a number is not what belongs here: a network is like",
        ),
        (
            "[protect.web]\nnetworks = ['x']\n",
            "'x'",
            "protect web: networks",
            "'x' is no network: a network is like 198.18.1.0/24",
        ),
        (
            "[protect.web]\nnetworks = '198.18.0.0/33'\n",
            "'198.18.0.0/33'",
            "protect web: networks",
            "'198.18.0.0/33' is too long: lengths are from 0 to 32",
        ),
        (
            "[protect.web]\nnetworks = '::/129'\n",
            "'::/129'",
            "protect web: networks",
            "'::/129' is too long: lengths are from 0 to 128",
        ),
        (
            "[protect.web]\nnetworks = '198.18.0.0/+8'\n",
            "'198.18.0.0/+8'",
            "protect web: networks",
            "'198.18.0.0/+8' is no network",
        ),
        (
            "[protect.web]\nnetworks = '198.18.0.1/15'\n",
            "'198.18.0.1/15'",
            "protect web: networks",
            "'198.18.0.1/15' has bits behind its length: write 198.18.0.0/15 or 198.18.0.1",
        ),
        (
            "[protect.a]\nnetworks = '::1'\n[protect.b]\nnetworks = ['::1/128']\n",
            "'::1/128'",
            "protect b: networks",
            "::1/128 is already in protect a: remove one",
        ),
        (
            "[protect.a]\nnetworks = ['::1', '::1/128']\n",
            "'::1/128'",
            "protect a: networks",
            "::1/128 is already in protect a: remove one",
        ),
        (
            "[protect.a]\nnetworks = '::1'\nprofile = 'wbe'\n[profile.web]\n",
            "'wbe'",
            "protect a: profile",
            "there is no profile 'wbe'; available: default, web",
        ),
        (
            "[protect.a]\nprofile = 1\n",
            "1",
            "protect a: profile",
            "a number is not what belongs here: the name of a profile",
        ),
    ]);
}

#[test]
fn of_sets() {
    check(&[
        (
            "[set.x]\nfile = ''\n",
            "file",
            "set x",
            "unknown 'file'; available: action, networks, files",
        ),
        (
            "[set.x]\naction = 'deny'\n",
            "'deny'",
            "set x: action",
            "'deny' is not what belongs here: \"pass\" or \"drop\"",
        ),
        ("[set.x]\naction = 'drop'\n", "x", "set x", "it has neither networks nor files"),
        (
            "[set.x]\nnetworks = 4\n",
            "4",
            "set x: networks",
            "a number is not what belongs here: a list of networks",
        ),
        ("[set.x]\nnetworks = ['::1', '::g']\n", "'::g'", "set x: networks", "'::g' is no network"),
        (
            "[set.x]\nfiles = [4]\n",
            "4",
            "set x: files",
            "a number is not what belongs here: a path",
        ),
        (
            "[set.x]\nfiles = ['/nowhere/list']\n",
            "'/nowhere/list'",
            "set x: files",
            "/nowhere/list cannot be read: ",
        ),
    ]);
}

#[test]
fn of_profiles_and_limits() {
    check(&[
        (
            "[profile.x]\nlimit = 1\n",
            "limit",
            "profile x",
            "unknown 'limit'; available: amplification, fragments, tcp, limits, default",
        ),
        (
            "[profile.x]\nfragments = 'pass'\n",
            "'pass'",
            "profile x: fragments",
            "'pass' is not what belongs here: \"follow\", \"known\" or \"drop\"",
        ),
        (
            "[profile.x]\ntcp = 'on'\n",
            "'on'",
            "profile x: tcp",
            "'on' is not what belongs here: \"off\", \"auto\", \"always\" or { challenge",
        ),
        (
            "[profile.x]\ntcp = { above = 0 }\n",
            "0",
            "profile x: tcp: above",
            "a number is not what belongs here: a whole rate above 0, like \"20kpps\"",
        ),
        (
            "[profile.x]\ntcp = { above = '5Gpps' }\n",
            "'5Gpps'",
            "profile x: tcp: above",
            "'5Gpps' is not what belongs here: a rate below 4Gpps",
        ),
        (
            "[profile.x]\ntcp = { below = '3kpps', above = '2kpps' }\n",
            "'3kpps'",
            "profile x: tcp: below",
            "'3kpps' is not what belongs here: a rate up to 2000pps, which is `above`",
        ),
        (
            "[profile.x]\ntcp = { verified_for = '9s' }\n",
            "'9s'",
            "profile x: tcp: verified_for",
            "'9s' is not what belongs here: a time from 10s to 24h, like \"10m\"",
        ),
        (
            "[profile.x]\ntcp = { state = true }\n",
            "true",
            "profile x: tcp: state",
            "true or false is not what belongs here: \"off\" or \"on\"",
        ),
        (
            "[profile.x]\ntcp = { levels = 3 }\n",
            "levels",
            "profile x: tcp",
            "unknown 'levels'; available: challenge, above, below, verified_for, state",
        ),
        (
            "[profile.x]\ndefault = true\n",
            "true",
            "profile x: default",
            "true or false is not what belongs here: \"pass\" or \"drop\"",
        ),
        (
            "[profile.x]\namplification = 'pass'\n",
            "'pass'",
            "profile x: amplification",
            "'pass' is not what belongs here: \"drop\", \"continue\" or {",
        ),
        (
            "[profile.x]\namplification = { dnss = 'drop' }\n",
            "dnss",
            "profile x: amplification",
            "there is no class 'dnss'; nearest of 28: dns, ",
        ),
        (
            "[profile.x]\namplification = { dns = 'pass' }\n",
            "'pass'",
            "profile x: amplification: dns",
            "'pass' is not what belongs here: \"drop\", \"continue\" or a limit",
        ),
        (
            "[profile.x]\namplification = { default = 5 }\n",
            "5",
            "profile x: amplification: default",
            "a number is not what belongs here: a limit is like",
        ),
        ("[profile.x]\nlimits = []\n", "[]", "profile x: limits", "the list is empty"),
        (
            "[profile.x]\nlimits = [5]\n",
            "5",
            "profile x: limits",
            "a number is not what belongs here: a limit is like",
        ),
        (
            "[profile.x]\nlimits = { by = 'all' }\n",
            "{ by = 'all' }",
            "profile x: limits",
            "it has no rate: a limit is like",
        ),
        (
            "[profile.x]\nlimits = { pps = 1 }\n",
            "pps",
            "profile x: limits",
            "unknown 'pps'; available: packets, bits, by, burst",
        ),
        (
            "[profile.x]\nlimits = { packets = 0 }\n",
            "0",
            "profile x: limits: packets",
            "a number is not what belongs here: a whole rate above 0, like \"10kpps\"",
        ),
        (
            "[profile.x]\nlimits = { packets = '10k' }\n",
            "'10k'",
            "profile x: limits: packets",
            "'10k' is not what belongs here: a whole rate",
        ),
        (
            "[profile.x]\nlimits = { packets = '1Mbps' }\n",
            "'1Mbps'",
            "profile x: limits: packets",
            "'1Mbps' is not what belongs here: a whole rate",
        ),
        (
            "[profile.x]\nlimits = { bits = '0.5bps' }\n",
            "'0.5bps'",
            "profile x: limits: bits",
            "'0.5bps' is not what belongs here: a whole rate above 0, like \"100Mbps\"",
        ),
        (
            "[profile.x]\nlimits = { packets = 1, by = 'dst' }\n",
            "'dst'",
            "profile x: limits: by",
            "'dst' is not what belongs here: \"source\", \"source-network\", \"destination\" or \"all\"",
        ),
        (
            "[profile.x]\nlimits = { packets = 1, burst = '9ms' }\n",
            "'9ms'",
            "profile x: limits: burst",
            "'9ms' is not what belongs here: a time from 10ms to 10s",
        ),
        (
            "[profile.x]\nlimits = { packets = 1, burst = 1 }\n",
            "1",
            "profile x: limits: burst",
            "a number is not what belongs here: a time",
        ),
    ]);
}

#[test]
fn of_rules() {
    check(&[
        ("[[rule]]\nmatch = {}\n", "[[rule]]", "rule 1", "it has no name: its counters need one"),
        ("[[rule]]\nname = 5\n", "5", "rule 1: name", "a number is not what belongs here: a text"),
        ("[[rule]]\nname = ''\n", "''", "rule 1: name", "a name has 1 to 64 printable characters"),
        (
            "[[rule]]\nname = \"a\\tb\"\n",
            "\"a\\tb\"",
            "rule 1: name",
            "a name has 1 to 64 printable characters",
        ),
        ("rule = [5]\n", "5", "rule", "a number is not what belongs here: written [[rule]]"),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\naction = 'drop'\n[[rule]]\nname = 'x'\n",
            "'x'",
            "rule x: name",
            "another rule has this name: change one",
        ),
        (
            "[[rule]]\nname = 'x'\nwhen = 1\n",
            "when",
            "rule x",
            "unknown 'when'; available: name, match, action, limit, challenge, above, cache, sample, mark",
        ),
        (
            "[[rule]]\nname = 'x'\naction = 'drop'\n",
            "[[rule]]",
            "rule x",
            "it has no match: {} matches all packets",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\n",
            "[[rule]]",
            "rule x",
            "it has no action: write \"drop\", \"pass\" or \"continue\", or a limit or challenge",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\nchallenge = 'ntp'\n",
            "'ntp'",
            "rule x: challenge",
            "'ntp' is not what belongs here: \"a2s\" or \"dns\"",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\nchallenge = 'dns'\naction = 'pass'\n",
            "'dns'",
            "rule x: challenge",
            "a rule has an action, a limit or a challenge: leave one of them out",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\nlimit = { packets = 1 }\nchallenge = 'a2s'\n",
            "'a2s'",
            "rule x: challenge",
            "a rule has an action, a limit or a challenge: leave one of them out",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = { protocol = 'tcp' }\nchallenge = 'dns'\n",
            "'dns'",
            "rule x: challenge",
            "only UDP has such queries, and the match excludes it: change the match",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\nchallenge = 'dns'\nabove = 0\n",
            "0",
            "rule x: above",
            "a number is not what belongs here: a whole rate above 0, like \"5kpps\"",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\nabove = 10\naction = 'pass'\n",
            "10",
            "rule x: above",
            "it belongs to a challenge: add that, or leave it out",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\nchallenge = 'a2s'\ncache = '99ms'\n",
            "'99ms'",
            "rule x: cache",
            "'99ms' is not what belongs here: a time from 100ms to 60s, like \"2s\"",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\nchallenge = 'a2s'\ncache = 2\n",
            "2",
            "rule x: cache",
            "a number is not what belongs here: a time from 100ms to 60s, like \"2s\"",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\nchallenge = 'dns'\ncache = '2s'\n",
            "'2s'",
            "rule x: cache",
            "only answers to A2S are kept: write challenge = \"a2s\", or leave it out",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\naction = 'pass'\ncache = '2s'\n",
            "'2s'",
            "rule x: cache",
            "only answers to A2S are kept: write challenge = \"a2s\", or leave it out",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\naction = 'deny'\n",
            "'deny'",
            "rule x: action",
            "'deny' is not what belongs here: \"drop\", \"pass\" or \"continue\"",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\nlimit = { packets = 1 }\naction = 'drop'\n",
            "'drop'",
            "rule x: action",
            "the limit drops what exceeds it: leave one of them out",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\nlimit = { bits = 0 }\n",
            "0",
            "rule x: limit: bits",
            "a number is not what belongs here: a whole rate",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\naction = 'pass'\nsample = 0\n",
            "0",
            "rule x: sample",
            "a number is not what belongs here: a number from 1 to 4294967295",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\naction = 'pass'\nmark = 64\n",
            "64",
            "rule x: mark",
            "64 is above the maximum: write a number from 0 to 63",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\naction = 'pass'\nmark = 'ex'\n",
            "'ex'",
            "rule x: mark",
            "there is no class 'ex'; available: cs0, ",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\naction = 'pass'\nmark = [1, 2]\n",
            "[1, 2]",
            "rule x: mark",
            "a list is not what belongs here: one DSCP",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = {}\nmark = 1\naction = 'drop'\n",
            "1",
            "rule x: mark",
            "dropped packets get no mark: leave it out, or change the action",
        ),
        (
            "[[rule]]\nname = 'x'\nmatch = 5\n",
            "5",
            "rule x: match",
            "a number is not what belongs here: { } with fields, or a pcap-filter",
        ),
    ]);
}

#[test]
fn of_matches() {
    let rows = [
        (
            "src_port = 5",
            "src_port",
            "",
            "unknown 'src_port'; available: version, src, dst, src_set",
        ),
        ("version = 5", "5", "version", "a number is not what belongs here: 4 or 6"),
        ("version = []", "[]", "version", "the list is empty"),
        ("src = 5", "5", "src", "a number is not what belongs here: a network is like"),
        ("src = ['::1', '::x']", "'::x'", "src", "'::x' is no network"),
        (
            "dst = '198.18.0.1/15'",
            "'198.18.0.1/15'",
            "dst",
            "'198.18.0.1/15' has bits behind its length",
        ),
        ("src_set = 'y'", "'y'", "src_set", "there is no set 'y'; there is none"),
        ("dst_set = 5", "5", "dst_set", "a number is not what belongs here: the name of a set"),
        (
            "protocol = 256",
            "256",
            "protocol",
            "256 is above the maximum: write a number from 0 to 255",
        ),
        (
            "protocol = 'tpc'",
            "'tpc'",
            "protocol",
            "there is no protocol 'tpc'; available: icmp, igmp",
        ),
        ("dport = []", "[]", "dport", "the list is empty: give it a value, or leave it out"),
        ("dport = -1", "-1", "dport", "-1 is negative: write a number from 0 to 65535"),
        (
            "dport = 1.5",
            "1.5",
            "dport",
            "a fraction is not what belongs here: a number from 0 to 65535",
        ),
        ("dport = 'http'", "'http'", "dport", "'http' is no number, and this field has no names"),
        ("dport = '5-4'", "'5-4'", "dport", "the range is empty: write \"4-5\""),
        ("dport = '5-70000'", "'5-70000'", "dport", "70000 is above the maximum: write a number"),
        ("dport = '-'", "'-'", "dport", "'-' is not what belongs here: a number from 0 to 65535"),
        ("dport = '5-6-7'", "'5-6-7'", "dport", "'5-6-7' is not what belongs here"),
        (
            "dport = ['5', '!6']",
            "'!6'",
            "dport",
            "the list has values and exclusions (!): write only one",
        ),
        ("dport = '!0-'", "'!0-'", "dport", "no packet matches: it excludes all values"),
        (
            "dport = [99999999999999999999]",
            "99999999999999999999",
            "dport",
            "99999999999999999999 is above the maximum",
        ),
        ("ttl = 256", "256", "ttl", "256 is above the maximum"),
        ("length = 65536", "65536", "length", "65536 is above the maximum"),
        ("dscp = 64", "64", "dscp", "64 is above the maximum"),
        ("vlan = 4096", "4096", "vlan", "4096 is above the maximum: write a number from 0 to 4095"),
        ("flow_label = 1048576", "1048576", "flow_label", "1048576 is above the maximum"),
        (
            "tcp_flags = 2",
            "2",
            "tcp_flags",
            "a number is not what belongs here: flags like \"syn,!ack\"",
        ),
        (
            "tcp_flags = 'syn,ak'",
            "'syn,ak'",
            "tcp_flags",
            "there is no flag 'ak': write flags like \"syn,!ack\"; available: fin",
        ),
        ("tcp_flags = ''", "''", "tcp_flags", "there is no flag ''"),
        ("tcp_flags = 'syn,!syn'", "'syn,!syn'", "tcp_flags", "'syn' appears twice: write it once"),
        (
            "fragment = 'yes'",
            "'yes'",
            "fragment",
            "'yes' is not what belongs here: \"no\", \"any\", ",
        ),
        (
            "icmp_type = 'redirect'",
            "'redirect'",
            "icmp_type",
            "types of ICMP and ICMPv6 differ: 'redirect' needs protocol = \"icmp\" or \"icmpv6\"",
        ),
        (
            "protocol = 1, icmp_type = 'echo'",
            "'echo'",
            "icmp_type",
            "there is no type of ICMP 'echo'; available: echo-reply",
        ),
        ("icmp_code = 256", "256", "icmp_code", "256 is above the maximum"),
        ("payload = 5", "5", "payload", "a number is not what belongs here: { offset = 0, bytes"),
        (
            "payload = { offset = 1 }",
            "{ offset = 1 }",
            "payload",
            "it has no bytes: write { offset",
        ),
        (
            "payload = { length = 1 }",
            "length",
            "payload",
            "unknown 'length'; available: offset, bytes, mask",
        ),
        (
            "payload = { offset = 65536 }",
            "65536",
            "payload: offset",
            "a number is not what belongs here: a number from 0",
        ),
        (
            "payload = { bytes = 'f' }",
            "'f'",
            "payload: bytes",
            "'f' is not what belongs here: 1 to 8 bytes in hexadecimal",
        ),
        ("payload = { bytes = 'gg' }", "'gg'", "payload: bytes", "'gg' is not what belongs here"),
        (
            "payload = { bytes = '001122334455667788' }",
            "'001122334455667788'",
            "payload: bytes",
            "'001122334455667788' is not",
        ),
        (
            "payload = { bytes = 'ff', mask = 'ffff' }",
            "'ffff'",
            "payload: mask",
            "it has 2 bytes: give it as many as bytes, 1",
        ),
        (
            "payload = { bytes = '00', mask = '00' }",
            "'00'",
            "payload: mask",
            "no bit matters: leave the payload out",
        ),
        (
            "payload = { bytes = '0ff1', mask = 'fff0' }",
            "'0ff1'",
            "payload: bytes",
            "no packet matches: f1 has bits outside of the mask f0",
        ),
    ];
    check_matches(&rows);
}

#[test]
fn of_a_long_list_of_addresses() {
    let list = |count: u32| {
        let list: Vec<_> = (0..count).map(|it| format!("'{}'", Ipv4Addr::from(it))).collect();
        format!("[[rule]]\nname = 'x'\nmatch = {{ src = [{}] }}\naction = 'drop'\n", list.join(","))
    };
    Policy::parse(&list(4096)).unwrap();
    let error = Policy::parse(&list(4097)).unwrap_err().to_string();
    let problem = "rule x: src: more than 4096 addresses: put them into a set, and write src_set";
    assert!(error.ends_with(problem), "{error}");
}

/// An added rule has several forms.
#[test]
fn of_an_added_rule_show_its_text() {
    for (text, shown) in [
        (
            "{ name = 'x', match = { sport = 70000 } }",
            "line 1, column 33: rule x: sport: 70000 is above",
        ),
        (
            "\n { name = 'x', match = { sport = 70000 } }",
            "line 2, column 34: rule x: sport: 70000 is above",
        ),
        (
            "name = 'x'\nmatch = { sport = 70000 }",
            "line 2, column 19: rule x: sport: 70000 is above",
        ),
        ("[[rule]]\nname = 'x'\nmatch = { sport = 70000 }", "line 3, column 19: rule x: sport"),
        ("{ name = 'x' match }", "line 1, column 14: TOML"),
        ("x", "line 1, column 2: TOML"),
    ] {
        let error = Policy::default().parse_rule(text).unwrap_err().to_string();
        assert!(error.starts_with(shown), "{error}");
        let line = error.lines().nth(1).unwrap().split_once(" | ").unwrap().1;
        assert!(text.lines().any(|it| it == line), "{error}");
    }
}

#[test]
fn of_conditions_that_contradict() {
    let rows = [
        (
            "protocol = 'icmp', dport = 5",
            "5",
            "dport",
            "no packet matches: only TCP and UDP have ports, and protocol excludes them: remove one of them",
        ),
        (
            "dport = 5, protocol = 'icmp'",
            "5",
            "dport",
            "no packet matches: only TCP and UDP have ports, and protocol",
        ),
        ("protocol = 'sctp', port = 5", "5", "port", "no packet matches: only TCP and UDP"),
        (
            "protocol = 'udp', tcp_flags = 'syn'",
            "'syn'",
            "tcp_flags",
            "no packet matches: only TCP has flags, and protocol",
        ),
        (
            "protocol = [1, 17], sport = 9, icmp_type = 7",
            "7",
            "icmp_type",
            "no packet matches: only ICMP and ICMPv6 have types, and sport",
        ),
        (
            "icmp_code = 7, tcp_flags = 'syn'",
            "7",
            "icmp_code",
            "no packet matches: only ICMP and ICMPv6 have codes, and tcp_flags",
        ),
        (
            "version = 6, src = '10.0.0.0/8'",
            "'10.0.0.0/8'",
            "src",
            "no packet matches: it is of IPv4, and version is not: remove one of them, or add",
        ),
        (
            "src = '10.0.0.0/8', dst = ['::1', '::2']",
            "['::1', '::2']",
            "dst",
            "no packet matches: it is of IPv6, and src is not",
        ),
        (
            "version = 4, flow_label = 7",
            "7",
            "flow_label",
            "no packet matches: it is of IPv6, and version is not",
        ),
        (
            "src = '::1', fragment = 'dont-fragment'",
            "'dont-fragment'",
            "fragment",
            "no packet matches: it is of IPv4, and src is not",
        ),
        (
            "fragment = ['later', 'last'], dport = 5",
            "['later', 'last']",
            "fragment",
            "no packet matches: later fragments have no header with dport: remove",
        ),
    ];
    check_matches(&rows);
}

/// Checks rows of fields of a rule's match.
fn check_matches(rows: &[(&str, &str, &str, &str)]) {
    for (fields, marked, object, problem) in rows {
        let text = format!("[[rule]]\nname = 'x'\nmatch = {{ {fields} }}\n");
        let object = if object.is_empty() { "rule x".into() } else { format!("rule x: {object}") };
        check(&[(&text, marked, &object, problem)]);
    }
}
