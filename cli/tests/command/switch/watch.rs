//! Watching a port of a running switch.

use nix::sys::signal::Signal;

use super::star::*;
use crate::support::*;

/// A capture of a port of the switch in the middle of a lab.
fn watch(
    lab: &sluicegate::link::Lab,
    port: &str,
    file: &std::path::Path,
    more: &[&str],
) -> Running {
    let port = format!("monitor:{}/{port}", lab.name());
    let write = ["capture", &port, "-w", file.to_str().unwrap(), "--json"];
    let before = watchers(lab);
    let running = Running::unawaited(&mut sluice(&[&write[..], more].concat()));
    eventually("it watches", || watchers(lab) > before || running.has_ended());
    running
}

/// The number of watchers of the switch's ports.
fn watchers(lab: &sluicegate::link::Lab) -> u64 {
    let shown = shown(lab);
    HOSTS.iter().map(|host| count(&shown, host, "watchers")).sum()
}

#[test]
fn a_watcher_sees_every_packet_once_as_it_was() {
    if !have(&["tshark"]) {
        return;
    }
    let Some(lab) = star() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for kind in ["xdp", "packet"] {
        let running = switch(&lab, &ports(kind), &[]);
        // The switch knows all hosts already, so it floods nothing.
        generate(&lab, "right", 1, &["--smac", &mac("right"), "--dmac", &mac("left")]);
        generate(&lab, "left", 1, &["--smac", &mac("left"), "--dmac", &mac("right")]);
        let (both, only) = (path("both.pcapng"), path("only.pcapng"));
        let left = watch(&lab, "left", &both, &[]);
        let filtered = watch(&lab, "left", &only, &["-f", "udp dst port 1009"]);
        let sent = path("right.pcap");
        let right = capture_all(&lab.netns("right"), "udp", &sent);
        let flags = ["--size", "60-1500", "--payload", "random", "--seed", "5"];
        let to_right = ["--smac", &mac("left"), "--dmac", &mac("right"), "--dport", "1009"];
        generate(&lab, "left", 2000, &[&flags[..], &to_right].concat());
        eventually("these have passed", || count(&shown(&lab), "right", "sent") == 2001);
        generate(&lab, "right", 1000, &["--smac", &mac("right"), "--dmac", &mac("left")]);
        eventually("all have passed", || count(&shown(&lab), "left", "sent") == 1001);
        let (watched, filtered) = (left.stop().good(), filtered.stop().good());
        assert_eq!(watched["packets"], 3000, "{kind}: {watched}");
        assert_eq!(filtered["packets"], 2000, "{kind}: {filtered}");
        // The host does not change the packets that right0 has received.
        right.stop().good();
        let seen: Vec<Vec<u8>> = packets(&both).into_iter().map(|(_, bytes)| bytes).collect();
        let there: Vec<Vec<u8>> = packets(&sent).into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(seen[..2000], there[..2000], "{kind}: as they were, in order");
        let ways = tshark(&both, &["-T", "fields", "-e", "frame.packet_flags_direction"]);
        let out = ways.iter().filter(|way| way.ends_with('2')).count();
        assert_eq!((ways.len(), out), (3000, 1000), "{kind}: what was sent says so");
        eventually("nobody watches any more", || watchers(&lab) == 0);
        let report = running.stop().good();
        let way = if kind == "xdp" { "swapped" } else { "copied" };
        assert!(count(&report, "left", way) >= 1000, "{kind}: {report}");
    }
}

#[test]
fn a_watched_answer_is_later_than_its_request() {
    let Some(lab) = star() else { return };
    if !have(&["ping"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("left.pcapng");
    for kind in ["packet", "xdp"] {
        let running = switch(&lab, &ports(kind), &[]);
        let left = watch(&lab, "left", &file, &["-f", "icmp"]);
        // One by one, because packets of a batch have one time.
        for _ in 0..8 {
            let ping = on(&lab, "left", &["ping", "-q", "-c", "1", "-W", "10", "198.18.0.2"]);
            assert_eq!(ping.status, Some(0), "{kind}: {}", ping.out);
        }
        left.stop().good();
        let times: Vec<u64> = packets(&file).into_iter().map(|(ns, _)| ns).collect();
        assert_eq!(times.len(), 16, "{kind}: requests and answers");
        assert!(times.is_sorted_by(|a, b| a < b), "{kind}: {times:?}");
        running.stop().good();
    }
}

#[test]
fn a_watcher_that_hangs_loses_and_nobody_else_does() {
    let Some(lab) = star() else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = switch(&lab, &ports("xdp"), &[]);
    generate(&lab, "right", 1, &["--smac", &mac("right"), "--dmac", &mac("left")]);
    let stopped = watch(&lab, "left", &folder.path().join("stopped.pcapng"), &[]);
    stopped.signal(Signal::SIGSTOP);
    let killed = watch(&lab, "left", &folder.path().join("killed.pcapng"), &[]);
    killed.signal(Signal::SIGKILL);
    killed.end();
    eventually("who is killed is missed", || watchers(&lab) == 1);
    generate(&lab, "left", 20_000, &["--smac", &mac("left"), "--dmac", &mac("right")]);
    eventually("all have passed", || count(&shown(&lab), "right", "sent") == 20_000);
    let there = shown(&lab);
    assert!(count(&there, "left", "watchers_lost") > 0, "{there}");
    stopped.signal(Signal::SIGCONT);
    let watched = stopped.stop().good();
    // More packets came than the ring holds, and all are accounted for.
    assert_eq!(watched["ledger"]["in"], 20_000, "{watched}");
    assert!(watched["ledger"]["losses"]["ring_full"].as_u64() > Some(10_000), "{watched}");
    let report = running.stop().good();
    assert_eq!(report["ledger"]["losses"], serde_json::json!({}), "{report}");
}

#[test]
fn watching_ends_with_the_switch_and_with_the_port() {
    let Some(lab) = star() else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = switch(&lab, &ports("packet"), &[]);
    let of = |name: &str| folder.path().join(name);
    let watchers = ["left", "right", "upper"].map(|port| watch(&lab, port, &of(port), &[]));
    generate(&lab, "left", 10, &["--dmac", "ff:ff:ff:ff:ff:ff"]);
    eventually("all have passed", || count(&shown(&lab), "upper", "sent") == 10);
    let [left, right, upper] = watchers;
    ask(&lab, &["remove", "left"]);
    assert_eq!(left.end().good()["packets"], 10, "its port was taken out");
    running.signal(Signal::SIGTERM);
    assert_eq!(right.end().good()["packets"], 10, "the switch has ended");
    running.end().good();
    let upper = upper.end().good();
    assert_eq!((upper["packets"].as_u64(), upper.get("notices")), (Some(10), None));
    let running = switch(&lab, &ports("packet"), &[]);
    let cut = watch(&lab, "left", &of("cut"), &[]);
    running.signal(Signal::SIGKILL);
    let cut = cut.end();
    assert!(cut.err.contains("the watched command ended unexpectedly"), "{}", cut.err);
    let notices = cut.good()["notices"].to_string();
    assert!(notices.contains("the watched command ended unexpectedly"), "{notices}");
    running.end();
    let nobody = format!("monitor:{}/left", lab.name());
    for (port, advice) in
        [(&nobody[..], "no running command"), ("monitor:a/b/c", "no running command")]
    {
        refused(&["count", port], advice);
    }
}
