//! `sluice count --analyze` reports the faults that a test plants, and no others.

use std::path::Path;

use serde_json::Value;

use crate::support::*;

/// Two streams in turn, of lengths that vary.
const SPEC: &str = "seed = 9\n\
    [[stream]]\nsize = '60-1514'\nlayers = ['ether', { ipv4 = { src = '198.18.0.0/16', \
    dst = '203.0.113.1' } }, { udp = { dport = 9 } }, 'stamp', { payload = { random = true } }]\n\
    [[stream]]\nsize = '98-400'\nlayers = ['ether', 'vlan', { ipv6 = { dst = '2001:db8:113::1' } }, \
    'tcp', 'stamp', { payload = { random = true } }]\n";
/// Packets a stream.
const EACH: usize = 2000;

/// Stamped packets in a file, as they were made.
fn made(folder: &Path) -> Vec<Vec<u8>> {
    let (spec, file) = (folder.join("spec.toml"), folder.join("made.pcap"));
    std::fs::write(&spec, SPEC).unwrap();
    let to = format!("pcap:{}", file.display());
    let count = (2 * EACH).to_string();
    let spec = ["--spec", spec.to_str().unwrap(), "--count", &count, "--json"];
    let macs = ["--smac", "02:00:00:00:00:11", "--dmac", NOBODY];
    run(&[&["generate", &to][..], &spec, &macs].concat()).good();
    packets(&file).into_iter().map(|(_, bytes)| bytes).collect()
}

/// Plants faults: of every 50 packets of a stream one is missing, one comes twice, one comes after its
/// successor, and one has a wrong bit.
fn planted(made: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    let mut waiting: [Option<Vec<u8>>; 2] = [None, None];
    for (number, frame) in made.iter().enumerate() {
        let stream = number % 2;
        match number / 2 % 50 {
            10 => {}
            20 => sent.extend([frame.clone(), frame.clone()]),
            30 => waiting[stream] = Some(frame.clone()),
            40 => {
                let mut frame = frame.clone();
                *frame.last_mut().unwrap() ^= 4;
                sent.push(frame);
            }
            _ => {
                sent.push(frame.clone());
                sent.extend(waiting[stream].take());
            }
        }
    }
    sent
}

fn is_exact(sentence: &str, report: &Value) {
    let analysis = &report["analysis"];
    let streams = analysis["streams"].as_array().unwrap();
    assert_eq!(streams.len(), 2, "{sentence}: {analysis}");
    for stream in streams {
        let times = EACH / 50;
        for (key, expected) in [
            ("received", EACH - times),
            // The missing packets, and those with an implausible number.
            ("lost", 2 * times),
            ("duplicates", times),
            ("reordered", times),
            ("late", 0),
            ("corrupt", times),
            ("restarts", 0),
        ] {
            assert_eq!(stream[key], expected, "{sentence}: {key} in {stream}");
        }
        let worker = &stream["workers"][0];
        assert_eq!((&worker["first"], &worker["last"]), (&0.into(), &(EACH - 1).into()));
        let latency = &stream["latency"];
        assert!(latency["p50_ns"].as_u64() <= latency["max_ns"].as_u64(), "{sentence}: {stream}");
    }
    for key in ["corrupt", "untracked", "unchecked"] {
        assert_eq!(analysis[key], 0, "{sentence}: {analysis}");
    }
}

#[test]
fn planted_faults_are_reported_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("planted.pcap");
    pcap_file(&file, &planted(&made(folder.path())));
    let port = format!("pcap:{}", file.display());
    is_exact("from a file", &run(&["count", &port, "--analyze", "--json"]).good());
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    for port in [
        "right0?blocks=64",
        "mirror:right0",
        "xdp:right0",
        "xdp:right0?action=drop",
        "xdp:right0?action=pass",
        "xdp:right0?action=drop&filter=not arp",
    ] {
        let count = Running::start(&["count", port, "--netns", &right, "--analyze", "--json"]);
        let file = file.to_str().unwrap();
        run(&[
            "replay", file, "left0", "--netns", &left, "--rate", "20kpps", "--cpus", "0", "--json",
        ])
        .good();
        let report = count.stop().good();
        assert_eq!(report["ledger"]["losses"], serde_json::json!({}), "{port}: {report}");
        is_exact(port, &report);
        // The kernel measures the latency of one packet of 16.
        let samples = &report["analysis"]["streams"][0]["latency"]["samples"];
        let all = samples.as_u64() == Some((EACH - EACH / 50) as u64);
        assert_eq!(all, !port.contains("action"), "{port}: {report}");
    }
}

#[test]
fn several_threads_of_a_sender_and_of_a_receiver_are_put_together() {
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    for (port, threads) in [("right0?blocks=64", "3"), ("xdp:right0?action=drop", "1")] {
        let count = Running::start(&[
            "count",
            port,
            "--netns",
            &right,
            "--threads",
            threads,
            "--analyze",
            "--json",
            "-f",
            "udp",
        ]);
        let sent = run(&[
            "generate",
            "left0",
            "--netns",
            &left,
            "--stamp",
            "--threads",
            "2",
            "--flows",
            "50",
            "--rate",
            "20kpps",
            "--dmac",
            NOBODY,
            "--count",
            "4000",
            "--json",
        ])
        .good();
        let report = count.stop().good();
        let stream = &report["analysis"]["streams"][0];
        // A veth drops packets when its queue is full while the machine is busy.
        let [accepted, arrived] =
            [&sent["accepted"], &sent["ledger"]["out"]].map(|it| it.as_u64().unwrap());
        assert_eq!(stream["received"], arrived, "{port}: {report}");
        for key in ["duplicates", "late", "corrupt", "restarts"] {
            assert_eq!(stream[key], 0, "{port}: {key} in {stream}");
        }
        let workers = stream["workers"].as_array().unwrap();
        assert_eq!(workers.len(), 2, "{port}: {stream}");
        // `lost` counts gaps between the first and the last packet received; more may be missing outside.
        let missing = workers.iter().map(|worker| {
            let [number, first, lost, last] =
                ["worker", "first", "lost", "last"].map(|key| worker[key].as_u64().unwrap());
            let sent = sent["threads"][number as usize]["packets"].as_u64().unwrap();
            first + lost + sent - 1 - last
        });
        assert_eq!(missing.sum::<u64>(), accepted - arrived, "{port}: {report} {sent}");
    }
}

#[test]
fn each_interval_has_a_line_with_the_losses_so_far() {
    let folder = tempfile::tempdir().unwrap();
    let Some(lab) = lab() else { return };
    let file = folder.path().join("planted.pcap");
    pcap_file(&file, &planted(&made(folder.path())));
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let file = file.to_str().unwrap();
    for port in ["right0?blocks=64", "xdp:right0?action=drop"] {
        let out = folder.path().join("lines");
        let mut command = sluice(&["count", port, "--netns", &right, "--analyze", "--json"]);
        command.args(["--interval", "50ms"]).stdout(std::fs::File::create(&out).unwrap());
        let count = Running::spawn(&mut command);
        run(&[
            "replay", file, "left0", "--netns", &left, "--rate", "20kpps", "--cpus", "0", "--json",
        ])
        .good();
        let lines = || std::fs::read_to_string(&out).unwrap();
        let all = "\"stamped_lost\":160,\"stamped_reordered\":80}";
        eventually("a line has all that is missing", || lines().contains(all));
        assert_eq!(count.stop().status, Some(0), "{port}");
        is_exact(port, &serde_json::from_str(lines().lines().last().unwrap()).unwrap());
    }
}
