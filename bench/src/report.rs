//! Report of a bench: the contract of its JSON (docs/commands/bench.md), written and read back.

use std::fmt::{self, Display};
use std::fs;

use serde::{Deserialize, Serialize};
use sluicegate::error;

use crate::instructions::{Counted, HotLoop};
use crate::measurement::{Explanation, Figures, Measurement, Spread, of_share, short};
use crate::observer::Failure;
use crate::process::SLUICE;
use crate::step::{Setting, Step};
use crate::suite::SuiteKind;
use crate::suite::peers::Presence;

/// Report of a bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// "bench".
    pub command: String,
    /// The version of Sluice.
    pub version: String,
    /// Its start, UTC.
    pub date: String,
    /// The machine it ran on.
    pub machine: Machine,
    /// Requested rounds.
    pub rounds: u32,
    /// Seconds that packets were sent in each turn.
    pub seconds: f64,
    /// False if it was stopped before every step had all its turns.
    pub complete: bool,
    /// Notes on the whole run, such as why it has no causes.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// Peers, installed or not; empty if they were not requested.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub peers: Vec<Presence>,
    /// The suites.
    pub suites: Vec<Suite>,
    /// The hot loops; empty if they were not counted.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub loops: Vec<HotLoop>,
}

/// A suite, from its lowest step to its highest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suite {
    /// Its name.
    pub suite: SuiteKind,
    /// Heading of the suite.
    pub title: String,
    /// The step that the others are compared with, at the same size.
    pub reference: String,
    /// Its steps.
    pub steps: Vec<StepReport>,
}

/// A step and the results of its turns.
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
    /// Its rate divided by the reference's of the same round.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ratio: Option<Spread>,
    /// Work of each CPU in the round of the median rate; causes of the last round.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// The reason of the last failed turn.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed: Option<String>,
    /// True if it failed for lack of a privilege, a kernel feature or a program.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub lacks: bool,
    /// The turns with a result.
    pub turns: Vec<Turn>,
}

/// A turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The round's number, from 1.
    pub round: u32,
    /// Its result.
    #[serde(flatten)]
    pub measurement: Measurement,
}

/// The results of a step's turns: by the round's number, a measurement or the reason why there is none.
pub type Outcomes = Vec<(u32, Result<Measurement, Failure>)>;

impl Report {
    /// A report without results. `date` is its start.
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

    /// The step of this name; the first of several settings, which is the plainest.
    pub fn step(&self, kind: SuiteKind, name: &str) -> Option<&StepReport> {
        let suites = self.suites.iter().filter(|suite| suite.suite == kind);
        suites.flat_map(|suite| &suite.steps).find(|step| step.step == name)
    }

    /// Adds the counts of hot loops.
    pub fn add(&mut self, counted: Counted) {
        self.complete &= counted.complete;
        self.loops.extend(counted.loops);
    }
}

impl Suite {
    /// Compares steps with the reference of the same size; if that has several settings, with the first, which
    /// is the plainest.
    pub fn of(kind: SuiteKind, steps: &[(Step, Outcomes)]) -> Self {
        let mut steps: Vec<_> = steps.iter().map(|(it, turns)| StepReport::of(it, turns)).collect();
        let references: Vec<(u32, Vec<(u32, f64)>)> = steps
            .iter()
            .filter(|it| it.step == kind.reference())
            .map(|it| (it.setting.size, rates(&it.turns)))
            .collect();
        for it in &mut steps {
            let reference = references.iter().find(|(size, _)| *size == it.setting.size);
            it.ratio = reference.and_then(|(_, to)| Spread::of_ratios(&rates(&it.turns), to));
        }
        Self { suite: kind, title: kind.title().into(), reference: kind.reference().into(), steps }
    }
}

/// The rates of turns, by round.
pub(crate) fn rates(turns: &[Turn]) -> Vec<(u32, f64)> {
    turns.iter().map(|turn| (turn.round, turn.measurement.figures.mpps)).collect()
}

