//! Errors of rules.

use std::net::Ipv4Addr;

use sluicegate_scrub::policy::Policy;

use super::check;

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
