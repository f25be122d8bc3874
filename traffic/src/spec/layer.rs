//! Layers and their fields.
//!
//! Each protocol is a row of [`PROTOCOLS`], made in a file of its own below `protocols/`: its
//! fields with their places in the header, and a function that fills in what follows from the
//! layers around it.

use std::fmt;

use super::fault::{Fault, Position};
use super::form::Form;
use super::header::Header;
use super::protocols::transport::TcpOption;
use super::protocols::{bytes, ip, link, transport, tunnel};
use super::value::Value;

/// All there are, from the outside in.
pub(crate) const PROTOCOLS: &[&Protocol] = &[
    &link::ETHER,
    &link::VLAN,
    &link::MPLS,
    &link::ARP,
    &ip::IPV4,
    &ip::IPV6,
    &ip::HOP_BY_HOP,
    &ip::ROUTING,
    &ip::FRAGMENT,
    &ip::DESTINATION,
    &transport::UDP,
    &transport::TCP,
    &transport::ICMP,
    &transport::ICMPV6,
    &tunnel::GRE,
    &tunnel::VXLAN,
    &bytes::RAW,
    &bytes::STAMP,
    &bytes::PAYLOAD,
];

/// A kind of layer.
pub(crate) struct Protocol {
    /// Its name in a specification.
    pub(crate) name: &'static str,
    /// Bytes of the header without anything optional.
    pub(crate) bytes: usize,
    pub(crate) fields: &'static [Field],
    /// By what numbers those below it say that it follows.
    pub(crate) known_as: KnownAs,
    /// Fills in what follows from other layers: types, lengths, checksums, options.
    pub(crate) lay: fn(&mut Header) -> Result<(), Fault>,
}

/// The numbers of a protocol in the headers below it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownAs {
    pub(crate) ethertype: Option<u16>,
    /// The IP protocol, or IPv6's next header.
    pub(crate) ip: Option<u8>,
    /// The UDP port that it is sent to.
    pub(crate) port: Option<u16>,
}

impl KnownAs {
    pub(crate) const NOTHING: Self = Self { ethertype: None, ip: None, port: None };
}

/// A field of a protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) takes: Takes,
    /// Where it stands; none if the protocol's function puts it in its place.
    pub(crate) bits: Option<Bits>,
    /// The default in the field's syntax; empty for zero, or if the protocol's function computes
    /// it.
    pub(crate) default: &'static str,
}

/// The kind of setting that a field takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// A value.
    Value(Form),
    /// A value, or `right` or `bad`.
    Checksum,
    /// Bytes in hexadecimal: as many at most.
    Hex(usize),
    /// Bytes, as the text that they are.
    Text,
    /// Bytes of a file.
    File,
    /// `true` or `false`.
    Switch,
    /// TCP options.
    TcpOptions,
}

/// Where a field stands: in a cell of whole bytes that an edit can change at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bits {
    /// The offset of the cell from the header's beginning.
    pub(crate) at: usize,
    /// Bytes of the cell: 1, 2 or 4; 6 and 16 for addresses that have it for themselves.
    pub(crate) cell: usize,
    /// How far from the cell's right end.
    pub(crate) shift: u8,
    pub(crate) width: u8,
}

impl Bits {
    /// The bits of the header that it has, counted from its beginning.
    fn span(self) -> std::ops::Range<usize> {
        let end = (self.at + self.cell) * 8 - usize::from(self.shift);
        end - usize::from(self.width)..end
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        let (a, b) = (self.span(), other.span());
        a.start < b.end && b.start < a.end
    }
}

impl Field {
    /// A number that has `cell` bytes for itself.
    pub(crate) const fn number(name: &'static str, at: usize, cell: usize) -> Self {
        Self::part(name, at, cell, 0, cell as u8 * 8)
    }

    /// `width` bits of a cell, `shift` from its right end.
    pub(crate) const fn part(
        name: &'static str,
        at: usize,
        cell: usize,
        shift: u8,
        width: u8,
    ) -> Self {
        let takes = Takes::Value(Form::Number { bits: width, names: &[] });
        Self { name, takes, bits: Some(Bits { at, cell, shift, width }), default: "" }
    }

    /// An address, in a cell of its own.
    pub(crate) const fn address(name: &'static str, at: usize, form: Form) -> Self {
        let width = match form {
            Form::Mac => 48,
            Form::Ipv4 => 32,
            _ => 128,
        };
        let bits = Bits { at, cell: width as usize / 8, shift: 0, width };
        Self { name, takes: Takes::Value(form), bits: Some(bits), default: "" }
    }

    /// A checksum.
    pub(crate) const fn checksum(at: usize) -> Self {
        Self { takes: Takes::Checksum, ..Self::number("checksum", at, 2) }
    }

    /// A field without a fixed offset in the header.
    pub(crate) const fn special(name: &'static str, takes: Takes) -> Self {
        Self { name, takes, bits: None, default: "" }
    }

