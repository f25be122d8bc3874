//! Rules, at run time.

use super::{SETS, Scrubber};
use crate::support::*;

const TELNET: &str = "[[rule]]\nname = 'telnet'\nmatch = 'tcp dst port 23'\naction = 'continue'\n";

fn names(scrubber: &Scrubber<'_>) -> Vec<String> {
    let rules = scrubber.json(&["rules", "list"])["rules"].clone();
    let name = |it: &serde_json::Value| it["name"].as_str().unwrap().to_owned();
    rules.as_array().unwrap().iter().map(name).collect()
}

#[test]
fn rules_come_and_go() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, &format!("{TELNET}{SETS}"), &[]);
    let said = scrubber.ask(&[
        "rules",
        "add",
        "last",
        "--match",
        "udp dst port 9",
        "--action",
        "continue",
    ]);
    assert_eq!(said, "rule last added\n");
    let toml = "{ name = 'of \"bad\"', match = { src_set = 'bad' }, action = 'continue' }";
    scrubber.ask(&["rules", "add", toml, "--first", "--for", "1h"]);
    assert_eq!(names(&scrubber), ["of \"bad\"", "telnet", "last"]);
    let list = scrubber.ask(&["rules", "list"]);
    assert!(list.lines().next().unwrap().contains("continue  added, "), "{list}");
    for (what, said) in [
        (
            &["add", "telnet", "--match", "udp", "--action", "continue"][..],
            "the policy has a rule 'telnet'",
        ),
        (&["add", "x", "--match", "udp prot 9", "--action", "drop"], "rule x: match"),
        (&["add", "name = 'x'\nmatch = { src_set = 'worse' }\naction = 'drop'"], "rule x: src_set"),
        (&["add", "x"], "TOML"),
        (&["add", "x", "--match", "udp"], "--action"),
        (&["del", "x"], "no rule 'x'; list the rules"),
    ] {
        scrubber.refused(&[&["rules"], what].concat(), said);
    }
    scrubber.ask(&["rules", "del", "telnet"]);
    scrubber
        .ask(&["rules", "add", "soon", "--match", "udp", "--action", "continue", "--for", "1s"]);
    eventually("it expires", || names(&scrubber) == ["of \"bad\"", "last"]);
    scrubber.send(10, "203.0.113.9", "set", "bad");
}

#[test]
fn an_added_rule_drops_from_the_next_packet_on() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, SETS, &[]);
    scrubber.ask(&["rules", "add", "no-udp", "--match", "udp", "--action", "drop"]);
    scrubber.send(10, "198.51.100.7", "rule", "no-udp");
    scrubber.ask(&["rules", "del", "no-udp"]);
    scrubber.send(10, "198.51.100.7", "default", "default");
}
