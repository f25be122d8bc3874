//! The rate of a run while it goes on: asked for by a flag, then by a file, reached by a ramp.

use std::path::PathBuf;
use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::units;
use sluicegate_traffic::rate::{Dial, Pace, Period, Unit};

use super::rate::{Measure, RateFile, Wanted};
use crate::notice;
use crate::units::show_rate;

/// The time between two looks at whether it is over, and at which rate is asked for.
pub const TICK: Duration = Duration::from_millis(20);

/// The time between two looks at a file.
const LOOK: Duration = Duration::from_millis(250);

/// The most that keys make of a rate, in packets or bytes a second: no interface sends as many.
const MAX_A_SECOND: f64 = 1e12;

/// How a rate changes while packets are sent.
#[derive(clap::Args, Clone, Debug)]
pub struct Changes {
    /// A rate in a file, looked at while packets are sent: what --rate takes, or pause
    #[arg(long, value_name = "FILE")]
    pub rate_file: Option<PathBuf>,

    /// Reach the rate within this time, evenly from nothing
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub ramp: Option<Duration>,
}

/// The rate of a run, which its control thread sets and its workers keep.
#[derive(Debug)]
pub struct Steering {
    measure: Measure,
    file: Option<RateFile>,
    next_look: Duration,
    ramp: Duration,
    asked: Pace,
    paused: bool,
    changes: u64,
    /// The pace last given to the workers.
    told: Pace,
    dial: Dial,
}

impl Steering {
    /// Creates the steering of a run with a pace or a rate file; `None` without either.
    ///
    /// # Errors
    /// A file without a rate, where nothing else says one; a ramp to nowhere.
    pub fn new(asked: Option<Pace>, measure: Measure, changes: &Changes) -> Result<Option<Self>> {
        let mut file = changes.rate_file.clone().map(RateFile::new);
        let (asked, paused) = match (asked, &mut file) {
            (None, None) if changes.ramp.is_some() => {
                let missing = "--ramp: to which rate? Give --rate or --rate-file";
                return Err(Error::Usage(missing.into()));
            }
            (None, None) => return Ok(None),
            (Some(asked), _) => (asked, false),
            (None, Some(file)) => first(file, &measure)?,
        };
        let mut steering = Self {
            measure,
            file,
            next_look: Duration::ZERO,
            ramp: changes.ramp.unwrap_or_default(),
            asked,
            paused,
            changes: 0,
            told: asked,
            dial: Dial::new(asked),
        };
        steering.look(Duration::ZERO);
        steering.changes = 0;
        Ok(Some(steering))
    }

    /// Limits the lag that workers make up for.
    pub fn catching_up(self, most_behind: Duration) -> Self {
        Self { dial: self.dial.catching_up(most_behind), ..self }
    }

    /// The pace that all workers together keep now, and that follows.
    pub fn dial(&self) -> Dial {
        self.dial.clone()
    }

    /// Returns the rate last asked for, and its unit.
    pub fn asked(&self) -> (f64, Unit) {
        (self.asked.pps, self.measure.unit)
    }

    /// How often something else was asked for while it ran.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Looks at what is asked for at this moment of the run: the pace from now on, if it is another
    /// than before. The dial has it already.
    pub fn look(&mut self, elapsed: Duration) -> Option<Pace> {
        if elapsed >= self.next_look {
            self.next_look = elapsed + LOOK;
            self.look_at_file();
        }
        let pace = Pace { pps: self.pps(elapsed), ..self.asked };
        if pace == self.told {
            return None;
        }
        self.told = pace;
        self.dial.set(pace);
        Some(pace)
    }

    /// Does what a key asks for; false if it is none of ours.
    pub fn press(&mut self, key: u8) -> bool {
        let times = |factor| Some(Pace { pps: self.asked.pps * factor, ..self.asked });
        let pace = match key {
            b'+' | b'=' => times(1.1),
            b'-' => times(1.0 / 1.1),
            b'*' => times(2.0),
            b'/' => times(0.5),
            b'p' | b' ' if self.paused => times(1.0),
            b'p' | b' ' => None,
            _ => return false,
        };
        // One that is not to be had stays as it is.
        let can_be = |pace: Pace| pace.pps <= MAX_A_SECOND && pace.period() != Period::NEVER;
        if pace.is_none_or(can_be) {
            self.ask(pace);
        }
        true
    }

    /// Formats the current rate.
    pub fn shown(&self) -> String {
        match self.paused {
            true => "paused".into(),
            false => format!("asked {}", show_rate(self.asked.pps, self.measure.unit)),
        }
    }

    fn look_at_file(&mut self) {
        let wanted = match self.file.as_mut().and_then(RateFile::look) {
            None => return,
            Some(Ok(Wanted::Pause)) => Ok(None),
            Some(Ok(Wanted::Rate(rate))) => {
                self.measure.pace(rate).map(Some).map_err(|error| error.to_string())
            }
            Some(Err(wrong)) => Err(wrong),
        };
        match wanted {
            Ok(pace) => self.ask(pace),
            Err(wrong) => notice::say(format_args!("{wrong}; the rate stays as it is")),
        }
    }