    pub(crate) const fn or(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    /// Its numbers may be written as names, too.
    pub(crate) const fn named(self, names: &'static [(&'static str, u64)]) -> Self {
        let bits = match self.bits {
            Some(bits) => bits.width,
            None => 0,
        };
        Self { takes: Takes::Value(Form::Number { bits, names }), ..self }
    }

    /// How its numbers are written.
    pub(crate) fn form(&self) -> Form {
        match self.takes {
            Takes::Value(form) => form,
            _ => Form::Number { bits: 16, names: &[] },
        }
    }
}

/// A layer of a stream: a protocol, and what is said of its fields.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) protocol: &'static Protocol,
    /// In the order in which they are said.
    pub(crate) settings: Vec<Setting>,
    pub(crate) place: Position,
}

/// A field's setting and its position in the specification.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) field: &'static Field,
    pub(crate) given: Given,
    pub(crate) place: Position,
}

/// See [`Takes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    Value(Value),
    /// The checksum is right.
    Right,
    /// The checksum is wrong.
    Bad,
    Bytes(Vec<u8>),
    Switch(bool),
    TcpOptions(Vec<TcpOption>),
}

impl Protocol {
    /// The protocol of this name; `Err` lists all.
    pub(crate) fn find(name: &str) -> Result<&'static Self, String> {
        let found = PROTOCOLS.iter().find(|protocol| protocol.name == name);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = PROTOCOLS.iter().map(|protocol| protocol.name).collect();
            format!("there is no layer '{name}': there are {}", names.join(", "))
        })
    }

    /// The field of this name; `Err` lists all.
    pub(crate) fn field(&'static self, name: &str) -> Result<&'static Field, String> {
        self.fields.iter().find(|field| field.name == name).ok_or_else(|| {
            let names: Vec<_> = self.fields.iter().map(|field| field.name).collect();
            match names.as_slice() {
                [] => format!("{} has no fields", self.name),
                names => {
                    format!("{} has no field '{name}': it has {}", self.name, names.join(", "))
                }
            }
        })
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Layer {
    pub(crate) fn new(protocol: &'static Protocol, place: Position) -> Self {
        Self { protocol, settings: Vec::new(), place }
    }

    /// Says something of a field, in place of what was said before.
    pub(crate) fn set(&mut self, field: &'static Field, given: Given, place: Position) {
        self.settings.retain(|setting| setting.field.name != field.name);
        self.settings.push(Setting { field, given, place });
    }

    pub(crate) fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.field.name == name)
    }

    /// The value of a field, if one was given.
    pub(crate) fn value(&self, name: &str) -> Option<&Value> {
        match &self.setting(name)?.given {
            Given::Value(value) => Some(value),
            _ => None,
        }
    }

    /// Creates an error about a field of the layer.
    pub(crate) fn fault(&self, setting: &Setting, problem: impl Into<String>) -> Fault {
        let object = format!("{}.{}", self.protocol.name, setting.field.name);
        Fault::new(&setting.place, object, problem)
    }

    /// No bit is said twice: `tos` and `dscp` are the same.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        for (count, setting) in self.settings.iter().enumerate() {
            let Some(bits) = setting.field.bits else { continue };
            let before = self.settings[..count].iter();
            let mut twice =
                before.filter(|other| other.field.bits.is_some_and(|o| bits.overlaps(o)));
            if let Some(other) = twice.next() {
                let problem = format!(
                    "it is a part of the same bits as {}: say one of them",
                    other.field.name
                );
                return Err(self.fault(setting, problem));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_in_their_headers_and_share_cells_or_not_a_byte() {
        for protocol in PROTOCOLS {
            let placed = || protocol.fields.iter().filter_map(|f| Some((f.name, f.bits?)));
            for (name, bits) in placed() {
                let what = format!("{}.{name}", protocol.name);
                assert!(bits.at + bits.cell <= protocol.bytes, "{what} ends behind the header");
                assert!(u32::from(bits.shift + bits.width) <= bits.cell as u32 * 8, "{what}");
                for (other, with) in placed() {
                    let same = (bits.at, bits.cell) == (with.at, with.cell);
                    let apart = bits.at + bits.cell <= with.at || with.at + with.cell <= bits.at;
                    assert!(same || apart || bits.overlaps(with), "{what} and {other}");
                }
            }
        }
    }

    #[test]
    fn defaults_are_values_of_their_fields() {
        for protocol in PROTOCOLS {
            for field in protocol.fields.iter().filter(|field| !field.default.is_empty()) {
                let what = format!("{}.{}", protocol.name, field.name);
                let value = Value::parse(field.default, field.form()).expect(&what);
                assert!(value.fixed().is_some(), "{what}");
                assert!(field.bits.is_some(), "{what} has no place");
            }
        }
    }
}
