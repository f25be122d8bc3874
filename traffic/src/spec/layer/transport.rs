//! Layers above IP: TCP (RFC 9293) and its options, UDP (RFC 768), ICMP (RFC 792) and ICMPv6
//! (RFC 4443).

use std::fmt;

use sluicegate_base::text_error::Fault;

use super::payload::{Hex, hex};
use super::writer::{Cover, HeaderWriter};
use super::{Field, FieldKind, Protocol, SettingValue, link};
use crate::plan::Finish;
use crate::spec::edits::Bits;
use crate::spec::value::{Form, Value};

const FLAGS: &[&str] = &["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns"];
/// The letters of the flags in a word like `SA`.
const LETTERS: &[&str] = &["F", "S", "R", "P", "A", "U", "E", "CW", "N"];

/// Maximum of option bytes: the header's length field has four bits, so at most 15 words, of which the header
/// itself takes 5.
const MAX_OPTIONS: usize = 40;

pub(crate) const TCP: Protocol = Protocol::new("tcp", 20, tcp).ip(6).fields(&[
    Field::number("sport", 0, 2).or("9"),
    Field::number("dport", 2, 2).or("9"),
    Field::number("seq", 4, 4),
    Field::number("ack", 8, 4),
    Field::part("offset", 12, 2, 12, 4),
    Field::part("reserved", 12, 2, 9, 3),
    Field::part("flags", 12, 2, 0, 9).flags(FLAGS, LETTERS).or("syn"),
    Field::number("window", 14, 2).or("65535"),
    Field::checksum(16),
    Field::number("urgent", 18, 2),
    Field::special("options", FieldKind::TcpOptions),
]);

fn tcp(header: &mut HeaderWriter) -> Result<(), Fault> {
    if let Some(setting) = header.layer.setting("options")
        && let SettingValue::TcpOptions(options) = &setting.given
    {
        for option in options {
            option.write(header);
        }
        let bytes = header.bytes() - TCP.bytes;
        if bytes > MAX_OPTIONS {
            let problem = format!("the options have {bytes} bytes: at most {MAX_OPTIONS}");
            return Err(header.layer.fault(setting, problem));
        }
    }
    // Zero ends the options.
    header.fill_to_multiple(4);
    header.auto("offset", header.bytes() as u128 / 4);
    header.checksum(16, Cover::Upper(6), Finish::Plain, false)
}

/// An option of the TCP header (RFC 9293, section 3.2; RFC 7323; RFC 2018).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TcpOption {
    name: &'static str,
    /// Kind, length and data, with zeros for the values.
    bytes: Vec<u8>,
    /// The values after kind and length, each with its length in bytes.
    values: Vec<(usize, Value)>,
}

/// Options with a length: name, kind, and the bytes of each value.
const OPTIONS: &[(&str, u8, &[usize])] =
    &[("mss", 2, &[2]), ("wscale", 3, &[1]), ("sack-ok", 4, &[]), ("timestamps", 8, &[4, 4])];

const RIGHT: &str = "mss=1460, wscale=7, sack-ok, timestamps=1 0 (its own and the other's), nop \
                     or raw=0a0b0c (bytes in hexadecimal)";

/// Returns the notation of an option's value.
const fn form(bytes: usize) -> Form {
    Form::Number { bits: bytes as u8 * 8, names: "" }
}

