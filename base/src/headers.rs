//! Locates the Ethernet, VLAN and IP headers of a frame, and their payload.
//!
//! Lengths in a frame are checked against its end: a truncated or too short header is not reported.

use std::ops::Range;

/// EtherTypes (IEEE 802).
#[allow(missing_docs, reason = "the names are the registry's")]
pub mod ethertype {
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    /// An Ethernet frame inside a tunnel (transparent Ethernet bridging).
    pub const ETHERNET: u16 = 0x6558;
    /// The VLAN tag of IEEE 802.1Q.
    pub const VLAN: u16 = 0x8100;
    pub const IPV6: u16 = 0x86dd;
    pub const MPLS: u16 = 0x8847;
    /// The outer VLAN tag of IEEE 802.1ad (QinQ).
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// VLAN tags: 802.1Q, 802.1ad, and the outer tag in use before it.
    pub const VLAN_TAGS: [u16; 3] = [VLAN, SERVICE_VLAN, 0x9100];
}

/// Protocol numbers of IP (IANA).
#[allow(missing_docs, reason = "the names are the registry's")]
pub mod protocol {
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const DCCP: u8 = 33;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const GRE: u8 = 47;
    pub const AUTHENTICATION: u8 = 51;
    pub const ICMPV6: u8 = 58;
    pub const DESTINATION: u8 = 60;
    pub const SCTP: u8 = 132;
    pub const UDP_LITE: u8 = 136;
}

/// Bytes of both MAC addresses, which come before the EtherType and every VLAN tag.
pub const MAC_ADDRESSES_BYTES: usize = 12;
/// Bytes of an Ethernet header without tags.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of a VLAN tag: EtherType and tag control information.
pub const VLAN_TAG_BYTES: usize = 4;

/// The headers of an Ethernet frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The EtherType after all VLAN tags. A value below 1536 is the payload's length (IEEE 802.3), and nothing is
    /// known of what follows.
    pub ethertype: u16,
    /// The offset of the network header; at most the frame's length.
    pub network: usize,
    /// The IP header, if the frame has one.
    pub ip: Option<Ip>,
}

/// An IP header, including IPv6 extension headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ip {
    /// The position of the source address in the frame: 4 or 16 bytes.
    pub source: Range<usize>,
    /// The position of the destination address.
    pub destination: Range<usize>,
    /// The packet is a fragment.
    pub fragment: bool,
    /// The payload's protocol, also of fragments after the first. If extension headers are cut, that of the
    /// first missing one.
    pub protocol: u8,
    /// The position of the payload; none in fragments after the first, and if headers are cut.
    pub transport: Option<Range<usize>>,
    /// An IPv6 routing header has segments left: checksums cover the last destination, not this one.
    pub segments_left: bool,
}

/// Finds the headers of an Ethernet frame, such as `Packet::head()`. None if it is too short. It does not know
/// the link type, so check that first: `batch.interfaces()[meta.interface as usize].link_type` must be
/// LINKTYPE_ETHERNET. For others, whose header's length and EtherType you know, use [`find_behind`].
///
/// ```
/// use sluicegate_base::headers; // in programs: sluicegate::headers
///
/// let mut frame = [0; 42];
/// frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]); // IPv4 with a header of 20 bytes
/// frame[17] = 28; // its length
/// frame[23] = 17; // UDP
/// frame[30..34].copy_from_slice(&[198, 18, 0, 2]);
/// let ip = headers::find(&frame).and_then(|headers| headers.ip).unwrap();
/// assert_eq!(frame[ip.destination], [198, 18, 0, 2]);
/// assert_eq!((ip.protocol, ip.transport), (17, Some(34..42)));
/// ```
#[inline]
pub fn find(frame: &[u8]) -> Option<Headers> {
    let ethertype = be16(frame, MAC_ADDRESSES_BYTES)?;
    Some(find_behind(frame, ethertype, ETHERNET_BYTES))
}

