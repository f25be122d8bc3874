//! The kernel's clock turned into the time of day.
//!
//! A program takes a packet's time by `bpf_ktime_get_ns`: CLOCK_MONOTONIC, which nobody sets. The
//! time of day is that and an offset, which changes only when somebody sets the clock: both are
//! slewed alike. The offset is measured by reading both clocks, and can be wrong by half the time
//! that takes, below a microsecond unless the thread is interrupted just then. It is measured
//! again after 10 ms of packet time, and taken over where it differs by more than that: times do
//! not tremble, and when the clock is set, packets of up to 10 ms still have the old time.

use nix::time::{ClockId, clock_gettime};

/// Packet time after which the offset is measured again.
const GOOD_FOR_NS: u64 = 10_000_000;
/// Readings, of which the one that took least time counts.
const READINGS: usize = 3;

/// What is added to the kernel's time.
#[derive(Clone, Copy, Debug)]
struct Offset {
    /// The time of day less CLOCK_MONOTONIC; modulo 2⁶⁴.
    ns: u64,
    /// By how much it can be wrong.
    error_ns: u64,
    /// CLOCK_MONOTONIC when it was measured.
    at_ns: u64,
}

impl Offset {
    fn measure() -> Self {
        let reading = || {
            let before = now_ns(ClockId::CLOCK_MONOTONIC);
            let wall = now_ns(ClockId::CLOCK_REALTIME);
            let after = now_ns(ClockId::CLOCK_MONOTONIC);
            let half = after.saturating_sub(before) / 2;
            Self { ns: wall.wrapping_sub(before + half), error_ns: half + 1, at_ns: after }
        };
        let first = reading();
        (1..READINGS)
            .map(|_| reading())
            .fold(first, |best, next| if next.error_ns < best.error_ns { next } else { best })
    }

    /// What to go by after another measurement.
    fn then(self, next: Self) -> Self {
        let apart = (next.ns.wrapping_sub(self.ns) as i64).unsigned_abs();
        if apart > self.error_ns + next.error_ns {
            return next;
        }
        let (ns, error_ns) = match next.error_ns < self.error_ns {
            true => (next.ns, next.error_ns),
            false => (self.ns, self.error_ns),
        };
        Self { ns, error_ns, at_ns: next.at_ns }
    }
}

/// By how much the time of day is ahead of CLOCK_MONOTONIC, in ns: right to less than a microsecond
/// even if the thread is interrupted meanwhile.
pub fn wall_ahead_ns() -> i64 {
    Offset::measure().ns.cast_signed()
}

/// What a clock shows, in ns.
pub(super) fn now_ns(clock: ClockId) -> u64 {
    // These clocks are always there.
    clock_gettime(clock).map_or(0, |time| {
        (time.tv_sec() as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec() as u64)
    })
}

/// Turns times of CLOCK_MONOTONIC into ns since 1970 (UTC).
#[derive(Debug)]
pub(crate) struct WallClock(Offset);

impl WallClock {
    pub(crate) fn new() -> Self {
        Self(Offset::measure())
    }

    /// A packet's time of day.
    #[inline]
    pub(crate) fn wall_ns(&mut self, monotonic_ns: u64) -> u64 {
        if monotonic_ns.saturating_sub(self.0.at_ns) > GOOD_FOR_NS {
            self.measure_again();
        }
        monotonic_ns.wrapping_add(self.0.ns)
    }

    #[cold]
    fn measure_again(&mut self) {
        self.0 = self.0.then(Offset::measure());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_stays_until_the_clock_is_set() {
        let offset = |ns, error_ns, at_ns| Offset { ns, error_ns, at_ns };
        let rows = [
            ("within the errors of both it stays", (1000, 50), (1080, 40), (1080, 40)),
            ("and of two the better one counts", (1000, 50), (1080, 60), (1000, 50)),
            ("the clock was set forward", (1000, 50), (5000, 90), (5000, 90)),
            ("the clock was set back, before 1970", (1000, 50), (u64::MAX, 1), (u64::MAX, 1)),
            ("about zero", (3, 9), (u64::MAX - 3, 9), (3, 9)),
        ];
        for (sentence, old, new, expected) in rows {
            let then = offset(old.0, old.1, 7).then(offset(new.0, new.1, 8));
            assert_eq!(
                (then.ns, then.error_ns, then.at_ns),
                (expected.0, expected.1, 8),
                "{sentence}"
            );
        }
    }

    #[test]
    fn now_is_now() {
        let mut clock = WallClock::new();
        for _ in 0..3 {
            let before = now_ns(ClockId::CLOCK_REALTIME);
            let now = clock.wall_ns(now_ns(ClockId::CLOCK_MONOTONIC));
            let after = now_ns(ClockId::CLOCK_REALTIME);
            // Others may take the CPU in between, but not for a second.
            assert!(before.abs_diff(now) < 1_000_000_000 && after.abs_diff(now) < 1_000_000_000);
            clock.0.at_ns = 0;
        }
    }
}
