//! A packet's fields, as conditions see them, parsed from a frame.
//!
//! The parser follows the order of headers, and returns the first defect that it meets:
//!
//! 1. Ethernet, then at most two VLAN tags (0x8100 or 0x88a8). A frame that ends within its Ethernet header or one of
//!    these tags is `Truncated`. Other types than IPv4 and IPv6 are [`Parsed::NotIp`], also behind a third tag.
//! 2. IPv4: a frame that ends within the first 20 bytes is `Truncated`. Version 4 and a header of 20 bytes or more, else
//!    `BadHeader`. A total length below the header's is `BadLength`, one beyond the frame `Truncated`.
//!    IPv6: a frame that ends within the 40 bytes is `Truncated`; version 6, else `BadHeader`; a payload length beyond
//!    the frame is `Truncated`. Jumbograms are not supported: a payload length of 0 means that there is no payload.
//!    Bytes behind the packet's own length are padding, and belong to nothing.
//! 3. IPv6 extension headers, in any order: hop-by-hop, routing, destination options, fragment, authentication; at most
//!    six, and a seventh is `BadHeader`, whether it is complete or not. One that ends behind the packet is `Truncated`,
//!    in a first fragment too. What follows "no next header" is no header. Of IPv4, authentication is a protocol.
//! 4. Fragments: offset 0 with more to come is the first one; any other offset a later one, the last without more.
//!    A packet with offset 0 and no more to come is no fragment. A fragment whose offset and bytes behind the IPv4 header
//!    or the fragment header exceed 65,535 together is `BadLength`; a later TCP fragment with offset 8 `TinyFragment`, by
//!    the protocol in the header that has the offset.
//!    Later fragments have no transport header. Behind a later fragment's IPv6 header, no further extension header is
//!    parsed: its next header is the protocol. A fragment header in a fragment is `BadHeader`.
//! 5. TCP, UDP, ICMP and ICMPv6 headers of 20, 8, 8 and 8 bytes, by the protocol alone: over IPv4 and IPv6. One that ends
//!    behind the packet is `Truncated`, in a first fragment `TinyFragment`. TCP: a data offset below 5 is `BadHeader`,
//!    and the header is as long as the data offset says: also `Truncated` or `TinyFragment`. UDP: a length below 8 is
//!    `BadLength`, and if not a fragment, one beyond the packet too.
//!    The payload begins behind that header and ends with the packet, whatever length UDP has.
//! 6. Tunnels, with [`parse_inside`]: GRE of version 0 without routing, around IPv4 or IPv6 by its protocol type, and IP in
//!    IP, over IPv4 and IPv6. The outer addresses are checked as in 7. Then the packet inside is parsed from 2 on, with the
//!    tunnel's end instead of the frame's, and all fields are its own; the VLAN is the frame's. A tunnel inside is none. A
//!    GRE header or an IP header that ends behind the tunnel is `Truncated`. Checksums of GRE are not checked. Fragments
//!    of tunnels, first ones too, and other GRE are packets of their protocol.
//! 7. Sanity, in this order: `BadSource` (224.0.0.0/4, 127.0.0.0/8, 255.255.255.255, ff00::/8, ::1), `SameAddress`
//!    except for BFD Echo (UDP port 3785, TTL 254 or 255), and of packets with a transport header `BadFlags` and
//!    `PortZero`. The upper two TCP flags, CWR and ECE, do not matter.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::cause::Defect;

/// Bits of [`Packet::fragment`] (RFC 8955, 4.2.2.12).
pub mod fragment {
    /// It must not be fragmented (IPv4 only).
    pub const DF: u8 = 1;
    /// It is a later fragment.
    pub const LATER: u8 = 2;
    /// It is the first fragment.
    pub const FIRST: u8 = 4;
    /// It is the last fragment, which is a later one too.
    pub const LAST: u8 = 8;
}

/// Numbers of protocols.
pub mod protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv4 in a tunnel.
    pub const IPV4: u8 = 4;
    /// IPv6 in a tunnel.
    pub const IPV6: u8 = 41;
    /// GRE.
    pub const GRE: u8 = 47;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
}

