//! Decodes the headers of a packet as a receiver would, without the specification: the listing
//! shows what is sent.

use std::net::Ipv4Addr;

use etherparse::{
    ArpPacketSlice, Ethernet2HeaderSlice, Ipv4HeaderSlice, Ipv6HeaderSlice, SingleVlanHeaderSlice,
};

use super::transport::{Upper, upper};
use crate::analyse::Stamp;
use crate::plan::fold;
use crate::spec::layer::Protocol;
use crate::spec::value::Value;
use sluicegate_base::headers::{Ipv6Extension, ethertype, protocol};

/// The next header to decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextHeader {
    Ether,
    /// By EtherType.
    Type(u16),
    /// By IP protocol.
    Ip(u8),
    Vxlan,
    Data,
}

/// The addresses below: what a checksum covers of them, and whether it may be a part only.
#[derive(Clone, Copy, Debug)]
pub(super) struct Below {
    pub(super) sum: u64,
    pub(super) v6: bool,
    pub(super) fragment: bool,
}

pub(super) struct Decoder<'a> {
    /// Bytes that no decoded header has taken, without padding.
    pub(super) rest: &'a [u8],
    /// Bytes after the length that the headers give.
    padding: usize,
    pub(super) below: Option<Below>,
    lines: Vec<(String, String)>,
}

/// Returns one line per header, then the payload; `stamped` packets carry a stamp.
pub(super) fn decode(frame: &[u8], stamped: bool) -> Vec<(String, String)> {
    let mut decoder = Decoder { rest: frame, padding: 0, below: None, lines: Vec::new() };
    let mut next = NextHeader::Ether;
    while next != NextHeader::Data {
        // What cannot be read as a header is data.
        next = decoder.header(next).unwrap_or(NextHeader::Data);
    }
    decoder.data(stamped);
    decoder.lines
}

impl<'a> Decoder<'a> {
    fn header(&mut self, next: NextHeader) -> Option<NextHeader> {
        match next {
            NextHeader::Ether => self.ether(),
            NextHeader::Type(number) => match number {
                ethertype::IPV4 => self.ipv4(),
                ethertype::ARP => self.arp(),
                ethertype::ETHERNET => self.ether(),
                ethertype::IPV6 => self.ipv6(),
                ethertype::MPLS => self.mpls(),
                number if ethertype::VLAN_TAGS.contains(&number) => self.vlan(),
                _ => None,
            },
            NextHeader::Ip(number) => match number {
                protocol::HOP_BY_HOP => self.extension(number, "hop-by-hop"),
                protocol::ROUTING => self.extension(number, "routing"),
                protocol::FRAGMENT => self.fragment(),
                protocol::GRE => self.gre(),
                protocol::DESTINATION => self.extension(number, "destination"),
                number => match upper(self, number)? {
                    Upper::Vxlan => Some(NextHeader::Vxlan),
                    Upper::Data => Some(NextHeader::Data),
                },
            },
            NextHeader::Vxlan => self.vxlan(),
            NextHeader::Data => None,
        }
    }

    /// Takes the next bytes.
    pub(super) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (header, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(header)
    }

    pub(super) fn say(&mut self, name: &str, text: String) {
        self.lines.push((name.to_owned(), text));
    }

    /// Limits the rest to the length that a header gives; the remainder is padding.
    fn cut(&mut self, bytes: usize) {
        let cut = self.rest.len().min(bytes);
        self.padding += self.rest.len() - cut;
        self.rest = &self.rest[..cut];
    }

    fn ether(&mut self) -> Option<NextHeader> {
        let header = Ethernet2HeaderSlice::from_slice(self.rest).ok()?;
        let (src, dst) = (mac(header.source()), mac(header.destination()));
        let number = header.ether_type().0;
        self.say("ether", format!("{src} > {dst}, type {}", type_name(number)));
        self.take(header.slice().len())?;
        self.below = None;
        Some(NextHeader::Type(number))
    }

    fn vlan(&mut self) -> Option<NextHeader> {
        let header = SingleVlanHeaderSlice::from_slice(self.rest).ok()?;
        let (id, pcp) = (header.vlan_identifier().value(), header.priority_code_point().value());
        let dei = if header.drop_eligible_indicator() { ", dei" } else { "" };
        let number = header.ether_type().0;
        self.say("vlan", format!("id {id}, pcp {pcp}{dei}, type {}", type_name(number)));
        self.take(header.slice().len())?;
        Some(NextHeader::Type(number))
    }

