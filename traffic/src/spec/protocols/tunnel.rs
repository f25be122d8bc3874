//! Tunnels: GRE (RFC 2784, RFC 2890) and VXLAN (RFC 7348).

use super::link;
use crate::plan::Finish;
use crate::spec::fault::Fault;
use crate::spec::form::Form;
use crate::spec::header::{Cover, Header};
use crate::spec::layer::{Bits, Field, Given, KnownAs, Protocol, Takes};

const WORD: Takes = Takes::Value(Form::Number { bits: 32, names: &[] });

pub(crate) const GRE: Protocol = Protocol {
    name: "gre",
    bytes: 4,
    fields: &[
        Field::part("has-checksum", 0, 2, 15, 1),
        Field::part("has-key", 0, 2, 13, 1),
        Field::part("has-seq", 0, 2, 12, 1),
        Field::part("version", 0, 2, 0, 3),
        Field::number("protocol", 2, 2),
        // Present only if the specification sets them.
        Field::special("checksum", Takes::Checksum),
        Field::special("key", WORD),
        Field::special("seq", WORD),
    ],
    known_as: KnownAs { ethertype: None, ip: Some(47), port: Some(4754) },
    lay: gre,
};

fn gre(header: &mut Header) -> Result<(), Fault> {
    if header.setting("checksum").is_some() {
        header.auto("has-checksum", 1);
    }
    for (field, flag) in [("key", "has-key"), ("seq", "has-seq")] {
        if header.setting(field).is_some() {
            header.auto(flag, 1);
        }
    }
    header.says_ethertype("protocol")?;
    if let Some(setting) = header.setting("checksum") {
        let at = header.bytes();
        // Two bytes more are reserved.
        header.append(&[0; 4]);
        match &setting.given {
            Given::Value(value) => header.put(Bits { at, cell: 2, shift: 0, width: 16 }, value),
            _ => header.checksum(at, Cover::Rest, Finish::Plain, true)?,
        }
    }
    for field in ["key", "seq"] {
        if let Some(value) = header.layer.value(field) {
            let at = header.bytes();
            header.append(&[0; 4]);
            header.put(Bits { at, cell: 4, shift: 0, width: 32 }, value);
        }
    }
    Ok(())
}

pub(crate) const VXLAN: Protocol = Protocol {
    name: "vxlan",
    bytes: 8,
    fields: &[
        // The VNI is valid.
        Field::number("flags", 0, 1).or("0x08"),
        Field::part("vni", 4, 4, 8, 24).or("1"),
    ],
    known_as: KnownAs { ethertype: None, ip: None, port: Some(4789) },
    lay: vxlan,
};

fn vxlan(header: &mut Header) -> Result<(), Fault> {
    match header.next() {
        Some(next) if !next.protocol.is(&link::ETHER) => {
            let problem = "vxlan carries ether: put it between, or take raw for something else";
            Err(Fault::new(&next.place, next.protocol.name, problem))
        }
        _ => Ok(()),
    }
}
