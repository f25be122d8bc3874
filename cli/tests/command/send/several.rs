//! `sluice generate` sends by several ports at once.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use sluicegate::link::{Lab, Shape};

use crate::support::*;

/// Packets that a run sends by both ports of a host in the middle of a line.
fn generate(lab: &Lab, ports: &[&str], more: &[&str]) -> Ended {
    let middle = lab.netns("middle");
    let what = ["--netns", &middle, "--dmac", NOBODY];
    run(&[&["generate"], ports, &what, more].concat())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

#[test]
fn ports_share_packets_flows_and_rate_in_one_report() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let folder = tempfile::tempdir().unwrap();
    for (ports, method) in [
        (["middle0", "middle1"], "live"),
        (["middle0", "middle1"], "sendmmsg"),
        (["middle0", "packet:middle1"], "auto"),
    ] {
        let files = ["left", "right"].map(|host| folder.path().join(host));
        let captures = [("left", "left0", &files[0]), ("right", "right0", &files[1])]
            .map(|(host, port, file)| capture(&lab.netns(host), port, "udp port 9", file));
        let what = ["--count", "1001", "--rate", "20kpps", "--max-lag", "1ms", "--stamp"];
        let more = ["--flows", "10", "--sport", "1024..1033", "--threads", "2", "--json"];
        let report = generate(&lab, &ports, &[&["--method", method], &what[..], &more].concat());
        let report = report.good();
        closes(&report);
        assert_eq!(report["port"], ports.join(" "), "{report}");
        assert_eq!(number(&report["attempted"]), 1001, "{report}");
        assert_eq!(number(&report["ledger"]["out"]), 1001, "{report}");
        assert_eq!(report["streams"][0]["packets"], 1001, "{report}");
        assert_eq!(report["pace"]["target_pps"], 20e3, "{report}");
        let (mut marks, mut flows) = (BTreeSet::new(), Vec::new());
        for ((index, file), capture) in files.iter().enumerate().zip(captures) {
            let port = &report["ports"][index];
            assert_eq!(port["port"], ports[index], "{report}");
            // Each of two ports has two of four threads.
            assert!([500, 501].contains(&number(&port["packets"])), "{report}");
            assert_eq!(capture.stop().good()["packets"], port["packets"], "{method}: {report}");
            let packets = packets(file);
            marks.extend(packets.iter().map(|(_, bytes)| bytes[44..50].to_vec()));
            let ports = packets.iter().map(|(_, bytes)| bytes[34..36].to_vec());
            flows.push(ports.collect::<BTreeSet<_>>());
        }
        assert_eq!(marks.len(), 1001, "{method}: no two packets have the same thread and number");
        assert!(flows[0].is_disjoint(&flows[1]), "{method}: {flows:?}");
        assert_eq!(flows[0].len() + flows[1].len(), 10, "{method}");
    }
    let text = generate(&lab, &["middle0", "middle1"], &["--count", "10", "--rate", "1kpps"]);
    assert!(text.out.contains("5 to middle0\n") && text.out.contains("5 to middle1\n"), "{text:?}");
}

#[test]
fn threads_of_all_ports_take_the_named_cpus_in_turn() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    // The first port sends live frames, and has more threads than the run knows.
    let report = generate(
        &lab,
        &["middle0", "packet:middle1"],
        &["--count", "10", "--threads", "2", "--cpus", "0,1", "--json"],
    );
    let report = report.good();
    let cpus = |port: &Value| -> Vec<u64> {
        port["threads"].as_array().unwrap().iter().map(|thread| number(&thread["cpu"])).collect()
    };
    assert_eq!(report["ports"][0]["method"], "live", "{report}");
    assert_eq!([0, 1].map(|port| cpus(&report["ports"][port])), [[0, 1], [0, 1]], "{report}");
}

#[test]
fn each_program_of_live_frames_is_loaded_once() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    if !have(&["strace"]) {
        return;
    }
    let (folder, middle) = (tempfile::tempdir().unwrap(), lab.netns("middle"));
    let log = folder.path().join("log");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-s", "64", "-e", "trace=bpf", "-o"]).arg(&log);
    strace.args([env!("CARGO_BIN_EXE_sluice"), "generate", "middle0", "middle1", "--json"]);
    strace.args(["--netns", &middle, "--dmac", NOBODY, "--count", "8", "--threads", "2"]);
    let report = ended(strace.args(["--method", "live"])).good();
    assert_eq!(number(&report["ledger"]["out"]), 8, "{report}");
    let calls = std::fs::read_to_string(log).unwrap();
    let loads = calls.lines().filter(|call| call.contains("BPF_PROG_LOAD"));
    let loads = loads.filter(|call| call.contains("prog_name=\"sluice_live\"")).count();
    assert_eq!(loads, 4, "two threads of two ports: {calls}");
}

#[test]
fn a_rate_in_a_file_changes_at_all_ports() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (path, middle) = (folder.path().join("rate"), lab.netns("middle"));
    std::fs::write(&path, "pause").unwrap();
    let what = ["generate", "middle0", "middle1", "--netns", &middle, "--dmac", NOBODY];
    let more = ["--count", "1000", "--method", "live", "--json", "--rate-file"];
    let running = [&what[..], &more, &[path.to_str().unwrap()]].concat();
    let running = Running::unawaited(&mut sluice(&running));
    eventually("its threads begin", || running.has_threads("live") || running.has_ended());
    std::fs::write(&path, "1Mpps").unwrap();
    let report = running.end().good();
    assert_eq!(report["attempted"], 1000, "{report}");
}

#[test]
fn a_failure_at_one_port_is_named_and_ends_the_others_orderly() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let middle = lab.netns("middle");
    for method in ["live", "sendmmsg"] {
        let what = ["generate", "middle0", "middle1", "--netns", &middle, "--dmac", NOBODY];
        let more = ["--rate", "2kpps", "--method", method, "--json"];
        let running = Running::unawaited(&mut sluice(&[&what[..], &more].concat()));
        let came = || received(&lab, "right", "right0");
        let before = came();
        eventually("packets are sent", || came() > before + 10 || running.has_ended());
        assert_eq!(on(&lab, "middle", &["ip", "link", "set", "middle1", "down"]).status, Some(0));
        let ended = running.end();
        assert_eq!(on(&lab, "middle", &["ip", "link", "set", "middle1", "up"]).status, Some(0));
        assert_eq!(ended.status, Some(1), "{method}: {ended:?}");
        assert!(ended.err.contains("middle1"), "{method}: {ended:?}");
        let report = ended.report();
        closes(&report["ports"][0]);
        assert!(number(&report["ports"][0]["accepted"]) > 0, "{method}: {report}");
    }
    assert_eq!(
        generate(&lab, &["middle0", "packet:middle0"], &["--count", "1"]).status,
        Some(2),
        "the same interface"
    );
}

#[test]
fn a_port_named_twice_is_refused_by_any_names_and_no_file_is_created() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pcap");
    let other = folder.path().join(".").join("a.pcap");
    let [file, other] = [&file, &other].map(|path| path.to_str().unwrap());
    for (a, b) in [(file, file), (file, other), ("packet:lo", "lo")] {
        refused(&["generate", "null:", a, b, "--count", "1"], "the port is named twice");
        assert!(!Path::new(file).exists(), "{a} {b}");
    }
}
