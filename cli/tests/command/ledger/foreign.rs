//! Other senders use the same interface at the same time: their packets do not replace our own in the
//! ledger.

use sluicegate::link::Shape;

use super::*;
use crate::signals::ledger_until;

/// The UDP ports of the sender under test, and of the other.
const OURS: u16 = 9;
const OTHERS: u16 = 10;

#[test]
fn other_traffic_does_not_hide_live_frames_that_the_mtu_refuses() {
    for method in ["sendmmsg", "live"] {
        let Some(lab) = lab() else { return };
        let Some(receiver) = Receiver::on(&lab, "right", "right0", &[OURS, OTHERS]) else { return };
        let mut ours = ProgressRun::generate(&lab, "left", "left0", OURS, &["--size", "1400"]);
        let mut others =
            ProgressRun::generate(&lab, "left", "left0", OTHERS, &["--method", method]);
        ours.attempts(1000);
        others.attempts(1000);
        ip(&lab, "left", "link set left0 mtu 1000");
        ours.attempts(10_000);
        others.attempts(10_000);
        let (ours, others) = (ours.stop().report(), others.stop().report());
        assert_eq!(out(&ours), receiver.came(OURS)..=receiver.came(OURS), "{method}: {ours}");
        assert!(loss(&ours, "too_long") > 0, "{method}: {ours}");
        let came = receiver.came(OTHERS);
        assert!(out(&others).contains(&came), "{method}: {came} came: {others}");
        if method == "live" {
            assert_eq!(out(&others), came..=came, "{others}");
        }
    }
}

#[test]
fn a_forwarder_beside_another_sender_knows_its_own_packets() {
    for (ports, exact) in [
        (&["packet:middle0", "packet:middle1"][..], false),
        (&["xdp:middle0", "xdp:middle1"], false),
        (&["xdp:middle0", "xdp:middle1?send=live"], true),
        (&["xdp:middle0", "xdp:middle1", "--in-kernel"], true),
        (&["xdp:middle0?mode=skb", "xdp:middle1?mode=skb", "--in-kernel"], false),
    ] {
        let Some(lab) = lab_of(Shape::Line, 1) else { return };
        let Some(receiver) = Receiver::on(&lab, "right", "right0", &[OURS, OTHERS]) else { return };
        let middle = lab.netns("middle");
        let forward = ["forward", "--netns", &middle, "--one-way", "-f", "udp dst port 9"];
        let mut forward = ProgressRun::start(&[&forward, ports].concat());
        let mut others = ProgressRun::generate(&lab, "middle", "middle1", OTHERS, &[]);
        let source = ProgressRun::generate(&lab, "left", "left0", OURS, &[]);
        others.attempts(1000);
        forward.attempts(10_000);
        source.stop().report();
        let forwarded = forward.stop().report();
        // The other goes on until the forwarder has read the counters.
        let others = others.stop().report();
        let (out, came) = (out(&forwarded), receiver.came(OURS));
        assert!(out.contains(&came), "{ports:?}: {came} came: {forwarded}");
        assert!(!exact || out == (came..=came), "{ports:?}: {came} came: {forwarded}");
        let dropped = dropped(&lab, "middle", "middle1");
        assert!(out.end() - out.start() <= dropped, "{ports:?}: {dropped} dropped: {forwarded}");
        let (out, came) = (super::out(&others), receiver.came(OTHERS));
        assert_eq!(out, came..=came, "{ports:?}: {others}");
    }
}

#[test]
fn a_foreign_xdp_redirect_between_the_same_interfaces_is_not_ours() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let Some(receiver) = Receiver::on(&lab, "right", "right0", &[OURS, OTHERS]) else { return };
    let middle = lab.netns("middle");
    let forward = |filter| {
        let forward = ["forward", "--netns", &middle, "--one-way", "--in-kernel", "-f", filter];
        ProgressRun::start(&[&forward[..], &["xdp:middle0", "xdp:middle1"]].concat())
    };
    let (mut one, mut other) = (forward("udp dst port 9"), forward("udp dst port 10"));
    let sources =
        [OURS, OTHERS].map(|port| ProgressRun::generate(&lab, "left", "left0", port, &[]));
    one.attempts(10_000);
    other.attempts(10_000);
    for source in sources {
        source.stop().report();
    }
    for (forward, port) in [(one, OURS), (other, OTHERS)] {
        let report = forward.stop().report();
        let came = receiver.came(port);
        assert!(out(&report).contains(&came), "{came} came to {port}: {report}");
    }
}

#[test]
fn neither_of_two_redirects_between_the_same_interfaces_takes_the_losses_of_the_other() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let Some(receiver) = Receiver::on(&lab, "right", "right0", &[OURS, OTHERS]) else { return };
    // The veth drops longer frames for right0 in its driver.
    ip(&lab, "right", "link set right0 mtu 1000");
    let [left, middle] = ["left", "middle"].map(|host| lab.netns(host));
    let mut forwards = [OURS, OTHERS].map(|port| {
        let filter = format!("udp dst port {port}");
        let redirect = ["xdp:middle0", "xdp:middle1", "--one-way", "--in-kernel", "-f", &filter];
        let forward = [&["forward", "--netns", &middle, "--json"], &redirect[..]].concat();
        Running::unawaited(&mut sluice(&forward))
    });
    for forward in &forwards {
        forward.catches_signals();
        eventually("it forwards", || forward.has_threads("queue-") || forward.has_ended());
    }
    for (port, size) in [(OURS, "1400"), (OTHERS, "100")] {
        let port = port.to_string();
        let to = ["--dst", "198.18.0.2", "--dmac", NOBODY, "--dport", &port, "--size", size];
        let generate = ["generate", "left0", "--netns", &left, "--rate", "50kpps"];
        run(&[&generate[..], &to, &["--count", "1000", "--json"]].concat()).good();
    }
    let is_all =
        |report: &Value| report["ledger"]["in"] == 1000 && report["ledger"]["unexplained"] == 0;
    let so_far = forwards.each_mut().map(|forward| ledger_until(forward, is_all));
    let ended = forwards.map(|forward| forward.stop().report());
    for reports in [so_far, ended] {
        for (report, port) in reports.iter().zip([OURS, OTHERS]) {
            let came = receiver.came(port);
            assert!(out(report).contains(&came), "{came} came to {port}: {report}");
        }
    }
    assert_eq!(receiver.came(OURS), 0);
}

#[test]
fn retried_packets_of_a_full_queue_do_not_count_as_lost() {
    let Some(lab) = lab() else { return };
    let Some(receiver) = Receiver::on(&lab, "right", "right0", &[9]) else { return };
    let bucket = "tc qdisc add dev left0 root tbf rate 8mbit burst 5k latency 5ms";
    let bucket = on(&lab, "left", &bucket.split(' ').collect::<Vec<_>>());
    if bucket.status != Some(0) {
        return eprintln!("skipped: needs sch_tbf; get it by modprobe sch_tbf: {}", bucket.err);
    }
    let more = ["--method", "sendmmsg", "--count", "3000"];
    let report = ProgressRun::generate(&lab, "left", "left0", 9, &more).end().good();
    assert_eq!(receiver.came(9), 3000, "{report}");
    let out = out(&report);
    assert!(*out.start() > 2900 && out.contains(&3000), "{report}");
}
