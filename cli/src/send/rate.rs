//! Rates on the command line and in files.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::str::FromStr;

use sluicegate::error::{Error, Result};
use sluicegate::units;
use sluicegate_traffic::rate::{Pace, Period, Unit};

use crate::report::L1_OVERHEAD_BYTES;

const RIGHT: &str = "a rate is like 1Mpps, 5Gbps (layer 1), 5GbpsL2 or 80% of the link";

/// A rate as it was said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Packets a second.
    Packets(f64),
    /// Bits a second, with preambles and the gaps between frames.
    Layer1(f64),
    /// Bits a second of the frames themselves.
    Layer2(f64),
    /// A part of the link's speed.
    OfLink(f64),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            // Below one, or between two.
            let exact = units::count(text.trim()).map(|count| count as f64);
            match exact.or_else(|_| text.trim().parse::<f64>()) {
                Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
                _ => Err(RIGHT.to_owned()),
            }
        };
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.trim().parse().map_err(|_| RIGHT)?;
            return match percent > 0.0 && percent <= 100.0 {
                true => Ok(Self::OfLink(percent / 100.0)),
                false => Err(RIGHT.into()),
            };
        }
        if let Some(text) = text.strip_suffix("pps") {
            number(text).map(Self::Packets)
        } else if let Some(text) = text.strip_suffix("bpsL2") {
            number(text).map(Self::Layer2)
        } else {
            number(text.strip_suffix("bps").ok_or(RIGHT)?).map(Self::Layer1)
        }
    }
}

impl Rate {
    /// Returns the unit to count where packet lengths are unknown in advance.
    pub fn unit(self) -> Unit {
        match self {
            Self::Packets(_) => Unit::Packet,
            Self::Layer1(_) | Self::OfLink(_) => Unit::BYTE_OF_LAYER1,
            Self::Layer2(_) => Unit::BYTE_OF_LAYER2,
        }
    }
}

/// The properties of packets and link that a rate depends on.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Mean bytes of a packet, if known.
    pub mean_bytes: Option<f64>,
    /// The unit that the pace counts.
    pub unit: Unit,
    /// Packets a burst.
    pub burst: u32,
    /// The link's speed, in bit/s.
    pub speed: Option<f64>,
}

impl Measure {
    /// The pace of packets at a rate.
    ///
    /// # Errors
    /// A part of a link whose speed nobody knows; bits of packets whose lengths nobody knows; a
    /// rate at which the second packet would come in years.
    pub fn pace(&self, rate: Rate) -> Result<Pace> {
        let layer1 = |bits: f64, bytes: f64| bits / 8.0 / (bytes + L1_OVERHEAD_BYTES as f64);
        let bytes = || self.mean_bytes.ok_or_else(no_lengths);
        let of_link = |part| Ok::<_, Error>(part * self.speed.ok_or_else(no_speed)?);
        let pps = match (self.unit, rate) {
            (Unit::Packet, Rate::Packets(pps)) => pps,
            (Unit::Packet, Rate::Layer1(bits)) => layer1(bits, bytes()?),
            (Unit::Packet, Rate::Layer2(bits)) => bits / 8.0 / bytes()?,
            (Unit::Packet, Rate::OfLink(part)) => layer1(of_link(part)?, bytes()?),
            (Unit::BYTE_OF_LAYER1, Rate::Layer1(bits)) => bits / 8.0,
            (Unit::BYTE_OF_LAYER1, Rate::OfLink(part)) => of_link(part)? / 8.0,
            (Unit::BYTE_OF_LAYER2, Rate::Layer2(bits)) => bits / 8.0,
            (Unit::Byte { .. }, _) => return Err(other_unit()),
        };
        let pace = Pace { pps, burst: self.burst };
        match pace.period() {
            Period::NEVER => Err(Error::Usage(
                "that rate is so low that the next packet would be due in years: give a higher one"
                    .into(),
            )),
            _ => Ok(pace),
        }
    }

