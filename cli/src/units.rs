//! Formats quantities for people: counts, rates, sizes, durations. [`sluicegate::units`] parses them.

use std::ops::RangeInclusive;
use std::time::Duration;

use sluicegate::units;
use sluicegate_traffic::rate::Unit;

/// Parses a time in a range; `Err` describes the range.
pub fn duration_in(
    range: RangeInclusive<Duration>,
    text: &str,
    wrong: &str,
) -> Result<Duration, String> {
    let time = units::duration(text).map_err(|error| error.to_string())?;
    if range.contains(&time) { Ok(time) } else { Err(wrong.into()) }
}

/// Parses the time between two lines.
pub fn interval(text: &str) -> Result<Duration, String> {
    duration_in(Duration::from_millis(10)..=Duration::MAX, text, "the minimum is 10ms")
}

/// Returns the word for a number of packets.
pub fn packets_word(count: u64) -> &'static str {
    if count == 1 { "packet" } else { "packets" }
}

/// Formats `1234567` as `1,234,567`.
pub fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats packets per second: `3.85 Mpps`; below one in ten seconds as an interval: `1 packet in 1 h 0 min`.
pub fn show_pps(pps: f64) -> String {
    match Duration::try_from_secs_f64(1.0 / pps) {
        Ok(apart) if pps < 0.1 => format!("1 packet in {}", show_duration(apart)),
        _ => show_scaled(pps, 1000.0, SI, "pps"),
    }
}

/// Formats bits per second: `1.97 Gbit/s`.
pub fn show_bps(bps: f64) -> String {
    show_scaled(bps, 1000.0, SI, "bit/s")
}

/// Formats a number for a column whose head has the unit: `0`, `0.5`, `999`, `1.20k`, `14.9M`. Three digits
/// with a prefix keep the width.
pub fn show_si(value: f64) -> String {
    match scaled(value, 1000.0, SI) {
        (value, "") => significant(value),
        (value, prefix) => format!("{}{prefix}", three_digits(value)),
    }
}

/// Formats a size: `64 MiB`, `1.50 KiB`, `512 B`.
pub fn show_bytes(bytes: u64) -> String {
    show_scaled(bytes as f64, 1024.0, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], "B")
}

/// Formats a duration: `1.5 s`, `320 µs`, `2 min 5 s`, `1 h 30 min`.
pub fn show_duration(duration: Duration) -> String {
    let (ns, seconds) = (duration.as_nanos(), duration.as_secs());
    let scaled = |unit_ns: f64, unit| format!("{} {unit}", significant(ns as f64 / unit_ns));
    match ns {
        0..1_000 => scaled(1.0, "ns"),
        1_000..999_500 => scaled(1e3, "µs"),
        999_500..999_500_000 => scaled(1e6, "ms"),
        999_500_000..60_000_000_000 => scaled(1e9, "s"),
        _ if seconds < 3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Formats a part of a whole: `12.5 %`; 0 of 0 is 0 %.
pub fn show_percent(part: u64, whole: u64) -> String {
    // A part is never rounded to 0 % or 100 %.
    match 100.0 * part as f64 / whole.max(1) as f64 {
        percent if part > 0 && percent < 0.01 => "< 0.01 %".into(),
        percent if part < whole && percent > 99.99 => "> 99.99 %".into(),
        percent => format!("{} %", significant(percent)),
    }
}

const SI: &[&str] = &["", "k", "M", "G", "T", "P"];

/// Formats a value with its prefix and unit.
fn show_scaled(
    value: f64,
    step: f64,
    prefixes: &'static [&'static str],
    unit: &'static str,
) -> String {
    let (value, prefix) = scaled(value, step, prefixes);
    format!("{} {prefix}{unit}", significant(value))
}

/// Divides a value by the prefix that leaves one to three digits before the point, or four just below a
/// binary step.
fn scaled(value: f64, step: f64, prefixes: &'static [&'static str]) -> (f64, &'static str) {
    let (mut value, mut at) = (value, 0);
    // The comparison allows for rounding: 999.9996 k is 1 M.
    while value.abs() >= step - 0.5 && at + 1 < prefixes.len() {
        value /= step;
        at += 1;
    }
    (value, prefixes[at])
}

/// Formats three digits, with trailing zeros.
fn three_digits(value: f64) -> String {
    let value = if value.is_nan() { 0.0 } else { value };
    let places = match value.abs() {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.places$}")
}

/// Formats three significant digits, without trailing zeros of a fraction.
fn significant(value: f64) -> String {
    let digits = three_digits(value);
    match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').into(),
        false => digits,
    }
}

