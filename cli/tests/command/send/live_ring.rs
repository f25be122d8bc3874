//! Sending through `live:` and by live frames of a program: arrival, reports and the end of a run.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::signals::ledger_until;
use crate::support::*;

fn generate<'a>(port: &'a str, left: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["generate", port, "--netns", left, "--dmac", NOBODY, "--json"], more].concat()
}

#[test]
fn packets_of_a_file_arrive_unchanged_through_live() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let (file, came) = (folder.path().join("sent.pcap"), folder.path().join("came.pcap"));
    numbered(&file, 0..5000, 0, 1000);
    for (port, rate) in [
        ("live:left0", "50kpps"),
        ("live:left0?ring_size=64&slots=32", "50kpps"),
        // A bare name chooses a socket for a low rate, and this ring for a high one.
        ("left0", "50kpps"),
        ("left0", "250kpps"),
    ] {
        let capture = capture_all(&right, NUMBERED, &came);
        let file = file.to_str().unwrap();
        let sent = run(&["replay", file, port, "--netns", &left, "--rate", rate, "--json"]).good();
        assert_eq!((&sent["attempted"], &sent["accepted"]), (&5000.into(), &5000.into()), "{sent}");
        capture.stop().good();
        assert!(numbers(&came).into_iter().eq(0..5000), "{port} {rate}");
        if port == "left0" && std::thread::available_parallelism().unwrap().get() > 1 {
            let fallback = &sent["fallbacks"][0];
            let reason = fallback["reason"].as_str().unwrap();
            assert!(
                reason.contains("the driver of") && reason.contains("does not support it"),
                "{sent}"
            );
            let backend = if rate == "50kpps" { "packet" } else { "live" };
            let to = format!("{backend}:");
            assert_eq!((&sent["backend"], &fallback["to"]), (&backend.into(), &to.into()));
        }
    }
    let sent = [
        env!("CARGO_BIN_EXE_sluice"),
        "replay",
        file.to_str().unwrap(),
        "left0",
        "--rate",
        "250kpps",
        "--json",
    ];
    let sent = on(&lab, "left", &[&["taskset", "-c", "0"], &sent[..]].concat()).good();
    let reason = sent["fallbacks"][1]["reason"].as_str().unwrap();
    assert_eq!(
        reason,
        "it keeps a CPU busy besides those of the sending threads (1), and this command may use 1; name the port \
         live:left0 to use it nevertheless"
    );
}

/// Without CAP_PERFMON the verifier takes another program, without CAP_SYS_ADMIN runs begin slowly.
#[test]
fn two_capabilities_are_enough() {
    let Some(lab) = lab_with(&["setpriv"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (file, came) = (folder.path().join("sent.pcap"), folder.path().join("came.pcap"));
    let frames: Vec<_> = (0..500u32)
        .map(|number| {
            let mut frame = frame(number);
            frame.resize(60 + (number * 7 % 1455) as usize, number as u8);
            frame
        })
        .collect();
    pcap_file(&file, &frames);
    let capture = capture_all(&lab.netns("right"), NUMBERED, &came);
    let setpriv = ["--inh-caps", "-all,+bpf,+net_admin", "--bounding-set", "-all,+bpf,+net_admin"];
    let replay = ["replay", file.to_str().unwrap(), "live:left0", "--rate", "5kpps", "--json"];
    let sluice = [env!("CARGO_BIN_EXE_sluice")];
    on(&lab, "left", &[&["setpriv"], &setpriv[..], &sluice, &replay].concat()).good();
    capture.stop().good();
    let came = packets(&came).into_iter().map(|(_, bytes)| bytes);
    assert!(came.eq(frames), "they come as they were");
}

#[test]
fn every_signal_ends_it_cleanly_even_without_privileges() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    for more in [&[][..], &["--threads", "4"], &["--user", "nobody"], &["--rate", "100pps"]] {
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let sending = Running::start(&generate("live:left0", &left, more));
            sending.signal(signal);
            let report = sending.end().good();
            assert_eq!(report["backend"], "live", "{more:?}, {signal}: {report}");
        }
    }
}

#[test]
fn a_signal_that_does_not_end_it_loses_no_packets() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    for port in ["left0", "live:left0"] {
        let more = ["--count", "500000"];
        let sending = Running::unawaited(&mut sluice(&generate(port, &left, &more)));
        let live = || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", sending.pid()));
            let tasks = tasks.into_iter().flatten().flatten();
            let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
            tasks.filter_map(|task| name(task).ok()).any(|name| name == "live\n")
        };
        eventually("it sends", || live() || sending.has_ended());
        for signal in [Signal::SIGURG, Signal::SIGSTOP, Signal::SIGCONT, Signal::SIGURG] {
            sending.signal(signal);
        }
        let report = sending.end().good();
        assert_eq!(report["accepted"], 500_000, "{port}: {report}");
    }
}

