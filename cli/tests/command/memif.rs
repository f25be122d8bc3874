//! `memif:` ports from the command line: two processes, and one that is killed. Needs no privilege.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::child;

fn sluice(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    let command = command.args(arguments).arg("--json").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn result(child: Child) -> Value {
    let output = child::end(child);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn generate(port: &str, more: &[&str]) -> Child {
    let frames = ["generate", port, "--stamp", "--size", "60-1514", "--dst", "198.18.0.2"];
    sluice(&[&frames[..], &["--dport", "9"], more].concat())
}

/// Waits until somebody has made the socket.
fn await_socket(path: &Path) {
    let end = Instant::now() + Duration::from_secs(60);
    while !path.exists() {
        assert!(Instant::now() < end, "no socket");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_one_process_generates_another_counts_whole_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    for (sends, receives) in [("client", "server"), ("server", "client")] {
        let port = |role| format!("memif:{}?role={role}&queues=2", path.display());
        let counts = sluice(&["count", &port(receives), "--analyze", "--count", "200000"]);
        let sent = result(generate(&port(sends), &["--threads", "2", "--count", "200000"]));
        let counted = result(counts);
        assert_eq!(sent["accepted"], 200_000, "{sent}");
        assert_eq!(sent["ledger"]["unexplained"], 0, "{sent}");
        assert_eq!((&counted["packets"], &counted["method"]), (&200_000.into(), &receives.into()));
        assert_eq!(counted["bytes"], sent["bytes"]);
        assert_eq!(counted["ledger"]["unexplained"], 0, "{counted}");
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
    let sender = generate(&port("client"), &["--count", "300000", "--rate", "50kpps"]);
    for _ in 0..10 {
        let _ = std::fs::remove_file(&path);
        let mut receiver = sluice(&["count", &port("server")]);
        await_socket(&path);
        std::thread::sleep(Duration::from_millis(100));
        receiver.kill().unwrap();
        receiver.wait().unwrap();
        assert!(path.exists(), "a killed process leaves its socket behind");
    }
    let last = sluice(&["count", &port("server"), "--count", "1"]);
    let served = result(last);
    assert!(served["packets"].as_u64() >= Some(1), "the socket was taken over: {served}");
    let takes_the_rest = sluice(&["count", &port("server"), "--duration", "60s"]);
    let sent = result(sender);
    let pid = nix::unistd::Pid::from_raw(takes_the_rest.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    result(takes_the_rest);
    assert_eq!(sent["attempted"], 300_000, "{sent}");
    assert_eq!(sent["ledger"]["unexplained"], 0, "{sent}");
    let lost = sent["ledger"]["losses"]["disconnected"].as_u64().unwrap_or(0);
    assert_eq!(sent["accepted"].as_u64(), Some(300_000 - lost), "{sent}");
}
