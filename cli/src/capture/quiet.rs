//! What a live queue in which nothing has come can promise those that wait for it.

use std::time::{Duration, SystemTime};

/// A packet is not in the kernel's hands for longer than this before it comes to us: five times
/// as long as a block of a packet ring, unless `retire=` says more. Then what comes after a promise
/// is late.
const DELIVERY: Duration = Duration::from_millis(50);

/// The looks that found nothing.
#[derive(Debug, Default)]
pub struct Quiet {
    /// A moment before the latest.
    looked_ns: u64,
}

impl Quiet {
    /// A look has found nothing: nothing older than the time this returns, in nanoseconds since
    /// 1970, will come.
    pub fn look(&mut self) -> u64 {
        // Not the time now: this thread may have stood still since it looked.
        let looked_ns = std::mem::replace(&mut self.looked_ns, now_ns());
        looked_ns.saturating_sub(DELIVERY.as_nanos() as u64)
    }
}

/// Nanoseconds since 1970.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |time| time.as_nanos() as u64)
}
