//! Bytes without fields: raw ones, the stamp, the payload.

use std::fmt;

use super::link;
use crate::plan::FieldSource;
use crate::spec::build::{Content, Fill, What};
use crate::spec::fault::Fault;
use crate::spec::form::Form;
use crate::spec::header::Header;
use crate::spec::layer::{Bits, Field, Given, KnownAs, Protocol, Takes};

/// The most bytes that a specification gives: a frame has no more.
pub(crate) const MAX_BYTES: usize = 65_535;

pub(crate) const RAW: Protocol = Protocol {
    name: "raw",
    bytes: 0,
    fields: &[Field::special("hex", Takes::Hex(MAX_BYTES))],
    known_as: KnownAs::NOTHING,
    lay: |header| {
        header.append(header.given_bytes("hex").unwrap_or_default());
        Ok(())
    },
};

/// Identifies a packet to the receiver: `Sl`, stream, worker, the packet's number in both, and the
/// transmit time.
pub(crate) const STAMP: Protocol =
    Protocol { name: "stamp", bytes: 16, fields: &[], known_as: KnownAs::NOTHING, lay: stamp };

fn stamp(header: &mut Header) -> Result<(), Fault> {
    const MAGIC: u128 = 0x536c;
    let stream = header.draft.stream as u128;
    if stream > u128::from(u8::MAX) {
        let problem = "a stamp tells 256 streams apart: leave it out, or take fewer streams";
        return Err(Fault::new(&header.layer.place, "stamp", problem));
    }
    let rows = [
        (0, 2, What::Number(MAGIC)),
        (2, 1, What::Number(stream)),
        (3, 1, What::FieldSource(FieldSource::Worker)),
        (4, 4, What::FieldSource(FieldSource::Sequence)),
        (8, 8, What::FieldSource(FieldSource::Time)),
    ];
    for (at, cell, what) in rows {
        header.put_what(Bits { at, cell, shift: 0, width: cell as u8 * 8 }, what);
    }
    Ok(())
}

pub(crate) const PAYLOAD: Protocol = Protocol {
    name: "payload",
    bytes: 0,
    fields: &[
        Field::special("hex", Takes::Hex(MAX_BYTES)),
        Field::special("text", Takes::Text),
        Field::special("pattern", Takes::Hex(MAX_BYTES)),
        Field::special("random", Takes::Switch),
        Field::special("file", Takes::File),
        Field::special("length", Takes::Value(Form::Number { bits: 16, names: &[] })),
    ],
    known_as: KnownAs::NOTHING,
    lay: payload,
};

fn payload(header: &mut Header) -> Result<(), Fault> {
    let mut fill = Fill { place: header.layer.place.clone(), ..Fill::default() };
    let mut before: Option<&str> = None;
    for setting in &header.layer.settings {
        let name = setting.field.name;
        let content = match (&setting.given, name) {
            (Given::Bytes(bytes), "pattern") if bytes.is_empty() => {
                return Err(header.fault(setting, "a pattern has at least one byte"));
            }
            (Given::Bytes(bytes), "pattern") => Content::Pattern(bytes.clone()),
            (Given::Bytes(bytes), _) => Content::Once(bytes.clone()),
            (Given::Switch(true), _) => Content::Random,
            (Given::Value(value), _) => {
                let number = value.fixed().and_then(|number| u16::try_from(number).ok());
                let problem = "it is one number: sizes that vary are the stream's size";
                fill.length = Some(number.ok_or_else(|| header.fault(setting, problem))?);
                continue;
            }
            _ => continue,
        };
        if let Some(before) = before {
            let problem = format!("the payload is {before} already: say one of them");
            return Err(header.fault(setting, problem));
        }
        before = Some(name);
        fill.content = content;
    }
    header.draft.fill = Some(fill);
    Ok(())
}

/// Reports whether the layer is data, which no header below can name.
pub(crate) fn is_data(protocol: &Protocol) -> bool {
    [&RAW, &STAMP, &PAYLOAD].iter().any(|data| protocol.is(data))
}

/// Reports whether a frame may begin with the layer.
pub(crate) fn may_be_first(protocol: &Protocol) -> bool {
    protocol.is(&link::ETHER) || protocol.is(&RAW)
}

/// Reports whether `above` may follow `below`, whatever the headers' types are.
pub(crate) fn may_follow(below: &Protocol, above: &Protocol) -> bool {
    match () {
        () if below.is(&PAYLOAD) => false,
        () if below.is(&STAMP) => above.is(&RAW) || above.is(&PAYLOAD),
        () => true,
    }
}

/// Bytes in hexadecimal, with blanks or colons between them if that reads better.
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

/// Bytes in hexadecimal, as [`hex`] reads them.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(to, "{byte:02x}"))
    }
}
