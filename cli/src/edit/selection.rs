//! The packets that `sluice edit` keeps: by number, time and filter.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use sluicegate::error::Result;
use sluicegate::filter::Filter;
use sluicegate::port::Interface;
use sluicegate::ring::Packet;
use sluicegate::units;

/// Numbers of packets, counted from 1: `1-100,200-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketNumbers(Vec<RangeInclusive<u64>>);

impl FromStr for PacketNumbers {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let range = |part: &str| {
            let number = |text: &str| units::count(text).ok();
            let (first, last) = match part.split_once('-') {
                Some((first, "")) => (number(first)?, u64::MAX),
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            (1 <= first && first <= last).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = text.split(',').map(|part| range(part.trim())).collect();
        let mut ranges = ranges.ok_or("use numbers and ranges like 1-100,200-; the first is 1")?;
        ranges.sort_by_key(|range| *range.start());
        Ok(Self(ranges))
    }
}

impl PacketNumbers {
    /// Returns the list of all other numbers; empty if there are none.
    pub fn others(&self) -> String {
        let mut others = Vec::new();
        let mut next = Some(1);
        for range in &self.0 {
            let Some(first) = next else { break };
            match range.start() - 1 {
                last if last < first => {}
                last if last == first => others.push(first.to_string()),
                last => others.push(format!("{first}-{last}")),
            }
            next = range.end().checked_add(1).map(|after| after.max(first));
        }
        others.extend(next.map(|first| format!("{first}-")));
        others.join(",")
    }
}

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// In ns since 1970.
    At(u64),
    /// After the first packet.
    After(Duration),
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Some(after) = text.strip_prefix('+') {
            let after = units::duration(after).map_err(|error| error.to_string())?;
            return Ok(Self::After(after));
        }
        let wrong = || {
            "use a time like 2026-11-20T21:43:33Z, 2026-11-20T21:43:33 (local), 1795211013.5 (seconds \
             since 1970) or +5s (after the first packet), 1970 to 2554"
        };
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if is_number {
            let since = units::duration(text).map_err(|_| wrong())?;
            return u64::try_from(since.as_nanos()).map(Self::At).map_err(|_| wrong().into());
        }
        let local = || {
            let civil = text.parse::<DateTime>().ok()?;
            civil.to_zoned(TimeZone::system()).ok().map(|zoned| zoned.timestamp())
        };
        let time = text.parse::<Timestamp>().ok().or_else(local).ok_or_else(wrong)?;
        u64::try_from(time.as_nanosecond()).map(Self::At).map_err(|_| wrong().into())
    }
}

impl Time {
    fn ns(self, first_ns: u64) -> u64 {
        match self {
            Self::At(ns) => ns,
            Self::After(time) => {
                first_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
            }
        }
    }
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Keep,
    /// By number or time.
    Excluded,
    Filtered,
}

/// Decides which packets to keep.
#[derive(Debug)]
pub struct Selection {
    /// The ranges that can still match, by their first numbers; `None` keeps all.
    numbers: Option<PacketNumbers>,
    from: Option<Time>,
    until: Option<Time>,
    /// The time of the first packet.
    first_ns: Option<u64>,
    /// The filter expression.
    expression: Option<String>,
    /// The filter, compiled for the link type of each known interface.
    filters: Vec<Filter>,
    /// The number of packets so far.
    passed: u64,
}

impl Selection {
    pub fn new(
        numbers: Option<PacketNumbers>,
        times: [Option<Time>; 2],
        expression: Option<String>,
    ) -> Self {
        let [from, until] = times;
        Self { numbers, from, until, first_ns: None, expression, filters: Vec::new(), passed: 0 }
    }

    /// Returns the filter's expression.
    pub fn expression(&self) -> Option<&str> {
        self.expression.as_deref()
    }

    /// Compiles the filter for new interfaces.
    ///
    /// # Errors
    /// The filter is invalid, or invalid for a link type.
    pub fn add_interfaces(&mut self, interfaces: &[Interface]) -> Result<()> {
        let Some(expression) = &self.expression else { return Ok(()) };
        for interface in &interfaces[self.filters.len()..] {
            let known = self.filters.iter().find(|it| it.link_type() == interface.link_type);
            let filter = match known {
                Some(filter) => filter.clone(),
                None => Filter::compile_for_file(expression, interface.link_type)?,
            };
            self.filters.push(filter);
        }
        Ok(())
    }

