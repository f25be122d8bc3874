//! ARP (RFC 826), of IPv4 addresses on Ethernet.

use super::ethernet;
use crate::spec::fault::Fault;
use crate::spec::form::Form;
use crate::spec::header::Header;
use crate::spec::layer::{Field, KnownAs, Protocol};

pub(crate) const ARP: Protocol = Protocol {
    name: "arp",
    bytes: 28,
    fields: &[
        Field::number("htype", 0, 2).or("1"),
        Field::number("ptype", 2, 2).or("0x0800"),
        Field::number("hlen", 4, 1).or("6"),
        Field::number("plen", 5, 1).or("4"),
        Field::number("op", 6, 2).named(&[("request", 1), ("reply", 2)]).or("request"),
        Field::address("sha", 8, Form::Mac),
        Field::address("spa", 14, Form::Ipv4).or("198.18.0.1"),
        Field::address("tha", 18, Form::Mac),
        Field::address("tpa", 24, Form::Ipv4).or("198.18.0.2"),
    ],
    known_as: KnownAs { ethertype: Some(0x0806), ip: None, port: None },
    lay,
};

fn lay(header: &mut Header) -> Result<(), Fault> {
    header.auto("sha", ethernet::number(header.defaults.smac));
    Ok(())
}
