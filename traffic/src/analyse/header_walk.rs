//! Walks a frame's headers to its stamp, and checks lengths and checksums. The stamp follows the
//! last header; the walk does not search for it because any traffic may contain bytes that look
//! like one.

use super::Stamp;
use crate::plan::fold;
use sluicegate_base::headers::{Ipv4Header, Ipv6Extension, ethertype, protocol};

/// Maximum of headers walked. Each may have a checksum over the rest of the frame, so a long frame with only
/// headers would take milliseconds.
const HEADERS_MAX: usize = 64;

/// IANA's ports of tunnels in UDP.
const VXLAN_PORT: u16 = 4789;
const MPLS_PORT: u16 = 6635;
const GRE_PORT: u16 = 4754;
/// Ports of tunnels that may omit the checksum of UDP over IPv6 (RFC 6935): also GTP-U, LISP, VXLAN-GPE,
/// Geneve, and VXLAN by Linux's default. Receivers discard other packets without it (RFC 8200, 8.1).
pub(super) const TUNNEL_PORTS: [u16; 8] =
    [VXLAN_PORT, MPLS_PORT, GRE_PORT, 2152, 4341, 4790, 6081, 8472];

/// A frame's integrity, judged by its headers; worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Lengths agree, and all checksums are right.
    Intact,
    /// A checksum covers missing bytes: the packet is truncated or a fragment.
    Unchecked,
    /// A checksum is wrong, or a length exceeds the packet.
    Corrupt,
}

/// The result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkResult {
    /// The stamp after the last header.
    pub stamp: Option<Stamp>,
    /// The frame's condition.
    pub condition: Condition,
}

/// Walks an Ethernet frame. `whole` means that the capture did not truncate it.
#[inline]
pub fn inspect(frame: &[u8], whole: bool) -> WalkResult {
    let mut walk =
        Walk { rest: frame, whole, below: Below::default(), condition: Condition::Intact };
    let mut next = Next::Ether;
    for _ in 0..HEADERS_MAX {
        // An invalid header is data.
        next = walk.header(next).unwrap_or(Next::Data);
        if next == Next::Data {
            return WalkResult { stamp: Stamp::read(walk.rest), condition: walk.condition };
        }
    }
    WalkResult { stamp: None, condition: walk.condition }
}

/// The next header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Ether,
    /// By EtherType.
    Type(u16),
    /// By IP protocol.
    Ip(u8),
    Vxlan,
    Data,
}

/// The IP header below a transport header.
#[derive(Clone, Copy, Debug, Default)]
struct Below {
    /// The sum of the source address.
    source: u64,
    /// The sum of the final destination's address.
    destination: u64,
    v6: bool,
    /// The frame lacks bytes or an address that checksums cover.
    partial: bool,
}

struct Walk<'a> {
    /// Bytes after the headers read so far, up to the length that headers give.
    rest: &'a [u8],
    whole: bool,
    /// Default before the first IP header; no header before it has a checksum.
    below: Below,
    condition: Condition,
}