#[test]
fn frames_beyond_an_mtu_that_is_lowered_are_not_accepted() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    for (port, method) in [("left0", &["--method", "live"][..]), ("live:left0", &[])] {
        let mtu = |bytes| on(&lab, "left", &["ip", "link", "set", "left0", "mtu", bytes]).status;
        assert_eq!(mtu("1500"), Some(0));
        let more = [&["--size", "1000", "--rate", "10kpps"], method].concat();
        let mut sending = Running::unawaited(&mut sluice(&generate(port, &left, &more)));
        sending.catches_signals();
        let made = |report: &Value| report["ledger"]["in"].as_u64().unwrap();
        let before = made(&ledger_until(&mut sending, |report| made(report) > 100));
        assert_eq!(mtu("576"), Some(0));
        let lowered = made(&ledger_until(&mut sending, |report| made(report) > before));
        ledger_until(&mut sending, |report| made(report) > lowered + 100);
        let report = sending.stop().report();
        let count = |key: &str| report[key].as_u64().unwrap();
        let too_long = loss(&report, "too_long");
        assert!(too_long > 0, "{port}: {report}");
        let others = count("attempted") - too_long - loss(&report, "unsent");
        assert_eq!(count("accepted"), others, "{port}: {report}");
        closes(&report);
    }
}

#[test]
fn an_interface_that_goes_down_ends_it_and_is_named() {
    for (port, more) in [
        ("left0", &["--method", "live"][..]),
        ("left0", &["--threads", "3"]),
        ("live:left0", &[]),
        ("xdp:left0?send=live", &[]),
    ] {
        let Some(lab) = lab() else { return };
        let left = lab.netns("left");
        let sending = Running::unawaited(&mut sluice(&generate(port, &left, more)));
        let sent = || {
            let left0 = sluicegate::link::interface(Some(&left), "left0").unwrap();
            left0.stats.tx_packets > 1000
        };
        eventually("packets are sent", || sent() || sending.has_ended());
        assert_eq!(on(&lab, "left", &["ip", "link", "set", "left0", "down"]).status, Some(0));
        let ended = sending.end();
        assert_eq!(ended.status, Some(1), "{port} {more:?}: {ended:?}");
        assert!(ended.err.contains("left0") && ended.err.contains("is down"), "{}", ended.err);
        closes(&ended.report());
    }
}

#[test]
fn advice_works_as_printed_in_a_namespace() {
    let Some(lab) = lab_with(&["ip"]) else { return };
    let left = lab.netns("left");
    assert_eq!(on(&lab, "left", &["ip", "link", "set", "left0", "down"]).status, Some(0));
    let refused = run(&generate("left0", &left, &["--method", "live"]));
    assert_eq!(refused.status, Some(2), "{refused:?}");
    let (_, advice) = refused.err.trim_end().split_once("left0 is down: ").unwrap();
    let up = ended(std::process::Command::new("sh").args(["-c", advice]));
    assert_eq!((up.status, &*up.err), (Some(0), ""), "{advice}");
    eventually("it is up", || sluicegate::link::interface(Some(&left), "left0").unwrap().up);
}

#[test]
fn a_lost_carrier_and_its_return_are_reported() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    let set = |state: &str| {
        assert_eq!(on(&lab, "right", &["ip", "link", "set", "right0", state]).status, Some(0));
        let has_carrier = || sluicegate::link::interface(Some(&left), "left0").unwrap().running;
        eventually("the other end is told", || has_carrier() == (state == "up"));
    };
    let (lost, back) = ("left0 has no carrier, so packets are lost", "a carrier again");
    for (port, more) in [
        ("left0", &["--method", "live"][..]),
        ("left0", &["--method", "sendmmsg"]),
        ("live:left0", &[]),
    ] {
        let sent = || sluicegate::link::interface(Some(&left), "left0").unwrap().stats.tx_packets;
        let before = sent();
        let mut sending = Running::unawaited(&mut sluice(&generate(port, &left, more)));
        eventually("packets are sent", || sent() > before || sending.has_ended());
        for (state, says) in [("down", lost), ("up", back)] {
            set(state);
            let said = sending.says();
            assert!(said.contains(says), "{port} {more:?}: {said}");
        }
        sending.stop().good();
    }
    set("down");
    let ended = run(&generate("packet:left0", &left, &["--count", "1"]));
    assert!(ended.err.contains(lost), "from the beginning: {ended:?}");
}

#[test]
fn receiving_is_refused_and_the_error_names_ports_that_receive() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    for command in ["count", "capture"] {
        let receive = [command, "live:left0", "--netns", &left];
        refused(&receive, "packet:, xdp: and mirror: receive");
    }
}

#[test]
fn drops_of_a_queue_that_threads_share_are_named() {
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    // A thread of its own receives, and two send faster than it can.
    let threaded = "echo 1 >/sys/class/net/right0/threaded";
    let mut ip = std::process::Command::new("ip");
    assert!(ended(ip.args(["netns", "exec", &right, "sh", "-c", threaded])).status == Some(0));
    for (port, count) in [("left0", "2000000"), ("live:left0", "100000")] {
        let report = run(&generate(port, &left, &["--threads", "2", "--count", count])).good();
        assert_eq!(report["accepted"].to_string(), count, "{port}: {report}");
        if port == "left0" {
            let losses = &report["ledger"]["losses"];
            assert!(losses["interface_dropped"].as_u64() > Some(0), "{report}");
        }
    }
}
