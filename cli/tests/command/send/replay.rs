//! `sluice replay`: packets of a file arrive unchanged and on time.

use std::path::Path;

use nix::sys::signal::Signal;

use crate::support::*;

/// Packets that only these tests send.
const REPLAYED: &str = "udp dst port 9 and dst net 198.19.0.0/16";

/// A file of packets of several lengths and flows, as many ns apart.
pub fn recording(path: &Path, count: u32, apart_ns: i64) {
    let to = format!("pcap:{}", path.display());
    let count = count.to_string();
    run(&["generate", &to, "--profile", "imix", "--dmac", NOBODY, "--count", &count, "--json"])
        .good();
    let mut file = std::fs::read(path).unwrap();
    let nanoseconds = file[..4] == 0xa1b2_3c4d_u32.to_le_bytes();
    let (mut at, mut time) = (24, 1_700_000_000_000_000_000_i64);
    while at < file.len() {
        let fraction = time % 1_000_000_000 / if nanoseconds { 1 } else { 1000 };
        let stamp = [(time / 1_000_000_000) as u32, fraction as u32].map(u32::to_le_bytes);
        file[at..at + 8].copy_from_slice(stamp.as_flattened());
        let captured = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap());
        at += 16 + captured as usize;
        time += apart_ns;
    }
    std::fs::write(path, file).unwrap();
}

#[test]
fn packets_of_a_file_arrive_unchanged() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let file = folder.path().join("recorded.pcap");
    recording(&file, 1000, 100_000);
    let recorded = packets(&file);
    assert_eq!(recorded.len(), 1000);
    for (tempo, rounds) in
        [(&[][..], 1), (&["--speed", "10"], 2), (&["--rate", "20kpps"], 2), (&["--top-speed"], 3)]
    {
        let path = folder.path().join("came.pcap");
        let capture = capture_all(&right, REPLAYED, &path);
        let rounds_said = rounds.to_string();
        let what = ["replay", file.to_str().unwrap(), "left0", "--netns", &left, "--json"];
        let sent = run(&[&what[..], &["--loop", &rounds_said], tempo].concat()).good();
        assert_eq!(sent["attempted"], 1000 * rounds, "{tempo:?}: {sent}");
        assert_eq!(sent["pace"].is_object(), tempo != ["--top-speed"], "{sent}");
        assert_eq!(capture.stop().good()["packets"], 1000 * rounds, "{tempo:?}");
        let came = packets(&path);
        let expected = recorded.iter().cycle();
        for (number, ((_, came), (_, sent))) in came.iter().zip(expected).enumerate() {
            assert_eq!(came, sent, "{tempo:?}: packet {number}");
        }
        if tempo.is_empty() {
            // Never early, however busy the machine is: each packet has its own time.
            let all = came[999].0 - came[0].0;
            assert!(all >= 999 * 100_000 * 9 / 10, "sent within {all} ns, recorded over 99.9 ms");
        }
    }
}

#[test]
fn several_threads_keep_the_order_of_each_flow() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let file = folder.path().join("recorded.pcap");
    recording(&file, 2000, 1_000);
    let recorded = packets(&file);
    // The addresses and ports of UDP behind IPv4.
    let flows = |packets: Vec<(u64, Vec<u8>)>| {
        let mut flows = std::collections::HashMap::<_, Vec<_>>::new();
        for (_, bytes) in packets {
            flows.entry(bytes[26..38].to_vec()).or_default().push(bytes);
        }
        flows
    };
    for tempo in [&[][..], &["--rate", "100Mbps"], &["--top-speed"]] {
        let path = folder.path().join("came.pcap");
        let capture = capture_all(&right, REPLAYED, &path);
        let what = ["replay", file.to_str().unwrap(), "left0", "--netns", &left, "--json"];
        let sent = run(&[&what[..], &["--threads", "3"], tempo].concat()).good();
        assert_eq!(sent["attempted"], 2000, "{tempo:?}: {sent}");
        assert_eq!(sent["threads"].as_array().unwrap().len(), 3, "{sent}");
        assert_eq!(capture.stop().good()["packets"], 2000, "{tempo:?}");
        assert_eq!(flows(packets(&path)), flows(recorded.clone()), "{tempo:?}");
    }
}

#[test]
fn an_unsendable_file_is_refused_before_the_target_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let raw: [u32; 6] = [0xa1b2_3c4d, 2 | 4 << 16, 0, 0, 65535, 101];
    std::fs::write(path("raw"), raw.map(u32::to_le_bytes).as_flattened()).unwrap();
    std::fs::write(path("text"), "neither pcap nor pcapng").unwrap();
    let out = path("out");
    std::fs::write(&out, "precious").unwrap();
    for (file, rounds, status, reason) in [
        (path("raw"), "1", 2, "raw IP"),
        (path("text"), "1", 1, "not a capture file"),
        (path("missing"), "1", 2, "No such file"),
        (path(""), "1", 2, "directory"),
        ("-".into(), "2", 2, "a pipe can be read but once"),
    ] {
        let refused = run(&["replay", &file, &format!("pcap:{out}"), "--loop", rounds]);
        assert_eq!(refused.status, Some(status), "{refused:?}");
        assert!(refused.err.contains(reason), "{reason}: {}", refused.err);
        assert_eq!(std::fs::read(&out).unwrap(), b"precious", "{reason}");
    }
}

