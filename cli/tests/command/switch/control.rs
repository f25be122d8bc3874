//! Asking a switch while it runs.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use serde_json::Value;
use sluicegate::control::MAX_LINE_BYTES;

use super::star::*;
use crate::support::*;

/// The port of an address in the table.
fn behind(shown: &Value, mac: &str) -> Option<String> {
    let entries = shown["table"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["mac"] == mac)?;
    Some(entry["port"].as_str().unwrap().to_owned())
}

#[test]
fn the_ports_of_the_result_have_their_names() {
    let name = format!("names-{}", std::process::id());
    let ended = run(&["switch", "a=null:", "b=null:", "--count", "100", "--name", &name]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    for port in ["from a (null:)", "from b (null:)"] {
        assert!(ended.out.contains(port), "{}", ended.out);
    }
    let folder = std::path::Path::new("/run/sluice/switch").join(name);
    assert!(!folder.exists(), "its folder goes with its socket");
}

#[test]
fn ports_come_and_go_while_packets_pass() {
    let Some(lab) = star() else { return };
    let ports = ports("xdp");
    let running = switch(&lab, &ports[..2], &[]);
    let ping = ["ping", "-q", "-i", "0.02", "-c", "100", "-W", "5", "198.18.0.2"];
    let steady = background(&lab, "left", &ping);
    for _ in 0..3 {
        ask(&lab, &["add", &ports[2]]);
        let there = shown(&lab);
        assert_eq!(port(&there, "upper")["port"], "xdp:middle2?ring_size=8192", "{there}");
        let reaches = ["ping", "-q", "-c", "1", "-W", "5", "198.18.0.1"];
        assert_eq!(on(&lab, "upper", &reaches).status, Some(0));
        ask(&lab, &["remove", "upper"]);
        let ping = ["ping", "-q", "-c", "1", "-W", "1", "198.18.0.1"];
        assert_eq!(on(&lab, "upper", &ping).status, Some(1), "it is out of the switch");
    }
    let steady = steady.end();
    assert!(steady.out.contains(" 0% packet loss"), "{}", steady.out);
    let report = running.stop().good();
    // The report has a part for each of the three times that it was a port.
    let parts = report["ports"].as_array().unwrap();
    assert_eq!(parts.iter().filter(|part| part["name"] == "upper").count(), 3, "{report}");
}

#[test]
fn the_rate_lines_stay_right_when_a_port_is_removed() {
    let Some(lab) = star() else { return };
    let running = switch(&lab, &ports("packet")[..3], &["--interval", "10ms"]);
    generate(&lab, "upper", 1000, &["--smac", &mac("upper"), "--dmac", &mac("left")]);
    eventually("all have passed", || count(&shown(&lab), "left", "sent") >= 1000);
    ask(&lab, &["remove", "upper"]);
    let ping = ["ping", "-q", "-i", "0.02", "-c", "20", "-W", "5", "198.18.0.2"];
    assert_eq!(on(&lab, "left", &ping).status, Some(0));
    let ended = running.stop();
    let lines: Vec<Value> =
        ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (report, rates) = lines.split_last().unwrap();
    assert!(rates.len() > 10, "{}", ended.out);
    let packets: u64 = rates.iter().map(|line| line["packets"].as_u64().unwrap()).sum();
    assert!(packets >= 1000 && packets <= report["packets"].as_u64().unwrap(), "{}", ended.out);
}

#[test]
fn the_table_is_shown_and_changed() {
    let Some(lab) = star() else { return };
    let running = switch(&lab, &ports("packet"), &[]);
    generate(&lab, "left", 1, &["--smac", "02:00:00:00:00:01", "--dmac", &mac("right")]);
    generate(&lab, "upper", 1, &["--smac", "02:00:00:00:00:02", "--dmac", &mac("right")]);
    let learned = |mac: &str| behind(&shown(&lab), mac);
    for (mac, port) in [("02:00:00:00:00:01", "left"), ("02:00:00:00:00:02", "upper")] {
        eventually("it is learned", || learned(mac).is_some());
        assert_eq!(learned(mac).as_deref(), Some(port));
    }
    assert!(ask(&lab, &["flush", "upper"]).out.starts_with("1 entry removed"), "of this port only");
    assert_eq!(learned("02:00:00:00:00:02"), None);
    ask(&lab, &["static", "02:00:00:00:00:03", "lower"]);
    generate(&lab, "left", 7, &["--smac", "02:00:00:00:00:01", "--dmac", "02:00:00:00:00:03"]);
    generate(&lab, "left", 1, &["--smac", "02:00:00:00:00:03", "--dmac", &mac("right")]);
    assert_eq!(learned("02:00:00:00:00:03").as_deref(), Some("lower"));
    assert!(ask(&lab, &["show"]).out.contains("static"));
    ask(&lab, &["forget", "02:00:00:00:00:03"]);
    assert_eq!(learned("02:00:00:00:00:03"), None);
    for (what, advice) in [
        (&["remove", "nobody"][..], "available: left, right, upper, lower"),
        (&["static", "02:00:00:00:00:03", "nobody"], "no port 'nobody'"),
        (&["static", "ff:ff:ff:ff:ff:ff", "left"], "a group address"),
        (&["add", "left=null:"], "already"),
        (&["add", "again=packet:middle0"], "ports 'left' and 'again' are the same interface"),
        (&["add", "again=live:middle0"], "the same interface"),
        (&["add", "null:", "--access", "3"], "has no VLANs"),
        (&["add", "xdp:nothing0"], "nothing0"),
    ] {
        refused(&[&["switch"], what, &["--name", lab.name()]].concat(), advice);
    }
    let report = running.stop().good();
    assert_eq!(count(&report, "left", "elsewhere"), 1, "{report}");
    assert_eq!(count(&report, "lower", "sent"), 3 + 7, "flooded before it was static: {report}");
}

#[test]
fn a_client_that_hangs_at_the_socket_disturbs_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let place = ["--control", socket.to_str().unwrap()];
    let start = ["switch", "null:", "--tx-only", "null", "--json"];
    let running = Running::unawaited(&mut sluice(&[&start[..], &place].concat()));
    eventually("it listens", || socket.exists());
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let endless = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(b"{\"do\":\"show\"").unwrap();
        stream
    };
    let _hanging: Vec<UnixStream> = (0..30).map(|_| endless()).collect();
    let mut long = endless();
    long.write_all(&[b' '; MAX_LINE_BYTES]).unwrap();
    let mut answer = String::new();
    long.read_to_string(&mut answer).unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let limit = format!("a request has at most {MAX_LINE_BYTES} bytes");
    assert_eq!(answer, serde_json::json!({"error": limit, "kind": "usage"}));
    let show = run(&[&["switch", "show", "--json"], &place[..]].concat());
    assert_eq!(show.status, Some(0), "{}", show.err);
    refused(&[&start[..], &place].concat(), "take another");
    running.stop().good();
    assert!(!socket.exists());
}

