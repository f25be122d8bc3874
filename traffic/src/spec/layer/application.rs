//! Layers above UDP, and numbers that vary within data.

use sluicegate_base::text_error::Fault;

use super::writer::{Content, Fill, HeaderWriter};
use super::{Field, FieldKind, Protocol, SettingValue};
use crate::spec::edits::Bits;
use crate::spec::value::{Form, Value};

/// Types of DNS records (IANA's registry).
const RECORDS: &str = "\
    a=1 ns=2 cname=5 soa=6 ptr=12 mx=15 txt=16 aaaa=28 srv=33 naptr=35 ds=43 rrsig=46 dnskey=48 \
    svcb=64 https=65 any=255";

/// A query, or with `answer` a response (RFC 1035, section 4).
pub(crate) const DNS: Protocol = Protocol::new("dns", 12, dns).port(53).fields(&[
    Field::number("id", 0, 2),
    Field::part("qr", 2, 2, 15, 1),
    Field::part("opcode", 2, 2, 11, 4),
    Field::part("aa", 2, 2, 10, 1),
    Field::part("tc", 2, 2, 9, 1),
    Field::part("rd", 2, 2, 8, 1).or("1"),
    Field::part("ra", 2, 2, 7, 1),
    Field::part("rcode", 2, 2, 0, 4),
    Field::number("questions", 4, 2).or("1"),
    Field::number("answers", 6, 2),
    Field::number("authorities", 8, 2),
    Field::number("additionals", 10, 2),
    Field::special("name", FieldKind::Text),
    Field::special("type", FieldKind::Value(RECORD)),
    Field::special("answer", FieldKind::Value(Form::Ipv4)),
    Field::special("ttl", FieldKind::Value(Form::Number { bits: 32, names: "" })),
]);
const RECORD: Form = Form::Number { bits: 16, names: RECORDS };
const DEFAULT_NAME: &[u8] = b"example.com";
const TYPE_A: u128 = 1;
/// Internet.
const CLASS: [u8; 2] = [0, 1];
/// A compressed name: that of the question, behind the header.
const QUESTIONS_NAME: [u8; 2] = [0xc0, 12];
const DEFAULT_TTL: u128 = 300;
/// Longest label, and longest name as it is sent.
const MAX_LABEL: usize = 63;
const MAX_NAME: usize = 255;

fn dns(header: &mut HeaderWriter) -> Result<(), Fault> {
    let name = match header.layer.setting("name") {
        Some(setting) => {
            let SettingValue::Bytes(name) = &setting.given else { return Ok(()) };
            labels(name).map_err(|problem| header.layer.fault(setting, problem))?
        }
        None => labels(DEFAULT_NAME).unwrap_or_default(),
    };
    header.append(&name);
    append_value(header, "type", 2, TYPE_A);
    header.append(&CLASS);
    if header.layer.setting("answer").is_some() {
        header.auto("qr", 1);
        header.auto("answers", 1);
        header.append(&QUESTIONS_NAME);
        header.append(&(TYPE_A as u16).to_be_bytes());
        header.append(&CLASS);
        append_value(header, "ttl", 4, DEFAULT_TTL);
        header.append(&[0, 4]);
        append_value(header, "answer", 4, 0);
    } else if let Some(setting) = header.layer.setting("ttl") {
        return Err(header.layer.fault(setting, "it is the answer's: add an answer"));
    }
    Ok(())
}

/// Appends a field's value, or its default, in `bytes` bytes.
fn append_value(header: &mut HeaderWriter, field: &str, bytes: usize, default: u128) {
    let at = header.bytes();
    header.append(&[0; 8][..bytes]);
    let default = Value::from(default);
    header.put(Bits::cell(at, bytes), header.layer.value(field).unwrap_or(&default));
}

/// Encodes a name: each label behind its length, then the root.
fn labels(name: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut encoded = Vec::new();
    let name = name.strip_suffix(b".").unwrap_or(name);
    for label in name.split(|&byte| byte == b'.').filter(|_| !name.is_empty()) {
        if label.is_empty() || label.len() > MAX_LABEL {
            return Err("each part between dots has 1 to 63 bytes");
        }
        encoded.push(label.len() as u8);
        encoded.extend_from_slice(label);
    }
    encoded.push(0);
    if encoded.len() > MAX_NAME { Err("a name has at most 253 bytes") } else { Ok(encoded) }
}

/// The long header of QUIC's Initial packet (RFC 9000, section 17.2.2), with connection identifiers of 8
/// bytes and without a token. Its payload is encrypted in real packets: random bytes.
pub(crate) const QUIC: Protocol = Protocol::new("quic", 28, quic).port(443).fields(&[
    // A long header, Initial; protected bits.
    Field::number("first", 0, 1).or("0xc3"),
    Field::number("version", 1, 4).or("1"),
    Field::number("dcid-length", 5, 1).or("8"),
    Field::number("dcid", 6, 8).or("1"),
    Field::number("scid-length", 14, 1).or("8"),
    Field::number("scid", 15, 8).or("2"),
    Field::number("token-length", 23, 1),
    // A number of variable length (section 16): the upper bits say four bytes, because two end at 16383.
    Field::part("length-form", 24, 4, 30, 2).or("2"),
    Field::part("length", 24, 4, 0, 30),
]);

fn quic(header: &mut HeaderWriter) -> Result<(), Fault> {
    header.length("length", 28);
    if header.above.is_empty() {
        let place = header.layer.place.clone();
        header.draft.fill = Some(Fill { content: Content::Random, length: None, place });
    }
    Ok(())
}

/// A number anywhere in data, of 1, 2, 4 or 8 bytes.
pub(crate) const NUMBER: Protocol = Protocol::new("number", 0, number).fields(&[
    Field::special("value", FieldKind::Value(Form::Number { bits: 64, names: "" })),
    Field::special("bytes", FieldKind::Value(Form::Number { bits: 8, names: "" })),
]);
const DEFAULT_BYTES: u128 = 4;

fn number(header: &mut HeaderWriter) -> Result<(), Fault> {
    let given = header.layer.value("bytes").map_or(Some(DEFAULT_BYTES), Value::fixed);
    let Some(bytes @ (1 | 2 | 4 | 8)) = given else {
        let problem = "a number has 1, 2, 4 or 8 bytes";
        return Err(Fault::new(&header.layer.place, "number.bytes", problem));
    };
    let most = u128::MAX >> (128 - bytes * 8);
    let Some(setting) = header.layer.setting("value") else {
        let problem = "say its value, like \"1..1000\"";
        return Err(Fault::new(&header.layer.place, "number", problem));
    };
    if header.layer.value("value").is_some_and(|value| value.largest() > most) {
        let problem = format!("{bytes} bytes hold at most {most}: set bytes");
        return Err(header.layer.fault(setting, problem));
    }
    append_value(header, "value", bytes as usize, 0);
    Ok(())
}
