//! Quantities as people read them: counts, rates, sizes, durations. How they are written is the
//! library's, [`sluicegate::units`].

use std::fmt;
use std::time::Duration;

use sluicegate::units;
use sluicegate_traffic::rate::Unit;

/// The time between two lines: a span of 10 ms or more.
pub fn interval(text: &str) -> Result<Duration, String> {
    const SHORTEST: Duration = Duration::from_millis(10);
    match units::duration(text).map_err(|error| error.to_string())? {
        interval if interval < SHORTEST => Err("10ms is the shortest".into()),
        interval => Ok(interval),
    }
}

/// The word for a number of packets.
pub fn packets_word(count: u64) -> &'static str {
    if count == 1 { "packet" } else { "packets" }
}

/// `1234567` as `1,234,567`.
pub fn show_count(count: u64) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        let digits = count.to_string();
        for (index, digit) in digits.char_indices() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    })
}

/// Packets a second: `3.85 Mpps`; below one in ten seconds the other way round: `1 packet in 1 h 0
/// min`.
pub fn show_pps(pps: f64) -> impl fmt::Display {
    fmt::from_fn(move |f| match Duration::try_from_secs_f64(1.0 / pps) {
        Ok(apart) if pps < 0.1 => write!(f, "1 packet in {}", show_duration(apart)),
        _ => write!(f, "{}", show_scaled(pps, 1000.0, SI, "pps")),
    })
}

/// Bits a second: `1.97 Gbit/s`.
pub fn show_bps(bps: f64) -> impl fmt::Display {
    show_scaled(bps, 1000.0, SI, "bit/s")
}

/// A number for a column, whose head says the unit: `0`, `0.5`, `999`, `1.20k`, `14.9M`. Three
/// digits with a prefix, so that what moves is the value and not its width.
pub fn show_si(value: f64) -> impl fmt::Display {
    let (value, prefix) = scaled(value, 1000.0, SI);
    fmt::from_fn(move |f| match prefix {
        "" => write!(f, "{}", Significant(value)),
        _ => write!(f, "{}{prefix}", ThreeDigits(value)),
    })
}

/// A size: `64 MiB`, `1.50 KiB`, `512 B`.
pub fn show_bytes(bytes: u64) -> impl fmt::Display {
    show_scaled(bytes as f64, 1024.0, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], "B")
}

/// A span of time: `1.5 s`, `320 µs`, `2 min 5 s`, `1 h 30 min`.
pub fn show_duration(duration: Duration) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        let ns = duration.as_nanos();
        let seconds = duration.as_secs();
        let scaled = |unit_ns: u32, unit| (f64::from(unit_ns), unit);
        let (unit_ns, unit) = match ns {
            0..1_000 => scaled(1, "ns"),
            1_000..999_500 => scaled(1_000, "µs"),
            999_500..999_500_000 => scaled(1_000_000, "ms"),
            999_500_000..60_000_000_000 => scaled(1_000_000_000, "s"),
            _ => {
                let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
                return match hours {
                    0 => write!(f, "{minutes} min {} s", seconds % 60),
                    _ => write!(f, "{hours} h {minutes} min"),
                };
            }
        };
        let value = ns as f64 / unit_ns;
        write!(f, "{} {unit}", Significant(value))
    })
}

/// A part of a whole: `12.5 %`; nothing of nothing is 0 %.
pub fn show_percent(part: u64, whole: u64) -> impl fmt::Display {
    let percent = 100.0 * part as f64 / whole.max(1) as f64;
    fmt::from_fn(move |f| {
        // What is not none, or not all, is not rounded to it.
        match percent {
            _ if part > 0 && percent < 0.01 => write!(f, "< 0.01 %"),
            _ if part < whole && percent > 99.99 => write!(f, "> 99.99 %"),
            _ => write!(f, "{} %", Significant(percent)),
        }
    })
}

const SI: &[&str] = &["", "k", "M", "G", "T", "P"];

/// A value with its prefix and unit.
fn show_scaled(
    value: f64,
    step: f64,
    prefixes: &'static [&'static str],
    unit: &'static str,
) -> impl fmt::Display {
    let (value, prefix) = scaled(value, step, prefixes);
    fmt::from_fn(move |f| write!(f, "{} {prefix}{unit}", Significant(value)))
}

/// A value by the prefix that leaves one to three digits, or four just below a binary step,
/// before the point.
fn scaled(value: f64, step: f64, prefixes: &'static [&'static str]) -> (f64, &'static str) {
    let (mut value, mut at) = (value, 0);
    // Compared as it will be rounded: 999.9996 k is 1 M.
    while value.abs() >= step - 0.5 && at + 1 < prefixes.len() {
        value /= step;
        at += 1;
    }
    (value, prefixes[at])
}

/// Where three digits end: what to multiply by before rounding, and the places after the point.
fn three_digits(value: f64) -> (u32, usize) {
    match value {
        ..9.995 => (100, 2),
        ..99.95 => (10, 1),
        _ => (1, 0),
    }
}

