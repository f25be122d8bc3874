//! Finds packets in packets: those in tunnels, and those that ICMP errors quote.

use std::ops::Range;

use sluicegate_base::headers::{ETHERNET_BYTES, Headers, Ip, be16, ethertype, protocol};

/// The content of a packet after its outermost headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Data, or nothing.
    Payload,
    /// Another packet.
    Packet(InnerPacket),
    /// A protocol whose addresses are not found.
    Unknown,
}

/// A packet in a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InnerPacket {
    /// The EtherType; `ETHERNET` for a complete frame.
    pub ethertype: u16,
    /// Its position.
    pub at: Range<usize>,
    /// The offset of a checksum that covers it, besides those of UDP and ICMPv6.
    pub checksum: Option<usize>,
}

/// Returns the content of a packet.
#[inline]
pub(super) fn content(frame: &[u8], found: &Headers) -> Content {
    match &found.ip {
        // The first comparison, because most packets are TCP.
        Some(ip) if ip.protocol == protocol::TCP => Content::Payload,
        Some(ip) => of_ip(frame, ip),
        None => of_link(frame, found.ethertype, found.network),
    }
}

fn packet(ethertype: u16, at: usize, end: usize) -> Content {
    Content::Packet(InnerPacket { ethertype, at: at.min(end)..end, checksum: None })
}

/// Returns the content of a packet without an IP header.
fn of_link(frame: &[u8], kind: u16, at: usize) -> Content {
    const MPLS_MULTICAST: u16 = 0x8848;
    const PPPOE_SESSION: u16 = 0x8864;
    /// Smaller numbers are lengths (IEEE 802.3), of frames without IP.
    const MIN_ETHERTYPE: u16 = 1536;
    /// MAC control, slow protocols, 802.1X, LLDP, PTP.
    const WITHOUT_IP: [u16; 5] = [0x8808, 0x8809, 0x888e, 0x88cc, 0x88f7];
    let (kind, at) = match kind {
        ethertype::MPLS | MPLS_MULTICAST => {
            let labels = frame.get(at..).unwrap_or_default().as_chunks::<4>().0;
            let bottom = labels.iter().position(|label| label[2] & 1 == 1);
            let at = bottom.map_or(frame.len(), |bottom| at + (bottom + 1) * 4);
            // The stack does not name its content; an IP header begins with its version (RFC 4928).
            (frame.get(at).map(|first| u16::from(first >> 4)), at)
        }
        PPPOE_SESSION => match be16(frame, at + 6) {
            Some(0x0021) => (Some(4), at + 8),
            Some(0x0057) => (Some(6), at + 8),
            _ => (None, at),
        },
        ethertype::ARP => return Content::Payload,
        _ if kind < MIN_ETHERTYPE || WITHOUT_IP.contains(&kind) => return Content::Payload,
        _ => return Content::Unknown,
    };
    match kind {
        Some(4) => packet(ethertype::IPV4, at, frame.len()),
        Some(6) => packet(ethertype::IPV6, at, frame.len()),
        _ => Content::Unknown,
    }
}

fn of_ip(frame: &[u8], ip: &Ip) -> Content {
    use protocol::{GRE, ICMP, ICMPV6, UDP};
    const IPV4: u8 = 4;
    const IPV6: u8 = 41;
    const MPLS: u8 = 137;
    const ETHERNET: u8 = 143;
    const FOUND: [u8; 5] = [IPV4, IPV6, GRE, MPLS, ETHERNET];
    /// RSVP, ESP, AH, minimal encapsulation, EIGRP, OSPF, IPIP, EtherIP, ENCAP, PIM, IPComp, VRRP, L2TP,
    /// ROHC, AGGFRAG.
    const UNKNOWN: [u8; 15] = [46, 50, 51, 55, 88, 89, 94, 97, 98, 103, 108, 112, 115, 142, 144];
    let Some(Range { start, end }) = ip.transport.clone() else {
        let is_unknown = FOUND.contains(&ip.protocol) || UNKNOWN.contains(&ip.protocol);
        return if is_unknown { Content::Unknown } else { Content::Payload };
    };
    let carried = &frame[start..end];
    let first = carried.first().copied().unwrap_or_default();
    match ip.protocol {
        IPV4 => packet(ethertype::IPV4, start, end),
        IPV6 => packet(ethertype::IPV6, start, end),
        // RFC 4023, RFC 8986.
        MPLS => packet(ethertype::MPLS, start, end),
        ETHERNET => packet(ethertype::ETHERNET, start, end),
        // Unreachable, quench, time exceeded, parameter problem (RFC 792).
        ICMP if matches!(first, 3 | 4 | 11 | 12) => Content::Packet(InnerPacket {
            ethertype: ethertype::IPV4,
            at: (start + 8).min(end)..end,
            checksum: Some(start + 2),
        }),
        // A redirect and an advertisement contain routers' addresses.
        ICMP if matches!(first, 5 | 9) => Content::Unknown,
        // Errors (RFC 4443).
        ICMPV6 if first < 128 => packet(ethertype::IPV6, start + 8, end),
        // Neighbour discovery.
        ICMPV6 if matches!(first, 133..=137) => Content::Unknown,
        GRE => of_gre(carried, start),
        UDP => of_udp(carried, start),
        kind if UNKNOWN.contains(&kind) => Content::Unknown,
        _ => Content::Payload,
    }
}

