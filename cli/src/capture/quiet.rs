//! The promise of a silent live queue: no packet older than a given time will follow.

use std::time::Duration;

use sluicegate::error::Result;
use sluicegate::port::{PortName, RECORDING};
use sluicegate::ring::now_ns;

/// A packet is not in the kernel's hands for longer than this before it comes to us, but for the time
/// in which a block of a packet ring is filled, or in which a reader of a ring of copies sleeps. A
/// packet that comes after a promise is late.
const DELIVERY: Duration = Duration::from_millis(40);

/// The looks that found nothing.
#[derive(Clone, Copy, Debug)]
pub struct Quiet {
    delivery_ns: u64,
    /// A moment before the latest.
    looked_ns: u64,
}

impl Quiet {
    /// Computes the promise for the queues of a port.
    ///
    /// # Errors
    /// `block_timeout=` or `latency=` is not a valid time.
    pub fn of(port: &PortName) -> Result<Self> {
        let waits = port.duration("block_timeout")?.or(port.duration("latency")?);
        let delivery = DELIVERY + waits.unwrap_or(RECORDING);
        Ok(Self { delivery_ns: delivery.as_nanos() as u64, looked_ns: 0 })
    }

    /// A look has found nothing: nothing older than the time this returns, in nanoseconds since
    /// 1970, will come.
    pub fn look(&mut self) -> u64 {
        // Not the time now: this thread may have stood still since it looked.
        let looked_ns = std::mem::replace(&mut self.looked_ns, now_ns());
        looked_ns.saturating_sub(self.delivery_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_still_lie_in_a_block_is_not_promised_away() {
        for (port, delivery_ms) in [
            ("packet:eth0", 60),
            ("packet:eth0?block_timeout=1ms", 41),
            ("packet:eth0?block_timeout=60s", 60_040),
            ("mirror:eth0", 60),
            ("mirror:eth0?latency=1s", 1040),
        ] {
            let mut quiet = Quiet::of(&port.parse().unwrap()).unwrap();
            assert_eq!(quiet.look(), 0, "{port}: nothing is known before the first look");
            quiet.looked_ns = 100_000_000_000;
            assert_eq!(quiet.look(), 100_000_000_000 - delivery_ms * 1_000_000, "{port}");
        }
    }
}
