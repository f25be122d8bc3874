//! JSON of the commands on a running scrubber, and of `check`.

use serde_json::{Value, json};

use super::scratch::Scratch;
use super::{SETS, Scrubber, text};
use crate::support::*;

/// The keys of an object.
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn check_prints_an_object() {
    let rule = "[[rule]]\nname = 'a'\nmatch = { sport = 53 }\nlimit = { packets = '1kpps' }\n";
    let protect = "[protect.web]\nnetworks = ['198.18.0.0/24', '2001:db8:18::/64']\n";
    let scratch = Scratch::with_policy(&format!("{rule}{protect}{SETS}"));
    let object = |more: &[&str]| -> Value {
        let policy = scratch.policy();
        let ended = run(&[&["scrub", "check", &policy, "--json"], more].concat());
        serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"))
    };
    let mut value = object(&[]);
    let memory = value["memory_bytes"].take().as_u64().unwrap();
    let tables = value["tables_bytes"].take().as_u64().unwrap();
    // An image has at least one segment of 4 MiB.
    assert!(tables > 4 << 20 && memory > 3 * tables);
    let expected = json!({
        "command": "scrub check", "policy": scratch.policy(), "tables_bytes": null, "memory_bytes": null,
        "protected_networks": 2, "sets": 2, "networks": 3, "rules": 1, "limits": 1,
    });
    assert_eq!(value, expected);
    let more = object(&["--limit-keys", "64M"])["memory_bytes"].as_u64().unwrap();
    assert!(more > memory + (3 << 30), "{more} {memory}");
}

#[test]
fn each_change_prints_an_object() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, SETS, &["--confirm", "60s"]);
    let file = scrubber.file("networks.txt", "192.0.2.1\n192.0.2.2\n");
    let (file, other) = (text(&file), scrubber.file("other.toml", "[set.bad]\nnetworks = []\n"));
    let mut confirmed = scrubber.json(&["confirm"]);
    assert!(confirmed["left_s"].take().as_f64().is_some_and(|it| it <= 60.0));
    let policy = scrubber.folder.path().join("policy.toml");
    assert_eq!(confirmed, json!({"confirmed": policy, "left_s": null}));
    for (what, expected) in [
        (&["sets", "add", "bad", "192.0.2.9"][..], json!({"set": "bad", "added": 1})),
        (&["sets", "add", "good", "192.0.2.9"], json!({"set": "good", "added": 1})),
        (&["sets", "load", "bad", file], json!({"set": "bad", "added": 2})),
        (&["sets", "del", "bad", "192.0.2.1"], json!({"set": "bad", "deleted": 1})),
        (&["sets", "replace", "bad", file], json!({"set": "bad", "networks": 2})),
        (&["rules", "add", "r", "--match", "udp", "--action", "continue"], json!({"rule": "r"})),
        (&["rules", "del", "r"], json!({"rule": "r"})),
        (
            &["apply", text(&other)],
            json!({"applied": other, "removed": ["1 added network of set good, which the policy lacks"]}),
        ),
        (
            &["apply", text(&other), "--confirm", "60s"],
            json!({"applied": other, "removed": [], "confirm_within_s": 60.0}),
        ),
    ] {
        assert_eq!(scrubber.json(what), expected, "{what:?}");
    }
    assert_eq!(scrubber.json(&["stop"]), json!({"stopped": true}));
}

#[test]
fn values_that_do_not_exist_are_absent() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, SETS, &["--confirm", "60s"]);
    assert!(keys(&scrubber.json(&["status"])).contains(&"confirm_within_s"));
    scrubber.ask(&["confirm"]);
    let status = scrubber.json(&["status"]);
    assert!(!keys(&status).contains(&"confirm_within_s"), "{status}");
    assert!(!status.to_string().contains(":null"), "{status}");
    eventually("rates are known", || {
        let status = scrubber.json(&["status"]);
        ["passed", "dropped", "answered"].iter().all(|it| status[it]["pps"].is_f64())
    });
    let sample = scrubber.words(&["samples", "--dropped", "1", "--count", "1", "--json"]);
    let samples = Running::unawaited(&mut sluice(&sample));
    let mut sent = 0;
    eventually("a packet is sampled", || {
        scrubber.generate(1, "203.0.113.9");
        sent += 1;
        samples.has_ended()
    });
    let sample: Value = serde_json::from_str(samples.end().out.trim()).unwrap();
    assert_eq!(sample["name"], "bad");
    assert!(!keys(&sample).contains(&"rule"), "{sample} of {sent}");
}
