//! Traffic in a lab is captured completely, in order and unchanged.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use sluicegate::link::Shape;

use crate::child;
use crate::support::*;

#[test]
fn every_frame_arrives_as_it_was_sent_in_every_format_and_by_every_method() {
    let Some(lab) = lab_with(&["tcpreplay", "tcpdump", "tshark", "capinfos", "zstd", "lz4"]) else {
        return;
    };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let sent = folder.path().join("sent.pcap");
    const FRAMES: u32 = 200_000;
    numbered(&sent, 0..FRAMES, 0, 1000);
    for rows in [
        [("ring", "a.pcapng"), ("recvmmsg", "b.pcap.zst"), ("recv", "c.pcapng.lz4")],
        [("ring", "d.pcap.lz4"), ("recvmmsg", "e.pcapng.zst"), ("recv", "f.pcap")],
    ] {
        let captures = rows.map(|(method, name)| {
            // Room for all packets, however long the machine is busy with other tests.
            let room = if method == "ring" { "blocks=64&block_size=1M" } else { "buffer=256M" };
            let port = format!("right0?method={method}&{room}");
            let path = folder.path().join(name);
            (capture(&netns, &port, NUMBERED, &path), method, path)
        });
        replay(&lab, "left", "left0", &sent, 80_000);
        for (capture, method, path) in captures {
            let report = capture.stop().good();
            let what = format!("{method} into {}", path.display());
            assert_eq!(report["packets"], FRAMES, "{what}: {report}");
            assert_eq!(report["method"], method, "{what}: {report}");
            let numbers = numbers(&path);
            assert!(numbers.into_iter().eq(0..FRAMES), "{what}: not all, or out of order");
            let plain = unpacked(&path);
            let counted = tool(&["capinfos", "-Mcr"], &plain).out;
            assert!(counted.contains(&format!(" {FRAMES}")), "{what}: capinfos: {counted}");
        }
    }
    for name in ["a.pcapng", "f.pcap"] {
        let path = folder.path().join(name);
        // A line a packet; those of its bytes begin with a tab.
        let lines =
            |output: Ended| output.out.lines().filter(|line| !line.starts_with('\t')).count();
        assert_eq!(lines(tool(&["tcpdump", "-nnr"], &path)), FRAMES as usize, "tcpdump {name}");
        assert_eq!(tshark(&path, &["-Y", "frame.number > 199990"]).len(), 10, "tshark {name}");
    }
}

