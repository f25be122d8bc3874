//! The values of a field over all packets, and the notation of its numbers.
//!
//! | text | the packets have |
//! | --- | --- |
//! | `9` | 9 |
//! | `9,10,53` | these in turn; in TOML also `[9, 10, 53]` |
//! | `any:9,10,53` | one of these at random |
//! | `1024-65535` | a random number from 1024 to 65535 |
//! | `198.18.0.0/16` | a random address in this prefix; of an IPv4, IPv6 or MAC address |
//! | `1024..65535` | 1024, 1025, …, 65535, and from the beginning |
//! | `65535..1024` | the same downwards |
//! | `1000..2000/10` | 1000, 1010, …, 2000: with a step |
//! | `flow:` before any of these | the same, but by the number of the flow, not of the packet: each flow has one value |
//!
//! ```text
//! value  = ["flow:"] set
//! set    = "any:" one *("," one)  |  one 1*("," one)
//!        | one ".." one ["/" step]  |  address "/" bits  |  one  |  one "-" one
//! one    = a number, a name, flags or an address, by the field's form
//! ```
//!
//! The grammar is unambiguous: no form contains a comma, a slash or `..`, and no address begins with
//! `flow:` or `any:`, because `l`, `o`, `w`, `n` and `y` are not hexadecimal. Names may contain a `-`
//! (`echo-request`), so the parser looks up the whole text before it tries a range.

use std::net::{Ipv4Addr, Ipv6Addr};

use sluicegate::link::Mac;

use crate::plan::VariesBy;

/// Maximum length of a list, which takes memory here and in the kernel.
const MAX_LIST: usize = 65_536;

/// The values of a field over all packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    /// The index: packet or flow. A constant counts as per packet.
    pub(crate) per: VariesBy,
    pub(crate) set: Set,
}

/// The numbers that a field takes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    One(u128),
    /// At least two numbers in turn or at random.
    List {
        values: Vec<u128>,
        random: bool,
    },
    /// The numbers from `first` to `last` in turn. `last` differs from `first` and may be less.
    Counter {
        first: u128,
        last: u128,
        step: u128,
    },
    /// A random number from `first` to `last`; `first` is less than `last`. A prefix of addresses is also a
    /// range.
    Range {
        first: u128,
        last: u128,
    },
}

impl From<u128> for Value {
    fn from(number: u128) -> Self {
        Self { per: VariesBy::Packet, set: Set::One(number) }
    }
}

impl Value {
    /// Reads a value; `Err` describes a valid one.
    pub(crate) fn parse(text: &str, form: Form) -> Result<Self, String> {
        let text = text.trim();
        let (per, text) = match text.strip_prefix("flow:") {
            Some(rest) => (VariesBy::Flow, rest.trim_start()),
            None => (VariesBy::Packet, text),
        };
        let set = match text.strip_prefix("any:") {
            Some(list) => list_of(list, true, form)?,
            None if text.contains(',') => list_of(text, false, form)?,
            None => Self::span(text, form)?,
        };
        // A constant depends on neither; storing `Packet` gives each value a single text.
        let per = if let Set::One(_) = set { VariesBy::Packet } else { per };
        Ok(Self { per, set })
    }

    /// Parses a value that is not a list.
    fn span(text: &str, form: Form) -> Result<Set, String> {
        if let Some((first, rest)) = text.split_once("..") {
            return counter(first, rest, form);
        }
        if let Some((address, bits)) = text.split_once('/') {
            return prefix(text, address, bits, form);
        }
        match (form.read(text), text.split_once('-')) {
            (Ok(number), _) => Ok(Set::One(number)),
            (Err(wrong), None) => Err(wrong),
            (Err(_), Some((first, last))) => range(text, first, last, form),
        }
    }

    /// Creates a list of numbers, used in turn.
    pub(crate) fn list(values: Vec<u128>) -> Result<Self, String> {
        Ok(Self { per: VariesBy::Packet, set: list(values, false)? })
    }

