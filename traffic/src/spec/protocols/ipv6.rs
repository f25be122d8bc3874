//! IPv6 and its extension headers (RFC 8200).

use super::{DSCP, ECN, IP_PROTOCOLS};
use crate::spec::build::Ip;
use crate::spec::fault::Fault;
use crate::spec::form::Form;
use crate::spec::header::Header;
use crate::spec::layer::{Field, KnownAs, Protocol, Takes};

pub(crate) const IPV6: Protocol = Protocol {
    name: "ipv6",
    bytes: 40,
    fields: &[
        Field::part("version", 0, 4, 28, 4).or("6"),
        Field::part("traffic-class", 0, 4, 20, 8),
        Field::part("dscp", 0, 4, 22, 6).named(DSCP),
        Field::part("ecn", 0, 4, 20, 2).named(ECN),
        Field::part("flow-label", 0, 4, 0, 20),
        Field::number("length", 4, 2),
        Field::number("next-header", 6, 1).named(IP_PROTOCOLS),
        Field::number("hop-limit", 7, 1).or("64"),
        Field::address("src", 8, Form::Ipv6).or("2001:db8::1"),
        Field::address("dst", 24, Form::Ipv6).or("2001:db8::2"),
    ],
    known_as: KnownAs { ethertype: Some(0x86dd), ip: Some(41), port: None },
    lay,
};

fn lay(header: &mut Header) -> Result<(), Fault> {
    header.length("length", 40);
    header.says_protocol("next-header")?;
    let addresses = header.at() + 8..header.at() + 40;
    header.draft.ip = Some(Ip { version: 6, addresses, fragment: false });
    Ok(())
}

/// The longest data of an extension header: its length has eight bits, and counts eight bytes.
const MAX_DATA: usize = 256 * 8 - 4;

pub(crate) const HOP_BY_HOP: Protocol = Protocol {
    name: "hop-by-hop",
    bytes: 2,
    fields: OPTIONS,
    known_as: KnownAs { ethertype: None, ip: Some(0), port: None },
    lay: options,
};

pub(crate) const DESTINATION: Protocol = Protocol {
    name: "destination",
    bytes: 2,
    fields: OPTIONS,
    known_as: KnownAs { ethertype: None, ip: Some(60), port: None },
    lay: options,
};

const OPTIONS: &[Field] = &[
    Field::number("next-header", 0, 1).named(IP_PROTOCOLS),
    Field::number("length", 1, 1),
    Field::special("options", Takes::Hex(MAX_DATA)),
];

fn options(header: &mut Header) -> Result<(), Fault> {
    header.append(header.given_bytes("options").unwrap_or_default());
    // One byte of padding is an option of its own; more are PadN (RFC 8200, section 4.2).
    let pad = match header.bytes() {
        2 => 6,
        bytes => bytes.next_multiple_of(8) - bytes,
    };
    if pad == 1 {
        header.append(&[0]);
    } else if pad > 1 {
        header.append(&[1, pad as u8 - 2]);
    }
    extension(header)
}

pub(crate) const ROUTING: Protocol = Protocol {
    name: "routing",
    bytes: 4,
    fields: &[
        Field::number("next-header", 0, 1).named(IP_PROTOCOLS),
        Field::number("length", 1, 1),
        // RFC 3692: for experiments.
        Field::number("type", 2, 1).or("253"),
        Field::number("segments-left", 3, 1),
        Field::special("data", Takes::Hex(MAX_DATA)),
    ],
    known_as: KnownAs { ethertype: None, ip: Some(43), port: None },
    lay: routing,
};

fn routing(header: &mut Header) -> Result<(), Fault> {
    header.append(header.given_bytes("data").unwrap_or_default());
    extension(header)
}

/// Finishes an extension header that has a length: in units of eight bytes, without the first.
fn extension(header: &mut Header) -> Result<(), Fault> {
    header.fill_to_multiple(8);
    header.auto("length", header.bytes() as u128 / 8 - 1);
    header.draft.ip.clone_from(&header.ip);
    header.says_protocol("next-header")
}

pub(crate) const FRAGMENT: Protocol = Protocol {
    name: "fragment",
    bytes: 8,
    fields: &[
        Field::number("next-header", 0, 1).named(IP_PROTOCOLS),
        Field::part("frag", 2, 2, 3, 13),
        Field::part("mf", 2, 2, 0, 1),
        Field::number("id", 4, 4),
    ],
    known_as: KnownAs { ethertype: None, ip: Some(44), port: None },
    lay: fragment,
};

fn fragment(header: &mut Header) -> Result<(), Fault> {
    header.draft.ip = header.ip.clone().map(|ip| Ip { fragment: true, ..ip });
    header.says_protocol("next-header")
}
