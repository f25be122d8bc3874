//! Headers of frames that are there already: where they lie, and what IP's say of what is behind.
//!
//! Nothing here believes a frame: what is cut off, or too short for what it says it is, is not found.

use std::ops::Range;

/// EtherTypes (IEEE 802).
pub(crate) mod ethertype {
    pub(crate) const IPV4: u16 = 0x0800;
    pub(crate) const ARP: u16 = 0x0806;
    /// Ethernet in something else.
    pub(crate) const ETHERNET: u16 = 0x6558;
    pub(crate) const IPV6: u16 = 0x86dd;
    pub(crate) const MPLS: u16 = 0x8847;
    pub(crate) const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
}

/// Protocol numbers of IP (IANA).
pub(crate) mod protocol {
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const ICMP: u8 = 1;
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(crate) const DCCP: u8 = 33;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const FRAGMENT: u8 = 44;
    pub(crate) const GRE: u8 = 47;
    pub(crate) const AUTHENTICATION: u8 = 51;
    pub(crate) const ICMPV6: u8 = 58;
    pub(crate) const DESTINATION: u8 = 60;
    pub(crate) const SCTP: u8 = 132;
    pub(crate) const UDP_LITE: u8 = 136;
}

/// What comes before the first address.
pub(crate) const TYPE_AT: usize = 12;

/// A frame's headers behind its VLAN tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Headers {
    /// What the frame carries.
    pub(crate) ethertype: u16,
    /// Where that begins; at most the frame's end.
    pub(crate) at: usize,
    /// The IP packet's, if it is one.
    pub(crate) ip: Option<Ip>,
}

/// What matters of an IP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ip {
    /// Where the addresses are: 4 or 16 bytes each.
    pub(crate) source: Range<usize>,
    pub(crate) destination: Range<usize>,
    /// It is a piece of a datagram.
    pub(crate) fragment: bool,
    /// The protocol and the bytes of what the packet carries: none in pieces after the first.
    pub(crate) transport: Option<(u8, Range<usize>)>,
    /// The destination is one on the way (IPv6's routing header): checksums are of the last one.
    pub(crate) on_the_way: bool,
}

/// Finds them; none in what is too short for Ethernet.
#[inline]
pub(crate) fn find(frame: &[u8]) -> Option<Headers> {
    let mut at = TYPE_AT;
    let mut ethertype = be16(frame, at)?;
    while ethertype::TAGS.contains(&ethertype) {
        let Some(inner) = be16(frame, at + 4) else { break };
        at += 4;
        ethertype = inner;
    }
    at += 2;
    let ip = match ethertype {
        ethertype::IPV4 => ipv4(frame, at),
        ethertype::IPV6 => ipv6(frame, at),
        _ => None,
    };
    Some(Headers { ethertype, at, ip })
}

/// What an IPv4 header says of itself and of what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct V4 {
    /// Its own bytes, at least 20.
    pub(crate) header_bytes: usize,
    /// The packet's; 0 where the card was to cut it up.
    pub(crate) total_bytes: usize,
    pub(crate) protocol: u8,
    /// It is of a piece of a datagram.
    pub(crate) fragment: bool,
    /// It is of the first piece, or of the whole: what it carries begins behind it.
    pub(crate) first: bool,
}

impl V4 {
    /// Reads the part that every header has. None if that is no header.
    #[inline]
    pub(crate) fn read(header: &[u8; 20]) -> Option<Self> {
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

/// What a header says that stands between IPv6's own and what the packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extension {
    /// Its bytes, at least 8.
    pub(crate) bytes: usize,
    /// The protocol behind it.
    pub(crate) next: u8,
    /// It is of a piece of a datagram.
    pub(crate) fragment: bool,
    /// What the packet carries begins behind it, or behind one after it.
    pub(crate) first: bool,
    /// The packet is on its way to an address that is not yet its destination.
    pub(crate) on_the_way: bool,
}

impl Extension {
    /// Whether a protocol is one of these.
    #[inline]
    pub(crate) fn is_one(kind: u8) -> bool {
        use protocol::{AUTHENTICATION, DESTINATION, FRAGMENT, HOP_BY_HOP, ROUTING};
        matches!(kind, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION)
    }

    /// Reads one of a kind, of which the first 8 bytes are there.
    pub(crate) fn read(kind: u8, header: &[u8]) -> Option<Self> {
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
            on_the_way: kind == ROUTING && header[3] > 0,
        })
    }
}

#[inline]
fn ipv4(frame: &[u8], at: usize) -> Option<Ip> {
    let header = V4::read(frame.get(at..)?.first_chunk()?)?;
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
        transport: begins.then_some((header.protocol, carried)),
        on_the_way: false,
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
        transport: None,
        on_the_way: false,
    };
    ip.transport = behind_extensions(&frame[..end], header[6], at + 40, &mut ip);
    Some(ip)
}

/// Steps over IPv6's extension headers to what the packet carries.
fn behind_extensions(
    packet: &[u8],
    mut next: u8,
    mut at: usize,
    ip: &mut Ip,
) -> Option<(u8, Range<usize>)> {
    while Extension::is_one(next) {
        let extension = Extension::read(next, packet.get(at..)?)?;
        ip.fragment |= extension.fragment;
        ip.on_the_way |= extension.on_the_way;
        if !extension.first {
            return None;
        }
        next = extension.next;
        at += extension.bytes;
    }
    (at <= packet.len()).then_some((next, at..packet.len()))
}

/// Two bytes as a number, if they are there.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*pair))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A frame to 198.18.0.2 or 2001:db8::2 that carries so many bytes of a protocol.
    pub(crate) fn frame(tags: usize, v6: bool, protocol: u8, carried: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 7]));
        if v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((carried.len() as u16).to_be_bytes());
            frame.extend([protocol, 64]);
            for host in [1, 2] {
                frame.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
            }
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + carried.len() as u16).to_be_bytes());
            frame.extend([0, 1, 0, 0, 64, protocol, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
        }
        frame.extend(carried);
        frame
    }

    #[test]
    fn headers_are_found_behind_tags_and_extensions() {
        let plain = frame(0, false, 17, &[0; 8]);
        let found = find(&plain).unwrap();
        let ip = found.ip.unwrap();
        assert_eq!((found.at, ip.transport), (14, Some((17, 34..42))));
        for tags in 1..4 {
            let ip = find(&frame(tags, false, 17, &[0; 8])).unwrap().ip.unwrap();
            let at = 34 + 4 * tags;
            assert_eq!(ip.transport, Some((17, at..at + 8)), "{tags} tags");
        }
        let mut routed = vec![43, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 1, 0, 0, 0, 0];
        routed.extend([0; 8]);
        let ip = find(&frame(0, true, 0, &routed)).unwrap().ip.unwrap();
        assert_eq!((ip.transport, ip.on_the_way), (Some((17, 70..78)), true));
        let later_piece = [17, 0, 0, 8, 0, 0, 0, 1, 1, 2, 3, 4];
        let ip = find(&frame(0, true, 44, &later_piece)).unwrap().ip.unwrap();
        assert_eq!((ip.transport, ip.fragment), (None, true));
    }

    #[test]
    fn padding_behind_a_packet_is_none_of_it() {
        let mut short = frame(0, false, 17, &[0; 4]);
        short.resize(60, 9);
        let ip = find(&short).unwrap().ip.unwrap();
        assert_eq!(ip.transport, Some((17, 34..38)));
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
                assert!(carried.is_none_or(|(_, at)| at.end <= bytes), "{bytes}");
            }
        }
    }
}
