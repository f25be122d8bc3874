//! Layers above IP: TCP (RFC 9293) and its options, UDP (RFC 768), ICMP (RFC 792) and ICMPv6
//! (RFC 4443).

use std::fmt;

use super::tunnel;
use crate::plan::Finish;
use crate::spec::fault::Fault;
use crate::spec::form::{Flag, Form};
use crate::spec::header::{Cover, Header};
use crate::spec::layer::{Bits, Field, Given, KnownAs, Protocol, Takes};
use crate::spec::value::Value;

const FLAGS: &[Flag] = &[
    Flag { name: "fin", letters: "F", bit: 0x001 },
    Flag { name: "syn", letters: "S", bit: 0x002 },
    Flag { name: "rst", letters: "R", bit: 0x004 },
    Flag { name: "psh", letters: "P", bit: 0x008 },
    Flag { name: "ack", letters: "A", bit: 0x010 },
    Flag { name: "urg", letters: "U", bit: 0x020 },
    Flag { name: "ece", letters: "E", bit: 0x040 },
    Flag { name: "cwr", letters: "CW", bit: 0x080 },
    Flag { name: "ns", letters: "N", bit: 0x100 },
];

/// The header's length has four bits, and counts words: fifteen, five without options.
const MAX_OPTIONS: usize = 40;

pub(crate) const TCP: Protocol = Protocol {
    name: "tcp",
    bytes: 20,
    fields: &[
        Field::number("sport", 0, 2).or("9"),
        Field::number("dport", 2, 2).or("9"),
        Field::number("seq", 4, 4),
        Field::number("ack", 8, 4),
        Field::part("offset", 12, 2, 12, 4),
        Field::part("reserved", 12, 2, 9, 3),
        Field {
            name: "flags",
            takes: Takes::Value(Form::Flags { bits: 9, names: FLAGS }),
            bits: Some(Bits { at: 12, cell: 2, shift: 0, width: 9 }),
            default: "syn",
        },
        Field::number("window", 14, 2).or("65535"),
        Field::checksum(16),
        Field::number("urgent", 18, 2),
        Field::special("options", Takes::TcpOptions),
    ],
    known_as: KnownAs { ethertype: None, ip: Some(6), port: None },
    lay: tcp,
};

fn tcp(header: &mut Header) -> Result<(), Fault> {
    if let Some(setting) = header.setting("options")
        && let Given::TcpOptions(options) = &setting.given
    {
        for option in options {
            option.lay(header);
        }
        let bytes = header.bytes() - TCP.bytes;
        if bytes > MAX_OPTIONS {
            let problem = format!("the options have {bytes} bytes: at most {MAX_OPTIONS}");
            return Err(header.fault(setting, problem));
        }
    }
    // Zero ends the options.
    header.fill_to_multiple(4);
    header.auto("offset", header.bytes() as u128 / 4);
    header.checksum(16, Cover::Upper(6), Finish::Plain, false)
}

/// An option of the TCP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TcpOption {
    Mss(Value),
    WindowScale(Value),
    SackOk,
    /// Its own time and the other's.
    Timestamps(Value, Value),
    Nop,
    /// Kind, length and all, as they are.
    Raw(Vec<u8>),
}

const RIGHT: &str = "mss=1460, wscale=7, sack-ok, timestamps=1 0 (its own and the other's), nop \
                     or raw=0a0b0c (bytes in hexadecimal)";

const fn bits(bits: u8) -> Form {
    Form::Number { bits, names: &[] }
}

