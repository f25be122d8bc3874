//! How many packets a second a port may have flooded.

use std::time::{Duration, Instant};

/// A second's worth is let through at once at most.
#[derive(Clone, Debug)]
pub struct Storm {
    per_second: u32,
    left: u32,
    /// The time up to which `left` was filled.
    filled: Instant,
}

impl Storm {
    /// A limit, from a moment on.
    pub fn new(per_second: u32, now: Instant) -> Self {
        Self { per_second, left: per_second, filled: now }
    }

    /// Takes note of the time, once a batch.
    pub fn look(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        if passed >= Duration::from_secs(1) {
            (self.left, self.filled) = (self.per_second, now);
            return;
        }
        let due = passed.as_nanos() * u128::from(self.per_second) / 1_000_000_000;
        let Ok(due) = u32::try_from(due) else { return };
        if due > 0 {
            self.left = self.left.saturating_add(due).min(self.per_second);
            // No more than what the packets are worth, so that fractions add up.
            self.filled +=
                Duration::from_nanos(u64::from(due) * 1_000_000_000 / u64::from(self.per_second));
        }
    }

    /// Returns true if one more packet may be flooded.
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
    fn as_many_as_are_allowed_go_and_no_more() {
        let start = Instant::now();
        let mut storm = Storm::new(1000, start);
        let mut pass = |after: Duration, packets: u32| {
            storm.look(start + after);
            (0..packets).filter(|_| storm.allow()).count()
        };
        assert_eq!(pass(Duration::ZERO, 5000), 1000, "a second's worth at once");
        assert_eq!(pass(Duration::from_micros(999), 10), 0);
        assert_eq!(pass(Duration::from_micros(1000), 10), 1, "fractions add up");
        assert_eq!(pass(Duration::from_millis(101), 5000), 100);
        assert_eq!(pass(Duration::from_secs(60), 5000), 1000, "no more after a pause");
    }

    #[test]
    fn none_at_all_is_a_limit_too() {
        let start = Instant::now();
        let mut storm = Storm::new(0, start);
        storm.look(start + Duration::from_secs(5));
        assert!(!storm.allow());
    }
}
