//! Measurements of a step: of one round, and over all rounds.

use serde::{Deserialize, Serialize};

use crate::statistics::Spread;

/// Quantities measured of a step: a number each in one round, a [`Spread`] over all rounds. A quantity
/// that could not be measured is absent, not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures<T> {
    /// Packets in millions a second: received, sent or dropped, by suite.
    pub mpps: T,
    /// Packets that were sent at the same time, in millions a second.
    #[serde(skip_serializing_if = "Option::is_none", default = "absent")]
    pub offered_mpps: Option<T>,
    /// The share of the packets sent that did not arrive, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default = "absent")]
    pub lost: Option<T>,
    /// CPU time of the measured program's threads in ns a packet, spinning included. Softirqs count only if they
    /// interrupted these threads.
    #[serde(skip_serializing_if = "Option::is_none", default = "absent")]
    pub cpu_ns: Option<T>,
}

/// Default of an absent field; serde's own would require `T: Default`.
fn absent<T>() -> Option<T> {
    None
}

impl Figures<Spread> {
    /// Figures over several rounds; none without a round.
    pub fn over(rounds: &[Figures<f64>]) -> Option<Self> {
        let spread =
            |of: fn(&Figures<f64>) -> Option<f64>| Spread::of(rounds.iter().filter_map(of));
        Some(Self {
            mpps: spread(|it| Some(it.mpps))?,
            offered_mpps: spread(|it| it.offered_mpps),
            lost: spread(|it| it.lost),
            cpu_ns: spread(|it| it.cpu_ns),
        })
    }
}

/// The measurement of one step in one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Its rate and losses.
    #[serde(flatten)]
    pub figures: Figures<f64>,
    /// The causes.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// Longest round trip of a cache line between the sender's and the receiver's CPU during the turn, in
    /// nanoseconds; none if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apart_ns: Option<u64>,
}

/// The CPU time by CPU and by cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The load of each CPU during the step, by all programs.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub cpus: Vec<CpuShare>,
    /// The causes of the time, the largest share first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub causes: Vec<Cause>,
    /// One sentence of advice.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub advice: Option<String>,
    /// Why the causes are doubtful; none if they are not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub doubt: Option<String>,
}

/// The load of one CPU during a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuShare {
    /// Its number.
    pub cpu: u32,
    /// The share of the time it was not idle, from 0 to 1.
    pub busy: f64,
    /// That time in ns a packet.
    pub ns: f64,
}

/// A group of functions that took time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    /// Its name: "copying", "wakeups".
    pub name: String,
    /// Its share of the time in which the CPUs were not idle, from 0 to 1.
    pub share: f64,
    /// That time in ns a packet.
    pub ns: f64,
    /// The functions that took most of it, the largest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub functions: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_quantity_is_absent_in_json() {
        let figures = Figures { mpps: 1.5, lost: Some(0.0), ..Figures::default() };
        let measurement = Measurement { figures, ..Measurement::default() };
        let text = serde_json::to_string(&measurement).unwrap();
        assert_eq!(text, r#"{"mpps":1.5,"lost":0.0}"#);
        assert_eq!(serde_json::from_str::<Measurement>(&text).unwrap(), measurement);
    }

    #[test]
    fn a_quantity_is_spread_over_the_rounds_that_have_it() {
        let rounds = [(1.0, None), (3.0, Some(0.5))].map(|(mpps, lost)| Figures {
            mpps,
            lost,
            ..Figures::default()
        });
        let figures = Figures::over(&rounds).unwrap();
        assert_eq!(figures.mpps, Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(figures.lost, Some(Spread { median: 0.5, min: 0.5, max: 0.5 }));
        assert_eq!((figures.cpu_ns, Figures::over(&[])), (None, None));
        let text = serde_json::to_string(&figures).unwrap();
        assert_eq!(serde_json::from_str::<Figures<Spread>>(&text).unwrap(), figures);
    }
}
