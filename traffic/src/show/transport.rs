//! Decodes the headers above IP.

use etherparse::{TcpHeaderSlice, TcpOptionElement, UdpHeaderSlice};

use super::decode::{Decoder, checksum, named, words};
use crate::plan::fold;
use sluicegate_base::headers::protocol;

/// IANA's port of VXLAN.
const VXLAN_PORT: u16 = 4789;

/// The content of a transport header's payload.
pub(super) enum Upper {
    Vxlan,
    Data,
}

/// Reads a header of an IP protocol, if it is one that is known here.
pub(super) fn upper(decoder: &mut Decoder, protocol: u8) -> Option<Upper> {
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

fn udp(decoder: &mut Decoder) -> Option<Upper> {
    let header = UdpHeaderSlice::from_slice(decoder.rest).ok()?;
    let (sport, dport) = (header.source_port(), header.destination_port());
    let right = match header.checksum() {
        0 if decoder.below.is_some_and(|below| !below.v6) => "none".to_owned(),
        is => rest_checksum(decoder, is, Some(17)),
    };
    decoder.say("udp", format!("{sport} > {dport}, length {}, checksum {right}", header.length()));
    decoder.take(8)?;
    Some(if dport == VXLAN_PORT { Upper::Vxlan } else { Upper::Data })
}

fn tcp(decoder: &mut Decoder) -> Option<Upper> {
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
    Some(Upper::Data)
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

fn icmp(decoder: &mut Decoder, name: &str, protocol: Option<u8>) -> Option<Upper> {
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
    Some(Upper::Data)
}
