//! The listing of streams and packets.

use std::process::Command;

use sluicegate_traffic::analyse::{Condition, inspect};
use sluicegate_traffic::show::show;
use sluicegate_traffic::spec::{Defaults, PROFILES, Spec};

use crate::frames;
use crate::generate::{Random, stream};
use crate::generated::SPECIFICATIONS;
use crate::tshark::write;

fn shown(spec: &Spec, packets: usize) -> String {
    let plan = spec.plan(&Defaults::default()).unwrap_or_else(|error| panic!("{error}"));
    let mut text = String::new();
    let line = |bytes: &[u8]| format!("{} bytes from {:02x}\n", bytes.len(), bytes[6]);
    show(spec, &plan, packets, line, &mut text).unwrap();
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
  arp    op request
";

#[test]
fn streams_are_shown_with_their_variation() {
    assert_eq!(shown(&Spec::parse(TEXT).unwrap(), 0), SHOWN);
}

#[test]
fn texts_are_shown_as_texts() {
    let labels = ["label"; 30].join(".");
    for (layer, expected) in [
        ("{ dns = { name = 'a.example.org', id = 7 } }", "dns    id 7, name a.example.org\n"),
        (&format!("{{ dns = {{ name = '{labels}' }} }}"), &format!("dns    name {labels}\n")),
        ("{ payload = { text = 'one, two' } }", "payload  text \"one, two\"\n"),
        (
            &format!("{{ payload = {{ text = '{}' }} }}", "a".repeat(300)),
            &format!("payload  text {}… (300 bytes)\n", "a".repeat(256)),
        ),
    ] {
        let text = format!("[[stream]]\nlayers = ['ether', 'ipv4', 'udp', {layer}]\n");
        let text = shown(&Spec::parse(&text).unwrap(), 0);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn packets_are_shown_as_they_are_sent() {
    let text = shown(&Spec::parse(TEXT).unwrap(), 4);
    assert!(text.starts_with(SHOWN));
    let packets: Vec<_> = text[SHOWN.len()..].split("\npacket ").skip(1).collect();
    assert_eq!(packets.len(), 4);
    assert!(
        packets[0]
            .starts_with("1: stream web, 80 bytes\n80 bytes from 02\n\t0x0000:  0200 0000 0002")
    );
    assert!(packets[2].starts_with("3: stream 1, 60 bytes\n60 bytes from 02\n"), "its turn");
}

#[test]
fn generated_frames_have_no_wrong_length_or_checksum() {
    for seed in 0..SPECIFICATIONS {
        let made = stream(&mut Random::new(seed));
        let plan = Spec::parse(&made.text).unwrap().plan(&Defaults::default()).unwrap();
        for frame in frames(&plan, 0, 1, 3) {
            assert_ne!(inspect(&frame, true).condition, Condition::Corrupt, "{}", made.text);
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
