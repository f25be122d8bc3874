//! The command's messages: errors with their remedies, reports, lists.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::*;

#[test]
fn errors_name_the_cause_and_the_remedy() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let rows: &[(&str, &[&str], i32, &[&str])] = &[
        (
            "a wrong filter is pointed at",
            &["right0", "-f", "udp prot 53"],
            2,
            &["syntax", "\n    ^"],
        ),
        ("another interface is named", &["right9"], 2, &["right9", "right0", "lo"]),
        ("an option nobody knows", &["right0?blcoks=2"], 2, &["blcoks=2", "blocks="]),
        ("a value out of range", &["right0?snaplen=0"], 2, &["snaplen=0", "262144"]),
        ("no such folder", &["right0", "-w", "/no/such/folder/x.pcap"], 2, &["/no/such", "create"]),
        (
            "a folder in place of a file",
            &["right0", "-w", "/dev"],
            2,
            &["directory", "name a file"],
        ),
        ("two want standard output", &["right0", "-w", "-", "--print"], 2, &["--print"]),
        (
            "a compression nobody writes",
            &["right0", "-w", "x.pcap.xz"],
            2,
            &[".zst", ".lz4", ".gz"],
        ),
        (
            "a level of zstd for gzip",
            &["right0", "-w", "x.pcap.gz", "--compress-level", "10"],
            2,
            &["gzip has levels 1 to 9"],
        ),
        ("a shape without a file", &["right0", "--rotate-size", "1M"], 2, &["-w FILE"]),
        ("nothing to bring to a disk", &["right0", "--sync"], 2, &["-w FILE"]),
        ("no thread", &["right0", "--threads", "0"], 2, &["--threads"]),
        ("no packet", &["right0", "--count", "0"], 2, &["--count", "at least 1"]),
        ("no such CPU", &["right0", "--cpus", "999"], 2, &["CPU 999", "online are 0"]),
        ("a source without end", &["null:"], 2, &["--count"]),
    ];
    for (sentence, arguments, status, parts) in rows {
        let ended = run(&[&["capture", "--netns", &netns], *arguments].concat());
        assert_eq!(ended.status, Some(*status), "{sentence}: {ended:?}");
        for part in *parts {
            assert!(ended.err.contains(part), "{sentence}: '{part}' in {}", ended.err);
        }
    }
    // It lists the existing interfaces.
    refused(&["count", "right0", "--netns", "no-such-host"], &netns);
}

#[test]
fn a_port_that_does_not_have_a_queue_for_each_thread_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pcap");
    numbered(&file, 0..3, 0, 1000);
    let port = format!("pcap:{}", file.display());
    for (arguments, act) in [
        (&["count", &port][..], "receive"),
        (&["capture", &port], "receive"),
        (&["replay", file.to_str().unwrap(), "pcap:/dev/null"], "send"),
    ] {
        let ended = run(&[arguments, &["--threads", "2"]].concat());
        let said = format!("has one queue, so as many threads {act}, not 2");
        assert_eq!((ended.status, ended.err.matches(&said).count()), (Some(0), 1), "{ended:?}");
    }
    let ended = run(&["count", "null:", "--count", "1", "--threads", "2"]);
    assert!(!ended.err.contains("queue"), "it has two: {ended:?}");
}

#[test]
fn without_privilege_it_names_the_capability_and_the_remedy() {
    if !have(&["setpriv"]) || !is_root() {
        return;
    }
    // A file without the permission to execute it.
    let folder = tempfile::Builder::new().prefix("sluice").tempdir_in("/tmp").unwrap();
    let copy = folder.path().join("sluice");
    std::fs::copy(env!("CARGO_BIN_EXE_sluice"), &copy).unwrap();
    let open: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    for command in ["count", "capture"] {
        let mut setpriv = std::process::Command::new("setpriv");
        setpriv.args(nobody).arg(&copy).args([command, "lo", "--duration", "1s"]);
        let ended = ended(&mut setpriv);
        assert_eq!(ended.status, Some(3), "{command}: {ended:?}");
        for part in ["CAP_NET_RAW", "setcap"] {
            assert!(ended.err.contains(part), "{command}: '{part}' in {}", ended.err);
        }
    }
}