impl<'a> Walk<'a> {
    /// Reads a header and returns the next one; `None` if it is invalid.
    fn header(&mut self, next: Next) -> Option<Next> {
        match next {
            Next::Ether => self.ether(),
            Next::Type(number) => match number {
                ethertype::IPV4 => self.ipv4(),
                ethertype::ARP => self.arp(),
                ethertype::ETHERNET => self.ether(),
                ethertype::IPV6 => self.ipv6(),
                ethertype::MPLS => self.mpls(),
                tag if ethertype::VLAN_TAGS.contains(&tag) => self.vlan(),
                _ => None,
            },
            Next::Ip(number) => match number {
                protocol::ICMP => self.icmp(None),
                protocol::TCP => self.tcp(),
                protocol::UDP => self.udp(),
                protocol::GRE => self.gre(),
                protocol::ICMPV6 => self.icmp(Some(protocol::ICMPV6)),
                number if Ipv6Extension::is_extension(number) => self.extension(number),
                _ => None,
            },
            Next::Vxlan => self.take(8).map(|_| Next::Ether),
            Next::Data => None,
        }
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (header, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(header)
    }

    /// Makes the condition worse.
    fn worsen(&mut self, condition: Condition) {
        if self.condition != Condition::Corrupt {
            self.condition = condition;
        }
    }

    /// Limits the rest to the length that a header gives; `None` if that is below `least`. A length of 0 may
    /// stand for one above 65535 (RFC 2675, and BIG TCP of Linux).
    #[inline]
    fn cut(&mut self, bytes: usize, least: usize) -> Option<()> {
        match self.rest.get(..bytes) {
            _ if bytes == 0 && (self.rest.len() > 0xffff || !self.whole) => {}
            _ if bytes < least => {
                self.worsen(Condition::Corrupt);
                return None;
            }
            Some(rest) => {
                self.rest = rest;
                // The capture cut only bytes after this length.
                self.whole = true;
            }
            None if self.whole => self.worsen(Condition::Corrupt),
            None => self.worsen(Condition::Unchecked),
        }
        Some(())
    }

    /// Checks a checksum by the sum of all bytes that it covers, which includes itself.
    #[inline]
    fn check(&mut self, sum: u64) {
        if fold(sum) != 0xffff {
            self.worsen(Condition::Corrupt);
        }
    }

    /// Checks the sum of the rest, with a pseudo header if a protocol is given.
    fn check_rest(&mut self, protocol: Option<u8>) {
        let Below { source, destination, partial, .. } = self.below;
        if partial || !self.whole {
            return self.worsen(Condition::Unchecked);
        }
        let pseudo = protocol.map_or(0, |protocol| {
            let number = |number: usize| sum(&(number as u32).to_be_bytes());
            source + destination + number(protocol.into()) + number(self.rest.len())
        });
        self.check(pseudo + sum(self.rest));
    }

    fn ether(&mut self) -> Option<Next> {
        let number = self.take(14)?.last_chunk()?;
        Some(Next::Type(u16::from_be_bytes(*number)))
    }

    fn vlan(&mut self) -> Option<Next> {
        let number = self.take(4)?.last_chunk()?;
        Some(Next::Type(u16::from_be_bytes(*number)))
    }

    fn mpls(&mut self) -> Option<Next> {
        let bottom = self.take(4)?[2] & 1 != 0;
        // A label does not name its content; receivers also guess by the first bits (RFC 4928).
        Some(match (bottom, self.rest.first()? >> 4) {
            (false, _) => Next::Type(ethertype::MPLS),
            (true, 4) => Next::Type(ethertype::IPV4),
            (true, 6) => Next::Type(ethertype::IPV6),
            (true, _) if Stamp::read(self.rest).is_some() => Next::Data,
            (true, _) => Next::Ether,
        })
    }

    fn arp(&mut self) -> Option<Next> {
        let (hardware, protocol) = (*self.rest.get(4)?, *self.rest.get(5)?);
        self.take(8 + 2 * (usize::from(hardware) + usize::from(protocol)))?;
        self.rest = &[];
        Some(Next::Data)
    }

    fn ipv4(&mut self) -> Option<Next> {
        let fixed = self.rest.first_chunk::<20>()?;
        let (source, destination) = (sum(&fixed[12..16]), sum(&fixed[16..20]));
        let Some(ip) = Ipv4Header::read(fixed) else {
            self.worsen(Condition::Corrupt);
            return None;
        };
        self.cut(ip.total_bytes, ip.header_bytes)?;
        let header = self.take(ip.header_bytes)?;
        self.check(sum(header));
        self.below = Below { source, destination, v6: false, partial: ip.fragment };
        // Only the first fragment has the next header.
        Some(if ip.first { Next::Ip(ip.protocol) } else { Next::Data })
    }

    fn ipv6(&mut self) -> Option<Next> {
        let header = self.take(40)?;
        if header[0] >> 4 != 6 {
            self.worsen(Condition::Corrupt);
        }
        self.cut(u16::from_be_bytes([header[4], header[5]]).into(), 0)?;
        let (source, destination) = (sum(&header[8..24]), sum(&header[24..40]));
        self.below = Below { source, destination, v6: true, partial: false };
        Some(Next::Ip(header[6]))
    }

    fn extension(&mut self, kind: u8) -> Option<Next> {
        let extension = Ipv6Extension::read(kind, self.rest)?;
        let header = self.take(extension.bytes)?;
        self.below.partial |= extension.fragment;
        if extension.segments_left {
            match last_segment(header) {
                Some(address) => self.below.destination = sum(address),
                None => self.below.partial = true,
            }
        }
        Some(if extension.first { Next::Ip(extension.next) } else { Next::Data })
    }

    fn udp(&mut self) -> Option<Next> {
        let &[_, _, high, low, long, short, sum, sum_low, ..] = self.rest else { return None };
        let port = u16::from_be_bytes([high, low]);
        if !self.below.partial {
            let _ = self.cut(u16::from_be_bytes([long, short]).into(), 8);
        }
        if (sum, sum_low) != (0, 0) {
            self.check_rest(Some(protocol::UDP));
        } else if self.below.v6 && !TUNNEL_PORTS.contains(&port) {
            self.worsen(Condition::Corrupt);
        }
        self.take(8)?;
        Some(match port {
            _ if Stamp::read(self.rest).is_some() => Next::Data,
            VXLAN_PORT => Next::Vxlan,
            MPLS_PORT => Next::Type(ethertype::MPLS),
            GRE_PORT => Next::Ip(protocol::GRE),
            _ => Next::Data,
        })
    }

    fn tcp(&mut self) -> Option<Next> {
        let header_bytes = usize::from(self.rest.get(12)? >> 4) * 4;
        self.check_rest(Some(protocol::TCP));
        if header_bytes < 20 {
            self.worsen(Condition::Corrupt);
            return None;
        }
        self.take(header_bytes)?;
        Some(Next::Data)
    }

    fn icmp(&mut self, protocol: Option<u8>) -> Option<Next> {
        self.check_rest(protocol);
        self.take(8)?;
        Some(Next::Data)
    }

    fn gre(&mut self) -> Option<Next> {
        let &[flags, _, high, low, ..] = self.rest else { return None };
        // Checksum, key and sequence number have four bytes each.
        let optional = (flags & 0xb0).count_ones() as usize;
        // Checked first, because the rest of the frame may not hold all optional fields.
        if flags & 0x80 != 0 {
            self.check_rest(None);
        }
        self.take(4 + 4 * optional)?;
        Some(Next::Type(u16::from_be_bytes([high, low])))
    }
}

/// Returns the last segment of a routing header, if its type has addresses: the destination that checksums
/// cover (RFC 8200, 8.1).
fn last_segment(routing: &[u8]) -> Option<&[u8]> {
    match routing[2] {
        0 | 2 => routing[8..].last_chunk::<16>().map(<[u8; 16]>::as_slice),
        // A list in reverse order (RFC 8754).
        4 => routing.get(8..24),
        _ => None,
    }
}

/// Sums 16-bit numbers in the machine's byte order; an odd last byte is the first of two. The byte order does
/// not affect whether all bits of the folded sum are set (RFC 1071).
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let whole: u64 = words.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum();
    whole + u64::from(u32::from_ne_bytes(last))
}
