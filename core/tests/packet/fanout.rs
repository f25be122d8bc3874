//! Fanout programs: which queue a packet comes to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use etherparse::PacketBuilder;
use sluicegate::port::{Directions, Queue};

use crate::{lab, receive_from, send, send_to, try_open};

/// A UDP packet between two hosts of 198.18.0.0/15 or 2001:db8::/32, marked as of this test.
fn udp(from: u8, to: u8, ports: (u16, u16), v6: bool) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [0xff; 6]);
    let ip = |host: u8| [198, 18, 77, host];
    let ip6 = |host: u8| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 77, host];
    let builder = match v6 {
        false => ethernet.ipv4(ip(from), ip(to), 64),
        true => ethernet.ipv6(ip6(from), ip6(to), 64),
    };
    let mut packet = Vec::new();
    builder.udp(ports.0, ports.1).write(&mut packet, b"sluice").unwrap();
    packet
}

fn is_udp_of_ours(bytes: &[u8]) -> bool {
    bytes.ends_with(b"sluice") && bytes[6..12] == [2, 0, 0, 0, 0, 1]
}

/// The number of the queue each of the packets came to; each came to one.
fn places(queues: &mut [Queue], sent: &[Vec<u8>]) -> Vec<usize> {
    let mut places = vec![None; sent.len()];
    let mut missing = sent.len();
    let deadline = std::time::Instant::now() + crate::PATIENCE;
    while missing > 0 && std::time::Instant::now() < deadline {
        for (number, queue) in queues.iter_mut().enumerate() {
            queue.sync_rx().unwrap();
            for packet in queue.rx().packets().filter(|p| is_udp_of_ours(p.head())) {
                let at = sent.iter().position(|sent| sent == packet.head()).expect("one of ours");
                assert_eq!(places[at].replace(number), None, "packet {at} came twice");
                missing -= 1;
            }
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
        }
    }
    places.into_iter().map(|place| place.expect("every packet comes")).collect()
}

#[test]
fn both_directions_of_a_flow_meet_in_one_queue_and_flows_spread() {
    let Some(lab) = lab() else { return };
    for v6 in [false, true] {
        let flows: Vec<(u8, u8)> = (1..=20).map(|i| (i, 200 - 3 * i)).collect();
        let there = flows.iter().map(|&(a, b)| udp(a, b, (1000 + u16::from(a), 53), v6));
        let back = flows.iter().map(|&(a, b)| udp(b, a, (53, 1000 + u16::from(a)), v6));
        let (there, back): (Vec<_>, Vec<_>) = (there.collect(), back.collect());
        for method in ["ring", "recvmmsg"] {
            let name = format!("packet:right0/0-3?method={method}&fanout=bpf");
            let mut port = receive_from(&lab, "right", &name);
            // One direction arrives, the other is sent by the host itself: as on a real path.
            send(&mut send_to(&lab, "left", "left0"), &there);
            let arrived = places(&mut port.queues, &there);
            send(&mut send_to(&lab, "right", "right0"), &back);
            let left = places(&mut port.queues, &back);
            assert_eq!(arrived, left, "{name}, IPv6: {v6}");
            let used: std::collections::BTreeSet<_> = arrived.iter().collect();
            assert!(used.len() > 1, "{name}, IPv6: {v6}: all flows in one queue");
        }
    }
}

/// A program that `tcpdump -ddd` made says which queue: its verdict, modulo their number.
#[test]
fn a_program_from_tcpdump_chooses_the_queue() {
    let Some(lab) = lab() else { return };
    let Ok(output) = Command::new("tcpdump")
        .args(["-ddd", "-s", "1", "-y", "EN10MB", "udp dst port 7777"])
        .output()
    else {
        println!("skipped: needs tcpdump; get it by scripts/setup.sh");
        return;
    };
    assert!(output.status.success());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    fs::write(&path, &output.stdout).unwrap();
    let name = format!("packet:right0/0-1?fanout=bpf&fanout_prog={}", path.display());
    let mut port = receive_from(&lab, "right", &name);
    let sent: Vec<_> = (0..10).map(|i| udp(i, 9, (i.into(), 7770 + u16::from(i)), false)).collect();
    let expected: Vec<usize> = (0..10).map(|i| usize::from(i == 7)).collect();
    for (host, interface) in [("left", "left0"), ("right", "right0")] {
        send(&mut send_to(&lab, host, interface), &sent);
        assert_eq!(places(&mut port.queues, &sent), expected, "sent by {host}");
    }
}

