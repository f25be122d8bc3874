//! Changes from one report to another that are larger than the spreads.

use crate::instructions::{HotLoop, Length, LoopUnit, VALGRIND};
use crate::measurement::Spread;
use crate::process::{SLUICE, missing};
use crate::report::{Report, StepReport, Suite};
use crate::suite::SuiteKind;

/// The smallest relevant change of a hot loop, as a share. Timers and signals cause smaller ones.
const MIN_CHANGE: f64 = 0.02;

/// A step or a hot loop that both reports have, and that moved; or a loop or a step of Sluice that fails now.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedResult {
    /// The suite of a step; none for a hot loop.
    pub kind: Option<SuiteKind>,
    /// The step with its parameters, or the loop.
    pub name: String,
    /// True for Sluice's own steps.
    pub ours: bool,
    /// The quantity that moved.
    pub what: Metric,
    /// Its earlier value.
    pub before: Spread,
    /// Its value now, or the reason why it failed.
    pub now: Result<Spread, String>,
}

/// The kinds of compared quantities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// A step's rate divided by that of the reference, if both reports have it. It does not depend on the
    /// machine's load.
    Ratio,
    /// A step's rate in Mpps, for the reference itself and for steps without a ratio.
    Rate,
    /// The length of a hot loop, which does not depend on the load of the machine.
    Instructions,
}

impl ChangedResult {
    /// The relative change: 0.1 is a tenth more than before, -1 is a failure.
    pub fn by(&self) -> f64 {
        self.now.as_ref().map_or(-1.0, |now| now.median / self.before.median - 1.0)
    }

    /// Returns true if Sluice became slower. A lower rate alone may be caused by the machine, and other
    /// programs' steps do not count. A step of Sluice or a loop that ran before and fails now counts as slower.
    pub fn is_worse(&self) -> bool {
        match (&self.now, self.what) {
            (Err(_), _) => true,
            (_, Metric::Ratio) => self.ours && self.by() < 0.0,
            (_, Metric::Rate) => false,
            (_, Metric::Instructions) => self.by() > 0.0,
        }
    }
}

/// Lists the changes from one report to another: steps that moved by more than both spreads cover, hot
/// loops by more than 2 %. Sluice's steps and loops that failed come first, then the largest changes.
pub fn compare(before: &Report, now: &Report) -> Vec<ChangedResult> {
    let mut moved: Vec<ChangedResult> = now
        .suites
        .iter()
        .filter_map(|suite| {
            let other = before.suites.iter().find(|other| other.suite == suite.suite)?;
            Some(suite.steps.iter().filter_map(|step| moved(suite, other, step)))
        })
        .flatten()
        .collect();
    moved.extend(now.loops.iter().filter_map(|it| changed(before, now, it)));
    // A half is as large a change as a double.
    let most = |it: &ChangedResult| (1.0 + it.by()).ln().abs();
    moved.sort_by(|a, b| most(b).total_cmp(&most(a)));
    moved
}

fn moved(suite: &Suite, before: &Suite, step: &StepReport) -> Option<ChangedResult> {
    let same = |old: &&StepReport| old.step == step.step && old.setting == step.setting;
    let old = before.steps.iter().find(same)?;
    let of = |what, before, now| {
        let (kind, name, ours) = (Some(suite.suite), step.title(), step.by == SLUICE);
        Some(ChangedResult { kind, name, ours, what, before, now })
    };
    if step.is_broken() {
        return of(Metric::Rate, old.figures?.mpps, Err(step.why_not().to_owned()));
    }
    let is_reference = step.step == suite.reference || before.reference != suite.reference;
    let (what, before, now) = match (old.ratio, step.ratio) {
        (Some(before), Some(now)) if !is_reference => (Metric::Ratio, before, now),
        _ => (Metric::Rate, old.figures?.mpps, step.figures?.mpps),
    };
    if before.overlaps(&now) || before.median <= 0.0 { None } else { of(what, before, Ok(now)) }
}

