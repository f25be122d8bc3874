//! How far a counter has come between two readings.

/// A counter's advance since the reading before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// It has grown by this much.
    Advanced(u64),
    /// It went back: its owner was made anew or reset. What passed in between is unknown.
    Restarted,
}

impl Counter {
    /// The way from one reading to the next.
    ///
    /// Some drivers count in 32 bits. A counter that fell from within 32 bits is taken to have
    /// wrapped where the way round is less than half of them, and to have restarted otherwise.
    pub fn between(before: u64, now: u64) -> Self {
        if now >= before {
            return Self::Advanced(now - before);
        }
        match (u32::try_from(before), u32::try_from(now)) {
            (Ok(before), Ok(now)) if now.wrapping_sub(before) < 1 << 31 => {
                Self::Advanced(now.wrapping_sub(before).into())
            }
            _ => Self::Restarted,
        }
    }

    /// The advance per second; zero where the counter restarted.
    pub fn per_second(self, seconds: f64) -> f64 {
        match self {
            Self::Advanced(by) if seconds > 0.0 => by as f64 / seconds,
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_advances_wraps_or_restarts() {
        use Counter::{Advanced, Restarted};
        const WRAP: u64 = u32::MAX as u64;
        for (sentence, before, now, counter) in [
            ("still", 7, 7, Advanced(0)),
            ("forward", 7, 9, Advanced(2)),
            ("forward beyond 32 bits", WRAP, WRAP + 5, Advanced(5)),
            ("a 32-bit counter wraps", WRAP - 9, 10, Advanced(20)),
            ("a small counter that goes back restarted", 5000, 0, Restarted),
            ("a wrap of half of 32 bits is no wrap", 1 << 31, 0, Restarted),
            ("a 64-bit counter that goes back restarted", WRAP + 2, 0, Restarted),
            ("a 64-bit counter that jitters back", 1 << 40, (1 << 40) - 1, Restarted),
            ("the largest", 0, u64::MAX, Advanced(u64::MAX)),
        ] {
            assert_eq!(Counter::between(before, now), counter, "{sentence}");
        }
    }

    #[test]
    fn a_rate_over_no_time_is_zero() {
        assert_eq!(Counter::Advanced(5).per_second(0.0), 0.0);
        assert_eq!(Counter::Advanced(5).per_second(0.5), 10.0);
        assert_eq!(Counter::Restarted.per_second(1.0), 0.0);
    }
}