    fn mpls(&mut self) -> Option<NextHeader> {
        let word = u32::from_be_bytes(self.take(4)?.try_into().ok()?);
        let (label, tc, ttl) = (word >> 12, word >> 9 & 7, word & 0xff);
        let bottom = word & 0x100 != 0;
        let stack = if bottom { ", bottom of the stack" } else { "" };
        self.say("mpls", format!("label {label}, tc {tc}, ttl {ttl}{stack}"));
        // A label does not name its content; receivers guess from the first bits, too (RFC 4928).
        Some(match (bottom, self.rest.first()? >> 4) {
            (false, _) => NextHeader::Type(ethertype::MPLS),
            (true, 4) => NextHeader::Type(ethertype::IPV4),
            (true, 6) => NextHeader::Type(ethertype::IPV6),
            (true, _) => NextHeader::Ether,
        })
    }

    fn arp(&mut self) -> Option<NextHeader> {
        let packet = ArpPacketSlice::from_slice(self.rest).ok()?;
        let address = |bytes: &[u8]| match bytes.try_into() {
            Ok(bytes) => Ipv4Addr::from_octets(bytes).to_string(),
            Err(_) => format!("{bytes:02x?}"),
        };
        let hardware = |bytes: &[u8]| match bytes.try_into() {
            Ok(bytes) => mac(bytes),
            Err(_) => format!("{bytes:02x?}"),
        };
        let text = format!(
            "{}, {} is at {}, target {} at {}",
            named("arp", "op", packet.operation().0.into()),
            address(packet.sender_protocol_addr()),
            hardware(packet.sender_hw_addr()),
            address(packet.target_protocol_addr()),
            hardware(packet.target_hw_addr()),
        );
        let bytes = packet.slice().len();
        self.say("arp", text);
        self.cut(bytes);
        self.take(bytes)?;
        Some(NextHeader::Data)
    }

    fn ipv4(&mut self) -> Option<NextHeader> {
        let header = Ipv4HeaderSlice::from_slice(self.rest).ok()?;
        let (length, offset) = (header.total_len(), header.fragments_offset().value());
        let fragment = header.is_fragmenting_payload();
        let protocol = header.protocol().0;
        let mut text = format!("{} > {}", header.source_addr(), header.destination_addr());
        if header.dcp().value() != 0 || header.ecn().value() != 0 {
            let dscp = named("ipv4", "dscp", header.dcp().value().into());
            text += &format!(", dscp {dscp}, ecn {}", header.ecn().value());
        }
        text += &format!(", ttl {}, id {}", header.ttl(), header.identification());
        text += if header.dont_fragment() { ", df" } else { "" };
        text += if header.more_fragments() { ", mf" } else { "" };
        if fragment {
            text += &format!(", fragment at byte {}", u32::from(offset) * 8);
        }
        if !header.options().is_empty() {
            text += &format!(", {} bytes of options", header.options().len());
        }
        let sum = fold(words(header.slice()));
        let right = checksum(header.header_checksum(), sum);
        let name = named("ipv4", "protocol", protocol.into());
        text += &format!(", {name}, length {length}, checksum {right}");
        let below = Below { sum: words(&header.slice()[12..20]), v6: false, fragment };
        let header = header.slice();
        self.say("ipv4", text);
        self.cut(length.into());
        self.take(header.len().min(self.rest.len()))?;
        self.below = Some(below);
        // Only the first piece has the next header.
        Some(if offset == 0 { NextHeader::Ip(protocol) } else { NextHeader::Data })
    }

    fn ipv6(&mut self) -> Option<NextHeader> {
        let header = Ipv6HeaderSlice::from_slice(self.rest).ok()?;
        let (length, protocol) = (header.payload_length(), header.next_header().0);
        let mut text = format!("{} > {}", header.source_addr(), header.destination_addr());
        if header.traffic_class() != 0 {
            text += &format!(", traffic class {:#04x}", header.traffic_class());
        }
        if header.flow_label().value() != 0 {
            text += &format!(", flow label {:#07x}", header.flow_label().value());
        }
        let name = named("ipv6", "next-header", protocol.into());
        text += &format!(", hop limit {}, {name}, length {length}", header.hop_limit());
        let sum = words(&header.slice()[8..40]);
        self.say("ipv6", text);
        self.take(40)?;
        self.cut(length.into());
        self.below = Some(Below { sum, v6: true, fragment: false });
        Some(NextHeader::Ip(protocol))
    }

