//! Throughput (RFC 2544, 26.1): the fastest rate at which a device loses no packets, or no more than
//! a given share.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::trial::{Offer, Outcome, Trial, Until};
use crate::failure::Failure;

/// What counts as having found it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// The share of packets that may be lost, from 0 to 1.
    pub loss: f64,
    /// How near the answer shall be, as a share of it.
    pub resolution: f64,
    /// The length of a trial.
    pub time: Duration,
    /// The length of the last one, which has to confirm the answer: a device with a large buffer
    /// passes short trials at rates that it cannot keep up.
    pub confirm: Duration,
}

/// The fastest rate that was kept up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Packets a second.
    pub pps: f64,
    /// The share that was lost as that was confirmed, from 0 to 1.
    pub lost: f64,
    /// The device might do more: the sender could not.
    pub sender_limits: bool,
}

/// What a search has found, so far or in the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The fastest rate that was kept up; absent where packets are lost at any, or it is not known yet.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub throughput: Option<Throughput>,
    /// The most that the sender could offer, in packets a second.
    pub most_pps: f64,
    /// The trials that led there, in order.
    pub trials: Vec<Tried>,
}

impl Tried {
    /// Whether what was lost may have been lost because of the sender.
    pub fn in_doubt(&self) -> bool {
        self.lost > 0.0 && self.late_ns > LATE_NS
    }
}

/// One trial and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// What was asked of the sender, in packets a second; absent for as fast as it could.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub asked_pps: Option<f64>,
    /// What it offered.
    pub offered_pps: f64,
    /// The share that was lost, from 0 to 1.
    pub lost: f64,
    /// How late the sender was at worst, in ns.
    pub late_ns: u64,
}

/// Trials at fewer packets than this say nothing of a loss of parts of a thousand.
const LEAST_PACKETS: f64 = 1000.0;
/// A sender that offers less than this share of what was asked did not do it.
const KEPT: f64 = 0.98;
/// A sender that is later than this has offered a burst, and not the rate: what is lost then may have
/// been lost to the burst.
const LATE_NS: u64 = 1_000_000;
/// How often a rate is asked for in all that the sender did not keep to.
const TRIES: u32 = 5;

/// Searches, by halving the interval between a rate that was kept up and one that was not. `found` has
/// what is known, also where there is an error.
///
/// # Errors
/// A trial could not be done.
pub fn throughput(
    trial: &mut dyn Trial,
    bytes: u32,
    goal: &Goal,
    found: &mut Found,
) -> Result<(), Failure> {
    let mut search = Search { trial, bytes, goal, tried: &mut found.trials };
    let first = search.offer(None, goal.time)?;
    let lost = first.lost();
    found.most_pps = first.offered_pps();
    let best = if lost <= goal.loss {
        Throughput { pps: found.most_pps, lost, sender_limits: true }
    } else {
        let nothing = Throughput { pps: 0.0, lost: 0.0, sender_limits: false };
        search.halve(nothing, found.most_pps, goal.time)?
    };
    found.throughput = search.confirm(best)?;
    Ok(())
}

struct Search<'a> {
    trial: &'a mut dyn Trial,
    bytes: u32,
    goal: &'a Goal,
    tried: &'a mut Vec<Tried>,
}