/// Returns the content of GRE (RFC 2784, RFC 2890) that begins at `start`.
fn of_gre(bytes: &[u8], start: usize) -> Content {
    let (Some(flags), Some(kind)) = (be16(bytes, 0), be16(bytes, 2)) else {
        return Content::Unknown;
    };
    let has_checksum = flags & 0x8000 != 0;
    // With routing, or of version 1 (PPTP), it has other fields.
    let is_known = flags & 0x4007 == 0 && is_network(kind);
    if !is_known {
        return Content::Unknown;
    }
    let optional = (flags & 0xb000).count_ones() as usize * 4;
    let end = start + bytes.len();
    let at = (start + 4 + optional).min(end)..end;
    let checksum = has_checksum.then_some(start + 4);
    Content::Packet(InnerPacket { ethertype: kind, at, checksum })
}

/// Returns the content of a UDP header that begins at `start`. Destination ports name tunnels; answers of those
/// that are not found have the port as their source.
fn of_udp(bytes: &[u8], start: usize) -> Content {
    const HEADER: usize = 8;
    /// OpenVPN, L2TP, GTP, Teredo, LISP, IPsec, GRE and MPLS in DTLS, CAPWAP, GUE.
    const UNKNOWN: [u16; 12] =
        [1194, 1701, 2123, 2152, 3544, 4341, 4342, 4500, 4755, 5247, 6080, 6636];
    const WIREGUARD: u16 = 51820;
    let end = start + bytes.len();
    let at = start + HEADER;
    let content = bytes.get(HEADER..).unwrap_or_default();
    match be16(bytes, 2) {
        // VXLAN (RFC 7348), and Linux's first number for it.
        Some(4789 | 8472) if content.len() >= 8 => packet(ethertype::ETHERNET, at + 8, end),
        // Geneve (RFC 8926), with options.
        Some(6081) => match (content.first(), be16(content, 2)) {
            (Some(&first), Some(kind)) if is_network(kind) => {
                packet(kind, at + 8 + usize::from(first & 0x3f) * 4, end)
            }
            _ => Content::Unknown,
        },
        // VXLAN-GPE names its content (draft-ietf-nvo3-vxlan-gpe).
        Some(4790) => match content.first_chunk::<8>().map(|header| header[3]) {
            Some(1) => packet(ethertype::IPV4, at + 8, end),
            Some(2) => packet(ethertype::IPV6, at + 8, end),
            Some(3) => packet(ethertype::ETHERNET, at + 8, end),
            _ => Content::Unknown,
        },
        // GRE in UDP (RFC 8086).
        Some(4754) => of_gre(content, at),
        // MPLS in UDP (RFC 7510).
        Some(6635) => packet(ethertype::MPLS, at, end),
        // TZSP, which has no answers. A temporary port may have this number.
        Some(37008) => Content::Unknown,
        destination => {
            let ports = [be16(bytes, 0), destination].into_iter().flatten();
            // A temporary port may have this number. Messages have a type and zeros.
            let wireguard = matches!(content, [1..=4, 0, 0, 0, ..]);
            let is_unknown = |port| UNKNOWN.contains(&port) || port == WIREGUARD && wireguard;
            if ports.into_iter().any(is_unknown) { Content::Unknown } else { Content::Payload }
        }
    }
}

