//! Tables and values of TOML, with positions.

use std::borrow::Cow;
use std::slice;

use sluicegate_base::text_error::{Fault, Position};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub(super) type Key<'i> = Spanned<Cow<'i, str>>;
pub(super) type Value<'i> = Spanned<DeValue<'i>>;

/// Returns the entries in the order of the text; the table is sorted by key.
pub(super) fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<(&'a Key<'i>, &'a Value<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

pub(super) fn place(value: &Value) -> Position {
    Position::Text(value.span())
}

pub(super) fn unknown(key: &Key, known: &[&str]) -> Fault {
    let problem = format!("unknown '{}'; available: {}", key.get_ref(), known.join(", "));
    Fault::new(&Position::Text(key.span()), "", problem)
}

/// Returns the error for a value of the wrong kind; `right` describes a valid one.
pub(super) fn not(value: &Value, object: &str, right: &str) -> Fault {
    let kind = match value.get_ref() {
        DeValue::String(text) => &quoted(text),
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or a time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    Fault::new(&place(value), object, format!("{kind} is not what belongs here: {right}"))
}

pub(super) fn expect_table<'a, 'i>(
    value: &'a Value<'i>,
    object: &str,
    right: &str,
) -> Result<&'a DeTable<'i>, Fault> {
    value.get_ref().as_table().ok_or_else(|| not(value, object, right))
}

pub(super) fn expect_text<'a>(
    value: &'a Value,
    object: &str,
    right: &str,
) -> Result<&'a str, Fault> {
    value.get_ref().as_str().ok_or_else(|| not(value, object, right))
}

/// Returns the values of a list that is not empty, or the single value.
pub(super) fn each<'a, 'i>(
    value: &'a Value<'i>,
    object: &str,
) -> Result<Vec<&'a Value<'i>>, Fault> {
    match value.get_ref() {
        DeValue::Array(list) if list.is_empty() => {
            let problem = "the list is empty: give it a value, or leave it out";
            Err(Fault::new(&place(value), object, problem))
        }
        DeValue::Array(list) => Ok(list.iter().collect()),
        _ => Ok(slice::from_ref(value).iter().collect()),
    }
}

/// Returns an integer that is not negative.
pub(super) fn integer(value: &Value) -> Option<u64> {
    let integer = value.get_ref().as_integer()?;
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// Returns the choice that a text names.
pub(super) fn choice<T: Copy>(
    value: &Value,
    object: &str,
    choices: &[(&str, T)],
) -> Result<T, Fault> {
    let named = value.get_ref().as_str();
    let found = choices.iter().find(|(name, _)| Some(*name) == named);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let wanted = match names.split_last() {
            Some((last, others)) if !others.is_empty() => {
                format!("{} or {last}", others.join(", "))
            }
            _ => names.concat(),
        };
        not(value, object, &wanted)
    })
}

/// Returns a text in quotes, of a long one the begin.
pub(super) fn quoted(text: &str) -> String {
    const MAX_CHARS: usize = 64;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("'{}…'", &text[..end]),
        None => format!("'{text}'"),
    }
}