/// Finds the headers of a packet whose link header names this EtherType and ends at `network`. A `network` beyond
/// the frame gives no IP header.
///
/// | link type | `ethertype` | `network` |
/// | --- | --- | --- |
/// | 276, LINUX_SLL2 | bytes 0 and 1 | 20 |
/// | 113, LINUX_SLL | bytes 14 and 15 | 16 |
/// | 101, raw IP | 0x0800 or 0x86dd, if the first half byte is 4 or 6 | 0 |
/// | 228, IPv4 | 0x0800 | 0 |
/// | 229, IPv6 | 0x86dd | 0 |
#[inline]
pub fn find_behind(frame: &[u8], mut ethertype: u16, mut network: usize) -> Headers {
    while ethertype::VLAN_TAGS.contains(&ethertype) {
        let Some(inner) = be16(frame, network + VLAN_TAG_BYTES - 2) else { break };
        network += VLAN_TAG_BYTES;
        ethertype = inner;
    }
    let ip = match ethertype {
        ethertype::IPV4 => ipv4(frame, network),
        ethertype::IPV6 => ipv6(frame, network),
        _ => None,
    };
    Headers { ethertype, network, ip }
}

/// The fields of an IPv4 header that lead to its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Bytes of the header, at least 20.
    pub header_bytes: usize,
    /// Bytes of the packet; 0 if the card splits it later (TSO).
    pub total_bytes: usize,
    /// The protocol of the payload. Each fragment names it, but only the first has the payload's header.
    pub protocol: u8,
    /// The packet is a fragment.
    pub fragment: bool,
    /// The packet is whole or the first fragment: the payload's header follows.
    pub first: bool,
}

impl Ipv4Header {
    /// Reads the fixed part of a header. Returns none if it is not an IPv4 header.
    #[inline]
    pub fn read(header: &[u8; 20]) -> Option<Self> {
        let header_bytes = usize::from(header[0] & 0xf) * 4;
        let place = u16::from_be_bytes([header[6], header[7]]);
        (header[0] >> 4 == 4 && header_bytes >= 20).then(|| Self {
            header_bytes,
            total_bytes: u16::from_be_bytes([header[2], header[3]]).into(),
            protocol: header[9],
            fragment: place & 0x3fff != 0,
            first: place & 0x1fff == 0,
        })
    }
}

/// An extension header of IPv6 (RFC 8200).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Extension {
    /// Bytes of the header, at least 8.
    pub bytes: usize,
    /// The protocol of the next header, which fragments after the first do not have.
    pub next: u8,
    /// The packet is a fragment.
    pub fragment: bool,
    /// The packet is whole or the first fragment.
    pub first: bool,
    /// The packet has a routing header with segments left.
    pub segments_left: bool,
}

impl Ipv6Extension {
    /// Returns true for the protocol number of an extension header.
    #[inline]
    pub fn is_extension(kind: u8) -> bool {
        use protocol::{AUTHENTICATION, DESTINATION, FRAGMENT, HOP_BY_HOP, ROUTING};
        matches!(kind, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION)
    }

    /// Reads an extension header with protocol number `kind`. Returns none if it has fewer than 8 bytes.
    pub fn read(kind: u8, header: &[u8]) -> Option<Self> {
        use protocol::{AUTHENTICATION, FRAGMENT, ROUTING};
        let header: &[u8; 8] = header.first_chunk()?;
        let length = usize::from(header[1]);
        let place = match kind {
            FRAGMENT => u16::from_be_bytes([header[2], header[3]]),
            _ => 0,
        };
        Some(Self {
            bytes: match kind {
                FRAGMENT => 8,
                AUTHENTICATION => 8 + length * 4,
                _ => 8 + length * 8,
            },
            next: header[0],
            fragment: place & 0xfff9 != 0,
            first: place & 0xfff8 == 0,
            segments_left: kind == ROUTING && header[3] > 0,
        })
    }
}