    /// Judges the next packet.
    pub fn judge(&mut self, packet: &Packet<'_>) -> Verdict {
        self.passed += 1;
        let meta = packet.meta();
        let first_ns = *self.first_ns.get_or_insert(meta.timestamp_ns);
        let is_early = self.from.is_some_and(|from| meta.timestamp_ns < from.ns(first_ns));
        let is_late = self.until.is_some_and(|until| meta.timestamp_ns >= until.ns(first_ns));
        if is_early || is_late || !self.is_numbered() {
            return Verdict::Excluded;
        }
        match self.filters.get(meta.interface as usize) {
            Some(filter) if !filter.matches(packet.head(), meta.wire_bytes) => Verdict::Filtered,
            _ => Verdict::Keep,
        }
    }

    /// Returns true if the number of the current packet is one to keep.
    fn is_numbered(&mut self) -> bool {
        let Some(PacketNumbers(ranges)) = &mut self.numbers else { return true };
        let past = ranges.iter().take_while(|range| *range.end() < self.passed).count();
        ranges.drain(..past);
        ranges.first().is_some_and(|range| range.contains(&self.passed))
    }

    /// Returns true if no later packet can be kept, because of its number.
    pub fn is_complete(&self) -> bool {
        let Some(PacketNumbers(ranges)) = &self.numbers else { return false };
        ranges.iter().all(|range| *range.end() <= self.passed)
    }
}

#[cfg(test)]
mod tests {
    use sluicegate::ring::Meta;

    use super::*;

    #[test]
    fn numbers_are_read() {
        let numbers = |ranges: &[RangeInclusive<u64>]| Some(PacketNumbers(ranges.to_vec()));
        for (text, expected) in [
            ("7", numbers(&[7..=7])),
            ("1-100,200-", numbers(&[1..=100, 200..=u64::MAX])),
            ("5, 2-3", numbers(&[2..=3, 5..=5])),
            ("1k-2k", numbers(&[1000..=2000])),
            ("0", None),
            ("3-2", None),
            ("-5", None),
            ("1,,2", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<PacketNumbers>().ok(), expected, "{text}");
        }
    }

    #[test]
    fn the_other_numbers_are_listed() {
        for (text, others) in [
            ("7", "1-6,8-"),
            ("1-100", "101-"),
            ("1,3", "2,4-"),
            ("1-100,200-", "101-199"),
            ("2-9,4-5,20", "1,10-19,21-"),
            ("1-", ""),
        ] {
            assert_eq!(text.parse::<PacketNumbers>().unwrap().others(), others, "{text}");
        }
    }

    #[test]
    fn times_are_read() {
        let at = |ns| Some(Time::At(ns));
        let second = 1_000_000_000;
        for (text, expected) in [
            ("1970-01-01T00:00:02Z", at(2 * second)),
            ("1970-01-01T02:00:02.5+02:00", at(2 * second + second / 2)),
            ("1970-01-01 00:00:02Z", at(2 * second)),
            ("1700000000.123456789", at(1_700_000_000_123_456_789)),
            ("+1m5s", Some(Time::After(Duration::from_secs(65)))),
            ("+0.25", Some(Time::After(Duration::from_millis(250)))),
            ("5s", None),
            ("-5", None),
            ("", None),
            ("1969-12-31T23:59:59Z", None),
            ("9999-01-01T00:00:00Z", None),
            ("1.2.3", None),
        ] {
            assert_eq!(text.parse::<Time>().ok(), expected, "{text}");
        }
        let local = "2026-11-20T21:43:33".parse::<Time>();
        assert!(matches!(local, Ok(Time::At(_))), "in the zone of this host: {local:?}");
    }

    #[test]
    fn packets_are_kept_by_number_and_time() {
        let judged = |numbers: Option<&str>, from: Option<&str>, until: Option<&str>| {
            let numbers = numbers.map(|text| text.parse().unwrap());
            let times = [from, until].map(|time| time.map(|text| text.parse().unwrap()));
            let mut selection = Selection::new(numbers, times, None);
            let mut kept = Vec::new();
            for number in 1..=10 {
                // The third packet was recorded late.
                let second = if number == 3 { 100 } else { 100 + number };
                let timestamp_ns = second * 1_000_000_000;
                let meta = Meta { timestamp_ns, ..Meta::default() };
                assert!(!selection.is_complete(), "before packet {number}");
                if selection.judge(&Packet::new(&meta, &[])) == Verdict::Keep {
                    kept.push(number);
                }
                if selection.is_complete() {
                    break;
                }
            }
            kept
        };
        assert_eq!(judged(Some("2-3,9-"), None, None), [2, 3, 9, 10]);
        assert_eq!(judged(Some("1-8,2-3,7"), None, None), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(judged(None, Some("+3s"), Some("+6s")), [4, 5, 6]);
        assert_eq!(judged(None, None, Some("102")), [1, 3], "the end is not part of it");
        assert_eq!(judged(None, Some("102"), None), [2, 4, 5, 6, 7, 8, 9, 10], "the start is");
        assert_eq!(judged(Some("4-5"), Some("105"), None), [5], "both apply");
    }
}
