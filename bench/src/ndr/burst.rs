//! Back-to-back frames (RFC 2544, 26.4): the longest burst at full speed that a device takes whole.

use std::time::Duration;

use serde::Serialize;

use super::trial::{Offer, Trial, Until};
use crate::failure::Failure;

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
    use super::super::model::{Device, Lab};
    use super::*;

    #[test]
    fn the_burst_is_what_a_buffer_takes_above_the_limit() {
        for buffer in [0.0, 1.0, 500.0, 70e3] {
            let mut lab = Lab::new(Device::Buffer { pps: 0.5e6, buffer }, 1e6);
            let found = back_to_back(&mut lab, 60, 1e6, 0.0, 0.01, MAX_TIME).unwrap();
            // Half of what comes leaves meanwhile, so the burst is twice the buffer.
            let expected = 2.0 * buffer;
            let off = (found.packets as f64 - expected).abs();
            assert!(off <= expected * 0.02 + 3.0, "{buffer}: {found:?}");
        }
    }

    #[test]
    fn a_device_that_keeps_up_takes_the_longest() {
        let mut lab = Lab::new(Device::Limit { pps: 1e6 }, 1e6);
        for (ms, packets) in [(300, 300_000), (2000, 2_000_000), (3000, 2_000_000)] {
            let time = Duration::from_millis(ms);
            let found = back_to_back(&mut lab, 60, 1e6, 0.0, 0.01, time).unwrap();
            assert_eq!(found, BackToBack { packets, longest_tried: true }, "{ms} ms");
        }
    }
}
