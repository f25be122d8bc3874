//! Frames from their fields.

use std::net::{IpAddr, Ipv4Addr};

use crate::packet::protocol;

/// The fields of a frame. Checksums are 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSpec {
    /// VLAN tags from outside: TPID and TCI.
    pub tags: Vec<(u16, u16)>,
    /// The source address.
    pub src: IpAddr,
    /// The destination address, of the same version.
    pub dst: IpAddr,
    /// The time to live, or hop limit.
    pub ttl: u8,
    /// The DSCP.
    pub dscp: u8,
    /// The flow label of IPv6.
    pub flow_label: u32,
    /// Bytes of IPv4 options: a multiple of 4, at most 40.
    pub options: usize,
    /// True if an IPv4 packet must not be fragmented.
    pub df: bool,
    /// The numbers of IPv6 extension headers. A fragment header here is one of a whole packet.
    pub extensions: Vec<u8>,
    /// The fragment that it is. In IPv6, its header follows the other extension headers.
    pub fragment: Option<Fragment>,
    /// The protocol, which decides on the transport header.
    pub protocol: u8,
    /// The source port.
    pub sport: u16,
    /// The destination port.
    pub dport: u16,
    /// The sequence number of TCP.
    pub seq: u32,
    /// The acknowledgement number of TCP.
    pub ack: u32,
    /// The flags of TCP.
    pub tcp_flags: u8,
    /// Bytes of TCP options: a multiple of 4, at most 40.
    pub tcp_options: usize,
    /// The timestamp at the end of the options, if there are some.
    pub tsecr: Option<u32>,
    /// The type of ICMP or ICMPv6.
    pub icmp_type: u8,
    /// The code of ICMP or ICMPv6.
    pub icmp_code: u8,
    /// The bytes behind the transport header.
    pub payload: Vec<u8>,
    /// Bytes behind the packet.
    pub padding: usize,
}

/// The header of a tunnel behind the outer IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelSpec {
    /// None.
    IpIp,
    /// GRE with these flags and version. The fields of a checksum, key and sequence number are 0.
    Gre(u16),
}

/// A fragment's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Its offset, in units of 8 bytes.
    pub offset: u16,
    /// True if more fragments follow.
    pub more: bool,
}

impl Default for FrameSpec {
    /// A TCP segment with ACK from 192.0.2.1:40000 to 198.51.100.1:80.
    fn default() -> Self {
        Self {
            tags: Vec::new(),
            src: Ipv4Addr::new(192, 0, 2, 1).into(),
            dst: Ipv4Addr::new(198, 51, 100, 1).into(),
            ttl: 64,
            dscp: 0,
            flow_label: 0,
            options: 0,
            df: false,
            extensions: Vec::new(),
            fragment: None,
            protocol: protocol::TCP,
            sport: 40_000,
            dport: 80,
            seq: 1,
            ack: 2,
            tcp_flags: 0x10,
            tcp_options: 0,
            tsecr: None,
            icmp_type: 8,
            icmp_code: 0,
            payload: Vec::new(),
            padding: 0,
        }
    }
}

impl FrameSpec {
    /// Returns a UDP datagram between the same addresses.
    pub fn udp(sport: u16, dport: u16, payload: &[u8]) -> Self {
        let payload = payload.to_vec();
        Self { protocol: protocol::UDP, sport, dport, payload, ..Self::default() }
    }

    /// Sets the addresses.
    ///
    /// # Panics
    ///
    /// If they are invalid.
    pub fn between(mut self, src: &str, dst: &str) -> Self {
        self.src = src.parse().expect("a source address");
        self.dst = dst.parse().expect("a destination address");
        self
    }

    /// Returns a frame with this packet and its padding inside of a tunnel, whose fields are those of `outer`. Tags are this
    /// packet's.
    pub fn inside(&self, outer: &Self, tunnel: TunnelSpec) -> Self {
        let frame = self.build();
        let packet = &frame[14 + 4 * self.tags.len()..];
        let ethertype: u16 = if self.src.is_ipv4() { 0x0800 } else { 0x86dd };
        let (protocol, mut payload) = match tunnel {
            TunnelSpec::IpIp if self.src.is_ipv4() => (protocol::IPV4, Vec::new()),
            TunnelSpec::IpIp => (protocol::IPV6, Vec::new()),
            TunnelSpec::Gre(flags) => {
                let words = 1 + (flags & 0xb000).count_ones() as usize;
                let mut header = [flags.to_be_bytes(), ethertype.to_be_bytes()].concat();
                header.resize(4 * words, 0);
                (protocol::GRE, header)
            }
        };
        payload.extend(packet);
        Self { tags: self.tags.clone(), protocol, payload, ..outer.clone() }
    }

