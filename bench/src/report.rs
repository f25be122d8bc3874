//! Report of a bench: the contract of its JSON (docs/commands/bench.md), written and read back.

use serde::{Deserialize, Serialize};
use sluicegate::error;

use crate::instructions::{Counted, HotLoop};
use crate::machine::Machine;
use crate::measurement::{Explanation, Figures, Measurement};
use crate::observer::Failure;
use crate::process::SLUICE;
use crate::rounds::{Bench, Measured, Results};
use crate::statistics::Spread;
use crate::step::Setting;
use crate::suite::SuiteKind;
use crate::suite::peers::Presence;

/// Report of a bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// "bench".
    pub command: String,
    /// The version of Sluice.
    pub version: String,
    /// When it began, UTC.
    pub date: String,
    /// Where it ran.
    pub machine: Machine,
    /// Rounds that were wanted.
    pub rounds: u32,
    /// Seconds that packets were sent in each turn.
    pub seconds: f64,
    /// False where it was stopped before every step had had all its turns.
    pub complete: bool,
    /// Notes on the whole run, such as why it has no causes.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// Others' programs, those that are missing too; empty where they were not wanted.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub peers: Vec<Presence>,
    /// The suites.
    pub suites: Vec<Suite>,
    /// How long the hot loops are; empty where that was not looked at.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub loops: Vec<HotLoop>,
}

/// A suite, from its lowest step to its highest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suite {
    /// Which.
    pub suite: SuiteKind,
    /// Heading of the suite.
    pub title: String,
    /// The step that ratios are to, at the same size.
    pub reference: String,
    /// Its steps.
    pub steps: Vec<StepReport>,
}

/// A step with what its turns showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Its name.
    pub step: String,
    /// Owner of the program: "sluice", "linux", or a peer's name.
    pub by: String,
    /// Shell command that does the same, at its end of the testbed.
    pub command: String,
    /// Settings of the run.
    #[serde(flatten)]
    pub setting: Setting,
    /// Results of its turns; absent if all failed.
    #[serde(flatten)]
    pub figures: Option<Figures<Spread>>,
    /// Its rate, to the reference's in the same round.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ratio: Option<Spread>,
    /// Work of each CPU in the round of the median rate; causes of the last round.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// Why turns brought nothing, the last of them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed: Option<String>,
    /// That is for want of a privilege, or of something that this kernel has not.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub lacks: bool,
    /// The turns that brought something.
    pub turns: Vec<Turn>,
}

/// A turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The round's number, from 1.
    pub round: u32,
    /// Result of the turn.
    #[serde(flatten)]
    pub measurement: Measurement,
}

impl Report {
    /// Of what a bench has brought. `date` is when it began.
    pub fn new(bench: &Bench, results: &Results, peers: Vec<Presence>, date: String) -> Self {
        let of = |kind: SuiteKind| {
            let measured: Vec<&Measured> =
                results.measured.iter().filter(|measured| measured.kind == kind).collect();
            suite(kind, &measured)
        };
        Self {
            rounds: bench.rounds,
            seconds: bench.time.as_secs_f64(),
            complete: results.complete,
            notes: results.notes.clone(),
            peers,
            suites: bench.kinds.iter().copied().map(of).collect(),
            ..Self::empty(date)
        }
    }

    /// The step of this name; of several settings the first, which is the plainest.
    pub fn step(&self, kind: SuiteKind, name: &str) -> Option<&StepReport> {
        let suites = self.suites.iter().filter(|suite| suite.suite == kind);
        suites.flat_map(|suite| &suite.steps).find(|step| step.step == name)
    }

    /// Of nothing yet. `date` is when it began.
    pub fn empty(date: String) -> Self {
        Self {
            command: "bench".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            date,
            machine: Machine::here(),
            rounds: 0,
            seconds: 0.0,
            complete: true,
            notes: vec![],
            peers: vec![],
            suites: vec![],
            loops: vec![],
        }
    }

    /// Adds what was counted of hot loops.
    pub fn add(&mut self, counted: Counted) {
        self.complete &= counted.complete;
        self.loops.extend(counted.loops);
    }
}

fn suite(kind: SuiteKind, measured: &[&Measured]) -> Suite {
    // A reference with several settings of one size: the first, which is the plainest.
    let reference = |size: u32| {
        let is = |it: &&&Measured| it.step.name == kind.reference() && it.step.setting.size == size;
        measured.iter().find(is).map_or_else(Vec::new, |reference| rates(&turns(reference)))
    };
    let step = |it: &&Measured| StepReport::of(it, &reference(it.step.setting.size));
    Suite {
        suite: kind,
        title: kind.title().into(),
        reference: kind.reference().into(),
        steps: measured.iter().map(step).collect(),
    }
}

/// The turns of a step that brought something.
fn turns(measured: &Measured) -> Vec<Turn> {
    let turn = |(round, turn): &(u32, Result<Measurement, Failure>)| {
        Some(Turn { round: *round, measurement: turn.as_ref().ok()?.clone() })
    };
    measured.turns.iter().filter_map(turn).collect()
}

/// The rates of turns, by round.
pub(crate) fn rates(turns: &[Turn]) -> Vec<(u32, f64)> {
    turns.iter().map(|turn| (turn.round, turn.measurement.figures.mpps)).collect()
}

