use serde_json::{Value, json};

use super::scratch::{Scratch, udp};
use crate::support::*;

const POLICY: &str = "\
[protect.web]
networks = ['198.18.0.0/24']
profile = 'web'

[profile.web]
amplification = { chargen = 'drop' }
limits = [{ by = 'source', packets = '1pps', burst = '10ms' }]

[[rule]]
name = 'near'
match = { ttl = 255, vlan = 7, dport = 80 }
action = 'pass'
";

fn explained(scratch: &Scratch, packet: &[&str]) -> Value {
    let policy = scratch.policy();
    let ended = run(&[&["scrub", "explain", &policy, "--json"], packet].concat());
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    serde_json::from_str(&ended.out).unwrap()
}

#[test]
fn a_packet_of_hexadecimal_digits_has_a_line_for_each_look_up() {
    let scratch = Scratch::with_policy(POLICY);
    let digits: Vec<_> = udp(1, 19).iter().map(|byte| format!("{byte:02x}")).collect();
    let ended = run(&["scrub", "explain", &scratch.policy(), "--hex", &digits.join(":")]);
    let expected = "\
frame: 60 bytes: UDP 203.0.0.1 port 19 to 198.18.0.2 port 9, 46 bytes, ttl 64
network: 198.18.0.2: in 198.18.0.0/24 of \"web\", profile \"web\"
sets: 203.0.0.1: in no set that passes or drops
rules: rule 0 \"near\": does not match: dport is 9
rules: 1 rules: none matches
amplification: class \"chargen\": drops
drop: amplification class \"chargen\"
";
    assert_eq!((ended.out.as_str(), ended.status), (expected, Some(0)), "{}", ended.err);
}

#[test]
fn a_packet_is_described_by_the_flags_of_generate() {
    let scratch = Scratch::with_policy(POLICY);
    let flags =
        ["--proto", "tcp", "--dst", "198.18.0.9", "--dport", "80", "--vlan", "7", "--size", "100"];
    let near = explained(&scratch, &[&flags[..], &["--ttl", "255"]].concat());
    let frame = json!({
        "stage": "frame",
        "subject": "100 bytes",
        "result": "TCP 198.18.0.1 port 9 to 198.18.0.9 port 80, flags 0x02, 82 bytes, ttl 255, vlan 7",
    });
    assert_eq!(near["steps"][0], frame, "{near}");
    assert_eq!(near["cause"], "rule 0 \"near\"");
    assert_eq!(explained(&scratch, &flags)["cause"], "the profile's default", "its ttl is 64");
    let other = explained(&scratch, &["--src", "2001:db8::1"]);
    assert_eq!((&other["verdict"], &other["command"]), (&json!("pass"), &json!("scrub explain")));
    assert_eq!(other["cause"], "the destination is not protected");
}

#[test]
fn packets_of_a_capture_are_charged_to_limits_in_their_order() {
    let scratch = Scratch::with_policy(POLICY);
    let frames = [(0, 1), (100, 1), (200, 2), (1300, 1)];
    timed(
        &scratch.file("a.pcap"),
        frames.into_iter().map(|(ms, host)| (ms * 1_000_000, udp(host, 9))),
    );
    let capture = scratch.word("a.pcap");
    let verdicts = ["1", "2", "3", "4"].map(|number| {
        explained(&scratch, &["--capture", &capture, "--number", number])["verdict"].clone()
    });
    assert_eq!(verdicts, ["pass", "drop", "pass", "pass"]);
    let policy = scratch.policy();
    let words = ["scrub", "explain", &policy, "--capture", &capture, "--number"];
    refused(&[&words[..], &["5"]].concat(), "a.pcap: it has no packet 5, but 4 packets");
    refused(&[&words[..], &["0"]].concat(), "0");
}

#[test]
fn one_packet_is_named() {
    let scratch = Scratch::with_policy(POLICY);
    let policy = scratch.policy();
    for words in [&[][..], &["--hex", "00", "--src", "192.0.2.1"], &["--hex", "00", "--ttl", "9"]] {
        refused(&[&["scrub", "explain", &policy], words].concat(), "name one packet: ");
    }
    refused(&["scrub", "explain", &policy, "--hex", "0"], "a digit is missing");
    refused(&["scrub", "explain", &policy, "--capture", "a.pcap"], "--number");
}

#[test]
fn an_invalid_policy_is_wrong_usage() {
    let scratch = Scratch::with_policy("[set.bad]\naction = 'dorp'\nnetworks = []\n");
    let policy = scratch.policy();
    for words in [
        &["check", &policy][..],
        &["explain", &policy, "--src", "203.0.113.7"],
        &["rehearse", &policy, "none.pcap", "--oracle"],
        &["run", "none0", "--policy", &policy],
    ] {
        refused(&[&["scrub"], words].concat(), "line 2, column 10: set bad: action: 'dorp'");
    }
}
