//! Every way a capture can end leaves a file that can be read and nothing else behind.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use sluicegate::link::Lab;
use tempfile::TempDir;

use crate::support::*;

fn start(lab: &Lab, path: &Path, more: &[&str]) -> Running {
    let netns = lab.netns("right");
    let common = ["capture", "right0", "--netns", &netns, "--json", "-w", path.to_str().unwrap()];
    Running::start(&[&common[..], more].concat())
}

fn pings(lab: &Lab) -> Running {
    background(lab, "left", &["ping", "-q", "-i", "0.01", "198.18.0.2"])
}

fn grown(path: &Path, bytes: u64) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > bytes)
}

/// The interface's settings as `ip` prints them, without counters.
fn settings(lab: &Lab) -> String {
    on(lab, "right", &["ip", "-d", "link", "show", "right0"]).out
}

#[test]
fn signals_end_it_with_a_whole_file() {
    let Some(lab) = lab_with(&["ping", "tshark", "capinfos", "ip"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let before = settings(&lab);
    assert!(before.contains("promiscuity 0"), "{before}");
    let _pings = pings(&lab);
    for (signal, name) in [
        (Signal::SIGINT, "int.pcapng"),
        (Signal::SIGTERM, "term.pcap"),
        (Signal::SIGINT, "int.pcapng.zst"),
        (Signal::SIGTERM, "term.pcapng.gz"),
    ] {
        let path = folder.path().join(name);
        let capture = start(&lab, &path, &[]);
        let come = || received(&lab, "right", "right0");
        let enough = come() + 11;
        eventually("pings come", || come() >= enough);
        assert!(settings(&lab).contains("promiscuity 1"), "{name}");
        capture.signal(signal);
        let report = capture.end().good();
        assert!(report["packets"].as_u64() > Some(10), "{name}: {report}");
        let read = packets(&path).len() as u64;
        assert_eq!(report["packets"].as_u64(), Some(read), "{name}: {report}");
        assert_eq!(settings(&lab), before, "{name}: settings are as before");
    }
    let path = folder.path().join("killed.pcapng");
    let capture = start(&lab, &path, &[]);
    eventually("some packets are in the file", || grown(&path, 4000));
    capture.signal(Signal::SIGKILL);
    assert_eq!(capture.end().signal, Some(9));
    assert_eq!(settings(&lab), before, "after kill -9 settings are as before");
    let told = tool(&["capinfos", "-Mc"], &path);
    assert_eq!(told.status, Some(0), "after kill -9: {}", told.err);
    let read = run(&["count", &format!("pcap:{}", path.display()), "--json"]).good();
    assert!(read["packets"].as_u64() >= Some(20), "{read}");
    assert_eq!(read["packets"].as_u64(), Some(tshark(&path, &[]).len() as u64));
}

/// A lab, a folder, and in it a file of five packets to be sent there.
fn five_to_send() -> Option<(Lab, TempDir, PathBuf)> {
    if !have(&["tcpreplay"]) {
        return None;
    }
    let lab = lab()?;
    let folder = tempfile::tempdir().unwrap();
    let sent = folder.path().join("sent.pcap");
    numbered(&sent, 0..5, 0, 1000);
    Some((lab, folder, sent))
}

#[test]
fn packets_in_an_open_block_are_captured_at_a_signal() {
    let Some((lab, folder, sent)) = five_to_send() else { return };
    let netns = lab.netns("right");
    let path = folder.path().join("kept.pcap");
    let to_file = ["-w", path.to_str().unwrap()];
    for (port, more, stops, kept, sentence) in [
        ("right0?block_timeout=200ms", &[][..], true, 5, "a signal"),
        ("right0?block_timeout=200ms", &to_file, true, 5, "a signal, into a file"),
        ("right0?block_timeout=1s", &to_file, true, 5, "a signal, long before the block's time"),
        (
            "right0?block_timeout=1s",
            &["--threads", "2"],
            true,
            5,
            "two queues, one without a packet",
        ),
        ("right0?block_timeout=200ms", &["--count", "5"], false, 5, "all that were wanted"),
        ("right0?block_timeout=200ms", &["--count", "3"], false, 3, "more than were wanted"),
    ] {
        let common = ["capture", port, "--netns", &netns, "-f", NUMBERED, "--json"];
        let capture = Running::start(&[&common[..], more].concat());
        replay(&lab, "left", "left0", &sent, 100_000);
        let ended = if stops { capture.stop() } else { capture.end() };
        let report = ended.good();
        assert_eq!(report["packets"], kept, "{sentence}: {report}");
        match more.contains(&"-w") {
            true => assert!(numbers(&path).into_iter().eq(0..kept), "{sentence}"),
            false => assert_eq!(ended.out.lines().count(), kept as usize, "{sentence}"),
        }
    }
}

#[test]
fn packets_in_an_open_block_are_captured_after_the_duration() {
    let Some((lab, _folder, sent)) = five_to_send() else { return };
    let netns = lab.netns("right");
    // On a busy machine the packets may come after the end: try again with a longer duration.
    for seconds in [2, 10, 50] {
        let before = Instant::now();
        // The block's own time comes later.
        let port = format!("right0?block_timeout={}s", seconds + 1);
        let duration = format!("{seconds}s");
        let arguments = ["-f", NUMBERED, "--json", "--duration", &duration];
        let common = ["capture", &port, "--netns", &netns];
        let capture = Running::start(&[&common[..], &arguments].concat());
        replay(&lab, "left", "left0", &sent, 100_000);
        // The capture began after `before`.
        let in_time = before.elapsed() < Duration::from_secs(seconds);
        let ended = capture.end();
        if in_time {
            assert_eq!(ended.good()["packets"], 5, "{}", ended.err);
            assert_eq!(ended.out.lines().count(), 5, "{}", ended.out);
            return;
        }
    }
    panic!("to send five packets has taken almost a minute");
}

#[test]
fn a_signal_after_the_end_does_not_keep_files_from_being_completed() {
    let folder = tempfile::tempdir().unwrap();
    let sources = ["1.pcap", "2.pcap"].map(|name| folder.path().join(name));
    sources.iter().for_each(|path| numbered(path, 0..20_000, 0, 1000));
    let [one, two] = sources.map(|path| format!("pcap:{}", path.display()));
    for (signals, status) in [
        (&[Signal::SIGTERM][..], 0),
        (&[Signal::SIGTERM, Signal::SIGINT][..], 130),
        (&[Signal::SIGINT, Signal::SIGINT][..], 130),
    ] {
        let arguments = ["capture", &one, &two, "-w", "-", "--json"];
        let mut capture = Running::unawaited(&mut sluice(&arguments));
        // Packets in the output show that both workers have begun. More than a pipe holds is to be written.
        capture.has_written(4096);
        eventually("the run is over", || !capture.has_workers());
        let waits = |capture: &Running| {
            eventually("it waits for its reader", || capture.has_sleeping("sluice"));
        };
        for signal in signals {
            waits(&capture);
            // The kernel keeps only one of two pending signals of a kind.
            eventually("the one before it is taken", || !capture.has_pending());
            capture.signal(*signal);
        }
        if status != 0 {
            // Sent again, because a signal that follows the first at once repeats its request.
            eventually("it ends without its reader", || {
                capture.signal(Signal::SIGINT);
                capture.has_ended()
            });
            assert_eq!(capture.end().status, Some(status), "{signals:?}");
            continue;
        }
        eventually("the last one is taken", || !capture.has_pending());
        waits(&capture);
        // Its output is read now, so it writes all.
        let ended = capture.end();
        assert_eq!(ended.good()["ledger"]["out"], 40_000, "{}", ended.err);
    }
}

#[test]
fn an_interface_that_goes_away_ends_it_and_one_that_comes_back_does_not() {
    let Some(lab) = lab_with(&["ping", "ip", "capinfos"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("removed.pcapng");
    let _pings = pings(&lab);
    let mut capture = start(&lab, &path, &["--threads", "2"]);
    eventually("some packets are in the file", || grown(&path, 2000));
    let mut told = String::new();
    for (state, says) in [("down", "right0 is down"), ("up", "right0 is up")] {
        on(&lab, "right", &["ip", "link", "set", "right0", state]);
        while !told.contains(says) {
            told += &capture.says();
        }
    }
    let before = std::fs::metadata(&path).unwrap().len();
    eventually("it goes on", || grown(&path, before + 2000));
    on(&lab, "right", &["ip", "link", "delete", "right0"]);
    let ended = capture.end();
    assert_eq!(ended.status, Some(1), "{ended:?}");
    let report = ended.report();
    closes(&report);
    assert!(report["ledger"]["notes"]["interface_down_events"].as_u64() >= Some(1), "{report}");
    told += &ended.err;
    let said = |part: &str| told.lines().filter(|line| line.contains(part)).count();
    // A removed interface goes down first.
    assert!((1..=2).contains(&said("right0 is down")), "once each time: {told}");
    assert_eq!(said("right0 is up"), 1, "{told}");
    assert_eq!(said("no longer exists"), 1, "{told}");
    assert_eq!(report["packets"].as_u64(), Some(packets(&path).len() as u64), "{report}");
}

#[test]
fn an_interface_that_is_down_at_the_start_is_reported() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    on(&lab, "right", &["ip", "link", "set", "right0", "down"]);
    for port in [
        "packet:right0",
        "mirror:right0",
        "xdp:right0",
        "xdp:right0?method=af_xdp",
        "xdp:right0?action=drop",
    ] {
        let mut count = Running::start(&["count", port, "--netns", &netns, "--json"]);
        let mut said = count.says();
        while said.contains("in place of") {
            said = count.says();
        }
        assert_eq!(said, "sluice: right0 is down; waiting for it to come up\n", "{port}");
        let report = count.stop().good();
        assert_eq!(report["ledger"]["notes"]["interface_down_events"], 1, "{port}: {report}");
    }
}

#[test]
fn a_full_disk_ends_it_and_keeps_the_packets_that_fit() {
    let Some(lab) = lab_with(&["trafgen", "unshare", "mount", "capinfos"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let packets_file = folder.path().join("traffic.cfg");
    std::fs::write(&packets_file, "{ 2,0,198,18,0,2, 2,0,198,18,0,1, 0x88,0xb5, fill(1, 1000) }\n")
        .unwrap();
    for name in ["full.pcapng", "full.pcap", "full.pcapng.lz4"] {
        let disk = folder.path().join("disk");
        let saved = folder.path().join(name);
        std::fs::create_dir_all(&disk).unwrap();
        // Only this shell and its children see the disk; it ends with them.
        let script = "mount -t tmpfs -o size=256k tmpfs \"$0\" || exit 77
            \"$1\" capture right0 --netns \"$2\" --json -w \"$0/$3\"
            status=$?; cp \"$0/$3\" \"$4\"; exit $status";
        let mut shell = Command::new("unshare");
        shell.args(["-m", "sh", "-c", script]).arg(&disk);
        shell.args([env!("CARGO_BIN_EXE_sluice"), &netns, name]).arg(&saved);
        shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let shell = Running::unawaited(&mut shell);
        // The packets compress well, so more of them are needed to fill the disk.
        let pace = std::thread::sleep;
        pace(Duration::from_millis(300));
        let flood = ["trafgen", "-i", packets_file.to_str().unwrap(), "-o", "left0", "--cpus", "1"];
        let flood = background(&lab, "left", &flood);
        let ended = shell.end();
        drop(flood);
        if ended.status == Some(77) {
            return eprintln!("skipped: needs to mount a tmpfs; get it by sudo: {}", ended.err);
        }
        assert_eq!(ended.status, Some(1), "{name}: {ended:?}");
        assert!(ended.err.contains("No space left on device"), "{name}: {}", ended.err);
        assert!(ended.err.contains("free some space"), "{name}: {}", ended.err);
        let report = ended.report();
        closes(&report);
        assert!(report["ledger"]["losses"]["not_written"].as_u64() > Some(0), "{name}: {report}");
        let through = match name.ends_with("lz4") {
            true => run(&["count", &format!("pcap:{}", saved.display()), "--json"]).report(),
            false => serde_json::json!({ "packets": packets(&saved).len() }),
        };
        assert_eq!(through["packets"], report["ledger"]["out"], "{name}: {report}");
        let told = tool(&["capinfos", "-Mc"], &saved);
        assert!(name.ends_with("lz4") || told.status == Some(0), "{name}: {}", told.err);
    }
}

#[test]
fn a_result_that_a_full_disk_has_no_room_for_is_printed() {
    let report = ["capture", "null:", "--count", "9", "--json", "--summary", "/dev/full"];
    let ended = run(&report);
    assert_eq!((ended.status, &ended.report()["packets"]), (Some(1), &9.into()), "{ended:?}");
    assert!(ended.err.contains("write /dev/full: No space left"), "{ended:?}");
}

#[test]
fn a_file_that_is_removed_while_it_is_written_is_named_once() {
    let Some(lab) = lab_with(&["tcpreplay"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let (sent, kept) = (folder.path().join("sent.pcap"), folder.path().join("kept"));
    numbered(&sent, 0..100, 0, 1000);
    std::fs::create_dir(&kept).unwrap();
    let path = kept.join("removed.pcapng");
    for more in [&[][..], &["--rotate-count", "20"]] {
        let capture = ["capture", "right0", "--netns", &netns, "--json", "-f", NUMBERED];
        let to = ["-w", path.to_str().unwrap()];
        let capture = Running::start(&[&capture[..], &to, more].concat());
        let files = std::fs::read_dir(&kept).unwrap().map(|file| file.unwrap().path());
        files.for_each(|file| std::fs::remove_file(file).unwrap());
        replay(&lab, "left", "left0", &sent, 10_000);
        let ended = capture.stop();
        let report = ended.good();
        let notice = report["notices"][0].as_str().unwrap();
        assert!(notice.starts_with(path.with_extension("").to_str().unwrap()), "{report}");
        assert!(notice.contains("was removed before it was complete"), "{report}");
        assert_eq!(ended.err.matches("was removed").count(), 1, "{ended:?}");
    }
}

#[test]
fn a_file_that_never_had_a_name_is_not_reported_as_removed() {
    let (folder, sluice) = (tempfile::tempdir().unwrap(), env!("CARGO_BIN_EXE_sluice"));
    for output in ["/dev/fd/3", "-"] {
        let to = if output == "-" { " >&3" } else { "" };
        let script = format!(
            "exec 3>file && rm file && exec {sluice} capture null: --count 9 --json -w {output}{to}"
        );
        let mut command = Command::new("sh");
        let ended =
            Ended::from(command.args(["-c", &script]).current_dir(&folder).output().unwrap());
        let report = ended.good();
        assert_eq!(report["ledger"]["out"], 9, "{report}");
        assert!(!ended.err.contains("was removed"), "{output}: {ended:?}");
        assert!(report["notices"].is_null(), "{output}: {report}");
    }
}

#[test]
fn a_reader_that_exits_is_the_reason_for_what_it_did_not_read() {
    let capture = ["capture", "null:?size=1500", "--count", "100k", "-w", "-"];
    let mut capture = Running::unawaited(&mut sluice(&capture));
    capture.has_written(1000);
    drop(capture.child().stdout.take());
    let ended = capture.end();
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.err.contains("the reader of the pipe exited before the end"), "{ended:?}");
    assert!(!ended.err.contains("see the error"), "{ended:?}");
}

#[test]
fn a_rotation_by_size_time_and_number_keeps_the_newest_files_whole() {
    let Some(lab) = lab_with(&["tcpreplay", "capinfos"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let parts = [0, 1, 2, 3, 4].map(|part| {
        let sent = folder.path().join(format!("{part}.pcap"));
        numbered(&sent, part * 4000..(part + 1) * 4000, 0, 1000);
        sent
    });
    for (extension, limits, apart) in [
        ("pcapng", ["--rotate-size", "100KiB", "--rotate-time", "10s"], Duration::ZERO),
        ("pcap.zst", ["--rotate-size", "100KiB", "--rotate-time", "10s"], Duration::ZERO),
        ("pcap.gz", ["--rotate-count", "1500", "--rotate-time", "10s"], Duration::ZERO),
        // Five periods that have packets, at least.
        ("pcap", ["--rotate-size", "100MiB", "--rotate-time", "200ms"], Duration::from_millis(200)),
    ] {
        let kept = folder.path().join(extension);
        std::fs::create_dir(&kept).unwrap();
        let pattern = kept.join(format!("t-%Y%m%d-%H%M%S.{extension}"));
        let mut more = vec!["-f", NUMBERED, "--files", "4"];
        more.extend(limits);
        let capture = start(&lab, &pattern, &more);
        for part in &parts {
            replay(&lab, "left", "left0", part, 20_000);
            std::thread::sleep(apart);
        }
        let report = capture.stop().good();
        assert_eq!(report["packets"], 20_000, "{extension}: {report}");
        let mut files: Vec<_> =
            std::fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 4, "{extension}: {files:?}");
        let name = files[0].file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("t-2") && !name.contains('%'), "{name}");
        files.sort_by_cached_key(|file| packets(file).first().map(|(time, _)| *time));
        let numbers: Vec<u32> = files.iter().flat_map(|file| numbers(file)).collect();
        let deleted = report["ledger"]["notes"]["in_deleted_files"].as_u64().unwrap() as u32;
        assert!(report["files"]["deleted"].as_u64() > Some(0), "{report}");
        assert!(numbers.into_iter().eq(deleted..20_000), "{extension}: the newest, without a gap");
    }
}
