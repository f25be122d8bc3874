//! Layers and their fields.
//!
//! Each protocol is a row of [`PROTOCOLS`], made in a file of its own below `protocols/`: its
//! fields with their places in the header, and a function that fills in what follows from the
//! layers around it.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::fault::{Fault, Position};
use super::form::Form;
use super::header::Header;
use super::protocols::bytes::{MAX_BYTES, hex};
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

/// A setting as a file or flag writes it.
#[derive(Clone, Debug)]
pub(super) enum RawValue {
    Text(String),
    Number(u128),
    Switch(bool),
    List(Vec<RawValue>),
}

impl RawValue {
    fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Number(_) => "a number",
            Self::Switch(_) => "true or false",
            Self::List(_) => "a list",
        }
    }

    /// As the text that it would be.
    fn text(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Number(number) => Some(number.to_string()),
            Self::Switch(_) | Self::List(_) => None,
        }
    }
}

/// Converts a setting to the field's type; `Err` describes a valid one. Files are relative to
/// `base`.
pub(super) fn read_setting(field: &Field, raw: &RawValue, base: &Path) -> Result<Given, String> {
    let not = |right: &str| Err(format!("{} is not {right}", raw.kind()));
    Ok(match (field.takes, raw) {
        (Takes::Checksum, RawValue::Text(text)) if text == "bad" => Given::Bad,
        (Takes::Checksum, RawValue::Text(text)) if text == "right" => Given::Right,
        (Takes::Checksum, raw) => {
            let hint = |wrong| format!("{wrong}; or right, or bad");
            Given::Value(value(field, raw).map_err(hint)?)
        }
        (Takes::Value(_), raw) => Given::Value(value(field, raw)?),
        (Takes::Hex(most), RawValue::Text(text)) => Given::Bytes(hex(text, most)?),
        (Takes::Hex(_), _) => return not("bytes in hexadecimal, like \"00 ff 10\""),
        (Takes::Text, RawValue::Text(text)) => match text.len() {
            0..=MAX_BYTES => Given::Bytes(text.clone().into_bytes()),
            bytes => return Err(format!("these are {bytes} bytes: at most {MAX_BYTES}")),
        },
        (Takes::Text, _) => return not("a text"),
        (Takes::File, RawValue::Text(name)) => Given::Bytes(file(&base.join(name))?),
        (Takes::File, _) => return not("the name of a file"),
        (Takes::Switch, RawValue::Switch(on)) => Given::Switch(*on),
        (Takes::Switch, _) => return not("true or false"),
        (Takes::TcpOptions, raw) => Given::TcpOptions(options(raw)?),
    })
}

fn value(field: &Field, raw: &RawValue) -> Result<Value, String> {
    let form = field.form();
    let not = |raw: &RawValue| format!("{} is not {}", raw.kind(), form.right());
    match raw {
        RawValue::Number(number) if !form.is_address() => Ok(form.in_range(*number)?.into()),
        RawValue::Text(text) => Value::parse(text, form),
        RawValue::List(all) => {
            let one = |raw: &RawValue| match raw {
                RawValue::Number(number) if !form.is_address() => form.in_range(*number),
                RawValue::Text(text) => form.read(text.trim()),
                _ => Err(not(raw)),
            };
            Value::list(all.iter().map(one).collect::<Result<_, _>>()?)
        }
        RawValue::Number(_) | RawValue::Switch(_) => Err(not(raw)),
    }
}

/// A list of options, or a text with `;` between them.
fn options(raw: &RawValue) -> Result<Vec<TcpOption>, String> {
    match raw {
        RawValue::Text(text) => text.split(';').map(TcpOption::parse).collect(),
        RawValue::List(all) => {
            let wrong = |raw: &RawValue| format!("{} is no TCP option", raw.kind());
            let option = |raw: &RawValue| TcpOption::parse(&raw.text().ok_or_else(|| wrong(raw))?);
            all.iter().map(option).collect()
        }
        _ => Err(format!("{} is no list of TCP options", raw.kind())),
    }
}

/// The beginning of a file: as much as a frame has room for.
fn file(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_BYTES as u64).read_to_end(&mut bytes));
    let wrong = |error| format!("read {}: {error}", path.display());
    read.map_err(wrong).map(|_| bytes)
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
