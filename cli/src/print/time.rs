//! When a packet was seen, in the forms tcpdump has.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::line::Line;

/// How a line says when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TimeFormat {
    /// `12:00:00.123456`, local time
    #[default]
    Time,
    /// `2026-11-20 12:00:00.123456`, local time
    Date,
    /// `1795176000.123456`: seconds since 1970
    Epoch,
    /// Nothing
    None,
}

/// How much of a second is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fraction {
    Micro,
    Nano,
}

/// Writes times; the text of a second is made once for all its packets.
pub struct TimePrinter {
    format: TimeFormat,
    zone: TimeZone,
    pub fraction: Fraction,
    second: Option<u64>,
    text: String,
}

impl TimePrinter {
    pub fn new(format: TimeFormat, zone: TimeZone) -> Self {
        Self { format, zone, fraction: Fraction::Micro, second: None, text: String::new() }
    }

    /// A time in nanoseconds since 1970, and a blank.
    pub fn print(&mut self, line: &mut Line, timestamp_ns: u64) {
        const NS: u64 = 1_000_000_000;
        if self.format == TimeFormat::None {
            return;
        }
        let (second, ns) = (timestamp_ns / NS, timestamp_ns % NS);
        if self.second != Some(second) {
            self.text = self.format(second);
            self.second = Some(second);
        }
        line.text(&self.text);
        match self.fraction {
            Fraction::Micro => write!(line, ".{:06} ", ns / 1000),
            Fraction::Nano => write!(line, ".{ns:09} "),
        }
    }

    fn format(&self, second: u64) -> String {
        // 64 bits of nanoseconds end in the year 2554, and what has a date in 9999.
        let time = Timestamp::from_second(second as i64).unwrap_or(Timestamp::MAX);
        let time = self.zone.to_datetime(time);
        match self.format {
            TimeFormat::Time => time.strftime("%H:%M:%S").to_string(),
            TimeFormat::Date => time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
            TimeFormat::Epoch => second.to_string(),
            TimeFormat::None => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::flows::Flows;
    use super::*;

    #[test]
    fn a_time_is_written_in_each_form() {
        let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone");
        // 20 November 2026, 11:00:00 UTC, 123456789 ns.
        let ns = 1_795_172_400_123_456_789;
        let cases = [
            ("local time", TimeFormat::Time, Fraction::Micro, "12:00:00.123456 "),
            ("nanoseconds", TimeFormat::Time, Fraction::Nano, "12:00:00.123456789 "),
            ("with the date", TimeFormat::Date, Fraction::Micro, "2026-11-20 12:00:00.123456 "),
            ("since 1970", TimeFormat::Epoch, Fraction::Micro, "1795172400.123456 "),
            ("without", TimeFormat::None, Fraction::Micro, ""),
        ];
        for (what, format, fraction, expected) in cases {
            let mut clock = TimePrinter::new(format, berlin.clone());
            clock.fraction = fraction;
            let (mut text, mut flows) = (String::new(), Flows::default());
            clock.print(&mut Line::new(&mut text, &mut flows), ns);
            assert_eq!(text, expected, "{what}");
        }
    }

    #[test]
    fn the_second_that_is_kept_is_the_one_that_is_written() {
        let mut clock = TimePrinter::new(TimeFormat::Time, TimeZone::UTC);
        let (mut text, mut flows) = (String::new(), Flows::default());
        let mut line = Line::new(&mut text, &mut flows);
        for second in [0, 0, 1, 59, 60, 0] {
            clock.print(&mut line, second * 1_000_000_000);
        }
        assert_eq!(
            text,
            "00:00:00.000000 00:00:00.000000 00:00:01.000000 \
             00:00:59.000000 00:01:00.000000 00:00:00.000000 "
        );
    }

    #[test]
    fn the_last_time_there_is_has_a_date() {
        let mut clock = TimePrinter::new(TimeFormat::Date, TimeZone::UTC);
        let (mut text, mut flows) = (String::new(), Flows::default());
        clock.print(&mut Line::new(&mut text, &mut flows), u64::MAX);
        assert_eq!(text, "2554-07-21 23:34:33.709551 ");
    }
}
