//! Capture files as sources.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::real_captures::real_captures;
use crate::support::*;

#[test]
fn files_are_merged_whole_and_in_the_order_of_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let second = 1_000_000_000;
    for (sentence, parts) in [
        ("one ends long before the other begins", [(0..50_000, 1, 10), (50_000..50_100, 900, 10)]),
        ("the same, named the other way round", [(50_000..50_100, 900, 10), (0..50_000, 1, 10)]),
        ("a short one within a long one", [(0..100, 2, 1000), (100..60_000, 1, 100_000)]),
        ("turn by turn", [(0..30_000, 1, 2000), (30_000..60_000, 1, 2001)]),
        ("one is empty", [(0..0, 1, 1), (0..20_000, 1, 1)]),
    ] {
        let total: u32 = parts.iter().map(|(numbers, _, _)| numbers.len() as u32).sum();
        let ports: Vec<String> = parts
            .into_iter()
            .enumerate()
            .map(|(place, (frames, at_s, gap_ns))| {
                let path = file(&format!("{place}.pcap"));
                numbered(&path, frames, at_s * second, gap_ns);
                format!("pcap:{}", path.display())
            })
            .collect();
        let out = file("out.pcapng");
        let mut arguments = vec!["capture"];
        arguments.extend(ports.iter().map(String::as_str));
        arguments.extend(["--json", "-w", out.to_str().unwrap()]);
        let report = run(&arguments).good();
        assert_eq!(report["packets"], total, "{sentence}: {report}");
        let merged = packets(&out);
        assert!(merged.is_sorted_by_key(|(time, _)| *time), "{sentence}");
        let mut numbers = numbers(&out);
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..total), "{sentence}: complete");
        arguments.extend(["--count", "777"]);
        let report = run(&arguments).good();
        assert_eq!(report["packets"], 777, "{sentence}: {report}");
        assert_eq!(packets(&out).len(), 777, "{sentence}");
        let mut lines = vec!["capture"];
        lines.extend(ports.iter().map(String::as_str));
        lines.extend(["--time-format", "epoch", "--nano"]);
        let printed = run(&lines);
        assert_eq!(printed.status, Some(0), "{sentence}: {}", printed.err);
        let times = times(&printed.out);
        assert_eq!(times.len(), total as usize, "{sentence}: lines");
        assert!(times.is_sorted(), "{sentence}: lines");
    }
}

#[test]
fn late_lines_are_noted_with_and_without_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two, out] = ["1.pcap", "2.pcap", "out.pcap"].map(|name| folder.path().join(name));
    let second = 1_000_000_000;
    numbered(&one, 0..10, 2 * second, 1000);
    numbered(&two, 10..15, second, 1000);
    // One file has a later packet first.
    let both = [std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap()[24..].to_vec()];
    std::fs::write(&one, both.concat()).unwrap();
    let [one, two] = [one, two].map(|path| format!("pcap:{}", path.display()));
    let out = out.to_str().unwrap();
    for (sentence, arguments, in_file, in_lines) in [
        ("lines alone", &["capture", &one][..], Some(5), None),
        ("lines and a file", &["capture", &one, "--print", "-w", out], None, Some(5)),
        ("a file alone", &["capture", &one, "-w", out], None, None),
        ("of several", &["capture", &one, &two, "--print", "-w", out], Some(5), Some(5)),
        ("in order", &["capture", &two, "--print", "-w", out], None, None),
    ] {
        let report = run(&[arguments, &["--json"]].concat()).good();
        let note = |name| report["ledger"]["notes"].get(name).and_then(|n| n.as_u64());
        let got = ["out_of_order", "lines_out_of_order"].map(note);
        assert_eq!(got, [in_file, in_lines], "{sentence}: {report}");
    }
}

#[test]
fn a_capture_waits_for_a_silent_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two, out] = ["1.pcap", "2.pcap", "out.pcap"].map(|name| folder.path().join(name));
    numbered(&one, 0..10, 0, 2000);
    numbered(&two, 10..20, 1000, 2000);
    let (one, two) = (std::fs::read(one).unwrap(), format!("pcap:{}", two.display()));
    for more in [&["-w", out.to_str().unwrap()][..], &[]] {
        let arguments = [&["capture", "pcap:-", &two, "--json"], more].concat();
        let mut capture = Running::unawaited(sluice(&arguments).stdin(Stdio::piped()));
        let mut pipe = capture.child().stdin.take().unwrap();
        for part in [&one[..24], &one[24..]] {
            pipe.write_all(part).unwrap();
            // Long enough for a live port to promise that no older packet follows.
            std::thread::sleep(Duration::from_millis(300));
        }
        drop(pipe);
        let ended = capture.end();
        let report = ended.good();
        assert_eq!(report["ledger"]["notes"].get("out_of_order"), None, "{more:?}: {report}");
        let times: Vec<u64> = match more.contains(&"-w") {
            true => packets(&out).into_iter().map(|(time_ns, _)| time_ns).collect(),
            false => object_times(&ended.out),
        };
        assert!(times.into_iter().eq((0..20).map(|number| number * 1000)), "{more:?}");
    }
}