    /// Something else is asked for: a pace, or a pause.
    fn ask(&mut self, pace: Option<Pace>) {
        let before = (self.asked, self.paused);
        self.paused = pace.is_none();
        self.asked = pace.unwrap_or(self.asked);
        self.changes += u64::from((self.asked, self.paused) != before);
    }

    /// Packets a second at this moment; of a ramp those in the middle of the time until the next.
    fn pps(&self, elapsed: Duration) -> f64 {
        let since = elapsed + TICK / 2;
        match self.paused {
            true => 0.0,
            false if since >= self.ramp => self.asked.pps,
            false => self.asked.pps * since.div_duration_f64(self.ramp),
        }
    }
}

/// Reads the initial rate from a file.
fn first(file: &mut RateFile, measure: &Measure) -> Result<(Pace, bool)> {
    match file.look() {
        Some(Ok(Wanted::Rate(rate))) => Ok((measure.pace(rate)?, false)),
        Some(Ok(Wanted::Pause)) => Ok((measure.none(), true)),
        Some(Err(wrong)) => Err(Error::Usage(format!("{wrong}; or give --rate to begin with"))),
        None => Err(Error::Usage("--rate-file: it is empty; or give --rate to begin with".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn steering(file: Option<PathBuf>, ramp: Option<Duration>) -> Steering {
        let asked = Pace { pps: 1000.0, burst: 1 };
        let measure = Measure { mean_bytes: None, unit: Unit::Packet, burst: 1, speed: None };
        Steering::new(Some(asked), measure, &Changes { rate_file: file, ramp }).unwrap().unwrap()
    }

    #[test]
    fn a_ramp_grows_evenly_and_ends_at_the_rate() {
        let mut steering = steering(None, Some(1000 * MS));
        assert_eq!(steering.told.pps, 10.0, "in the middle of the first step");
        let mut packets = steering.told.pps * TICK.as_secs_f64();
        for tick in 1..100 {
            steering.look(tick * TICK);
            packets += steering.told.pps * TICK.as_secs_f64();
        }
        assert_eq!(steering.told.pps, 1000.0);
        assert!((packets - 1500.0).abs() < 1e-6, "half of a second's, and a second's: {packets}");
        assert_eq!(steering.look(2000 * MS), None, "there is nothing more to tell");
        assert_eq!(steering.changes(), 0, "nothing else was asked for");
    }

    #[test]
    fn a_file_changes_the_rate_and_a_wrong_one_leaves_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rate");
        let mut steering = steering(Some(path.clone()), None);
        let mut now = Duration::ZERO;
        let mut at = |text: &str| {
            std::fs::write(&path, text).unwrap();
            now += LOOK;
            (steering.look(now).map(|pace| pace.pps), steering.changes())
        };
        assert_eq!(at("2kpps"), (Some(2000.0), 1));
        assert_eq!(at("2000pps"), (None, 1), "the same");
        assert_eq!(at("nonsense"), (None, 1));
        assert_eq!(at("1Mbps"), (None, 1), "nobody knows the packets' lengths");
        assert_eq!(at("pause"), (Some(0.0), 2));
        assert_eq!(at("5pps"), (Some(5.0), 3));
        assert_eq!(steering.dial().period(), Pace { pps: 5.0, burst: 1 }.period());
    }

    #[test]
    fn keys_change_the_rate_and_take_it_back() {
        let mut steering = steering(None, None);
        let mut after = |keys: &str| {
            assert!(keys.bytes().all(|key| steering.press(key)), "{keys}");
            steering.look(Duration::ZERO);
            (steering.told.pps.round(), steering.changes())
        };
        assert_eq!(after("+"), (1100.0, 1));
        assert_eq!(after("-"), (1000.0, 2), "there and back");
        assert_eq!(after("**"), (4000.0, 4));
        assert_eq!(after("/"), (2000.0, 5));
        assert_eq!(after("p"), (0.0, 6), "a pause");
        assert_eq!(after("p"), (2000.0, 7), "and on");
        assert_eq!(after("p*"), (4000.0, 9), "a rate ends a pause");
        assert_eq!(after(&"*".repeat(100)).0, 4000.0 * 2_f64.powi(27), "no more than makes sense");
        assert!(!steering.press(b'x'));
    }

    #[test]
    fn a_ramp_needs_a_rate_and_a_file_too() {
        let measure = Measure { mean_bytes: None, unit: Unit::Packet, burst: 1, speed: None };
        let path = Some(PathBuf::from("/nonexistent/rate"));
        for (rate_file, ramp) in [(None, Some(MS)), (path, None)] {
            let changes = Changes { rate_file, ramp };
            assert!(Steering::new(None, measure, &changes).is_err(), "{changes:?}");
        }
        let none = Changes { rate_file: None, ramp: None };
        assert!(Steering::new(None, measure, &none).unwrap().is_none());
    }
}
