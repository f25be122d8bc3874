//! `sluice generate --receive` finds the faults that a device plants, and no others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use pcap::{Active, Capture, Direction};
use serde_json::Value;
use sluicegate::link::{Lab, Shape, netns};

use crate::support::*;

/// Two streams in turn, whose checksums cover the stamp.
const SPEC: &str = "[[stream]]\nname = 'v4'\nsize = '60-200'\n\
    layers = ['ether', 'ipv4', { udp = { dport = 9 } }, 'stamp', { payload = { random = true } }]\n\
    [[stream]]\nname = 'v6'\nlayers = ['ether', 'ipv6', { tcp = { dport = 9, flags = 'A' } }]\n";
/// The place of the stamp in each stream's packets.
const STAMP_AT: [usize; 2] = [42, 74];
/// Packets a stream.
const EACH: u32 = 1000;

/// A device of libpcap between the hosts of a line. It plants faults by the packets' numbers.
struct Device {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Device {
    fn start(lab: &Lab) -> Self {
        let open = |interface: &str| -> Capture<Active> {
            let open = || {
                let capture = Capture::from_device(interface).unwrap();
                Ok(capture.immediate_mode(true).buffer_size(64 << 20).open().unwrap())
            };
            netns::run_in(Some(&lab.netns("middle")), open).unwrap()
        };
        let mut from = open("middle0").setnonblock().unwrap();
        let mut to = open("middle1");
        from.filter("port 9", true).unwrap();
        from.direction(Direction::In).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut held = [Vec::new(), Vec::new()];
            while !stopped.load(Ordering::Relaxed) {
                let Ok(packet) = from.next_packet().map(|packet| packet.data.to_vec()) else {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                    continue;
                };
                let stream = usize::from(packet[12..14] == [0x86, 0xdd]);
                let number = packet[STAMP_AT[stream] + 4..][..4].try_into().unwrap();
                let sent = plant(u32::from_be_bytes(number), packet, &mut held[stream]);
                sent.into_iter().for_each(|packet| to.sendpacket(packet).unwrap());
            }
        });
        Self { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Plants faults: the first and the last packets of a stream are missing, and of every 50 one; one comes twice,
/// one after its successor, and one has a wrong bit.
fn plant(number: u32, mut packet: Vec<u8>, held: &mut Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    match number % 50 {
        _ if !(3..EACH - 3).contains(&number) => vec![],
        10 => vec![],
        20 => vec![packet.clone(), packet],
        30 => {
            held.push(packet);
            vec![]
        }
        40 => {
            *packet.last_mut().unwrap() ^= 4;
            vec![packet]
        }
        _ => [vec![packet], std::mem::take(held)].concat(),
    }
}

fn generate(lab: &Lab, more: &[&str]) -> Ended {
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let ports = ["--netns", &left, "--receive", "right0", "--receive-netns", &right];
    run(&[&["generate", "left0", "--dmac", NOBODY], &ports[..], more].concat())
}

fn spec(folder: &tempfile::TempDir) -> String {
    let path = folder.path().join("spec.toml");
    std::fs::write(&path, SPEC).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn planted_faults_are_reported_by_stream_as_they_are() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (spec, count) = (spec(&folder), (2 * EACH).to_string());
    for method in ["live", "sendmmsg"] {
        let device = Device::start(&lab);
        let what = ["--spec", &spec, "--count", &count, "--rate", "5kpps", "--max-lag", "1ms"];
        let report = generate(&lab, &[&what[..], &["--method", method, "--json"]].concat()).good();
        device.end();
        closes(&report);
        let each = u64::from(EACH);
        let times = each / 50;
        for (stream, name) in report["streams"].as_array().unwrap().iter().zip(["v4", "v6"]) {
            assert_eq!(stream["name"], name, "{report}");
            let lost = 6 + 2 * times;
            for (key, expected) in [
                ("packets", each),
                ("received", each - lost + times),
                ("lost", lost),
                ("duplicates", times),
                ("reordered", times),
                ("late", 0),
                ("corrupt", times),
                ("restarts", 0),
            ] {
                assert_eq!(stream[key], expected, "{method}: {key} in {stream}");
            }
            let latency = &stream["latency"];
            let times = ["min_ns", "p50_ns", "p99_ns", "max_ns"];
            let times = times.map(|key| latency[key].as_u64().unwrap());
            assert!(times[0] > 0 && times.is_sorted(), "{method}: {stream}");
            assert_eq!(latency["samples"], stream["received"], "{method}: {stream}");
        }
        let missing = &report["missing"];
        for (key, expected) in [
            ("packets", 2 * (6 + 2 * times)),
            ("not_sent", 0),
            ("receiver_lost", 0),
            ("network_min", 2 * (6 + 2 * times)),
            ("network_max", 2 * (6 + 2 * times)),
        ] {
            assert_eq!(missing[key], expected, "{method}: {key} in {missing}");
        }
        assert_eq!(report["receiver"]["port"], "right0", "{report}");
    }
}

#[test]
fn packets_that_all_arrive_end_the_run_at_once_and_are_counted_by_any_port() {
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(&folder);
    for (port, threads) in [("right0", "1"), ("xdp:right0", "1"), ("mirror:right0", "2")] {
        let ports = ["left0", "--netns", &left, "--receive", port, "--receive-netns", &right];
        let what = ["--spec", &spec, "--count", "1000", "--rate", "5kpps", "--max-lag", "1ms"];
        // The run would last a minute if it waited to the end.
        let more = ["--drain", "1m", "--threads", threads, "--dmac", NOBODY, "--json"];
        let report = run(&[&["generate"], &ports[..], &what, &more].concat()).good();
        for stream in report["streams"].as_array().unwrap() {
            let arrived = (&stream["received"], &stream["lost"], &stream["corrupt"]);
            assert_eq!(arrived, (&500.into(), &0.into(), &0.into()), "{port}: {report}");
        }
        assert_eq!(report["missing"]["packets"], 0, "{port}: {report}");
        assert!(report["receiver"]["elapsed_s"].as_f64().unwrap() < 60.0, "{port}: {report}");
    }
    let text = generate(&lab, &["--count", "10", "--rate", "1kpps"]);
    assert_eq!(text.status, Some(0), "{text:?}");
    for part in
        ["  stream       packets      received          lost", "latency\n", "ledger of right0"]
    {
        assert!(text.out.contains(part), "{part}: {}", text.out);
    }
}

#[test]
fn the_wait_for_missing_packets_is_not_in_the_receivers_time() {
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let receive = ["--receive", "right0?filter=udp port 10", "--receive-netns", &right];
    let what = ["generate", "left0", "--netns", &left, "--dmac", NOBODY, "--count", "10"];
    let start = Instant::now();
    let ended = run(&[&what[..], &receive, &["--drain", "1s", "--json"]].concat());
    let elapsed_s = ended.report()["receiver"]["elapsed_s"].as_f64().unwrap();
    assert!(elapsed_s <= start.elapsed().as_secs_f64() - 1.0, "{ended:?}");
}

#[test]
fn packets_that_the_receiver_itself_loses_are_not_the_networks() {
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let receive = ["--receive", "right0,method=recv,buffer=8K", "--receive-netns", &right];
    let what = ["generate", "left0", "--netns", &left, "--dmac", NOBODY, "--count", "100000"];
    let report = run(&[&what[..], &receive, &["--json"]].concat()).good();
    let number = |value: &Value| value.as_u64().unwrap();
    let missing = &report["missing"];
    let lost = number(&missing["receiver_lost"]);
    assert!(lost > 0, "{report}");
    assert_eq!(report["receiver"]["ledger"]["losses"]["ring_full"], lost, "{report}");
    assert_eq!(missing["network_min"], 0, "{report}");
    let [packets, not_sent] = ["packets", "not_sent"].map(|key| number(&missing[key]));
    assert_eq!(number(&missing["network_max"]), packets - not_sent, "{report}");
    assert!(packets - not_sent <= lost, "{report}");
}

#[test]
fn a_packet_without_room_for_a_stamp_is_refused_with_the_smallest_size() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("arp.toml");
    let refuse = |more: &[&str], parts: &[&str]| {
        let ended = generate(&lab, &[more, &["--count", "1"]].concat());
        assert_eq!(ended.status, Some(2), "{ended:?}");
        parts.iter().for_each(|part| assert!(ended.err.contains(part), "{part}: {}", ended.err));
    };
    refuse(&["--size", "60", "--proto", "tcp"], &["headers and the stamp", "at least 70"]);
    assert_eq!(generate(&lab, &["--size", "70", "--proto", "tcp", "--count", "1"]).status, Some(0));
    std::fs::write(&path, "[[stream]]\nlayers = ['ether', 'arp']\n").unwrap();
    refuse(&["--spec", path.to_str().unwrap()], &["stream 0", "finds no stamp"]);
    let wrong = "[[stream]]\nlayers = ['ether', 'ipv4', { udp = { checksum = 'bad' } }]\n";
    std::fs::write(&path, wrong).unwrap();
    refuse(&["--spec", path.to_str().unwrap()], &["stream 0", "a checksum or a length is wrong"]);
    for port in ["pcap:in.pcap", "xdp:right0,action=drop"] {
        refused(&["generate", "null:", "--receive", port], "--receive needs a port");
    }
}

#[test]
fn an_interface_does_not_count_the_packets_that_it_sends() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    let generate = |port: &str, receive: &str, more: &[&str]| {
        let what = ["--netns", &left, "--dmac", NOBODY, "--count", "1"];
        run(&[&["generate", port, "--receive", receive], &what[..], more].concat())
    };
    for (port, receive) in [("left0", "left0"), ("xdp:left0", "packet:left0")] {
        let ended = generate(port, receive, &[]);
        assert_eq!(ended.status, Some(2), "{ended:?}");
        assert!(ended.err.contains("the interface also sends"), "{}", ended.err);
    }
    // Packets may come back from the other end.
    for receive in ["left0,tx_copies=off", "xdp:left0"] {
        let report = generate("left0", receive, &["--json"]).good();
        assert_eq!(report["streams"][0]["received"], 0, "{receive}: {report}");
    }
    let lo = ["--dst", "127.0.0.1", "--drain", "10s", "--json"];
    let report = generate("lo", "lo", &lo).good();
    assert_eq!(report["streams"][0]["received"], 1, "{report}");
}

