//! Forwarding between a host and its wire: the host's own traffic passes, and flows can be left to it.

use nix::sys::signal::Signal;

use super::hosts::talk;
use super::*;

/// `sluice forward` on right0, between right and its wire.
fn between(lab: &Lab, arguments: &[&str]) -> Running {
    let netns = lab.netns("right");
    let all = [&["forward", "--netns", &netns, "--json"], arguments].concat();
    let running = Running::unawaited(&mut sluice(&all));
    eventually("forwarding begins", || running.has_threads("forward-") || running.has_ended());
    running
}

#[test]
fn a_host_works_as_before_behind_a_forwarder() {
    if !have(&["ping"]) {
        return;
    }
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    for ports in [
        ["xdp:right0", "host:right0"],
        ["host:right0?hook=clsact", "xdp:right0?mode=skb"],
        ["xdp:right0", "host:right0/0-1"],
    ] {
        let running = between(&lab, &ports);
        let ping = ["ping", "-q", "-c", "20", "-i", "0.02", "-W", "5", "198.18.0.1"];
        assert_eq!(on(&lab, "right", &ping).status, Some(0), "{ports:?}");
        talk(&lab);
        let report = running.stop().good();
        for index in [0, 1] {
            let [packets, swapped, _] = direction(&report, index);
            assert!(packets > 220 && swapped == packets, "{ports:?}: {report}");
        }
        assert_eq!(report["ledger"]["losses"], serde_json::json!({}), "{report}");
        assert_eq!(report["ledger"]["unexplained"], 0, "{report}");
        let ping = ["ping", "-q", "-c", "1", "-W", "5", "198.18.0.1"];
        assert_eq!(on(&lab, "right", &ping).status, Some(0), "{ports:?}: afterwards");
    }
}

#[test]
fn flows_that_are_left_to_the_host_do_not_come() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let running = between(&lab, &["xdp:right0", "host:right0", "--host-flows", "tcp"]);
    talk(&lab);
    talk(&lab);
    let claims = run(&["claims", "right0", "--netns", &lab.netns("right"), "--json"]).report();
    assert!(claims["host"].as_str().unwrap().starts_with("host:right0 of sluice ("), "{claims}");
    assert_eq!(claims["claims"][0]["filter"], "(flows of the host)", "{claims}");
    assert_eq!(claims["host_left"], false, "it has not ended: {claims}");
    let report = running.stop().good();
    assert!(report["packets"].as_u64().unwrap() < 100, "{report}");
    assert!(entry(&report, "notes", "host_flows_from_wire") > 200, "{report}");
    assert!(entry(&report, "notes", "host_flows_from_host") > 20, "{report}");
    assert_eq!(report["ledger"]["unexplained"], 0, "{report}");
}

#[test]
fn detach_connects_a_host_that_was_cut_off() {
    if !have(&["ping"]) {
        return;
    }
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let running = between(&lab, &["xdp:right0", "host:right0?fallback=drop"]);
    running.signal(Signal::SIGKILL);
    running.end();
    let ping = ["ping", "-q", "-c", "2", "-i", "0.1", "-W", "1", "198.18.0.1"];
    assert_ne!(on(&lab, "right", &ping).status, Some(0), "cut off");
    let netns = lab.netns("right");
    let claims = || run(&["claims", "right0", "--netns", &netns, "--json"]).report();
    let told = run(&["claims", "right0", "--netns", &netns]).out;
    let advice = format!("`sluice detach --netns {netns} right0` removes them");
    assert!(told.contains(&advice), "{told}");
    assert!(!told.contains("the host gets all packets"), "{told}");
    assert_eq!(claims()["host_left"], true);
    let detached = run(&["detach", "right0", "--netns", &netns]);
    assert_eq!(detached.status, Some(0), "{}", detached.err);
    assert_eq!(claims()["host_left"], false);
    assert!(detached.out.contains("removed the filters of a host: port"), "{}", detached.out);
    assert_eq!(on(&lab, "right", &ping).status, Some(0), "connected");
}

/// A process that has dropped its privileges cannot remove a filter.
#[test]
fn an_ordinary_user_that_ends_leaves_the_host_connected() {
    if !have(&["ping"]) {
        return;
    }
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let ping = ["ping", "-q", "-c", "5", "-i", "0.1", "-W", "2", "198.18.0.1"];
    for host in ["host:right0?fallback=drop", "host:right0?hook=clsact&flows=64", "host:right0"] {
        let running = between(&lab, &["xdp:right0", host, "--user", "nobody"]);
        assert_eq!(on(&lab, "right", &ping).status, Some(0), "{host}: through it");
        running.stop().good();
        assert_eq!(on(&lab, "right", &ping).status, Some(0), "{host}: afterwards");
    }
    let netns = lab.netns("right");
    assert_eq!(run(&["detach", "right0", "--netns", &netns]).status, Some(0));
}

#[test]
fn forwarding_the_hosts_packets_back_to_it_is_refused() {
    for (arguments, why) in [
        (&["packet:lo", "host:lo"][..], "would get them twice"),
        (&["host:lo", "host:lo"], "the same interface"),
        (&["packet:lo", "tap:t", "--host-flows", "tcp"], "needs a host: port"),
    ] {
        refused(&[&["forward"], arguments].concat(), why);
    }
}
