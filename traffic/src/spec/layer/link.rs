//! Layers that contain an EtherType or have one: Ethernet and its tags (IEEE 802.3, 802.1Q), MPLS (RFC 3032,
//! RFC 5462), ARP (RFC 826), and the tunnels GRE (RFC 2784, RFC 2890) and VXLAN (RFC 7348).

use sluicegate_base::text_error::Fault;

use super::writer::{Cover, HeaderWriter};
use super::{Field, FieldKind, Layer, Protocol, SettingValue};
use crate::plan::Finish;
use crate::spec::edits::Bits;
use crate::spec::value::{Form, number_of};
use sluicegate_base::headers::ethertype;

/// An EtherType for local experiments (IEEE 802).
pub(crate) const EXPERIMENTAL: u128 = 0x88b5;

const ETHERTYPES: &str = "\
    ipv4=0x0800 arp=0x0806 teb=0x6558 dot1q=0x8100 ipv6=0x86dd mpls=0x8847 dot1ad=0x88a8 \
    lldp=0x88cc ptp=0x88f7";

// `.ethertype`: in GRE (RFC 1701, transparent Ethernet bridging); `.ip`: in IPv6 (RFC 8986).
pub(crate) const ETHER: Protocol =
    Protocol::new("ether", 14, ether).ethertype(ethertype::ETHERNET).ip(143).fields(&[
        Field::address("dst", 0, Form::Mac),
        Field::address("src", 6, Form::Mac),
        Field::number("type", 12, 2).named(ETHERTYPES),
    ]);

fn ether(header: &mut HeaderWriter) -> Result<(), Fault> {
    let asks = header.next().is_some_and(|next| next.protocol.is(&ARP));
    let dst = if asks { [0xff; 6] } else { header.defaults.dmac };
    header.auto("dst", number_of(&dst));
    header.auto("src", number_of(&header.defaults.smac));
    name_next_ethertype(header, "type")
}

pub(crate) const VLAN: Protocol =
    Protocol::new("vlan", 4, vlan).ethertype(ethertype::VLAN).fields(&[
        Field::part("pcp", 0, 2, 13, 3),
        Field::part("dei", 0, 2, 12, 1),
        Field::part("id", 0, 2, 0, 12).or("1"),
        Field::number("type", 2, 2).named(ETHERTYPES),
        // Its position is in the header below.
        Field::special("tpid", TPID),
    ]);

fn vlan(header: &mut HeaderWriter) -> Result<(), Fault> {
    name_next_ethertype(header, "type")
}

const TPID: FieldKind =
    FieldKind::Value(Form::Number { bits: 16, names: "dot1q=0x8100 dot1ad=0x88a8" });

/// Sets a field to the EtherType of the next header. The header below a tag contains the tag's TPID; of two
/// tags, the outer has the provider's (IEEE 802.1ad).
fn name_next_ethertype(header: &mut HeaderWriter, name: &str) -> Result<(), Fault> {
    let tag = header.next().filter(|next| next.protocol.is(&VLAN));
    if let (Some(tag), Some(bits)) = (tag, header.unset(name)) {
        let outer = header.above.get(1).is_some_and(|layer| layer.protocol.is(&VLAN));
        let tpid = u128::from(if outer { ethertype::SERVICE_VLAN } else { ethertype::VLAN }).into();
        header.put(bits, tag.value("tpid").unwrap_or(&tpid));
        return Ok(());
    }
    header.name_next(name, |next| next.ethertype.map(u128::from), EXPERIMENTAL)
}

/// Checks that the layer below a tag has a type field for the tag's TPID.
pub(crate) fn check_tpid(below: &Layer, tag: &Layer) -> Result<(), Fault> {
    let Some(setting) = tag.setting("tpid") else { return Ok(()) };
    let types = ["type", "protocol"];
    let said = types.iter().any(|field| below.setting(field).is_some());
    if said || ![ETHER.name, VLAN.name, GRE.name].contains(&below.protocol.name) {
        let name = below.protocol.name;
        let problem = format!("it stands in {name} below, which has something else there");
        return Err(tag.fault(setting, problem));
    }
    Ok(())
}

