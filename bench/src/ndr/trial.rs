//! One trial: packets are offered to a device, and counted behind it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// What is offered to a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// Bytes of a frame, without its check sequence.
    pub bytes: u32,
    /// Packets a second; none for as fast as the sender can.
    pub rate: Option<f64>,
    /// When it ends.
    pub until: Until,
}

/// When sending ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    /// After this time.
    Time(Duration),
    /// After so many packets.
    Packets(u64),
}

/// What came of an offer, once the device had nothing more to give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Packets that went to the device.
    pub sent: u64,
    /// Packets that came out of it.
    pub received: u64,
    /// The time that sending took, in seconds.
    pub seconds: f64,
    /// How long they took, where that was measured.
    pub latency: Option<Latency>,
}

/// How long packets took through the device, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of them took no longer.
    pub p50_ns: u64,
    /// 99 % of them.
    pub p99_ns: u64,
    /// 99.9 % of them.
    pub p99_9_ns: u64,
    /// None took longer.
    pub max_ns: u64,
}

impl Outcome {
    /// Packets a second that went to the device.
    pub fn offered_pps(&self) -> f64 {
        self.sent as f64 / self.seconds.max(1e-9)
    }

    /// The share that did not come out of it, from 0 to 1.
    pub fn lost(&self) -> f64 {
        self.sent.saturating_sub(self.received) as f64 / self.sent.max(1) as f64
    }
}

/// Whoever can try what a device does.
pub trait Trial {
    /// Offers packets, waits until all that the device still holds has come out, and counts.
    ///
    /// # Errors
    /// There was no trial: a program failed, or whoever watches wants no more.
    fn offer(&mut self, offer: &Offer) -> Result<Outcome, Failure>;
}
