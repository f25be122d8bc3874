//! `packet:any`: all interfaces at once, including later ones.

use std::collections::BTreeMap;
use std::io::Write as _;

use nix::sys::signal::Signal;
use sluicegate::link::{self, Lab};

use crate::support::*;

/// Makes a TUN device, of a hardware type if one is given, and writes each packet to it that comes as a
/// line of hexadecimal digits.
const TUN: &str = r"
import fcntl, os, struct, subprocess, sys
tun = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH22x', sys.argv[1].encode(), 0x1001))
if len(sys.argv) > 2:
    fcntl.ioctl(tun, 0x400454cd, int(sys.argv[2]))
subprocess.check_call(['ip', 'link', 'set', sys.argv[1], 'up'])
for line in sys.stdin:
    os.write(tun, bytes.fromhex(line))
    print(file=sys.stderr, flush=True)
";

/// A datagram to UDP port `port`, from 198.51.100.1.
fn datagram(port: u16) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ipv4([198, 51, 100, 1], [198, 18, 0, 2], 64);
    let mut packet = Vec::new();
    builder.udp(1024, port).write(&mut packet, b"any").unwrap();
    packet
}

/// A datagram in a frame with the VLAN tag 5.
fn tagged(port: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 198, 18, 0, 2, 2, 0, 198, 18, 0, 1, 0x81, 0, 0, 5, 8, 0];
    frame.extend(datagram(port));
    frame
}

/// Sends packets that match the filter and packets that do not, through right0, lo and new devices.
/// Returns the number of matches by device, and the devices, which must stay until the capture has read
/// their names.
fn traffic(lab: &Lab) -> (BTreeMap<String, usize>, Vec<Running>) {
    let mut devices = Vec::new();
    assert_eq!(on(lab, "left", &["ping", "-qc", "2", "-i", "0.01", "198.18.0.2"]).status, Some(0));
    assert_eq!(on(lab, "right", &["ping", "-qc", "2", "-i", "0.01", "127.0.0.1"]).status, Some(0));
    for more in [&["tun0"][..], &["gre0", "778"]] {
        let mut tun = background_fed(lab, "right", &[&["python3", "-c", TUN], more].concat());
        for port in [9, 10] {
            let digits: String = datagram(port).iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(tun.child().stdin.as_mut().unwrap(), "{digits}").unwrap();
            assert_eq!(tun.says(), "\n");
        }
        devices.push(tun);
    }
    let expected = [("right0", 4), ("lo", 4), ("tun0", 1), ("gre0", 1)];
    (expected.map(|(name, packets)| (name.to_owned(), packets)).into(), devices)
}

#[test]
fn all_interfaces_are_captured_including_later_ones() {
    let Some(lab) = lab_with(&["ping", "python3", "tcpreplay", "tshark", "tcpdump", "capinfos"])
    else {
        return;
    };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    on(&lab, "right", &["ip", "link", "set", "lo", "up"]);
    for (file, threads) in [("any.pcapng", "1"), ("any.pcap", "1"), ("three.pcapng", "3")] {
        let path = folder.path().join(file);
        let to = path.to_str().unwrap();
        let capture = Running::start(&[
            "capture",
            "any",
            "--netns",
            &netns,
            "-f",
            "icmp or udp port 9",
            "-w",
            to,
            "--threads",
            threads,
            "--json",
        ]);
        let right0 = link::interface(Some(&netns), "right0").unwrap().index.to_string();
        let (expected, devices) = traffic(&lab);
        let report = capture.stop().good();
        drop(devices);
        let packets: usize = expected.values().sum();
        assert_eq!(report["packets"], packets, "{file}: {report}");
        // Another tool understands all packets.
        let fields = ["frame.interface_name", "frame.protocols", "sll.ifindex", "udp.dstport"];
        let fields = [&fields[..], &["frame.p2p_dir"]].concat();
        let fields = fields.iter().flat_map(|field| ["-e", field]).collect::<Vec<_>>();
        let shown = tshark(&path, &[&["-T", "fields", "-E", "separator=,"], &fields[..]].concat());
        let shown: Vec<Vec<&str>> = shown.iter().map(|line| line.split(',').collect()).collect();
        let of = |at: usize, value: &str| shown.iter().filter(|it| it[at] == value).count();
        assert_eq!((shown.len(), of(3, "9")), (packets, 2), "{file}: {shown:?}");
        if file.ends_with("pcap") {
            let info = ended(std::process::Command::new("capinfos").args(["-E", to]));
            assert!(info.out.contains("cooked-mode capture v2"), "{file}: {}", info.out);
            assert_eq!(of(2, &right0), expected["right0"], "{file}: {shown:?}");
            let read = ended(std::process::Command::new("tcpdump").args(["-nnr", to]));
            assert_eq!(read.out.lines().count(), packets, "{file}: {}", read.err);
            continue;
        }
        let begins = [("right0", "eth:"), ("lo", "eth:"), ("tun0", "raw:"), ("gre0", "sll:")];
        for (name, begins) in begins {
            assert_eq!(of(0, name), expected[name], "{file}: {name}: {shown:?}");
            let all = shown.iter().filter(|it| it[0] == name).all(|it| it[1].starts_with(begins));
            assert!(all, "{file}: {name}: {shown:?}");
        }
        // Each is received or sent, and known to be.
        assert!(of(4, "1") > 0 && of(4, "0") > 0, "{file}: {shown:?}");
        assert_eq!(of(4, "1") + of(4, "0"), packets, "{file}: {shown:?}");
    }
}

