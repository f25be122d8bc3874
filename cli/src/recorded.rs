//! The times of packets read from files.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::units::show_duration;

/// The first and last time of recorded packets, in ns since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    first_ns: u64,
    last_ns: u64,
}

impl Recorded {
    /// Adds a packet's time.
    #[inline]
    pub fn add(times: &mut Option<Self>, timestamp_ns: u64) {
        let Self { first_ns, last_ns } =
            times.unwrap_or(Self { first_ns: timestamp_ns, last_ns: timestamp_ns });
        let (first_ns, last_ns) = (first_ns.min(timestamp_ns), last_ns.max(timestamp_ns));
        *times = Some(Self { first_ns, last_ns });
    }

    /// Returns the times of two files' packets.
    pub fn with(self, other: Self) -> Self {
        Self {
            first_ns: self.first_ns.min(other.first_ns),
            last_ns: self.last_ns.max(other.last_ns),
        }
    }

    /// Returns the time from the first packet to the last.
    pub fn duration(self) -> Duration {
        Duration::from_nanos(self.last_ns - self.first_ns)
    }

    /// Formats the times for people, in local time.
    pub fn show(self) -> String {
        let [first, last] = [self.first_ns, self.last_ns].map(|ns| {
            let time = Timestamp::from_nanosecond(ns.into()).ok()?.to_zoned(TimeZone::system());
            Some((time.strftime("%Y-%m-%d").to_string(), time.strftime("%H:%M:%S.%6f").to_string()))
        });
        // Every u64 is a time before 2555.
        let (Some((day, first)), Some((last_day, last))) = (first, last) else {
            return String::new();
        };
        let last = if day == last_day { last } else { format!("{last_day} {last}") };
        format!("{} from {day} {first} to {last}", show_duration(self.duration()))
    }

    /// `{first, last, duration_s}`, in UTC.
    pub fn to_json(self) -> Value {
        let [first, last] = [self.first_ns, self.last_ns].map(|ns| {
            let time = Timestamp::from_nanosecond(ns.into()).ok();
            time.map(|time| format!("{time:.9}"))
        });
        json!({"first": first, "last": last, "duration_s": self.duration().as_secs_f64()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_and_the_latest_time_count_in_any_order() {
        let mut times = None;
        [3_500_000_000, 2_000_000_001, 3_000_000_000]
            .into_iter()
            .for_each(|ns| Recorded::add(&mut times, ns));
        let expected = json!({
            "first": "1970-01-01T00:00:02.000000001Z",
            "last": "1970-01-01T00:00:03.500000000Z",
            "duration_s": 1.499999999,
        });
        assert_eq!(times.unwrap().to_json(), expected);
        let largest = Recorded { first_ns: 0, last_ns: u64::MAX };
        assert!(largest.show().contains(" to 2554-"), "{}", largest.show());
    }
}
