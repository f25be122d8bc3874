use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

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

[set.friends]
action = 'pass'
networks = ['203.9.0.0/16']
";
/// A host of the set.
const FRIEND: u32 = 0x0009_0001;
const MS: u64 = 1_000_000;

/// The ways to decide that work here: a flag each.
fn ways() -> &'static [&'static [&'static str]] {
    if is_root() { &[&[], &["--oracle"]] } else { &[&["--oracle"]] }
}

fn rehearse(scratch: &Scratch, words: &[&str]) -> Ended {
    let policy = scratch.policy();
    run(&[&["scrub", "rehearse", &policy], words].concat())
}

/// Rehearses in all ways, which agree.
fn rehearsed(scratch: &Scratch, words: &[&str]) -> Value {
    let result = |way: &&[&str]| {
        let ended = rehearse(scratch, &[words, way, &["--json"]].concat());
        assert_eq!(ended.status, Some(0), "{way:?}: {}", ended.err);
        let mut value: Value = serde_json::from_str(&ended.out).unwrap();
        let by = if way.is_empty() { "xdp" } else { "oracle" };
        assert_eq!((value["by"].take(), &value["complete"]), (by.into(), &true.into()));
        value
    };
    let results: Vec<_> = ways().iter().map(result).collect();
    assert!(results.iter().all(|it| *it == results[0]), "{results:#?}");
    results[0].clone()
}

/// Packets and sources by name and verdict.
fn rows(value: &Value, side: &str) -> Vec<(String, String, u64, u64)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let row = |row: &Value| {
        let [packets, sources] = ["packets", "sources"].map(|key| row[side][key].as_u64().unwrap());
        (text(&row["name"]), text(&row["verdict"]), packets, sources)
    };
    value["rows"].as_array().unwrap().iter().map(row).collect()
}

fn row(name: &str, verdict: &str, packets: u64, sources: u64) -> (String, String, u64, u64) {
    (name.into(), verdict.into(), packets, sources)
}

fn capture(path: &Path, packets: &[(u64, Vec<u8>)]) {
    timed(path, packets.iter().map(|(ms, frame)| (ms * MS, frame.clone())));
}

#[test]
fn packets_and_sources_are_counted_by_what_decides() {
    let scratch = Scratch::with_policy(POLICY);
    let attack: Vec<_> = (0..40).map(|it| (u64::from(it), udp(it % 4, 19))).collect();
    capture(&scratch.file("attack.pcap"), &attack);
    let peace =
        [(0, udp(1, 9)), (1, udp(1, 9)), (2, udp(2, 9)), (3, udp(FRIEND, 19)), (4, vec![0; 60])];
    capture(&scratch.file("peace.pcap"), &peace);
    let [attack, peace] = ["attack.pcap", "peace.pcap"].map(|it| scratch.word(it));
    let value = rehearsed(&scratch, &[&attack, "--peace", &peace]);
    let limit = "profile web: 1 packets/s by source";
    let expected = [
        row("not-ip", "pass", 0, 0),
        row("friends", "pass", 0, 0),
        row("chargen", "drop", 40, 4),
        row(limit, "drop", 0, 0),
        row("default", "pass", 0, 0),
    ];
    assert_eq!(rows(&value, "attack"), expected);
    let expected = [
        row("not-ip", "pass", 1, 0),
        row("friends", "pass", 1, 1),
        row("chargen", "drop", 0, 0),
        row(limit, "drop", 1, 1),
        row("default", "pass", 2, 2),
    ];
    assert_eq!(rows(&value, "peace"), expected);
    let all =
        json!({"packets": 40, "packets_percent": 100.0, "sources": 4, "sources_percent": 100.0});
    assert_eq!(value["attack"]["dropped"], all);
    let share = &value["peace"]["dropped"]["sources_percent"];
    assert!((share.as_f64().unwrap() - 100.0 / 3.0).abs() < 1e-9, "{share}");
    assert_eq!(value["peace"]["recorded"]["duration_s"], 0.004);
    let table = rehearse(&scratch, &[&attack, "--peace", &peace, "--oracle"]).out;
    let line = table.lines().find(|it| it.starts_with("limit ")).unwrap();
    let cells: Vec<_> = line.split_once("drop").unwrap().1.split_whitespace().collect();
    assert_eq!(cells, ["0", "0", "0", "0", "1", "20", "1", "33.3"], "{table}");
    let total = table.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(total, ["all", "drop", "40", "100", "4", "100", "1", "20", "1", "33.3"], "{table}");
}

