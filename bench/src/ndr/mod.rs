//! RFC 2544: the fastest rate at which a device forwards packets without loss, and its latency, loss and bursts.
//!
//! ```text
//!   search --> Trial: offer packets of a size at a rate --> sent, received, latencies
//!                |
//!                +-- device_trial: sluice generate --stamp --> the device --> sluice count --analyze
//!                +-- trial::mock: a simulated device, for tests
//! ```
//!
//! | module | section | result |
//! | --- | --- | --- |
//! | [`search`] | 26.1 | throughput: the fastest rate without loss, by halving |
//! | [`trial`] | 26.2 to 26.4 | latency, loss, and the longest burst without loss |

pub mod device_trial;
pub mod search;
pub mod trial;

use serde::{Deserialize, Serialize};

use crate::observer::Failure;
#[cfg(doc)]
use crate::step::Setting;
use crate::step::is_mixed;
use search::SearchResult;
use trial::{BackToBack, Goal, LatencyAt, LossAt, Trial};

/// The shares of the throughput at which latency is measured.
const LOADS: [f64; 4] = [0.1, 0.5, 0.9, 1.0];

/// The results of a test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NdrResults {
    /// The definition of throughput.
    #[serde(flatten)]
    pub goal: Goal,
    /// By size of frames, in the requested order.
    pub sizes: Vec<OfSize>,
    /// False if it was stopped before the end.
    pub complete: bool,
}

/// The results for one frame size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OfSize {
    /// Bytes of a frame, without its check sequence; [`Setting::MIXED`] for IMIX.
    #[serde(skip_serializing_if = "is_mixed", default)]
    pub size: u32,
    /// The throughput, and the trials that led there.
    #[serde(flatten)]
    pub found: SearchResult,
    /// At shares of the throughput.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub latency: Vec<LatencyAt>,
    /// At shares of the highest offered rate.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub loss: Vec<LossAt>,
    /// The longest burst.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_to_back: Option<BackToBack>,
}

/// Measures devices, size by size. If the test is stopped, the results until then remain.
///
/// # Errors
/// A trial could not be done.
pub fn run(trial: &mut dyn Trial, goal: Goal, sizes: &[u32]) -> Result<NdrResults, Failure> {
    let mut results = NdrResults { goal, sizes: Vec::new(), complete: true };
    for &size in sizes {
        let mut of_size = OfSize { size, ..OfSize::default() };
        let outcome = of_size.measure(trial, &goal);
        results.sizes.push(of_size);
        match outcome {
            Err(Failure::Stopped) => {
                results.complete = false;
                break;
            }
            outcome => outcome?,
        }
    }
    Ok(results)
}

impl OfSize {
    fn measure(&mut self, trial: &mut dyn Trial, goal: &Goal) -> Result<(), Failure> {
        let size = self.size;
        search::throughput(trial, size, goal, &mut self.found)?;
        let SearchResult { throughput, most_pps, .. } = self.found;
        if let Some(throughput) = throughput {
            let pps = throughput.pps;
            trial::latency(trial, size, pps, &LOADS, goal.time, &mut self.latency)?;
        }
        trial::loss(trial, size, most_pps, goal.time, &mut self.loss)?;
        self.back_to_back = Some(trial::back_to_back(trial, size, most_pps, goal)?);
        Ok(())
    }
}

impl NdrResults {
    /// True if no trial has finished.
    pub fn are_none(&self) -> bool {
        self.sizes.iter().all(|of_size| of_size.found.trials.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::trial::mock::{MockDevice, MockLab};
    use super::trial::{Latency, Offer, TrialOutcome};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const GOAL: Goal = Goal { loss: 0.0, resolution: 0.005, time: SECOND, confirm: SECOND };
    const SIZES: [u32; 2] = [60, 1514];

    #[test]
    fn every_size_is_measured() {
        let mut lab = MockLab::new(MockDevice::Buffer { pps: 1e6, buffer: 1000.0 }, 4e6);
        let findings = run(&mut lab, GOAL, &SIZES).unwrap();
        assert!(findings.complete && findings.sizes.len() == 2);
        let first = &findings.sizes[0];
        assert!((first.found.throughput.unwrap().pps - 1e6).abs() < 10e3, "{first:?}");
        assert!(first.back_to_back.unwrap().packets > 1000);
    }

    #[test]
    fn results_before_a_stop_remain() {
        struct Stops(MockLab, u32);
        impl Trial for Stops {
            fn offer(&mut self, offer: &Offer) -> Result<TrialOutcome, Failure> {
                self.1 = self.1.checked_sub(1).ok_or(Failure::Stopped)?;
                let latency = Some(Latency { p50_ns: 1, p99_ns: 2, p99_9_ns: 3, max_ns: 4 });
                Ok(TrialOutcome { latency, ..self.0.offer(offer)? })
            }
        }
        for trials in 0..9 {
            let lab = MockLab::new(MockDevice::Limit { pps: 9e6 }, 4e6);
            let findings = run(&mut Stops(lab, trials), GOAL, &SIZES).unwrap();
            assert!(!findings.complete);
            assert_eq!(findings.are_none(), trials == 0);
            let OfSize { found, latency, loss, back_to_back, .. } = &findings.sizes[0];
            // The first and the one that confirms; four of the latency, two of the loss, then a burst.
            assert_eq!(found.trials.len(), trials.min(2) as usize, "{findings:?}");
            assert_eq!(found.throughput.is_some(), trials >= 2, "{findings:?}");
            assert_eq!(found.most_pps > 0.0, trials >= 1);
            assert_eq!(latency.len(), trials.saturating_sub(2).min(4) as usize, "{findings:?}");
            assert_eq!(loss.len(), trials.saturating_sub(6).min(2) as usize, "{findings:?}");
            assert!(back_to_back.is_none());
        }
    }
}