#[test]
fn a_terminal_obeys_no_characters_of_a_port_name() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let place = ["--control", socket.to_str().unwrap()];
    let file = format!("file=pcap:{}/\x1b[31m.pcapng", folder.path().display());
    let start = ["switch", "null:", &file, "--tx-only", "null", "--tx-only", "file", "--json"];
    let running = Running::unawaited(&mut sluice(&[&start[..], &place].concat()));
    eventually("it listens", || socket.exists());
    let show = run(&[&["switch", "show"], &place[..]].concat());
    assert!(show.out.contains("/\\x1b[31m.pcapng") && !show.out.contains('\x1b'), "{show:?}");
    running.stop().good();
}

#[test]
fn a_switch_without_privileges_says_so_when_a_port_is_added() {
    let Some(lab) = star() else { return };
    let running = switch(&lab, &ports("packet")[..2], &["--user", "nobody"]);
    let add = ["switch", "add", "packet:middle2", "--name", lab.name()];
    // The socket exists before the switch has changed its user.
    eventually("it answers", || run(&["switch", "show", "--name", lab.name()]).status == Some(0));
    let added = run(&add);
    assert_eq!(added.status, Some(3), "{}", added.err);
    assert!(added.err.contains("the switch runs as nobody; restart"), "{}", added.err);
    running.stop().good();
}