#[test]
fn paths_may_be_other_than_utf8() {
    let scratch = Scratch::with_policy(POLICY);
    let [policy, attack] =
        [b"policy-\xff", b"attack-\xff"].map(|it| scratch.0.path().join(OsStr::from_bytes(it)));
    std::fs::copy(scratch.policy(), &policy).unwrap();
    capture(&attack, &[(0, udp(1, 19))]);
    let result = |command: &str, more: &[&OsStr]| {
        let mut command = sluice(&["scrub", command, "--json"]);
        let ended = ended(command.arg(&policy).args(more));
        assert_eq!(ended.status, Some(0), "{}", ended.err);
        serde_json::from_str::<Value>(&ended.out).unwrap()
    };
    let shown = |value: &Value| value.as_str().unwrap().ends_with("-\u{fffd}");
    let value = result("rehearse", &[attack.as_os_str(), "--oracle".as_ref()]);
    assert!(shown(&value["policy"]) && shown(&value["attack"]["files"][0]), "{value}");
    assert!(shown(&result("explain", &["--sport".as_ref(), "19".as_ref()])["policy"]));
    // A request has them as texts.
    let socket = scratch.file("socket");
    for words in [&["apply"][..], &["sets", "load", "bad"]] {
        let mut command = sluice(&[&["scrub"], words].concat());
        let ended = ended(command.arg(&policy).arg("--control").arg(&socket));
        assert_eq!(ended.status, Some(2), "{}", ended.err);
        assert!(ended.err.contains("policy-\u{fffd}: the path is not UTF-8"), "{}", ended.err);
    }
}

#[test]
fn limits_follow_the_recorded_times_which_do_not_go_back() {
    let scratch = Scratch::with_policy(POLICY);
    let times = [5000, 5980, 6000, 5100, 6980, 7000];
    capture(&scratch.file("a.pcap"), &times.map(|ms| (ms, udp(1, 9))));
    // Merged by time: between the first two packets of the other file.
    capture(&scratch.file("b.pcap"), &[(5500, udp(2, 9)), (6400, udp(2, 9))]);
    let value = rehearsed(&scratch, &[&scratch.word("a.pcap"), &scratch.word("b.pcap")]);
    assert_eq!(
        (&value["attack"]["passed"]["packets"], &value["attack"]["packets"]),
        (&json!(4), &json!(8))
    );
}

#[test]
fn peace_begins_with_limits_at_rest() {
    let scratch = Scratch::with_policy(POLICY);
    capture(&scratch.file("a.pcap"), &[(0, udp(1, 9)), (1, udp(1, 9))]);
    let file = scratch.word("a.pcap");
    let value = rehearsed(&scratch, &[&file, "--peace", &file]);
    assert_eq!(value["attack"], value["peace"]);
    assert_eq!(value["attack"]["dropped"]["packets"], 1);
}

