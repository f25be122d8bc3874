//! The rate of a run: set by a flag, changed by a file or keys, reached by a ramp.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::units;
use sluicegate_traffic::rate::{Dial, Pace, Period, Unit};

use crate::notice;
use crate::report::L1_OVERHEAD_BYTES;
use crate::units::show_rate;

const RIGHT: &str = "a rate is like 1Mpps, 5Gbps (layer 1), 5GbpsL2 or 80% of the link";

/// A rate as typed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Packets per second.
    Packets(f64),
    /// Bits per second, with preambles and the gaps between frames.
    Layer1(f64),
    /// Bits per second of the frames themselves.
    Layer2(f64),
    /// A part of the link's speed.
    OfLink(f64),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        type OfNumber = fn(f64) -> Rate;
        let units: [(_, OfNumber); 4] = [
            ("%", |percent| Self::OfLink(percent / 100.0)),
            ("pps", Self::Packets),
            ("bpsL2", Self::Layer2),
            ("bps", Self::Layer1),
        ];
        let parts = |(unit, rate)| Some((text.strip_suffix(unit)?.trim(), unit, rate));
        let (number, unit, rate) = units.into_iter().find_map(parts).ok_or(RIGHT)?;
        // Fractions are also valid.
        let exact = units::count(number).map(|count| count as f64);
        match exact.or_else(|_| number.parse::<f64>()) {
            Ok(percent) if unit == "%" && percent > 100.0 => Err(RIGHT.to_owned()),
            Ok(number) if number > 0.0 && number.is_finite() => Ok(rate(number)),
            _ => Err(RIGHT.to_owned()),
        }
    }
}

impl Rate {
    /// Returns the unit to count if packet lengths are unknown in advance.
    pub fn unit(self) -> Unit {
        match self {
            Self::Packets(_) => Unit::Packet,
            Self::Layer1(_) | Self::OfLink(_) => Unit::BYTE_OF_LAYER1,
            Self::Layer2(_) => Unit::BYTE_OF_LAYER2,
        }
    }
}

/// The upper limit of a rate, in packets or bytes a second: more than any interface sends.
const MAX_A_SECOND: f64 = 1e12;

/// The properties of packets and link that a rate depends on.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Mean bytes of a packet, if known.
    pub mean_bytes: Option<f64>,
    /// The unit that the pace counts.
    pub unit: Unit,
    /// Packets per burst.
    pub burst: u32,
    /// The link's speed, in bit/s.
    pub speed: Option<f64>,
}

impl Measure {
    /// Returns the pace of packets at a rate.
    ///
    /// # Errors
    /// The link's speed or the packets' lengths are unknown; the rate is higher than any interface's, or so
    /// low that the second packet would be due in years.
    pub fn pace(&self, rate: Rate) -> Result<Pace> {
        let layer1 = |bits: f64, bytes: f64| bits / 8.0 / (bytes + L1_OVERHEAD_BYTES as f64);
        let wrong = |text: &str| Error::Usage(text.into());
        let no_lengths = "the packets' mean length is unknown; give the rate in pps";
        let bytes = || self.mean_bytes.ok_or_else(|| wrong(no_lengths));
        let no_speed = "the driver does not report the link's speed; give a rate in pps or bps";
        let speed = || self.speed.ok_or_else(|| wrong(no_speed));
        let pps = match (self.unit, rate) {
            (Unit::Packet, Rate::Packets(pps)) => pps,
            (Unit::Packet, Rate::Layer1(bits)) => layer1(bits, bytes()?),
            (Unit::Packet, Rate::Layer2(bits)) => bits / 8.0 / bytes()?,
            (Unit::Packet, Rate::OfLink(part)) => layer1(part * speed()?, bytes()?),
            (Unit::BYTE_OF_LAYER1, Rate::Layer1(bits)) => bits / 8.0,
            (Unit::BYTE_OF_LAYER1, Rate::OfLink(part)) => part * speed()? / 8.0,
            (Unit::BYTE_OF_LAYER2, Rate::Layer2(bits)) => bits / 8.0,
            (Unit::Byte { .. }, _) => {
                return Err(wrong("the first rate was in bits; give a rate of the same layer"));
            }
        };
        let pace = Pace { pps, burst: self.burst };
        match pace.period() {
            _ if pps > MAX_A_SECOND => Err(wrong(
                "no interface sends that fast: give a lower rate, or none for full speed",
            )),
            Period::NEVER => Err(wrong(
                "that rate is so low that the next packet would be due in years: give a higher one",
            )),
            _ => Ok(pace),
        }
    }

