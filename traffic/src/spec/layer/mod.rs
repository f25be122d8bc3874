//! Layers and their fields.
//!
//! Each protocol is a row of [`PROTOCOLS`]: its fields with their positions in the header, and a function
//! that derives other fields from the adjacent layers.

mod application;
mod ip;
mod link;
mod payload;
mod transport;
pub(crate) mod writer;

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use toml::de::DeValue;

use sluicegate_base::text_error::{Fault, Position};

use super::edits::Bits;
use super::value::{Form, Value};
use payload::{MAX_BYTES, hex};
use transport::TcpOption;
use writer::HeaderWriter;

use application::{DNS, QUIC};
use ip::{DST_OPTS, FRAGMENT, HOP_OPTS, ROUTING};
use link::{ARP, GRE, MPLS, VXLAN};

pub(crate) use application::NUMBER;
pub(crate) use ip::{IPV4, IPV6};
pub(crate) use link::{ETHER, VLAN, check_tpid};
pub(crate) use payload::{Hex, PAYLOAD, RAW, STAMP};
pub(crate) use transport::{ICMP, ICMPV6, TCP, UDP};

/// Maximum size of a file of values.
const MAX_LIST: u64 = 4 << 20;

/// All protocols, from the outside in.
pub(crate) const PROTOCOLS: &[&Protocol] = &[
    &ETHER, &VLAN, &MPLS, &ARP, &IPV4, &IPV6, &HOP_OPTS, &ROUTING, &FRAGMENT, &DST_OPTS, &UDP,
    &TCP, &ICMP, &ICMPV6, &GRE, &VXLAN, &DNS, &QUIC, &RAW, &NUMBER, &STAMP, &PAYLOAD,
];

/// A kind of layer.
pub(crate) struct Protocol {
    /// Its name in a specification.
    pub(crate) name: &'static str,
    /// The length of the header without its optional parts.
    pub(crate) bytes: usize,
    pub(crate) fields: &'static [Field],
    /// Derives the values that depend on other layers: types, lengths, checksums, options.
    pub(crate) derive: fn(&mut HeaderWriter) -> Result<(), Fault>,
    /// The numbers by which the headers below name it.
    pub(crate) ethertype: Option<u16>,
    /// The IP protocol, or IPv6's next header.
    pub(crate) ip: Option<u8>,
    /// The UDP destination port.
    pub(crate) port: Option<u16>,
}

impl Protocol {
    const fn new(
        name: &'static str,
        bytes: usize,
        derive: fn(&mut HeaderWriter) -> Result<(), Fault>,
    ) -> Self {
        Self { name, bytes, fields: &[], derive, ethertype: None, ip: None, port: None }
    }

    const fn fields(self, fields: &'static [Field]) -> Self {
        Self { fields, ..self }
    }

    const fn ethertype(self, number: u16) -> Self {
        Self { ethertype: Some(number), ..self }
    }

    const fn ip(self, number: u8) -> Self {
        Self { ip: Some(number), ..self }
    }

    const fn port(self, number: u16) -> Self {
        Self { port: Some(number), ..self }
    }
}

/// A field of a protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: FieldKind,
    /// The position in the header; `None` if the protocol's function chooses it.
    pub(crate) bits: Option<Bits>,
    /// The default, in the field's syntax; empty for zero and for derived fields.
    pub(crate) default: &'static str,
}

/// The kind of setting that a field takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldKind {
    /// A value.
    Value(Form),
    /// A value, or `right` or `bad`.
    Checksum,
    /// Bytes in hexadecimal, at most this many.
    Hex(usize),
    /// Bytes, written as text.
    Text,
    /// The bytes of a file.
    File,
    /// `true` or `false`.
    Switch,
    /// TCP options.
    TcpOptions,
}

impl Field {
    /// Creates a field of a number that fills `cell` bytes.
    pub(crate) const fn number(name: &'static str, at: usize, cell: usize) -> Self {
        Self::part(name, at, cell, 0, cell as u8 * 8)
    }

    /// Creates a field of a number of `width` bits in a cell, `shift` bits from its right end.
    pub(crate) const fn part(
        name: &'static str,
        at: usize,
        cell: usize,
        shift: u8,
        width: u8,
    ) -> Self {
        let kind = FieldKind::Value(Form::Number { bits: width, names: "" });
        Self { name, kind, bits: Some(Bits { at, cell, shift, width }), default: "" }
    }

