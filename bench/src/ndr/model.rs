//! Devices that exist in the mind alone, for tests of the search.

use super::trial::{Offer, Trial, TrialOutcome, Until};
use crate::failure::Failure;

/// What a device does with what it is offered.
#[derive(Clone, Copy, Debug)]
pub enum MockDevice {
    /// It passes so many packets a second.
    Limit { pps: f64 },
    /// It does so, and holds as many as its buffer takes.
    Buffer { pps: f64, buffer: f64 },
    /// Its limit is another in each trial, up to this share more or less.
    Drift { pps: f64, drift: f64 },
    /// It loses this share.
    Loss { share: f64 },
}

/// A device, and a sender with a limit of its own, in packets a second.
#[derive(Debug)]
pub struct Lab {
    device: MockDevice,
    sender_pps: f64,
    trials: u32,
    /// Of so many trials one is the only one in which the sender keeps to its rate; 0 where it always
    /// does.
    late: u32,
}

impl Lab {
    pub fn new(device: MockDevice, sender_pps: f64) -> Self {
        Self { device, sender_pps, trials: 0, late: 0 }
    }

    /// With a sender that is often late, and leaves out what it missed.
    pub fn late(self, late: u32) -> Self {
        Self { late, ..self }
    }
}

impl Trial for Lab {
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
                // Around the circle in steps that never come to the same place again.
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