impl TcpOption {
    /// Reads an option.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{}' is not a TCP option; available: {RIGHT}", text.trim());
        let (name, given) = match text.split_once('=') {
            Some((name, given)) => (name.trim(), Some(given.trim())),
            None => (text.trim(), None),
        };
        let of = |problem| format!("{name}: {problem}");
        let values = Vec::new();
        match (name, given) {
            ("nop", None) => return Ok(Self { name: "nop", bytes: vec![1], values }),
            ("raw", Some(bytes)) => {
                let bytes = hex(bytes, MAX_OPTIONS).map_err(of)?;
                return Ok(Self { name: "raw", bytes, values });
            }
            _ => {}
        }
        let option = OPTIONS
            .iter()
            .find(|(option, _, cells)| *option == name && cells.is_empty() == given.is_none());
        let &(name, kind, cells) = option.ok_or_else(wrong)?;
        let mut bytes = vec![kind, 2 + cells.iter().sum::<usize>() as u8];
        bytes.resize(bytes[1].into(), 0);
        let given = given.unwrap_or_default();
        let (first, second) = match cells {
            [_, _] => given.split_once(' ').unwrap_or((given, "0")),
            _ => (given, ""),
        };
        let value = |(&cell, text)| Ok((cell, Value::parse(text, form(cell)).map_err(of)?));
        let values = cells.iter().zip([first, second]).map(value).collect::<Result<_, String>>()?;
        Ok(Self { name, bytes, values })
    }

    /// Appends the option. Edits need no alignment, so its values may change at any offset.
    fn write(&self, header: &mut HeaderWriter) {
        let mut at = header.bytes() + 2;
        header.append(&self.bytes);
        for (bytes, value) in &self.values {
            header.put(Bits::cell(at, *bytes), value);
            at += bytes;
        }
    }
}

impl fmt::Display for TcpOption {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str(self.name)?;
        if self.name == "raw" {
            return write!(to, "={}", Hex(&self.bytes));
        }
        for (place, (bytes, value)) in self.values.iter().enumerate() {
            let mark = if place == 0 { '=' } else { ' ' };
            write!(to, "{mark}{}", value.shown(form(*bytes)))?;
        }
        Ok(())
    }
}

/// The discard port (RFC 863).
const DISCARD: u128 = 9;

pub(crate) const UDP: Protocol = Protocol::new("udp", 8, udp).ip(17).fields(&[
    Field::number("sport", 0, 2).or("9"),
    Field::number("dport", 2, 2),
    Field::number("length", 4, 2),
    Field::checksum(6),
]);

fn udp(header: &mut HeaderWriter) -> Result<(), Fault> {
    let port = header.next().and_then(|next| next.protocol.port);
    header.auto("dport", port.map_or(DISCARD, u128::from));
    header.length("length", 0);
    header.checksum(6, Cover::Upper(17), Finish::NeverZero, is_without(header))
}

/// Reports whether UDP has no checksum by default, which IPv4 allows: below VXLAN (RFC 7348, section
/// 5), and in a fragment, where the checksum would cover other fragments.
fn is_without(header: &HeaderWriter) -> bool {
    let tunnel = header.next().is_some_and(|next| next.protocol.is(&link::VXLAN));
    header.ip.as_ref().is_some_and(|ip| ip.version == 4 && (tunnel || ip.fragment))
}

const TYPES: &str = "\
    echo-reply=0 unreachable=3 redirect=5 echo-request=8 time-exceeded=11 parameter-problem=12 \
    timestamp-request=13 timestamp-reply=14";

const V6_TYPES: &str = "\
    unreachable=1 packet-too-big=2 time-exceeded=3 parameter-problem=4 echo-request=128 \
    echo-reply=129 router-solicitation=133 router-advertisement=134 neighbor-solicitation=135 \
    neighbor-advertisement=136";

pub(crate) const ICMP: Protocol = Protocol::new("icmp", 8, icmp).ip(1).fields(&fields(TYPES));

fn icmp(header: &mut HeaderWriter) -> Result<(), Fault> {
    header.checksum(2, Cover::Rest, Finish::Plain, false)
}

pub(crate) const ICMPV6: Protocol =
    Protocol::new("icmpv6", 8, icmpv6).ip(58).fields(&fields(V6_TYPES));

fn icmpv6(header: &mut HeaderWriter) -> Result<(), Fault> {
    header.checksum(2, Cover::Upper(58), Finish::Plain, false)
}

const fn fields(types: &'static str) -> [Field; 6] {
    [
        Field::number("type", 0, 1).named(types).or("echo-request"),
        Field::number("code", 1, 1),
        Field::checksum(2),
        Field::number("id", 4, 2),
        Field::number("seq", 6, 2),
        // The content of these bytes in types other than echo.
        Field::number("rest", 4, 4),
    ]
}
