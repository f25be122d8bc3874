//! The accuracy of a sender: the requested rate, and a histogram of the packets' lateness.

use std::io::{self, Write};
use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use sluicegate_traffic::rate::{Gaps, Unit};

use crate::units::{show_count, show_duration, show_percent, show_rate};

/// The accuracy with which a sender followed the requested rate, or the packets' times.
#[derive(Clone, Debug)]
pub struct PacingResult {
    /// The requested rate; `None` if packets have their own times.
    pub target: Option<TargetRate>,
    /// The lateness of the first packet of each burst.
    pub late: Gaps,
    /// Times that it was too late to catch up.
    pub restarts: u64,
}

/// A requested rate.
#[derive(Clone, Copy, Debug)]
pub struct TargetRate {
    /// The last one, in packets or bytes per second.
    pub rate: (f64, Unit),
    /// The number of changes during the run.
    pub changes: u64,
    /// Packets accepted per second, and their bytes.
    pub achieved_pps: f64,
    pub achieved_bytes: f64,
    /// The time of sending.
    pub elapsed: Duration,
}

impl TargetRate {
    /// Returns the achieved rate in the unit of the requested one.
    fn achieved(&self) -> f64 {
        match self.rate.1 {
            Unit::Packet => self.achieved_pps,
            Unit::Byte { besides } => self.achieved_bytes + self.achieved_pps * f64::from(besides),
        }
    }
}

/// The upper ends of the text's lines: powers of two, which are also ends of classes. Later packets have a
/// separate line.
const LINES_NS: [u64; 7] = [1 << 7, 1 << 10, 1 << 13, 1 << 17, 1 << 20, 1 << 23, 1 << 27];
/// The share of a requested rate that nearly is that rate.
pub const NEARLY: f64 = 0.9;
/// The length of the longest bar.
const BAR: u64 = 24;

impl Serialize for PacingResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = json!({});
        if let Some(TargetRate { rate: (rate, unit), changes, achieved_pps, .. }) = self.target {
            let (name, rate) = match unit {
                Unit::Packet => ("target_pps", rate),
                Unit::BYTE_OF_LAYER2 => ("target_bps_l2", rate * 8.0),
                Unit::Byte { .. } => ("target_bps_l1", rate * 8.0),
            };
            object[name] = rate.into();
            object["target_changes"] = changes.into();
            object["achieved_pps"] = achieved_pps.into();
        }
        let class = |(le_ns, packets)| json!({"le_ns": le_ns, "packets": packets});
        object["late_p50_ns"] = self.late_ns(0.5).into();
        object["late_p99_ns"] = self.late_ns(0.99).into();
        object["histogram"] = self.late.counts().map(class).collect::<Value>();
        object["restarts"] = self.restarts.into();
        object.serialize(serializer)
    }
}

impl PacingResult {
    /// Adds the result of another sender by the same timetable.
    pub fn add(&mut self, other: &Self) {
        self.late.merge(&other.late);
        self.restarts += other.restarts;
        if let (Some(target), Some(other)) = (&mut self.target, other.target) {
            target.achieved_pps += other.achieved_pps;
            target.achieved_bytes += other.achieved_bytes;
        }
    }

    /// Describes a constant rate that was missed by far: less than [`NEARLY`] of it was achieved, and late packets
    /// are the cause, not the time around a short run.
    pub fn missed(&self) -> Option<String> {
        let target = self.target?;
        let (TargetRate { rate: (rate, unit), .. }, achieved) = (target, target.achieved());
        // A run that ends before its sender has to skip ahead is as late at its end as it is too long.
        let too_long_s = target.elapsed.as_secs_f64() * (1.0 - achieved / rate);
        let was_late = self.restarts > 0 || self.late_ns(1.0) as f64 * 1e-9 > too_long_s / 2.0;
        (achieved < NEARLY * rate && was_late).then(|| {
            let (asked, achieved) = (show_rate(rate, unit), show_rate(achieved, unit));
            format!(
                "asked for {asked}, but sent {achieved}; use more --threads, a faster port or method, or a lower \
                 --rate"
            )
        })
    }

    /// Returns the lateness that a share of the packets did not exceed, in ns; 0 if no packet was due.
    fn late_ns(&self, share: f64) -> u64 {
        self.late.percentile(share).unwrap_or(0)
    }