impl Search<'_> {
    /// The rate between one that passes and one that does not from which on packets are lost, as near
    /// as is wanted, by trials of a length: the highest that passed, with its loss.
    fn halve(
        &mut self,
        mut passes: Throughput,
        mut fails: f64,
        time: Duration,
    ) -> Result<Throughput, Failure> {
        while fails - passes.pps > self.goal.resolution * fails && fails > self.least() {
            let rate = (passes.pps + fails) / 2.0;
            let outcome = self.ask(rate, time)?;
            let (pps, lost) = (outcome.offered_pps(), outcome.lost());
            if lost > self.goal.loss {
                fails = rate;
            } else if pps >= KEPT * rate {
                passes = Throughput { pps, lost, sender_limits: false };
            } else {
                // More than that cannot be had of this sender.
                fails = rate;
                if pps > passes.pps {
                    passes = Throughput { pps, lost, sender_limits: true };
                }
            }
        }
        Ok(passes)
    }

    /// Tries for longer what has passed. Where it is not kept up, lower rates, in steps that grow,
    /// and from one that is upwards again.
    fn confirm(&mut self, passed: Throughput) -> Result<Option<Throughput>, Failure> {
        let (mut rate, mut step) = (passed.pps, self.goal.resolution);
        let mut sender_limits = passed.sender_limits;
        let mut fails = None;
        while rate > self.least() {
            let outcome = match sender_limits && self.tried.len() == 1 {
                true => self.offer(None, self.goal.confirm)?,
                false => self.ask(rate, self.goal.confirm)?,
            };
            let (pps, lost) = (outcome.offered_pps(), outcome.lost());
            if lost <= self.goal.loss {
                let passes = Throughput { pps, lost, sender_limits };
                return match fails {
                    None => Ok(Some(passes)),
                    Some(fails) => self.halve(passes, fails, self.goal.confirm).map(Some),
                };
            }
            (fails, sender_limits) = (Some(rate), false);
            rate *= 1.0 - step;
            step = (step * 2.0).min(0.5);
        }
        Ok(None)
    }

    /// The lowest rate that is tried, in packets a second.
    fn least(&self) -> f64 {
        LEAST_PACKETS / self.goal.time.as_secs_f64()
    }

    /// Offers a rate, again where the sender was at fault: it kept a device that loses nothing waiting,
    /// or overran one that does.
    fn ask(&mut self, rate: f64, time: Duration) -> Result<Outcome, Failure> {
        let mut outcome = self.offer(Some(rate), time)?;
        for _ in 1..TRIES {
            let fault = match outcome.lost() > self.goal.loss {
                true => outcome.late_ns > LATE_NS,
                false => outcome.offered_pps() < KEPT * rate,
            };
            if !fault {
                break;
            }
            outcome = self.offer(Some(rate), time)?;
        }
        Ok(outcome)
    }

    fn offer(&mut self, rate: Option<f64>, time: Duration) -> Result<Outcome, Failure> {
        let offer = Offer { bytes: self.bytes, rate, until: Until::Time(time) };
        let outcome = self.trial.offer(&offer)?;
        let (offered_pps, lost) = (outcome.offered_pps(), outcome.lost());
        let late_ns = outcome.late_ns;
        self.tried.push(Tried { asked_pps: rate, offered_pps, lost, late_ns });
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::model::{Device, Lab};
    use super::*;

    const GOAL: Goal = Goal {
        loss: 0.0,
        resolution: 0.005,
        time: Duration::from_secs(1),
        confirm: Duration::from_secs(5),
    };

    fn search(device: Device, goal: &Goal) -> Found {
        search_by(&mut Lab::new(device, 5e6), goal)
    }

    fn search_by(lab: &mut Lab, goal: &Goal) -> Found {
        let mut found = Found::default();
        throughput(lab, 60, goal, &mut found).unwrap();
        found
    }

    proptest! {
        #[test]
        fn a_limit_is_found_within_the_resolution(pps in 10e3..4.9e6) {
            let found = search(Device::Limit { pps }, &GOAL);
            let throughput = found.throughput.unwrap();
            prop_assert!(throughput.pps <= pps + 1.0, "{throughput:?}");
            prop_assert!(throughput.pps >= pps * 0.99, "{throughput:?}");
            prop_assert!(!throughput.sender_limits);
            prop_assert!(found.trials.len() < 30, "{} trials", found.trials.len());
        }

        #[test]
        fn what_a_buffer_holds_is_no_throughput(pps in 50e3..4e6, buffer in 1.0..20e3) {
            let found = search(Device::Buffer { pps, buffer }, &GOAL);
            let kept_up = found.throughput.unwrap().pps;
            prop_assert!(kept_up <= pps + buffer / 5.0 + 1.0, "{kept_up}");
            prop_assert!(kept_up >= pps * 0.98, "{kept_up}");
        }

        #[test]
        fn of_a_limit_that_drifts_something_that_was_kept_up_is_found(
            pps in 50e3..4e6, drift in 0.0..0.1,
        ) {
            let kept_up = search(Device::Drift { pps, drift }, &GOAL).throughput.unwrap().pps;
            prop_assert!(kept_up <= pps * (1.0 + drift) + 1.0, "{kept_up}");
            prop_assert!(kept_up >= pps * (1.0 - drift) * 0.85, "{kept_up}");
        }

        #[test]
        fn a_loss_at_any_rate_leaves_no_throughput_unless_it_is_allowed(share in 0.01..0.5) {
            let device = Device::Loss { share };
            prop_assert_eq!(search(device, &GOAL).throughput, None);
            let found = search(device, &Goal { loss: share * 1.1, ..GOAL });
            let throughput = found.throughput.unwrap();
            prop_assert!(throughput.sender_limits && throughput.pps > 4.9e6, "{throughput:?}");
        }
    }

    #[test]
    fn a_loss_that_is_the_sender_s_fault_is_tried_again() {
        let mut lab = Lab::new(Device::Limit { pps: 1e6 }, 5e6).late(3);
        let found = search_by(&mut lab, &GOAL);
        assert!((found.throughput.unwrap().pps - 1e6).abs() < 10e3, "{found:?}");
    }

    #[test]
    fn a_device_that_is_faster_than_the_sender_is_said_to_be() {
        let found = search(Device::Limit { pps: 9e6 }, &GOAL);
        assert!(found.throughput.unwrap().sender_limits);
        assert_eq!((found.most_pps, found.trials.len()), (5e6, 2));
    }

    #[test]
    fn nothing_that_passes_is_none() {
        assert_eq!(search(Device::Limit { pps: 0.0 }, &GOAL).throughput, None);
    }
}
