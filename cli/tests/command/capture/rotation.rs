//! Rotations: which files remain, and when the run ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::*;

/// The names in a folder that begin with `ring`.
fn ring(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("ring")).collect();
    names.sort();
    names
}

#[test]
fn a_ring_deletes_what_the_program_left_after_it_has_run() {
    if !have(&["gzip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let script = |name: &str, text: &str| {
        fs::write(path(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(path(name), fs::Permissions::from_mode(0o755)).unwrap();
        path(name)
    };
    numbered(Path::new(&path("in.pcap")), 0..200, 1_000_000_000, 1000);
    fs::create_dir(path("elsewhere")).unwrap();
    let (input, output) = (path("in.pcap"), path("ring.pcap"));
    let log = path("log");
    let slow = script("slow", &format!("sleep 0.02; cksum \"$1\" >>{log}; gzip \"$1\""));
    let write = "echo seen >\"$1.txt\"; echo seen >\"$1.md\"";
    let append = "if [ -e \"$1.old\" ]; then echo seen >>\"$1.old\"; fi";
    let notes = script("notes", &format!("{write}; {append}"));
    let moves = script("moves", &format!("mv \"$1\" {}", path("elsewhere")));
    for (program, deleted, left) in [
        ("gzip", 17, &[".gz"][..]),
        (&*slow, 17, &[".gz"]),
        (&*notes, 17, &["", ".md", ".txt"]),
        ("true", 17, &[""]),
        (&*moves, 0, &[]),
    ] {
        for name in ring(folder.path()) {
            fs::remove_file(path(&name)).unwrap();
        }
        // An older file with such a name is not the program's, even if it changes.
        fs::write(path("ring-00001.pcap.old"), "").unwrap();
        let arguments = ["capture", &input, "-w", &output, "--rotate-count", "10", "--files", "3"];
        let ended = run(&[&arguments[..], &["--json", "-z", program]].concat());
        let report = ended.good();
        assert_eq!(ended.err, "", "{program}");
        let files = &report["files"];
        assert_eq!(files["count"], 20, "{program}: {report}");
        let number = |name: &str| files[name].as_u64().unwrap_or(0);
        if deleted > 0 {
            assert_eq!(number("deleted") + number("to_delete"), deleted, "{program}: {report}");
        } else {
            assert_eq!(number("deleted"), 0, "{program}: {report}");
        }
        let in_deleted = report["ledger"]["notes"]["in_deleted_files"].as_u64().unwrap_or(0);
        assert_eq!(in_deleted, number("deleted") * 10, "{program}: {report}");
        let numbers = 18..=20;
        let mut expected = vec!["ring-00001.pcap.old".to_owned()];
        expected.extend(numbers.flat_map(|number| {
            left.iter().map(move |extension| format!("ring-{number:05}.pcap{extension}"))
        }));
        assert_eq!(ring(folder.path()), expected, "{program}");
    }
    let seen = fs::read_to_string(log).unwrap();
    assert_eq!(seen.lines().count(), 20, "each file existed when the program saw it: {seen}");
    assert_eq!(fs::read_dir(path("elsewhere")).unwrap().count(), 20);
}

#[test]
fn a_number_of_files_limits_a_rotation_by_time_and_makes_a_ring_of_one_by_size() {
    if !have(&["tcpdump"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // 20 s with 1 packet in each 10 ms; 1000 bytes of payload each.
    let frames = (0..2000_u32).map(|number| {
        let frame = [frame(number), vec![0; 1000]].concat();
        (1_000_000_000 + u64::from(number) * 10_000_000, frame)
    });
    timed(Path::new(&path("in.pcap")), frames);
    let read = |command: &mut Command, flags: &[&str], name: &str| {
        let ended = ended(command.args(["-r", &path("in.pcap"), "-w", &path(name)]).args(flags));
        assert_eq!(ended.status, Some(0), "{flags:?}: {ended:?}");
        let counts = ring(folder.path()).into_iter().map(|name| {
            let count = packets(Path::new(&path(&name))).len();
            fs::remove_file(path(&name)).unwrap();
            count
        });
        counts.collect::<Vec<usize>>()
    };
    let ours = |flags: &[&str], name| read(&mut sluice(&["capture"]), flags, name);
    assert_eq!(ours(&["-G", "2", "-W", "3"], "ring-%S.pcap"), [200; 3], "it ends");
    assert_eq!(ours(&["-G", "2", "--files", "3"], "ring-%S.pcap"), [200; 3], "the newest");
    // tcpdump's rings by size overwrite the oldest file; a file of its holds a bit more than the limit.
    let mut tcpdump = Command::new("tcpdump");
    if is_root() {
        tcpdump.args(["-Z", "root"]);
    }
    let theirs = read(&mut tcpdump, &["-C", "1", "-W", "1"], "ring.pcap");
    assert_eq!((theirs.len(), ours(&["-C", "1", "-W", "1"], "ring.pcap").len()), (1, 1));
    let both = ["capture", "-r", &path("in.pcap"), "-w", &path("ring.pcap"), "-G", "1", "-C", "1"];
    refused(&[&both[..], &["-W", "3"]].concat(), "--max-files 3");
    assert_eq!(ring(folder.path()), [""; 0], "nothing is written");
}

#[test]
fn the_run_ends_with_the_period_of_the_last_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    numbered(Path::new(&path("in.pcap")), 0..50_000, 1_000_000_000, 1000);
    let input = format!("pcap:{}?slots=64", path("in.pcap"));
    for (name, period, files) in [
        ("ring.pcap", "7001us", "3"),
        ("ring.pcapng.gz", "12345us", "2"),
        ("ring.pcapng", "10ms", "1"),
    ] {
        let output = path(name);
        let arguments = ["capture", &input, "-w", &output, "--json", "--rotate-time", period];
        let report = run(&[&arguments[..], &["--max-files", files]].concat()).good();
        let micros: u64 = period.trim_end_matches("us").replace("ms", "000").parse().unwrap();
        let expected = micros * files.parse::<u64>().unwrap();
        assert_eq!(report["ledger"]["out"], expected, "{period}: {report}");
        // The file is read 64 packets at a time; without an early end a chunk of 128 KiB would be full.
        let omitted = report["ledger"]["omitted"]["after_last_file"].as_u64().unwrap();
        assert!((1..=64).contains(&omitted), "{period}: {report}");
    }
}