#[test]
fn a_silent_pipe_does_not_hold_up_another_for_longer_than_the_window() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let [late, early] = ["late.pcap", "early.pcap"].map(path);
    numbered(&late, 10..20, 10_000, 2000);
    numbered(&early, 0..1, 0, 2000);
    let [late, early] = [late, early].map(|path| std::fs::read(path).unwrap());
    let ports = ["1", "2"].map(|name| {
        nix::unistd::mkfifo(&path(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
        format!("pcap:{}", path(name).display())
    });
    // The shortest object of a numbered frame; nine objects are shorter than ten of these.
    const OBJECT_BYTES: usize = 118;
    // All of the ten packets that come while neither pipe continues.
    for (more, bytes) in
        [(&["-w", "-", "--format", "pcap"][..], late.len()), (&[], 10 * OBJECT_BYTES)]
    {
        // Opened for both directions: a FIFO opened only for writing waits for its reader.
        let [mut talks, mut silent] = ["1", "2"]
            .map(|name| std::fs::File::options().read(true).write(true).open(path(name)).unwrap());
        talks.write_all(&late).unwrap();
        silent.write_all(&early[..24]).unwrap();
        let arguments = [&["capture", &ports[0], &ports[1], "--json"], more].concat();
        let mut capture = Running::unawaited(&mut sluice(&arguments));
        capture.has_written(bytes);
        silent.write_all(&early[24..]).unwrap();
        drop((talks, silent));
        let report = capture.end().good();
        assert_eq!(report["packets"], 11, "{more:?}");
        assert_eq!(report["ledger"]["notes"]["out_of_order"], 1, "{more:?}: {report}");
    }
}

#[test]
fn with_sync_each_file_and_its_name_are_brought_to_the_disk() {
    if !have(&["strace"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let sent = folder.path().join("sent.pcap");
    numbered(&sent, 0..1000, 0, 1000);
    let from = format!("pcap:{}", sent.display());
    for (sentence, name, more, synced) in [
        ("not asked for", "a.pcapng", &[][..], false),
        ("one file", "b.pcap", &["--sync"], true),
        ("compressed, on another thread", "c.pcapng.zst", &["--sync"], true),
        ("a rotation", "d.pcap", &["--sync", "--rotate-size", "10K"], true),
        ("a pipe has no disk", "-", &["--sync"], false),
    ] {
        let (log, path) = (folder.path().join("log"), folder.path().join(name));
        let to = if name == "-" { "-" } else { path.to_str().unwrap() };
        let mut strace = Command::new("strace");
        strace.args(["-qqfyye", "trace=fsync,fdatasync", "-o"]).arg(&log);
        strace.args([env!("CARGO_BIN_EXE_sluice"), "capture", &from, "--json", "-w", to]);
        let ended = ended(strace.args(more));
        if ended.err.contains("PTRACE") {
            return eprintln!(
                "skipped: needs to trace processes; get it by kernel.yama.ptrace_scope=1"
            );
        }
        let files = if name == "-" { 1 } else { ended.good()["files"]["count"].as_u64().unwrap() };
        assert_eq!(files > 1, name == "d.pcap", "{sentence}");
        let log = std::fs::read_to_string(&log).unwrap();
        let of = |part: &str| log.lines().filter(|l| l.contains(part) && l.contains("= 0")).count();
        let expected = if synced { files as usize } else { 0 };
        assert_eq!(of(".pcap"), expected, "{sentence}: files: {log}");
        assert_eq!(of(&format!("{}>", folder.path().display())), expected, "{sentence}: {log}");
    }
}

/// The packets that tcpdump reads from a file before it ends or gives up.
fn by_tcpdump(path: &Path, filter: &[&str]) -> Vec<(u64, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.pcap");
    let status = Command::new("tcpdump")
        .args(["--nano", "-r"])
        .arg(path)
        .arg("-w")
        .arg(&out)
        .args(filter)
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    match out.exists() {
        true => packets(&out),
        false => {
            assert!(!status.success());
            Vec::new()
        }
    }
}

#[test]
fn the_names_of_standard_output_hold_packets_only() {
    let folder = tempfile::tempdir().unwrap();
    let [input, out] = ["in.pcap", "out.pcapng"].map(|name| folder.path().join(name));
    numbered(&input, 0..1000, 0, 1000);
    for name in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        for arguments in [
            &["capture", "-r", input.to_str().unwrap(), "-w", name][..],
            &["edit", input.to_str().unwrap(), name, "--format", "pcapng"],
            &["replay", input.to_str().unwrap(), &format!("pcap:{name}")],
        ] {
            let file = std::fs::File::create(&out).unwrap();
            let ended = Running::unawaited(sluice(arguments).stdout(file)).end();
            assert_eq!(ended.status, Some(0), "{ended:?}");
            assert!(ended.err.contains("1,000 packets"), "the result: {}", ended.err);
            assert!(numbers(&out).into_iter().eq(0..1000), "{arguments:?}");
        }
    }
}

#[test]
fn real_captures_pass_through_unchanged() {
    if !have(&["tcpdump"]) {
        return;
    }
    let (folder, mut refused, mut passed) = (tempfile::tempdir().unwrap(), 0, 0);
    for path in real_captures() {
        let out = folder.path().join("out.pcapng");
        let file = std::fs::File::create(&out).unwrap();
        let port = format!("pcap:{}", path.display());
        let mut command = sluice(&["capture", &port, "-w", "-", "--json"]);
        let ended = Running::unawaited(command.stdout(file)).end();
        let name = path.file_name().unwrap().to_string_lossy();
        match ended.status {
            Some(0) => passed += 1,
            Some(1) => {
                refused += 1;
                assert!(ended.err.lines().last().unwrap().contains(&*name), "{}", ended.err);
            }
            _ => panic!("{name}: {ended:?}"),
        }
        let theirs = by_tcpdump(&path, &[]);
        let Some(report) = ended.err.contains("{\"c").then(|| ended.report()) else {
            assert!(theirs.is_empty(), "{name}: tcpdump reads {} packets", theirs.len());
            continue;
        };
        closes(&report);
        // libpcap reads one link type per file, and stops at a second.
        let ours = match report["packets"].as_u64() {
            Some(0) | None => Vec::new(),
            Some(_) => packets(&out),
        };
        assert!(ours.len() >= theirs.len(), "{name}: {} of {}", ours.len(), theirs.len());
        let same = ours.iter().zip(&theirs).all(|(ours, theirs)| ours.1 == theirs.1);
        assert!(same, "{name}: other bytes");
        if ended.status == Some(0)
            && tool(&["tcpdump", "-w", "/dev/null", "-r"], &path).status == Some(0)
        {
            assert_eq!(ours.len(), theirs.len(), "{name}");
        }
    }
    eprintln!("{passed} passed, {refused} refused");
    assert!(passed > refused || passed + refused == 0, "most of them are whole");
}

#[test]
fn filters_count_as_tcpdump_counts() {
    if !have(&["tcpdump"]) {
        return;
    }
    let expressions = [
        "ip",
        "ip6",
        "tcp",
        "udp port 53",
        "arp or icmp",
        "host 192.168.1.1",
        "tcp[13] & 2 != 0",
        "greater 500",
        "not ip and not ip6",
        "net 10.0.0.0/8 and portrange 1-1024",
    ];
    // Every ninth: each expression meets every kind of link.
    for path in real_captures().iter().step_by(9) {
        for expression in expressions {
            let port = format!("pcap:{}", path.display());
            let ours = run(&["count", &port, "-f", expression, "--json"]);
            let theirs = Command::new("tcpdump")
                .args(["-nnqt", "-r"])
                .args([path.as_os_str(), "-w".as_ref(), "-".as_ref(), expression.as_ref()])
                .output()
                .unwrap();
            if !theirs.status.success() || ours.status != Some(0) {
                // The filter does not fit the link type, or the file is damaged: then both fail.
                assert!(!theirs.status.success(), "{}: {ours:?}", path.display());
                continue;
            }
            let counted = by_tcpdump(path, &[expression]).len() as u64;
            let report = ours.good();
            assert_eq!(report["packets"], counted, "{} {expression}", path.display());
        }
    }
}

#[test]
fn an_unreadable_file_is_an_error_with_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "not packets, but long enough to hold a header").unwrap();
    for (sentence, path, status) in [
        ("nothing there", folder.path().join("none.pcap"), 2),
        ("a folder", folder.path().to_owned(), 2),
        ("text", text, 1),
    ] {
        let ended = run(&["count", &format!("pcap:{}", path.display())]);
        assert_eq!(ended.status, Some(status), "{sentence}: {ended:?}");
        assert!(ended.err.contains(path.to_str().unwrap()), "{sentence}: {}", ended.err);
    }
}

