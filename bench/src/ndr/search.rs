//! Throughput (RFC 2544, 26.1): the fastest rate at which a device loses at most a given share of the
//! packets.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::trial::{Goal, Offer, Trial, TrialOutcome, Until};
use crate::observer::Failure;

/// The fastest rate that a device sustains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Packets per second.
    pub pps: f64,
    /// The share that was lost in the confirming trial, from 0 to 1.
    pub lost: f64,
    /// True if the sender is the limit, not the device.
    pub sender_limits: bool,
}

/// The result of a search, possibly partial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchResult {
    /// The fastest sustained rate; absent if packets are lost at any rate, or it is not known yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Throughput>,
    /// The sender's highest rate, in packets a second.
    pub most_pps: f64,
    /// The trials that led there, in order.
    pub trials: Vec<Tried>,
}

/// A trial and its result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// The requested rate in packets a second; absent for full speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_pps: Option<f64>,
    /// The offered rate.
    pub offered_pps: f64,
    /// The share that was lost, from 0 to 1.
    pub lost: f64,
}

/// Minimum of packets of a trial: fewer do not show a loss of 0.1 %.
const MIN_PACKETS: f64 = 1000.0;
/// Maximum of trials of a rate that the sender does not keep. After a rate that it never kept, other rates
/// are tried once.
const MAX_TRIES: u32 = 5;

/// Halves the interval between a sustained rate and one that is not. `found` keeps the results before an error.
///
/// # Errors
/// A trial could not be done; no packet comes through the device, at full speed nor at a low rate.
pub fn throughput(
    trial: &mut dyn Trial,
    bytes: u32,
    goal: &Goal,
    found: &mut SearchResult,
) -> Result<(), Failure> {
    let mut search = Search { trial, bytes, goal, tries: MAX_TRIES, tried: &mut found.trials };
    let first = search.offer(FULL_SPEED, goal.time)?;
    found.most_pps = first.offered_pps();
    if first.received == 0 {
        let slow = search.offer(search.least(), goal.time)?;
        if slow.received == 0 {
            return Err(Failure::of(format!(
                "no packet has left the device, at full speed nor at {:.0} packets a second: check that it \
                 forwards from the first interface to the second, and set --dmac if it routes",
                slow.offered_pps()
            )));
        }
    }
    let most = |by_sender| Above { pps: found.most_pps, by_sender };
    let (passed, above) = match search.lost_too_many(&first) {
        false => (search.passed(FULL_SPEED, &first), most(true)),
        true => search.halve(NOTHING, most(false), goal.time)?,
    };
    let confirmed = search.confirm(passed, above);
    // A sender is not equally fast in all trials.
    found.most_pps = found.trials.iter().map(|it| it.offered_pps).fold(0.0, f64::max);
    found.throughput = confirmed?;
    Ok(())
}

/// The rate of a sender without a limit.
const FULL_SPEED: f64 = f64::INFINITY;

/// A rate that a device sustained.
#[derive(Clone, Copy)]
struct PassedRate {
    /// The requested rate.
    target_pps: f64,
    /// The offered rate.
    pps: f64,
    lost: f64,
    /// True if the offered rate is close enough to the requested one.
    kept: bool,
}

/// The start of a search: no rate has passed.
const NOTHING: PassedRate = PassedRate { target_pps: 0.0, pps: 0.0, lost: 0.0, kept: true };

/// A rate that is too high.
#[derive(Clone, Copy)]
struct Above {
    pps: f64,
    /// True if it is too high for the sender; the device might sustain it.
    by_sender: bool,
}

struct Search<'a> {
    trial: &'a mut dyn Trial,
    bytes: u32,
    goal: &'a Goal,
    /// Maximum of trials of a rate.
    tries: u32,
    tried: &'a mut Vec<Tried>,
}

