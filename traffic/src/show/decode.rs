//! Decodes the headers of a packet as a receiver would, without the specification: the listing
//! shows what is sent.

use std::net::Ipv4Addr;

use etherparse::{
    ArpPacketSlice, Ethernet2HeaderSlice, Ipv4HeaderSlice, Ipv6HeaderSlice, SingleVlanHeaderSlice,
};
use etherparse::{TcpHeaderSlice, TcpOptionElement, UdpHeaderSlice};
use sluicegate_base::headers::{Ipv6Extension, ethertype, protocol};

use crate::analyse::Stamp;
use crate::plan::{fold, words};
use crate::spec::layer::Protocol;
use crate::spec::value::Value;

/// The next header to decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextHeader {
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
struct Below {
    sum: u64,
    v6: bool,
    fragment: bool,
}

struct Decoder<'a> {
    /// Bytes that no decoded header has taken, without padding.
    rest: &'a [u8],
    /// Bytes after the length that the headers give.
    padding: usize,
    below: Option<Below>,
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
                number => upper(self, number),
            },
            NextHeader::Vxlan => self.vxlan(),
            NextHeader::Data => None,
        }
    }

    /// Takes the next bytes.
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (header, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(header)
    }

    fn say(&mut self, name: &str, text: String) {
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
fn named(protocol: &str, field: &str, number: u128) -> String {
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
fn checksum(is: u16, sum: u16) -> String {
    match sum {
        0xffff => format!("{is:#06x} (right)"),
        // Without itself, and turned around.
        _ => {
            let without = fold(u64::from(sum) + u64::from(!is));
            format!("{is:#06x} (wrong: {:#06x} is right)", !without)
        }
    }
}

/// IANA's port of VXLAN.
const VXLAN_PORT: u16 = 4789;

/// Reads a header of an IP protocol, if it is one that is known here.
fn upper(decoder: &mut Decoder, protocol: u8) -> Option<NextHeader> {
    match protocol {
        protocol::ICMP => icmp(decoder, "icmp", None),
        protocol::TCP => tcp(decoder),
        protocol::UDP => udp(decoder),
        protocol::ICMPV6 => icmp(decoder, "icmpv6", Some(protocol)),
        _ => None,
    }
}

/// A checksum of all that is left, with a pseudo header if there is a protocol in it.
fn rest_checksum(decoder: &Decoder, is: u16, protocol: Option<u8>) -> String {
    let mut total = words(decoder.rest);
    if let (Some(protocol), Some(below)) = (protocol, decoder.below) {
        total += below.sum + u64::from(protocol) + decoder.rest.len() as u64;
    }
    if decoder.below.is_some_and(|below| below.fragment) {
        return format!("{is:#06x} (of the whole, which is not here)");
    }
    checksum(is, fold(total))
}

fn udp(decoder: &mut Decoder) -> Option<NextHeader> {
    let header = UdpHeaderSlice::from_slice(decoder.rest).ok()?;
    let (sport, dport) = (header.source_port(), header.destination_port());
    let right = match header.checksum() {
        0 if decoder.below.is_some_and(|below| !below.v6) => "none".to_owned(),
        is => rest_checksum(decoder, is, Some(17)),
    };
    decoder.say("udp", format!("{sport} > {dport}, length {}, checksum {right}", header.length()));
    decoder.take(8)?;
    Some(if dport == VXLAN_PORT { NextHeader::Vxlan } else { NextHeader::Data })
}

fn tcp(decoder: &mut Decoder) -> Option<NextHeader> {
    let header = TcpHeaderSlice::from_slice(decoder.rest).ok()?;
    let bytes = header.slice();
    let flags = u16::from_be_bytes([bytes[12], bytes[13]]) & 0x1ff;
    let mut text = format!(
        "{} > {}, {}, seq {}, ack {}, window {}",
        header.source_port(),
        header.destination_port(),
        named("tcp", "flags", flags.into()),
        header.sequence_number(),
        header.acknowledgment_number(),
        header.window_size(),
    );
    if header.urgent_pointer() != 0 {
        text += &format!(", urgent {}", header.urgent_pointer());
    }
    let options: Vec<_> = header.options_iterator().map_while(Result::ok).map(option).collect();
    if !options.is_empty() {
        text += &format!(", options {}", options.join("; "));
    }
    text += &format!(", checksum {}", rest_checksum(decoder, header.checksum(), Some(6)));
    decoder.say("tcp", text);
    decoder.take(bytes.len())?;
    Some(NextHeader::Data)
}

/// An option in the words of a specification.
fn option(option: TcpOptionElement) -> String {
    match option {
        TcpOptionElement::Noop => "nop".into(),
        TcpOptionElement::MaximumSegmentSize(bytes) => format!("mss={bytes}"),
        TcpOptionElement::WindowScale(shift) => format!("wscale={shift}"),
        TcpOptionElement::SelectiveAcknowledgementPermitted => "sack-ok".into(),
        TcpOptionElement::SelectiveAcknowledgement(..) => "sack".into(),
        TcpOptionElement::Timestamp(own, other) => format!("timestamps={own} {other}"),
    }
}

fn icmp(decoder: &mut Decoder, name: &str, protocol: Option<u8>) -> Option<NextHeader> {
    let &[kind, code, high, low, a, b, c, d, ..] = decoder.rest else { return None };
    let right = rest_checksum(decoder, u16::from_be_bytes([high, low]), protocol);
    let kind = named(name, "type", kind.into());
    let rest = match kind.as_str() {
        "echo-request" | "echo-reply" => {
            let (id, seq) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            format!("id {id}, seq {seq}")
        }
        _ => format!("rest {:#010x}", u32::from_be_bytes([a, b, c, d])),
    };
    decoder.say(name, format!("{kind}, code {code}, {rest}, checksum {right}"));
    decoder.take(8)?;
    Some(NextHeader::Data)
}
