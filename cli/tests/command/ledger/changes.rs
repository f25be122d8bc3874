//! Ledgers of runs whose interface is renamed or removed.

use super::*;

const PORT: u16 = 9;

#[test]
fn packets_sent_before_an_interface_is_removed_count_as_out() {
    for (method, exact) in [("live", true), ("sendmmsg", false), ("xdp", false)] {
        let Some(lab) = lab() else { return };
        let Some(receiver) = Receiver::on(&lab, "right", "right0", &[PORT]) else { return };
        let stream = ProgressRun::generate(&lab, "left", "left0", PORT, &["--method", method]);
        eventually("frames arrive", || receiver.came(PORT) > 1000);
        ip(&lab, "left", "link del left0");
        let ended = stream.end();
        assert_eq!(ended.status, Some(1), "{method}: {}", ended.err);
        assert!(ended.err.contains("was removed"), "{method}: {}", ended.err);
        let report = ended.report();
        let out = out(&report);
        assert!(!exact || out.start() == out.end(), "{method}: {report}");
        let came = receiver.came(PORT);
        assert!(came > 1000 && out.contains(&came), "{method}: {came} came: {report}");
    }
}

#[test]
fn a_renamed_interface_stays_the_same() {
    for method in ["live", "sendmmsg", "xdp"] {
        let Some(lab) = lab() else { return };
        let Some(receiver) = Receiver::on(&lab, "right", "right0", &[PORT]) else { return };
        let mut stream = ProgressRun::generate(&lab, "left", "left0", PORT, &["--method", method]);
        stream.attempts(100);
        ip(&lab, "left", "link set left0 name other0");
        stream.attempts(1000);
        let report = stream.stop().good();
        let came = receiver.came(PORT);
        assert_eq!(out(&report), came..=came, "{method}: {report}");
    }
}

#[test]
fn forwarding_in_the_kernel_goes_on_when_an_interface_is_renamed() {
    let Some(lab) = lab_of(sluicegate::link::Shape::Line, 1) else { return };
    let Some(receiver) = Receiver::on(&lab, "right", "right0", &[PORT]) else { return };
    let middle = lab.netns("middle");
    let ports = ["xdp:middle0", "xdp:middle1", "--in-kernel", "--one-way", "-f", "udp dst port 9"];
    let mut forward = ProgressRun::start(&[&["forward", "--netns", &middle], &ports[..]].concat());
    let source = ProgressRun::generate(&lab, "left", "left0", PORT, &[]);
    forward.attempts(100);
    ip(&lab, "middle", "link set middle1 name other1");
    ip(&lab, "middle", "link set middle0 name other0");
    forward.attempts(20_000);
    source.stop();
    let report = forward.stop().good();
    let came = receiver.came(PORT);
    assert_eq!(out(&report), came..=came, "{report}");
}

#[test]
fn packets_that_a_removed_queueing_discipline_held_are_named() {
    for (method, change) in [
        ("sendmmsg", "tc qdisc del dev left0 root"),
        ("sendto", "tc qdisc replace dev left0 root pfifo"),
        ("tx-ring", "tc qdisc del dev left0 root"),
    ] {
        let Some(lab) = lab_with(&["tc"]) else { return };
        let Some(receiver) = Receiver::on(&lab, "right", "right0", &[PORT]) else { return };
        let tc = |command: &str| on(&lab, "left", &command.split(' ').collect::<Vec<_>>());
        // After its burst it passes 17 packets a second.
        let slow = tc("tc qdisc add dev left0 root tbf rate 8kbit burst 2kb limit 1mb");
        if slow.status != Some(0) {
            return eprintln!("skipped: needs sch_tbf; get it by modprobe sch_tbf: {}", slow.err);
        }
        let waiting = || {
            let shown: Value =
                serde_json::from_str(&tc("tc -j -s qdisc show dev left0").out).unwrap();
            shown[0]["qlen"].as_u64().unwrap()
        };
        let stream = ProgressRun::generate(&lab, "left", "left0", PORT, &["--method", method]);
        eventually("packets wait", || waiting() > 100);
        assert_eq!(tc(change).status, Some(0));
        let before = receiver.came(PORT);
        eventually("others pass", || receiver.came(PORT) > before + 1000);
        let report = stream.stop().good();
        let came = receiver.came(PORT);
        assert_eq!(out(&report), came..=came, "{method}: {report}");
        assert!(loss(&report, "queue_dropped") > 50, "{method}: {report}");
    }
}
