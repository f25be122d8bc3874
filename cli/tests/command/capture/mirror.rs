//! `mirror:`, what hides packets from `packet:`, and claims of several processes.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::*;

#[test]
fn a_mirror_is_captured_whole_and_its_ledger_closes() {
    let Some(lab) = lab_with(&["tcpreplay"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let sent = folder.path().join("sent.pcap");
    const FRAMES: u32 = 50_000;
    numbered(&sent, 0..FRAMES, 0, 1000);
    for mode in ["native", "skb"] {
        // Room for all packets: other tests use the CPUs too.
        let port = format!("mirror:right0?mode={mode}&ring_size=64K&snaplen=128");
        let path = folder.path().join(format!("{mode}.pcapng"));
        let capture = capture(&netns, &port, NUMBERED, &path);
        let count = Running::start(&["count", &port, "--netns", &netns, "-f", NUMBERED, "--json"]);
        replay(&lab, "left", "left0", &sent, 50_000);
        for command in [capture, count] {
            let report = command.stop().good();
            assert_eq!(report["packets"], FRAMES, "{report}");
            assert_eq!(report["backend"], "mirror", "{report}");
            assert_eq!((&report["method"], &report["mode"]), (&"ring".into(), &mode.into()));
        }
        assert!(numbers(&path).into_iter().eq(0..FRAMES), "{mode}: not all, or out of order");
    }
}

#[test]
fn a_bare_name_means_packet_sockets_even_with_the_program_attached() {
    let Some(lab) = lab_with(&["ping"]) else { return };
    let netns = lab.netns("right");
    // Its port attaches the program.
    let mirror = Running::start(&["count", "mirror:right0", "--netns", &netns]);
    let arguments = ["capture", "right0", "--netns", &netns, "-f", "icmp", "--json"];
    let capture = Running::start(&arguments);
    assert_eq!(on(&lab, "left", &["ping", "-qc", "2", "198.18.0.2"]).status, Some(0));
    let ended = capture.stop();
    let report = ended.good();
    assert_eq!(report["backend"], "packet", "{report}");
    assert_eq!(report["packets"], 4, "requests and replies: {report}");
    assert!(report.get("notices").is_none(), "nothing hides packets: {report}");
    assert!(!ended.err.contains("mirror:"), "{}", ended.err);
    assert_eq!(mirror.stop().status, Some(0));
}

#[test]
fn a_capture_names_the_claims_that_hide_packets_from_it() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    for (sentence, other, named) in [
        ("a claim", "xdp:right0?filter=udp port 9", Some("takes 'udp port 9'")),
        ("a claim of everything", "xdp:right0", Some("takes all")),
        ("a drop", "xdp:right0?action=drop&filter=arp", Some("drops 'arp'")),
        ("a filter that only counts", "xdp:right0?action=pass&filter=arp", None),
        ("a mirror", "mirror:right0", None),
    ] {
        let other = Running::start(&["count", other, "--netns", &netns]);
        for port in ["right0", "packet:right0", "any"] {
            let captured =
                run(&["capture", port, "--netns", &netns, "--duration", "10ms", "--json"]);
            let notices = &captured.good()["notices"];
            let Some(named) = named else {
                assert!(notices.is_null(), "{sentence}: {notices}");
                continue;
            };
            let notice = notices[0].as_str().unwrap_or_else(|| panic!("{sentence}: {captured:?}"));
            let by = format!("process {}", other.pid());
            let command = format!("`sluice capture --netns {netns} mirror:right0`");
            for part in [named, &by, &command] {
                assert!(notice.contains(part), "{sentence}: {part}: {notice}");
            }
            assert!(captured.err.contains(notice), "{sentence}: {}", captured.err);
        }
        let mirror =
            run(&["capture", "mirror:right0", "--netns", &netns, "--duration", "10ms", "--json"]);
        assert!(mirror.good().get("notices").is_none(), "{sentence}: a mirror sees all");
        other.stop();
    }
}

#[test]
fn claims_that_begin_during_a_run_are_named_at_its_end() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    for arguments in [&["capture", "right0"][..], &["capture", "any"], &["count", "packet:right0"]]
    {
        let arguments = [arguments, &["--netns", &netns, "--json"]].concat();
        let before = Running::start(&["count", "xdp:right0?filter=arp", "--netns", &netns]);
        let running = Running::start(&arguments);
        let later = Running::start(&["count", "xdp:right0?filter=udp port 9", "--netns", &netns]);
        let ended = running.stop();
        let notices = &ended.good()["notices"];
        let [first, last] = [0, 1].map(|index| notices[index].as_str().unwrap_or_default());
        assert!(first.contains("takes 'arp'") && !first.contains("udp"), "{ended:?}");
        assert!(!last.contains("arp") && last.contains("takes 'udp port 9'"), "{ended:?}");
        assert!(ended.err.contains(last), "{}", ended.err);
        // One that ends during a run changes nothing for the others.
        let running = Running::start(&arguments);
        later.stop();
        let ended = running.stop();
        assert_eq!(ended.good()["notices"].as_array().map(Vec::len), Some(1), "{ended:?}");
        before.stop();
    }
}

