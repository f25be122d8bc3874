//! `memif:` ports from the command line: two processes, and one that is killed. Needs no privilege.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::*;

fn start(arguments: &[&str]) -> Running {
    Running::unawaited(&mut sluice(&[arguments, &["--json"]].concat()))
}

fn generate(port: &str, more: &[&str]) -> Running {
    let frames = ["generate", port, "--stamp", "--size", "60-1514", "--dst", "198.18.0.2"];
    start(&[&frames[..], &["--dport", "9"], more].concat())
}

#[test]
fn one_process_counts_all_packets_of_another_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    for (sends, receives) in [("client", "server"), ("server", "client")] {
        let port = |role| format!("memif:{}?role={role}&queues=2", path.display());
        let counts = start(&["count", &port(receives), "--analyze", "--count", "200000"]);
        let sent = generate(&port(sends), &["--threads", "2", "--count", "200000"]).end().good();
        let counted = counts.end().good();
        assert_eq!(sent["accepted"], 200_000, "{sent}");
        assert_eq!((&counted["packets"], &counted["method"]), (&200_000.into(), &receives.into()));
        assert_eq!(counted["bytes"], sent["bytes"]);
        let stream = &counted["analysis"]["streams"][0];
        for what in ["lost", "duplicates", "reordered", "corrupt"] {
            assert_eq!(stream[what], 0, "{what}: {counted}");
        }
        let notices = counted["notices"].to_string();
        assert!(notices.contains("connected to sluice"), "{notices}");
        assert!(!path.exists(), "the socket's file goes with its port");
    }
}

#[test]
fn a_receiver_that_is_killed_again_and_again_does_not_end_the_sender() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let port = |role| format!("memif:{}?role={role}", path.display());
    let rate = folder.path().join("rate");
    std::fs::write(&rate, "50kpps").unwrap();
    // More than go at this rate until the last receiver is killed, on a busy machine too.
    let count = ["--count", "1000000", "--rate-file", rate.to_str().unwrap()];
    let sender = generate(&port("client"), &count);
    for _ in 0..10 {
        let _ = std::fs::remove_file(&path);
        let receiver = start(&["count", &port("server")]);
        eventually("there is a socket", || path.exists());
        std::thread::sleep(Duration::from_millis(100));
        receiver.signal(Signal::SIGKILL);
        receiver.end();
        assert!(path.exists(), "a killed process leaves its socket behind");
    }
    let served = start(&["count", &port("server"), "--count", "1"]).end().good();
    assert!(served["packets"].as_u64() >= Some(1), "the socket was taken over: {served}");
    let mut takes_the_rest = start(&["count", &port("server"), "--duration", "60s"]);
    while !takes_the_rest.says().contains("connected to sluice") {}
    std::fs::write(&rate, "10Mpps").unwrap();
    let sent = sender.end().good();
    let rest = takes_the_rest.stop().good();
    assert!(rest["packets"].as_u64() > Some(0), "{rest}");
    assert_eq!(sent["attempted"], 1_000_000, "{sent}");
    // A killed receiver may have taken the packets in its ring, or not.
    assert_eq!(sent["accepted"].as_u64(), Some(1_000_000 - uncertain(&sent)), "{sent}");
    assert_eq!(sent["ledger"]["losses"], json!({}), "{sent}");
}

#[test]
fn packets_that_a_stopped_receiver_takes_later_are_uncertain() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let port = |role| format!("memif:{}?role={role}", path.display());
    let rate = folder.path().join("rate");
    std::fs::write(&rate, "1pps").unwrap();
    let mut receiver = start(&["count", &port("server")]);
    eventually("there is a socket", || path.exists());
    let count = ["--count", "500", "--rate-file", rate.to_str().unwrap()];
    let sender = generate(&port("client"), &count);
    while !receiver.says().contains("connected to sluice") {}
    receiver.signal(Signal::SIGSTOP);
    std::fs::write(&rate, "10Mpps").unwrap();
    let sent = sender.end().good();
    receiver.signal(Signal::SIGCONT);
    while !receiver.says().contains("disconnected") {}
    assert_eq!(receiver.stop().good()["packets"], 500);
    assert!(uncertain(&sent) > 0, "{sent}");
    assert_eq!(sent["ledger"]["out"], 500 - uncertain(&sent), "{sent}");
    assert!(sent["notices"].to_string().contains("in the ring of a peer"), "{sent}");
    assert_eq!(sent["ledger"]["losses"], json!({}), "{sent}");
    assert_eq!(sent["ledger"]["unexplained"], 0, "{sent}");
}

#[test]
fn packets_of_several_slots_move_in_batches_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = (folder.path().join("socket"), folder.path().join("long.pcap"));
    let port = |role| format!("memif:{}?role={role}", path.display());
    let long_ones = format!("pcap:{}", file.display());
    let long = ["generate", &long_ones, "--size", "5000", "--count", "300", "--dst", "198.18.0.2"];
    ended(&mut sluice(&[&long[..], &["--json"]].concat())).good();
    let steps = ["--one-way", "--batch", "1", "--count", "300"];
    let (server, client) = (port("server"), port("client"));
    let takes = start(&[&["forward", &server, "null:"][..], &steps].concat());
    let gives = start(&["forward", &long_ones, &client, "--one-way"]).end().good();
    assert_eq!(gives["ledger"]["out"], 300, "{gives}");
    let report = takes.end().good();
    assert_eq!(
        (&report["packets"], &report["bytes"]),
        (&300.into(), &1_500_000.into()),
        "{report}"
    );
}
