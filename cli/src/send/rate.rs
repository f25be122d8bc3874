//! How fast to send, as people say it.

use std::str::FromStr;

use sluicegate::error::{Error, Result};
use sluicegate::units;
use sluicegate_traffic::plan::Plan;
use sluicegate_traffic::rate::Pace;

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
        let number = |text: &str| match units::count(text.trim()) {
            Ok(0) | Err(_) => Err(RIGHT.to_owned()),
            Ok(number) => Ok(number as f64),
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
    /// The pace of packets whose lengths nobody knows before; none for rates of bits.
    pub fn of_packets(self) -> Option<Pace> {
        match self {
            Self::Packets(pps) => Some(Pace { pps, burst: 1 }),
            Self::Layer1(_) | Self::Layer2(_) | Self::OfLink(_) => None,
        }
    }

    /// The pace of a plan's packets at this rate. `speed` is the link's, in bit/s.
    ///
    /// # Errors
    /// A part of a link whose speed nobody knows.
    pub fn pace(self, plan: &Plan, burst: u32, speed: Option<f64>) -> Result<Pace> {
        let bytes = plan.mean_bytes();
        let layer1 = |bits: f64| bits / 8.0 / (bytes + L1_OVERHEAD_BYTES as f64);
        let pps = match self {
            Self::Packets(pps) => pps,
            Self::Layer1(bits) => layer1(bits),
            Self::Layer2(bits) => bits / 8.0 / bytes,
            Self::OfLink(part) => layer1(part * speed.ok_or_else(no_speed)?),
        };
        Ok(Pace { pps, burst })
    }
}

fn no_speed() -> Error {
    Error::Usage("the interface does not say how fast it is: give a rate in pps or bps".into())
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
        ] {
            assert_eq!(text.parse::<Rate>().map_err(|_| ()), rate, "{text}");
        }
    }
}