impl StepReport {
    /// Its name, with all that is particular about its setting: "recvmmsg, 60 B, batches of 8".
    pub fn title(&self) -> String {
        self.setting.title(&self.step)
    }

    /// Why it has no figures.
    pub fn why_not(&self) -> &str {
        self.failed.as_deref().unwrap_or("no turn was over")
    }

    /// Returns true if a step of Sluice failed although the kernel has every feature it needs.
    pub fn is_broken(&self) -> bool {
        self.by == SLUICE && self.figures.is_none() && self.failed.is_some() && !self.lacks
    }

    fn of(measured: &Measured, reference: &[(u32, f64)]) -> Self {
        let Measured { step, turns: all, .. } = measured;
        let turns = turns(measured);
        let figures: Vec<Figures<f64>> = turns.iter().map(|it| it.measurement.figures).collect();
        let explained = |it: &&Turn| !it.measurement.explanation.causes.is_empty();
        let explanation = turns.iter().find(explained).map(|it| it.measurement.explanation.clone());
        let cpus = middle(&turns).map_or_else(Vec::new, |it| it.explanation.cpus.clone());
        let failed = all.iter().rev().find_map(|(_, turn)| turn.as_ref().err());
        Self {
            step: step.name.clone(),
            by: step.by.into(),
            command: step.command(),
            setting: step.setting,
            figures: Figures::over(&figures),
            ratio: Spread::of_ratios(&rates(&turns), reference),
            explanation: Explanation { cpus, ..explanation.unwrap_or_default() },
            failed: failed.map(Failure::to_string),
            lacks: failed.and_then(Failure::kind) == Some(error::Kind::Privilege),
            turns,
        }
    }
}

/// The turn whose rate is the median, or the one below it.
fn middle(turns: &[Turn]) -> Option<&Measurement> {
    let mut order: Vec<&Measurement> = turns.iter().map(|turn| &turn.measurement).collect();
    order.sort_by(|a, b| a.figures.mpps.total_cmp(&b.figures.mpps));
    order.get(order.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::step::{Counter, Destination, Method, Reception, Step};

    /// A report of one round: steps by name, with their rates.
    pub fn report(kind: SuiteKind, steps: &[(&str, f64)]) -> Report {
        let steps: Vec<Measured> =
            steps.iter().map(|&(name, mpps)| measured(name, &[(1, mpps)])).collect();
        Report {
            rounds: 1,
            seconds: 1.0,
            suites: vec![suite(kind, &steps.iter().collect::<Vec<_>>())],
            ..Report::empty("2026-11-22T07:00:00Z".into())
        }
    }

    fn measurement(mpps: f64) -> Measurement {
        let figures = Figures { mpps, ..Figures::default() };
        Measurement { figures, ..Measurement::default() }
    }

    fn measured(name: &str, rates: &[(u32, f64)]) -> Measured {
        let setting = Setting { size: 60, queues: 1, cores: 1, ..Setting::default() };
        let method = Method::Receive(Reception::counted(Counter::Xdp, Destination::Host));
        let turn = |&(round, mpps)| (round, Ok(measurement(mpps)));
        Measured {
            kind: SuiteKind::Drop,
            step: Step::new("linux", name, setting, method),
            turns: rates.iter().map(turn).collect(),
        }
    }

    #[test]
    fn a_step_is_compared_with_the_reference_round_by_round() {
        let reference = measured("no listener", &[(1, 2.0), (2, 1.0), (3, 4.0)]);
        let mut other = measured("tc", &[(1, 4.0), (2, 2.0)]);
        other.turns.push((3, Err(Failure::of("out of luck"))));
        let suite = suite(SuiteKind::Drop, &[&reference, &other]);
        assert_eq!(suite.steps[0].ratio.unwrap().median, 1.0);
        let step = &suite.steps[1];
        assert_eq!(step.ratio, Some(Spread { median: 2.0, min: 2.0, max: 2.0 }));
        assert_eq!(step.failed.as_deref(), Some("out of luck"), "a turn that failed is not hidden");
        assert_eq!((step.turns.len(), step.lacks), (2, false));
    }

    #[test]
    fn what_this_kernel_has_not_is_told_apart_from_what_fails() {
        let mut step = measured("live frames", &[]);
        let reason = "sluice ended: sending live frames (Linux 5.18) is not available".to_owned();
        step.turns.push((1, Err(Failure::Step { kind: error::Kind::Privilege, reason })));
        let suite = suite(SuiteKind::Tx, &[&step]);
        assert!(suite.steps[0].lacks && suite.steps[0].figures.is_none());
    }

    #[test]
    fn the_turn_in_the_middle_is_one_that_was() {
        let turns = |rates: &[f64]| -> Vec<Turn> {
            let turn = |(at, &mpps): (usize, &f64)| Turn {
                round: at as u32,
                measurement: measurement(mpps),
            };
            rates.iter().enumerate().map(turn).collect()
        };
        assert_eq!(middle(&turns(&[3.0, 1.0, 2.0])).unwrap().figures.mpps, 2.0);
        assert_eq!(middle(&turns(&[3.0, 1.0])).unwrap().figures.mpps, 1.0);
        assert_eq!(middle(&[]), None);
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let report = report(SuiteKind::Drop, &[("no listener", 0.5)]);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