#[test]
fn the_json_keeps_its_contract() {
    let folder = tempfile::tempdir().unwrap();
    let number = |value: &Value| value.is_number();
    for (command, more) in [("count", &[][..]), ("capture", &["-w", "/dev/null"])] {
        let out = folder.path().join(command);
        let written = || std::fs::read_to_string(&out).unwrap();
        let common = [command, "null:", "--duration", "1h", "--json", "--interval", "1s"];
        let mut command_line = sluice(&[&common[..], more].concat());
        command_line.stdout(std::fs::File::create(&out).unwrap());
        let running = Running::unawaited(&mut command_line);
        let has_packets = |line: &str| {
            let line = serde_json::from_str::<Value>(line);
            line.is_ok_and(|line| line["packets"].as_u64() > Some(0))
        };
        eventually("there are lines, and packets", || {
            written().lines().count() >= 3 && written().lines().any(has_packets)
        });
        assert_eq!(running.stop().status, Some(0), "{command}");
        let lines: Vec<Value> =
            written().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let report = lines.last().unwrap();
        closes(report);
        // In time since the worker began, which may be later.
        let intervals = lines[lines.len() - 2]["time_s"].as_f64().unwrap() as usize;
        // The last may end with the run.
        let expected = 4.max(intervals / 2)..=intervals + 2;
        assert!(expected.contains(&lines.len()), "a line an interval, then the report: {lines:?}");
        for line in &lines[..lines.len() - 1] {
            for key in ["time_s", "interval_s", "packets", "bytes", "pps", "bps_l1", "lost"] {
                assert!(number(&line[key]), "{key} in {line}");
            }
        }
        assert_eq!(report["command"], command);
        assert_eq!(report["port"], "null:");
        assert_eq!(report["backend"], "null");
        assert!(report["fallbacks"].is_array(), "{report}");
        for key in ["elapsed_s", "packets", "bytes", "pps", "bps_l1", "bps_l2"] {
            assert!(number(&report[key]), "{key} in {report}");
        }
        for key in ["queue", "packets", "busy"] {
            assert!(number(&report["threads"][0][key]), "{key} in {report}");
        }
        assert!(report["ledger"]["losses"].is_object(), "{report}");
        let of = |key: &str| report[key].as_f64().unwrap();
        let rate = of("packets") / of("elapsed_s");
        assert!((of("pps") / rate - 1.0).abs() < 1e-6, "{report}");
        assert!((of("bps_l1") - of("bps_l2") - of("pps") * 192.0).abs() < of("bps_l1") * 1e-6);
        assert_eq!(report["packets"], report["ledger"]["in"], "{report}");
    }
}

