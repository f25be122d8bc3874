//! Rounds: every step has a turn in each, so that slow phases of the machine affect all steps alike.

use std::collections::HashMap;
use std::time::Duration;

use sluicegate::error::Error;

use crate::cpu_distance::CpuDistance;
use crate::measure::TurnContext;
use crate::observer::{BenchObserver, Failure, Progress};
use crate::profile;
use crate::report::{Outcomes, Report, Suite};
use crate::step::{Setting, Step};
use crate::suite::{self, SuiteKind, Sweep, peers};
use crate::testbed::{Cpus, Side, Testbed, TestbedConfig};

/// The longest frame that an MTU of 1500 allows.
const MAX_ORDINARY: u32 = 1514;

/// The plan of a bench.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// The suites.
    pub kinds: Vec<SuiteKind>,
    /// Selects steps by name; all if absent.
    pub only: Option<fn(SuiteKind, &str) -> bool>,
    /// Include peers.
    pub with_peers: bool,
    /// Number of rounds.
    pub rounds: u32,
    /// How long packets are sent in each turn.
    pub time: Duration,
    /// The parameters of the steps.
    pub sweep: Sweep,
    /// Sample the causes of CPU time.
    pub causes: bool,
    /// Two interfaces to use in place of a lab.
    pub between: Option<(Side, Side)>,
}

impl BenchPlan {
    /// Runs all turns, until the last or until the observer stops the bench. `date` is the start.
    ///
    /// # Errors
    /// The testbeds cannot be made.
    pub fn run(&self, watch: &dyn BenchObserver, date: String) -> Result<Report, Failure> {
        let peers = if self.with_peers { peers::presence() } else { Vec::new() };
        let cpus = Cpus::allowed()?;
        let testbeds = self.testbeds()?;
        let testbed = |kind: SuiteKind, setting: &Setting| {
            let none = || Error::Usage("no testbed was made for a setting".into());
            testbeds.get(&self.config(kind, setting)).ok_or_else(none)
        };
        let mut suites: Vec<(SuiteKind, Vec<(Step, Outcomes)>)> = Vec::new();
        for &kind in &self.kinds {
            let steps = suite::steps(kind, &self.sweep, &cpus, self.with_peers, |setting| {
                testbed(kind, setting)
            })?;
            let is_wanted = |step: &Step| self.only.is_none_or(|is| is(kind, &step.name));
            let wanted = steps.into_iter().filter(is_wanted);
            suites.push((kind, wanted.map(|step| (step, Vec::new())).collect()));
        }
        let mut notes = Vec::new();
        let causes = self.causes
            && profile::check().map_err(|error| notes.push(format!("no causes: {error}"))).is_ok();
        let mut distance = CpuDistance::of(&cpus, self.time);
        let steps: usize = suites.iter().map(|(_, steps)| steps.len()).sum();
        let (mut done, turns) = (0, steps * self.rounds as usize);
        let mut complete = true;
        'rounds: for round in 1..=self.rounds {
            let steps = suites.iter_mut().flat_map(|(kind, steps)| {
                steps.iter_mut().map(|(step, outcomes)| (*kind, step, outcomes))
            });
            for (kind, step, outcomes) in steps {
                let title = step.setting.title(&step.name);
                watch.progress(&Progress { step: &title, done, turns: Some(turns) });
                done += 1;
                let turn = match step.missing() {
                    Some(failure) => Err(failure),
                    None => {
                        let context = TurnContext {
                            testbed: testbed(kind, &step.setting)?,
                            time: self.time,
                            // Sampling once suffices, and leaves the other rounds undisturbed.
                            causes: causes && round == self.rounds,
                            near: distance.near(),
                            watch,
                        };
                        distance.run_apart(watch, || context.measure(step))
                    }
                };
                if let Err(Failure::Stopped) = turn {
                    complete = false;
                    break 'rounds;
                }
                outcomes.push((round, turn));
            }
        }
        notes.extend(distance.note());
        Ok(Report {
            rounds: self.rounds,
            seconds: self.time.as_secs_f64(),
            complete,
            notes,
            peers,
            suites: suites.iter().map(|(kind, steps)| Suite::of(*kind, steps)).collect(),
            ..Report::empty(date)
        })
    }

    /// The testbed of a setting; none if existing interfaces are used.
    fn config(&self, kind: SuiteKind, setting: &Setting) -> Option<TestbedConfig> {
        let Setting { queues, size, .. } = *setting;
        let (jumbo, middle) = (size > MAX_ORDINARY, kind.needs_middle());
        self.between.is_none().then_some(TestbedConfig { queues, jumbo, middle })
    }

    /// Makes the testbeds of all settings.
    fn testbeds(&self) -> Result<HashMap<Option<TestbedConfig>, Testbed>, Failure> {
        if let Some((left, right)) = &self.between {
            if let Some(kind) = self.kinds.iter().find(|kind| kind.needs_lab()) {
                let text = format!("--between: {kind} is measured in a lab; omit one of them");
                return Err(Error::Usage(text).into());
            }
            return Ok([(None, Testbed::of(left.clone(), right.clone())?)].into());
        }
        let mut testbeds = HashMap::new();
        for &kind in &self.kinds {
            for &size in &self.sweep.sizes {
                for &queues in &self.sweep.queues {
                    let config = self.config(kind, &Setting { size, queues, ..Setting::default() });
                    if let (Some(it), false) = (config, testbeds.contains_key(&config)) {
                        testbeds.insert(config, Testbed::make(it)?);
                    }
                }
            }
        }
        Ok(testbeds)
    }
}
