//! Cuts a packet to a length, and makes it valid there.

use sluicegate_base::headers::{self, be16, ethertype, protocol};

use super::checksum::recompute;

/// Cuts an Ethernet frame to `bytes`. The lengths of IPv4, IPv6 and UDP follow, and the checksums of IPv4, TCP,
/// UDP, ICMP and ICMPv6, except in fragments: their checksums cover other fragments, too.
pub(crate) fn cut(frame: &mut Vec<u8>, bytes: usize) {
    frame.truncate(bytes);
    let Some(found) = headers::find(frame) else { return };
    let Some(ip) = &found.ip else { return };
    let v6 = found.ethertype == ethertype::IPV6;
    let (length_at, besides) = if v6 { (4, 40) } else { (2, 0) };
    limit(frame, found.network + length_at, bytes.saturating_sub(found.network + besides));
    if let (protocol::UDP, false, Some(carried)) = (ip.protocol, ip.fragment, &ip.transport) {
        limit(frame, carried.start + 4, carried.len());
    }
    recompute(frame, &found, ip);
}

/// Limits a length in a header to the bytes that exist. 0 stands for a length above 65535 bytes, or one that
/// the card sets later.
fn limit(frame: &mut [u8], at: usize, bytes: usize) {
    let length = be16(frame, at).map_or(0, usize::from);
    let Some(field) = frame.get_mut(at..at + 2) else { return };
    if length == 0 || length > bytes {
        // A packet is cut to an MTU, which is at most 65535 bytes where the field is too short.
        let bytes = u16::try_from(bytes).unwrap_or(0);
        field.copy_from_slice(&bytes.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
    use sluicegate_base::ring::LINKTYPE_ETHERNET;

    use super::super::{Rewrite, Rule, tests::frame};
    use super::*;

    /// Makes a packet of a protocol with this much payload, as a library that nobody here wrote makes it.
    fn made(v6: bool, kind: u8, payload: usize) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let ip = match v6 {
            true => ethernet.ipv6([0x20; 16], [0x21; 16], 64),
            false => ethernet.ipv4([198, 18, 0, 1], [198, 18, 0, 2], 64),
        };
        let (mut frame, payload) = (Vec::new(), vec![7; payload]);
        match (kind, v6) {
            (protocol::TCP, _) => ip.tcp(1, 2, 3, 4).write(&mut frame, &payload),
            (protocol::UDP, _) => ip.udp(1, 2).write(&mut frame, &payload),
            (_, false) => ip.icmpv4_echo_request(1, 2).write(&mut frame, &payload),
            (_, true) => ip.icmpv6_echo_request(1, 2).write(&mut frame, &payload),
        }
        .unwrap();
        frame
    }

    #[test]
    fn a_cut_packet_equals_one_made_that_short() {
        for v6 in [false, true] {
            for kind in [protocol::TCP, protocol::UDP, protocol::ICMP] {
                let short = made(v6, kind, 101);
                let mut long = made(v6, kind, 1400);
                cut(&mut long, short.len());
                assert_eq!(long, short, "{kind}, IPv6 {v6}");
                let packet = SlicedPacket::from_ethernet(&long).unwrap();
                if let Some(TransportSlice::Udp(udp)) = packet.transport {
                    assert_eq!(udp.length(), 109);
                }
            }
        }
    }

    #[test]
    fn padding_is_cut_and_a_fragment_keeps_its_checksum() {
        let mut padded = made(false, protocol::UDP, 100);
        let whole = padded.clone();
        padded.resize(1400, 9);
        cut(&mut padded, 1000);
        assert_eq!(padded[..whole.len()], whole, "its lengths were right");
        let mut piece = frame(0, false, protocol::UDP, &[7; 1000]);
        piece[20..22].copy_from_slice(&[0x20, 0]);
        let carried = piece[34..214].to_vec();
        cut(&mut piece, 214);
        assert_eq!(piece[16..18], [0, 200]);
        assert_eq!(piece[34..], carried);
        let fixed = piece.clone();
        let fix: Rewrite = [Rule::Checksums].into_iter().collect();
        fix.apply(LINKTYPE_ETHERNET, &mut piece);
        assert_eq!(piece, fixed, "the IPv4 header's checksum is right");
    }

    #[test]
    fn any_cut_leaves_the_bytes_before_the_lengths() {
        for v6 in [false, true] {
            let whole = made(v6, protocol::TCP, 100);
            for bytes in 0..whole.len() {
                let mut frame = whole.clone();
                cut(&mut frame, bytes);
                assert_eq!(frame.len(), bytes);
                assert_eq!(frame[..bytes.min(14)], whole[..bytes.min(14)]);
            }
        }
    }
}
