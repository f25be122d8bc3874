//! The share of its time that a thread is on a CPU.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A thread's two clocks when it began: the one that goes on, and the one that goes while it runs.
#[derive(Clone, Copy, Debug)]
pub struct ThreadCpuUsage {
    wall: Duration,
    on_cpu: Duration,
}

impl ThreadCpuUsage {
    /// Of this thread, from now on.
    pub fn begin() -> Self {
        // The clock that goes on is read first here and last in `share`: so its span has the other's
        // in it, and no share is more than the whole.
        let wall = time(ClockId::CLOCK_MONOTONIC);
        Self { wall, on_cpu: time(ClockId::CLOCK_THREAD_CPUTIME_ID) }
    }

    /// The share until now, from 0 to 1. The same thread asks.
    pub fn share(&self) -> f64 {
        let on_cpu = time(ClockId::CLOCK_THREAD_CPUTIME_ID).saturating_sub(self.on_cpu);
        let wall = time(ClockId::CLOCK_MONOTONIC).saturating_sub(self.wall);
        // What is left is the two clocks' own difference in speed, of parts of a million.
        (on_cpu.as_secs_f64() / wall.as_secs_f64().max(1e-9)).min(1.0)
    }
}

fn time(clock: ClockId) -> Duration {
    // These two clocks are always there.
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_share_is_more_than_the_whole() {
        // The thread has been on a CPU before: that is not part of the time.
        let before = time(ClockId::CLOCK_THREAD_CPUTIME_ID);
        while time(ClockId::CLOCK_THREAD_CPUTIME_ID) < before + Duration::from_millis(5) {}
        for _ in 0..1000 {
            let share = ThreadCpuUsage::begin().share();
            assert!((0.0..=1.0).contains(&share), "{share}");
        }
        let asleep = ThreadCpuUsage::begin();
        std::thread::sleep(Duration::from_millis(20));
        assert!(asleep.share() < 1.0);
    }
}
