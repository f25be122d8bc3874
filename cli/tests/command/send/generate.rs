//! `sluice generate` makes, sends and counts packets.

use std::path::Path;

use pcap::Capture;
use serde_json::Value;
use sluicegate::link::{self, Shape};

use crate::support::*;

/// Several kinds of packets, of lengths and fields that vary.
const SPEC: &str = "seed = 5\n\
    [[stream]]\nweight = 2\nsize = '60-1514'\n\
    layers = ['ether', { ipv4 = { src = '198.18.0.0/16', dst = '203.0.113.1' } }, \
    { udp = { sport = '1024-65535', dport = 9 } }, { payload = { random = true } }]\n\
    [[stream]]\nflows = 7\n\
    layers = ['ether', { vlan = { id = '1-4000' } }, { ipv6 = { src = 'flow:2001:db8::/64', \
    dst = '2001:db8:113::1' } }, { tcp = { flags = 'S', seq = '0..4000000000/1460' } }]\n";
/// A filter for them and nothing else.
const GENERATED: &str = "dst host 203.0.113.1 or (vlan and dst host 2001:db8:113::1)";
fn frames(path: &Path) -> Vec<Vec<u8>> {
    let mut capture = Capture::from_file(path).unwrap();
    std::iter::from_fn(|| capture.next_packet().ok().map(|packet| packet.data.to_vec())).collect()
}

#[test]
fn every_way_of_sending_sends_the_same_packets() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let spec = folder.path().join("spec.toml");
    std::fs::write(&spec, SPEC).unwrap();
    let generate = |more: &[&str]| {
        let what = ["--spec", spec.to_str().unwrap(), "--dmac", NOBODY, "--count", "3000"];
        run(&[&["generate"], more, &what, &["--json"]].concat()).good()
    };
    let file = folder.path().join("made.pcap");
    // A file has no interface address, so the source is given.
    let smac = "02:00:00:00:00:11";
    let to_file = format!("pcap:{}", file.display());
    assert_eq!(generate(&[&to_file, "--smac", smac])["attempted"], 3000);
    let made = frames(&file);
    assert_eq!(made.len(), 3000);
    for (port, method) in [
        ("left0", "live"),
        ("left0", "sendmmsg"),
        ("left0", "sendto"),
        ("left0", "tx-ring"),
        ("left0", "xdp"),
        ("left0", "auto"),
    ] {
        let path = folder.path().join(format!("{method}.pcap"));
        let capture = capture_all(&right, GENERATED, &path);
        // A pace that captures keep up with, and a veth's queue, which is short: however busy the machine
        // is, never more than 50 come at once.
        let pace = ["--rate", "50kpps", "--max-lag", "1ms"];
        let sent = generate(
            &[&[port, "--netns", &left, "--method", method, "--smac", smac], &pace[..]].concat(),
        );
        assert_eq!((&sent["attempted"], &sent["accepted"]), (&3000.into(), &3000.into()), "{sent}");
        assert!(sent["pace"]["late_p99_ns"].is_u64(), "{method}: {sent}");
        let report = capture.stop().good();
        assert_eq!(report["packets"], 3000, "{method}: {report}");
        let came = frames(&path);
        assert_eq!(came.len(), 3000, "{method}");
        for (number, (came, made)) in came.iter().zip(&made).enumerate() {
            assert_eq!(came, made, "{method}: packet {number}");
        }
    }
}

#[test]
fn a_file_needs_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, made) = (path("out.pcap"), path("made.pcap"));
    run(&["generate", &made, "--count", "3"]);
    let redirected = std::fs::File::create(path("redirected")).unwrap();
    let mut to_stdout = sluice(&["generate", "pcap:-", "--rate", "1kpps"]);
    let ended = Running::unawaited(to_stdout.stdout(redirected)).end();
    assert_eq!(ended.status, Some(2), "{ended:?}");
    for command in [&["generate", &file][..], &["replay", &made, &file, "--loop", "0"]] {
        refused(command, "it would grow without end; add --count N or --duration TIME");
        assert!(!Path::new(&file).exists(), "{command:?}");
        for limit in [["--count", "3"], ["--duration", "10ms"]] {
            let limited = run(&[command, &limit].concat());
            assert_eq!(limited.status, Some(0), "{command:?}: {limited:?}");
            std::fs::remove_file(&file).unwrap();
        }
    }
}

