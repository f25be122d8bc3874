//! `capture --keep` writes the packets in memory when a signal or a packet asks for them, and only then.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde_json::Value;
use sluicegate::link::Lab;

use crate::support::*;

/// The filter of frame `number`: the number is behind the Ethernet header.
fn frame_number(number: u32) -> String {
    format!("ether[14:4] = {number}")
}

/// A capture of numbered frames that keeps them.
fn keeping(netns: &str, file: &Path, more: &[&str]) -> Running {
    let file = file.to_str().unwrap();
    let arguments = ["capture", "right0?blocks=64", "--netns", netns, "-f", NUMBERED, "-w", file];
    Running::start(&[&arguments, more, &["--json"]].concat())
}

/// Replays numbered frames and waits until the capture has counted all of them.
fn send(lab: &Lab, folder: &Path, numbers: std::ops::Range<u32>, pps: u32) {
    let sent = folder.join("sent.pcap");
    numbered(&sent, numbers, 0, 1000);
    replay(lab, "left", "left0", &sent, pps);
}

/// Waits until all packets are in memory or in files.
fn has_kept(capture: &mut Running, all: u64) {
    eventually("all packets are in memory", || {
        capture.signal(Signal::SIGUSR1);
        let line = capture.says();
        let Ok(report) = serde_json::from_str::<Value>(&line) else { return false };
        let written = report["ledger"]["out"].as_u64().unwrap();
        let unsaved = &report["ledger"]["omitted"]["unsaved"];
        unsaved.as_u64().unwrap_or(0) + written == all
    });
}

/// Waits until a file has been written, and returns the numbers of its frames.
fn written(capture: &mut Running, file: &Path) -> Vec<u32> {
    let begin = format!("sluice: {}: ", file.display());
    while !capture.says().starts_with(&begin) {}
    numbers(file)
}

/// The report of a capture at its end, whose ledger closes.
fn stopped(capture: Running, all: u64, written: u64) -> Value {
    let report = capture.stop().good();
    assert_eq!((&report["ledger"]["in"], &report["ledger"]["out"]), (&all.into(), &written.into()));
    let unsaved =
        report["ledger"].get("omitted").map_or(0, |_| entry(&report, "omitted", "unsaved"));
    assert_eq!(unsaved, all - written, "{report}");
    report
}

