//! The start of a scrubber.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::scratch::Scratch;
use super::{SETS, STATE, Scrubber};
use crate::support::*;

/// Waits for a service manager's message.
fn message(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 100];
    let length = socket.recv(&mut bytes).expect("a message");
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}

#[test]
fn a_run_says_when_it_is_ready_and_check_says_the_same_memory() {
    let Some(lab) = lab() else { return };
    let more = ["--monitor", "--limit-keys", "64k", "--interval", "10ms"];
    let mut scrubber = Scrubber::start(&lab, SETS, &more);
    let policy = scrubber.folder.path().join("policy.toml");
    let checked = run(&["scrub", "check", policy.to_str().unwrap(), "--limit-keys", "64k"]).out;
    let memory = checked.trim_end().rsplit("; ").next().unwrap().rsplit(", ").next().unwrap();
    let said = scrubber.running.says();
    let expected = format!(
        "sluice: ready: right0 in native mode, policy {}, {memory}; monitor: nothing is dropped\n",
        policy.display()
    );
    assert_eq!(said, expected, "{checked}");
    assert_eq!(scrubber.stop().status, Some(0));
}

#[test]
fn too_little_memory_is_refused_and_nothing_stays() {
    if !have(&["unshare", "mount"]) {
        return;
    }
    let Some(lab) = lab() else { return };
    let scratch = Scratch::with_policy(SETS);
    // This host has a GiB left.
    std::fs::write(scratch.file("meminfo"), "MemAvailable:    1048576 kB\n").unwrap();
    let (meminfo, netns) = (scratch.word("meminfo"), lab.netns("right"));
    let (policy, socket) = (scratch.policy(), scratch.word("socket"));
    let start = |keys: &str| {
        let mut command = Command::new("unshare");
        command.args([
            "-m",
            "sh",
            "-c",
            "mount --bind \"$1\" /proc/meminfo && shift && exec \"$@\"",
        ]);
        command.args(["sh", &meminfo, env!("CARGO_BIN_EXE_sluice"), "scrub", "run", "right0"]);
        command.args(["--netns", &netns, "--policy", &policy, "--control", &socket]);
        ended(command.args(["--limit-keys", keys, "--duration", "1s"]))
    };
    let refused = start("67108864");
    assert_eq!(refused.status, Some(1), "{}", refused.err);
    let said = "MiB are needed, but 1024 MiB are available; lower --limit-keys";
    assert!(refused.err.contains("allocate the maps of the scrubber: 4"), "{}", refused.err);
    assert!(refused.err.contains(said), "{}", refused.err);
    let claims = run(&["claims", "right0", "--netns", &netns, "--json"]).out;
    assert_eq!(serde_json::from_str::<Value>(&claims).unwrap()["program"], Value::Null);
    assert!(!scratch.file("socket").exists());
    assert_eq!(start("1M").status, Some(0));
}

#[test]
fn a_service_manager_learns_when_the_policy_is_live() {
    let Some(lab) = lab() else { return };
    let scratch = Scratch::with_policy(SETS);
    let manager = UnixDatagram::bind(scratch.file("manager")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (netns, policy, socket) = (lab.netns("right"), scratch.policy(), scratch.word("socket"));
    let place = ["--netns", &netns, "--policy", &policy, "--control", &socket];
    let mut command = sluice(&[&["scrub", "run", "right0"], &place[..]].concat());
    let running = Running::unawaited(command.env("NOTIFY_SOCKET", scratch.file("manager")));
    assert_eq!(message(&manager), "READY=1");
    let status = run(&["claims", "right0", "--netns", &netns, "--json"]).out;
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["claims"][0]["action"], "scrub", "{status}");
    assert_eq!(running.stop().status, Some(0));
    assert_eq!(message(&manager), "STOPPING=1");
}

#[test]
fn packets_of_unknown_flows_pass_while_it_learns() {
    let Some(lab) = lab() else { return };
    let dropped = |learn: &str| Scrubber::start(&lab, STATE, &["--learn", learn]).drops_unknown();
    assert!(dropped("0s") > 900);
    assert_eq!(dropped("1h"), 0);
    let refused = run(&["scrub", "run", "right0", "--policy", "x", "--learn", "2h"]);
    assert!(refused.err.contains("use a time from 0s to 1h"), "{}", refused.err);
}