#[test]
fn it_sends_no_more_than_was_asked_for_and_leaves_nothing_behind() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    for (sentence, more) in [
        ("a packet", &["--count", "1"][..]),
        // As many packets as a veth's queue holds, however busy the machine is; more only slowly.
        ("at once", &["--count", "201"]),
        ("no multiple of anything", &["--count", "1001", "--rate", "50kpps", "--max-lag", "1ms"]),
        ("in bursts", &["--count", "777", "--rate", "50kpps", "--burst", "64", "--max-lag", "1ms"]),
        (
            "two workers, with flows of their own",
            &["--count", "1000", "--threads", "2", "--rate", "100kpps", "--max-lag", "1ms"],
        ),
    ] {
        for method in ["live", "sendmmsg"] {
            let what = ["--dmac", NOBODY, "--method", method, "--netns", &left, "--json"];
            let sent = run(&[&["generate", "left0"], &what[..], more].concat()).good();
            let count: u64 = more[1].parse().unwrap();
            for key in ["attempted", "accepted"] {
                assert_eq!(sent[key], count, "{method}, {sentence}: {key}: {sent}");
            }
            assert_eq!(sent["ledger"]["out"], count, "{method}, {sentence}: {sent}");
        }
    }
    let sent = || link::interface(Some(&left), "left0").unwrap().stats.tx_packets;
    let before = sent();
    let running = Running::unawaited(&mut sluice(&[
        "generate", "left0", "--dmac", NOBODY, "--netns", &left, "--json",
    ]));
    eventually("packets are sent", || sent() > before || running.has_ended());
    let ended = running.stop();
    let report = ended.good();
    assert!(report["attempted"].as_u64().unwrap() > 0, "{report}");
    let claims = run(&["claims", "left0", "--netns", &left, "--json"]).report();
    assert_eq!(claims["program"], serde_json::Value::Null, "nothing is attached: {claims}");
}

#[test]
fn it_does_not_send_on_the_default_route_unasked() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    let exec = |words: &[&str]| {
        let mut command = std::process::Command::new("ip");
        assert!(command.args(["-n", &left]).args(words).status().unwrap().success());
    };
    exec(&["route", "add", "default", "via", "198.18.0.2"]);
    let generate = ["generate", "left0", "--netns", &left, "--count", "1", "--dmac", NOBODY];
    refused(&generate, "--allow-default-route left0");
    let asked = run(&[&generate[..], &["--allow-default-route", "left0"]].concat());
    assert_eq!((asked.status, &asked.err[..]), (Some(0), ""), "{asked:?}");
    exec(&["link", "property", "add", "dev", "left0", "altname", "other0"]);
    for port in ["packet:left0", "packet:other0"] {
        let forward = ["forward", "null:", port, "--one-way", "--count", "1", "--netns", &left];
        refused(&forward, "--allow-default-route left0");
        let asked = run(&[&forward[..], &["--allow-default-route", "left0"]].concat());
        assert_eq!((asked.status, &asked.err[..]), (Some(0), ""), "{port}: {asked:?}");
    }
}

#[test]
fn an_interface_that_is_allowed_but_not_a_target_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pcap");
    numbered(&file, 0..3, 0, 1000);
    let said = "sluice: --allow-default-route no0 has no effect: no0 is not a target\n";
    for arguments in [
        &["generate", "null:", "--count", "1"][..],
        &["replay", file.to_str().unwrap(), "null:"],
        &["forward", "null:", "null:", "--count", "1"],
    ] {
        let ended = run(&[arguments, &["--allow-default-route", "no0"]].concat());
        let times = ended.err.matches(said).count();
        assert_eq!((ended.status, times), (Some(0), 1), "{ended:?}");
    }
}