    /// Parses the pace in a rate file; `None` for a pause.
    fn read(&self, text: &str) -> Result<Option<Pace>, String> {
        if text == "pause" {
            return Ok(None);
        }
        let rate: Rate = text.parse().map_err(|right| format!("'{text}': {right}, or pause"))?;
        self.pace(rate).map(Some).map_err(|error| error.to_string())
    }

    /// Returns the pace of a pause.
    pub fn none(&self) -> Pace {
        Pace { pps: 0.0, burst: self.burst }
    }
}

/// Maximum length of a rate's text.
const MAX_BYTES: u64 = 100;

/// The file, and its content at the last read.
#[derive(Debug)]
pub struct RateFile {
    path: PathBuf,
    seen: Option<Result<String, ErrorKind>>,
}

impl RateFile {
    /// Creates the reader; reads nothing yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, seen: None }
    }

    /// Returns the pace in the file if it has changed (`None` for a pause), or its error, once. Ignores an
    /// empty file, whose writer has just begun.
    pub fn changed(&mut self, measure: &Measure) -> Option<Result<Option<Pace>, String>> {
        let text = self.read();
        let seen = text.as_ref().map(String::clone).map_err(std::io::Error::kind);
        if text.as_ref().is_ok_and(String::is_empty) || self.seen.as_ref() == Some(&seen) {
            return None;
        }
        self.seen = Some(seen);
        let text = text.map_err(|error| error.to_string());
        let pace = text.and_then(|text| measure.read(&text));
        Some(pace.map_err(|reason| format!("--rate-file {}: {reason}", self.path.display())))
    }

    fn read(&self) -> std::io::Result<String> {
        // Reading another kind of file may block.
        if !std::fs::metadata(&self.path)?.is_file() {
            return Err(std::io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut bytes = Vec::new();
        File::open(&self.path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }
}

/// Interval between checks for the end of the run and for a new rate.
pub const TICK: Duration = Duration::from_millis(20);

/// Interval between two reads of the file.
const FILE_INTERVAL: Duration = Duration::from_millis(250);

/// How a rate changes while packets are sent.
#[derive(clap::Args, Clone, Debug)]
pub struct Changes {
    /// Read the rate from a file, four times a second: a value of --rate, or pause
    #[arg(long, value_name = "FILE")]
    pub rate_file: Option<PathBuf>,

    /// Reach the rate evenly within this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub ramp: Option<Duration>,
}

/// The rate of a run, set by its control thread and followed by its workers.
#[derive(Debug)]
pub struct Steering {
    measure: Measure,
    file: Option<RateFile>,
    next_read: Duration,
    ramp: Duration,
    asked: Pace,
    paused: bool,
    changes: u64,
    /// The pace last passed to the workers.
    current: Pace,
    dial: Dial,
}

impl Steering {
    /// Creates the steering of a run with a pace or a rate file; `None` without either.
    ///
    /// # Errors
    /// The file has no rate, and no flag gives one; a ramp without a rate.
    pub fn new(asked: Option<Pace>, measure: Measure, changes: &Changes) -> Result<Option<Self>> {
        let mut file = changes.rate_file.clone().map(RateFile::new);
        let (asked, paused) = match (asked, &mut file) {
            (None, None) if changes.ramp.is_some() => {
                let missing = "--ramp needs a rate; add --rate or --rate-file";
                return Err(Error::Usage(missing.into()));
            }
            (None, None) => return Ok(None),
            (Some(asked), _) => (asked, false),
            (None, Some(file)) => first(file, &measure)?,
        };
        let mut steering = Self {
            measure,
            file,
            next_read: Duration::ZERO,
            ramp: changes.ramp.unwrap_or_default(),
            asked,
            paused,
            changes: 0,
            current: asked,
            dial: Dial::new(asked),
        };
        steering.update(Duration::ZERO);
        steering.changes = 0;
        Ok(Some(steering))
    }

    /// Limits the lag that workers make up for.
    pub fn catching_up(self, max_lag: Duration) -> Self {
        Self { dial: self.dial.catching_up(max_lag), ..self }
    }

    /// The dial that all workers together follow.
    pub fn dial(&self) -> Dial {
        self.dial.clone()
    }

    /// Returns the last requested rate, and its unit.
    pub fn asked(&self) -> (f64, Unit) {
        (self.asked.pps, self.measure.unit)
    }

    /// Reports whether the rate was the same during the whole run.
    pub fn is_constant(&self) -> bool {
        self.changes == 0 && self.ramp.is_zero()
    }

    /// The number of changes during the run.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Updates the dial for this moment of the run. Returns the pace if it has changed.
    pub fn update(&mut self, elapsed: Duration) -> Option<Pace> {
        if elapsed >= self.next_read {
            self.next_read = elapsed + FILE_INTERVAL;
            self.read_file();
        }
        let pace = Pace { pps: self.pps(elapsed), ..self.asked };
        if pace == self.current {
            return None;
        }
        self.current = pace;
        self.dial.set(pace);
        Some(pace)
    }

    /// Handles a key; returns false for an unknown one.
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
        // An impossible rate changes nothing.
        let can_be = |pace: Pace| pace.pps <= MAX_A_SECOND && pace.period() != Period::NEVER;
        if pace.is_none_or(can_be) {
            self.set(pace);
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

    fn read_file(&mut self) {
        match self.file.as_mut().and_then(|file| file.changed(&self.measure)) {
            None => {}
            Some(Ok(pace)) => self.set(pace),
            Some(Err(wrong)) => notice::say(format_args!("{wrong}; the rate is unchanged")),
        }
    }

    /// Sets another pace, or a pause.
    fn set(&mut self, pace: Option<Pace>) {
        let before = (self.asked, self.paused);
        self.paused = pace.is_none();
        self.asked = pace.unwrap_or(self.asked);
        self.changes += u64::from((self.asked, self.paused) != before);
    }

    /// Returns the packets per second at this moment; during a ramp, those in the middle of the next
    /// interval.
    fn pps(&self, elapsed: Duration) -> f64 {
        let since = elapsed + TICK / 2;
        match self.paused {
            true => 0.0,
            false if since >= self.ramp => self.asked.pps,
            false => self.asked.pps * since.div_duration_f64(self.ramp),
        }
    }
}

/// Reads the initial rate from a file, and whether it is a pause.
fn first(file: &mut RateFile, measure: &Measure) -> Result<(Pace, bool)> {
    let empty = || Err("--rate-file: the file is empty".into());
    let pace = file.changed(measure).unwrap_or_else(empty);
    let pace =
        pace.map_err(|wrong| Error::Usage(format!("{wrong}; or set the first rate by --rate")))?;
    Ok((pace.unwrap_or(measure.none()), pace.is_none()))
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
        assert_eq!(steering.current.pps, 10.0, "in the middle of the first step");
        let mut packets = steering.current.pps * TICK.as_secs_f64();
        for tick in 1..100 {
            steering.update(tick * TICK);
            packets += steering.current.pps * TICK.as_secs_f64();
        }
        assert_eq!(steering.current.pps, 1000.0);
        assert!((packets - 1500.0).abs() < 1e-6, "half of a second's, and a second's: {packets}");
        assert_eq!(steering.update(2000 * MS), None, "there is nothing more to tell");
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
            now += FILE_INTERVAL;
            (steering.update(now).map(|pace| pace.pps), steering.changes())
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
            steering.update(Duration::ZERO);
            (steering.current.pps.round(), steering.changes())
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

    #[test]
    fn rates_are_understood() {
        for (text, rate) in [
            ("1Mpps", Ok(Rate::Packets(1e6))),
            ("14.88Mpps", Ok(Rate::Packets(14_880_000.0))),
            ("5Gbps", Ok(Rate::Layer1(5e9))),
            ("5GbpsL2", Ok(Rate::Layer2(5e9))),
            ("80%", Ok(Rate::OfLink(0.8))),
            ("0pps", Err(())),
            ("101%", Err(())),
            ("fast", Err(())),
            ("1000", Err(())),
            ("1e-9%", Ok(Rate::OfLink(1e-9 / 100.0))),
            ("0.1pps", Ok(Rate::Packets(0.1))),
            ("-0.1pps", Err(())),
            ("0.0pps", Err(())),
            ("1e-400%", Err(())),
        ] {
            assert_eq!(text.parse::<Rate>().map_err(|_| ()), rate, "{text}");
        }
    }

    #[test]
    fn rates_become_paces_however_small_and_none_becomes_full_speed() {
        let measure =
            Measure { mean_bytes: Some(60.0), unit: Unit::Packet, burst: 1, speed: Some(1e10) };
        let pps = |rate| measure.pace(rate).map(|pace| pace.pps).ok();
        assert_eq!(pps(Rate::Layer1(672.0)), Some(1.0), "60 bytes and 24 around them");
        assert_eq!(pps(Rate::Layer2(480.0)), Some(1.0));
        assert_eq!(pps(Rate::OfLink(0.5)), Some(5e9 / 672.0));
        assert!(pps(Rate::OfLink(1e-11)).is_some_and(|pps| pps > 0.0), "a packet in two hours");
        assert_eq!(pps(Rate::OfLink(f64::MIN_POSITIVE)), None, "a packet in 1e300 years");
        assert_eq!(pps(Rate::OfLink(0.0)), None, "too small to be told from none");
        assert_eq!(pps(Rate::Packets(1e12)), Some(1e12));
        assert_eq!(pps(Rate::Packets(1e99)), None, "faster than any interface");
        let unknown = Measure { mean_bytes: None, speed: None, ..measure };
        assert!(
            unknown.pace(Rate::Layer1(1e6)).is_err() && unknown.pace(Rate::OfLink(0.5)).is_err()
        );
    }

    #[test]
    fn a_rate_files_request_or_error_is_returned_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rate");
        let measure = Measure { mean_bytes: None, unit: Unit::Packet, burst: 1, speed: None };
        let mut file = RateFile::new(path.clone());
        assert!(file.changed(&measure).is_some_and(|it| it.is_err()), "it is not there");
        assert_eq!(file.changed(&measure), None, "which is said once");
        let rate = |pps| Some(Ok(Some(Pace { pps, burst: 1 })));
        let written = |text: &str| std::fs::write(&path, text).unwrap();
        for (sentence, text, pps) in [("a rate", "10kpps\n", 1e4), ("another", "2Mpps", 2e6)] {
            written(text);
            assert_eq!(file.changed(&measure), rate(pps), "{sentence}");
            assert_eq!(file.changed(&measure), None, "{sentence}: once");
        }
        written("");
        assert_eq!(file.changed(&measure), None, "about to be written");
        written("fast");
        let wrong = file.changed(&measure).unwrap().unwrap_err();
        assert!(wrong.contains("'fast'") && wrong.contains("1Mpps"), "{wrong}");
        assert_eq!(file.changed(&measure), None, "once, too");
        written("1e99pps");
        assert!(
            file.changed(&measure).unwrap().unwrap_err().contains("no interface sends that fast")
        );
        written(" pause \n");
        assert_eq!(file.changed(&measure), Some(Ok(None)));
        written(&"9".repeat(5000));
        assert!(file.changed(&measure).unwrap().is_err(), "no rate is so long");
        let mut folder = RateFile::new(folder.path().to_owned());
        assert!(folder.changed(&measure).unwrap().unwrap_err().contains("not a regular file"));
    }
}
