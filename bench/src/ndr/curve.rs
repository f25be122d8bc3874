//! How a device does at rates around its throughput: latency (RFC 2544, 26.2) and frame loss (26.3).

use std::time::Duration;

use serde::Serialize;

use super::trial::{Latency, Offer, Trial, Until};
use crate::failure::Failure;

/// How long packets take at a share of the throughput.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyAt {
    /// The share, from 0 to 1.
    pub of_throughput: f64,
    /// What was offered, in packets a second.
    pub offered_pps: f64,
    /// What it took.
    #[serde(flatten)]
    pub latency: Latency,
}

/// What is lost at a share of the most that can be offered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LossAt {
    /// The share, from 0 to 1.
    pub of_most: f64,
    /// What was offered, in packets a second.
    pub offered_pps: f64,
    /// The share of that which was lost, from 0 to 1.
    pub lost: f64,
}

/// Latency at these shares of a throughput. `points` has what is known, also where there is an error.
///
/// # Errors
/// A trial could not be done.
pub fn latency(
    trial: &mut dyn Trial,
    bytes: u32,
    throughput_pps: f64,
    shares: &[f64],
    time: Duration,
    points: &mut Vec<LatencyAt>,
) -> Result<(), Failure> {
    for &of_throughput in shares {
        let rate = Some(throughput_pps * of_throughput);
        let outcome = trial.offer(&Offer { bytes, rate, until: Until::Time(time) })?;
        let offered_pps = outcome.offered_pps();
        let point = |latency| LatencyAt { of_throughput, offered_pps, latency };
        points.extend(outcome.latency.map(point));
    }
    Ok(())
}

/// Frame loss from the most that can be offered downwards, a tenth a step, until two steps in a row
/// are without. `points` has what is known, also where there is an error.
///
/// # Errors
/// A trial could not be done.
pub fn loss(
    trial: &mut dyn Trial,
    bytes: u32,
    most_pps: f64,
    time: Duration,
    points: &mut Vec<LossAt>,
) -> Result<(), Failure> {
    for tenths in (1..=10).rev() {
        let of_most = f64::from(tenths) / 10.0;
        let rate = (tenths < 10).then_some(most_pps * of_most);
        let outcome = trial.offer(&Offer { bytes, rate, until: Until::Time(time) })?;
        let (offered_pps, lost) = (outcome.offered_pps(), outcome.lost());
        points.push(LossAt { of_most, offered_pps, lost });
        if let [.., before, last] = points[..]
            && before.lost == 0.0
            && last.lost == 0.0
        {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::model::{Lab, MockDevice};
    use super::*;

    fn points(device: MockDevice) -> Vec<LossAt> {
        let mut points = Vec::new();
        loss(&mut Lab::new(device, 1e6), 60, 1e6, Duration::from_secs(1), &mut points).unwrap();
        points
    }

    #[test]
    fn loss_is_followed_down_until_there_is_none() {
        let points = points(MockDevice::Limit { pps: 0.75e6 });
        let seen: Vec<(f64, f64)> = points.iter().map(|it| (it.of_most, it.lost)).collect();
        assert_eq!(seen.len(), 5, "{seen:?}");
        assert_eq!(seen[0], (1.0, 0.25));
        assert_eq!(seen[4], (0.6, 0.0));
    }

    #[test]
    fn a_loss_that_never_ends_is_followed_to_the_end() {
        let points = points(MockDevice::Loss { share: 0.001 });
        assert_eq!(points.len(), 10);
        assert!(points.iter().all(|it| (it.lost - 0.001).abs() < 1e-4), "{points:?}");
    }
}