#[test]
fn a_plan_is_shown_without_privilege_or_interface() {
    let shown = run(&["generate", "--profile", "syn-flood", "--show", "1"]);
    assert_eq!(shown.status, Some(0), "{shown:?}");
    for word in ["tcp", "198.18.", "0x0000:", "packet 1"] {
        assert!(shown.out.contains(word), "{word}: {}", shown.out);
    }
    let folder = tempfile::tempdir().unwrap();
    let spec = folder.path().join("spec.toml");
    let stream = "[[stream]]\nlayers = ['ether', { ipv4 = { dst = '198.18.0.2' } }, \
                  { tcp = { flags = 'A', seq = 5000, ack = 7000 } }]\n";
    std::fs::write(&spec, stream).unwrap();
    let shown = run(&["generate", "--spec", spec.to_str().unwrap(), "--show", "2"]);
    assert_eq!(shown.out.matches(", ack 7000, win").count(), 2, "absolute: {}", shown.out);
    let shown = run(&["generate", "--src", "198.18.0.0/16", "--show", "1"]);
    let page = std::fs::read_to_string("../docs/generate.md").unwrap();
    for line in shown.out.lines().filter(|line| !line.is_empty()) {
        let line = format!("\n    {}\n", line.replace('\t', "        "));
        assert!(page.contains(&line), "not in the documentation: {line}");
    }
    for (arguments, complaint) in [
        (&["--sport", "70000"][..], "--sport"),
        (&["--profile", "slow"], "no profile 'slow'"),
        (&["--rate", "fast"], "a rate is like"),
        (&["--method", "quick"], "sendmmsg"),
    ] {
        refused(&[&["generate", "null:"], arguments].concat(), complaint);
    }
}

#[test]
fn a_fallback_from_live_frames_is_reported_with_its_reason() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    without_gro(&lab, "right", &["right0"]);
    let generate =
        ["generate", "left0", "--netns", &left, "--dmac", NOBODY, "--count", "10", "--json"];
    let live = run(&[&generate[..], &["--method", "live"]].concat());
    assert_eq!(live.status, Some(3), "{live:?}");
    assert!(live.err.contains("gro on"), "{}", live.err);
    let auto = run(&generate);
    assert!(auto.err.contains("sendmmsg in place of live frames"), "{}", auto.err);
    let report = auto.good();
    assert_eq!(report["ledger"]["out"], 10);
    assert_eq!(report["fallbacks"][0]["from"], "live frames", "{report}");
}

#[test]
fn packets_too_long_for_a_ring_are_named_and_a_failed_worker_ends_the_run() {
    let made = run(&["generate", "null:?slots=16", "--size", "60000", "--count", "5", "--json"]);
    assert_eq!(made.status, Some(1), "nothing went out: {}", made.err);
    let report = made.report();
    closes(&report);
    assert_eq!(report["ledger"]["losses"]["too_long"], 5, "{report}");
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    for method in ["live", "sendmmsg"] {
        // Endless, except for the worker whose CPU does not exist.
        let failed = run(&[
            "generate", "left0", "--netns", &left, "--dmac", NOBODY, "--method", method, "--cpus",
            "0,8000",
        ]);
        assert_eq!(failed.status, Some(2), "{method}: {failed:?}");
        assert!(failed.err.contains("no CPU 8000"), "{method}: {}", failed.err);
    }
}