    /// Returns the number of a constant.
    pub(crate) fn fixed(&self) -> Option<u128> {
        if let Set::One(number) = self.set { Some(number) } else { None }
    }

    /// Reports whether `such` accepts a number that some packet may have. Always true for counters and random
    /// numbers.
    pub(crate) fn may_be(&self, such: impl Fn(u128) -> bool) -> bool {
        match &self.set {
            Set::One(number) => such(*number),
            Set::List { values, .. } => values.iter().any(|number| such(*number)),
            _ => true,
        }
    }

    /// Returns the largest number that a packet may have.
    pub(crate) fn largest(&self) -> u128 {
        match &self.set {
            Set::One(number) => *number,
            Set::List { values, .. } => values.iter().copied().max().unwrap_or(0),
            Set::Counter { first, last, .. } => *first.max(last),
            Set::Range { last, .. } => *last,
        }
    }

    /// Returns the text of the value, which parses to the same value.
    pub(crate) fn shown(&self, form: Form) -> String {
        let per = if self.per == VariesBy::Flow { "flow:" } else { "" };
        let numbers = self.numbers(form, usize::MAX);
        match &self.set {
            Set::List { random: true, .. } => format!("{per}any:{numbers}"),
            Set::Counter { step: step @ 2.., .. } => format!("{per}{numbers}/{step}"),
            _ => format!("{per}{numbers}"),
        }
    }

    /// Returns the text of the value and how it varies, with at most `most` numbers of a list.
    pub(crate) fn described(&self, form: Form, most: usize) -> String {
        let per = if self.per == VariesBy::Flow { " by flow" } else { "" };
        let numbers = self.numbers(form, most);
        let how = match &self.set {
            Set::One(_) => return numbers,
            Set::List { random: false, .. } => "in turn".to_owned(),
            Set::Counter { step: 1, .. } => "counted".to_owned(),
            Set::Counter { step, .. } => format!("counted in steps of {step}"),
            Set::List { .. } | Set::Range { .. } => "at random".to_owned(),
        };
        format!("{numbers} ({how}{per})")
    }

    fn numbers(&self, form: Form, most: usize) -> String {
        match &self.set {
            Set::One(number) => form.write(*number),
            Set::List { values, .. } => {
                let shown = values.iter().take(most).map(|number| form.write(*number));
                let more = match values.len() {
                    all if all > most => format!(",… ({all})"),
                    _ => String::new(),
                };
                shown.collect::<Vec<_>>().join(",") + &more
            }
            Set::Counter { first, last, .. } => {
                format!("{}..{}", form.write(*first), form.write(*last))
            }
            Set::Range { first, last } => match block(*first, *last) {
                Some(lower) if form.is_address() => {
                    format!("{}/{}", form.write(*first), form.bits() - lower)
                }
                _ => {
                    // A name may contain a dash.
                    let form = form.nameless();
                    format!("{}-{}", form.write(*first), form.write(*last))
                }
            },
        }
    }
}

fn list_of(text: &str, random: bool, form: Form) -> Result<Set, String> {
    let values: Result<_, _> = text.split(',').map(|one| form.read(one.trim())).collect();
    let hint = |wrong| match text.contains("..") || text.contains('/') {
        true => format!("{wrong}; a list has single ones, a range or a prefix stands alone"),
        false => wrong,
    };
    list(values.map_err(hint)?, random)
}

fn list(values: Vec<u128>, random: bool) -> Result<Set, String> {
    match values.as_slice() {
        [] => Err("the list is empty".into()),
        [one] => Ok(Set::One(*one)),
        _ if values.len() > MAX_LIST => {
            Err(format!("a list of {} is too long: at most {MAX_LIST}", values.len()))
        }
        _ => Ok(Set::List { values, random }),
    }
}