#[test]
fn packets_longer_than_the_mtu_are_left_out_and_reported() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("long.pcap");
    recording(&file, 200, 1000);
    let long = packets(&file).iter().filter(|(_, bytes)| bytes.len() > 1014).count();
    assert!(long > 0);
    let left = lab.netns("left");
    let mtu = on(&lab, "left", &["ip", "link", "set", "left0", "mtu", "1000"]);
    assert_eq!(mtu.status, Some(0), "{}", mtu.err);
    for port in ["left0", "packet:left0"] {
        let sent = run(&["replay", file.to_str().unwrap(), port, "--netns", &left, "--json"]);
        let report = sent.good();
        assert_eq!(report["ledger"]["losses"]["too_long"], long, "{report}");
        assert_eq!(report["accepted"], 200 - long, "{report}");
        assert_eq!((&report["attempted"], &report["packets"]), (&200.into(), &report["accepted"]));
        assert!(sent.err.contains("too long"), "{}", sent.err);
    }
}

#[test]
fn packets_longer_than_the_mtu_are_cut_if_asked() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (file, path) = (folder.path().join("long.pcap"), folder.path().join("came.pcap"));
    recording(&file, 200, 1000);
    let recorded = packets(&file);
    let long = recorded.iter().filter(|(_, bytes)| bytes.len() > 1014).count();
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let mtu = on(&lab, "left", &["ip", "link", "set", "left0", "mtu", "1000"]);
    assert_eq!(mtu.status, Some(0), "{}", mtu.err);
    let capture = capture_all(&right, REPLAYED, &path);
    let what = ["replay", file.to_str().unwrap(), "left0", "--netns", &left, "--json"];
    let sent = run(&[&what[..], &["--cut-to-mtu", "--top-speed"]].concat()).good();
    assert_eq!(sent["ledger"]["notes"]["cut_to_mtu"], long, "{sent}");
    assert_eq!(sent["accepted"], 200, "{sent}");
    assert_eq!(capture.stop().good()["packets"], 200);
    for ((_, came), (_, sent)) in packets(&path).iter().zip(&recorded) {
        assert_eq!(came.len(), sent.len().min(1014));
        assert_eq!(came[42..], sent[42..came.len()], "the payload");
        let of_ip = usize::from(u16::from_be_bytes([came[16], came[17]]));
        let of_udp = usize::from(u16::from_be_bytes([came[38], came[39]]));
        assert_eq!((of_ip, of_udp), (came.len() - 14, came.len() - 34));
    }
    // tcpdump checks the checksums of each.
    let dump = ["tcpdump", "-nn", "-vv", "-r", path.to_str().unwrap()];
    let dump = std::process::Command::new(dump[0]).args(&dump[1..]).output();
    let Ok(dump) = dump else { return eprintln!("skipped: no tcpdump to check the checksums") };
    let text = String::from_utf8_lossy(&dump.stdout);
    assert_eq!(text.matches("udp sum ok").count(), 200, "{text}");
    assert!(!text.contains("bad"), "{text}");
}

#[test]
fn a_wait_of_an_hour_ends_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rare.pcap");
    recording(&file, 2, 3_600_000_000_000);
    let out = format!("pcap:{}", folder.path().join("out.pcap").display());
    for port in ["null:", &out] {
        let replay = Running::start(&["replay", file.to_str().unwrap(), port, "--json"]);
        let sent = replay.stop().good();
        assert!(sent["attempted"].as_u64().unwrap() <= 1, "{sent}");
        assert_eq!(sent["attempted"], sent["accepted"], "{sent}");
    }
}

#[test]
fn an_ended_replay_leaves_the_interface_as_it_was() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recorded.pcap");
    recording(&file, 1000, 1000);
    let left = lab.netns("left");
    let settings = || on(&lab, "left", &["ip", "-d", "link", "show", "left0"]).out;
    let sent = || sluicegate::link::interface(Some(&left), "left0").unwrap().stats.tx_packets;
    let before = settings();
    let what = ["replay", file.to_str().unwrap()];
    for port in ["live:left0", "packet:left0", "xdp:left0"] {
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
            let (to, until_then) = (["--netns", &left, "--top-speed", "--json"], sent());
            let all = [&what[..], &[port], &to].concat();
            let replay = Running::start(&[&all[..], &["--loop", "0", "--threads", "1"]].concat());
            // Beyond the first round, from memory.
            eventually("packets leave", || sent() > until_then + 2000 || replay.has_ended());
            replay.signal(signal);
            let ended = replay.end();
            match signal {
                Signal::SIGKILL => assert_eq!(ended.signal, Some(9), "{port}: {ended:?}"),
                _ => assert!(ended.good()["attempted"].as_u64() > Some(2000), "{port}: {ended:?}"),
            }
            eventually("nothing stays attached", || settings() == before);
            assert_eq!(run(&all).good()["attempted"], 1000, "{port}, after {signal}");
        }
    }
}