#[test]
fn bytes_are_those_of_packets_that_are_short_enough() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    for port in ["left0", "packet:left0?send=ring", "live:left0"] {
        let sizes =
            ["generate", port, "--netns", &left, "--count", "4", "--size", "60,9000", "--json"];
        let report = run(&[&sizes[..], &["--dmac", NOBODY]].concat()).good();
        assert_eq!(report["ledger"]["losses"]["too_long"], 2, "{report}");
        assert_eq!((&report["packets"], &report["bytes"]), (&2.into(), &120.into()), "{report}");
    }
    // A tag may be longer than the MTU allows, other bytes may not.
    for (size, tag, lost) in [("1514", false, 0), ("1515", false, 4), ("1518", true, 0)] {
        let mut arguments =
            vec!["generate", "left0", "--netns", &left, "--count", "4", "--size", size, "--json"];
        arguments.extend(["--dmac", NOBODY]);
        arguments.extend(if tag { &["--vlan", "10"][..] } else { &[] });
        let report = run(&arguments).report();
        assert_eq!(report["ledger"]["losses"]["too_long"].as_u64().unwrap_or(0), lost, "{report}");
    }
    for sizes in [&["--size", "1515"][..], &["--size", "1519", "--vlan", "10"]] {
        let live = ["generate", "left0", "--netns", &left, "--method", "live", "--count", "4"];
        let ended = run(&[&live[..], sizes, &["--dmac", NOBODY]].concat());
        assert_eq!(ended.status, Some(3), "{ended:?}");
        let limits = "live frames have 14 to 1514 bytes there, 1518 with a VLAN tag;";
        assert!(ended.err.contains(limits), "{}", ended.err);
    }
}

#[test]
fn ending_does_not_wait_for_a_slow_queue_and_no_packet_goes_missing() {
    let Some(lab) = lab_with(&["tc"]) else { return };
    let left = lab.netns("left");
    let qdisc = |what: &str| {
        let mut tc = std::process::Command::new("tc");
        ended(tc.args(["-n", &left, "-j", "-s", "qdisc"]).args(what.split(' ')))
    };
    let arguments = ["generate", "left0", "--netns", &left, "--dmac", NOBODY, "--json"];
    // The queue lets two packets a second go, or only the first one: less than 1 %.
    let rates = ["rate 1kbit burst 2kb", "rate 8bit burst 80"];
    for (method, rate) in [("sendmmsg", rates[0]), ("tx-ring", rates[0]), ("sendmmsg", rates[1])] {
        let slow = qdisc(&format!("add dev left0 root tbf {rate} limit 2mb"));
        if slow.status != Some(0) {
            let why = "skipped: needs the queueing discipline tbf; get it by modprobe sch_tbf";
            return eprintln!("{why}: {}", slow.err);
        }
        let waiting = || {
            let shown: Value = serde_json::from_str(&qdisc("show dev left0").out).unwrap();
            shown[0]["qlen"].as_u64().unwrap()
        };
        let running = Running::start(&[&arguments[..], &["--method", method]].concat());
        eventually("hundreds wait", || waiting() > 200 || running.has_ended());
        let ended = running.stop();
        assert_eq!(ended.status, Some(0), "{method}, {rate}: {ended:?}");
        let report = ended.report();
        let count = |key: &str| report[key].as_u64().unwrap();
        let unsent = loss(&report, "unsent");
        assert!(unsent > 100, "{method}: given up, and said so: {report}");
        let remedy = report["ledger"]["remedies"]["unsent"].as_str().unwrap();
        assert!(remedy.starts_with("bring the interface and its far end up"), "{remedy}");
        assert_eq!(count("attempted"), count("accepted") + unsent, "{method}: {report}");
        // Packets in the queue count, too, except those that left between the two reads.
        let unexplained = report["ledger"]["unexplained"].as_i64().unwrap();
        assert!((0..20).contains(&unexplained), "{method}: {report}");
        assert_eq!(qdisc("del dev left0 root").status, Some(0));
    }
}