/// Tunnels into which the parser looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tunnels {
    /// GRE (RFC 2784, RFC 2890).
    pub gre: bool,
    /// IP in IP (RFC 2003, RFC 4213, RFC 2473).
    pub ipip: bool,
}

/// A tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunnel {
    /// GRE.
    Gre,
    /// IP in IP.
    IpIp,
}

impl Tunnel {
    /// Returns its name in policies and output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gre => "gre",
            Self::IpIp => "ipip",
        }
    }
}

/// Extension headers of IPv6.
mod extension {
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const AUTHENTICATION: u8 = 51;
    pub(super) const DESTINATION: u8 = 60;
    pub(super) const MAX: usize = 6;
}

/// Bits of GRE's first word.
mod gre {
    pub(super) const CHECKSUM: u16 = 0x8000;
    pub(super) const ROUTING: u16 = 0x4000;
    pub(super) const KEY: u16 = 0x2000;
    pub(super) const SEQUENCE: u16 = 0x1000;
    pub(super) const VERSION: u16 = 0x0007;
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const MAX_TAGS: usize = 2;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// A parsed frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// It has another type than IPv4 and IPv6.
    NotIp,
    /// It has a defect.
    Malformed(Defect),
    /// It is an IP packet without a defect.
    Packet(Packet<'a>),
}

/// The transport header that was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// None: another protocol, or a later fragment.
    None,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP or ICMPv6.
    Icmp,
}

/// An IP packet's fields. A field that the packet does not have is 0. Of a packet inside of a tunnel, all are its own, but the
/// VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The source address.
    pub src: IpAddr,
    /// The destination address, of the same IP version.
    pub dst: IpAddr,
    /// The protocol: of IPv6, the next header behind the extension headers.
    pub protocol: u8,
    /// The source port of TCP or UDP.
    pub sport: u16,
    /// The destination port of TCP or UDP.
    pub dport: u16,
    /// Bytes of the IP packet, its header included.
    pub length: u32,
    /// The time to live, or hop limit.
    pub ttl: u8,
    /// The DSCP.
    pub dscp: u8,
    /// The sequence number of TCP.
    pub seq: u32,
    /// The acknowledgement number of TCP.
    pub ack: u32,
    /// The flags of TCP: byte 13 of the header.
    pub tcp_flags: u8,
    /// The identification that fragments of one packet have.
    pub fragment_id: u32,
    /// The offset of a fragment, in units of 8 bytes.
    pub fragment_offset: u16,
    /// Bytes of a fragment: those behind the header that has the offset.
    pub fragment_bytes: u16,
    /// Bits of [`mod@fragment`].
    pub fragment: u8,
    /// The type of ICMP or ICMPv6.
    pub icmp_type: u8,
    /// The code of ICMP or ICMPv6.
    pub icmp_code: u8,
    /// The VLAN number of the outer tag.
    pub vlan: u16,
    /// The flow label of IPv6.
    pub flow_label: u32,
    /// The tunnel that it is inside of.
    pub tunnel: Option<Tunnel>,
    /// The transport header.
    pub transport: Transport,
    /// Bytes behind the transport header; without one, behind the IP headers.
    pub payload: &'a [u8],
}

impl Packet<'_> {
    /// Returns the IP version, 4 or 6.
    pub fn version(&self) -> u8 {
        if self.src.is_ipv4() { 4 } else { 6 }
    }

    /// Reports whether it is a fragment: the first or a later one.
    pub fn is_fragment(&self) -> bool {
        self.fragment & (fragment::FIRST | fragment::LATER) != 0
    }

    /// Reports whether it has ports: those of TCP or UDP.
    pub fn has_ports(&self) -> bool {
        matches!(self.transport, Transport::Tcp | Transport::Udp)
    }

    /// Reports whether it is a message of neighbor discovery (RFC 4861): ICMPv6 over IPv6 of type 133 to 137 and code 0,
    /// that no router forwarded. Inside of a tunnel, the hop limit does not show that.
    pub fn is_neighbor_discovery(&self) -> bool {
        self.tunnel.is_none()
            && self.version() == 6
            && self.protocol == protocol::ICMPV6
            && self.transport == Transport::Icmp
            && (133..=137).contains(&self.icmp_type)
            && self.icmp_code == 0
            && self.ttl == 255
    }
}

