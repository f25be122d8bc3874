//! ICMP (RFC 792) and ICMPv6 (RFC 4443).

use crate::plan::Finish;
use crate::spec::header::Cover;
use crate::spec::layer::{Field, KnownAs, Protocol};

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