#[test]
fn a_rate_in_a_file_changes_while_it_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rate");
    let set = |text: &str| {
        // The reader never sees half of the text.
        let new = folder.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &path).unwrap();
    };
    let file = path.to_str().unwrap();
    let generate = ["generate", "null:", "--count", "1000", "--rate-file", file, "--json"];
    refused(&generate, "No such file");
    set("pause");
    let none = run(&[&generate[..], &["--duration", "30ms"]].concat()).good();
    assert_eq!(none["pace"]["target_pps"], 0.0, "a rate was asked for all the same: {none}");
    assert_eq!(none["pace"]["histogram"], serde_json::json!([]), "{none}");
    let running = Running::start(&generate);
    set("1Mpps");
    let report = running.end().good();
    assert_eq!(report["attempted"], 1000, "{report}");
    let pace = &report["pace"];
    assert_eq!(
        (&pace["target_pps"], &pace["target_changes"]),
        (&1e6.into(), &1.into()),
        "{report}"
    );
    assert!(pace["achieved_pps"].is_f64(), "{report}");
    let histogram = pace["histogram"].as_array().unwrap();
    let counted = histogram.iter().map(|class| class["packets"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(counted, 1000, "{report}");
}

#[test]
fn live_frames_follow_a_rate_in_a_file() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rate");
    std::fs::write(&path, "pause").unwrap();
    let file = path.to_str().unwrap();
    let what = ["generate", "left0", "--netns", &left, "--dmac", NOBODY, "--method", "live"];
    let more = ["--threads", "2", "--count", "1000", "--rate-file", file, "--json"];
    let running = Running::unawaited(&mut sluice(&[&what[..], &more].concat()));
    eventually("its threads begin", || running.has_threads("live") || running.has_ended());
    std::fs::write(&path, "1Mpps").unwrap();
    let report = running.end().good();
    assert_eq!(report["accepted"], 1000, "{report}");
    let pace = &report["pace"];
    assert_eq!(
        (&pace["target_pps"], &pace["target_changes"]),
        (&1e6.into(), &1.into()),
        "{report}"
    );
}

#[test]
fn bursts_keep_their_distance_and_an_invalid_rate_is_refused() {
    let generate = |more: &[&str]| run(&[&["generate", "null:", "--json"], more].concat());
    let twice = generate(&["--burst", "500", "--burst-gap", "1ms", "--count", "1000"]).good();
    assert_eq!(twice["pace"]["target_pps"], 500_000.0, "{twice}");
    let classes = twice["pace"]["histogram"].as_array().unwrap();
    let bursts = classes.iter().map(|class| class["packets"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(bursts, 2, "{twice}");
    // The first burst, and then none for an hour.
    let slow = generate(&["--burst", "7", "--burst-gap", "1h", "--duration", "50ms"]).good();
    assert_eq!(slow["attempted"], 7, "{slow}");
    assert!(slow["threads"][0]["busy"].as_f64() < Some(0.5), "it sleeps: {slow}");
    let rare = generate(&["--rate", "1pps", "--burst", "1000000", "--count", "1000"]).good();
    assert_eq!(rare["attempted"], 1000, "{rare}");
    for (wrong, complaint) in [
        (&["--burst", "7"][..], "--burst-gap"),
        (&["--burst-gap", "0s"], "above 0"),
        (&["--ramp", "1s"], "needs a rate"),
        (&["--rate", "1e-300pps"], "in years"),
        (&["--rate", "1pps", "--max-lag", "1s"], "the maximum is 100ms"),
        (&["--rate", "1pps", "--burst-gap", "1s"], "cannot be used with"),
    ] {
        refused(&[&["generate", "null:"], wrong].concat(), complaint);
    }
}

#[test]
fn live_frames_leave_for_a_user_in_another_namespace() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    let what = ["generate", "left0", "--netns", &left, "--dmac", NOBODY, "--method", "live"];
    let report = run(&[&what[..], &["--user", "nobody", "--count", "100", "--json"]].concat());
    assert_eq!(report.good()["accepted"], 100);
}

#[test]
fn a_long_plan_is_written_in_pieces_and_its_reader_may_leave() {
    let mut running =
        Running::unawaited(&mut sluice(&["generate", "--profile", "imix", "--show", "999999999"]));
    running.has_written(100_000);
    drop(running.child().stdout.take());
    let ended = running.end();
    assert_eq!((ended.status, ended.err.as_str()), (Some(0), ""));
}

#[test]
fn packets_too_complex_for_a_bpf_program_fall_back_to_sockets() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    let folder = tempfile::tempdir().unwrap();
    let spec = folder.path().join("spec.toml");
    let random = "{ ipv6 = { src = '2001:db8::/8', dst = '2001:db8::/8' } }, ".repeat(20);
    for (sentence, text, complaint) in [
        ("streams", "[[stream]]\nlayers = ['ether', 'ipv4', 'udp']\n".repeat(4090), "4000 streams"),
        (
            "random numbers",
            format!("[[stream]]\nlayers = ['ether', {random}'udp']"),
            "60 random numbers",
        ),
    ] {
        std::fs::write(&spec, text).unwrap();
        let what = ["generate", "left0", "--netns", &left, "--dmac", NOBODY, "--json"];
        let what = [&what[..], &["--count", "5000", "--spec", spec.to_str().unwrap()]].concat();
        let live = run(&[&what[..], &["--method", "live"]].concat());
        assert_eq!(live.status, Some(3), "{sentence}: {live:?}");
        assert!(live.err.contains(complaint), "{sentence}: {}", live.err);
        let report = run(&what).good();
        assert_eq!(report["attempted"], 5000, "{sentence}: {report}");
        let reason = report["fallbacks"][0]["reason"].as_str().unwrap();
        assert!(reason.contains(complaint), "{sentence}: {report}");
    }
}