fn counter(first: &str, rest: &str, form: Form) -> Result<Set, String> {
    let (last, step) = match rest.split_once('/') {
        Some((last, step)) => (last, step.trim()),
        None => (rest, "1"),
    };
    let (first, last) = (form.read(first.trim())?, form.read(last.trim())?);
    let wrong = || format!("the step '{step}' is not a number from 1 on, decimal or 0x…");
    let step = number(step).filter(|step| *step > 0).ok_or_else(wrong)?;
    let steps = first.abs_diff(last) / step;
    if steps == 0 {
        return Ok(Set::One(first));
    }
    if steps >= u128::from(u64::MAX) {
        return Err("a counter has fewer than 2^64 steps: count in a smaller range".into());
    }
    same_unit(first, last, "counter", form)?;
    Ok(Set::Counter { first, last, step })
}

fn prefix(text: &str, address: &str, bits: &str, form: Form) -> Result<Set, String> {
    if !form.is_address() {
        return Err(format!(
            "'{text}': a prefix is of an address; a random range is 10-20, a step 10..20/2"
        ));
    }
    let address = form.read(address.trim())?;
    let most = form.bits();
    let wrong = || format!("'/{}' is not a length of a prefix, from 0 to {most}", bits.trim());
    let bits = number(bits.trim()).filter(|bits| *bits <= most.into()).ok_or_else(wrong)? as u8;
    match form.most().checked_shr(bits.into()).unwrap_or(0) {
        0 => Ok(Set::One(address)),
        lower => Ok(Set::Range { first: address & !lower, last: address | lower }),
    }
}

fn range(text: &str, first: &str, last: &str, form: Form) -> Result<Set, String> {
    let wrong = |_| format!("'{text}' is not {}, and no range first-last of such", form.right());
    let (first, last) = (first.trim(), last.trim());
    let read = |one: &str| match number(one) {
        // `read` returns the error for a number that is too large.
        Some(_) => form.read(one),
        None => form.read(one).map_err(wrong),
    };
    let (first, last) = (read(first)?, read(last)?);
    if first > last {
        return Err(format!(
            "'{text}': a random range is from the lesser to the greater; a counter down is \
             {}..{}",
            form.write(first),
            form.write(last)
        ));
    }
    if first == last {
        return Ok(Set::One(first));
    }
    same_unit(first, last, "random range that is no prefix", form)?;
    Ok(Set::Range { first, last })
}

/// Returns the number of lower bits that a range covers entirely, if its other bits are constant.
pub(crate) fn block(first: u128, last: u128) -> Option<u8> {
    let lower = first ^ last;
    (lower & first == 0 && lower & lower.wrapping_add(1) == 0).then_some(lower.count_ones() as u8)
}

/// Checks that both ends share the bits above one edit: a plan has no carry between edits.
fn same_unit(first: u128, last: u128, what: &str, form: Form) -> Result<(), String> {
    let unit = form.unit_bits();
    match first.checked_shr(unit.into()) == last.checked_shr(unit.into()) {
        true => Ok(()),
        false => Err(format!(
            "a {what} changes only the lower {unit} bits of {} bits: the upper ones of both \
             ends are to be the same",
            form.bits()
        )),
    }
}

/// The notation of a field's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Decimal or `0x…`, or one of these names, written `udp=17 tcp=6`.
    Number { bits: u8, names: &'static str },
    /// A number as in [`Form::Number`], or several names joined by `+`, or their letters: `syn+ack`, `SA`.
    /// The names and letters are in the order of the bits, from the lowest.
    Flags { bits: u8, names: &'static [&'static str], letters: &'static [&'static str] },
    /// `02:00:00:00:00:01`.
    Mac,
    /// `198.18.0.1`.
    Ipv4,
    /// `2001:db8::1`.
    Ipv6,
}

