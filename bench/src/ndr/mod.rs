//! RFC 2544: how fast a device passes packets on without losing any, and how it does besides.
//!
//! ```text
//!   search --> Trial: offer packets of a size at a rate --> sent, received, latencies
//!                |
//!                +-- device_trial: sluice generate --stamp --> the device --> sluice count --analyze
//!                +-- trial::mock: a simulated device, for tests
//! ```
//!
//! | module | section | what it finds |
//! | --- | --- | --- |
//! | [`search`] | 26.1 | throughput: the fastest rate without loss, by halving |
//! | [`trial`] | 26.2 to 26.4 | latency, loss, and the longest burst without loss |

pub mod device_trial;
pub mod search;
pub mod trial;

use serde::Serialize;

use crate::failure::Failure;
use search::{Goal, SearchResult};
use trial::{BackToBack, LatencyAt, LossAt, Trial};

/// The parameters of a test.
#[derive(Clone, Debug)]
pub struct NdrSettings {
    /// Bytes of frames, without their check sequence.
    pub sizes: Vec<u32>,
    /// The definition of throughput.
    pub goal: Goal,
    /// At which shares of it latency is measured, from 0 to 1.
    pub loads: Vec<f64>,
}

impl NdrSettings {
    /// About how many trials that takes, to tell how far it is.
    pub fn trials(&self) -> usize {
        let halvings = 1.0 - self.goal.resolution.log2();
        // The first, and the one that confirms; the loss curve; twice a burst.
        let of_size = halvings + 2.0 + self.loads.len() as f64 + 6.0 + 10.0;
        self.sizes.len() * of_size.ceil() as usize
    }
}

/// The results of a test.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NdrResults {
    /// By size of frames, in the order that was asked for.
    pub sizes: Vec<OfSize>,
    /// False where it was stopped before all was known.
    pub complete: bool,
}

/// The results for one frame size.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OfSize {
    /// Bytes of a frame, without its check sequence.
    pub size: u32,
    /// The throughput, and the trials that led there.
    #[serde(flatten)]
    pub found: SearchResult,
    /// At shares of the throughput.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<LatencyAt>,
    /// At shares of the most that can be offered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loss: Vec<LossAt>,
    /// The longest burst.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_to_back: Option<BackToBack>,
}

/// Finds out all of it, size by size. Where it is stopped, what is known until then remains.
///
/// # Errors
/// A trial could not be done.
pub fn run(trial: &mut dyn Trial, settings: &NdrSettings) -> Result<NdrResults, Failure> {
    let mut findings = NdrResults { sizes: Vec::new(), complete: true };
    for &size in &settings.sizes {
        findings.sizes.push(OfSize { size, ..OfSize::default() });
        let Some(of_size) = findings.sizes.last_mut() else { break };
        match one(trial, settings, of_size) {
            Err(Failure::Stopped) => {
                findings.complete = false;
                break;
            }
            other => other?,
        }
    }
    Ok(findings)
}

fn one(trial: &mut dyn Trial, settings: &NdrSettings, of: &mut OfSize) -> Result<(), Failure> {
    let NdrSettings { goal, loads, .. } = settings;
    let size = of.size;
    search::throughput(trial, size, goal, &mut of.found)?;
    let SearchResult { throughput, most_pps, .. } = of.found;
    if let Some(throughput) = throughput {
        trial::latency(trial, size, throughput.pps, loads, goal.time, &mut of.latency)?;
    }
    trial::loss(trial, size, most_pps, goal.time, &mut of.loss)?;
    // A burst has no rate to be near to: a fiftieth is near enough.
    let resolution = goal.resolution.max(0.02);
    let Goal { loss, confirm, .. } = *goal;
    let burst = trial::back_to_back(trial, size, most_pps, loss, resolution, confirm)?;
    of.back_to_back = Some(burst);
    Ok(())
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

    use super::trial::mock::{Lab, MockDevice};
    use super::trial::{Latency, Offer, TrialOutcome};
    use super::*;

    fn settings() -> NdrSettings {
        let second = Duration::from_secs(1);
        let goal = Goal { loss: 0.0, resolution: 0.005, time: second, confirm: second };
        NdrSettings { sizes: vec![60, 1514], goal, loads: vec![0.5, 1.0] }
    }

    #[test]
    fn every_size_is_found_out() {
        let mut lab = Lab::new(MockDevice::Buffer { pps: 1e6, buffer: 1000.0 }, 4e6);
        let findings = run(&mut lab, &settings()).unwrap();
        assert!(findings.complete && findings.sizes.len() == 2);
        let first = &findings.sizes[0];
        assert!((first.found.throughput.unwrap().pps - 1e6).abs() < 10e3, "{first:?}");
        assert!(first.back_to_back.unwrap().packets > 1000);
    }

    #[test]
    fn what_is_known_when_it_is_stopped_remains() {
        struct Stops(Lab, u32);
        impl Trial for Stops {
            fn offer(&mut self, offer: &Offer) -> Result<TrialOutcome, Failure> {
                self.1 = self.1.checked_sub(1).ok_or(Failure::Stopped)?;
                let latency = Some(Latency { p50_ns: 1, p99_ns: 2, p99_9_ns: 3, max_ns: 4 });
                Ok(TrialOutcome { latency, ..self.0.offer(offer)? })
            }
        }
        for trials in 0..7 {
            let lab = Lab::new(MockDevice::Limit { pps: 9e6 }, 4e6);
            let findings = run(&mut Stops(lab, trials), &settings()).unwrap();
            assert!(!findings.complete);
            assert_eq!(findings.are_none(), trials == 0);
            let OfSize { found, latency, loss, back_to_back, .. } = &findings.sizes[0];
            // The first and the one that confirms; two of the latency, two of the loss, then a burst.
            assert_eq!(found.trials.len(), trials.min(2) as usize, "{findings:?}");
            assert_eq!(found.throughput.is_some(), trials >= 2, "{findings:?}");
            assert_eq!(found.most_pps > 0.0, trials >= 1);
            assert_eq!(latency.len(), trials.saturating_sub(2).min(2) as usize, "{findings:?}");
            assert_eq!(loss.len(), trials.saturating_sub(4) as usize, "{findings:?}");
            assert!(back_to_back.is_none());
        }
    }
}