#[test]
fn a_rate_in_percent_is_a_share_of_the_link_speed_in_any_namespace() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    let what = ["generate", "left0", "--netns", &left, "--dmac", NOBODY, "--count", "1", "--json"];
    for method in ["live", "sendmmsg"] {
        let report =
            run(&[&what[..], &["--method", method, "--size", "60", "--rate", "1%"]].concat())
                .good();
        // A veth reports 10,000 Mbit/s; a frame of 60 bytes has 672 bits at layer 1.
        let asked = report["pace"]["target_pps"].as_f64().unwrap();
        assert!((asked - 1e8 / 672.0).abs() < 1e-3, "{method}: {report}");
    }
    // Loopback reports no speed.
    let lo = ["generate", "lo", "--netns", &left, "--dmac", NOBODY, "--count", "1", "--rate", "1%"];
    refused(&lo, "does not report the link's speed");
}

#[test]
fn an_xdp_port_sends_by_one_queue_per_thread() {
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let left = lab.netns("left");
    for (threads, queues) in [(1, 1), (2, 2), (3, 2)] {
        let (wanted, what) = (threads.to_string(), ["--dmac", NOBODY, "--count", "100", "--json"]);
        let port = ["generate", "xdp:left0", "--netns", &left, "--threads", &wanted];
        let sent = run(&[&port[..], &what].concat());
        assert_eq!(sent.err.contains("has 2 queues"), threads > 2, "{threads}: {}", sent.err);
        let report = sent.good();
        assert_eq!(report["threads"].as_array().unwrap().len(), queues, "{threads}: {report}");
        assert_eq!(report["ledger"]["out"], 100, "{threads}: {report}");
    }
}

#[test]
fn the_packets_of_a_capture_are_sent_as_often_as_they_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (input, output) = (path("in.pcap"), path("out.pcap"));
    let mut short = frame(4);
    short.truncate(20);
    let frames = [frame(1), frame(2), frame(1), frame(3), short, frame(1)];
    pcap_file(Path::new(&input), &frames);
    let to = format!("pcap:{output}");
    run(&["generate", &to, "--from", &input, "--count", "60", "--json"]).good();
    let sent: Vec<Vec<u8>> =
        packets(Path::new(&output)).into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(sent.len(), 60);
    for frame in &frames {
        let count = |all: &[Vec<u8>]| all.iter().filter(|it| *it == frame).count();
        assert_eq!(count(&sent), 10 * count(&frames), "{frame:02x?}");
    }
    let refuse = |file: &str, more: &[&str], said: &str| {
        refused(&[&["generate", &to, "--from", file, "--count", "1"], more].concat(), said);
    };
    refuse(&input, &["--dport", "9"], "dport");
    numbered(Path::new(&path("many.pcap")), 0..5000, 0, 1);
    refuse(&path("many.pcap"), &[], "send the file by `sluice replay`");
    run(&["edit", &input, &path("cut.pcap"), "-s", "30", "--json"]).good();
    refuse(&path("cut.pcap"), &[], "packet 1 is cut in the file");
}