impl Search<'_> {
    /// Halves the interval between a rate that passes and one that is too high down to the resolution. Returns
    /// the highest that passed, and the lowest that did not.
    fn halve(
        &mut self,
        mut passed: PassedRate,
        mut above: Above,
        time: Duration,
    ) -> Result<(PassedRate, Above), Failure> {
        while above.pps - passed.target_pps > self.near() * above.pps {
            let rate = (passed.target_pps + above.pps) / 2.0;
            if rate < self.least() {
                break;
            }
            let outcome = self.ask(rate, time)?;
            let now = self.passed(rate, &outcome);
            if self.lost_too_many(&outcome) {
                above = Above { pps: rate, by_sender: false };
            } else if now.kept || now.pps > passed.pps {
                passed = now;
            } else {
                // This sender offers no more than before.
                above = Above { pps: rate, by_sender: true };
            }
        }
        Ok((passed, above))
    }

    /// Confirms a rate by a longer trial. If it fails, tries lower rates in growing steps, and searches upwards
    /// from the first that passes.
    fn confirm(
        &mut self,
        passed: PassedRate,
        mut above: Above,
    ) -> Result<Option<Throughput>, Failure> {
        let time = self.goal.confirm;
        self.tries = MAX_TRIES;
        let (mut rate, mut step) = (passed.target_pps, self.goal.resolution);
        let mut upwards = false;
        while rate > self.least() {
            let outcome = self.ask(rate, time)?;
            let mut passed = self.passed(rate, &outcome);
            if !self.lost_too_many(&outcome) {
                if upwards {
                    (passed, above) = self.halve(passed, above, time)?;
                }
                let PassedRate { pps, lost, kept, .. } = passed;
                let sender_limits = above.by_sender || !kept;
                return Ok(Some(Throughput { pps, lost, sender_limits }));
            }
            (above, upwards) = (Above { pps: rate.min(passed.pps), by_sender: false }, true);
            rate = above.pps * (1.0 - step);
            step = (step * 2.0).min(0.5);
        }
        Ok(None)
    }

    /// The final difference of two rates, as a share. The sender may deviate by as much again; together they
    /// stay within the resolution.
    fn near(&self) -> f64 {
        self.goal.resolution / 2.0
    }

    /// The lowest rate of a trial, in packets a second.
    fn least(&self) -> f64 {
        MIN_PACKETS / self.goal.time.as_secs_f64()
    }

    fn lost_too_many(&self, outcome: &TrialOutcome) -> bool {
        outcome.lost() > self.goal.loss
    }

    fn passed(&self, target_pps: f64, outcome: &TrialOutcome) -> PassedRate {
        let (pps, lost) = (outcome.offered_pps(), outcome.lost());
        let kept = target_pps == FULL_SPEED || pps >= target_pps * (1.0 - self.near());
        PassedRate { target_pps, pps, lost, kept }
    }

    /// Offers a rate. Repeats the trial if the sender did not keep the rate and the device lost nothing,
    /// because that proves nothing about the device. If the sender never keeps the rate, returns the nearest
    /// trial.
    fn ask(&mut self, rate: f64, time: Duration) -> Result<TrialOutcome, Failure> {
        let mut nearest = self.offer(rate, time)?;
        for _ in 1..self.tries {
            if self.lost_too_many(&nearest) || self.passed(rate, &nearest).kept {
                return Ok(nearest);
            }
            let outcome = self.offer(rate, time)?;
            if self.lost_too_many(&outcome) || outcome.offered_pps() > nearest.offered_pps() {
                nearest = outcome;
            }
        }
        if !self.lost_too_many(&nearest) && !self.passed(rate, &nearest).kept {
            self.tries = 1;
        }
        Ok(nearest)
    }

    fn offer(&mut self, rate: f64, time: Duration) -> Result<TrialOutcome, Failure> {
        let rate = Some(rate).filter(|&rate| rate != FULL_SPEED);
        let offer = Offer { bytes: self.bytes, rate, until: Until::Time(time) };
        let outcome = self.trial.offer(&offer)?;
        let (offered_pps, lost) = (outcome.offered_pps(), outcome.lost());
        self.tried.push(Tried { target_pps: rate, offered_pps, lost });
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::trial::mock::{MockDevice, MockLab};
    use super::*;

    const GOAL: Goal = Goal {
        loss: 0.0,
        resolution: 0.005,
        time: Duration::from_secs(1),
        confirm: Duration::from_secs(5),
    };

    fn search(device: MockDevice, goal: &Goal) -> SearchResult {
        search_by(&mut MockLab::new(device, 5e6), goal)
    }

    fn search_by(lab: &mut MockLab, goal: &Goal) -> SearchResult {
        let mut found = SearchResult::default();
        throughput(lab, 60, goal, &mut found).unwrap();
        found
    }

    #[test]
    fn a_device_that_forwards_nothing_is_an_error_after_two_trials() {
        let mut found = SearchResult::default();
        let mut lab = MockLab::new(MockDevice::Loss { share: 1.0 }, 5e6);
        let error = throughput(&mut lab, 60, &GOAL, &mut found).unwrap_err().to_string();
        assert!(error.starts_with("no packet has left the device"), "{error}");
        assert_eq!(found.trials.len(), 2);
    }

    proptest! {
        #[test]
        fn a_limit_is_found_within_the_resolution(pps in 10e3..4.9e6) {
            let found = search(MockDevice::Limit { pps }, &GOAL);
            let throughput = found.throughput.unwrap();
            prop_assert!(throughput.pps <= pps + 1.0, "{throughput:?}");
            prop_assert!(throughput.pps >= pps * 0.995, "{throughput:?}");
            prop_assert!(!throughput.sender_limits);
            prop_assert!(found.trials.len() < 30, "{} trials", found.trials.len());
        }

        #[test]
        fn a_buffer_does_not_raise_the_throughput(pps in 50e3..4e6, buffer in 1.0..20e3) {
            let found = search(MockDevice::Buffer { pps, buffer }, &GOAL);
            let kept_up = found.throughput.unwrap().pps;
            prop_assert!(kept_up <= pps + buffer / 5.0 + 1.0, "{kept_up}");
            prop_assert!(kept_up >= pps * 0.98, "{kept_up}");
        }

        #[test]
        fn a_drifting_limit_gives_a_sustained_rate(
            pps in 50e3..4e6, drift in 0.0..0.1,
        ) {
            let kept_up = search(MockDevice::Drift { pps, drift }, &GOAL).throughput.unwrap().pps;
            prop_assert!(kept_up <= pps * (1.0 + drift) + 1.0, "{kept_up}");
            prop_assert!(kept_up >= pps * (1.0 - drift) * 0.85, "{kept_up}");
        }

        #[test]
        fn a_loss_at_any_rate_leaves_no_throughput_unless_it_is_allowed(share in 0.01..0.5) {
            let device = MockDevice::Loss { share };
            prop_assert_eq!(search(device, &GOAL).throughput, None);
            let found = search(device, &Goal { loss: share * 1.1, ..GOAL });
            let throughput = found.throughput.unwrap();
            prop_assert!(throughput.sender_limits && throughput.pps > 4.9e6, "{throughput:?}");
        }
    }

    #[test]
    fn a_rate_that_the_sender_did_not_keep_to_is_asked_for_again() {
        let mut lab = MockLab::new(MockDevice::Limit { pps: 1e6 }, 5e6).late(3);
        let throughput = search_by(&mut lab, &GOAL).throughput.unwrap();
        assert!((0.995e6..=1e6).contains(&throughput.pps), "{throughput:?}");
        assert!(!throughput.sender_limits);
    }

    #[test]
    fn a_sender_that_never_keeps_to_a_rate_is_said_to_be_the_limit_and_finds_no_more_than_there_is()
    {
        let mut lab = MockLab::new(MockDevice::Limit { pps: 1e6 }, 5e6).late(u32::MAX);
        let throughput = search_by(&mut lab, &GOAL).throughput.unwrap();
        assert!(throughput.sender_limits && throughput.pps <= 1e6, "{throughput:?}");
        assert!(throughput.pps >= 0.99e6, "{throughput:?}");
    }

    #[test]
    fn a_device_that_is_faster_than_the_sender_is_said_to_be() {
        let found = search(MockDevice::Limit { pps: 9e6 }, &GOAL);
        assert!(found.throughput.unwrap().sender_limits);
        assert_eq!((found.most_pps, found.trials.len()), (5e6, 2));
    }

    #[test]
    fn loss_at_any_rate_is_none() {
        assert_eq!(search(MockDevice::Loss { share: 0.5 }, &GOAL).throughput, None);
    }
}