    /// Prints it for people.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if let Some(target) = self.target {
            let (TargetRate { changes, .. }, (rate, unit)) = (target, target.rate);
            let changes = match changes {
                0 => String::new(),
                1 => " at last, changed once".into(),
                times => format!(" at last, changed {} times", show_count(times)),
            };
            let (asked, achieved) = (show_rate(rate, unit), show_rate(target.achieved(), unit));
            writeln!(out, "  asked for {asked}{changes}; the port accepted {achieved}")?;
        }
        if self.late.count() == 0 {
            return Ok(());
        }
        let late = |share| show_duration(Duration::from_nanos(self.late_ns(share)));
        let (half, most) = (late(0.5), late(0.99));
        let restarts = match self.restarts {
            0 => String::new(),
            1 => ", 1 restart (too late to catch up)".into(),
            times => format!(", {} restarts (too late to catch up)", show_count(times)),
        };
        writeln!(out, "  late by {half} (p50), {most} (p99){restarts}")?;
        self.print_histogram(out)
    }

    fn print_histogram(&self, out: &mut impl Write) -> io::Result<()> {
        let lines = self.lines();
        let all = lines.iter().map(|(_, packets)| packets).sum::<u64>();
        let most = lines.iter().map(|(_, packets)| *packets).max().unwrap_or(0).max(1);
        for (end, packets) in lines {
            let label = match end {
                Some(ns) => format!("up to {}", show_duration(Duration::from_nanos(ns))),
                None => "later".into(),
            };
            // Every value above zero has a bar.
            let bar =
                "#".repeat(
                    (u128::from(packets) * u128::from(BAR)).div_ceil(u128::from(most)) as usize
                );
            let (count, share) = (show_count(packets), show_percent(packets, all));
            let share = share.to_string();
            let line = format!("    {label:<14}{count:>15}{share:>10}  {bar}");
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// Returns the histogram in a few lines, from the first to the last with packets.
    fn lines(&self) -> Vec<(Option<u64>, u64)> {
        let ends = LINES_NS.iter().map(|&ns| Some(ns)).chain([None]);
        let mut lines: Vec<_> = ends.map(|end| (end, 0)).collect();
        for (le_ns, packets) in self.late.counts() {
            lines[LINES_NS.iter().take_while(|&&ns| le_ns >= ns).count()].1 += packets;
        }
        while lines.last().is_some_and(|(_, packets)| *packets == 0) {
            lines.pop();
        }
        let empty = lines.iter().take_while(|(_, packets)| *packets == 0).count();
        lines.split_off(empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_achieved_rate_has_the_unit_of_the_requested_one() {
        // 1000 packets of 60 bytes a second.
        for (unit, text) in [
            (Unit::Packet, "asked for 2 kpps; the port accepted 1 kpps"),
            (Unit::BYTE_OF_LAYER1, "asked for 16 kbit/s (L1); the port accepted 672 kbit/s (L1)"),
            (Unit::BYTE_OF_LAYER2, "asked for 16 kbit/s (L2); the port accepted 480 kbit/s (L2)"),
        ] {
            let rate = (2e3, unit);
            let target = TargetRate {
                rate,
                changes: 0,
                achieved_pps: 1e3,
                achieved_bytes: 60e3,
                elapsed: Duration::ZERO,
            };
            let late = Gaps::default();
            let mut out = Vec::new();
            let paced = PacingResult { target: Some(target), late, restarts: 0 };
            paced.print(&mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap().trim(), text);
        }
    }

    #[test]
    fn a_rate_is_missed_by_far_if_the_sender_was_too_late_to_catch_up() {
        for (sentence, achieved_pps, restarts, late_ns, missed) in [
            ("half of it", 1e3, 1, 0, true),
            ("nearly all, after one delay", 1.9e3, 1, 0, false),
            ("a short run that was never late", 1e3, 0, 1000, false),
            ("a run that ended late before it had to skip", 1e3, 0, 5_000_000, true),
            ("a run that ended late by little", 1.9e3, 0, 500_000, false),
        ] {
            let rate = (2e3, Unit::Packet);
            let elapsed = Duration::from_millis(10);
            let target =
                TargetRate { rate, changes: 0, achieved_pps, achieved_bytes: 0.0, elapsed };
            let target = Some(target);
            let mut late = Gaps::default();
            late.add(late_ns);
            let paced = PacingResult { target, late, restarts };
            let text = paced.missed().unwrap_or_default();
            assert_eq!(
                text.starts_with("asked for 2 kpps, but sent 1 kpps; "),
                missed,
                "{sentence}"
            );
        }
    }

    #[test]
    fn the_histogram_is_a_few_lines_with_bars() {
        let mut gaps = Gaps::default();
        (0..90).for_each(|_| gaps.add(100));
        (0..9).for_each(|_| gaps.add(1023));
        gaps.add(1_000_000);
        let paced = PacingResult { target: None, late: gaps, restarts: 0 };
        let mut out = Vec::new();
        paced.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "  late by 103 ns (p50), 1.02 µs (p99)
    up to 128 ns               90      90 %  ########################
    up to 1.02 µs               9       9 %  ###
    up to 8.19 µs               0       0 %
    up to 131 µs                0       0 %
    up to 1.05 ms               1       1 %  #
";
        assert_eq!(text, expected);
        let object = serde_json::to_value(&paced).unwrap();
        let histogram = object["histogram"].as_array().unwrap();
        let counted: u64 = histogram.iter().map(|it| it["packets"].as_u64().unwrap()).sum();
        assert_eq!((counted, histogram.len()), (100, 3), "{object}");
    }
}
