//! Rounds: every step has a turn in each, so that the machine's slow minutes affect all alike.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sluicegate::error::Error;

use crate::cpu_distance::CpuDistance;
use crate::measure::TurnContext;
use crate::measurement::Measurement;
use crate::observer::{BenchObserver, Failure, Progress};
use crate::profile::Profiler;
use crate::step::{Setting, Step};
use crate::suite::{self, SuiteKind, Sweep};
use crate::testbed::{Cpus, Side, Testbed, TestbedConfig};

/// The longest frame that an MTU of 1500 allows.
const MAX_ORDINARY: u32 = 1514;

/// The plan of a bench.
#[derive(Clone, Debug)]
pub struct Bench {
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

/// A step, and the results of its turns: by the round's number a measurement, or why there is none.
#[derive(Debug)]
pub struct Measured {
    /// The suite it belongs to.
    pub kind: SuiteKind,
    /// The step.
    pub step: Step,
    /// Its turns.
    pub turns: Vec<(u32, Result<Measurement, Failure>)>,
}

/// The results of a bench.
#[derive(Debug)]
pub struct Results {
    /// The steps, suite by suite.
    pub measured: Vec<Measured>,
    /// True if every step has had all its turns.
    pub complete: bool,
    /// Notes on the whole bench.
    pub notes: Vec<String>,
}

impl Bench {
    /// Runs all turns, until the last or until the observer stops the bench.
    ///
    /// # Errors
    /// The testbeds cannot be made.
    pub fn run(&self, watch: &dyn BenchObserver) -> Result<Results, Failure> {
        let cpus = Cpus::allowed()?;
        let testbeds = self.testbeds()?;
        let testbed = |kind: SuiteKind, setting: &Setting| {
            let none = || Error::Usage("no testbed was made for a setting".into());
            testbeds.get(&self.config(kind, setting)).ok_or_else(none)
        };
        let mut measured = Vec::new();
        for &kind in &self.kinds {
            let steps = suite::steps(kind, &self.sweep, &cpus, self.with_peers, |setting| {
                testbed(kind, setting)
            })?;
            let is_wanted = |step: &Step| self.only.is_none_or(|is| is(kind, &step.name));
            let wanted = steps.into_iter().filter(is_wanted);
            measured.extend(wanted.map(|step| Measured { kind, step, turns: Vec::new() }));
        }
        let mut notes = Vec::new();
        let causes = self.causes
            && Profiler::start().map_err(|error| notes.push(format!("no causes: {error}"))).is_ok();
        let mut distance = CpuDistance::of(&cpus, self.time);
        let mut clock = TimeLeft::new(measured.len() * self.rounds as usize, self.time);
        let mut complete = true;
        'rounds: for round in 1..=self.rounds {
            for Measured { kind, step, turns } in &mut measured {
                watch.progress(&clock.progress(&step.setting.title(&step.name)));
                let begun = Instant::now();
                let turn = match step.missing() {
                    Some(reason) => Err(Failure::of(reason)),
                    None => {
                        let context = TurnContext {
                            testbed: testbed(*kind, &step.setting)?,
                            time: self.time,
                            // Once is enough, and leaves the other rounds undisturbed.
                            causes: causes && round == self.rounds,
                            near: distance.near(),
                            watch,
                        };
                        distance.turn(watch, || context.measure(step))
                    }
                };
                clock.turned(begun.elapsed(), turn.is_ok());
                if let Err(Failure::Stopped) = turn {
                    complete = false;
                    break 'rounds;
                }
                turns.push((round, turn));
            }
        }
        notes.extend(distance.note());
        Ok(Results { measured, complete, notes })
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
            if let Some(kind) = self.kinds.iter().find(|kind| kind.needs_middle()) {
                let text = format!("--between: {kind} measures a host between the two; omit it");
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

/// Estimates the time that is left from the turns so far.
struct TimeLeft {
    done: usize,
    turns: usize,
    /// The time of turns with a measurement; those that could not be run are over at once.
    spent: Duration,
    measured: u32,
    /// Estimated duration of a turn until one was measured: the sending time, and time to start and stop
    /// programs.
    guess: Duration,
}

impl TimeLeft {
    fn new(turns: usize, time: Duration) -> Self {
        let guess = time + Duration::from_millis(1800);
        Self { done: 0, turns, spent: Duration::ZERO, measured: 0, guess }
    }

    fn progress<'a>(&self, step: &'a str) -> Progress<'a> {
        let Self { done, turns, .. } = *self;
        let each = if self.measured > 0 { self.spent / self.measured } else { self.guess };
        Progress { step, done, turns, left: each * u32::try_from(turns - done).unwrap_or(0) }
    }

    fn turned(&mut self, took: Duration, measured: bool) {
        self.done += 1;
        if measured {
            self.measured += 1;
            self.spent += took;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_what_turns_took() {
        let mut clock = TimeLeft::new(4, Duration::from_millis(200));
        assert_eq!(clock.progress("recv").left, Duration::from_secs(8), "a guess");
        clock.turned(Duration::from_secs(3), true);
        assert_eq!(clock.progress("recv").left, Duration::from_secs(9));
        clock.turned(Duration::from_millis(1), false);
        let left = clock.progress("recv").left;
        assert_eq!(left, Duration::from_secs(6), "what could not be run says nothing");
    }
}