#[test]
fn a_file_is_not_written_while_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("a.pcap"), folder.path().join("link.pcap"));
    recording(&file, 10, 1000);
    std::fs::hard_link(&file, &link).unwrap();
    let before = std::fs::read(&file).unwrap();
    let from = |path: &Path| format!("pcap:{}", path.display());
    let (path, other) = (file.to_str().unwrap(), link.to_str().unwrap());
    for arguments in [
        ["replay", path, &from(&file), "--top-speed"],
        ["replay", path, &from(&link), "--top-speed"],
        ["capture", &from(&file), "-w", path],
        ["capture", &from(&file), "-w", other],
    ] {
        refused(&arguments, "the same file");
        assert_eq!(std::fs::read(&file).unwrap(), before, "{arguments:?}");
    }
}

#[test]
fn flags_that_would_change_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recorded.pcap");
    recording(&file, 10, 1000);
    let out = format!("pcap:{}", folder.path().join("out.pcap").display());
    let what = ["replay", file.to_str().unwrap(), &out, "--top-speed"];
    refused(&[&what[..], &["--unique"]].concat(), "add --loop N");
    refused(&[&what[..], &["--cut-to-mtu"]].concat(), "has no MTU; leave it out");
    assert!(!folder.path().join("out.pcap").exists());
    run(&[&what[..], &["--unique", "--loop", "2", "--json"]].concat()).good();
}

#[test]
fn a_written_file_has_the_times_of_the_timetable() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    const MS: u64 = 1_000_000;
    recording(Path::new(&path("three.pcap")), 3, 4 * MS as i64);
    let begin = packets(Path::new(&path("three.pcap")))[0].0;
    for (sentence, flags, times_ms) in [
        ("as recorded", &[][..], &[0, 4, 8][..]),
        ("twice", &["--loop", "2"], &[0, 4, 8, 12, 16, 20]),
        ("thrice", &["--loop", "3", "--top-speed"], &[0, 4, 8, 12, 16, 20, 24, 28, 32]),
        ("faster", &["--speed", "2", "--loop", "2"], &[0, 2, 4, 6, 8, 10]),
        ("at a rate", &["--rate", "100pps", "--loop", "2"], &[0, 10, 20, 30, 40, 50]),
        ("shortened", &["--max-gap", "1ms", "--loop", "2"], &[0, 1, 2, 3, 4, 5]),
        ("at top speed", &["--top-speed"], &[0, 4, 8]),
    ] {
        let to = format!("pcap:{}", path("out.pcapng"));
        run(&[&["replay", &path("three.pcap"), &to, "--json"], flags].concat()).good();
        let written = packets(Path::new(&path("out.pcapng")));
        let times: Vec<_> = written.iter().map(|(ns, _)| ns - begin).collect();
        assert_eq!(times, times_ms.iter().map(|ms| ms * MS).collect::<Vec<_>>(), "{sentence}");
    }
}

#[test]
fn a_pipe_is_read_once() {
    for more in [["--loop", "2"], ["--threads", "2"]] {
        refused(&[&["replay", "-", "null:"], &more[..]].concat(), "a pipe can be read but once");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recorded.pcap");
    recording(&file, 100, 1000);
    let mut replay = sluice(&["replay", "-", "null:", "--json"]);
    let mut child = replay.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut pipe, &std::fs::read(&file).unwrap()).unwrap();
    drop(pipe);
    let ended: Ended = crate::child::end(child).into();
    assert_eq!(ended.good()["attempted"], 100);
}

#[test]
fn replay_obeys_a_filter_and_a_count_and_reports_a_broken_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recorded.pcap");
    recording(&file, 100, 1000);
    let path = file.to_str().unwrap();
    let short = packets(&file).iter().filter(|(_, bytes)| bytes.len() == 60).count();
    for (sentence, more, count) in [
        ("a filter", &["-f", "less 60"][..], short),
        ("a count", &["--count", "7"], 7),
        ("a count beyond one round", &["--count", "150", "--loop", "0"], 150),
    ] {
        let replayed = run(&[&["replay", path, "null:", "--top-speed", "--json"], more].concat());
        assert_eq!(replayed.good()["attempted"], count, "{sentence}");
    }
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 10]).unwrap();
    let broken = run(&["replay", path, "null:", "--top-speed", "--json"]);
    assert_eq!(broken.status, Some(1), "{broken:?}");
    assert_eq!(broken.report()["attempted"], 99, "what came before is sent: {broken:?}");
    assert!(broken.err.contains("recorded.pcap"), "{}", broken.err);
}