impl Form {
    /// Returns the number of bits of its numbers.
    pub(crate) const fn bits(self) -> u8 {
        match self {
            Self::Number { bits, .. } | Self::Flags { bits, .. } => bits,
            Self::Mac => 48,
            Self::Ipv4 => 32,
            Self::Ipv6 => 128,
        }
    }

    /// Returns its greatest number.
    pub(crate) fn most(self) -> u128 {
        u128::MAX >> (128 - u32::from(self.bits()))
    }

    /// Returns the form without names.
    pub(crate) fn nameless(self) -> Self {
        match self {
            Self::Number { bits, .. } => Self::Number { bits, names: "" },
            other => other,
        }
    }

    /// Reports whether `/` and a prefix length may follow.
    pub(crate) fn is_address(self) -> bool {
        matches!(self, Self::Mac | Self::Ipv4 | Self::Ipv6)
    }

    /// Returns the number of lower bits that may change in a range that is not a power of two: the bits of
    /// one edit.
    pub(crate) fn unit_bits(self) -> u8 {
        match self {
            Self::Mac => 32,
            Self::Ipv6 => 64,
            _ => self.bits(),
        }
    }

    /// Describes a valid number for messages.
    pub(crate) fn right(self) -> String {
        match self {
            Self::Number { names: "", .. } => self.range(),
            Self::Number { names, .. } => {
                let names: Vec<_> = parse_names(names).map(|(name, _)| name).collect();
                format!("{}, or {}", self.range(), names.join(", "))
            }
            Self::Flags { names, letters, .. } => {
                let letters: String = letters.iter().filter_map(|l| l.chars().next()).collect();
                let or = if letters.is_empty() { "" } else { ", or letters of " };
                let names = names.join(", ");
                format!("{}, or of {names}, with + between{or}{letters}", self.range())
            }
            Self::Mac => "a MAC address like 02:00:00:00:00:01".into(),
            Self::Ipv4 => "an IPv4 address like 198.18.0.1".into(),
            Self::Ipv6 => "an IPv6 address like 2001:db8::1".into(),
        }
    }

    fn range(self) -> String {
        format!("a number from 0 to {}, decimal or 0x…", self.most())
    }

    /// Reads a number; `Err` describes a valid one.
    pub(crate) fn read(self, text: &str) -> Result<u128, String> {
        let wrong = || format!("'{text}' is not {}", self.right());
        match self {
            Self::Mac => text.parse::<Mac>().map(|mac| number_of(&mac.0)).map_err(|_| wrong()),
            Self::Ipv4 => {
                text.parse::<Ipv4Addr>().map(|a| u128::from(a.to_bits())).map_err(|_| wrong())
            }
            Self::Ipv6 => text.parse::<Ipv6Addr>().map(|a| a.to_bits()).map_err(|_| wrong()),
            Self::Number { names, .. } => {
                if let Some((_, number)) = parse_names(names).find(|(name, _)| *name == text) {
                    return Ok(number);
                }
                self.in_range(number(text).ok_or_else(wrong)?)
            }
            Self::Flags { names, letters, .. } => {
                let number = number(text).or_else(|| flags(text, names, letters));
                self.in_range(number.ok_or_else(wrong)?)
            }
        }
    }

    /// Returns a number if it fits the field.
    pub(crate) fn in_range(self, number: u128) -> Result<u128, String> {
        let (most, bits) = (self.most(), self.bits());
        if number > most {
            return Err(format!("{number} is too much: the {bits} bits of the field hold {most}"));
        }
        Ok(number)
    }

