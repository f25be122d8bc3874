//! The limit of a port's flooded packets.

use std::time::{Duration, Instant};

/// Limits flooded packets. A burst is limited to the packets of one second.
#[derive(Clone, Debug)]
pub struct StormLimit {
    per_second: u32,
    left: u32,
    /// The time up to which `left` is accounted for.
    filled: Instant,
}

impl StormLimit {
    /// Creates a limit that holds from `now` on.
    pub fn new(per_second: u32, now: Instant) -> Self {
        Self { per_second, left: per_second, filled: now }
    }

    /// Updates the allowance, once per batch.
    pub fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        if passed >= Duration::from_secs(1) {
            (self.left, self.filled) = (self.per_second, now);
            return;
        }
        // Below `per_second`, because less than a second has passed.
        let due = (passed.as_nanos() * u128::from(self.per_second) / 1_000_000_000) as u32;
        if due > 0 {
            self.left = self.left.saturating_add(due).min(self.per_second);
            // Advances only by the time of whole packets, so that fractions accumulate.
            self.filled +=
                Duration::from_nanos(u64::from(due) * 1_000_000_000 / u64::from(self.per_second));
        }
    }

    /// Takes a packet from the allowance; false if none is left.
    #[inline]
    pub fn allow(&mut self) -> bool {
        let allowed = self.left > 0;
        self.left -= u32::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flood_limit_holds() {
        let start = Instant::now();
        let mut storm = StormLimit::new(1000, start);
        let mut pass = |after: Duration, packets: u32| {
            storm.refill(start + after);
            (0..packets).filter(|_| storm.allow()).count()
        };
        assert_eq!(pass(Duration::ZERO, 5000), 1000, "a second's worth at once");
        assert_eq!(pass(Duration::from_micros(999), 10), 0);
        assert_eq!(pass(Duration::from_micros(1000), 10), 1, "fractions add up");
        assert_eq!(pass(Duration::from_millis(101), 5000), 100);
        assert_eq!(pass(Duration::from_secs(60), 5000), 1000, "no more after a pause");
    }

    #[test]
    fn a_limit_of_zero_floods_nothing() {
        let start = Instant::now();
        let mut storm = StormLimit::new(0, start);
        storm.refill(start + Duration::from_secs(5));
        assert!(!storm.allow());
    }
}
