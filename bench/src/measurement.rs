//! What one step showed in one round.

use serde::{Deserialize, Serialize};

/// What one step showed in one round. A quantity that could not be had is absent, not zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Packets in millions a second: received, sent or dropped, as the ladder is.
    pub mpps: f64,
    /// Packets that were sent at the same time, in millions a second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub offered_mpps: Option<f64>,
    /// The share of the packets sent that did not arrive, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lost: Option<f64>,
    /// Time that the threads of the measured program were on a CPU, waiting by spinning included,
    /// in ns a packet. The kernel's work in softirqs is in it only where it interrupted them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_ns: Option<f64>,
    /// What each CPU did meanwhile, whoever had it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub cpus: Vec<CpuShare>,
    /// Where the time went, the largest share first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub causes: Vec<Cause>,
    /// What to do about it, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub advice: Option<String>,
    /// Why the causes are doubtful, where they are.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub doubt: Option<String>,
}

/// What one CPU did while a step ran.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuShare {
    /// Its number.
    pub cpu: u32,
    /// The share of the time it was not idle, from 0 to 1.
    pub busy: f64,
    /// That time in ns a packet.
    pub ns: f64,
}

/// A group of functions that time went to, which somebody can do something about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    /// Its name: "copying", "wakeups".
    pub name: String,
    /// Its share of the time in which the CPUs were not idle, from 0 to 1.
    pub share: f64,
    /// That time in ns a packet.
    pub ns: f64,
    /// The functions that took most of it, the first the most.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub functions: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_had_is_absent_and_read_back_as_that() {
        let measurement = Measurement { mpps: 1.5, lost: Some(0.0), ..Measurement::default() };
        let text = serde_json::to_string(&measurement).unwrap();
        assert_eq!(text, r#"{"mpps":1.5,"lost":0.0}"#);
        assert_eq!(serde_json::from_str::<Measurement>(&text).unwrap(), measurement);
    }
}
