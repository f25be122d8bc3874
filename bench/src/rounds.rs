//! Rounds: every step has its turn in each of them, so that the machine's moods hit all alike.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use sluicegate::error::Error;

use crate::cpu_distance::CpuDistance;
use crate::failure::Failure;
use crate::measure::{Conditions, measure};
use crate::measurement::Measurement;
use crate::process::{self, find};
use crate::profile::Profiler;
use crate::step::{Setting, Step};
use crate::suite::{self, Kind, Sweep};
use crate::testbed::{Cpus, Side, Testbed, TestbedConfig};

/// The longest frame that an MTU of 1500 allows.
const ORDINARY: u32 = 1514;

/// The plan of a bench.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The suites.
    pub kinds: Vec<Kind>,
    /// Which of their steps, by name; all if absent.
    pub only: Option<fn(Kind, &str) -> bool>,
    /// Include peers.
    pub with_peers: bool,
    /// How many rounds.
    pub rounds: u32,
    /// How long packets are sent in each turn.
    pub time: Duration,
    /// With what.
    pub sweep: Sweep,
    /// Sample where the CPU time goes.
    pub causes: bool,
    /// Two interfaces to use in place of a lab.
    pub between: Option<(Side, Side)>,
}

/// A step, and what its turns brought: by the round's number a measurement, or why there is none.
#[derive(Debug)]
pub struct Measured {
    /// The suite it belongs to.
    pub kind: Kind,
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
    /// The beds cannot be made.
    pub fn run(&self, watch: &dyn BenchObserver) -> Result<Results, Error> {
        let cpus = Cpus::allowed()?;
        let beds = self.beds()?;
        let testbed = |kind: Kind, setting: &Setting| {
            let testbed = if self.between.is_some() { None } else { Some(config(kind, setting)) };
            beds.get(&testbed)
                .ok_or_else(|| Error::Usage("there is no testbed for a setting".into()))
        };
        let mut measured = Vec::new();
        for &kind in &self.kinds {
            let steps = suite::steps(kind, &self.sweep, &cpus, self.with_peers, |setting| {
                testbed(kind, setting)
            })?;
            let steps = steps.into_iter();
            let wanted = steps.filter(|step| self.only.is_none_or(|is| is(kind, &step.name)));
            measured.extend(wanted.map(|step| Measured { kind, step, turns: Vec::new() }));
        }
        let mut notes = Vec::new();
        let causes = self.causes
            && Profiler::start().map_err(|error| notes.push(format!("no causes: {error}"))).is_ok();
        let mut apart = CpuDistance::of(&cpus, self.time);
        let near = apart.near();
        let mut conditions = Conditions { time: self.time, cpus, causes: false, near };
        let mut clock = TimeLeft::new(measured.len() * self.rounds as usize, self.time);
        for round in 1..=self.rounds {
            // Once is enough, and leaves the other rounds undisturbed.
            conditions.causes = causes && round == self.rounds;
            for climbed_ in &mut measured {
                let Measured { kind, step, turns } = &mut *climbed_;
                watch.progress(&clock.progress(&step.setting.title(&step.name)));
                let begun = Instant::now();
                let turn = match missing(step) {
                    Some(reason) => Err(Failure::of(reason)),
                    None => {
                        let testbed = testbed(*kind, &step.setting)?;
                        conditions.near = apart.near();
                        apart.turn(watch, || measure(testbed, step, &conditions, watch))
                    }
                };
                clock.turned(begun.elapsed(), turn.is_ok());
                if let Err(Failure::Stopped) = turn {
                    notes.extend(apart.note());
                    return Ok(Results { measured, complete: false, notes });
                }
                turns.push((round, turn));
            }
        }
        notes.extend(apart.note());
        Ok(Results { measured, complete: true, notes })
    }

    /// The beds that the settings want; without a configuration the one that was given.
    fn beds(&self) -> Result<HashMap<Option<TestbedConfig>, Testbed>, Error> {
        if let Some((left, right)) = &self.between {
            if let Some(kind) = self.kinds.iter().find(|kind| kind.needs_middle()) {
                return Err(Error::Usage(format!(
                    "--between: what {kind} measures is a host between the two; leave it out"
                )));
            }
            let testbed = Testbed::of(left.clone(), right.clone())?;
            return Ok([(None, testbed)].into());
        }
        let mut beds = HashMap::new();
        let kinds = self
            .kinds
            .iter()
            .flat_map(|kind| self.sweep.sizes.iter().map(move |size| (kind, size)));
        for (&kind, &size) in kinds {
            for &queues in &self.sweep.queues {
                let config = config(kind, &Setting { size, queues, ..Setting::default() });
                if let Entry::Vacant(place) = beds.entry(Some(config)) {
                    place.insert(Testbed::make(config)?);
                }
            }
        }
        Ok(beds)
    }
}

fn config(kind: Kind, setting: &Setting) -> TestbedConfig {
    let Setting { queues, size, .. } = *setting;
    TestbedConfig { queues, jumbo: size > ORDINARY, line: kind.needs_middle() }
}

/// A program that a step needs and that is not there, with the way to get it.
fn missing(step: &Step) -> Option<String> {
    let name = step.needs().find(|name| find(name).is_none())?;
    Some(process::missing(name))
}

/// How long the rest takes, by what turns have taken so far.
struct TimeLeft {
    done: usize,
    turns: usize,
    /// Of turns that brought a measurement; those that could not be run are over at once.
    spent: Duration,
    measured: u32,
    /// Estimated duration of a turn until one was measured: the sending time, and more than as long to
    /// start and stop programs.
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

/// An observer of a bench, which can stop it.
pub trait BenchObserver {
    /// Waits; false where no more is wanted.
    fn wait(&self, time: Duration) -> bool;

    /// Is told what comes now.
    fn progress(&self, _progress: &Progress<'_>) {}

    /// Waits, or stops.
    ///
    /// # Errors
    /// [`Failure::Stopped`] where no more is wanted.
    fn pause(&self, time: Duration) -> Result<(), Failure> {
        match self.wait(time) {
            true => Ok(()),
            false => Err(Failure::Stopped),
        }
    }
}

/// How far a bench is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The step that begins, and its setting.
    pub step: &'a str,
    /// Turns that are over.
    pub done: usize,
    /// Turns in all.
    pub turns: usize,
    /// The time that the rest will take, as far as is known.
    pub left: Duration,
}

/// An observer that ignores progress and never stops the bench.
#[derive(Clone, Copy, Debug)]
pub struct Patient;

impl BenchObserver for Patient {
    fn wait(&self, time: Duration) -> bool {
        std::thread::sleep(time);
        true
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

    #[test]
    fn what_is_missing_is_known_before_it_is_started() {
        use crate::process::Program;
        use crate::step::{Intake, Order, Tally, To, Way};
        use crate::testbed::End;
        let order = |name| Order { end: End::Left, program: Program::tool(name, [""; 0]) };
        let way = Way::Receive(Intake::told(Tally::InXdp, To::Host));
        let setting = Setting { size: 60, queues: 1, cores: 1, ..Setting::default() };
        let step = Step::new("linux", "a step", setting, way);
        assert_eq!(missing(&step), None);
        let step = step.with(order("no-such-tool"), order("cat"));
        let reason = missing(&step).unwrap();
        assert_eq!(reason, "no-such-tool is not installed: apt-get install no-such-tool");
    }
}