/// Parses a frame, without its frame check sequence.
pub fn parse(frame: &[u8]) -> Parsed<'_> {
    parse_inside(frame, Tunnels::default())
}

/// Parses a frame like [`parse`]. Of one of these tunnels, the packet is the one inside.
pub fn parse_inside(frame: &[u8], tunnels: Tunnels) -> Parsed<'_> {
    match parse_ethernet(frame, tunnels) {
        Ok(Some(packet)) => Parsed::Packet(packet),
        Ok(None) => Parsed::NotIp,
        Err(defect) => Parsed::Malformed(defect),
    }
}

fn parse_ethernet(frame: &[u8], tunnels: Tunnels) -> Result<Option<Packet<'_>>, Defect> {
    let (ethernet, mut rest) = frame.split_first_chunk::<14>().ok_or(Defect::Truncated)?;
    let mut ethertype = be16(ethernet, 12);
    let mut outer = None;
    for _ in 0..MAX_TAGS {
        if !matches!(ethertype, 0x8100 | 0x88a8) {
            break;
        }
        let (tag, behind) = rest.split_first_chunk::<4>().ok_or(Defect::Truncated)?;
        outer = outer.or(Some(be16(tag, 0) & 0x0fff));
        ethertype = be16(tag, 2);
        rest = behind;
    }
    let Some(mut packet) = parse_ip(ethertype, rest)? else { return Ok(None) };
    if let Some(inner) = parse_tunnel(&packet, tunnels)? {
        packet = inner;
    }
    packet.vlan = outer.unwrap_or(0);
    if !packet.is_fragment() {
        (packet.fragment_id, packet.fragment_offset, packet.fragment_bytes) = (0, 0, 0);
    }
    parse_transport(&mut packet)?;
    check_sanity(&packet)?;
    Ok(Some(packet))
}

/// Parses the headers of IP. None for another type.
fn parse_ip(ethertype: u16, bytes: &[u8]) -> Result<Option<Packet<'_>>, Defect> {
    match ethertype {
        IPV4 => parse_ipv4(bytes).map(Some),
        IPV6 => parse_ipv6(bytes).map(Some),
        _ => Ok(None),
    }
}

/// Parses the headers of IP inside of a packet that is one of these tunnels. None if it is not looked into.
fn parse_tunnel<'a>(outer: &Packet<'a>, tunnels: Tunnels) -> Result<Option<Packet<'a>>, Defect> {
    let tunnel = match outer.protocol {
        protocol::GRE if tunnels.gre => Tunnel::Gre,
        protocol::IPV4 | protocol::IPV6 if tunnels.ipip => Tunnel::IpIp,
        _ => return Ok(None),
    };
    if outer.is_fragment() {
        return Ok(None);
    }
    check_sanity(outer)?;
    let (ethertype, bytes) = match outer.protocol {
        protocol::IPV4 => (IPV4, outer.payload),
        protocol::IPV6 => (IPV6, outer.payload),
        _ => {
            let header = outer.payload.first_chunk::<4>().ok_or(Defect::Truncated)?;
            let (flags, ethertype) = (be16(header, 0), be16(header, 2));
            if flags & (gre::ROUTING | gre::VERSION) != 0 || !matches!(ethertype, IPV4 | IPV6) {
                return Ok(None);
            }
            let fields = (flags & (gre::CHECKSUM | gre::KEY | gre::SEQUENCE)).count_ones();
            let header = 4 + 4 * fields as usize;
            (ethertype, outer.payload.get(header..).ok_or(Defect::Truncated)?)
        }
    };
    let inner = parse_ip(ethertype, bytes)?;
    Ok(inner.map(|it| Packet { tunnel: Some(tunnel), ..it }))
}

