//! A trial, in which packets are offered to a device and counted after it; and latency (RFC 2544, 26.2),
//! frame loss (26.3) and bursts (26.4) measured by trials.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::observer::Failure;
#[cfg(doc)]
use crate::step::Setting;

/// The definition of throughput, and the times of trials.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// The share of packets that may be lost, from 0 to 1.
    pub loss: f64,
    /// The tolerated error of the result, as a share of it.
    pub resolution: f64,
    /// The length of a trial.
    #[serde(rename = "seconds", with = "seconds")]
    pub time: Duration,
    /// The length of the last trial, which has to confirm the result, because a device with a large buffer
    /// passes short trials at rates that it cannot sustain.
    #[serde(rename = "confirm_seconds", with = "seconds")]
    pub confirm: Duration,
}

/// A time as a number of seconds.
mod seconds {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(time.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// The packets offered to a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// Bytes of a frame, without its check sequence; [`Setting::MIXED`] for IMIX.
    pub bytes: u32,
    /// Packets per second, over all pairs of interfaces; `None` for full speed.
    pub rate: Option<f64>,
    /// When it ends.
    pub until: Until,
}

/// When sending ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    /// After this time.
    Time(Duration),
    /// After this number of packets.
    Packets(u64),
}

/// The outcome of a trial, after the device has drained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrialOutcome {
    /// Packets sent to the device.
    pub sent: u64,
    /// Packets that left the device.
    pub received: u64,
    /// The time that sending took, in seconds.
    pub seconds: f64,
    /// Their latency, if measured.
    pub latency: Option<Latency>,
}

/// The latency of packets through the device, in ns; of several pairs of interfaces the longest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p99_9_ns: u64,
    /// The maximum.
    pub max_ns: u64,
}

impl Latency {
    /// The longer latency in each regard.
    fn max(self, other: Self) -> Self {
        Self {
            p50_ns: self.p50_ns.max(other.p50_ns),
            p99_ns: self.p99_ns.max(other.p99_ns),
            p99_9_ns: self.p99_9_ns.max(other.p99_9_ns),
            max_ns: self.max_ns.max(other.max_ns),
        }
    }
}

impl TrialOutcome {
    /// The outcome of two that ran at once.
    #[must_use]
    pub fn beside(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            received: self.received + other.received,
            seconds: self.seconds.max(other.seconds),
            latency: match (self.latency, other.latency) {
                (Some(one), Some(other)) => Some(one.max(other)),
                (one, other) => one.or(other),
            },
        }
    }

    /// Returns the packets per second sent to the device.
    pub fn offered_pps(&self) -> f64 {
        self.sent as f64 / self.seconds.max(1e-9)
    }

    /// Returns the share of packets that did not leave the device, from 0 to 1.
    pub fn lost(&self) -> f64 {
        self.sent.saturating_sub(self.received) as f64 / self.sent.max(1) as f64
    }
}

/// A way to run trials on a device.
pub trait Trial {
    /// Offers packets, waits until the device has drained, and counts.
    ///
    /// # Errors
    /// A program failed, or the observer stopped the test.
    fn offer(&mut self, offer: &Offer) -> Result<TrialOutcome, Failure>;
}

/// The longest burst to try (26.4: at least two seconds).
const MAX_TIME: Duration = Duration::from_secs(2);
/// The number of trials that have to confirm a burst.
const REPEATS: u32 = 3;
/// The finest resolution of a burst, as a share.
const MIN_RESOLUTION: f64 = 0.02;

/// The longest burst without loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackToBack {
    /// Its packets; 0 if all bursts lost some.
    pub packets: u64,
    /// True if no longer burst was tried: the device keeps up with the sender.
    pub longest_tried: bool,
}

/// Searches for the longest burst without more loss than `goal` permits. `most_pps` is the sender's highest
/// rate. No burst takes longer than the confirming trial.
///
/// # Errors
/// A trial could not be done.
pub fn back_to_back(
    trial: &mut dyn Trial,
    bytes: u32,
    most_pps: f64,
    goal: &Goal,
) -> Result<BackToBack, Failure> {
    let mut passes_whole = |packets: u64| -> Result<bool, Failure> {
        let until = Until::Packets(packets);
        Ok(trial.offer(&Offer { bytes, rate: None, until })?.lost() <= goal.loss)
    };
    let resolution = goal.resolution.max(MIN_RESOLUTION);
    let longest = (most_pps * goal.confirm.min(MAX_TIME).as_secs_f64()) as u64;
    if passes_whole(longest)? {
        return Ok(BackToBack { packets: longest, longest_tried: true });
    }
    let (mut passes, mut fails) = (0, longest);
    loop {
        while fails - passes > ((fails as f64 * resolution) as u64).max(1) {
            let packets = passes.midpoint(fails);
            match passes_whole(packets)? {
                true => passes = packets,
                false => fails = packets,
            }
        }
        let mut holds = true;
        for _ in 1..REPEATS {
            holds = holds && (passes == 0 || passes_whole(passes)?);
        }
        if holds {
            return Ok(BackToBack { packets: passes, longest_tried: false });
        }
        // The earlier pass was luck: only shorter bursts remain.
        (passes, fails) = (0, passes);
    }
}

