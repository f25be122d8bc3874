//! Frames that come to the filter: any bytes are a packet or have a defect, and the oracle decides on them.

use bolero::TypeGenerator;
use sluicegate_scrub::cause::Cause;
use sluicegate_scrub::oracle::Oracle;
use sluicegate_scrub::packet::{Parsed, Transport, Tunnels, parse_inside};
use sluicegate_scrub::testing::{FrameGenerator, Random, random_policy};

#[derive(Clone, Debug, TypeGenerator)]
enum Frame {
    Bytes(Vec<u8>),
    /// One that the policy is about, with bytes overwritten and its end cut off.
    Damaged {
        seed: u64,
        bytes: Vec<(u16, u8)>,
        end: Option<u16>,
    },
}

impl Frame {
    fn build(&self, generator: &FrameGenerator) -> Vec<u8> {
        let (seed, bytes, end) = match self {
            Self::Bytes(bytes) => return bytes.clone(),
            Self::Damaged { seed, bytes, end } => (*seed, bytes, *end),
        };
        let mut frame = generator.frame(&mut Random::new(seed));
        // The headers are at the beginning.
        let headers = frame.len().min(96);
        for (at, byte) in bytes.iter().filter(|_| headers > 0) {
            frame[usize::from(*at) % headers] = *byte;
        }
        if let Some(end) = end {
            frame.truncate(usize::from(end) % (frame.len() + 1));
        }
        frame
    }
}

#[test]
fn packet() {
    bolero::check!().with_type::<(u64, u32, Vec<Frame>)>().for_each(|(seed, gap, frames)| {
        let policy = random_policy(&mut Random::new(*seed));
        let generator = FrameGenerator::new(&policy);
        let (mut decides, mut explains) = (Oracle::new(&policy), Oracle::new(&policy));
        let mut now = 1_000_000_000;
        for frame in frames {
            let frame = frame.build(&generator);
            let is_defect = check(&frame, policy.tunnels);
            let explained = explains.explain(&frame, now);
            let decision = decides.decide(&frame, now);
            assert_eq!(explained.decision, decision, "{explained}");
            assert_eq!(matches!(decision.cause, Cause::Malformed(_)), is_defect, "{explained}");
            assert!(!explained.cause.is_empty() && !explained.steps.is_empty());
            now += u64::from(*gap);
        }
    });
}

/// Checks the fields of a frame. Returns true if it has a defect.
fn check(frame: &[u8], tunnels: Tunnels) -> bool {
    let packet = match parse_inside(frame, tunnels) {
        Parsed::NotIp => return false,
        Parsed::Malformed(_) => return true,
        Parsed::Packet(packet) => packet,
    };
    assert_eq!(packet.src.is_ipv4(), packet.dst.is_ipv4(), "{packet:?}");
    // Only BFD sends to itself, by a neighbor.
    let is_bfd_echo =
        packet.transport == Transport::Udp && packet.dport == 3785 && packet.ttl >= 254;
    assert!(packet.src != packet.dst || is_bfd_echo, "{packet:?}");
    assert!(packet.length as usize <= frame.len() && packet.payload.len() < packet.length as usize);
    let payload = packet.payload.as_ptr_range();
    assert!(frame.as_ptr_range().start <= payload.start && payload.end <= frame.as_ptr_range().end);
    assert!(packet.vlan < 4096 && packet.dscp < 64 && packet.flow_label < 1 << 20, "{packet:?}");
    // The source port of UDP may be 0.
    let has_ports = matches!(packet.transport, Transport::Tcp | Transport::Udp);
    assert_eq!(has_ports, packet.dport != 0, "{packet:?}");
    false
}