    /// Returns the text of a number, for [`read`](Self::read).
    pub(crate) fn write(self, number: u128) -> String {
        match self {
            Self::Mac => {
                let [_, _, bytes @ ..] = (number as u64).to_be_bytes();
                Mac(bytes).to_string()
            }
            Self::Ipv4 => Ipv4Addr::from_bits(number as u32).to_string(),
            Self::Ipv6 => Ipv6Addr::from_bits(number).to_string(),
            Self::Number { names, .. } => {
                let name = parse_names(names).find(|&(_, value)| value == number);
                name.map_or_else(|| number.to_string(), |(name, _)| name.to_owned())
            }
            Self::Flags { names, .. } => {
                let set = (0..names.len()).filter(|bit| number >> bit & 1 == 1);
                match number != 0 && number >> names.len() == 0 {
                    true => set.map(|bit| names[bit]).collect::<Vec<_>>().join("+"),
                    false => number.to_string(),
                }
            }
        }
    }
}

/// Parses a text like `udp=17 tcp=6` into names with their numbers.
pub(crate) fn parse_names(names: &str) -> impl Iterator<Item = (&str, u128)> {
    names.split(' ').filter_map(|one| {
        let (name, text) = one.split_once('=')?;
        Some((name, number(text)?))
    })
}

/// Reads bytes as a number in network byte order.
pub(crate) fn number_of(cell: &[u8]) -> u128 {
    cell.iter().fold(0, |number, &byte| number << 8 | u128::from(byte))
}

/// Parses a number, decimal or hexadecimal.
fn number(text: &str) -> Option<u128> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // The standard library's parser accepts a sign.
    let plain = digits.chars().all(|digit| digit.is_digit(radix));
    if plain { u128::from_str_radix(digits, radix).ok() } else { None }
}