#[test]
fn each_signal_writes_what_came_since_the_last() {
    let Some(lab) = lab_with(&["tcpreplay", "tshark", "tcpdump"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let path = |name: &str| folder.path().join(name);
    let program = path("program");
    std::fs::write(&program, format!("#!/bin/sh\necho \"$1\" >> {}\n", path("log").display()))
        .unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, executable).unwrap();
    for extension in ["pcapng", "pcap.zst"] {
        let file = |number| path(&format!("a-0000{number}.{extension}"));
        let more = ["--keep", "1h", "-z", program.to_str().unwrap()];
        let mut capture = keeping(&netns, &path(&format!("a.{extension}")), &more);
        send(&lab, folder.path(), 0..20_000, 40_000);
        has_kept(&mut capture, 20_000);
        assert!(!file(1).exists(), "nothing is written before the signal");
        capture.signal(Signal::SIGUSR2);
        let first = written(&mut capture, &file(1));
        send(&lab, folder.path(), 20_000..20_500, 40_000);
        has_kept(&mut capture, 20_500);
        capture.signal(Signal::SIGUSR2);
        let second = written(&mut capture, &file(2));
        send(&lab, folder.path(), 20_500..20_600, 40_000);
        let report = stopped(capture, 20_600, 20_500);
        assert!(first.into_iter().eq(0..20_000), "{extension}");
        assert!(second.into_iter().eq(20_000..20_500), "{extension}");
        assert_eq!(report["files"]["count"], 2, "{report}");
        assert_eq!(report["memory"]["packets"], 100, "{report}");
        assert!(!file(3).exists(), "the end writes nothing");
        let plain = unpacked(&file(2));
        assert_eq!(tshark(&plain, &[]).len(), 500);
        let lines = tool(&["tcpdump", "-nntr"], &plain).out;
        assert_eq!(lines.lines().filter(|line| !line.starts_with('\t')).count(), 500);
        let log = std::fs::read_to_string(path("log")).unwrap();
        let expected: String =
            [file(1), file(2)].iter().map(|it| format!("{}\n", it.display())).collect();
        assert!(log.ends_with(&expected), "{log}");
    }
}

#[test]
fn a_packet_that_matches_writes_those_around_it() {
    let Some(lab) = lab_with(&["tcpreplay"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let file = folder.path().join("a.pcapng");
    let trigger = frame_number(15_000);
    let more = ["--keep", "1h", "--keep-after", "50ms", "--trigger", &trigger];
    let mut capture = keeping(&netns, &file, &more);
    send(&lab, folder.path(), 0..20_000, 20_000);
    let first = folder.path().join("a-00001.pcapng");
    let got = written(&mut capture, &first);
    let times: Vec<u64> = packets(&first).into_iter().map(|(time_ns, _)| time_ns).collect();
    let end_ns = times[15_000] + 50_000_000;
    assert!(got.iter().copied().eq(0..got.len() as u32), "all from the first on");
    assert!(times.iter().all(|&time_ns| time_ns <= end_ns), "none is later");
    has_kept(&mut capture, 20_000);
    capture.signal(Signal::SIGUSR2);
    let rest = written(&mut capture, &folder.path().join("a-00002.pcapng"));
    assert!(rest.into_iter().eq(got.len() as u32..20_000), "the packets after that are still kept");
    stopped(capture, 20_000, 20_000);
}

#[test]
fn the_queues_of_a_port_share_the_memory_and_the_order() {
    let Some(lab) = lab_with(&["tcpreplay"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let file = folder.path().join("a.pcapng");
    let mut arguments = vec!["capture", "right0?fanout=lb", "--threads", "2", "--netns", &netns];
    arguments.extend(["-f", NUMBERED, "-w", file.to_str().unwrap(), "--keep", "1h", "--json"]);
    // Packets go to both threads in turn; no pause of this machine is longer than the window.
    arguments.extend(["--reorder-window", "2s"]);
    let mut capture = Running::start(&arguments);
    send(&lab, folder.path(), 0..2000, 2000);
    has_kept(&mut capture, 2000);
    capture.signal(Signal::SIGUSR2);
    let got = written(&mut capture, &folder.path().join("a-00001.pcapng"));
    assert!(got.into_iter().eq(0..2000));
    stopped(capture, 2000, 2000);
}

#[test]
fn memory_bounds_what_is_kept() {
    let Some(lab) = lab_with(&["tcpreplay"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let file = folder.path().join("a.pcapng");
    let mut capture = keeping(&netns, &file, &["--keep", "1h", "--keep-bytes", "1M"]);
    send(&lab, folder.path(), 0..20_000, 40_000);
    has_kept(&mut capture, 20_000);
    // 20,000 records of 92 to 156 bytes are more than 2 MB.
    capture.signal(Signal::SIGUSR2);
    let got = written(&mut capture, &folder.path().join("a-00001.pcapng"));
    let size = std::fs::metadata(folder.path().join("a-00001.pcapng")).unwrap().len();
    assert!((600_000..1_060_000).contains(&size), "{size} bytes");
    assert!(got.iter().copied().eq(20_000 - got.len() as u32..20_000), "the newest");
    let report = stopped(capture, 20_000, got.len() as u64);
    assert_eq!(report["memory"]["short"], true, "{report}");
}

/// Captures from a file of 5000 frames, one per 10 ms.
fn from_file(folder: &Path, more: &[&str]) -> (Value, Vec<PathBuf>) {
    let (input, output) = (folder.join("in.pcap"), folder.join("out.pcap"));
    numbered(&input, 0..5000, 1_700_000_000_000_000_000, 10_000_000);
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    let arguments = ["capture", "-r", input, "-w", output, "--json", "--keep", "1s"];
    let report = run(&[&arguments, more].concat()).good();
    let count = report["files"]["count"].as_u64().unwrap();
    let files = (1..=count).map(|number| folder.join(format!("out-0000{number}.pcap")));
    (report, files.collect())
}

#[test]
fn a_file_that_is_read_gives_the_exact_times_around_each_event() {
    for (sentence, after, trigger, expected) in [
        ("one event", "0", "= 500", &[(400, 500)][..]),
        ("with the time after", "100ms", "= 500", &[(400, 510)]),
        (
            "two events apart",
            "100ms",
            "& 0xff = 250 and ether[14:4] < 800",
            &[(150, 260), (406, 516), (662, 772)],
        ),
        (
            "an event soon after a file",
            "100ms",
            "& 0xf = 0xf and ether[14:4] < 33",
            &[(0, 25), (26, 125)],
        ),
        ("the end comes before the time after", "100ms", "= 4995", &[(4895, 4999)]),
        ("no event", "0", "= 50000", &[]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let trigger = format!("ether[14:4] {trigger}");
        let more = ["--trigger", &trigger, "--keep-after", after];
        let (report, files) = from_file(folder.path(), &more);
        let got: Vec<Vec<u32>> = files.iter().map(|file| numbers(file)).collect();
        let expected: Vec<Vec<u32>> =
            expected.iter().map(|&(first, last)| (first..=last).collect()).collect();
        assert_eq!(got, expected, "{sentence}");
        let written: usize = expected.iter().map(Vec::len).sum();
        assert_eq!(report["ledger"]["out"], written, "{sentence}: {report}");
        assert_eq!(entry(&report, "omitted", "unsaved"), 5000 - written as u64, "{sentence}");
    }
    let folder = tempfile::tempdir().unwrap();
    let every = ["--trigger", "ether[14:4] >= 0", "--max-files", "3"];
    let (report, files) = from_file(folder.path(), &every);
    assert_eq!(files.len(), 3, "{report}");
    let all = files.iter().flat_map(|file| numbers(file));
    assert!(all.eq(0..201), "no packet is in two files, or in none");
}

#[test]
fn what_makes_no_sense_with_keep_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [input, file] = ["in.pcap", "a.pcapng"].map(|name| folder.path().join(name));
    numbered(&input, 0..10, 0, 1000);
    let [input, file] = [&input, &file].map(|path| path.to_str().unwrap());
    for (flags, remedy) in [
        (&["-w", "-", "--keep", "3s"][..], "-w trace.pcapng"),
        (&["-w", file, "--keep", "3s", "-C", "1"], "remove --rotate-size"),
        (&["-w", file, "--keep", "3s", "-G", "1"], "remove --rotate-size"),
        (&["-w", file, "--keep", "3s", "--rotate-count", "1"], "--rotate-count"),
        (&["-w", file, "--keep", "0"], "--keep 30s"),
        (&["-w", file, "--keep", "3s", "--keep-bytes", "1000"], "raise it"),
        (&["--keep", "3s"], "--write <FILE>"),
        (&["-w", file, "--trigger", "arp"], "--keep <TIME>"),
        (&["-w", file, "--keep", "3s", "--trigger", "no such"], "no such"),
    ] {
        refused(&[&["capture", input], flags].concat(), remedy);
        assert!(!Path::new(file).exists(), "{flags:?}");
    }
    for port in ["xdp:lo,timestamp=off", "null:"] {
        let arguments = ["capture", port, "-w", file, "--keep", "3s", "--count", "9"];
        refused(&arguments, "--keep needs the packets' times");
        assert!(!Path::new(file).exists(), "{port}");
    }
}