#[test]
fn a_removed_device_keeps_its_name_in_the_capture() {
    let Some(lab) = lab_with(&["python3", "tshark"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let path = folder.path().join("any.pcapng");
    let capture = capture(&netns, "any", "udp port 9", &path);
    capture.signal(Signal::SIGSTOP);
    for name in ["tun0", "tun1"] {
        let mut tun = background_fed(&lab, "right", &["python3", "-c", TUN, name]);
        let digits: String = datagram(9).iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(tun.child().stdin.as_mut().unwrap(), "{digits}").unwrap();
        assert_eq!(tun.says(), "\n");
        drop(tun);
        eventually("it is removed", || link::interface(Some(&netns), name).is_err());
    }
    capture.signal(Signal::SIGCONT);
    let report = capture.stop().good();
    assert_eq!(report["packets"], 2, "{report}");
    let shown = tshark(&path, &["-T", "fields", "-e", "frame.interface_name"]);
    assert_eq!(shown, ["tun0", "tun1"]);
}

#[test]
fn a_filter_on_ethernet_holds_for_ethernet_interfaces_and_tags_are_kept() {
    let Some(lab) = lab_with(&["tcpreplay", "tshark"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let sent = folder.path().join("sent.pcap");
    pcap_file(&sent, &[tagged(9), tagged(10)]);
    for file in ["any.pcapng", "any.pcap"] {
        let path = folder.path().join(file);
        let capture = capture(&netns, "any", "vlan 5 and udp port 9", &path);
        replay(&lab, "left", "left0", &sent, 1000);
        let report = capture.stop().good();
        assert_eq!(report["packets"], 1, "{file}: {report}");
        let fallback = &report["fallbacks"][0];
        assert_eq!(fallback["to"], "Ethernet interfaces", "{file}: {report}");
        let fields = ["vlan.id", "udp.dstport"].map(|field| ["-e", field]).concat();
        let shown = tshark(&path, &[&["-T", "fields"], &fields[..]].concat());
        assert_eq!(shown, ["5\t9"], "{file}");
    }
}

#[test]
fn lines_of_all_interfaces_name_the_interface_and_the_direction() {
    let Some(lab) = lab_with(&["ping"]) else { return };
    let netns = lab.netns("right");
    let capture = Running::start(&["capture", "any", "--netns", &netns, "-f", "icmp"]);
    assert_eq!(on(&lab, "left", &["ping", "-qc", "1", "198.18.0.2"]).status, Some(0));
    let ended = capture.stop();
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    let lines: Vec<&str> =
        ended.out.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    assert!(
        lines[0].starts_with("right0 In  IP 198.18.0.1 > 198.18.0.2: ICMP echo request"),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("right0 Out IP 198.18.0.2 > 198.18.0.1: ICMP echo reply"),
        "{lines:?}"
    );
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[test]
fn options_of_a_single_interface_are_refused_for_any() {
    for (port, said) in [
        ("packet:any?method=recv", "method=ring only"),
        ("packet:any?timestamp=hardware", "timestamp=hardware is for one interface"),
        ("packet:lo?cooked=on", "cooked= is for packet:any"),
        ("mirror:any", "'any' is for packet: ports that receive"),
    ] {
        refused(&["capture", port, "--duration", "1ms"], said);
    }
    refused(&["capture", "-w", "trace.pcapng"], "<PORT>");
}