#[test]
fn a_command_runs_after_each_complete_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    numbered(&path("in.pcap"), 0..10, 1_000_000_000, 1000);
    let program = path("note");
    std::fs::write(&program, format!("#!/bin/sh\ncksum \"$1\" >>{}\n", path("log").display()))
        .unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    for (extension, count, files) in
        [("pcap", "4", 3), ("pcapng.gz", "5", 2), ("pcap.zst", "99", 1)]
    {
        std::fs::write(path("log"), "").unwrap();
        let out = path(&format!("out.{extension}"));
        let arguments =
            ["capture", "-r", path("in.pcap").to_str().unwrap(), "-w", out.to_str().unwrap()]
                .map(str::to_owned);
        let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        arguments.extend(["--rotate-count", count, "--json", "-z", program.to_str().unwrap()]);
        assert_eq!(run(&arguments).good()["files"]["count"], files, "{extension}");
        let log = std::fs::read_to_string(path("log")).unwrap();
        assert_eq!(log.lines().count(), files, "{extension}: {log}");
        for line in log.lines() {
            // The file did not change after the command saw it.
            let file = line.splitn(3, ' ').nth(2).unwrap();
            let now = tool(&["cksum"], Path::new(file)).out;
            assert_eq!(now.trim_end(), line, "{extension}");
        }
    }
    for name in ["none.pcap", "none.pcapng", "none.pcap.zst"] {
        std::fs::write(path("log"), "").unwrap();
        let (input, out) = (path("in.pcap"), path(name));
        let arguments = ["capture", input.to_str().unwrap(), "-w", out.to_str().unwrap()];
        let more = ["--json", "-z", program.to_str().unwrap(), "udp port 1"];
        assert_eq!(run(&[&arguments[..], &more].concat()).good()["packets"], 0);
        let log = std::fs::read_to_string(path("log")).unwrap();
        assert_eq!(log.lines().count(), 1, "a file without packets is complete, too: {name}");
    }
    let ended = run(&[
        "capture",
        "-r",
        path("in.pcap").to_str().unwrap(),
        "-w",
        path("x.pcap").to_str().unwrap(),
        "-z",
        "/nonexistent",
    ]);
    assert_eq!(ended.status, Some(2), "{ended:?}");
    assert!(ended.err.contains("--post-rotate /nonexistent: no such program"), "{}", ended.err);
    assert!(!path("x.pcap").exists(), "no file is created, none is overwritten");
}