impl StepReport {
    /// Its name and parameters: "recvmmsg, 60 B, batches of 8".
    pub fn title(&self) -> String {
        self.setting.title(&self.step)
    }

    /// Returns the reason why it has no figures.
    pub fn why_not(&self) -> &str {
        self.failed.as_deref().unwrap_or("no turn was over")
    }

    /// Returns true if a step of Sluice failed although nothing that it needs is missing.
    pub fn is_broken(&self) -> bool {
        self.by == SLUICE && self.figures.is_none() && self.failed.is_some() && !self.lacks
    }

    /// Its ratio, its loss and its CPU time per packet as text; `none` if one was not measured.
    pub fn cells(&self, none: &str) -> [String; 3] {
        let of = |figure: fn(Figures<Spread>) -> Option<Spread>| self.figures.and_then(figure);
        let ratio = self.ratio.map(|it| short(it.median));
        let lost = of(|it| it.lost).map(|it| of_share(it.median, 1));
        let cpu_ns = of(|it| it.cpu_ns).map(|it| format!("{:.0}", it.median));
        [ratio, lost, cpu_ns].map(|text| text.unwrap_or_else(|| none.to_owned()))
    }

    fn of(step: &Step, outcomes: &Outcomes) -> Self {
        let turn = |(round, turn): &(u32, Result<Measurement, Failure>)| {
            Some(Turn { round: *round, measurement: turn.as_ref().ok()?.clone() })
        };
        let turns: Vec<Turn> = outcomes.iter().filter_map(turn).collect();
        let figures: Vec<Figures<f64>> = turns.iter().map(|it| it.measurement.figures).collect();
        let mut explanations = turns.iter().map(|it| &it.measurement.explanation);
        let explained =
            explanations.find(|it| it.doubt.is_some() || !it.causes.is_empty()).cloned();
        let cpus = median_turn(&turns).map_or_else(Vec::new, |it| it.explanation.cpus.clone());
        let failed = outcomes.iter().rev().find_map(|(_, turn)| turn.as_ref().err());
        Self {
            step: step.name.clone(),
            by: step.by.into(),
            command: step.command(),
            setting: step.setting,
            figures: Figures::over(&figures),
            ratio: None,
            explanation: Explanation { cpus, ..explained.unwrap_or_default() },
            failed: failed.map(Failure::to_string),
            lacks: failed.and_then(Failure::kind) == Some(error::ErrorKind::Privilege),
            turns,
        }
    }
}

/// The turn with the median rate, or the one below it.
fn median_turn(turns: &[Turn]) -> Option<&Measurement> {
    let mut order: Vec<&Measurement> = turns.iter().map(|turn| &turn.measurement).collect();
    order.sort_by(|a, b| a.figures.mpps.total_cmp(&b.figures.mpps));
    order.get(order.len().saturating_sub(1) / 2).copied()
}

/// The machine of a bench: the properties that affect results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// CPUs in use.
    pub cpus: u32,
    /// The CPU model; empty if the kernel does not name it.
    pub model: String,
    /// True if the CPU reports a hypervisor.
    pub virtual_machine: bool,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// Reads the properties of this machine.
    pub fn here() -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self { kernel: kernel.trim().into(), ..Self::of(&cpuinfo) }
    }

    fn of(cpuinfo: &str) -> Self {
        let values = |key: &str| {
            let key = key.to_owned();
            cpuinfo.lines().filter_map(move |line| {
                let (name, value) = line.split_once(':')?;
                (name.trim() == key).then(|| value.trim())
            })
        };
        let flags = values("flags").next().unwrap_or_default();
        Self {
            cpus: values("processor").count() as u32,
            model: values("model name").next().unwrap_or_default().into(),
            virtual_machine: flags.split_whitespace().any(|flag| flag == "hypervisor"),
            kernel: String::new(),
        }
    }
}

