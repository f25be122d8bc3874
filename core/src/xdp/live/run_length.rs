//! How long a run of the program goes on.
//!
//! During a run the kernel holds the read lock of RCU, but when it has to let another thread run
//! (net/bpf/test_run.c, `bpf_test_timer_continue`): on a CPU of its own, never. Who waits for all
//! readers, as each change of an XDP program does, waits for the end of the run. So a run ends after
//! a while, and the next begins at once. To set up a run takes the kernel some 20 µs, or 25 ms where
//! it does not know the program before (`known`).

use std::time::Duration;

/// How long a run takes, more or less, where it begins quickly.
const WHILE: Duration = Duration::from_millis(10);
/// The same where it takes its time.
const LONG_WHILE: Duration = Duration::from_millis(500);
/// Runs that take longer than to set them up, whatever a packet takes.
const LEAST: u32 = 1 << 12;

/// How often the program is run in one run of the kernel's.
#[derive(Debug)]
pub(super) struct RunLength {
    first: u32,
    times: u32,
    time: Duration,
}

impl RunLength {
    /// `quick`: runs begin and end in no time.
    pub fn new(first: u32, quick: bool) -> Self {
        Self { first, times: first, time: if quick { WHILE } else { LONG_WHILE } }
    }

    /// Nothing is known of what comes.
    pub fn begin_anew(&mut self) {
        self.times = self.first;
    }

    /// So many, or fewer.
    pub fn at_most(&self, times: u64) -> u32 {
        u32::try_from(times).map_or(self.times, |times| times.min(self.times))
    }

    /// A run took so long: the next comes nearer to what it should take, by half or twice as many.
    pub fn took(&mut self, times: u32, time: Duration) {
        if times < self.times {
            return;
        }
        let wanted = u128::from(times) * self.time.as_nanos() / time.as_nanos().max(1);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        self.times = wanted.clamp(times / 2, times.saturating_mul(2)).max(LEAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After many runs of a program that takes so long.
    fn after(stretch: &mut RunLength, each: Duration) -> Duration {
        for _ in 0..40 {
            let times = stretch.at_most(u64::MAX);
            stretch.took(times, each * times);
        }
        each * stretch.at_most(u64::MAX)
    }

    #[test]
    fn runs_come_to_take_a_while_and_no_longer() {
        for (quick, wanted) in [(true, WHILE), (false, LONG_WHILE)] {
            let mut stretch = RunLength::new(1 << 15, quick);
            for each in [30, 50, 2000, 120].map(Duration::from_nanos) {
                let time = after(&mut stretch, each);
                assert!((wanted / 2..=wanted * 2).contains(&time), "{each:?} each: {time:?}");
            }
            stretch.begin_anew();
            assert_eq!(stretch.at_most(u64::MAX), 1 << 15);
        }
    }

    #[test]
    fn a_run_is_never_longer_than_asked_for_and_a_short_one_tells_nothing() {
        let mut stretch = RunLength::new(1000, true);
        assert_eq!([stretch.at_most(7), stretch.at_most(1 << 40)], [7, 1000]);
        stretch.took(7, Duration::from_secs(1));
        assert_eq!(stretch.at_most(u64::MAX), 1000);
        stretch.took(1000, Duration::ZERO);
        assert_eq!(stretch.at_most(u64::MAX), LEAST);
    }
}
