//! Packets that a switch does not forward, and why.

use serde_json::Value;

use super::star::*;
use crate::support::*;

#[test]
fn unused_addresses_do_not_push_out_used_ones() {
    let Some(lab) = star() else { return };
    let running = switch(&lab, &ports("xdp"), &["--table", "4096"]);
    let ping = |count| {
        let ping = ["ping", "-q", "-c", count, "-i", "0.2", "-W", "5", "198.18.0.4"];
        let ended = on(&lab, "upper", &ping);
        assert_eq!(ended.status, Some(0), "{}", ended.out);
    };
    ping("3");
    let random = ["--smac", "02:00:00:00:00:00-02:00:00:ff:ff:ff", "--dmac", &mac("right")];
    generate(&lab, "right", 1, &["--smac", &mac("right"), "--dmac", &mac("left")]);
    generate(&lab, "left", 64_000, &random);
    ping("3");
    let report = running.stop().good();
    assert_eq!(count(&report, "left", "forwarded"), 64_000, "{report}");
    assert!(count(&report, "left", "unlearned") > 0, "{report}");
    // One packet each at the beginning, before the other host had sent anything.
    let flooded = count(&report, "upper", "flooded") + count(&report, "lower", "flooded");
    assert_eq!(flooded, 1, "those that talk are known all the time: {report}");
}

#[test]
fn a_storm_limit_holds_for_floods_and_not_for_unicast() {
    let Some(lab) = star() else { return };
    let running = switch(&lab, &ports("xdp"), &["--storm-limit", "left=100", "--interval", "10ms"]);
    generate(&lab, "left", 2000, &["--dmac", "ff:ff:ff:ff:ff:ff"]);
    generate(&lab, "right", 500, &["--dmac", "ff:ff:ff:ff:ff:ff"]);
    generate(&lab, "left", 1000, &["--dmac", &mac("right")]);
    let ended = running.stop();
    let report = ended.good();
    let flooded = count(&report, "left", "flooded");
    // A second's worth at once, and what a tenth of a second more brings; more on a slow machine.
    assert!((100..1500).contains(&flooded), "{report}");
    assert_eq!(lost(&report, "left", "storm_limit"), 2000 - flooded, "{report}");
    assert_eq!(count(&report, "left", "forwarded"), 1000, "{report}");
    assert_eq!(count(&report, "right", "flooded"), 500, "{report}");
    // Lines of intervals have those lost before the last line, for any cause.
    let lines = ended.out.lines().filter(|line| line.contains("interval_s"));
    let lost =
        lines.map(|line| serde_json::from_str::<Value>(line).unwrap()["lost"].as_u64().unwrap());
    let losses = report["ledger"]["losses"].as_object().unwrap();
    let all = losses.values().map(|packets| packets.as_u64().unwrap()).sum();
    assert!((1..=all).contains(&lost.sum()), "{}", ended.out);
}

#[test]
fn link_local_same_port_and_malformed_frames_are_not_forwarded() {
    let Some(lab) = star() else { return };
    for (more, sent) in [(&[][..], 0), (&["--forward-link-local"], 10)] {
        let running = switch(&lab, &ports("xdp"), more);
        generate(&lab, "left", 10, &["--dmac", "01:80:c2:00:00:0e"]);
        generate(&lab, "left", 5, &["--dmac", "01:80:c2:00:00:01"]);
        generate(&lab, "left", 3, &["--dmac", &mac("left"), "--smac", &mac("left")]);
        generate(&lab, "left", 4, &["--dmac", &mac("right"), "--smac", "03:00:00:00:00:01"]);
        let report = running.stop().good();
        assert_eq!(lost(&report, "left", "link_local"), 15 - sent, "{report}");
        assert_eq!(count(&report, "right", "sent"), sent, "{report}");
        assert_eq!(lost(&report, "left", "same_port"), 3, "{report}");
        assert_eq!(lost(&report, "left", "malformed"), 4, "{report}");
    }
}

#[test]
fn a_run_ends_at_its_count_and_notes_later_packets() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let place = ["--control", socket.to_str().unwrap()];
    let arguments = ["switch", "null:", "out=null:", "--tx-only", "out", "--count", "100000"];
    let report = run(&[&arguments[..], &["--rx-only", "null", "--json"], &place].concat()).good();
    assert_eq!(report["packets"], 100_000, "{report}");
    assert_eq!(lost(&report, "null", "malformed"), 0, "{report}");
    // No packet left in its ring counts as forwarded, and none is missing.
    assert!(report["ledger"]["notes"]["after_end"].as_u64() > Some(0), "{report}");
}

#[test]
fn invalid_settings_are_refused_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let place = ["--control", socket.to_str().unwrap()];
    for (arguments, advice) in [
        (&["null:", "null:"][..], "OTHER=PORT"),
        (&["pcap:a.pcap"], "--rx-only NAME"),
        (&["null:", "--access", "up=1"], "no port 'up'; available: null"),
        (&["null:", "--access", "null=1", "--trunk", "null=2"], "use it alone"),
        (&["null:", "--trunk", "null=4095"], "1 to 4094"),
        (&["null:", "--storm-limit", "null=many"], "number of packets"),
        (&["null:", "--threads", "2"], "one thread"),
        (&["null:", "--age", "1ms"], "1s to 24h"),
        (&[], "PORT"),
        (&["show"], "no running command"),
    ] {
        refused(&[&["switch"], arguments, &place].concat(), advice);
    }
}
