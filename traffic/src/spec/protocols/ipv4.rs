//! IPv4 (RFC 791).

use super::{DSCP, ECN, IP_PROTOCOLS};
use crate::plan::Finish;
use crate::spec::build::Ip;
use crate::spec::fault::Fault;
use crate::spec::form::{Flag, Form};
use crate::spec::header::{Cover, Header};
use crate::spec::layer::{Bits, Field, KnownAs, Protocol, Takes};

const MORE_FRAGMENTS: u128 = 1;

const FLAGS: &[Flag] = &[
    Flag { name: "mf", letters: "", bit: MORE_FRAGMENTS as u64 },
    Flag { name: "df", letters: "", bit: 2 },
    Flag { name: "reserved", letters: "", bit: 4 },
];

pub(crate) const IPV4: Protocol = Protocol {
    name: "ipv4",
    bytes: 20,
    fields: &[
        Field::part("version", 0, 1, 4, 4).or("4"),
        Field::part("ihl", 0, 1, 0, 4),
        Field::number("tos", 1, 1),
        Field::part("dscp", 1, 1, 2, 6).named(DSCP),
        Field::part("ecn", 1, 1, 0, 2).named(ECN),
        Field::number("length", 2, 2),
        Field::number("id", 4, 2),
        Field {
            name: "flags",
            takes: Takes::Value(Form::Flags { bits: 3, names: FLAGS }),
            bits: Some(Bits { at: 6, cell: 2, shift: 13, width: 3 }),
            default: "",
        },
        Field::part("frag", 6, 2, 0, 13),
        Field::number("ttl", 8, 1).or("64"),
        Field::number("protocol", 9, 1).named(IP_PROTOCOLS),
        Field::checksum(10),
        Field::address("src", 12, Form::Ipv4).or("198.18.0.1"),
        Field::address("dst", 16, Form::Ipv4).or("198.18.0.2"),
        // The header's length has four bits, and counts words.
        Field::special("options", Takes::Hex(40)),
    ],
    known_as: KnownAs { ethertype: Some(0x0800), ip: Some(4), port: None },
    lay,
};

fn lay(header: &mut Header) -> Result<(), Fault> {
    header.append(header.given_bytes("options").unwrap_or_default());
    // Zero ends the options.
    header.fill_to_multiple(4);
    header.auto("ihl", header.bytes() as u128 / 4);
    header.length("length", 0);
    header.says_protocol("protocol")?;
    header.checksum(10, Cover::Header, Finish::Plain, false)?;
    let flags = header.layer.value("flags");
    let frag = header.layer.value("frag");
    let fragment = flags.is_some_and(|flags| flags.may_be(|bits| bits & MORE_FRAGMENTS != 0))
        || frag.is_some_and(|frag| frag.may_be(|offset| offset != 0));
    let addresses = header.at() + 12..header.at() + 20;
    header.draft.ip = Some(Ip { version: 4, addresses, fragment });
    Ok(())
}