    fn extension(&mut self, number: u8, name: &str) -> Option<NextHeader> {
        let Ipv6Extension { bytes, next, .. } = Ipv6Extension::read(number, self.rest)?;
        let &[_, _, kind, left, ..] = self.rest else { return None };
        let next_name = named("ipv6", "next-header", next.into());
        let detail = match name {
            "routing" => format!(", type {kind}, {left} segments left"),
            _ => String::new(),
        };
        self.take(bytes)?;
        self.say(name, format!("{bytes} bytes{detail}, {next_name}"));
        Some(NextHeader::Ip(next))
    }

    fn fragment(&mut self) -> Option<NextHeader> {
        let Ipv6Extension { next, fragment, first, .. } =
            Ipv6Extension::read(protocol::FRAGMENT, self.rest)?;
        let &[_, _, high, low, a, b, c, d] = self.take(8)? else { return None };
        let word = u16::from_be_bytes([high, low]);
        let offset = word & !7;
        let more_text = if word & 1 != 0 { ", mf" } else { "" };
        let id = u32::from_be_bytes([a, b, c, d]);
        let name = named("ipv6", "next-header", next.into());
        self.say("fragment", format!("id {id}, at byte {offset}{more_text}, {name}"));
        if let Some(below) = &mut self.below {
            below.fragment = fragment;
        }
        Some(if first { NextHeader::Ip(next) } else { NextHeader::Data })
    }

    fn gre(&mut self) -> Option<NextHeader> {
        let all = self.rest;
        let &[flags, _, high, low] = self.take(4)? else { return None };
        let number = u16::from_be_bytes([high, low]);
        let mut text = type_name(number);
        if flags & 0x80 != 0 {
            let &[high, low, ..] = self.take(4)? else { return None };
            let right = checksum(u16::from_be_bytes([high, low]), fold(words(all)));
            text += &format!(", checksum {right}");
        }
        for (flag, name) in [(0x20, "key"), (0x10, "seq")] {
            if flags & flag != 0 {
                let word = u32::from_be_bytes(self.take(4)?.try_into().ok()?);
                text += &format!(", {name} {word}");
            }
        }
        self.say("gre", text);
        Some(NextHeader::Type(number))
    }

    fn vxlan(&mut self) -> Option<NextHeader> {
        let &[.., a, b, c, _] = self.take(8)? else { return None };
        self.say("vxlan", format!("vni {}", u32::from_be_bytes([0, a, b, c])));
        Some(NextHeader::Ether)
    }

    /// Adds lines for the stamp, payload and padding after the headers.
    fn data(&mut self, stamped: bool) {
        if stamped && let Some(text) = stamp(self.rest) {
            self.say("stamp", text);
            self.rest = &self.rest[Stamp::BYTES..];
        }
        if !self.rest.is_empty() {
            self.say("payload", format!("{} bytes", self.rest.len()));
        }
        if self.padding > 0 {
            self.say("padding", format!("{} bytes", self.padding));
        }
    }
}

fn stamp(bytes: &[u8]) -> Option<String> {
    let Stamp { stream, worker, number, .. } = Stamp::read(bytes)?;
    Some(format!("stream {stream}, worker {worker}, number {number}, and the time it is sent"))
}

/// A number of a field, by its name where it has one.
pub(super) fn named(protocol: &str, field: &str, number: u128) -> String {
    let field = Protocol::find(protocol).ok().and_then(|protocol| protocol.field(field).ok());
    field.map_or(number.to_string(), |field| Value::from(number).shown(field.form()).to_string())
}

fn type_name(number: u16) -> String {
    match named("ether", "type", number.into()) {
        name if name.starts_with(|c: char| c.is_ascii_digit()) => format!("{number:#06x}"),
        name => format!("{name} ({number:#06x})"),
    }
}

fn mac(bytes: [u8; 6]) -> String {
    let bytes = bytes.map(|byte| format!("{byte:02x}"));
    bytes.join(":")
}

/// A checksum, and whether it is right: then all that it covers, itself too, gives 0xffff.
pub(super) fn checksum(is: u16, sum: u16) -> String {
    match sum {
        0xffff => format!("{is:#06x} (right)"),
        // Without itself, and turned around.
        _ => {
            let without = fold(u64::from(sum) + u64::from(!is));
            format!("{is:#06x} (wrong: {:#06x} is right)", !without)
        }
    }
}

/// The sum of 16-bit numbers; a last byte alone is the upper half of one.
pub(super) fn words(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u64::from);
    bytes.chunks(2).map(word).sum()
}
