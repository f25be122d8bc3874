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
pub struct TrialOutcome {
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

impl TrialOutcome {
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
    fn offer(&mut self, offer: &Offer) -> Result<TrialOutcome, Failure>;
}

/// The longest burst that is tried (26.4: two seconds at least).
const MAX_TIME: Duration = Duration::from_secs(2);
/// How often the answer has to hold.
const REPEATS: u32 = 3;

/// The longest burst that came through.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BackToBack {
    /// Its packets; 0 where none came through.
    pub packets: u64,
    /// No longer one was tried: the device keeps up with the sender.
    pub longest_tried: bool,
}

/// Searches for it, to within `resolution`, a share. `most_pps` is what the sender can do. No burst takes
/// longer than `time`.
///
/// # Errors
/// A trial could not be done.
pub fn back_to_back(
    trial: &mut dyn Trial,
    bytes: u32,
    most_pps: f64,
    loss: f64,
    resolution: f64,
    time: Duration,
) -> Result<BackToBack, Failure> {
    let mut passes_whole = |packets: u64| -> Result<bool, Failure> {
        let until = Until::Packets(packets);
        Ok(trial.offer(&Offer { bytes, rate: None, until })?.lost() <= loss)
    };
    let longest = (most_pps * time.min(MAX_TIME).as_secs_f64()) as u64;
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
        // It was luck: what is shorter remains.
        (passes, fails) = (0, passes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{Lab, MockDevice};
    use super::*;

    #[test]
    fn the_burst_is_what_a_buffer_takes_above_the_limit() {
        for buffer in [0.0, 1.0, 500.0, 70e3] {
            let mut lab = Lab::new(MockDevice::Buffer { pps: 0.5e6, buffer }, 1e6);
            let found = back_to_back(&mut lab, 60, 1e6, 0.0, 0.01, MAX_TIME).unwrap();
            // Half of what comes leaves meanwhile, so the burst is twice the buffer.
            let expected = 2.0 * buffer;
            let off = (found.packets as f64 - expected).abs();
            assert!(off <= expected * 0.02 + 3.0, "{buffer}: {found:?}");
        }
    }

    #[test]
    fn a_device_that_keeps_up_takes_the_longest() {
        let mut lab = Lab::new(MockDevice::Limit { pps: 1e6 }, 1e6);
        for (ms, packets) in [(300, 300_000), (2000, 2_000_000), (3000, 2_000_000)] {
            let time = Duration::from_millis(ms);
            let found = back_to_back(&mut lab, 60, 1e6, 0.0, 0.01, time).unwrap();
            assert_eq!(found, BackToBack { packets, longest_tried: true }, "{ms} ms");
        }
    }
}