#[test]
fn the_report_has_packets_and_bytes_of_each_stream() {
    let folder = tempfile::tempdir().unwrap();
    let spec = folder.path().join("spec.toml");
    let stream = |name: &str, weight: u32, size: &str, port: u16| {
        let layers = format!("['ether', 'ipv4', {{ udp = {{ dport = {port} }} }}]");
        let first = format!("[[stream]]\nname = '{name}'\nweight = {weight}\nsize = '{size}'\n");
        format!("{first}layers = {layers}\n")
    };
    let text = [stream("a", 1, "60", 1), stream("b", 2, "60-1500", 2), stream("c", 1, "60,100", 3)];
    std::fs::write(&spec, text.concat()).unwrap();
    let spec = spec.to_str().unwrap();
    let output = folder.path().join("out.pcap");
    let to_file = format!("pcap:{}", output.display());
    let report = run(&["generate", &to_file, "--spec", spec, "--count", "400", "--json"]).good();
    let frames = frames(&output);
    for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
        let stream = &report["streams"][index];
        let of_stream = frames.iter().filter(|frame| usize::from(frame[37]) == index + 1);
        let expected = of_stream
            .fold((0, 0), |(packets, bytes), frame| (packets + 1, bytes + frame.len() as u64));
        assert_eq!((&stream["stream"], &stream["name"]), (&index.into(), &name.into()));
        let reported = (stream["packets"].as_u64(), stream["bytes"].as_u64());
        assert_eq!(reported, (Some(expected.0), Some(expected.1)), "{name}: {report}");
    }
    let text = run(&["generate", "null:", "--spec", spec, "--count", "400"]).out;
    assert!(text.contains("            100 of stream c, 8,000 bytes\n"), "{text}");
    let one = run(&["generate", "null:", "--count", "400"]).out;
    assert!(!one.contains("of stream"), "{one}");
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    for (method, threads) in [("live", "1"), ("live", "2"), ("sendmmsg", "1")] {
        let what = ["generate", "left0", "--netns", &left, "--dmac", NOBODY, "--spec", spec];
        let more = ["--method", method, "--threads", threads, "--count", "400", "--json"];
        let report = run(&[&what[..], &more].concat()).good();
        let streams = report["streams"].as_array().unwrap();
        let sum = |key: &str| streams.iter().map(|it| it[key].as_u64().unwrap()).sum::<u64>();
        assert_eq!(report["packets"], sum("packets"), "{method}: {report}");
        assert_eq!(report["bytes"], sum("bytes"), "{method}: {report}");
        assert_eq!(streams[1]["packets"], 200, "{method}: {report}");
    }
}

/// A stream to an UDP port, with settings.
fn stream_to(port: u16, settings: &str) -> String {
    let layers = format!(
        "['ether', {{ ipv4 = {{ src = '198.18.0.0/16', dst = '203.0.113.1' }} }}, {{ udp = {{ dport = {port} }} }}]"
    );
    format!("[[stream]]\n{settings}\nlayers = {layers}\n")
}

