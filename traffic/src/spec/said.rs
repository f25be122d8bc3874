//! Converts a setting from a file or flag into a field's type.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::layer::{Field, Given, Takes};
use super::protocols::bytes::{MAX_BYTES, hex};
use super::protocols::transport::TcpOption;
use super::value::Value;

/// A setting as a file or flag writes it.
#[derive(Clone, Debug)]
pub(super) enum Said {
    Text(String),
    Number(u128),
    Switch(bool),
    List(Vec<Said>),
}

impl Said {
    fn what(&self) -> &'static str {
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
pub(super) fn meant(field: &Field, said: &Said, base: &Path) -> Result<Given, String> {
    let not = |right: &str| Err(format!("{} is not {right}", said.what()));
    Ok(match (field.takes, said) {
        (Takes::Checksum, Said::Text(text)) if text == "bad" => Given::Bad,
        (Takes::Checksum, Said::Text(text)) if text == "right" => Given::Right,
        (Takes::Checksum, said) => {
            let hint = |wrong| format!("{wrong}; or right, or bad");
            Given::Value(value(field, said).map_err(hint)?)
        }
        (Takes::Value(_), said) => Given::Value(value(field, said)?),
        (Takes::Hex(most), Said::Text(text)) => Given::Bytes(hex(text, most)?),
        (Takes::Hex(_), _) => return not("bytes in hexadecimal, like \"00 ff 10\""),
        (Takes::Text, Said::Text(text)) => match text.len() {
            0..=MAX_BYTES => Given::Bytes(text.clone().into_bytes()),
            bytes => return Err(format!("these are {bytes} bytes: at most {MAX_BYTES}")),
        },
        (Takes::Text, _) => return not("a text"),
        (Takes::File, Said::Text(name)) => Given::Bytes(file(&base.join(name))?),
        (Takes::File, _) => return not("the name of a file"),
        (Takes::Switch, Said::Switch(on)) => Given::Switch(*on),
        (Takes::Switch, _) => return not("true or false"),
        (Takes::TcpOptions, said) => Given::TcpOptions(options(said)?),
    })
}

fn value(field: &Field, said: &Said) -> Result<Value, String> {
    let form = field.form();
    let not = |said: &Said| format!("{} is not {}", said.what(), form.right());
    match said {
        Said::Number(number) if !form.is_address() => Ok(form.in_range(*number)?.into()),
        Said::Text(text) => Value::parse(text, form),
        Said::List(all) => {
            let one = |said: &Said| match said {
                Said::Number(number) if !form.is_address() => form.in_range(*number),
                Said::Text(text) => form.read(text.trim()),
                _ => Err(not(said)),
            };
            Value::list(all.iter().map(one).collect::<Result<_, _>>()?)
        }
        Said::Number(_) | Said::Switch(_) => Err(not(said)),
    }
}

/// A list of options, or a text with `;` between them.
fn options(said: &Said) -> Result<Vec<TcpOption>, String> {
    match said {
        Said::Text(text) => text.split(';').map(TcpOption::parse).collect(),
        Said::List(all) => {
            let wrong = |said: &Said| format!("{} is no TCP option", said.what());
            let option = |said: &Said| TcpOption::parse(&said.text().ok_or_else(|| wrong(said))?);
            all.iter().map(option).collect()
        }
        _ => Err(format!("{} is no list of TCP options", said.what())),
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