/// "2 CPUs (AMD EPYC, virtual), Linux 6.18".
impl Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpus, model, virtual_machine, kernel } = self;
        let kind = if *virtual_machine { ", virtual" } else { "" };
        write!(f, "{cpus} CPUs ({model}{kind}), Linux {kernel}")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::step::{Counter, Destination, Method, Reception};

    /// A report of one round: steps by name, with their rates.
    pub fn report(kind: SuiteKind, steps: &[(&str, f64)]) -> Report {
        let steps: Vec<_> =
            steps.iter().map(|&(name, mpps)| measured(name, &[(1, mpps)])).collect();
        Report {
            rounds: 1,
            seconds: 1.0,
            suites: vec![Suite::of(kind, &steps)],
            ..Report::empty("2026-11-22T07:00:00Z".into())
        }
    }

    fn measurement(mpps: f64) -> Measurement {
        let figures = Figures { mpps, ..Figures::default() };
        Measurement { figures, ..Measurement::default() }
    }

    fn measured(name: &str, rates: &[(u32, f64)]) -> (Step, Outcomes) {
        let setting = Setting { size: 60, queues: 1, cores: 1, ..Setting::default() };
        let method = Method::Receive(Reception {
            program: None,
            counter: Some(Counter::Xdp),
            to: Destination::Host,
        });
        let turn = |&(round, mpps)| (round, Ok(measurement(mpps)));
        let turns = rates.iter().map(turn).collect();
        (Step::new("linux", name, setting, method), turns)
    }

    #[test]
    fn a_step_is_compared_with_the_reference_round_by_round() {
        let reference = measured("no listener", &[(1, 2.0), (2, 1.0), (3, 4.0)]);
        let mut other = measured("tc", &[(1, 4.0), (2, 2.0)]);
        other.1.push((3, Err(Failure::of("out of luck"))));
        let suite = Suite::of(SuiteKind::Drop, &[reference, other]);
        assert_eq!(suite.steps[0].ratio.unwrap().median, 1.0);
        let step = &suite.steps[1];
        assert_eq!(step.ratio, Some(Spread { median: 2.0, min: 2.0, max: 2.0 }));
        assert_eq!(step.failed.as_deref(), Some("out of luck"), "a turn that failed is not hidden");
        assert_eq!((step.turns.len(), step.lacks), (2, false));
    }

    #[test]
    fn a_missing_kernel_feature_is_no_failure() {
        let mut step = measured("live frames", &[]);
        let reason = "sluice ended: sending live frames (Linux 5.18) is not available".to_owned();
        step.1.push((1, Err(Failure::Step { kind: error::ErrorKind::Privilege, reason })));
        let suite = Suite::of(SuiteKind::Tx, &[step]);
        assert!(suite.steps[0].lacks && suite.steps[0].figures.is_none());
    }

    #[test]
    fn the_median_turn_is_one_of_the_turns() {
        let turns = |rates: &[f64]| -> Vec<Turn> {
            let turn = |(at, &mpps): (usize, &f64)| Turn {
                round: at as u32,
                measurement: measurement(mpps),
            };
            rates.iter().enumerate().map(turn).collect()
        };
        assert_eq!(median_turn(&turns(&[3.0, 1.0, 2.0])).unwrap().figures.mpps, 2.0);
        assert_eq!(median_turn(&turns(&[3.0, 1.0])).unwrap().figures.mpps, 1.0);
        assert_eq!(median_turn(&[]), None);
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let report = report(SuiteKind::Drop, &[("no listener", 0.5)]);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }

    #[test]
    fn the_kernel_describes_the_machine() {
        let text = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu hypervisor\n\n\
                    processor\t: 1\nmodel name\t: A CPU\nflags\t\t: fpu\n";
        let machine = Machine::of(text);
        let expected = Machine {
            cpus: 2,
            model: "A CPU".into(),
            virtual_machine: true,
            kernel: String::new(),
        };
        assert_eq!(machine, expected);
        let shown = Machine { kernel: "6.18".into(), ..machine }.to_string();
        assert_eq!(shown, "2 CPUs (A CPU, virtual), Linux 6.18");
        assert!(!Machine::here().kernel.is_empty());
    }
}