#[test]
fn a_pipe_shows_each_packet_while_the_capture_runs() {
    let Some(lab) = lab_with(&["ping", "tcpdump"]) else { return };
    let netns = lab.netns("right");
    for format in ["pcap", "pcapng"] {
        let mut arguments = vec!["capture", "right0", "--netns", &netns, "-f", "icmp", "-w", "-"];
        arguments.extend(["--format", format, "--json"]);
        let mut capture = Running::start(&arguments);
        let mut reader = Command::new("tcpdump")
            .args(["-lnnr", "-"])
            .stdin(capture.child().stdout.take().unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(reader.stdout.take().unwrap());
        for number in 1..=3 {
            let pinged = on(&lab, "left", &["ping", "-c", "1", "-W", "5", "198.18.0.2"]);
            assert_eq!(pinged.status, Some(0), "{}", pinged.out);
            for part in ["echo request", "echo reply"] {
                // The packet would not come if the capture held it back.
                let mut line = String::new();
                let wait = move || (lines.read_line(&mut line), line, lines);
                let (read, line, rest) = child::limited(reader.id(), wait);
                assert!(read.is_ok());
                lines = rest;
                assert!(line.contains(part), "{format}, ping {number}: {line}");
            }
        }
        assert_eq!(capture.stop().good()["packets"], 6);
        assert_eq!(child::end(reader).status.code(), Some(0), "the stream ends as it should");
    }
}

#[test]
fn lines_of_several_threads_come_in_the_order_of_time() {
    let Some(lab) = lab_with(&["tcpreplay"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let sent = folder.path().join("sent.pcap");
    numbered(&sent, 0..2000, 0, 1000);
    // Packets go to both threads in turn; no pause of this machine is longer than the window.
    let mut arguments = vec!["capture", "right0?fanout=lb", "--threads", "2", "--netns", &netns];
    arguments.extend(["-f", NUMBERED, "--count", "2000", "--reorder-window", "5s"]);
    arguments.extend(["--time-format", "epoch", "--nano"]);
    let lines = folder.path().join("lines");
    let mut command = sluice(&arguments);
    let capture = Running::spawn(command.stdout(std::fs::File::create(&lines).unwrap()));
    replay(&lab, "left", "left0", &sent, 2000);
    let ended = capture.end();
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let times = times(&std::fs::read_to_string(&lines).unwrap());
    assert_eq!(times.len(), 2000, "{}", ended.err);
    assert!(times.is_sorted());
}

#[test]
fn a_merge_waits_for_a_port_that_delivers_late() {
    let Some(lab) = lab_with(&["tcpreplay"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let [sent, path, lines] =
        ["sent.pcap", "both.pcap", "lines"].map(|name| folder.path().join(name));
    numbered(&sent, 0..50, 0, 1000);
    // The window outlasts the blocks of both.
    let common = ["--netns", &netns, "-f", NUMBERED, "--reorder-window", "20s", "--json"];
    let ports = ["capture", "right0", "right0?block_timeout=800ms"];
    let file = ["-w", path.to_str().unwrap()];
    let to_file = Running::start(&[&ports[..], &common, &file].concat());
    let mut command = sluice(&[&ports[..], &common].concat());
    let to_lines = Running::spawn(command.stdout(std::fs::File::create(&lines).unwrap()));
    replay(&lab, "left", "left0", &sent, 100);
    for report in [to_file.stop().good(), to_lines.stop().good()] {
        assert_eq!(report["ledger"]["out"], 100, "{report}");
        assert_eq!(report["ledger"]["notes"].get("out_of_order"), None, "{report}");
    }
    assert!(packets(&path).is_sorted_by_key(|(time_ns, _)| *time_ns), "in the file");
    let times = object_times(&std::fs::read_to_string(&lines).unwrap());
    assert!(times.len() == 100 && times.is_sorted(), "in lines");
}

#[test]
fn a_reader_that_leaves_ends_the_capture_even_if_nothing_comes() {
    let Some(lab) = lab_with(&["ping"]) else { return };
    let netns = lab.netns("right");
    for (sentence, filter, more) in [
        ("a file, traffic", "icmp", &["-w", "-"][..]),
        ("a file, silence", "udp port 9", &["-w", "-"]),
        ("a pcap file, silence", "udp port 9", &["-w", "-", "--format", "pcap"]),
        ("lines, traffic", "icmp", &[]),
        ("lines, silence", "udp port 9", &[]),
    ] {
        let traffic = background(&lab, "left", &["ping", "-i", "0.05", "198.18.0.2"]);
        let mut arguments = vec!["capture", "right0", "--netns", &netns, "-f", filter, "--json"];
        arguments.extend(more);
        let mut capture = Running::start(&arguments);
        if filter == "icmp" {
            capture.has_written(24);
        }
        drop(capture.child().stdout.take());
        let ended = capture.end();
        drop(traffic);
        ended.good();
        assert!(ended.err.contains("the reader closed the pipe"), "{sentence}: {}", ended.err);
    }
}

#[test]
fn two_ports_and_two_threads_make_one_file_in_the_order_of_time() {
    if !have(&["tcpreplay", "tshark", "capinfos"]) {
        return;
    }
    let Some(lab) = lab_of(Shape::Line, 2) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("middle"));
    let [one, two, path] = ["1.pcap", "2.pcap", "both.pcapng"].map(|name| folder.path().join(name));
    numbered(&one, 0..10_000, 0, 1000);
    numbered(&two, 10_000..20_000, 0, 1000);
    let capture = Running::start(&[
        "capture",
        // One stream: its packets alternate between both threads.
        "middle0?fanout=lb",
        "middle1?fanout=lb",
        "--netns",
        &netns,
        "-f",
        NUMBERED,
        "--threads",
        "2",
        // The machine may be busy with other tests.
        "--reorder-window",
        "2s",
        "--json",
        "-w",
        path.to_str().unwrap(),
    ]);
    std::thread::scope(|scope| {
        scope.spawn(|| replay(&lab, "left", "left0", &one, 20_000));
        scope.spawn(|| replay(&lab, "right", "right0", &two, 20_000));
    });
    let report = capture.stop().good();
    assert_eq!(report["packets"], 20_000, "{report}");
    assert_eq!(report["threads"].as_array().map(Vec::len), Some(4), "{report}");
    assert_eq!(report["ledger"]["notes"].get("out_of_order"), None, "{report}");
    let fields = ["-T", "fields", "-e", "frame.interface_name", "-e", "eth.src"];
    let lines = tshark(&path, &fields);
    assert_eq!(lines.len(), 20_000);
    let packets = packets(&path);
    assert!(packets.is_sorted_by_key(|(time, _)| *time), "in the order of time");
    for (line, (_, bytes)) in lines.iter().zip(&packets) {
        let number = u32::from_be_bytes(bytes[14..18].try_into().unwrap());
        let from = if number < 10_000 { "middle0" } else { "middle1" };
        assert!(line.starts_with(from), "frame {number}: {line}");
    }
    let mut numbers = numbers(&path);
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..20_000), "complete");
    let about = tool(&["capinfos", "-I"], &path).out;
    assert!(about.contains("Number of interfaces in file: 2"), "{about}");
    let queues = tshark(&path, &["-T", "fields", "-e", "frame.packet_id", "-e", "frame.number"]);
    assert_eq!(queues.len(), 20_000);
    let bytes = std::fs::read(&path).unwrap();
    // epb_queue: option 6, 4 bytes long.
    for queue in [0, 1] {
        let option = [6, 0, 4, 0, queue, 0, 0, 0];
        assert!(bytes.windows(8).any(|window| window == option), "queue {queue} is named");
    }
}

#[test]
fn lines_are_those_of_tcpdump() {
    let Some(lab) = lab_with(&["ping", "tcpdump"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let path = folder.path().join("t.pcap");
    let path = path.to_str().unwrap();
    let filter = "icmp or icmp6 or udp";
    let arguments = ["capture", "right0", "--netns", &netns, "-f", filter];
    let alone = Running::start(&arguments);
    let with_file = Running::start(&[&arguments[..], &["--print", "-w", path]].concat());
    on(&lab, "left", &["ping", "-c", "2", "-i", "0.2", "198.18.0.2"]);
    on(&lab, "left", &["ping", "-c", "2", "-i", "0.2", "2001:db8:18::2"]);
    let (alone, with_file) = (alone.stop(), with_file.stop());
    for ended in [&alone, &with_file] {
        assert!(
            ended.out.lines().count() >= 8 && ended.err.contains("0           nothing"),
            "{ended:?}"
        );
    }
    let theirs = tool(&["tcpdump", "-nnr"], Path::new(path)).out;
    assert_eq!(with_file.out, theirs);
    // The kernel begins to stamp packets some time after the first socket asks for it. Until then each socket
    // reads the clock itself.
    let without_times = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    };
    assert_eq!(without_times(&alone.out), without_times(&theirs), "the same without a file");
}

#[test]
fn losses_are_counted_and_marked_where_they_happened() {
    let Some(lab) = lab_with(&["trafgen", "tshark"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let [path, packets] = ["loss.pcapng", "traffic.cfg"].map(|name| folder.path().join(name));
    std::fs::write(&packets, "{ 2,0,198,18,0,2, 2,0,198,18,0,1, 0x88,0xb5, fill(1, 1000) }\n")
        .unwrap();
    let said = folder.path().join("lines");
    let mut command = sluice(&["capture", "right0?blocks=2&block_size=64K", "--netns", &netns]);
    command.args(["-f", NUMBERED, "-w", path.to_str().unwrap(), "--json", "--interval", "50ms"]);
    let capture = Running::spawn(command.stdout(std::fs::File::create(&said).unwrap()));
    // What it has taken and missed so far.
    let seen = || -> [u64; 2] {
        let lines = std::fs::read_to_string(&said).unwrap();
        let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok();
        let of = |line: serde_json::Value| ["packets", "lost"].map(|it| line[it].as_u64().unwrap());
        lines.lines().filter_map(line).map(of).fold([0; 2], |[a, b], [c, d]| [a + c, b + d])
    };
    let flood = ["trafgen", "-i", packets.to_str().unwrap(), "-o", "left0", "--cpus", "1", "-q"];
    let send =
        |n: &str| assert_eq!(on(&lab, "left", &[&flood[..], &["-n", n]].concat()).status, Some(0));
    let all_seen = |all: u64| eventually("all seen", || seen().iter().sum::<u64>() == all);
    let mut sent = 0;
    for _ in 0..3 {
        // Its ring fills up while the process is stopped.
        capture.signal(nix::sys::signal::Signal::SIGSTOP);
        send("1000");
        capture.signal(nix::sys::signal::Signal::SIGCONT);
        sent += 1000;
        all_seen(sent);
        // The next captured packet marks the loss; one that comes too early is lost, too.
        let [taken, _] = seen();
        eventually("a packet is taken", || {
            send("1");
            sent += 1;
            all_seen(sent);
            seen()[0] > taken
        });
    }
    assert_eq!(capture.stop().status, Some(0));
    let report = std::fs::read_to_string(&said).unwrap();
    let report = serde_json::from_str(report.lines().last().unwrap()).unwrap();
    closes(&report);
    let lost = loss(&report, "ring_full");
    assert!(lost > 1000, "{report}");
    assert_eq!(report["ledger"]["in"].as_u64(), Some(sent), "{report}");
    let comments = tshark(&path, &["-Y", "frame.comment", "-T", "fields", "-e", "frame.comment"]);
    let marked: u64 = comments
        .iter()
        .map(|comment| {
            let digits: String = comment.chars().filter(char::is_ascii_digit).collect();
            digits.parse::<u64>().unwrap_or_else(|_| panic!("{comment}"))
        })
        .sum();
    assert_eq!(marked, lost, "every loss was followed by a packet: {comments:?}");
    let bytes = std::fs::read(&path).unwrap();
    // isb_osdrop: option 7, 8 bytes long.
    let option = [&[7, 0, 8, 0][..], &lost.to_le_bytes()].concat();
    assert!(bytes.windows(12).any(|window| window == option), "the statistics say {lost}");
}

#[test]
fn the_statistics_begin_before_the_first_packet() {
    let Some(lab) = lab_with(&["trafgen"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let [path, traffic] = ["begin.pcapng", "traffic.cfg"].map(|name| folder.path().join(name));
    std::fs::write(&traffic, "{ 2,0,198,18,0,2, 2,0,198,18,0,1, 0x88,0xb5, fill(1, 64) }\n")
        .unwrap();
    let flood = ["trafgen", "-i", traffic.to_str().unwrap(), "-o", "left0", "--cpus", "1", "-q"];
    let _flood = background(&lab, "left", &flood);
    let common = ["right0", "--netns", &netns, "-f", NUMBERED, "--json", "--count"];
    run(&[&["count"], &common[..], &["1"]].concat()).good();
    // Packets arrive as soon as the socket is open, before the capture has started its threads.
    run(&[&["capture"], &common[..], &["100", "-w", path.to_str().unwrap()]].concat()).good();
    let first_ns = packets(&path)[0].0;
    let bytes = std::fs::read(&path).unwrap();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut at = 0;
    // An Interface Statistics Block is of type 5.
    while number(at) != 5 {
        at += number(at + 4) as usize;
    }
    // isb_starttime: option 2, 8 bytes long, the upper half first, is the block's first option.
    assert_eq!(number(at + 20), 8 << 16 | 2, "{bytes:?}");
    let start_ns = u64::from(number(at + 24)) << 32 | u64::from(number(at + 28));
    let earlier = first_ns.checked_sub(start_ns);
    let earlier = earlier.unwrap_or_else(|| panic!("{start_ns} is after {first_ns}"));
    assert!(earlier < 60_000_000_000, "{earlier} ns before the first packet");
}

#[test]
fn parallel_captures_do_not_disturb_each_other() {
    if !have(&["tcpreplay"]) {
        return;
    }
    let (Some(first), Some(second)) = (lab(), lab()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let sent = folder.path().join("sent.pcap");
    numbered(&sent, 0..2000, 0, 1000);
    let start = |lab: &sluicegate::link::Lab, more: &[&str]| {
        let netns = lab.netns("right");
        let common = ["count", "right0", "--netns", &netns, "-f", NUMBERED, "--json"];
        Running::start(&[&common[..], more].concat())
    };
    let captures = [start(&first, &[]), start(&first, &["--threads", "2"]), start(&second, &[])];
    let netns = first.netns("right");
    let top = run(&["top", "--netns", &netns, "--plain", "--count", "1", "--interval", "200ms"]);
    assert_eq!(top.status, Some(0), "{}", top.err);
    replay(&first, "left", "left0", &sent, 10_000);
    let counts = captures.map(|capture| capture.stop().good()["packets"].as_u64());
    assert_eq!(counts, [Some(2000), Some(2000), Some(0)]);
}

#[test]
fn a_count_is_exact_over_threads_and_a_duration_is_kept() {
    if !have(&["trafgen"]) {
        return;
    }
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let (path, packets) = (folder.path().join("n.pcapng"), folder.path().join("traffic.cfg"));
    std::fs::write(&packets, "{ 2,0,198,18,0,2, 2,0,198,18,0,1, 0x88,0xb5, drnd(46) }\n").unwrap();
    let flood = ["trafgen", "-i", packets.to_str().unwrap(), "-o", "left0", "--cpus", "1", "-q"];
    let flood = background(&lab, "left", &flood);
    for fanout in ["hash", "lb", "cpu"] {
        let port = format!("right0?fanout={fanout}");
        let ended = run(&[
            "capture",
            &port,
            "--netns",
            &netns,
            "-f",
            NUMBERED,
            "--threads",
            "3",
            "--count",
            "4321",
            "--json",
            "-w",
            path.to_str().unwrap(),
        ]);
        let report = ended.good();
        assert_eq!(report["packets"], 4321, "{fanout}: {report}");
        assert_eq!(tshark(&path, &[]).len(), 4321, "{fanout}");
    }
    drop(flood);
    let start = Instant::now();
    let report =
        run(&["count", "right0", "--netns", &netns, "--json", "--duration", "300ms"]).good();
    let elapsed_s = report["elapsed_s"].as_f64().unwrap();
    assert!(elapsed_s >= 0.3 && elapsed_s <= start.elapsed().as_secs_f64(), "{report}");
}

#[test]
fn flags_select_the_mode_and_the_queues_of_ports_without_their_own() {
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let netns = lab.netns("right");
    let opened = |port: &str, flags: &[&str]| {
        let common = ["count", port, "--netns", &netns, "--json", "--duration", "100ms"];
        let report = run(&[&common[..], flags].concat()).good();
        let queues = report["threads"].as_array().unwrap().iter();
        let queues: Vec<_> = queues.map(|thread| thread["queue"].as_u64().unwrap()).collect();
        (report["mode"].as_str().unwrap().to_owned(), queues)
    };
    let skb = |queues: &[u64]| ("skb".to_owned(), queues.to_vec());
    assert_eq!(opened("xdp:right0", &["--mode", "skb"]), skb(&[0, 1]));
    assert_eq!(opened("xdp:right0", &["--mode", "skb", "--queues", "1"]), skb(&[1]));
    assert_eq!(opened("xdp:right0/0,mode=skb", &["--mode", "native", "--queues", "1"]), skb(&[0]));
    refused(&["count", "null:", "--mode", "skb"], "null:: --mode is for xdp: and mirror: ports");
    refused(&["count", "pcap:no0", "--queues", "0"], "pcap:no0: the port has no queues to select");
    refused(&["count", "null:", "--queues", "3-1"], "use a number or a range such as 0-3");
}

#[test]
fn the_time_of_a_run_is_that_in_which_its_packets_arrived() {
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let folder = tempfile::tempdir().unwrap();
    let what = ["generate", "packet:left0", "--dmac", NOBODY, "--rate", "5kpps"];
    let sender = Running::unawaited(&mut sluice(&[&what[..], &["--netns", &left]].concat()));
    eventually("packets arrive", || received(&lab, "right", "right0") > 100);
    for port in ["right0", "right0?method=recvmmsg", "xdp:right0"] {
        let file = folder.path().join("came.pcapng");
        let to = ["-w", file.to_str().unwrap(), "--netns", &right];
        let capture = [&["capture", port, "--duration", "50ms", "--json"], &to[..]].concat();
        let report = run(&capture).good();
        let times = packets(&file).into_iter().map(|(time_ns, _)| time_ns);
        let (first, last) =
            times.fold((u64::MAX, 0), |(first, last), at| (first.min(at), last.max(at)));
        let elapsed_s = report["elapsed_s"].as_f64().unwrap();
        assert!(last > first, "{report}");
        assert!((last - first) as f64 * 1e-9 <= elapsed_s, "{port}: {} ns, {report}", last - first);
    }
    assert_eq!(sender.stop().status, Some(0));
}
