//! Each error has its line, column, marks, object and remedy.

mod matches;
mod rules;

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
