//! Two reports: what moved by more than its spread.

use crate::ladder::Kind;
use crate::report::{Ladder, Report, StepReport};
use crate::statistics::Spread;

/// A step that both reports have, and that moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The ladder it belongs to.
    pub kind: Kind,
    /// The step, with what is particular about its setting.
    pub step: String,
    /// What moved: its ratio to the reference where both reports have one, else its rate.
    pub what: What,
    /// What it was.
    pub before: Spread,
    /// What it is.
    pub now: Spread,
}

/// What is compared of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Its rate, to that of the reference. Machines and their moods are out of it.
    Ratio,
    /// Its rate in Mpps: of the reference itself, whose ratio is always 1.
    Rate,
}

impl Moved {
    /// By how much: 0.1 is a tenth more than before.
    pub fn by(&self) -> f64 {
        self.now.median / self.before.median - 1.0
    }
}

/// What moved from one report to another, by more than the spreads of both cover; what moved most
/// comes first.
pub fn compare(before: &Report, now: &Report) -> Vec<Moved> {
    let mut moved: Vec<Moved> = now
        .ladders
        .iter()
        .filter_map(|ladder| {
            let other = before.ladders.iter().find(|other| other.ladder == ladder.ladder)?;
            Some(ladder.steps.iter().filter_map(|step| moved(ladder, other, step)))
        })
        .flatten()
        .collect();
    moved.sort_by(|a, b| b.by().abs().total_cmp(&a.by().abs()));
    moved
}

fn moved(ladder: &Ladder, before: &Ladder, now: &StepReport) -> Option<Moved> {
    let same = |step: &&StepReport| step.step == now.step && step.setting == now.setting;
    let old = before.steps.iter().find(same)?;
    let is_reference = now.step == ladder.reference || before.reference != ladder.reference;
    let (what, before, now_) = match (old.ratio, now.ratio) {
        (Some(before), Some(now)) if !is_reference => (What::Ratio, before, now),
        _ => (What::Rate, old.figures?.mpps, now.figures?.mpps),
    };
    let moved = Moved { kind: ladder.ladder, step: now.title(), what, before, now: now_ };
    (!before.overlaps(&now_) && before.median > 0.0).then_some(moved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::Figures;
    use crate::report::tests;

    fn spread(median: f64) -> Option<Spread> {
        Some(Spread { median, min: median * 0.9, max: median * 1.1 })
    }

    fn report(rates: &[(&str, f64, f64)]) -> Report {
        let steps: Vec<(&str, f64)> = rates.iter().map(|&(name, mpps, _)| (name, mpps)).collect();
        let mut report = tests::report(Kind::Tx, &steps);
        for (step, &(_, mpps, ratio)) in report.ladders[0].steps.iter_mut().zip(rates) {
            let mpps = spread(mpps).unwrap();
            step.figures = step.figures.map(|figures| Figures { mpps, ..figures });
            step.ratio = spread(ratio);
        }
        report
    }

    #[test]
    fn what_moved_by_more_than_its_spread_is_named_the_largest_first() {
        let before = report(&[("sendmmsg", 1.0, 1.0), ("AF_XDP", 2.0, 2.0), ("TX ring", 1.0, 1.0)]);
        let now = report(&[("sendmmsg", 0.5, 1.0), ("AF_XDP", 1.0, 2.1), ("TX ring", 0.1, 0.2)]);
        let moved = compare(&before, &now);
        let named: Vec<(&str, What)> =
            moved.iter().map(|moved| (moved.step.as_str(), moved.what)).collect();
        // AF_XDP is half as fast, but so is its reference: its ratio stayed.
        assert_eq!(named, [("TX ring, 60 B", What::Ratio), ("sendmmsg, 60 B", What::Rate)]);
        assert!((moved[0].by() + 0.8).abs() < 1e-9, "{}", moved[0].by());
    }

    #[test]
    fn nothing_moved_between_a_report_and_itself() {
        let report = report(&[("sendmmsg", 1.0, 1.0), ("AF_XDP", 2.0, 2.0)]);
        assert_eq!(compare(&report, &report), []);
    }
}