impl TcpOption {
    /// Reads an option.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{}' is no TCP option: there are {RIGHT}", text.trim());
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (text.trim(), None),
        };
        let of = |problem| format!("{name}: {problem}");
        Ok(match (name, value) {
            ("mss", Some(value)) => Self::Mss(Value::parse(value, bits(16)).map_err(of)?),
            ("wscale", Some(value)) => Self::WindowScale(Value::parse(value, bits(8)).map_err(of)?),
            ("sack-ok", None) => Self::SackOk,
            ("nop", None) => Self::Nop,
            ("timestamps", Some(value)) => {
                let (own, other) = value.split_once(' ').unwrap_or((value, "0"));
                let read = |one| Value::parse(one, bits(32)).map_err(of);
                Self::Timestamps(read(own)?, read(other)?)
            }
            ("raw", Some(value)) => Self::Raw(super::bytes::hex(value, MAX_OPTIONS).map_err(of)?),
            _ => return Err(wrong()),
        })
    }

    /// Puts it behind the others (RFC 9293, section 3.2; RFC 7323; RFC 2018). Where its numbers
    /// change they are edited wherever they stand: edits need no alignment.
    fn lay(&self, header: &mut Header) {
        let at = header.bytes();
        let number = |at, cell: usize| Bits { at, cell, shift: 0, width: cell as u8 * 8 };
        match self {
            Self::Nop => header.append(&[1]),
            Self::SackOk => header.append(&[4, 2]),
            Self::Raw(bytes) => header.append(bytes),
            Self::Mss(value) => {
                header.append(&[2, 4, 0, 0]);
                header.put(number(at + 2, 2), value);
            }
            Self::WindowScale(value) => {
                header.append(&[3, 3, 0]);
                header.put(number(at + 2, 1), value);
            }
            Self::Timestamps(own, other) => {
                header.append(&[8, 10, 0, 0, 0, 0, 0, 0, 0, 0]);
                header.put(number(at + 2, 4), own);
                header.put(number(at + 6, 4), other);
            }
        }
    }
}

impl fmt::Display for TcpOption {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Nop => to.write_str("nop"),
            Self::SackOk => to.write_str("sack-ok"),
            Self::Raw(bytes) => write!(to, "raw={}", super::bytes::Hex(bytes)),
            Self::Mss(value) => write!(to, "mss={}", value.shown(bits(16))),
            Self::WindowScale(value) => write!(to, "wscale={}", value.shown(bits(8))),
            Self::Timestamps(own, other) => {
                write!(to, "timestamps={} {}", own.shown(bits(32)), other.shown(bits(32)))
            }
        }
    }
}

/// The discard port (RFC 863).
const DISCARD: u128 = 9;

pub(crate) const UDP: Protocol = Protocol {
    name: "udp",
    bytes: 8,
    fields: &[
        Field::number("sport", 0, 2).or("9"),
        Field::number("dport", 2, 2),
        Field::number("length", 4, 2),
        Field::checksum(6),
    ],
    known_as: KnownAs { ethertype: None, ip: Some(17), port: None },
    lay: udp,
};

fn udp(header: &mut Header) -> Result<(), Fault> {
    let port = header.next().and_then(|next| next.protocol.known_as.port);
    header.auto("dport", port.map_or(DISCARD, u128::from));
    header.length("length", 0);
    header.checksum(6, Cover::Upper(17), Finish::NeverZero, is_without(header))
}

/// Over IPv4 a checksum of zero says that there is none. VXLAN does without (RFC 7348, section
/// 5), and in a fragment none can be right: it would be the whole datagram's, which nobody sees.
fn is_without(header: &Header) -> bool {
    let tunnel = header.next().is_some_and(|next| next.protocol.is(&tunnel::VXLAN));
    header.ip.as_ref().is_some_and(|ip| ip.version == 4 && (tunnel || ip.fragment))
}

const TYPES: &[(&str, u64)] = &[
    ("echo-reply", 0),
    ("unreachable", 3),
    ("redirect", 5),
    ("echo-request", 8),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp-request", 13),
    ("timestamp-reply", 14),
];

const V6_TYPES: &[(&str, u64)] = &[
    ("unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
    ("router-solicitation", 133),
    ("router-advertisement", 134),
    ("neighbor-solicitation", 135),
    ("neighbor-advertisement", 136),
];

pub(crate) const ICMP: Protocol = Protocol {
    name: "icmp",
    bytes: 8,
    fields: &fields(TYPES),
    known_as: KnownAs { ethertype: None, ip: Some(1), port: None },
    lay: |header| header.checksum(2, Cover::Rest, Finish::Plain, false),
};

pub(crate) const ICMPV6: Protocol = Protocol {
    name: "icmpv6",
    bytes: 8,
    fields: &fields(V6_TYPES),
    known_as: KnownAs { ethertype: None, ip: Some(58), port: None },
    lay: |header| header.checksum(2, Cover::Upper(58), Finish::Plain, false),
};

const fn fields(types: &'static [(&'static str, u64)]) -> [Field; 6] {
    [
        Field::number("type", 0, 1).named(types).or("echo-request"),
        Field::number("code", 1, 1),
        Field::checksum(2),
        Field::number("id", 4, 2),
        Field::number("seq", 6, 2),
        // What other types than echo have there.
        Field::number("rest", 4, 4),
    ]
}
