//! Parsers of quantities as people write them: counts, sizes, durations, CPU lists, in options of ports and
//! flags of commands.
//!
//! Every error describes the valid form. Prefixes are SI, powers of 1000; sizes also have the binary ones
//! (`Ki`, `Mi`, …), powers of 1024. Arithmetic is exact: `14.88M` is 14 880 000, not a float near it.

use std::collections::BTreeSet;
use std::time::Duration;

/// A parser's error: describes the valid form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{right}")]
pub struct ParseError {
    right: String,
}

impl ParseError {
    fn new(right: impl Into<String>) -> Self {
        Self { right: right.into() }
    }
}

const SI: &[(&str, u64)] =
    &[("k", 1_000), ("K", 1_000), ("M", 1_000_000), ("G", 1_000_000_000), ("T", 1_000_000_000_000)];

const BINARY: &[(&str, u64)] =
    &[("Ki", 1 << 10), ("ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30), ("Ti", 1 << 40)];

const NS: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Parses a count: `1000`, `1_000_000`, `1M`, `2.5k`.
pub fn count(text: &str) -> Result<u64, ParseError> {
    let right = || ParseError::new("a count is a whole number like 1000, 1_000_000, 250k or 1M");
    let (number, unit) = Number::split(text).ok_or_else(right)?;
    let factor = factor(&[SI], unit).ok_or_else(right)?;
    number.times(factor).ok_or_else(right)
}

/// Parses a size in bytes: `512`, `64KiB`, `64K`, `100MB`, `1.5GiB`. `K`, `M`, `G` alone are binary, as
/// usual for memory and files; `KB`, `MB`, `GB` are decimal.
pub fn bytes(text: &str) -> Result<u64, ParseError> {
    let right = || {
        ParseError::new(
            "a size is whole bytes like 512, 64KiB (1024 bytes each) or 100MB (1000 each)",
        )
    };
    let (number, unit) = Number::split(text).ok_or_else(right)?;
    let factor = match unit.strip_suffix('B') {
        Some(prefix) => factor(&[SI, BINARY], prefix),
        None => BINARY
            .iter()
            .find(|(prefix, _)| *prefix == unit || prefix.trim_end_matches('i') == unit)
            .map(|&(_, factor)| factor)
            .or((unit.is_empty()).then_some(1)),
    };
    number.times(factor.ok_or_else(right)?).ok_or_else(right)
}

/// Parses a duration: `5s`, `250ms`, `320µs`, `1.5s`, `1h30m`, or a plain number of seconds.
pub fn duration(text: &str) -> Result<Duration, ParseError> {
    let right = || {
        ParseError::new("a duration is like 5s, 250ms, 320us or 1h30m; a plain number is seconds")
    };
    let mut rest = text;
    let (mut total, mut last) = (0_u64, u64::MAX);
    while !rest.is_empty() {
        let (number, more) = Number::split(rest).ok_or_else(right)?;
        let end = more.find(|letter: char| letter.is_ascii_digit()).unwrap_or(more.len());
        let unit = match more[..end].trim() {
            "" if last == u64::MAX && end == more.len() => "s",
            unit => unit,
        };
        let ns = factor(&[NS], unit).filter(|_| !unit.is_empty());
        // From long to short, each once: "30m1h" is likely a mistake.
        let ns = ns.filter(|ns| *ns < last).ok_or_else(right)?;
        let part = number.times(ns).ok_or_else(right)?;
        total = total.checked_add(part).ok_or_else(right)?;
        (last, rest) = (ns, &more[end..]);
    }
    if last == u64::MAX {
        return Err(right());
    }
    Ok(Duration::from_nanos(total))
}

/// Parses a list of CPUs in the kernel's format: `0-3,8`. Returns them in order, each once.
pub fn cpus(text: &str) -> Result<Vec<u16>, ParseError> {
    let right = || ParseError::new("CPUs are numbers and ranges like 0-3,8, up to 8191");
    // The limit of CONFIG_NR_CPUS on x86-64 (arch/x86/Kconfig).
    const LAST: u16 = 8191;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        let number = digits.then(|| text.parse::<u16>().ok()).flatten();
        number.filter(|number| *number <= LAST).ok_or_else(right)
    };
    let mut cpus = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(right());
        }
        cpus.extend(first..=last);
    }
    Ok(cpus.into_iter().collect())
}

fn factor(tables: &[&[(&str, u64)]], prefix: &str) -> Option<u64> {
    let found = tables.iter().flat_map(|table| table.iter()).find(|(name, _)| *name == prefix);
    match found {
        Some(&(_, factor)) => Some(factor),
        None => prefix.is_empty().then_some(1),
    }
}

/// A decimal number: `digits / 10^places`.
#[derive(Clone, Copy)]
struct Number {
    digits: u128,
    places: u32,
}

impl Number {
    /// Splits the number off the front; the rest, without surrounding blanks, is the unit. Underscores may
    /// stand between digits.
    fn split(text: &str) -> Option<(Self, &str)> {
        let text = text.trim();
        let end = text
            .find(|letter: char| !matches!(letter, '0'..='9' | '_' | '.'))
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let well_formed = |part: &str| {
            part.starts_with(|first: char| first.is_ascii_digit())
                && part.ends_with(|last: char| last.is_ascii_digit())
        };
        if !well_formed(whole) || !well_formed(fraction) || fraction.contains('.') {
            return None;
        }
        let (mut digits, mut places) = (0_u128, 0);
        for (part, counts) in [(whole, 0), (fraction, 1)] {
            for digit in part.bytes().filter(u8::is_ascii_digit) {
                let digit = u128::from(digit - b'0');
                digits = digits.checked_mul(10)?.checked_add(digit)?;
                places += counts;
            }
        }
        Some((Self { digits, places }, unit.trim()))
    }