#[test]
fn packets_that_cannot_be_rehearsed_are_skipped() {
    let scratch = Scratch::with_policy(POLICY);
    capture(&scratch.file("short.pcap"), &[(0, vec![0; 13]), (1, udp(1, 9))]);
    let mut raw = std::fs::read(scratch.file("short.pcap")).unwrap();
    // Of the second packet, bytes were cut.
    let at = 24 + 16 + 13 + 12;
    raw[at..at + 4].copy_from_slice(&61_u32.to_le_bytes());
    std::fs::write(scratch.file("cut.pcap"), &raw).unwrap();
    // LINKTYPE_RAW.
    raw[20..24].copy_from_slice(&101_u32.to_le_bytes());
    std::fs::write(scratch.file("raw.pcap"), &raw).unwrap();
    let mut long = udp(1, 9);
    long.resize(9000, 0);
    capture(&scratch.file("long.pcap"), &[(0, long)]);
    let files = ["short.pcap", "cut.pcap", "raw.pcap", "long.pcap"].map(|it| scratch.word(it));
    let files = files.each_ref().map(String::as_str);
    let skipped = |way: &[&str]| {
        let ended = rehearse(&scratch, &[&files[..], way, &["--json"]].concat());
        let value: Value = serde_json::from_str(&ended.out).unwrap();
        (value["attack"]["packets"].clone(), value["attack"]["skipped"].clone())
    };
    let rest = json!({"not_ethernet": 2, "cut": 1, "short": 2});
    assert_eq!(skipped(&["--oracle"]), (json!(2), rest));
    if is_root() {
        let rest = json!({"not_ethernet": 2, "cut": 1, "short": 2, "long": 1});
        assert_eq!(skipped(&[]), (json!(1), rest));
    }
    let ended = rehearse(&scratch, &[files[1], "--oracle"]);
    let begin = format!(
        "attack: {}: 0 packets, 0 sources\n  skipped: 1 packet: cut by a snap length\n  skipped: 1 packet: shorter than \
         14 bytes\n",
        files[1]
    );
    assert!(ended.out.starts_with(&begin), "{}", ended.out);
}

#[test]
fn thresholds_decide_on_the_exit_status() {
    let scratch = Scratch::with_policy(POLICY);
    capture(
        &scratch.file("a.pcap"),
        &[(0, udp(1, 9)), (1, udp(1, 9)), (2, udp(1, 9)), (3, udp(1, 9))],
    );
    let file = scratch.word("a.pcap");
    let both = [file.as_str(), "--peace", &file, "--oracle"];
    for (flags, error) in [
        (["--min-drop", "75"], None),
        (
            ["--min-drop", "75.1%"],
            Some("3 of 4 packets of attack dropped or answered (75 %); --min-drop is 75.1 %"),
        ),
        (["--max-peace-drop", "75%"], None),
        (
            ["--max-peace-drop", "74"],
            Some("3 of 4 packets of peace dropped (75 %); --max-peace-drop is 74 %"),
        ),
    ] {
        let ended = rehearse(&scratch, &[&both[..], &flags].concat());
        assert_eq!(ended.status, Some(i32::from(error.is_some())), "{flags:?}: {}", ended.err);
        assert!(ended.err.contains(error.unwrap_or("")), "{}", ended.err);
        assert!(ended.out.contains("\nall "), "the result comes first: {}", ended.out);
    }
    capture(&scratch.file("none.pcap"), &[]);
    let none = scratch.word("none.pcap");
    for (words, side) in [
        (&[&none, "--oracle", "--min-drop", "0"][..], "attack"),
        (&["--peace", &none, "--oracle", "--max-peace-drop", "100"], "peace"),
    ] {
        let ended = rehearse(&scratch, words);
        assert_eq!(ended.status, Some(1), "{}", ended.err);
        assert!(ended.err.contains(&format!("no packet of {side} was rehearsed")), "{}", ended.err);
    }
    let policy = scratch.policy();
    let words = ["scrub", "rehearse", &policy];
    refused(&words, "<CAPTURE>");
    refused(&[&words[..], &[&file, "--min-drop", "101"]].concat(), "use a number from 0 to 100");
    refused(&[&words[..], &[&file, "--max-peace-drop", "1"]].concat(), "--peace");
    refused(&[&words[..], &["--peace", &file, "--min-drop", "1"]].concat(), "<CAPTURE>");
    refused(&[&words[..], &["nothing.pcap", "--oracle"]].concat(), "nothing.pcap");
}