/// Parses IPv4. The payload is all that follows its header.
fn parse_ipv4(bytes: &[u8]) -> Result<Packet<'_>, Defect> {
    let fixed = bytes.first_chunk::<20>().ok_or(Defect::Truncated)?;
    let header = usize::from(fixed[0] & 0x0f) * 4;
    if fixed[0] >> 4 != 4 || header < 20 {
        return Err(Defect::BadHeader);
    }
    let total = usize::from(be16(fixed, 2));
    if total < header {
        return Err(Defect::BadLength);
    }
    let payload = bytes.get(header..total).ok_or(Defect::Truncated)?;
    let protocol = fixed[9];
    let word = be16(fixed, 6);
    let df = if word & 0x4000 != 0 { fragment::DF } else { 0 };
    let offset = usize::from(word & 0x1fff) * 8;
    let bits = check_fragment(offset, word & 0x2000 != 0, payload.len(), protocol)?;
    let address = |at: usize| {
        IpAddr::V4(Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]))
    };
    Ok(Packet {
        protocol,
        length: total as u32,
        ttl: fixed[8],
        dscp: fixed[1] >> 2,
        fragment: df | bits,
        fragment_id: be16(fixed, 4).into(),
        fragment_offset: word & 0x1fff,
        fragment_bytes: payload.len() as u16,
        payload,
        ..empty_packet(address(12), address(16))
    })
}

/// Parses IPv6 and its extension headers. The payload is all that follows them.
fn parse_ipv6(bytes: &[u8]) -> Result<Packet<'_>, Defect> {
    let (fixed, rest) = bytes.split_first_chunk::<40>().ok_or(Defect::Truncated)?;
    if fixed[0] >> 4 != 6 {
        return Err(Defect::BadHeader);
    }
    let length = be16(fixed, 4);
    let mut payload = rest.get(..usize::from(length)).ok_or(Defect::Truncated)?;
    let mut protocol = fixed[6];
    let (mut bits, mut place) = (0, (0, 0, 0));
    let mut headers = 0;
    while is_extension(protocol) && bits & fragment::LATER == 0 {
        headers += 1;
        if headers > extension::MAX {
            return Err(Defect::BadHeader);
        }
        // None is shorter.
        let start = payload.first_chunk::<8>().ok_or(Defect::Truncated)?;
        let size = match protocol {
            extension::FRAGMENT => 8,
            extension::AUTHENTICATION => (usize::from(start[1]) + 2) * 4,
            _ => (usize::from(start[1]) + 1) * 8,
        };
        payload = payload.get(size..).ok_or(Defect::Truncated)?;
        if protocol == extension::FRAGMENT {
            if bits != 0 {
                return Err(Defect::BadHeader);
            }
            let word = be16(start, 2);
            let offset = usize::from(word & 0xfff8);
            bits = check_fragment(offset, word & 1 != 0, payload.len(), start[0])?;
            let id = u32::from_be_bytes([start[4], start[5], start[6], start[7]]);
            place = (id, word >> 3, payload.len() as u16);
        }
        protocol = start[0];
    }
    let address = |at: usize| {
        let groups: [u16; 8] = std::array::from_fn(|group| be16(fixed, at + 2 * group));
        IpAddr::V6(Ipv6Addr::from(groups))
    };
    Ok(Packet {
        protocol,
        // As the program, which counts in 16 bits.
        length: (40 + u32::from(length)).min(65_535),
        ttl: fixed[7],
        dscp: (be16(fixed, 0) >> 6) as u8 & 0x3f,
        fragment: bits,
        fragment_id: place.0,
        fragment_offset: place.1,
        fragment_bytes: place.2,
        flow_label: u32::from_be_bytes([0, fixed[1] & 0x0f, fixed[2], fixed[3]]),
        payload,
        ..empty_packet(address(8), address(24))
    })
}

fn is_extension(protocol: u8) -> bool {
    matches!(
        protocol,
        extension::HOP_BY_HOP
            | extension::ROUTING
            | extension::FRAGMENT
            | extension::AUTHENTICATION
            | extension::DESTINATION
    )
}

