//! Layers of data: raw bytes, the stamp, the payload.

use std::fmt;

use sluicegate_base::text_error::Fault;

use super::writer::{Content, Fill, HeaderWriter};
use super::{Field, FieldKind, Protocol, SettingValue};
use crate::analyse::Stamp;
use crate::plan::FieldSource;
use crate::spec::edits::Bits;
use crate::spec::value::{Form, number_of};

/// Maximum of bytes in a specification: that of a frame.
pub(crate) const MAX_BYTES: usize = 65_535;

pub(crate) const RAW: Protocol =
    Protocol::new("raw", 0, raw).fields(&[Field::special("hex", FieldKind::Hex(MAX_BYTES))]);

fn raw(header: &mut HeaderWriter) -> Result<(), Fault> {
    header.append_given("hex");
    Ok(())
}

/// The stamp identifies a packet to the receiver: `Sl`, stream, worker, the packet's number in both, and the
/// transmit time.
pub(crate) const STAMP: Protocol = Protocol::new("stamp", Stamp::BYTES, stamp);

fn stamp(header: &mut HeaderWriter) -> Result<(), Fault> {
    let stream = header.draft.stream as u128;
    if stream > u128::from(u8::MAX) {
        let problem = "a stamp tells 256 streams apart: leave it out, or take fewer streams";
        return Err(Fault::new(&header.layer.place, "stamp", problem));
    }
    header.put(Bits::cell(0, 2), &number_of(&Stamp::MAGIC).into());
    header.put(Bits::cell(2, 1), &stream.into());
    header.put_source(Bits::cell(3, 1), FieldSource::Worker);
    header.put_source(Bits::cell(4, 4), FieldSource::Sequence);
    header.put_source(Bits::cell(8, 8), FieldSource::Time);
    Ok(())
}

pub(crate) const PAYLOAD: Protocol = Protocol::new("payload", 0, payload).fields(&[
    Field::special("hex", FieldKind::Hex(MAX_BYTES)),
    Field::special("text", FieldKind::Text),
    Field::special("pattern", FieldKind::Hex(MAX_BYTES)),
    Field::special("random", FieldKind::Switch),
    Field::special("file", FieldKind::File),
    Field::special("length", FieldKind::Value(Form::Number { bits: 16, names: "" })),
]);

fn payload(header: &mut HeaderWriter) -> Result<(), Fault> {
    let mut fill = Fill { place: header.layer.place.clone(), ..Fill::default() };
    let mut before: Option<&str> = None;
    for setting in &header.layer.settings {
        let name = setting.field.name;
        let content = match (&setting.given, name) {
            (SettingValue::Bytes(bytes), "pattern") if bytes.is_empty() => {
                return Err(header.layer.fault(setting, "a pattern has at least one byte"));
            }
            (SettingValue::Bytes(bytes), "pattern") => Content::Pattern(bytes.clone()),
            (SettingValue::Bytes(bytes), _) => Content::Once(bytes.clone()),
            (SettingValue::Switch(true), _) => Content::Random,
            (SettingValue::Value(value), _) => {
                let number = value.fixed().and_then(|number| u16::try_from(number).ok());
                let problem = "it is one number: sizes that vary are the stream's size";
                fill.length = Some(number.ok_or_else(|| header.layer.fault(setting, problem))?);
                continue;
            }
            _ => continue,
        };
        if let Some(before) = before {
            let problem = format!("the payload is {before} already: say one of them");
            return Err(header.layer.fault(setting, problem));
        }
        before = Some(name);
        fill.content = content;
    }
    header.draft.fill = Some(fill);
    Ok(())
}

/// Parses bytes in hexadecimal, with optional blanks or colons between them.
pub(crate) fn hex(text: &str, most: usize) -> Result<Vec<u8>, String> {
    let wrong = || "these are not bytes in hexadecimal, like 00ff10 or 00 ff 10".to_owned();
    let text = text.trim();
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let digits = digits.chars().filter(|c| !c.is_whitespace() && *c != ':');
    let digits: Option<Vec<_>> = digits.map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0).ok_or_else(wrong)?;
    let bytes: Vec<_> = digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect();
    if bytes.len() > most {
        return Err(format!("these are {} bytes: at most {most}", bytes.len()));
    }
    Ok(bytes)
}

/// Formats bytes in hexadecimal, readable by [`hex`].
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(to, "{byte:02x}"))
    }
}