    /// Creates a field of an address, in its own cell.
    pub(crate) const fn address(name: &'static str, at: usize, form: Form) -> Self {
        let bits = Some(Bits::cell(at, form.bits() as usize / 8));
        Self { name, kind: FieldKind::Value(form), bits, default: "" }
    }

    /// Creates a checksum field.
    pub(crate) const fn checksum(at: usize) -> Self {
        Self { kind: FieldKind::Checksum, ..Self::number("checksum", at, 2) }
    }

    /// Creates a field without a fixed offset in the header.
    pub(crate) const fn special(name: &'static str, kind: FieldKind) -> Self {
        Self { name, kind, bits: None, default: "" }
    }

    pub(crate) const fn or(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    /// Adds names for its numbers, written `udp=17 tcp=6`.
    pub(crate) const fn named(self, names: &'static str) -> Self {
        let bits = self.form().bits();
        Self { kind: FieldKind::Value(Form::Number { bits, names }), ..self }
    }

    /// Makes it a field of flags.
    pub(crate) const fn flags(
        self,
        names: &'static [&'static str],
        letters: &'static [&'static str],
    ) -> Self {
        let bits = self.form().bits();
        Self { kind: FieldKind::Value(Form::Flags { bits, names, letters }), ..self }
    }

    /// Returns the notation of its numbers.
    pub(crate) const fn form(&self) -> Form {
        match self.kind {
            FieldKind::Value(form) => form,
            _ => Form::Number { bits: 16, names: "" },
        }
    }
}

/// A layer of a stream: a protocol and settings of its fields.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) protocol: &'static Protocol,
    /// The settings, in the order of the specification.
    pub(crate) settings: Vec<Setting>,
    pub(crate) place: Position,
}

/// A field's setting and its position in the specification.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) field: &'static Field,
    pub(crate) given: SettingValue,
    pub(crate) place: Position,
}

/// The content of a setting; see [`FieldKind`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingValue {
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
    /// Returns the protocol with this name; `Err` lists all.
    pub(crate) fn find(name: &str) -> Result<&'static Self, String> {
        let found = PROTOCOLS.iter().find(|protocol| protocol.name == name);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = PROTOCOLS.iter().map(|protocol| protocol.name).collect();
            format!("no layer '{name}'; available: {}", names.join(", "))
        })
    }

    /// Returns the field with this name; `Err` lists all.
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

    /// Reports whether the layer is data, which no header below can name.
    pub(crate) fn is_data(&self) -> bool {
        (self.ethertype, self.ip, self.port) == (None, None, None)
    }
}

impl Layer {
    pub(crate) fn new(protocol: &'static Protocol, place: Position) -> Self {
        Self { protocol, settings: Vec::new(), place }
    }

    /// Sets a field, in place of an earlier setting.
    pub(crate) fn set(&mut self, field: &'static Field, given: SettingValue, place: Position) {
        self.settings.retain(|setting| setting.field.name != field.name);
        self.settings.push(Setting { field, given, place });
    }