    /// Returns the product, if it is whole and fits.
    fn times(self, factor: u64) -> Option<u64> {
        let product = self.digits.checked_mul(factor.into())?;
        let divisor = 10_u128.checked_pow(self.places)?;
        let whole = product % divisor == 0;
        u64::try_from(product / divisor).ok().filter(|_| whole)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;
    use proptest::prelude::*;

    /// Checks a parser against rows of a description, the text and the value; None if the parser must
    /// reject the text.
    fn check<T, F>(parser: F, rows: &[(&str, &str, Option<T>)])
    where
        T: PartialEq + fmt::Debug + Clone,
        F: Fn(&str) -> Result<T, ParseError>,
    {
        for (what, text, value) in rows {
            assert_eq!(parser(text).ok(), *value, "{what}: {text:?}");
        }
    }

    #[test]
    fn counts_are_read() {
        check(
            count,
            &[
                ("plain", "1000", Some(1000)),
                ("none", "0", Some(0)),
                ("with underscores", "1_000_000", Some(1_000_000)),
                ("with a prefix", "1M", Some(1_000_000)),
                ("a fraction that comes out whole", "2.5k", Some(2500)),
                ("a blank before the prefix", "3 G", Some(3_000_000_000)),
                ("the largest", "18446744073709551615", Some(u64::MAX)),
                ("one too many", "18446744073709551616", None),
                ("far too many", "99999999T", None),
                ("more digits than any number has", &"9".repeat(99), None),
                ("a part of one", "1.5", None),
                ("negative", "-1", None),
                ("nothing", "", None),
                ("a prefix without a number", "M", None),
                ("a unit", "10pps", None),
                ("an underscore that separates nothing", "1_", None),
                ("two points", "1.2.3k", None),
                ("a point without digits", "1.k", None),
            ],
        );
    }

    #[test]
    fn sizes_are_read() {
        check(
            bytes,
            &[
                ("plain", "512", Some(512)),
                ("with the unit", "512B", Some(512)),
                ("binary", "64KiB", Some(65_536)),
                ("binary, short", "64K", Some(65_536)),
                ("binary, shorter", "2Mi", Some(2 << 20)),
                ("lower case", "4k", Some(4096)),
                ("decimal", "100MB", Some(100_000_000)),
                ("decimal, as SI writes it", "1kB", Some(1000)),
                ("a fraction", "1.5GiB", Some(3 << 29)),
                ("half a byte", "0.5", None),
                ("bits", "10Mb", None),
                ("too large", "99999999TiB", None),
                ("a word", "many", None),
            ],
        );
    }

    #[test]
    fn durations_are_read() {
        let ms = |ms| Some(Duration::from_millis(ms));
        check(
            duration,
            &[
                ("seconds", "5s", ms(5000)),
                ("seconds alone", "5", ms(5000)),
                ("a fraction", "1.5s", ms(1500)),
                ("a fraction alone", "0.25", ms(250)),
                ("milliseconds", "250ms", ms(250)),
                ("microseconds", "320us", Some(Duration::from_micros(320))),
                ("microseconds with the sign", "320µs", Some(Duration::from_micros(320))),
                ("microseconds with the letter", "320μs", Some(Duration::from_micros(320))),
                ("nanoseconds", "1ns", Some(Duration::from_nanos(1))),
                ("minutes", "2m", ms(120_000)),
                ("hours and minutes", "1h30m", ms(5_400_000)),
                ("with blanks", "1h 30m 10s", ms(5_410_000)),
                ("days", "1d", ms(86_400_000)),
                ("no time", "0", ms(0)),
                ("short before long", "30m1h", None),
                ("the same twice", "1s1s", None),
                ("a number left over", "1m30", None),
                ("half a nanosecond", "0.5ns", None),
                ("longer than can be told", "999999999d", None),
                ("nothing", "", None),
                ("a unit alone", "s", None),
                ("negative", "-5s", None),
                ("a word", "soon", None),
            ],
        );
    }

    #[test]
    fn cpu_lists_are_read() {
        check(
            cpus,
            &[
                ("one", "3", Some(vec![3])),
                ("a range and one", "0-3,8", Some(vec![0, 1, 2, 3, 8])),
                ("in any order, and twice", "8,0-2,1", Some(vec![0, 1, 2, 8])),
                ("with blanks", "0, 2", Some(vec![0, 2])),
                ("a range of one", "4-4", Some(vec![4])),
                ("backwards", "3-0", None),
                ("beyond any kernel", "0-9999", None),
                ("beyond any number", "99999999999999999999", None),
                ("nothing between commas", "0,,1", None),
                ("an open range", "0-", None),
                ("signs", "+1", None),
                ("nothing", "", None),
            ],
        );
    }

    #[test]
    fn an_error_says_what_would_be_right() {
        let message = duration("10x").unwrap_err().to_string();
        assert!(message.contains("5s"), "{message}");
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in "[0-9._, a-zA-Zµ/-]{0,24}|.{0,12}") {
            let _ = (count(&text), bytes(&text), duration(&text), cpus(&text));
        }
    }
}