#[test]
fn notices_are_on_stderr_and_in_the_json() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let Some(attached) = Attached::to(&netns, &["--mode", "skb"]) else { return };
    let count = || run(&["count", "xdp:right0", "--netns", &netns, "--duration", "50ms", "--json"]);
    let ended = count();
    assert!(ended.good().get("notices").is_none(), "nothing to tell: {ended:?}");
    // The program was made for frames of one buffer.
    let raise = ["ip", "link", "set", "right0", "mtu", "9000"];
    assert_eq!(on(&lab, "right", &raise).status, Some(0));
    let ended = count();
    let expected = "right0 has an MTU of 9000, and frames of more than 3840 bytes";
    let notices = &ended.good()["notices"];
    assert!(notices[0].as_str().is_some_and(|it| it.starts_with(expected)), "{notices}");
    assert!(ended.err.contains(&format!("sluice: {expected}")), "{}", ended.err);
    assert_eq!(attached.detach().status, Some(0));
}

#[test]
fn detaching_ends_the_users_of_the_program() {
    let Some(lab) = lab() else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let to = folder.path().join("a.pcapng");
    let to = to.to_str().unwrap();
    let arguments: [&[&str]; 3] = [
        &["capture", "mirror:right0", "-w", to],
        &["count", "xdp:right0?method=af_xdp"],
        &["count", "xdp:right0?action=drop"],
    ];
    for arguments in arguments {
        let running = Running::start(&[arguments, &["--netns", &netns, "--json"]].concat());
        let detached = run(&["detach", "right0", "--netns", &netns]);
        assert_eq!(detached.status, Some(0), "{}", detached.err);
        let ended = running.end();
        assert_eq!(ended.status, Some(1), "{arguments:?}: {}", ended.err);
        assert!(ended.err.contains("the XDP program of right0 no longer exists"), "{}", ended.err);
        closes(&ended.report());
    }
}

#[test]
fn ports_of_different_modes_share_no_program() {
    let Some(lab) = lab() else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let to = folder.path().join("both.pcapng");
    let arguments =
        ["--netns", &netns, "-w", to.to_str().unwrap(), "--duration", "100ms", "--json"];
    for (ports, mode, modes) in [
        (["mirror:right0", "packet:right0"], Value::Null, ["native".into(), Value::Null]),
        (["mirror:right0", "mirror:right0"], "native".into(), ["native".into(), "native".into()]),
    ] {
        let report = run(&[&["capture"], &ports[..], &arguments].concat()).good();
        let of_each = [0, 1].map(|i| report["ports"][i]["mode"].clone());
        assert_eq!((&report["mode"], &of_each), (&mode, &modes), "{ports:?}");
    }
}

#[test]
fn concurrent_attaches_all_keep_the_program() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let Some(attached) = Attached::to(&netns, &[]) else { return };
    for round in 0..5 {
        assert_eq!(attached.detach().status, Some(0), "round {round}");
        let all = std::thread::scope(|threads| {
            let attach = || threads.spawn(|| run(&["attach", "right0", "--netns", &netns]));
            [(); 4].map(|()| attach()).map(|it| it.join().unwrap())
        });
        for one in all {
            assert_eq!(one.status, Some(0), "round {round}: {}", one.err);
        }
        let claims = run(&["claims", "right0", "--netns", &netns, "--json"]).report();
        assert_eq!(claims["program"]["pinned"], true, "round {round}: {claims}");
    }
}

#[test]
fn two_processes_count_different_packets_of_one_queue() {
    let Some(lab) = lab_with(&["tcpreplay"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let sent = folder.path().join("sent.pcap");
    numbered(&sent, 0..10_000, 0, 1000);
    let start = |bit| {
        let port = format!("xdp:right0?filter={NUMBERED} and ether[17] & 1 = {bit}");
        Running::start(&["count", &port, "--netns", &netns, "--json"])
    };
    let (even, odd) = (start(0), start(1));
    replay(&lab, "left", "left0", &sent, 50_000);
    let report = odd.stop().good();
    assert_eq!((&report["packets"], &report["method"]), (&5000.into(), &"ring".into()), "{report}");
    // One of them is killed, and no other process cleans up.
    let doomed = start(1);
    doomed.signal(Signal::SIGKILL);
    doomed.end();
    replay(&lab, "left", "left0", &sent, 50_000);
    let report = even.stop().good();
    assert_eq!((&report["packets"], &report["method"]), (&10_000.into(), &"ring".into()));
}
