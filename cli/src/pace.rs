//! How closely a sender kept its timetable: the rate asked for, and a histogram of how late packets were.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;
use sluicegate_traffic::rate::{Gaps, Unit};

use crate::units::{show_count, show_duration, show_percent, show_pps, show_rate};

/// How closely a sender followed the rate asked for, or the packets' times.
#[derive(Clone, Debug, Serialize)]
pub struct Paced {
    /// The rate asked for; `None` if packets have their own times.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub asked: Option<TargetRate>,
    /// How late the first packet of a burst was, against the timetable: half of them no later, and
    /// 99 of 100. In ns; 0 where no packet was due.
    pub late_p50_ns: u64,
    pub late_p99_ns: u64,
    /// How many were how late.
    pub histogram: Vec<Class>,
    /// Times it was too far behind to make up for it.
    pub restarts: u64,
}

/// A rate that was asked for.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TargetRate {
    /// The last that was asked for: packets a second, or bits of either layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_pps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_bps_l1: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_bps_l2: Option<f64>,
    /// How often another was asked for while it ran.
    pub target_changes: u64,
    /// Packets a second that were taken.
    pub achieved_pps: f64,
}

/// Packets of about the same lateness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Class {
    /// They were no later than this, in ns; later than those of the class before.
    pub le_ns: u64,
    pub packets: u64,
}

/// Where the lines of the text end: powers of two, at which classes end, too. What is behind the
/// last has its own line.
const LINES_NS: [u64; 7] = [1 << 7, 1 << 10, 1 << 13, 1 << 17, 1 << 20, 1 << 23, 1 << 27];
/// How long the longest bar is.
const BAR: u64 = 24;

impl TargetRate {
    /// Creates it from a rate in packets or bytes a second, as the unit says.
    pub fn of((rate, unit): (f64, Unit), changes: u64, achieved_pps: f64) -> Self {
        let bits = |layer| (unit == layer).then_some(rate * 8.0);
        Self {
            target_pps: (unit == Unit::Packet).then_some(rate),
            target_bps_l1: bits(Unit::BYTE_OF_LAYER1),
            target_bps_l2: bits(Unit::BYTE_OF_LAYER2),
            target_changes: changes,
            achieved_pps,
        }
    }
}

impl fmt::Display for TargetRate {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (rate, unit) = match (self.target_pps, self.target_bps_l1, self.target_bps_l2) {
            (Some(pps), ..) => (pps, Unit::Packet),
            (_, Some(bps), _) => (bps / 8.0, Unit::BYTE_OF_LAYER1),
            (.., bps) => (bps.unwrap_or(0.0) / 8.0, Unit::BYTE_OF_LAYER2),
        };
        f.write_str(&show_rate(rate, unit))
    }
}

impl Paced {
    /// Takes the rate asked for, if there was one, and how late packets were.
    pub fn of(asked: Option<TargetRate>, gaps: &Gaps, restarts: u64) -> Self {
        let late = |share| gaps.percentile(share).unwrap_or(0);
        let class = |(le_ns, packets)| Class { le_ns, packets };
        Self {
            asked,
            late_p50_ns: late(0.5),
            late_p99_ns: late(0.99),
            histogram: gaps.counts().map(class).collect(),
            restarts,
        }
    }

    /// Prints it for people.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if let Some(asked) = &self.asked {
            let changes = match asked.target_changes {
                0 => String::new(),
                1 => " at last, changed once".into(),
                times => format!(" at last, changed {} times", show_count(times)),
            };
            let achieved = show_pps(asked.achieved_pps);
            writeln!(out, "  asked for {asked}{changes}; sent {achieved}")?;
        }
        if self.histogram.is_empty() {
            return Ok(());
        }
        let late = |ns| show_duration(Duration::from_nanos(ns));
        let (half, most) = (late(self.late_p50_ns), late(self.late_p99_ns));
        let restarts = match self.restarts {
            0 => String::new(),
            times => format!(", begun anew {} times, too far behind", show_count(times)),
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

    /// The histogram in few lines, from the first that has packets to the last.
    fn lines(&self) -> Vec<(Option<u64>, u64)> {
        let ends = LINES_NS.iter().map(|&ns| Some(ns)).chain([None]);
        let line_of = |class: &Class| LINES_NS.iter().take_while(|&&ns| class.le_ns >= ns).count();
        let mut lines: Vec<_> = ends.map(|end| (end, 0)).collect();
        for class in &self.histogram {
            lines[line_of(class)].1 += class.packets;
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
    fn the_histogram_is_a_few_lines_with_bars() {
        let mut gaps = Gaps::default();
        (0..90).for_each(|_| gaps.add(100));
        (0..9).for_each(|_| gaps.add(1023));
        gaps.add(1_000_000);
        let paced = Paced::of(None, &gaps, 0);
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
        let counted: u64 = paced.histogram.iter().map(|class| class.packets).sum();
        assert_eq!((counted, paced.histogram.len()), (100, 3));
    }
}