#[test]
fn a_stream_leaves_the_mix_after_its_count_and_the_last_one_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let (spec, made) = (folder.path().join("spec.toml"), folder.path().join("made.pcap"));
    let text = stream_to(1, "count = 10\nweight = 2") + &stream_to(2, "count = 30");
    std::fs::write(&spec, text).unwrap();
    let spec = spec.to_str().unwrap();
    let to_file = format!("pcap:{}", made.display());
    let macs = ["--smac", "02:00:00:00:00:11", "--dmac", NOBODY];
    let what = [&["--spec", spec, "--json"][..], &macs].concat();
    let report = run(&[&["generate", &to_file], &what[..]].concat()).good();
    let made = frames(&made);
    let ports: Vec<u8> = made.iter().map(|frame| frame[37]).collect();
    let mixed: Vec<u8> = [1, 2, 1].into_iter().cycle().take(15).collect();
    assert_eq!(ports, [mixed, vec![2; 25]].concat(), "two of three, then the other's rest");
    let counts =
        |report: &Value| [0, 1].map(|index| report["streams"][index]["packets"].as_u64().unwrap());
    assert_eq!(counts(&report), [10, 30], "{report}");
    let limited = run(&[&["generate", "null:", "--count", "20"], &what[..]].concat()).good();
    assert_eq!(counts(&limited), [10, 10], "{limited}");
    let shown = run(&["generate", "--spec", spec, "--show", "99"]).out;
    assert!(shown.contains("stream 0: 2 of 3 packets, 10 in all, 1 flow, 60 bytes"), "{shown}");
    assert!(shown.contains("packet 40: stream 1") && !shown.contains("packet 41"), "{shown}");
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    for method in ["live", "sendmmsg"] {
        for (pace, threads) in [(&["--rate", "2kpps"][..], "1"), (&[], "1"), (&[], "3")] {
            let path = folder.path().join("came.pcap");
            let capture = capture_all(&right, "dst host 203.0.113.1", &path);
            let port = ["generate", "left0", "--netns", &left, "--method", method];
            let more = ["--threads", threads];
            let report = run(&[&port[..], &more, &what, pace].concat()).good();
            assert_eq!(counts(&report), [10, 30], "{method}, {threads}: {report}");
            assert_eq!(report["ledger"]["out"], 40, "{method}, {threads}: {report}");
            assert_eq!(capture.stop().good()["packets"], 40, "{method}, {threads}");
            if threads == "1" {
                assert!(frames(&path) == made, "{method}: the same packets in the same order");
            }
        }
    }
}

#[test]
fn streams_with_rates_share_the_run_and_set_its_pace() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (spec, output) = (path("spec.toml"), path("out.pcap"));
    let stream = |rate: &str, port: u16| {
        let layers = format!("['ether', 'ipv4', {{ udp = {{ dport = {port} }} }}]");
        format!("[[stream]]\nrate = '{rate}'\nlayers = {layers}\n")
    };
    std::fs::write(&spec, stream("300kpps", 1001) + &stream("100kpps", 1002)).unwrap();
    let to = format!("pcap:{output}");
    let generate = ["generate", &to, "--spec", &spec, "--count", "400", "--json"];
    let target = |more: &[&str]| {
        let report = run(&[&generate, more].concat()).good();
        report["pace"]["target_pps"].as_f64().unwrap()
    };
    assert_eq!(target(&["--rate", "200kpps"]), 200e3, "a flag changes the rates");
    assert_eq!(target(&["--burst", "4"]), 400e3, "bursts take the streams' rate");
    assert_eq!(target(&[]), 400e3);
    let of = |port: u16| {
        let all = packets(Path::new(&output)).into_iter();
        all.filter(|(_, bytes)| bytes[36..38] == port.to_be_bytes()).count()
    };
    assert_eq!((of(1001), of(1002)), (300, 100));
}

#[test]
fn a_rate_that_was_missed_by_far_is_named_with_status_0() {
    let what = ["--dst", "198.18.0.9", "--rate", "1000Mpps", "--json"];
    let is_named = |ended: &Ended| {
        let notice = ended.report()["notices"][0].as_str().map(str::to_owned);
        notice.is_some_and(|notice| {
            notice.starts_with("asked for 1 Gpps, but sent ")
                && ended.err == format!("sluice: {notice}\n")
        })
    };
    for ports in [&["null:"][..], &["null:", "null:"]] {
        let end = ["--duration", "200ms", "--max-lag", "1ms"];
        let ended = run(&[&["generate"], ports, &what, &end].concat());
        ended.good();
        assert!(is_named(&ended), "{ended:?}");
    }
    // A stall makes a sender skip ahead, or takes longer than its packets were late.
    eventually("a missed rate that is named without a restart", || {
        let ended = run(&[&["generate", "null:", "--count", "20000"][..], &what].concat());
        ended.good()["pace"]["restarts"] == 0 && is_named(&ended)
    });
    // A machine that stalls makes a sender miss its rate.
    eventually("a run without a stall", || {
        let what = ["--dst", "198.18.0.9", "--rate", "1kpps", "-c", "9", "--json"];
        let ended = run(&[&["generate", "null:"][..], &what].concat());
        ended.good();
        ended.err.is_empty()
    });
}
