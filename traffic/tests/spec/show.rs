//! The listing of a packet matches the packet.

use std::process::Command;

use sluicegate_traffic::show::show;
use sluicegate_traffic::spec::{Defaults, PROFILES, Spec};

use crate::frames;
use crate::generate::{Random, stream};
use crate::generated::SPECIFICATIONS;
use crate::tshark::write;

fn shown(spec: &Spec, packets: usize) -> String {
    let plan = spec.plan(&Defaults::default()).unwrap_or_else(|error| panic!("{error}"));
    let mut text = String::new();
    show(spec, &plan, packets, &mut text).unwrap();
    text
}

const TEXT: &str = "
[[stream]]
name = 'web'
weight = 3
flows = 10
size = '80,90'
layers = [
  'ether',
  { vlan = { id = 'flow:any:1,2,3', pcp = 5 } },
  { ipv4 = { src = '198.18.0.0/16', dst = 'flow:198.18.0.9..198.18.0.1/2', ttl = [64, 128] } },
  { tcp = { sport = 'flow:1024-65535', flags = 'SA', checksum = 'bad', options = 'mss=1460;nop' } },
  { payload = { random = true } },
]
[[stream]]
layers = ['ether', 'arp']
";

const SHOWN: &str = "\
stream web: 3 of 4 packets, 10 flows, 80,90 bytes
  ether
  vlan     pcp 5, id 1,2,3 (at random by flow)
  ipv4     ttl 64,128 (in turn), src 198.18.0.0/16 (at random),
           dst 198.18.0.9..198.18.0.1 (counted in steps of 2 by flow)
  tcp      sport 1024-65535 (at random by flow), dport 9, flags syn+ack, checksum bad,
           options mss=1460; nop
  payload  random

stream 1: 1 of 4 packets, 1 flow, 60 bytes
  ether
  arp    op request, spa 198.18.0.1, tpa 198.18.0.2
";

#[test]
fn streams_are_shown_with_their_variation() {
    assert_eq!(shown(&Spec::parse(TEXT).unwrap(), 0), SHOWN);
}

#[test]
fn packets_are_shown_as_they_are_sent() {
    let text = shown(&Spec::parse(TEXT).unwrap(), 4);
    assert!(text.starts_with(SHOWN));
    let packets: Vec<_> = text[SHOWN.len()..].split("\npacket ").skip(1).collect();
    assert_eq!(packets.len(), 4);
    let rows = [
        ("the stream and the size", "1: stream web, 80 bytes\n"),
        ("addresses on Ethernet", "\n  ether    02:00:00:00:00:01 > 02:00:00:00:00:02, type dot1q"),
        ("the tag", ", pcp 5, type ipv4 (0x0800)\n"),
        ("the counter's first", " > 198.18.0.9, ttl 64, id 0, tcp, length 62, checksum 0x"),
        ("what is right", " (right)\n"),
        ("options", " options mss=1460; nop,"),
        ("what is wrong, and what were right", " (wrong: 0x"),
        ("the rest", "\n  payload  14 bytes\n"),
        ("bytes", "\n\t0x0000:  0200 0000 0002 0200 0000 0001 8100 a00"),
    ];
    for (name, part) in rows {
        assert!(packets[0].contains(part), "{name}: {}", packets[0]);
    }
    assert!(packets[2].starts_with("3: stream 1, 60 bytes\n"), "its turn: {}", packets[2]);
    let arp = "request, 198.18.0.1 is at 02:00:00:00:00:01, target 198.18.0.2 at 00:00:00:00:00:00";
    assert!(packets[2].contains(&format!("\n  arp      {arp}\n  padding  18 bytes\n")));
}

/// Returns the layers in the listing of a packet.
fn layers_of(packet: &str) -> Vec<&str> {
    let lines = packet.lines().skip(1).take_while(|line| !line.starts_with('\t'));
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split_once(' '));
    let names = names.map(|(name, _)| name).filter(|name| !name.is_empty());
    names.filter(|name| !["payload", "padding"].contains(name)).collect()
}

#[test]
fn decoded_layers_match_generated_layers() {
    for seed in 0..SPECIFICATIONS {
        let made = stream(&mut Random::new(seed));
        let text = shown(&Spec::parse(&made.text).unwrap(), 3);
        assert!(!text.contains("wrong"), "{text}\n{}", made.text);
        let packets: Vec<_> = text.split("\npacket ").skip(1).collect();
        assert_eq!(packets.len(), 3);
        for packet in packets {
            assert_eq!(layers_of(packet), made.layers, "{packet}");
        }
    }
}

#[test]
fn bytes_look_as_tcpdump_prints_them() {
    if Command::new("tcpdump").arg("--version").output().is_err() {
        println!("skipped: needs tcpdump; get it by scripts/setup.sh");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcap");
    for profile in PROFILES {
        let spec = Spec::profile(profile.name).unwrap();
        write(&path, &frames(&spec.plan(&Defaults::default()).unwrap(), 0, 1, 3));
        let ran = Command::new("tcpdump").args(["-n", "-XX", "-r"]).arg(&path).output().unwrap();
        let theirs = String::from_utf8(ran.stdout).unwrap();
        let bytes = |text: &str| {
            let lines = text.lines().filter(|line| line.starts_with("\t0x"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let ours = bytes(&shown(&spec, 3));
        assert!(ours.len() >= 12, "{}", profile.name);
        assert_eq!(ours, bytes(&theirs), "{}", profile.name);
    }
}

#[test]
fn strange_packets_are_shown_too() {
    let rows = [
        ("a runt", "'ether'", "size = 14", "type 0x88b5"),
        ("raw bytes that are no Ethernet", "{ raw = { hex = '01' } }", "pad = false", "payload"),
        ("a header cut short", "{ ether = { type = 'ipv6' } }", "size = 20", "payload  6 bytes"),
        ("too great a length", "'ether', { ipv4 = { length = 999 } }", "", "length 999"),
        ("too small a one", "'ether', { ipv4 = { length = 3 } }, 'udp'", "", "length 3"),
        ("no version", "'ether', { ipv4 = { version = 5 } }", "", "type ipv4 (0x0800)"),
        ("a long extension", "'ether', 'ipv6', { routing = { length = 255 } }", "", "payload"),
        ("a short offset", "'ether', 'ipv4', { tcp = { offset = 1 } }", "", "tcp, length 40"),
    ];
    for (name, layers, keys, part) in rows {
        let text = format!("[[stream]]\n{keys}\nlayers = [{layers}]\n");
        let text = shown(&Spec::parse(&text).unwrap(), 1);
        let packet = text.split("\npacket ").nth(1).unwrap();
        assert!(packet.contains(part), "{name}: {packet}");
    }
}
