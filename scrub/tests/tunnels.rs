//! Packets inside of tunnels, as tshark reads them.

use std::io::Write;
use std::process::{Command, Stdio};

use sluicegate_scrub::packet::{Parsed, Tunnels, parse_inside};
use sluicegate_scrub::testing::{FrameSpec, TunnelSpec};

/// Returns a capture file of frames.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let words = [0xa1b2_c3d4_u32, 2 << 16 | 4, 0, 0, 1 << 16, 1];
    let mut file: Vec<u8> = words.iter().flat_map(|it| it.to_be_bytes()).collect();
    for frame in frames {
        let length = frame.len() as u32;
        file.extend([0, 0, length, length].iter().flat_map(|it| it.to_be_bytes()));
        file.extend(frame);
    }
    file
}

/// Returns the fields of each frame, of each its innermost value. None without tshark.
fn by_tshark(frames: &[Vec<u8>], fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-r", "-", "-T", "fields", "-E", "occurrence=l"]);
    fields.iter().for_each(|field| _ = tshark.args(["-e", field]));
    let pipes = tshark.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = pipes.spawn() else {
        println!("skipped: needs tshark; get it by scripts/setup.sh");
        return None;
    };
    child.stdin.take().unwrap().write_all(&capture(frames)).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(|line| line.split('\t').map(Into::into).collect()).collect())
}

#[test]
fn the_packet_inside_is_the_one_that_tshark_finds() {
    let gre = [0, 0x8000, 0x2000, 0x1000, 0xb000].map(TunnelSpec::Gre);
    let kinds: Vec<_> = gre.into_iter().chain([TunnelSpec::IpIp]).collect();
    let v6 = FrameSpec::default().between("2001:db8::8", "2001:db8::9");
    let outers = [
        FrameSpec { options: 8, ..FrameSpec::default() },
        FrameSpec { extensions: vec![60], ..v6.clone() },
        v6,
    ];
    let mut specs = Vec::new();
    for (number, addresses) in
        [("192.0.2.7", "198.51.100.9"), ("2001:db8:7::1", "2001:db8:9::1")].iter().enumerate()
    {
        let (src, dst) = addresses;
        let mut spec = FrameSpec::udp(1000 + number as u16, 7777, &[1; 40]).between(src, dst);
        spec.ttl = 17;
        let tcp = FrameSpec { protocol: 6, sport: 2000, tags: vec![(0x8100, 7)], ..spec.clone() };
        specs.extend([spec, tcp]);
    }
    let mut frames = Vec::new();
    for outer in &outers {
        for kind in &kinds {
            frames.extend(specs.iter().map(|spec| spec.inside(outer, *kind).build()));
        }
    }
    let fields = [
        "ip.src",
        "ip.dst",
        "ip.ttl",
        "ipv6.src",
        "ipv6.dst",
        "ipv6.hlim",
        "udp.srcport",
        "udp.dstport",
        "tcp.srcport",
        "tcp.dstport",
        "vlan.id",
    ];
    let Some(rows) = by_tshark(&frames, &fields) else { return };
    assert_eq!(rows.len(), frames.len());
    for (frame, row) in frames.iter().zip(rows) {
        let all = Tunnels { gre: true, ipip: true };
        let Parsed::Packet(packet) = parse_inside(frame, all) else { panic!("{frame:02x?}") };
        let network = if packet.src.is_ipv4() { &row[..3] } else { &row[3..6] };
        let transport = if packet.protocol == 17 { &row[6..8] } else { &row[8..10] };
        let ours = [packet.src.to_string(), packet.dst.to_string(), packet.ttl.to_string()];
        assert_eq!(ours, network, "{frame:02x?}");
        assert_eq!([packet.sport, packet.dport].map(|it| it.to_string()), transport);
        assert_eq!(packet.vlan, row[10].parse().unwrap_or(0));
        assert!(packet.tunnel.is_some() && packet.payload == [1; 40]);
    }
}