/// Formats a rate with its unit.
pub fn show_rate(rate: f64, unit: Unit) -> String {
    match unit {
        Unit::Packet => show_pps(rate),
        Unit::BYTE_OF_LAYER2 => format!("{} (L2)", show_bps(rate * 8.0)),
        Unit::Byte { .. } => format!("{} (L1)", show_bps(rate * 8.0)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluicegate::units::{count, cpus, duration};

    use super::*;

    #[test]
    fn quantities_are_written() {
        let seconds = Duration::from_secs;
        let rows = [
            ("a small count", show_count(999), "999"),
            ("thousands", show_count(1000), "1,000"),
            ("millions", show_count(1_234_567), "1,234,567"),
            ("a rate of packets", show_pps(3_851_234.0), "3.85 Mpps"),
            ("a small one", show_pps(12.34), "12.3 pps"),
            ("a fraction", show_pps(0.25), "0.25 pps"),
            ("less than that", show_pps(1.0 / 5400.0), "1 packet in 1 h 30 min"),
            ("none", show_pps(0.0), "0 pps"),
            ("one nobody knows", show_pps(f64::NAN), "0 pps"),
            ("a rate of bits", show_bps(1.97e9), "1.97 Gbit/s"),
            ("just below a step", show_bps(999_499.0), "999 kbit/s"),
            ("rounded to a step", show_bps(999_600.0), "1 Mbit/s"),
            ("beyond the prefixes", show_bps(2e19), "20000 Pbit/s"),
            ("a column's small number", show_si(0.25), "0.25"),
            ("a whole one", show_si(999.0), "999"),
            ("none in a column", show_si(0.0), "0"),
            ("nearly a thousand", show_si(999.6), "1.00k"),
            ("zeros in a column", show_si(1200.0), "1.20k"),
            ("rounded to ten", show_si(9999.0), "10.0k"),
            ("rounded to a hundred", show_si(99_960.0), "100k"),
            ("line rate", show_si(14_880_952.0), "14.9M"),
            ("more than there are prefixes", show_si(2.5e20), "250000P"),
            ("bytes", show_bytes(512), "512 B"),
            ("whole", show_bytes(64 << 20), "64 MiB"),
            ("in part", show_bytes(1536), "1.5 KiB"),
            ("four digits", show_bytes(1_023 << 10), "1023 KiB"),
            ("all there are", show_bytes(u64::MAX), "16 EiB"),
            ("no time", show_duration(seconds(0)), "0 ns"),
            ("microseconds", show_duration(Duration::from_micros(320)), "320 µs"),
            ("nearly a millisecond", show_duration(Duration::from_nanos(999_999)), "1 ms"),
            ("seconds", show_duration(Duration::from_millis(1500)), "1.5 s"),
            ("minutes", show_duration(seconds(125)), "2 min 5 s"),
            ("hours", show_duration(seconds(5400)), "1 h 30 min"),
            ("a part", show_percent(1, 8), "12.5 %"),
            ("with a zero inside", show_percent(105, 10_000), "1.05 %"),
            ("none of it", show_percent(0, 8), "0 %"),
            ("all of it", show_percent(8, 8), "100 %"),
            ("of nothing", show_percent(0, 0), "0 %"),
            ("hardly any", show_percent(1, 1_000_000), "< 0.01 %"),
            ("all but one", show_percent(999_999, 1_000_000), "> 99.99 %"),
        ];
        for (what, written, expected) in rows {
            assert_eq!(written, expected, "{what}");
        }
    }

    #[test]
    fn the_parsers_work_in_clap() {
        let command = clap::Command::new("test")
            .arg(clap::Arg::new("for").long("for").value_parser(duration))
            .arg(clap::Arg::new("cpus").long("cpus").value_parser(cpus));
        let matches = command
            .clone()
            .try_get_matches_from(["test", "--for", "5s", "--cpus", "0-1"])
            .expect("right");
        assert_eq!(matches.get_one("for"), Some(&Duration::from_secs(5)));
        assert_eq!(matches.get_one("cpus"), Some(&vec![0_u16, 1]));
        let error = command.try_get_matches_from(["test", "--for", "soon"]).unwrap_err();
        assert!(error.to_string().contains("1h30m"), "{error}");
    }

    proptest! {
        #[test]
        fn whole_numbers_are_read_back(value: u64) {
            let text = show_count(value).replace(',', "_");
            prop_assert_eq!(count(&text), Ok(value));
        }
    }
}
