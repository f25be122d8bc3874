//! How the number of a field is written: as a number, a name, or an address.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// How the number of a field is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Decimal or `0x…`, or one of these names.
    Number { bits: u8, names: &'static [(&'static str, u64)] },
    /// As [`Form::Number`], or several names joined by `+`, or their letters: `syn+ack`, `SA`.
    Flags { bits: u8, names: &'static [Flag] },
    /// `02:00:00:00:00:01`.
    Mac,
    /// `198.18.0.1`.
    Ipv4,
    /// `2001:db8::1`.
    Ipv6,
}

/// A bit with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flag {
    pub(crate) name: &'static str,
    /// Letters for the flag in a word like `SA`.
    pub(crate) letters: &'static str,
    pub(crate) bit: u64,
}

impl Form {
    /// How many bits its numbers have.
    pub(crate) fn bits(self) -> u8 {
        match self {
            Self::Number { bits, .. } | Self::Flags { bits, .. } => bits,
            Self::Mac => 48,
            Self::Ipv4 => 32,
            Self::Ipv6 => 128,
        }
    }

    /// The greatest of its numbers.
    pub(crate) fn most(self) -> u128 {
        u128::MAX >> (128 - u32::from(self.bits()))
    }

    /// Returns the form without names.
    pub(crate) fn nameless(self) -> Self {
        match self {
            Self::Number { bits, .. } => Self::Number { bits, names: &[] },
            other => other,
        }
    }

    /// Reports whether `/` and a prefix length may follow.
    pub(crate) fn is_address(self) -> bool {
        matches!(self, Self::Mac | Self::Ipv4 | Self::Ipv6)
    }

    /// The number of lower bits that change together in a range that is not a power of two: an edit
    /// of a plan holds no more.
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
            Self::Number { names: [], .. } => self.range(),
            Self::Number { names, .. } => {
                let names: Vec<_> = names.iter().map(|(name, _)| *name).collect();
                format!("{}, or {}", self.range(), names.join(", "))
            }
            Self::Flags { names, .. } => {
                let names: Vec<_> = names.iter().map(|flag| flag.name).collect();
                let letters: String = names.iter().zip(self.letters()).map(|(_, c)| c).collect();
                match letters.as_str() {
                    "" => format!("{}, or of {}, with + between", self.range(), names.join(", ")),
                    _ => format!(
                        "{}, or of {}, with + between, or letters of {letters}",
                        self.range(),
                        names.join(", ")
                    ),
                }
            }
            Self::Mac => "a MAC address like 02:00:00:00:00:01".into(),
            Self::Ipv4 => "an IPv4 address like 198.18.0.1".into(),
            Self::Ipv6 => "an IPv6 address like 2001:db8::1".into(),
        }
    }

    fn range(self) -> String {
        format!("a number from 0 to {}, decimal or 0x…", self.most())
    }

    /// The first letter of each flag.
    fn letters(self) -> impl Iterator<Item = char> {
        let flags = if let Self::Flags { names, .. } = self { names } else { &[] };
        flags.iter().filter_map(|flag| flag.letters.chars().next())
    }

    /// The number that is written so; `Err` says what would be right.
    pub(crate) fn read(self, text: &str) -> Result<u128, String> {
        let wrong = || format!("'{text}' is not {}", self.right());
        match self {
            Self::Mac => mac(text).ok_or_else(wrong),
            Self::Ipv4 => {
                text.parse::<Ipv4Addr>().map(|a| u128::from(a.to_bits())).map_err(|_| wrong())
            }
            Self::Ipv6 => text.parse::<Ipv6Addr>().map(|a| a.to_bits()).map_err(|_| wrong()),
            Self::Number { names, .. } => {
                if let Some((_, number)) = names.iter().find(|(name, _)| *name == text) {
                    return Ok(u128::from(*number));
                }
                self.in_range(number(text).ok_or_else(wrong)?)
            }
            Self::Flags { names, .. } => match number(text).or_else(|| flags(text, names)) {
                Some(number) => self.in_range(number),
                None => Err(wrong()),
            },
        }
    }

    /// A number that the field has room for.
    pub(crate) fn in_range(self, number: u128) -> Result<u128, String> {
        let (most, bits) = (self.most(), self.bits());
        if number > most {
            return Err(format!("{number} is too much: the {bits} bits of the field hold {most}"));
        }
        Ok(number)
    }

    /// Writes a number so that it is read back.
    pub(crate) fn write(self, number: u128, to: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Mac => {
                let [_, _, bytes @ ..] = (number as u64).to_be_bytes();
                let [a, b, c, d, e, f] = bytes;
                write!(to, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
            }
            Self::Ipv4 => write!(to, "{}", Ipv4Addr::from_bits(number as u32)),
            Self::Ipv6 => write!(to, "{}", Ipv6Addr::from_bits(number)),
            Self::Number { names, .. } => {
                match names.iter().find(|(_, named)| u128::from(*named) == number) {
                    Some((name, _)) => to.write_str(name),
                    None => write!(to, "{number}"),
                }
            }
            Self::Flags { names, .. } => write_flags(number, names, to),
        }
    }
}

/// A number, decimal or hexadecimal.
pub(crate) fn number(text: &str) -> Option<u128> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // The library's parser takes a sign.
    let plain = digits.chars().all(|digit| digit.is_digit(radix));
    if plain { u128::from_str_radix(digits, radix).ok() } else { None }
}

/// Six bytes of two hexadecimal digits.
fn mac(text: &str) -> Option<u128> {
    let mut number = 0;
    let mut bytes = 0;
    for byte in text.split(':') {
        if byte.len() != 2 || !byte.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        number = number << 8 | u128::from(u8::from_str_radix(byte, 16).ok()?);
        bytes += 1;
        if bytes > 6 {
            return None;
        }
    }
    (bytes == 6).then_some(number)
}

/// Names joined by `+`, or a word of letters.
fn flags(text: &str, names: &[Flag]) -> Option<u128> {
    let named = |word: &str| names.iter().find(|flag| flag.name == word).map(|flag| flag.bit);
    let lettered = |c: char| names.iter().find(|flag| flag.letters.contains(c)).map(|f| f.bit);
    let words: Option<Vec<u64>> = text.split('+').map(|word| named(word.trim())).collect();
    let bits = match words {
        Some(bits) => bits,
        None if text.is_empty() => return None,
        None => text.chars().map(lettered).collect::<Option<_>>()?,
    };
    Some(u128::from(bits.into_iter().fold(0, |all, bit| all | bit)))
}

fn write_flags(number: u128, names: &[Flag], to: &mut fmt::Formatter) -> fmt::Result {
    let known = names.iter().fold(0, |all, flag| all | u128::from(flag.bit));
    if number == 0 || number & !known != 0 {
        return write!(to, "{number}");
    }
    let set = names.iter().filter(|flag| number & u128::from(flag.bit) != 0);
    for (place, flag) in set.enumerate() {
        write!(to, "{}{}", if place > 0 { "+" } else { "" }, flag.name)?;
    }
    Ok(())
}