    /// Returns the frame. Lengths are those of its parts, modulo 65,536.
    pub fn build(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        for (tpid, tci) in &self.tags {
            frame.extend(tpid.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        let transport = self.transport();
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                frame.extend(0x0800_u16.to_be_bytes());
                frame.extend(self.ipv4_header(src.octets(), dst.octets(), transport.len()));
            }
            (src, dst) => {
                frame.extend(0x86dd_u16.to_be_bytes());
                frame.extend(self.ipv6_headers(octets(src), octets(dst), transport.len()));
            }
        }
        frame.extend(transport);
        frame.resize(frame.len() + self.padding, 0xee);
        frame
    }

    fn ipv4_header(&self, src: [u8; 4], dst: [u8; 4], behind: usize) -> Vec<u8> {
        let length = 20 + self.options;
        let place = self.fragment.unwrap_or(Fragment { offset: 0, more: false });
        let word = place.offset & 0x1fff
            | if self.df { 0x4000 } else { 0 }
            | if place.more { 0x2000 } else { 0 };
        let mut header = vec![0x40 | (length / 4) as u8, self.dscp << 2];
        header.extend(((length + behind) as u16).to_be_bytes());
        header.extend([0, 1]);
        header.extend(word.to_be_bytes());
        header.extend([self.ttl, self.protocol, 0, 0]);
        header.extend(src);
        header.extend(dst);
        header.resize(length, 1);
        header
    }

    fn ipv6_headers(&self, src: [u8; 16], dst: [u8; 16], behind: usize) -> Vec<u8> {
        let mut kinds = self.extensions.clone();
        if self.fragment.is_some() {
            kinds.push(44);
        }
        let mut extensions = Vec::new();
        for (at, kind) in kinds.iter().enumerate() {
            let next = *kinds.get(at + 1).unwrap_or(&self.protocol);
            let is_last = at == self.extensions.len();
            let place = self.fragment.filter(|_| is_last);
            match kind {
                44 => {
                    let place = place.unwrap_or(Fragment { offset: 0, more: false });
                    let word = place.offset << 3 | u16::from(place.more);
                    extensions.extend([next, 0]);
                    extensions.extend(word.to_be_bytes());
                    extensions.extend([0, 0, 0, 1]);
                }
                // 16 bytes.
                51 => extensions.extend([next, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 9, 9, 9, 9]),
                // One option, PadN, to the end of 8 or 16 bytes.
                _ if at % 2 == 0 => extensions.extend([next, 0, 1, 4, 0, 0, 0, 0]),
                _ => {
                    extensions.extend([next, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                }
            }
        }
        let class = u32::from(self.dscp & 0x3f) << 22;
        let mut headers = (6 << 28 | class | self.flow_label & 0xf_ffff).to_be_bytes().to_vec();
        headers.extend(((extensions.len() + behind) as u16).to_be_bytes());
        headers.extend([*kinds.first().unwrap_or(&self.protocol), self.ttl]);
        headers.extend(src);
        headers.extend(dst);
        headers.extend(extensions);
        headers
    }

    /// Returns the transport header, which later fragments do not have, and the payload.
    fn transport(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let is_later = self.fragment.is_some_and(|it| it.offset != 0);
        match self.protocol {
            _ if is_later => {}
            protocol::TCP => {
                let length = 20 + self.tcp_options;
                bytes.extend(self.sport.to_be_bytes());
                bytes.extend(self.dport.to_be_bytes());
                bytes.extend(self.seq.to_be_bytes());
                bytes.extend(self.ack.to_be_bytes());
                bytes.extend([(length as u8 / 4) << 4, self.tcp_flags]);
                bytes.extend([0xff, 0xff, 0, 0, 0, 0]);
                bytes.resize(length, 1);
                if let (Some(tsecr), Some(end)) = (self.tsecr, bytes[20..].last_chunk_mut()) {
                    *end = tsecr.to_be_bytes();
                }
            }
            protocol::UDP => {
                bytes.extend(self.sport.to_be_bytes());
                bytes.extend(self.dport.to_be_bytes());
                bytes.extend(((8 + self.payload.len()) as u16).to_be_bytes());
                bytes.extend([0, 0]);
            }
            protocol::ICMP | protocol::ICMPV6 => {
                bytes.extend([self.icmp_type, self.icmp_code, 0, 0, 0, 1, 0, 1]);
            }
            _ => {}
        }
        bytes.extend(&self.payload);
        bytes
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(it) => it.to_ipv6_mapped().octets(),
        IpAddr::V6(it) => it.octets(),
    }
}