/// Checks an offset and the `length` bytes behind its header. Returns the bits of the fragment.
fn check_fragment(offset: usize, more: bool, length: usize, protocol: u8) -> Result<u8, Defect> {
    if offset + length > 65_535 {
        return Err(Defect::BadLength);
    }
    if offset == 8 && protocol == protocol::TCP {
        return Err(Defect::TinyFragment);
    }
    Ok(match (offset, more) {
        (0, false) => 0,
        (0, true) => fragment::FIRST,
        (_, true) => fragment::LATER,
        (_, false) => fragment::LATER | fragment::LAST,
    })
}

fn parse_transport(packet: &mut Packet<'_>) -> Result<(), Defect> {
    if packet.fragment & fragment::LATER != 0 {
        return Ok(());
    }
    let bytes = packet.payload;
    let short = if packet.is_fragment() { Defect::TinyFragment } else { Defect::Truncated };
    match packet.protocol {
        protocol::TCP => {
            let header = bytes.first_chunk::<20>().ok_or(short)?;
            let length = usize::from(header[12] >> 4) * 4;
            if length < 20 {
                return Err(Defect::BadHeader);
            }
            packet.payload = bytes.get(length..).ok_or(short)?;
            (packet.sport, packet.dport) = (be16(header, 0), be16(header, 2));
            packet.tcp_flags = header[13];
            packet.seq = u32::from(be16(header, 4)) << 16 | u32::from(be16(header, 6));
            packet.ack = u32::from(be16(header, 8)) << 16 | u32::from(be16(header, 10));
            packet.transport = Transport::Tcp;
        }
        protocol::UDP => {
            let (header, payload) = bytes.split_first_chunk::<8>().ok_or(short)?;
            let length = usize::from(be16(header, 4));
            if length < 8 || (!packet.is_fragment() && length > bytes.len()) {
                return Err(Defect::BadLength);
            }
            packet.payload = payload;
            (packet.sport, packet.dport) = (be16(header, 0), be16(header, 2));
            packet.transport = Transport::Udp;
        }
        protocol::ICMP | protocol::ICMPV6 => {
            let (header, payload) = bytes.split_first_chunk::<8>().ok_or(short)?;
            packet.payload = payload;
            (packet.icmp_type, packet.icmp_code) = (header[0], header[1]);
            packet.transport = Transport::Icmp;
        }
        _ => {}
    }
    Ok(())
}

fn check_sanity(packet: &Packet<'_>) -> Result<(), Defect> {
    let bad_source = match packet.src {
        IpAddr::V4(src) => src.is_multicast() || src.is_loopback() || src.is_broadcast(),
        IpAddr::V6(src) => src.is_multicast() || src.is_loopback(),
    };
    if bad_source {
        return Err(Defect::BadSource);
    }
    // A router sends BFD Echo to itself by a neighbor, which forwards it (RFC 5881, 4).
    let is_bfd_echo =
        packet.transport == Transport::Udp && packet.dport == 3785 && packet.ttl >= 254;
    if packet.src == packet.dst && !is_bfd_echo {
        return Err(Defect::SameAddress);
    }
    let flags = packet.tcp_flags;
    let bad_flags = (flags & SYN != 0 && flags & (FIN | RST) != 0)
        || flags & (FIN | RST) == FIN | RST
        || flags & (SYN | RST | ACK) == 0;
    match packet.transport {
        Transport::Tcp if bad_flags => Err(Defect::BadFlags),
        Transport::Tcp if packet.sport == 0 || packet.dport == 0 => Err(Defect::PortZero),
        Transport::Udp if packet.dport == 0 => Err(Defect::PortZero),
        _ => Ok(()),
    }
}

fn empty_packet<'a>(src: IpAddr, dst: IpAddr) -> Packet<'a> {
    Packet {
        src,
        dst,
        protocol: 0,
        sport: 0,
        dport: 0,
        length: 0,
        seq: 0,
        ack: 0,
        ttl: 0,
        dscp: 0,
        tcp_flags: 0,
        fragment: 0,
        fragment_id: 0,
        fragment_offset: 0,
        fragment_bytes: 0,
        icmp_type: 0,
        icmp_code: 0,
        vlan: 0,
        flow_label: 0,
        tunnel: None,
        transport: Transport::None,
        payload: &[],
    }
}

fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests;