#[test]
fn a_command_that_fails_to_start_is_an_error_and_one_that_hangs_delays_no_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    numbered(Path::new(&path("in.pcap")), 0..10, 1_000_000_000, 1000);
    let (input, output) = (path("in.pcap"), path("out.pcap"));
    let arguments = ["capture", "-r", &input, "-w", &output, "-z"];
    std::fs::write(path("data"), "#!/nonexistent/interpreter\n").unwrap();
    std::fs::set_permissions(path("data"), Permissions::from_mode(0o644)).unwrap();
    let ended = run(&[&arguments[..], &[&path("data")]].concat());
    assert_eq!(ended.status, Some(2), "{ended:?}");
    assert!(ended.err.contains("/data: not executable; chmod +x "), "{}", ended.err);
    assert_eq!(ended.out, "", "it has not begun");
    std::fs::set_permissions(path("data"), Permissions::from_mode(0o755)).unwrap();
    let ended = run(&[&arguments[..], &[&path("data")]].concat());
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.out.contains("written"), "{ended:?}");
    assert_eq!(ended.err.matches("sluice: start ").count(), 1, "{ended:?}");
    // It waits for its file to vanish, which happens once the ledger has been printed.
    let program = path("waits");
    std::fs::write(&program, "#!/bin/sh\nwhile [ -e \"$1\" ]; do sleep 0.01; done\n").unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let ledger = std::fs::File::create(path("ledger")).unwrap();
    let mut command = sluice(&[&arguments[..], &[&program]].concat());
    let mut child = command.stdout(ledger).spawn().unwrap();
    let printed = || std::fs::read_to_string(path("ledger")).unwrap();
    eventually("the ledger is printed", || printed().contains("unexplained"));
    assert_eq!(child.try_wait().unwrap(), None, "the command waits for the program");
    std::fs::remove_file(&output).unwrap();
    assert!(child.wait().unwrap().success());
    let ledger = std::fs::File::create(path("ledger")).unwrap();
    let mut command = sluice(&[&arguments[..], &[&program]].concat());
    let capture = Running::unawaited(command.stdout(ledger));
    eventually("the ledger is printed again", || printed().contains("unexplained"));
    // SIGINT may be ignored, as in a shell's background.
    capture.signal(Signal::SIGTERM);
    eventually("it does not wait for the program", || capture.has_ended());
    assert!(Path::new(&output).exists(), "the program still waits");
}

