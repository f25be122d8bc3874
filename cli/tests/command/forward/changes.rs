//! Forwarding while interfaces go down, come up or vanish, and after a kill.

use nix::sys::signal::Signal;
use serde_json::Value;
use sluicegate::link::{Lab, Shape};

use super::*;

fn ip(lab: &Lab, host: &str, command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let ended = on(lab, host, &[&["ip"], &words[..]].concat());
    assert_eq!(ended.status, Some(0), "ip {command}: {}", ended.err);
}

fn pings(lab: &Lab, packets: &str) -> bool {
    let ping = ["ping", "-q", "-c", packets, "-i", "0.05", "-W", "1", "198.18.0.2"];
    on(lab, "left", &ping).status == Some(0)
}

const PAIRS: [[&str; 2]; 3] = [
    ["xdp:middle0", "xdp:middle1"],
    ["packet:middle0", "packet:middle1"],
    ["xdp:middle0?send=live", "xdp:middle1?send=live"],
];

#[test]
fn a_forwarder_waits_for_an_interface_that_is_down() {
    if !have(&["ping"]) {
        return;
    }
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    for ports in PAIRS {
        let mut running = forward(&lab, &ports);
        assert!(pings(&lab, "5"), "{ports:?}");
        ip(&lab, "middle", "link set middle1 down");
        // The kernel refuses packets for a target that is down.
        pings(&lab, "5");
        let told = std::iter::repeat_with(|| running.says()).find(|line| line.contains("down"));
        assert!(told.is_some_and(|line| line.contains("middle1 is down")), "{ports:?}");
        ip(&lab, "middle", "link set middle1 up");
        eventually("they talk again", || pings(&lab, "3"));
        let report = running.stop().good();
        assert!(entry(&report, "notes", "interface_down_events") > 0, "{ports:?}: {report}");
    }
}

#[test]
fn it_ends_cleanly_while_an_interface_is_down() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    for ports in PAIRS {
        let running = forward(&lab, &ports);
        ip(&lab, "middle", "link set middle1 down");
        pings(&lab, "5");
        running.stop().good();
        ip(&lab, "middle", "link set middle1 up");
    }
}

#[test]
fn a_removed_interface_ends_it_with_a_closed_ledger() {
    for ports in PAIRS {
        let Some(lab) = lab_of(Shape::Line, 1) else { return };
        let running = forward(&lab, &ports);
        let pace = ["--rate", "20kpps", "--duration", "20s"];
        let generate = Running::unawaited(&mut generate(&lab, &pace));
        eventually("packets pass", || received(&lab, "right", "right0") > 1000);
        ip(&lab, "middle", "link del middle1");
        let ended = running.end();
        assert_eq!(ended.status, Some(1), "{ports:?}: {}", ended.err);
        assert!(ended.err.contains("middle1"), "{ports:?}: {}", ended.err);
        let report = ended.report();
        closes(&report);
        assert!(report["packets"].as_u64() > Some(1000), "{ports:?}: {report}");
        generate.stop();
    }
}

#[test]
fn a_removed_or_downed_tap_device_ends_it_with_a_closed_ledger() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let mut running = forward(&lab, &["packet:middle0", "tap:tap0"]);
    ip(&lab, "middle", "link set tap0 down");
    pings(&lab, "5");
    while !running.says().contains("tap0 is down") {}
    let report = running.stop().good();
    assert!(report["ledger"]["in"].as_u64() >= Some(5), "{report}");
    assert!(entry(&report, "notes", "interface_down_events") > 0, "{report}");

    let running = forward(&lab, &["packet:middle0", "tap:tap0"]);
    pings(&lab, "5");
    ip(&lab, "middle", "link del tap0");
    let ended = running.end();
    assert_eq!(ended.status, Some(1), "{}", ended.err);
    assert!(ended.err.contains("tap0"), "{}", ended.err);
    let report = ended.report();
    closes(&report);
    assert!(report["ledger"]["in"].as_u64() >= Some(5), "{report}");
}

#[test]
fn a_killed_forwarder_leaves_no_program_and_the_host_connected() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let running = forward(&lab, &["xdp:middle0", "xdp:middle1"]);
    running.signal(Signal::SIGKILL);
    running.end();
    let netns = lab.netns("middle");
    for interface in ["middle0", "middle1"] {
        eventually("its program is removed", || {
            let link = on(&lab, "middle", &["ip", "-j", "link", "show", interface]);
            let link: Value = serde_json::from_str(&link.out).unwrap();
            link[0]["xdp"].is_null()
        });
        let claims = run(&["claims", interface, "--netns", &netns, "--json"]);
        assert!(!claims.out.contains("sluice forward"), "{}", claims.out);
    }
}