    pub(crate) fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.field.name == name)
    }

    /// Returns the value of a field, if one was given.
    pub(crate) fn value(&self, name: &str) -> Option<&Value> {
        match &self.setting(name)?.given {
            SettingValue::Value(value) => Some(value),
            _ => None,
        }
    }

    /// Creates an error about a field of the layer.
    pub(crate) fn fault(&self, setting: &Setting, problem: impl Into<String>) -> Fault {
        let object = format!("{}.{}", self.protocol.name, setting.field.name);
        Fault::new(&setting.place, object, problem)
    }

    /// Checks that no two settings share a bit, as `tos` and `dscp` do.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        for (count, setting) in self.settings.iter().enumerate() {
            let Some(bits) = setting.field.bits else { continue };
            let shares = |other: &&Setting| other.field.bits.is_some_and(|o| bits.overlaps(o));
            if let Some(other) = self.settings[..count].iter().find(shares) {
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

/// Returns the kind of a TOML value, for errors.
pub(super) fn kind(raw: &DeValue) -> &'static str {
    match raw {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or a time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Returns a TOML integer that is not negative.
pub(super) fn integer(raw: &DeValue) -> Option<u128> {
    let integer = raw.as_integer()?;
    u128::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// Converts a setting to the field's type; `Err` describes a valid one. Paths are relative to `base`.
pub(super) fn read_setting(
    field: &Field,
    raw: &DeValue,
    base: &Path,
) -> Result<SettingValue, String> {
    let not = |right: &str| format!("{} is not {right}", kind(raw));
    let text = |right: &str| raw.as_str().ok_or_else(|| not(right));
    Ok(match field.kind {
        FieldKind::Checksum => match raw.as_str() {
            Some("bad") => SettingValue::Bad,
            Some("right") => SettingValue::Right,
            _ => {
                let hint = |wrong| format!("{wrong}; or right, or bad");
                SettingValue::Value(value(field, raw, base).map_err(hint)?)
            }
        },
        FieldKind::Value(_) => SettingValue::Value(value(field, raw, base)?),
        FieldKind::Hex(most) => {
            SettingValue::Bytes(hex(text("bytes in hexadecimal, like \"00 ff 10\"")?, most)?)
        }
        FieldKind::Text => match text("a text")?.as_bytes() {
            bytes if bytes.len() <= MAX_BYTES => SettingValue::Bytes(bytes.to_vec()),
            bytes => return Err(format!("these are {} bytes: at most {MAX_BYTES}", bytes.len())),
        },
        FieldKind::File => SettingValue::Bytes(file(&base.join(text("the name of a file")?))?),
        FieldKind::Switch => {
            SettingValue::Switch(raw.as_bool().ok_or_else(|| not("true or false"))?)
        }
        FieldKind::TcpOptions => SettingValue::TcpOptions(options(raw)?),
    })
}

/// Reads a value; `file:` before a path stands for the values in its lines.
fn value(field: &Field, raw: &DeValue, base: &Path) -> Result<Value, String> {
    if let Some(path) = raw.as_str().and_then(|text| text.trim().strip_prefix("file:")) {
        let text = lines_of(&base.join(path))?;
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let numbers = lines.map(|line| field.form().read(line));
        return Value::list(numbers.collect::<Result<_, _>>()?);
    }
    match raw {
        DeValue::String(text) => Value::parse(text, field.form()),
        DeValue::Array(all) => {
            let numbers = all.iter().map(|raw| number(field.form(), raw.get_ref()));
            Value::list(numbers.collect::<Result<_, _>>()?)
        }
        raw => Ok(number(field.form(), raw)?.into()),
    }
}

fn number(form: Form, raw: &DeValue) -> Result<u128, String> {
    match raw {
        DeValue::String(text) => form.read(text.trim()),
        DeValue::Integer(number) if !form.is_address() => match integer(raw) {
            Some(number) => form.in_range(number),
            None => Err(format!("{number} is negative, or far too much")),
        },
        DeValue::Float(number) => Err(format!("{} is not whole", number.as_str())),
        _ => Err(format!("{} is not {}", kind(raw), form.right())),
    }
}

/// Reads TCP options: a list, or a text separated by `;`.
fn options(raw: &DeValue) -> Result<Vec<TcpOption>, String> {
    let wrong = |raw| format!("{} is no TCP option", kind(raw));
    match raw {
        DeValue::String(text) => text.split(';').map(TcpOption::parse).collect(),
        DeValue::Array(all) => {
            let text = |raw| DeValue::as_str(raw).ok_or_else(|| wrong(raw));
            all.iter().map(|raw| TcpOption::parse(text(raw.get_ref())?)).collect()
        }
        _ => Err(wrong(raw)),
    }
}

/// Reads a text file of values.
fn lines_of(path: &Path) -> Result<String, String> {
    let wrong = |problem: &str| format!("read {}: {problem}", path.display());
    let mut text = String::new();
    let file = fs::metadata(path).map_err(|error| wrong(&error.to_string()))?;
    if !file.is_file() {
        return Err(wrong("it is no ordinary file"));
    }
    let file = File::open(path).map_err(|error| wrong(&error.to_string()))?;
    let read = file.take(MAX_LIST + 1).read_to_string(&mut text);
    match read.map_err(|error| wrong(&error.to_string()))? as u64 {
        0..=MAX_LIST => Ok(text),
        _ => Err(wrong("it has more than 4 MiB")),
    }
}

/// Reads the beginning of a file: the bytes that fit in a frame.
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
    use crate::spec::value::parse_names;

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
    fn every_name_has_a_number_that_fits_its_field() {
        for field in PROTOCOLS.iter().flat_map(|protocol| protocol.fields) {
            let Form::Number { names, .. } = field.form() else { continue };
            let read: Vec<_> = parse_names(names).collect();
            assert_eq!(read.len(), names.split_ascii_whitespace().count(), "{names}");
            for (name, number) in read {
                assert_eq!(field.form().in_range(number), Ok(number), "{name}");
                assert_eq!(field.form().read(&field.form().write(number)), Ok(number), "{name}");
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