#[test]
fn checksums_are_right_with_the_stamp_in() {
    if !have(&["tshark"]) {
        return;
    }
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (spec, file) = (spec(&folder), folder.path().join("came.pcap"));
    let capture = capture_all(&lab.netns("right"), "port 9", &file);
    generate(&lab, &["--spec", &spec, "--count", "200", "--rate", "5kpps", "--json"]).good();
    assert_eq!(capture.stop().good()["packets"], 200);
    let checks = ["ip.check_checksum:TRUE", "udp.check_checksum:TRUE", "tcp.check_checksum:TRUE"];
    let checks: Vec<&str> = checks.iter().flat_map(|it| ["-o", it]).collect();
    let fields = ["-T", "fields", "-e", "udp.checksum.status", "-e", "tcp.checksum.status"];
    let lines = tshark(&file, &[&checks[..], &fields].concat());
    assert_eq!(lines.len(), 200);
    lines.iter().for_each(|line| assert_eq!(line.trim(), "1", "{line}"));
}

#[test]
fn a_receiver_whose_interface_is_removed_ends_the_run() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let ports = ["--netns", &left, "--receive", "right0", "--receive-netns", &right];
    let what = ["generate", "left0", "--dmac", NOBODY, "--rate", "1kpps"];
    let running = Running::unawaited(&mut sluice(&[&what[..], &ports].concat()));
    eventually("it receives", || running.has_threads("receiver") || running.has_ended());
    assert_eq!(on(&lab, "right", &["ip", "link", "del", "right0"]).status, Some(0));
    let ended = running.end();
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.err.contains("right0"), "{ended:?}");
}