/// Three digits, the zeros at the end too.
struct ThreeDigits(f64);

impl fmt::Display for ThreeDigits {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:.*}", three_digits(self.0.abs()).1, self.0)
    }
}

/// Three digits that matter, zeros at the end of a fraction left out.
struct Significant(f64);

impl fmt::Display for Significant {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let value = self.0.abs();
        let (scale, places) = three_digits(value);
        let rounded = (value * f64::from(scale)).round() as u64;
        if self.0 < 0.0 && rounded > 0 {
            f.write_str("-")?;
        }
        let (whole, fraction) = (rounded / scale as u64, rounded % scale as u64);
        write!(f, "{whole}")?;
        match fraction {
            0 => Ok(()),
            _ if places == 2 && fraction % 10 == 0 => write!(f, ".{}", fraction / 10),
            _ => write!(f, ".{fraction:0places$}"),
        }
    }
}

/// Formats a rate with its unit.
pub fn show_rate(rate: f64, unit: Unit) -> String {
    match unit {
        Unit::Packet => show_pps(rate).to_string(),
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
            ("a small count", show_count(999).to_string(), "999"),
            ("thousands", show_count(1000).to_string(), "1,000"),
            ("millions", show_count(1_234_567).to_string(), "1,234,567"),
            ("a rate of packets", show_pps(3_851_234.0).to_string(), "3.85 Mpps"),
            ("a small one", show_pps(12.34).to_string(), "12.3 pps"),
            ("a fraction", show_pps(0.25).to_string(), "0.25 pps"),
            ("less than that", show_pps(1.0 / 5400.0).to_string(), "1 packet in 1 h 30 min"),
            ("none", show_pps(0.0).to_string(), "0 pps"),
            ("one nobody knows", show_pps(f64::NAN).to_string(), "0 pps"),
            ("a rate of bits", show_bps(1.97e9).to_string(), "1.97 Gbit/s"),
            ("just below a step", show_bps(999_499.0).to_string(), "999 kbit/s"),
            ("rounded to a step", show_bps(999_600.0).to_string(), "1 Mbit/s"),
            ("beyond the prefixes", show_bps(2e19).to_string(), "20000 Pbit/s"),
            ("a column's small number", show_si(0.25).to_string(), "0.25"),
            ("a whole one", show_si(999.0).to_string(), "999"),
            ("none in a column", show_si(0.0).to_string(), "0"),
            ("nearly a thousand", show_si(999.6).to_string(), "1.00k"),
            ("zeros in a column", show_si(1200.0).to_string(), "1.20k"),
            ("rounded to ten", show_si(9999.0).to_string(), "10.0k"),
            ("rounded to a hundred", show_si(99_960.0).to_string(), "100k"),
            ("line rate", show_si(14_880_952.0).to_string(), "14.9M"),
            ("more than there are prefixes", show_si(2.5e20).to_string(), "250000P"),
            ("bytes", show_bytes(512).to_string(), "512 B"),
            ("whole", show_bytes(64 << 20).to_string(), "64 MiB"),
            ("in part", show_bytes(1536).to_string(), "1.5 KiB"),
            ("four digits", show_bytes(1_023 << 10).to_string(), "1023 KiB"),
            ("all there are", show_bytes(u64::MAX).to_string(), "16 EiB"),
            ("no time", show_duration(seconds(0)).to_string(), "0 ns"),
            ("microseconds", show_duration(Duration::from_micros(320)).to_string(), "320 µs"),
            (
                "nearly a millisecond",
                show_duration(Duration::from_nanos(999_999)).to_string(),
                "1 ms",
            ),
            ("seconds", show_duration(Duration::from_millis(1500)).to_string(), "1.5 s"),
            ("minutes", show_duration(seconds(125)).to_string(), "2 min 5 s"),
            ("hours", show_duration(seconds(5400)).to_string(), "1 h 30 min"),
            ("a part", show_percent(1, 8).to_string(), "12.5 %"),
            ("with a zero inside", show_percent(105, 10_000).to_string(), "1.05 %"),
            ("none of it", show_percent(0, 8).to_string(), "0 %"),
            ("all of it", show_percent(8, 8).to_string(), "100 %"),
            ("of nothing", show_percent(0, 0).to_string(), "0 %"),
            ("hardly any", show_percent(1, 1_000_000).to_string(), "< 0.01 %"),
            ("all but one", show_percent(999_999, 1_000_000).to_string(), "> 99.99 %"),
        ];
        for (what, written, expected) in rows {
            assert_eq!(written, expected, "{what}");
        }
    }

    #[test]
    fn the_parsers_are_clap_s() {
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
        fn what_is_written_whole_is_read_back(value: u64) {
            let text = show_count(value).to_string().replace(',', "_");
            prop_assert_eq!(count(&text), Ok(value));
        }
    }
}