#[test]
fn a_command_that_fails_is_named_on_stderr_and_in_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    numbered(Path::new(&path("in.pcap")), 0..100, 1_000_000_000, 1000);
    let output = path("out.pcap");
    let arguments = ["capture", "-", "-w", &output, "--rotate-count", "1", "--json"];
    let mut command = sluice(&[&arguments[..], &["-z", "false"]].concat());
    let mut capture = Running::unawaited(command.stdin(Stdio::piped()));
    let mut input = capture.child().stdin.take().unwrap();
    input.write_all(&std::fs::read(path("in.pcap")).unwrap()).unwrap();
    let said = |number| format!("false {}: exit status: 1", path(&format!("out-{number}.pcap")));
    let mut err = String::new();
    while !err.contains(&said("00099")) {
        err += &capture.says();
    }
    assert!(err.starts_with(&format!("sluice: {}\n", said("00001"))), "{err}");
    drop(input);
    let ended = capture.end();
    let report = ended.good();
    let notices = report["notices"].as_array().unwrap();
    assert_eq!((&notices[0], &notices[63]), (&said("00001").into(), &said("00064").into()));
    assert_eq!(notices[64], "more failures of --post-rotate are not listed", "{report}");
    assert_eq!(notices.len(), 65, "{report}");
    assert!(ended.err.contains(&format!("sluice: {}\n", said("00100"))), "{}", ended.err);
}

#[test]
fn a_capture_ends_after_its_last_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    numbered(Path::new(&path("in.pcap")), 0..1000, 1_000_000_000, 1000);
    let bytes = std::fs::metadata(path("in.pcap")).unwrap().len();
    let (input, third) = (path("in.pcap"), (bytes / 3).to_string());
    for (rotation, files, compression) in [
        (["--rotate-count", "100", "--max-files", "3"], [100, 100, 100].as_slice(), ""),
        (["--rotate-count", "1000", "--max-files", "1"], &[1000], ""),
        (["--rotate-count", "100", "--max-files", "2"], &[100, 100], ".zst"),
        (["--rotate-time", "400us", "--max-files", "2"], &[400, 400], ""),
        (["--rotate-size", &third, "--max-files", "1"], &[333], ""),
        (["--rotate-count", "600", "--max-files", "2"], &[600, 400], ""),
    ] {
        let output = path(&format!("out.pcap{compression}"));
        let arguments = ["capture", &input, "-w", &output, "--json"];
        let report = run(&[&arguments[..], &rotation].concat()).good();
        let written: Vec<usize> = (1..=files.len())
            .map(|number| {
                numbers(&folder.path().join(format!("out-{number:05}.pcap{compression}")))
            })
            .map(|numbers| numbers.len())
            .collect();
        assert_eq!(written, files, "{rotation:?}: {report}");
        assert_eq!(report["files"]["count"], files.len(), "{report}");
        let out: usize = files.iter().sum();
        assert_eq!(report["ledger"]["out"], out, "{report}");
        let omitted = report["ledger"]["omitted"]["after_last_file"].as_u64().unwrap_or(0);
        assert_eq!(report["packets"].as_u64().unwrap() - omitted, out as u64, "{report}");
    }
    let live = ["capture", "null:", "-w", &path("live.pcap"), "--json"];
    let end = ["--rotate-size", "1M", "--max-files", "2"];
    let report = run(&[&live[..], &end].concat()).good();
    assert_eq!(report["files"]["count"], 2, "{report}");
    refused(&[&live[..], &["--max-files", "2"]].concat(), "a number of files without a size");
}
