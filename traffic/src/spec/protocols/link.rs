//! Layers below IP: Ethernet and its tags (IEEE 802.3, 802.1Q), MPLS (RFC 3032, RFC 5462) and ARP
//! (RFC 826).

use super::tunnel;
use crate::spec::fault::Fault;
use crate::spec::form::Form;
use crate::spec::header::Header;
use crate::spec::layer::{Field, KnownAs, Layer, Protocol, Takes};

/// IEEE 802: an EtherType for local experiments.
pub(crate) const EXPERIMENTAL: u128 = 0x88b5;

const DOT1Q: u64 = 0x8100;
const DOT1AD: u64 = 0x88a8;

const ETHERTYPES: &[(&str, u64)] = &[
    ("ipv4", 0x0800),
    ("arp", 0x0806),
    ("teb", 0x6558),
    ("dot1q", DOT1Q),
    ("ipv6", 0x86dd),
    ("mpls", 0x8847),
    ("dot1ad", DOT1AD),
    ("lldp", 0x88cc),
    ("ptp", 0x88f7),
];

pub(crate) const ETHER: Protocol = Protocol {
    name: "ether",
    bytes: 14,
    fields: &[
        Field::address("dst", 0, Form::Mac),
        Field::address("src", 6, Form::Mac),
        Field::number("type", 12, 2).named(ETHERTYPES),
    ],
    // As such it is carried by tunnels (RFC 1701: transparent Ethernet bridging).
    known_as: KnownAs { ethertype: Some(0x6558), ip: Some(143), port: None },
    lay: ether,
};

fn ether(header: &mut Header) -> Result<(), Fault> {
    let asks = header.next().is_some_and(|next| next.protocol.is(&ARP));
    let dst = if asks { [0xff; 6] } else { header.defaults.dmac };
    header.auto("dst", number(dst));
    header.auto("src", number(header.defaults.smac));
    header.says_ethertype("type")
}

/// A MAC address as a number.
pub(super) fn number(mac: [u8; 6]) -> u128 {
    mac.iter().fold(0, |number, &byte| number << 8 | u128::from(byte))
}

pub(crate) const VLAN: Protocol = Protocol {
    name: "vlan",
    bytes: 4,
    fields: &[
        Field::part("pcp", 0, 2, 13, 3),
        Field::part("dei", 0, 2, 12, 1),
        Field::part("id", 0, 2, 0, 12).or("1"),
        Field::number("type", 2, 2).named(ETHERTYPES),
        // It stands in the header below.
        Field::special("tpid", TPID),
    ],
    known_as: KnownAs { ethertype: Some(DOT1Q as u16), ip: None, port: None },
    lay: |header| header.says_ethertype("type"),
};

const TPID: Takes =
    Takes::Value(Form::Number { bits: 16, names: &[("dot1q", DOT1Q), ("dot1ad", DOT1AD)] });

/// The EtherType of a tag below these layers: the outer of two tags is the provider's (IEEE
/// 802.1ad).
pub(crate) fn tpid(above: &[Layer]) -> u128 {
    let outer = above.first().is_some_and(|layer| layer.protocol.is(&VLAN));
    u128::from(if outer { DOT1AD } else { DOT1Q })
}

/// Checks that the layer below a tag has a type field for the tag's TPID.
pub(crate) fn check_tpid(below: &Layer, tag: &Layer) -> Result<(), Fault> {
    let Some(setting) = tag.setting("tpid") else { return Ok(()) };
    let types = ["type", "protocol"];
    let said = types.iter().any(|field| below.setting(field).is_some());
    if said || ![ETHER.name, VLAN.name, tunnel::GRE.name].contains(&below.protocol.name) {
        let name = below.protocol.name;
        let problem = format!("it stands in {name} below, which has something else there");
        return Err(tag.fault(setting, problem));
    }
    Ok(())
}

pub(crate) const MPLS: Protocol = Protocol {
    name: "mpls",
    bytes: 4,
    fields: &[
        Field::part("label", 0, 4, 12, 20).or("16"),
        Field::part("tc", 0, 4, 9, 3),
        Field::part("bottom", 0, 4, 8, 1),
        Field::part("ttl", 0, 4, 0, 8).or("64"),
    ],
    // By IP: RFC 4023; by UDP: RFC 7510.
    known_as: KnownAs { ethertype: Some(0x8847), ip: Some(137), port: Some(6635) },
    lay: mpls,
};

fn mpls(header: &mut Header) -> Result<(), Fault> {
    let more = header.next().is_some_and(|next| next.protocol.is(&MPLS));
    header.auto("bottom", u128::from(!more));
    Ok(())
}

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
    lay: arp,
};

fn arp(header: &mut Header) -> Result<(), Fault> {
    header.auto("sha", number(header.defaults.smac));
    Ok(())
}