#[test]
fn a_damaged_capture_fails_after_the_result() {
    let scratch = Scratch::with_policy(POLICY);
    capture(&scratch.file("a.pcap"), &[(0, udp(1, 9)), (1, udp(1, 9))]);
    let mut bytes = std::fs::read(scratch.file("a.pcap")).unwrap();
    bytes.pop();
    std::fs::write(scratch.file("a.pcap"), bytes).unwrap();
    let ended = rehearse(&scratch, &[&scratch.word("a.pcap"), "--oracle"]);
    assert_eq!(ended.status, Some(1), "{}", ended.err);
    assert!(ended.out.contains(": 1 packet, 1 source\n"), "{}", ended.out);
    assert!(ended.err.contains("the file is cut short"), "{}", ended.err);
}

#[test]
fn a_signal_ends_the_run_with_its_result() {
    let scratch = Scratch::with_policy(POLICY);
    capture(&scratch.file("a.pcap"), &[(0, udp(1, 9)), (1, udp(1, 9))]);
    let (policy, file) = (scratch.policy(), scratch.word("a.pcap"));
    for (flag, status) in [("--limit-keys=64", 0), ("--json", 0), ("--min-drop=1", 1)] {
        let words = ["scrub", "rehearse", &policy, "-", "--peace", &file, "--oracle", flag];
        let mut running = Running::unawaited(sluice(&words).stdin(Stdio::piped()));
        // It waits for more.
        let mut stdin = running.child().stdin.take().unwrap();
        stdin.write_all(&std::fs::read(&file).unwrap()).unwrap();
        running.catches_signals();
        let ended = running.stop();
        assert_eq!(ended.status, Some(status), "{}", ended.err);
        let found = match flag {
            "--json" => ended.report()["complete"] == false,
            _ => ended.out.starts_with("attack: -: 2 packets, 1 source\n\n"),
        };
        assert!(found, "{}", ended.out);
        assert!(ended.err.contains("the captures were not read to their end"), "{}", ended.err);
        drop(stdin);
    }
}

#[test]
fn a_difference_fails_with_the_packet_and_both_decisions() {
    if !is_root() {
        return;
    }
    // More sources than the program can tell apart: some share a limit, in the program only.
    let scratch = Scratch::with_policy(POLICY);
    timed(&scratch.file("a.pcap"), (0..40_000).map(|it| (u64::from(it), udp(it, 9))));
    let file = scratch.word("a.pcap");
    let ended = rehearse(&scratch, &[&file, "--limit-keys", "64"]);
    assert_eq!(ended.status, Some(1), "{}", ended.out);
    assert_eq!(ended.out, "");
    for part in [
        " of ",
        ": the XDP program and the oracle decide differently\nXDP program: drop: limit 0 exceeded\noracle: pass: the \
         profile's default\n  frame: 60 bytes: UDP 203.",
        "\n  limits: limit 0: 1 packets/s from 203.",
        "\nbytes: 0200c6120002",
    ] {
        assert!(ended.err.contains(part), "{part}: {}", ended.err);
    }
    let (_, digits) = ended.err.trim_end().rsplit_once("bytes: ").unwrap();
    let ended = run(&["scrub", "explain", &scratch.policy(), "--hex", digits]);
    assert!(ended.out.ends_with("\npass: the profile's default\n"), "{ended:?}");
}

#[test]
fn without_privileges_the_error_names_the_flag_that_needs_none() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::with_policy(POLICY);
    capture(&scratch.file("a.pcap"), &[(0, udp(1, 9))]);
    let anyone = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(scratch.0.path(), anyone).unwrap();
    let (policy, file) = (scratch.policy(), scratch.word("a.pcap"));
    for (flag, status) in [("--json", 3), ("--oracle", 0)] {
        let mut command = sluice(&["scrub", "rehearse", &policy, &file, flag]);
        let ended = ended(command.uid(65534).gid(65534));
        assert_eq!(ended.status, Some(status), "{}", ended.err);
        let remedy = "run it with sudo, or add --oracle, which needs no privilege\n";
        assert_eq!(ended.err.ends_with(remedy), status == 3, "{}", ended.err);
    }
}