fn changed(before: &Report, now: &Report, it: &HotLoop) -> Option<ChangedResult> {
    // Each kernel translates a program in its own way.
    if it.of == LoopUnit::Program && before.machine.kernel != now.machine.kernel {
        return None;
    }
    let old = before.loops.iter().find(|old| old.name == it.name && old.of == it.of)?;
    let exact = |Length { instructions: n, .. }| Spread { median: n, min: n, max: n };
    let before = exact(old.length?);
    let now = it.length.map(exact).ok_or_else(|| it.failed.clone().unwrap_or_default());
    let has_tool = now != Err(missing(VALGRIND));
    let (name, what) = (it.name.clone(), Metric::Instructions);
    let moved = ChangedResult { kind: None, name, ours: true, what, before, now };
    (before.median > 0.0 && has_tool && moved.by().abs() > MIN_CHANGE).then_some(moved)
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
        let mut report = tests::report(SuiteKind::Tx, &steps);
        for (step, &(_, mpps, ratio)) in report.suites[0].steps.iter_mut().zip(rates) {
            let mpps = spread(mpps).unwrap();
            step.figures = step.figures.map(|figures| Figures { mpps, ..figures });
            step.ratio = spread(ratio);
            step.by = SLUICE.into();
        }
        report
    }

    #[test]
    fn changes_beyond_the_spreads_are_listed_largest_first() {
        let before = report(&[("sendmmsg", 1.0, 1.0), ("AF_XDP", 2.0, 2.0), ("TX ring", 1.0, 1.0)]);
        let now = report(&[("sendmmsg", 0.5, 1.0), ("AF_XDP", 1.0, 2.1), ("TX ring", 0.1, 0.2)]);
        let moved = compare(&before, &now);
        let named: Vec<(&str, Metric)> =
            moved.iter().map(|moved| (moved.name.as_str(), moved.what)).collect();
        // AF_XDP is half as fast, but so is its reference: its ratio stayed.
        assert_eq!(named, [("TX ring, 60 B", Metric::Ratio), ("sendmmsg, 60 B", Metric::Rate)]);
        assert!((moved[0].by() + 0.8).abs() < 1e-9, "{}", moved[0].by());
        // The machine may be the cause of the slower reference.
        assert_eq!(moved.iter().map(ChangedResult::is_worse).collect::<Vec<_>>(), [true, false]);
        let doubled =
            report(&[("sendmmsg", 1.0, 1.0), ("AF_XDP", 5.0, 5.0), ("TX ring", 0.1, 0.1)]);
        let moved = compare(&before, &doubled);
        assert_eq!(moved[0].name, "TX ring, 60 B", "a tenth is further off than 2.5 times");
        assert!(compare(&now, &before).iter().all(|moved| !moved.is_worse()));
        let mut others = now;
        others.suites[0].steps.iter_mut().for_each(|step| step.by = "trafgen".into());
        assert!(compare(&before, &others).iter().all(|moved| !moved.is_worse()), "a peer's");
    }

    #[test]
    fn a_step_of_sluice_s_own_that_cannot_be_run_any_more_is_worse() {
        let before = report(&[("sendmmsg", 1.0, 1.0), ("AF_XDP", 2.0, 2.0)]);
        for (sentence, by, failed, lacks, named) in [
            ("it fails", SLUICE, Some("no room"), false, true),
            ("a kernel that has it not", SLUICE, Some("live frames (Linux 5.18)"), true, false),
            ("it had no turn", SLUICE, None, false, false),
            ("a peer's", "trafgen", Some("trafgen is not installed"), false, false),
        ] {
            let mut now = before.clone();
            let step = &mut now.suites[0].steps[1];
            (step.by, step.figures, step.ratio, step.lacks) = (by.into(), None, None, lacks);
            step.failed = failed.map(str::to_owned);
            let moved = compare(&before, &now);
            assert_eq!(moved.len(), usize::from(named), "{sentence}: {moved:?}");
            assert!(moved.iter().all(ChangedResult::is_worse), "{sentence}");
            assert!(moved.iter().all(|it| it.now == Err("no room".into())), "{sentence}");
            assert_eq!(compare(&now, &now), [], "{sentence}: as before");
            assert_eq!(compare(&now, &before), [], "{sentence}: it has got better");
        }
        let mut now = report(&[("sendmmsg", 1.0, 1.0), ("AF_XDP", 2.0, 0.1)]);
        let step = &mut now.suites[0].steps[0];
        (step.figures, step.failed) = (None, Some("no room".into()));
        let moved = compare(&before, &now);
        assert_eq!(moved[0].name, "sendmmsg, 60 B", "nothing is further off");
        assert_eq!(moved.len(), 2);
    }

    #[test]
    fn a_hot_loop_that_has_become_longer_is_worse() {
        let of = |loops: &[(&str, LoopUnit, f64)], kernel: &str| {
            let it = |&(name, of, instructions): &(&str, LoopUnit, f64)| HotLoop {
                name: name.into(),
                command: String::new(),
                of,
                length: Some(Length { instructions, bytes: None, ns: None }),
                failed: None,
            };
            let mut report = report(&[]);
            report.machine.kernel = kernel.into();
            report.loops = loops.iter().map(it).collect();
            report
        };
        let before = [("receive", LoopUnit::Packet, 50.0), ("claim", LoopUnit::Program, 100.0)];
        for (sentence, receive, claim, kernel, named) in [
            ("a timer's share", 50.9, 100.0, "6.18", &[][..]),
            ("longer", 52.0, 120.0, "6.18", &[("claim", true), ("receive", true)]),
            ("shorter", 40.0, 100.0, "6.18", &[("receive", false)]),
            ("another kernel's programs are its own", 52.0, 120.0, "6.1", &[("receive", true)]),
        ] {
            let now = [("receive", LoopUnit::Packet, receive), ("claim", LoopUnit::Program, claim)];
            let moved = compare(&of(&before, "6.18"), &of(&now, kernel));
            let found: Vec<_> = moved.iter().map(|it| (it.name.as_str(), it.is_worse())).collect();
            assert_eq!(found, named, "{sentence}");
            assert!(moved.iter().all(|it| it.kind.is_none() && it.what == Metric::Instructions));
        }
    }

    #[test]
    fn a_hot_loop_that_cannot_be_counted_any_more_is_worse() {
        let of = |length, failed: Option<String>| {
            let (name, command) = ("receive".into(), String::new());
            let it = HotLoop { name, command, of: LoopUnit::Packet, length, failed };
            Report { loops: vec![it], ..report(&[]) }
        };
        let before = of(Some(Length { instructions: 50.0, bytes: None, ns: None }), None);
        let failed = of(None, Some("no room".into()));
        let moved = compare(&before, &failed);
        assert_eq!(moved.len(), 1);
        assert!(moved[0].is_worse() && moved[0].now == Err("no room".into()));
        assert_eq!(compare(&before, &of(None, Some(missing(VALGRIND)))), []);
        assert_eq!(compare(&failed, &failed), [], "as before");
        assert_eq!(compare(&failed, &before), [], "it has got better");
    }

    #[test]
    fn nothing_moved_between_a_report_and_itself() {
        let report = report(&[("sendmmsg", 1.0, 1.0), ("AF_XDP", 2.0, 2.0)]);
        assert_eq!(compare(&report, &report), []);
    }
}