/// Reports whether the content of a tunnel has addresses that can be found.
fn is_network(kind: u16) -> bool {
    use ethertype::{ARP, ETHERNET, IPV4, IPV6, MPLS};
    [ARP, ETHERNET, IPV4, IPV6, MPLS].contains(&kind) || ethertype::VLAN_TAGS.contains(&kind)
}

impl InnerPacket {
    /// Returns the EtherType and the offset of the network header; `None` if the packet has neither.
    pub(super) fn network_header(&self, frame: &[u8]) -> Option<(u16, usize)> {
        let at = self.at.start;
        match self.ethertype {
            ethertype::ETHERNET => be16(&frame[..self.at.end], at + ETHERNET_BYTES - 2)
                .map(|ethertype| (ethertype, at + ETHERNET_BYTES)),
            ethertype => Some((ethertype, at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_base::ring::LINKTYPE_ETHERNET;

    use super::super::{Rewrite, Rule};
    use crate::plan::FrameBuilder;
    use crate::spec::{Defaults, Spec};

    /// Makes the frame of these layers after `ether`, with addresses of these prefixes.
    fn frame(layers: &str, v4: &str, v6: &str, mac: &str) -> Vec<u8> {
        // The EtherType of raw bytes is that of a PPPoE session.
        let raw = if layers.starts_with("{ raw = { hex = '11") { ", type = 0x8864" } else { "" };
        let outer = format!("{{ ether = {{ src = '{mac}:01', dst = '{mac}:02'{raw} }} }}");
        let v4_of = |protocol| {
            format!("ipv4 = {{ src = '{v4}.1', dst = '{v4}.2', protocol = {protocol} }}")
        };
        let layers = layers
            .replace("V4-137", &v4_of(137))
            .replace("V4-143", &v4_of(143))
            .replace("V4", &format!("ipv4 = {{ src = '{v4}.1', dst = '{v4}.2' }}"))
            .replace("V6", &format!("ipv6 = {{ src = '{v6}::1', dst = '{v6}::2' }}"))
            .replace("MAC", &format!("ether = {{ src = '{mac}:01', dst = '{mac}:02' }}"));
        let payload = "{ payload = { random = true, length = 61 } }";
        let text = format!("[[stream]]\nlayers = [{outer}, {layers}, {payload}]");
        let plan = Spec::parse(&text).and_then(|spec| spec.plan(&Defaults::default()));
        let plan = plan.unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut frame = vec![0; 2048];
        let bytes = FrameBuilder::new(&plan, 0, 1, || 0).next_into(&mut frame).unwrap();
        frame.truncate(bytes);
        frame
    }

    fn rules() -> Rewrite {
        let prefixes = ["10.1.0.0/16=198.18.0.0/16", "fd00::/64=2001:db8::/64"];
        let macs = ["02:00:00:00:01:01=02:00:00:00:09:01", "02:00:00:00:01:02=02:00:00:00:09:02"];
        prefixes.iter().chain(&macs).map(|rule| rule.parse::<Rule>().unwrap()).collect()
    }

    #[test]
    fn a_changed_inner_packet_is_the_one_that_would_have_been_made() {
        for layers in [
            "{ V4 }, { V4 }, 'tcp'",
            "{ V4 }, { V6 }, 'udp'",
            "{ V6 }, { V4 }, 'icmp'",
            "{ V6 }, { V6 }, 'tcp'",
            "{ V4 }, 'gre', { V4 }, 'udp'",
            "{ V4 }, { gre = { checksum = 'right', key = 7, seq = 9 } }, { V6 }, 'udp'",
            "{ V6 }, { gre = { checksum = 'right' } }, { MAC }, { V4 }, 'tcp'",
            "{ V4 }, 'udp', 'vxlan', { MAC }, { V4 }, 'tcp'",
            "{ V4 }, { udp = { checksum = 'right' } }, 'vxlan', { MAC }, 'vlan', { V6 }, 'tcp'",
            "{ V6 }, 'udp', 'vxlan', { MAC }, { V4 }, { V4 }, 'tcp'",
            "{ V4 }, { udp = { dport = 6081 } }, { raw = { hex = '0100655800000700aabbccdd' } }, { MAC }, { V4 }, 'tcp'",
            "{ V4 }, { udp = { dport = 4790 } }, { raw = { hex = '0c00000100000700' } }, { V4 }, 'tcp'",
            "{ V6 }, { udp = { dport = 4790 } }, { raw = { hex = '0c00000300000700' } }, { MAC }, { V6 }, 'udp'",
            "{ V4 }, { udp = { dport = 6635, checksum = 'right' } }, 'mpls', { V4 }, 'tcp'",
            "{ V4-137 }, 'mpls', 'mpls', { V6 }, 'tcp'",
            "{ V4-143 }, { MAC }, { V4 }, 'udp'",
            "'mpls', 'mpls', { V4 }, 'tcp'",
            "'mpls', { V6 }, 'udp'",
            "{ raw = { hex = '1100000100770021' } }, { V4 }, 'tcp'",
            "{ V4 }, { icmp = { type = 3, code = 1 } }, { V4 }, 'udp'",
            "{ V4 }, { icmp = { type = 11 } }, { V4 }, 'icmp'",
            "{ V6 }, { icmpv6 = { type = 3 } }, { V6 }, 'tcp'",
            "{ V4 }, 'gre', { V4 }, { icmp = { type = 3 } }, { V4 }, 'udp'",
        ] {
            let mut changed = frame(layers, "10.1.0", "fd00", "02:00:00:00:01");
            let expected = frame(layers, "198.18.0", "2001:db8", "02:00:00:00:09");
            assert!(rules().apply(LINKTYPE_ETHERNET, &mut changed), "{layers}");
            assert_eq!(changed, expected, "{layers}");
        }
    }

    #[test]
    fn a_quoted_packet_may_be_cut_anywhere() {
        let layers = "{ V4 }, { icmp = { type = 3, code = 3 } }, { V4 }, 'udp'";
        let whole = frame(layers, "10.1.0", "fd00", "02:00:00:00:01");
        for bytes in 0..whole.len() {
            let mut cut = whole[..bytes].to_vec();
            let all = rules().apply(LINKTYPE_ETHERNET, &mut cut);
            // With both headers, of 20 bytes each, all addresses are known.
            assert!(all || bytes < 14 + 20 + 8 + 20, "{bytes}");
            if bytes >= 62 {
                assert_eq!(cut[42 + 12..42 + 16], [198, 18, 0, 1], "{bytes}");
            }
        }
    }

    #[test]
    fn unknown_content_is_reported() {
        for (sentence, layers) in [
            ("ESP", "{ ipv4 = { protocol = 50 } }"),
            ("OSPF", "{ ipv4 = { protocol = 89 } }"),
            ("PPTP", "'ipv4', { gre = { version = 1, protocol = 0x880b } }"),
            ("GTP", "'ipv4', { udp = { dport = 2152 } }"),
            ("GTP, back", "'ipv4', { udp = { sport = 2152, dport = 9 } }"),
            ("WireGuard", "'ipv4', { udp = { dport = 51820 } }, { raw = { hex = '04000000' } }"),
            (
                "WireGuard, back",
                "'ipv4', { udp = { sport = 51820, dport = 9 } }, { raw = { hex = '02000000' } }",
            ),
            (
                "VXLAN-GPE with NSH",
                "'ipv4', { udp = { dport = 4790 } }, { raw = { hex = '0c00000400000700' } }",
            ),
            ("IPComp", "{ ipv4 = { protocol = 108 } }"),
            ("a fragment of ESP", "{ ipv4 = { protocol = 50, frag = 185 } }"),
            ("a redirect", "'ipv4', { icmp = { type = 5 } }"),
            ("neighbour discovery", "'ipv6', { icmpv6 = { type = 135 } }"),
            ("a pseudowire", "'mpls', { raw = { hex = '00000000' } }"),
            ("an EtherType", "{ raw = { hex = '00' } }"),
        ] {
            let mut frame = frame(layers, "10.1.0", "fd00", "02:00:00:00:01");
            assert!(!rules().apply(LINKTYPE_ETHERNET, &mut frame), "{sentence}");
        }
        for layers in [
            "{ V4 }, 'tcp'",
            "{ V4 }, { udp = { sport = 51820, dport = 53 } }",
            "{ V4 }, { udp = { sport = 37008, dport = 53 } }",
        ] {
            let mut frame = frame(layers, "10.1.0", "fd00", "02:00:00:00:01");
            assert!(rules().apply(LINKTYPE_ETHERNET, &mut frame), "{layers}");
        }
    }
}