/// Parses names joined by `+`, or a word of letters.
fn flags(text: &str, names: &[&str], letters: &[&str]) -> Option<u128> {
    let named = |word: &str| names.iter().position(|name| *name == word.trim());
    let lettered = |c: char| letters.iter().position(|letters| letters.contains(c));
    let words: Option<Vec<_>> = text.split('+').map(named).collect();
    let bits = words.or_else(|| text.chars().map(lettered).collect());
    Some(bits.filter(|bits| !bits.is_empty())?.iter().fold(0, |all, bit| all | 1 << bit))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTE: Form = Form::Number { bits: 8, names: "" };
    const WORD: Form = Form::Number { bits: 32, names: "" };
    const NAMED: Form = Form::Number { bits: 8, names: "echo-request=8 reply=0" };
    const FLAGS: Form = Form::Flags {
        bits: 9,
        names: &["fin", "syn", "rst", "psh", "ack"],
        letters: &["F", "S", "R", "P", "A"],
    };

    fn list(values: &[u128], random: bool) -> Set {
        Set::List { values: values.to_vec(), random }
    }

    #[test]
    fn texts_parse_to_their_meaning() {
        let (v4, v6) = (0xc612_0000, 0x2001_0db8_u128 << 96);
        let rows = [
            ("a number", "9", BYTE, Set::One(9)),
            ("blanks around it", "  9 ", BYTE, Set::One(9)),
            ("a hexadecimal one", "0xFf", BYTE, Set::One(255)),
            ("a list", "9,10, 53", BYTE, list(&[9, 10, 53], false)),
            ("a list with a number twice", "9,9", BYTE, list(&[9, 9], false)),
            ("a list at random", "any:9,10", BYTE, list(&[9, 10], true)),
            ("a list of one", "any:9", BYTE, Set::One(9)),
            ("a range", "1-200", BYTE, Set::Range { first: 1, last: 200 }),
            ("a range with blanks", "0x1 - 200", BYTE, Set::Range { first: 1, last: 200 }),
            ("a range of one", "7-7", BYTE, Set::One(7)),
            ("a counter", "1..9", BYTE, Set::Counter { first: 1, last: 9, step: 1 }),
            ("a counter down", "9..1", BYTE, Set::Counter { first: 9, last: 1, step: 1 }),
            ("with a step", "1..9/0x2", BYTE, Set::Counter { first: 1, last: 9, step: 2 }),
            ("a step beyond the end", "1..9/10", BYTE, Set::One(1)),
            ("an address", "198.18.0.0", Form::Ipv4, Set::One(v4)),
            ("a prefix", "198.18.0.0/16", Form::Ipv4, Set::Range { first: v4, last: v4 + 0xffff }),
            (
                "any of its addresses",
                "198.18.9.9/16",
                Form::Ipv4,
                Set::Range { first: v4, last: v4 + 0xffff },
            ),
            ("a whole address", "198.18.0.0/32", Form::Ipv4, Set::One(v4)),
            (
                "all addresses",
                "0.0.0.0/0",
                Form::Ipv4,
                Set::Range { first: 0, last: u32::MAX.into() },
            ),
            (
                "addresses counted",
                "198.18.0.0..198.18.0.8/4",
                Form::Ipv4,
                Set::Counter { first: v4, last: v4 + 8, step: 4 },
            ),
            (
                "addresses in a range",
                "198.18.0.0-198.18.0.8",
                Form::Ipv4,
                Set::Range { first: v4, last: v4 + 8 },
            ),
            (
                "IPv6 beside ..",
                "2001:db8::..2001:db8::9",
                Form::Ipv6,
                Set::Counter { first: v6, last: v6 + 9, step: 1 },
            ),
            ("all of IPv6", "::/0", Form::Ipv6, Set::Range { first: 0, last: u128::MAX }),
            ("IPv4 in IPv6", "::ffff:1.2.3.4", Form::Ipv6, Set::One(0xffff_0102_0304)),
            ("a MAC address", "02:00:00:00:0A:ff", Form::Mac, Set::One(0x0200_0000_0aff)),
            (
                "a prefix of one",
                "02:00:00:00:00:00/24",
                Form::Mac,
                Set::Range { first: 0x0200_0000_0000, last: 0x0200_00ff_ffff },
            ),
            ("a name with a dash", "echo-request", NAMED, Set::One(8)),
            ("names in a range", "reply-echo-request", NAMED, Set::Range { first: 0, last: 8 }),
            ("flags by letters", "SA", FLAGS, Set::One(18)),
            ("flags by names", "syn + ack", FLAGS, Set::One(18)),
            ("a list of flags", "S,SA,0x100", FLAGS, list(&[2, 18, 256], false)),
        ];
        for (name, text, form, set) in rows {
            let value = Value::parse(text, form);
            assert_eq!(value, Ok(Value { per: VariesBy::Packet, set }), "{name}: {text}");
        }
    }

    #[test]
    fn flow_prefix_ties_a_value_to_the_flow() {
        let per = |text| Value::parse(text, Form::Ipv4).map(|value| value.per);
        assert_eq!(per("flow:198.18.0.0/16"), Ok(VariesBy::Flow));
        assert_eq!(per("flow: any:198.18.0.1,198.18.0.2"), Ok(VariesBy::Flow));
        assert_eq!(per("198.18.0.0/16"), Ok(VariesBy::Packet));
        assert_eq!(per("flow:198.18.0.1"), Ok(VariesBy::Packet), "what stays is nobody's");
    }

    #[test]
    fn errors_describe_the_fault() {
        let rows = [
            ("nothing", "", BYTE, "'' is not a number from 0 to 255"),
            ("too much", "256", BYTE, "256 is too much: the 8 bits of the field hold 255"),
            ("too much in a range", "9-256", BYTE, "256 is too much"),
            ("a sign", "-5", BYTE, "'-5' is not a number"),
            ("a plus", "+5", BYTE, "'+5' is not a number"),
            ("far too much", "340282366920938463463374607431768211456", BYTE, "is not a number"),
            ("downwards", "9-5", BYTE, "a counter down is 9..5"),
            ("a prefix of numbers", "9/4", BYTE, "a prefix is of an address"),
            ("a step of zero", "1..9/0", BYTE, "the step '0'"),
            ("a step that is none", "1..9/x", BYTE, "the step 'x'"),
            ("a counter without an end", "1..", BYTE, "'' is not a number"),
            ("three dots", "1...9", BYTE, "'.9' is not a number"),
            ("a list with a hole", "1,,2", BYTE, "'' is not a number"),
            ("a range in a list", "1,5..9", BYTE, "a range or a prefix stands alone"),
            ("a prefix in a list", "1.1.1.1,1.0.0.0/8", Form::Ipv4, "stands alone"),
            ("too long a prefix", "198.18.0.0/33", Form::Ipv4, "from 0 to 32"),
            ("a prefix without bits", "198.18.0.0/", Form::Ipv4, "from 0 to 32"),
            ("IPv6 in IPv4", "2001:db8::1", Form::Ipv4, "not an IPv4 address like 198.18.0.1"),
            ("a number for an address", "7", Form::Mac, "not a MAC address"),
            ("a MAC address with dashes", "02-00-00-00-00-01", Form::Mac, "not a MAC address"),
            ("one byte too many", "02:00:00:00:00:01:02", Form::Mac, "not a MAC address"),
            (
                "a counter that carries over",
                "02:00:00:00:00:00..02:ff:00:00:00:00",
                Form::Mac,
                "a counter changes only the lower 32 bits of 48 bits",
            ),
            (
                "a range that carries over",
                "::1-1::",
                Form::Ipv6,
                "changes only the lower 64 bits of 128 bits",
            ),
            ("too far to count", "::..1::", Form::Ipv6, "fewer than 2^64 steps"),
            ("a flag that is none", "SX", FLAGS, "psh, ack, with + between, or letters of FSRPA"),
            ("a name that is none", "reqest", NAMED, "or echo-request, reply"),
        ];
        for (name, text, form, part) in rows {
            let error = Value::parse(text, form).expect_err(name);
            assert!(error.contains(part), "{name}: {error}");
        }
    }

    fn forms() -> impl Strategy<Value = Form> {
        prop::sample::select(vec![BYTE, WORD, NAMED, FLAGS, Form::Mac, Form::Ipv4, Form::Ipv6])
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in "\\PC*", form in forms()) {
            let _ = Value::parse(&text, form);
        }

        #[test]
        fn nearly_valid_texts_read_back_as_shown(
            text in "(flow:)?(any:)?[0-9a-fx:.,/SA-]{0,24}",
            form in forms(),
        ) {
            if let Ok(value) = Value::parse(&text, form) {
                let shown = value.shown(form);
                prop_assert_eq!(Value::parse(&shown, form), Ok(value), "{} as {}", text, shown);
            }
        }

        #[test]
        fn values_read_back_as_they_are_shown(
            form in forms(),
            flow: bool,
            random: bool,
            numbers in prop::collection::vec(any::<u128>(), 2..5),
            step in 1_u128..300,
            kind in 0..5,
        ) {
            let unit = form.most() >> (form.bits() - form.unit_bits());
            let numbers: Vec<_> = numbers.iter().map(|number| number & unit).collect();
            let (first, last) = (numbers[0], numbers[1]);
            let (least, most) = (first.min(last), first.max(last));
            prop_assume!(least < most && first.abs_diff(last) >= step);
            prop_assume!(first.abs_diff(last) < u128::from(u64::MAX));
            let set = match kind {
                0 => Set::One(first),
                1 => Set::List { values: numbers, random },
                2 => Set::Counter { first, last, step },
                3 => Set::Range { first: least, last: most },
                _ if form.is_address() => {
                    Set::Range { first: 0, last: form.most() >> (form.bits() / 3) }
    }
                _ => Set::One(last),
            };
            let per = if flow && kind != 0 && !matches!(set, Set::One(_)) {
                VariesBy::Flow
            } else {
                VariesBy::Packet
            };
            let value = Value { per, set };
            let shown = value.shown(form);
            prop_assert_eq!(Value::parse(&shown, form), Ok(value), "{}", shown);
        }
    }
}
