//! When packets are due.

use super::{Gaps, LONG, MOST_BEHIND, PERIOD_BITS, Pace};

/// A timetable of bursts, as [`crate::live`]'s programs keep it: times in ns since the first, with
/// [`PERIOD_BITS`] bits behind the point.
#[derive(Clone, Debug, Default)]
pub struct Timetable {
    period: u64,
    burst: u32,
    start_ns: Option<u64>,
    /// When the next burst is due.
    due: u64,
    /// Packets of bursts that are due and not sent.
    open: u32,
    gaps: Gaps,
    restarts: u64,
}

impl Timetable {
    /// That begins when it is first asked.
    pub fn new(pace: Pace) -> Self {
        Self { period: pace.period(), burst: pace.burst.max(1), ..Self::default() }
    }

    /// How many packets are due now, `most` at most. What is then sent, [`sent`](Self::sent) says.
    pub fn due(&mut self, now_ns: u64, most: u32) -> u32 {
        let start = self.start_ns.get_or_insert(now_ns);
        if self.due >= LONG {
            let gone = (self.due >> PERIOD_BITS).min(now_ns - *start);
            *start += gone;
            self.due -= gone << PERIOD_BITS;
        }
        let since = now_ns - *start;
        while self.open < most && self.due >> PERIOD_BITS <= since {
            let late = since - (self.due >> PERIOD_BITS);
            if u128::from(late) > MOST_BEHIND.as_nanos() {
                // Too late to make up for it.
                self.due = since << PERIOD_BITS;
                self.restarts += 1;
            }
            self.gaps.add(late);
            self.due = self.due.saturating_add(self.period);
            self.open = self.open.saturating_add(self.burst);
        }
        self.open.min(most)
    }

    /// So many of the packets that were due are sent.
    pub fn sent(&mut self, packets: u32) {
        self.open -= packets.min(self.open);
    }

    /// Times it was too far behind, and began anew.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// How late bursts were.
    pub fn gaps(&self) -> &Gaps {
        &self.gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets due at each of these times, all of which are sent.
    fn due(pace: Pace, times: &[u64]) -> Vec<u32> {
        let mut timetable = Timetable::new(pace);
        let mut at = |&ns: &u64| {
            let packets = timetable.due(ns, u32::MAX);
            timetable.sent(packets);
            packets
        };
        times.iter().map(&mut at).collect()
    }

    #[test]
    fn packets_are_due_at_their_times_and_in_their_bursts() {
        let even = Pace { pps: 1e6, burst: 1 };
        assert_eq!(due(even, &[5000, 5001, 6000, 6999, 9000]), [1, 0, 1, 0, 3]);
        let bursts = Pace { pps: 1e6, burst: 4 };
        assert_eq!(due(bursts, &[0, 3999, 4000, 12_000]), [4, 0, 4, 8]);
        // A period that is no whole number of ns adds up all the same.
        let odd = Pace { pps: 3e6, burst: 1 };
        assert_eq!(due(odd, &[0, 1_000_000]).iter().sum::<u32>(), 3001);
    }

    #[test]
    fn a_timetable_lasts_for_weeks() {
        let seconds = |count: u64| count * 1_000_000_000;
        let pace = Pace { pps: 0.01, burst: 1 };
        let times: Vec<u64> = (0..20_000).map(|burst| seconds(burst * 100)).collect();
        assert!(due(pace, &times).iter().all(|&packets| packets == 1), "one in 100 s, for 23 days");
    }

    #[test]
    fn what_is_far_behind_is_not_made_up_for() {
        let pace = Pace { pps: 1e6, burst: 1 };
        assert_eq!(due(pace, &[0, 50_000_000]), [1, 50_000], "half of what may be");
        let late = due(pace, &[0, 1_000_000_000]);
        assert_eq!(late, [1, 1], "a second");
    }
}
