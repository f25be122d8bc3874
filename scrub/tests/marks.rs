//! Rules that mark packets.

use etherparse::{NetSlice, SlicedPacket};
use sluicegate_scrub::policy::{Policy, Verdict};
use sluicegate_scrub::program::Program;
use sluicegate_scrub::tables::Tables;
use sluicegate_scrub::testing::{FrameSpec, TunnelSpec};

mod root;

const EF: u8 = 46;

#[test]
fn a_packet_that_passes_gets_the_dscp_and_a_right_checksum() {
    if !root::is_root() {
        return;
    }
    let text =
        "[[rule]]\nname = 'voice'\nmatch = { dport = 9 }\nmark = 'ef'\naction = 'continue'\n";
    let policy = Policy::parse(text).unwrap();
    let mut program = Program::for_rehearsal(64).unwrap();
    program.install(&Tables::build(&policy, 5).unwrap()).unwrap();
    for (src, dst) in [("198.18.0.1", "198.18.0.2"), ("2001:db8::1", "2001:db8::2")] {
        for tags in [vec![], vec![(0x8100, 7)], vec![(0x88a8, 7), (0x8100, 8)]] {
            for (dport, dscp) in [(9, EF), (10, 12)] {
                let mut spec = FrameSpec::udp(1000, dport, &[0; 30]).between(src, dst);
                (spec.tags, spec.dscp) = (tags.clone(), 12);
                let mut frame = spec.build();
                let ip = 14 + 4 * tags.len();
                if src.contains('.') {
                    let sum = etherparse::Ipv4Header::from_slice(&frame[ip..]).unwrap().0;
                    let sum = sum.calc_header_checksum().to_be_bytes();
                    frame[ip + 10..ip + 12].copy_from_slice(&sum);
                }
                let (decision, changed) = program.rehearse_answer(&frame).unwrap();
                assert_eq!(decision.verdict, Verdict::Pass);
                assert_eq!(changed.is_empty(), dscp == 12, "{src} {tags:?}");
                let leaves = if changed.is_empty() { &frame } else { &changed };
                let packet = SlicedPacket::from_ethernet(leaves).unwrap();
                match packet.net.unwrap() {
                    NetSlice::Ipv4(ip) => {
                        let header = ip.header().to_header();
                        assert_eq!(header.dscp.value(), dscp);
                        assert_eq!(header.header_checksum, header.calc_header_checksum());
                    }
                    NetSlice::Ipv6(ip) => {
                        assert_eq!(ip.header().to_header().traffic_class >> 2, dscp);
                    }
                    NetSlice::Arp(_) => panic!("no ARP"),
                }
            }
        }
    }
}

/// Returns the sum of words, which a right checksum makes 0xffff.
fn sum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|it| u32::from(it[0]) << 8 | it.get(1).map_or(0, |it| (*it).into()));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum + (sum >> 16)) as u16
}

#[test]
fn a_packet_inside_of_a_tunnel_gets_the_dscp_and_all_checksums_stay_right() {
    if !root::is_root() {
        return;
    }
    let text = "tunnels = ['gre', 'ipip']\n[[rule]]\nname = 'voice'\nmatch = { dport = 9 }\nmark = 'ef'\naction = 'continue'\n";
    let policy = Policy::parse(text).unwrap();
    let mut program = Program::for_rehearsal(64).unwrap();
    program.install(&Tables::build(&policy, 5).unwrap()).unwrap();
    let outer = FrameSpec { dscp: 12, ..FrameSpec::default() };
    let outer6 =
        FrameSpec { extensions: vec![60], ..outer.clone().between("2001:db8::8", "2001:db8::9") };
    let kinds = [0, 0x8000, 0xb000].map(TunnelSpec::Gre);
    for (src, dst) in [("198.18.0.1", "198.18.0.2"), ("2001:db8::1", "2001:db8::2")] {
        for (outer, kind) in [&outer, &outer6].into_iter().flat_map(|outer| {
            kinds.into_iter().chain([TunnelSpec::IpIp]).map(move |kind| (outer, kind))
        }) {
            let udp = FrameSpec::udp(1000, 9, &[3; 31]).between(src, dst);
            let mut spec =
                FrameSpec { tags: vec![(0x8100, 7)], dscp: 5, ..udp }.inside(outer, kind);
            let has_check = matches!(kind, TunnelSpec::Gre(flags) if flags & 0x8000 != 0);
            let length = spec.payload.len();
            let ip = length - 31 - 8 - if src.contains('.') { 20 } else { 40 };
            if src.contains('.') {
                let sum = etherparse::Ipv4Header::from_slice(&spec.payload[ip..]).unwrap().0;
                let sum = sum.calc_header_checksum().to_be_bytes();
                spec.payload[ip + 10..ip + 12].copy_from_slice(&sum);
            }
            if has_check {
                let check = (!sum(&spec.payload)).to_be_bytes();
                spec.payload[4..6].copy_from_slice(&check);
                assert_eq!(sum(&spec.payload), 0xffff);
            }
            let frame = spec.build();
            let (decision, changed) = program.rehearse_answer(&frame).unwrap();
            assert_eq!(decision.verdict, Verdict::Pass);
            let (head, inside) = changed.split_at(frame.len() - length);
            assert_eq!(head, &frame[..head.len()], "the outer headers stay");
            if has_check {
                assert_eq!(sum(inside), 0xffff, "{kind:?} {dst}");
            }
            let packet = etherparse::IpHeaders::from_slice(&inside[ip..]).unwrap().0;
            match packet {
                etherparse::IpHeaders::Ipv4(ip, _) => {
                    assert_eq!(ip.dscp.value(), EF);
                    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                }
                etherparse::IpHeaders::Ipv6(ip, _) => assert_eq!(ip.traffic_class >> 2, EF),
            }
        }
    }
}