#[test]
fn a_capture_into_a_file_is_announced_on_a_terminal() {
    if !have(&["script"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (sent, file) = (folder.path().join("sent.pcap"), folder.path().join("x.pcap"));
    numbered(&sent, 0..10, 0, 1000);
    let (sent, file) = (sent.display(), file.display());
    for (sentence, arguments, said) in [
        ("a port", "null: --count 10".to_owned(), Some("null:".to_owned())),
        ("two ports", "null: null:?size=9 --count 10".into(), Some("null:, null:?size=9".into())),
        ("a filter", format!("pcap:{sent} -f arp"), Some(format!("pcap:{sent}, 'arp'"))),
        ("as JSON", "null: --count 10 --json".into(), None),
        ("into a log", "null: --count 10 2>&1 | cat".into(), None),
    ] {
        let line = format!("{} capture -w {file} {arguments}", env!("CARGO_BIN_EXE_sluice"));
        let mut script = std::process::Command::new("script");
        let ended = ended(script.args(["-qec", &line, "/dev/null"]));
        assert_eq!(ended.status, Some(0), "{sentence}: {ended:?}");
        let first = ended.out.lines().next().unwrap();
        match said {
            Some(what) => {
                let begins = format!("sluice: capturing {what} into {file}; ^C ends it");
                assert_eq!(first, begins, "{sentence}");
            }
            None => assert!(!ended.out.contains("capturing"), "{sentence}: {}", ended.out),
        }
    }
}

#[test]
fn without_a_port_it_lists_interfaces() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let plain = run(&["capture", "--netns", &netns]);
    assert!(plain.out.contains("right0") && plain.out.contains("198.18.0.2/24"), "{}", plain.out);
    let json = run(&["capture", "--netns", &netns, "--json"]);
    let listed: Vec<Value> = serde_json::from_str(&json.out).unwrap();
    let right0 = listed.iter().find(|interface| interface["name"] == "right0").unwrap();
    assert_eq!(right0["addresses"][0], "198.18.0.2/24", "{right0}");
    assert_eq!(right0["state"], "up", "{right0}");
}

#[test]
fn a_time_after_2106_ends_a_capture_of_a_file_to_pcap_and_pcapng_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (made, late) = (path("made.pcap"), path("late.pcapng"));
    let (old, new) = (path("old.pcap"), path("new.pcapng"));
    // Of 20 packets, a second apart, seven are before the end of pcap's time.
    let last = u64::from(u32::MAX) * 1_000_000_000;
    numbered(Path::new(&made), 0..20, last - 3_600_000_000_000 - 6_000_000_000, 1_000_000_000);
    run(&["edit", &made, &late, "--shift", "1h", "--json"]).good();
    let failed = run(&["capture", &late, "-w", &old, "--json"]);
    assert_eq!(failed.status, Some(2), "{failed:?}");
    assert!(failed.err.contains("2106") && failed.err.contains("pcapng"), "{}", failed.err);
    let report = failed.report();
    closes(&report);
    assert_eq!(report["ledger"]["out"], 7, "{report}");
    assert_eq!(packets(Path::new(&old)).len(), 7);
    run(&["capture", &late, "-w", &new, "--json"]).good();
    assert_eq!(packets(Path::new(&new)), packets(Path::new(&late)));
}

#[test]
fn link_types_that_pcap_cannot_hold_together_are_refused_before_a_file_is_emptied() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (ethernet, raw) = (path("ethernet.pcap"), path("raw.pcap"));
    let (old, new) = (path("old.pcap"), path("new.pcap"));
    numbered(Path::new(&ethernet), 0..3, 1_000_000_000, 1000);
    let mut bytes = std::fs::read(&ethernet).unwrap();
    bytes[20] = 101;
    std::fs::write(&raw, bytes).unwrap();
    std::fs::write(&old, "kept").unwrap();
    for out in [&old, &new] {
        refused(&["capture", &ethernet, &raw, "-w", out], "a pcap file holds one link type");
        refused(&["capture", &ethernet, &raw, "-w", out, "-z", "true"], "one link type");
    }
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "kept");
    assert!(!Path::new(&new).exists(), "no file is created");
}

#[test]
fn a_dash_is_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    numbered(&path, 0..10, 1_000_000_000, 1000);
    for words in [&["count", "-", "--json"][..], &["capture", "-", "--stats", "--json"]] {
        let input = std::fs::File::open(&path).unwrap();
        let report = Running::unawaited(sluice(words).stdin(input)).end().good();
        assert_eq!(report["packets"], 10, "{words:?}: {report}");
    }
}

#[test]
fn too_little_memory_is_an_error_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [input, output, kept] = ["in.pcap", "out.pcapng", "kept.pcapng"].map(path);
    numbered(Path::new(&input), 0..10, 1_000_000_000, 1000);
    std::fs::write(&kept, "kept").unwrap();
    let tables = ["capture", "null:/0-7", "--stats", "--count", "1000"];
    let file = [&tables[..], &["-w", &kept]].concat();
    let keep = ["capture", &input, "-w", &output, "--keep", "1s", "--keep-bytes", "1G"];
    for kib in ["65536", "98304", "131072"] {
        for arguments in [&tables[..], &file, &keep] {
            let mut command = Command::new("bash");
            let limited = "ulimit -v $0; ulimit -c 0; exec \"$@\"";
            command.args(["-c", limited, kib, env!("CARGO_BIN_EXE_sluice")]).args(arguments);
            let ended = ended(&mut command);
            assert_eq!(ended.status, Some(1), "{kib} {arguments:?}: {ended:?}");
            let remedy = ended.err.contains("ulimit -v unlimited");
            assert!(remedy, "{kib} {arguments:?}: {}", ended.err);
        }
    }
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "kept");
    assert!(!Path::new(&output).exists(), "no file is begun");
}