#[inline]
fn ipv4(frame: &[u8], at: usize) -> Option<Ip> {
    let header = Ipv4Header::read(frame.get(at..)?.first_chunk()?)?;
    let end = match header.total_bytes {
        0 => frame.len(),
        bytes => frame.len().min(at + bytes),
    };
    let carried = at + header.header_bytes..end;
    let begins = header.first && carried.start <= end;
    Some(Ip {
        source: at + 12..at + 16,
        destination: at + 16..at + 20,
        fragment: header.fragment,
        protocol: header.protocol,
        transport: begins.then_some(carried),
        segments_left: false,
    })
}

fn ipv6(frame: &[u8], at: usize) -> Option<Ip> {
    let header = frame.get(at..at + 40)?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let end = match usize::from(be16(header, 4)?) {
        0 => frame.len(),
        bytes => frame.len().min(at + 40 + bytes),
    };
    let mut ip = Ip {
        source: at + 8..at + 24,
        destination: at + 24..at + 40,
        fragment: false,
        protocol: header[6],
        transport: None,
        segments_left: false,
    };
    ip.transport = behind_extensions(&frame[..end], at + 40, &mut ip);
    Some(ip)
}

/// Skips the IPv6 extension headers up to the payload.
fn behind_extensions(packet: &[u8], mut at: usize, ip: &mut Ip) -> Option<Range<usize>> {
    while Ipv6Extension::is_extension(ip.protocol) {
        let extension = Ipv6Extension::read(ip.protocol, packet.get(at..)?)?;
        ip.fragment |= extension.fragment;
        ip.segments_left |= extension.segments_left;
        ip.protocol = extension.next;
        if !extension.first {
            return None;
        }
        at += extension.bytes;
    }
    (at <= packet.len()).then_some(at..packet.len())
}

/// Returns the big-endian number at `at`, if both its bytes exist.
#[inline]
pub fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*pair))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::frame;

    #[test]
    fn headers_are_found_behind_tags_and_extensions() {
        let plain = frame(0, false, 17, &[0; 8]);
        let found = find(&plain).unwrap();
        let ip = found.ip.unwrap();
        assert_eq!((found.network, ip.protocol, ip.transport), (14, 17, Some(34..42)));
        for tags in 1..4 {
            let ip = find(&frame(tags, false, 17, &[0; 8])).unwrap().ip.unwrap();
            let at = 34 + 4 * tags;
            assert_eq!((ip.protocol, ip.transport), (17, Some(at..at + 8)), "{tags} tags");
        }
        let mut routed = vec![43, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 1, 0, 0, 0, 0];
        routed.extend([0; 8]);
        let ip = find(&frame(0, true, 0, &routed)).unwrap().ip.unwrap();
        assert_eq!((ip.protocol, ip.transport, ip.segments_left), (17, Some(70..78), true));
        let later_piece = [17, 0, 0, 8, 0, 0, 0, 1, 1, 2, 3, 4];
        let ip = find(&frame(0, true, 44, &later_piece)).unwrap().ip.unwrap();
        assert_eq!((ip.protocol, ip.transport, ip.fragment), (17, None, true));
    }

    #[test]
    fn padding_behind_a_packet_is_none_of_it() {
        let mut short = frame(0, false, 17, &[0; 4]);
        short.resize(60, 9);
        let ip = find(&short).unwrap().ip.unwrap();
        assert_eq!(ip.transport, Some(34..38));
    }

    #[test]
    fn no_cut_makes_it_look_beyond_the_end() {
        let mut routed = vec![60, 0, 0, 0, 0, 0, 0, 0, 6, 1, 0, 0, 0, 0, 0, 0];
        routed.extend([0; 30]);
        for whole in [frame(2, false, 6, &[0; 20]), frame(2, true, 0, &routed)] {
            for bytes in 0..whole.len() {
                let found = find(&whole[..bytes]);
                assert_eq!(found.is_some(), bytes >= 14, "{bytes}");
                let carried = found.and_then(|it| it.ip).and_then(|ip| ip.transport);
                assert!(carried.is_none_or(|at| at.end <= bytes), "{bytes}");
            }
        }
    }
}