/// An eBPF program pinned by others.
#[test]
fn a_pinned_program_chooses_the_queue() {
    const SOURCE: &str = r#"
        typedef unsigned int u32;
        struct __sk_buff { u32 len; };
        static long (*load_bytes_relative)(const void *, u32, void *, u32, u32) = (void *)68;
        __attribute__((section("socket"), used))
        int choose(struct __sk_buff *skb)
        {
            unsigned char last = 0;
            /* The end of the source address, from the network header on. */
            load_bytes_relative(skb, 15, &last, 1, 1);
            return last;
        }
        char _license[] __attribute__((section("license"), used)) = "GPL";
    "#;
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(pinned) = pin(SOURCE, folder.path()) else { return };
    let name = format!("packet:right0/0-2?fanout=bpf&fanout_prog={}", pinned.0.display());
    let mut port = receive_from(&lab, "right", &name);
    let sent: Vec<_> = (0..12).map(|i| udp(i, 9, (5, 6), false)).collect();
    send(&mut send_to(&lab, "left", "left0"), &sent);
    let expected: Vec<usize> = (0..12).map(|i| i % 3).collect();
    assert_eq!(places(&mut port.queues, &sent), expected);
}

/// A program in bpffs that goes with this value.
struct Pinned(PathBuf);

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Compiles, loads and pins a program; says why where it cannot.
fn pin(source: &str, folder: &Path) -> Option<Pinned> {
    let (text, object) = (folder.join("choose.c"), folder.join("choose.o"));
    fs::write(&text, source).unwrap();
    let compiled = Command::new("clang")
        .args(["-O2", "-g", "-target", "bpf", "-c"])
        .arg(&text)
        .arg("-o")
        .arg(&object)
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        println!("skipped: needs a clang that makes eBPF; get it by scripts/setup.sh");
        return None;
    }
    let pin = Path::new("/sys/fs/bpf").join(format!("sluice-test-{}", std::process::id()));
    let loaded = ["bpftool", "/usr/sbin/bpftool"].iter().find_map(|bpftool| {
        let mut command = Command::new(bpftool);
        command.args(["prog", "load"]).arg(&object).arg(&pin).args(["type", "socket"]);
        command.output().ok()
    });
    match loaded {
        Some(output) if output.status.success() => Some(Pinned(pin)),
        Some(output) => {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            println!("skipped: needs to load programs; get it by sudo: {why}");
            None
        }
        None => {
            println!("skipped: needs bpftool; get it by installing it");
            None
        }
    }
}

#[test]
fn a_program_that_is_none_is_refused() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    fs::write(&path, "not a program").unwrap();
    // Assembles, and the kernel refuses it: it jumps out of itself.
    let jumps = folder.path().join("jumps");
    fs::write(&jumps, "2\n21 9 9 0\n6 0 0 1\n").unwrap();
    for (program, complaint) in [
        (path.display().to_string(), "as `tcpdump -ddd` and bpf_asm print them"),
        ("/nonexistent/program".into(), "name a pinned eBPF program or a file"),
        (jumps.display().to_string(), "set the fanout program of packet:right0"),
    ] {
        let name = format!("packet:right0/0-1?fanout=bpf&fanout_prog={program}");
        let error = try_open(&lab, "right", &name, Directions::Receive).unwrap_err().to_string();
        assert!(error.contains(complaint), "{program}: {error}");
    }
}