    /// The pace of no packets at all.
    pub fn none(&self) -> Pace {
        Pace { pps: 0.0, burst: self.burst }
    }
}

fn other_unit() -> Error {
    Error::Usage("the rate began as one of bits: give another of the same layer".into())
}

fn no_speed() -> Error {
    Error::Usage("the interface does not say how fast it is: give a rate in pps or bps".into())
}

fn no_lengths() -> Error {
    Error::Usage("packets differ in length, and nobody knows how much: give the rate in pps".into())
}

/// More than any rate needs; what is longer is none.
const MAX_BYTES: u64 = 100;

/// The request in a rate file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// This rate.
    Rate(Rate),
    /// Nothing is to be sent until there is a rate again.
    Pause,
}

/// The file, and what stood in it at the last look.
#[derive(Debug)]
pub struct RateFile {
    path: PathBuf,
    seen: Option<Result<String, ErrorKind>>,
}

impl RateFile {
    /// Looks at nothing yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, seen: None }
    }

    /// Returns the file's request if it has changed, or its error, once. Ignores an empty file: its
    /// writer has just begun.
    pub fn look(&mut self) -> Option<Result<Wanted, String>> {
        let text = self.read();
        let seen = text.as_ref().map(String::clone).map_err(std::io::Error::kind);
        if text.as_ref().is_ok_and(String::is_empty) || self.seen.as_ref() == Some(&seen) {
            return None;
        }
        self.seen = Some(seen);
        let wanted = text.map_err(|error| error.to_string()).and_then(|text| wanted(&text));
        Some(wanted.map_err(|reason| format!("--rate-file {}: {reason}", self.path.display())))
    }

    fn read(&self) -> std::io::Result<String> {
        // Another kind of file might keep us waiting.
        if !std::fs::metadata(&self.path)?.is_file() {
            return Err(std::io::Error::new(ErrorKind::InvalidInput, "this is no regular file"));
        }
        let mut bytes = Vec::new();
        File::open(&self.path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }
}

fn wanted(text: &str) -> Result<Wanted, String> {
    match text {
        "pause" => Ok(Wanted::Pause),
        _ => text.parse().map(Wanted::Rate).map_err(|right| format!("'{text}': {right}, or pause")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let unknown = Measure { mean_bytes: None, speed: None, ..measure };
        assert!(
            unknown.pace(Rate::Layer1(1e6)).is_err() && unknown.pace(Rate::OfLink(0.5)).is_err()
        );
    }

    #[test]
    fn what_a_file_asks_for_and_what_is_wrong_with_it_is_said_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rate");
        let mut file = RateFile::new(path.clone());
        assert!(file.look().is_some_and(|it| it.is_err()), "it is not there");
        assert_eq!(file.look(), None, "which is said once");
        let rate = |pps| Some(Ok(Wanted::Rate(Rate::Packets(pps))));
        let written = |text: &str| std::fs::write(&path, text).unwrap();
        for (sentence, text, pps) in [("a rate", "10kpps\n", 1e4), ("another", "2Mpps", 2e6)] {
            written(text);
            assert_eq!(file.look(), rate(pps), "{sentence}");
            assert_eq!(file.look(), None, "{sentence}: once");
        }
        written("");
        assert_eq!(file.look(), None, "about to be written");
        written("fast");
        let wrong = file.look().unwrap().unwrap_err();
        assert!(wrong.contains("'fast'") && wrong.contains("1Mpps"), "{wrong}");
        assert_eq!(file.look(), None, "once, too");
        written(" pause \n");
        assert_eq!(file.look(), Some(Ok(Wanted::Pause)));
        written(&"9".repeat(5000));
        assert!(file.look().unwrap().is_err(), "no rate is so long");
        let mut folder = RateFile::new(folder.path().to_owned());
        assert!(folder.look().unwrap().unwrap_err().contains("no regular file"));
    }
}