// `.ip`: in IP (RFC 4023); `.port`: in UDP (RFC 7510).
pub(crate) const MPLS: Protocol =
    Protocol::new("mpls", 4, mpls).ethertype(ethertype::MPLS).ip(137).port(6635).fields(&[
        Field::part("label", 0, 4, 12, 20).or("16"),
        Field::part("tc", 0, 4, 9, 3),
        Field::part("bottom", 0, 4, 8, 1),
        Field::part("ttl", 0, 4, 0, 8).or("64"),
    ]);

fn mpls(header: &mut HeaderWriter) -> Result<(), Fault> {
    let more = header.next().is_some_and(|next| next.protocol.is(&MPLS));
    header.auto("bottom", u128::from(!more));
    Ok(())
}

pub(crate) const ARP: Protocol = Protocol::new("arp", 28, arp).ethertype(ethertype::ARP).fields(&[
    Field::number("htype", 0, 2).or("1"),
    Field::number("ptype", 2, 2).or("0x0800"),
    Field::number("hlen", 4, 1).or("6"),
    Field::number("plen", 5, 1).or("4"),
    Field::number("op", 6, 2).named("request=1 reply=2").or("request"),
    Field::address("sha", 8, Form::Mac),
    Field::address("spa", 14, Form::Ipv4),
    Field::address("tha", 18, Form::Mac),
    Field::address("tpa", 24, Form::Ipv4),
]);

fn arp(header: &mut HeaderWriter) -> Result<(), Fault> {
    let [src, dst] = header.defaults.ipv4;
    header.auto("sha", number_of(&header.defaults.smac));
    header.auto("spa", number_of(&src.octets()));
    header.auto("tpa", number_of(&dst.octets()));
    Ok(())
}

const WORD: FieldKind = FieldKind::Value(Form::Number { bits: 32, names: "" });

pub(crate) const GRE: Protocol = Protocol::new("gre", 4, gre).ip(47).port(4754).fields(&[
    Field::part("has-checksum", 0, 2, 15, 1),
    Field::part("has-key", 0, 2, 13, 1),
    Field::part("has-seq", 0, 2, 12, 1),
    Field::part("version", 0, 2, 0, 3),
    Field::number("protocol", 2, 2),
    // Present only if the specification sets them.
    Field::special("checksum", FieldKind::Checksum),
    Field::special("key", WORD),
    Field::special("seq", WORD),
]);

fn gre(header: &mut HeaderWriter) -> Result<(), Fault> {
    for (field, flag) in [("checksum", "has-checksum"), ("key", "has-key"), ("seq", "has-seq")] {
        if header.layer.setting(field).is_some() {
            header.auto(flag, 1);
        }
    }
    name_next_ethertype(header, "protocol")?;
    if let Some(setting) = header.layer.setting("checksum") {
        let at = header.bytes();
        // The other two bytes are reserved.
        header.append(&[0; 4]);
        match &setting.given {
            SettingValue::Value(value) => header.put(Bits::cell(at, 2), value),
            _ => header.checksum(at, Cover::Rest, Finish::Plain, true)?,
        }
    }
    for field in ["key", "seq"] {
        if let Some(value) = header.layer.value(field) {
            let at = header.bytes();
            header.append(&[0; 4]);
            header.put(Bits::cell(at, 4), value);
        }
    }
    Ok(())
}

pub(crate) const VXLAN: Protocol = Protocol::new("vxlan", 8, vxlan).port(4789).fields(&[
    // The flag: the VNI is valid.
    Field::number("flags", 0, 1).or("0x08"),
    Field::part("vni", 4, 4, 8, 24).or("1"),
]);

fn vxlan(header: &mut HeaderWriter) -> Result<(), Fault> {
    match header.next() {
        Some(next) if !next.protocol.is(&ETHER) => {
            let problem = "vxlan carries ether: put it between, or take raw for something else";
            Err(Fault::new(&next.place, next.protocol.name, problem))
        }
        _ => Ok(()),
    }
}