/// Latency at a share of the throughput.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyAt {
    /// The share, from 0 to 1.
    pub of_throughput: f64,
    /// The offered rate in packets a second.
    pub offered_pps: f64,
    /// The latency at this rate.
    #[serde(flatten)]
    pub latency: Latency,
}

/// Loss at a share of the highest offered rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossAt {
    /// The share, from 0 to 1.
    pub of_most: f64,
    /// The offered rate in packets a second.
    pub offered_pps: f64,
    /// The share lost, from 0 to 1.
    pub lost: f64,
}

/// Measures latency at these shares of a throughput. `points` keeps the results before an error.
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

/// Measures frame loss from the highest rate down, by tenths, until two steps in a row lose nothing. `points`
/// keeps the results before an error.
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

/// Simulated devices.
#[cfg(test)]
pub(crate) mod mock {
    use super::{Failure, Offer, Trial, TrialOutcome, Until};

    /// Behaviour of a simulated device.
    #[derive(Clone, Copy, Debug)]
    pub enum MockDevice {
        /// Passes at most `pps` packets per second.
        Limit { pps: f64 },
        /// Passes at most `pps` packets per second, and buffers `buffer` packets.
        Buffer { pps: f64, buffer: f64 },
        /// Passes a number of packets per second that differs in each trial by up to this share.
        Drift { pps: f64, drift: f64 },
        /// It loses this share.
        Loss { share: f64 },
    }

    /// A device, and a sender with its own limit, in packets per second.
    #[derive(Debug)]
    pub struct MockLab {
        device: MockDevice,
        sender_pps: f64,
        trials: u32,
        /// The sender keeps to its rate in one of `late` trials; 0 if it always does.
        late: u32,
    }

    impl MockLab {
        pub fn new(device: MockDevice, sender_pps: f64) -> Self {
            Self { device, sender_pps, trials: 0, late: 0 }
        }

        /// Sets a sender that is often late, and skips the packets that it missed.
        pub fn late(self, late: u32) -> Self {
            Self { late, ..self }
        }
    }

    impl Trial for MockLab {
        fn offer(&mut self, offer: &Offer) -> Result<TrialOutcome, Failure> {
            self.trials += 1;
            let late = self.late > 0 && !self.trials.is_multiple_of(self.late);
            let kept = if late { 0.9 } else { 1.0 };
            let rate = offer.rate.map_or(f64::INFINITY, |rate| rate * kept).min(self.sender_pps);
            let (sent, seconds) = match offer.until {
                Until::Time(time) => ((rate * time.as_secs_f64()).floor(), time.as_secs_f64()),
                Until::Packets(packets) => (packets as f64, packets as f64 / rate),
            };
            let passes = match self.device {
                MockDevice::Limit { pps } => pps * seconds,
                MockDevice::Buffer { pps, buffer } => pps * seconds + buffer,
                MockDevice::Drift { pps, drift } => {
                    // Steps around the circle that never reach the same point again.
                    let swing = (f64::from(self.trials) * 2.4).sin();
                    pps * (1.0 + drift * swing) * seconds
                }
                MockDevice::Loss { share } => sent * (1.0 - share),
            };
            let received = sent.min(passes.floor());
            let (sent, received) = (sent as u64, received as u64);
            Ok(TrialOutcome { sent, received, seconds, latency: None })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::mock::{MockDevice, MockLab};
    use super::*;

    fn goal(confirm: Duration) -> Goal {
        Goal { loss: 0.0, resolution: 0.01, time: MAX_TIME, confirm }
    }

    #[test]
    fn the_burst_is_what_a_buffer_takes_above_the_limit() {
        for buffer in [0.0, 1.0, 500.0, 70e3] {
            let mut lab = MockLab::new(MockDevice::Buffer { pps: 0.5e6, buffer }, 1e6);
            let found = back_to_back(&mut lab, 60, 1e6, &goal(MAX_TIME)).unwrap();
            // Half of the arriving packets leave meanwhile, so the burst is twice the buffer.
            let expected = 2.0 * buffer;
            let off = (found.packets as f64 - expected).abs();
            assert!(off <= expected * 0.03 + 3.0, "{buffer}: {found:?}");
        }
    }

    #[test]
    fn a_device_that_keeps_up_takes_the_longest() {
        let mut lab = MockLab::new(MockDevice::Limit { pps: 1e6 }, 1e6);
        for (ms, packets) in [(300, 300_000), (2000, 2_000_000), (3000, 2_000_000)] {
            let time = Duration::from_millis(ms);
            let found = back_to_back(&mut lab, 60, 1e6, &goal(time)).unwrap();
            assert_eq!(found, BackToBack { packets, longest_tried: true }, "{ms} ms");
        }
    }

    fn points(device: MockDevice) -> Vec<LossAt> {
        let mut points = Vec::new();
        loss(&mut MockLab::new(device, 1e6), 60, 1e6, Duration::from_secs(1), &mut points).unwrap();
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
