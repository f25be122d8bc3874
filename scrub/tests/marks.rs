//! Rules that mark packets.

use etherparse::{NetSlice, SlicedPacket};
use sluicegate_scrub::policy::{Policy, Verdict};
use sluicegate_scrub::program::Program;
use sluicegate_scrub::tables::Tables;
use sluicegate_scrub::testing::FrameSpec;

#[path = "root/mod.rs"]
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
