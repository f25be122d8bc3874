//! When packets are due.

use super::{Dial, Gaps, LONG_PERIOD_NS, Pace, Period};

/// A worker's timetable of bursts, as [`crate::live`]'s programs keep it, too: times in ns of a
/// clock that never goes back.
#[derive(Clone, Debug)]
pub struct Timetable {
    dial: Dial,
    worker: u32,
    workers: u32,
    /// The dial's period when it was last read.
    asked: Period,
    /// From one of this worker's bursts to its next.
    period: Period,
    /// When the next burst is due; none before the first look.
    due_ns: Option<u64>,
    /// And parts of a ns, as [`Period::fraction`].
    due_fraction: u32,
    /// Packets of bursts that are due and not sent.
    open: u32,
    gaps: Gaps,
    restarts: u64,
}

impl Timetable {
    /// Of one worker alone, that begins when it is first asked.
    pub fn new(pace: Pace) -> Self {
        Self::of(Dial::new(pace), (0, 1))
    }

    /// Of worker `worker` of `workers`, which take turns; it begins when it is first asked, and
    /// changes as the dial does.
    pub fn of(dial: Dial, (worker, workers): (u32, u32)) -> Self {
        let asked = dial.period();
        Self {
            dial,
            worker,
            workers,
            asked,
            period: asked.times(workers),
            due_ns: None,
            due_fraction: 0,
            open: 0,
            gaps: Gaps::default(),
            restarts: 0,
        }
    }

    /// How many packets are due now, `most` at most. What is then sent, [`sent`](Self::sent) says.
    pub fn due(&mut self, now_ns: u64, most: u32) -> u32 {
        let asked = self.dial.period();
        if asked != self.asked {
            self.change(asked, now_ns);
        }
        let most_behind = self.dial.most_behind().as_nanos();
        let mut due = self.due_ns.unwrap_or_else(|| now_ns + self.phase_ns());
        while self.open < most && due <= now_ns {
            let late = now_ns - due;
            if u128::from(late) > most_behind {
                // Too late to make up for it.
                (due, self.due_fraction) = (now_ns, 0);
                self.restarts += 1;
            }
            self.gaps.add(late);
            let (fraction, carried) = self.due_fraction.overflowing_add(self.period.fraction);
            self.due_fraction = fraction;
            due += self.period.ns + u64::from(carried);
            self.open = self.open.saturating_add(self.dial.burst());
        }
        self.due_ns = Some(due);
        // A burst that has begun waits for the end of a pause.
        if self.period.is_never() { 0 } else { self.open.min(most) }
    }

    /// Follows a change of pace: the next burst is due its period after the last, or now if that
    /// has passed. A delay stays, counted in packets.
    fn change(&mut self, asked: Period, now_ns: u64) {
        let before = std::mem::replace(&mut self.period, asked.times(self.workers));
        self.asked = asked;
        // The first has yet to come.
        let Some(due) = self.due_ns else { return };
        if due <= now_ns && self.period.ns < LONG_PERIOD_NS {
            let behind = self.behind_ns(now_ns - due, before);
            self.due_ns = Some(now_ns.saturating_sub(behind));
            return;
        }
        // A due time that was rounded up may be a period and a ns away.
        let since = (now_ns + before.ns).saturating_sub(due);
        self.due_ns = Some(match self.period.ns.checked_sub(since) {
            Some(left) => now_ns + left,
            None => now_ns + self.phase_ns(),
        });
    }

    /// Returns the delay after a change of pace, from the delay before it.
    fn behind_ns(&self, late_ns: u64, before: Period) -> u64 {
        let most = self.dial.most_behind().as_nanos() as u64;
        // No product has more than 64 bits.
        let behind = match late_ns <= most {
            true => late_ns * self.period.ns / before.ns.max(1),
            false => 0,
        };
        if behind <= most { behind } else { 0 }
    }

    /// Where this worker stands among all: so that they do not all send at once.
    fn phase_ns(&self) -> u64 {
        self.period.part_ns(self.worker, self.workers)
    }

    /// Records that packets that were due are sent.
    pub fn sent(&mut self, packets: u32) {
        self.open -= packets.min(self.open);
    }

    /// When the next burst is due; none before it was first asked.
    pub fn next_ns(&self) -> Option<u64> {
        self.due_ns
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
    use std::time::Duration;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn pace(pps: f64) -> Pace {
        Pace { pps, burst: 1 }
    }

    /// Packets due at a time, all of which are sent.
    fn sent(timetable: &mut Timetable, now_ns: u64) -> u32 {
        let packets = timetable.due(now_ns, u32::MAX);
        timetable.sent(packets);
        packets
    }

    /// Packets due at each of these times.
    fn due(pace: Pace, times: &[u64]) -> Vec<u32> {
        let mut timetable = Timetable::new(pace);
        times.iter().map(|&ns| sent(&mut timetable, ns)).collect()
    }

    #[test]
    fn packets_are_due_at_their_times_and_in_their_bursts() {
        assert_eq!(due(pace(1e6), &[5000, 5001, 6000, 6999, 9000]), [1, 0, 1, 0, 3]);
        let bursts = Pace { pps: 1e6, burst: 4 };
        assert_eq!(due(bursts, &[0, 3999, 4000, 12_000]), [4, 0, 4, 8]);
        // A period that is no whole number of ns adds up all the same.
        assert_eq!(due(pace(3e6), &[0, 1_000_000]).iter().sum::<u32>(), 3001);
    }

    #[test]
    fn a_timetable_lasts_for_weeks_and_its_bursts_may_be_as_far_apart() {
        let times: Vec<u64> = (0..20_000).map(|burst| burst * 100 * SECOND).collect();
        let slow = due(pace(0.01), &times);
        assert!(slow.iter().all(|&packets| packets == 1), "one in 100 s, for 23 days");
        let rare = Pace { pps: 1.0, burst: 1_000_000 };
        let times = [0, SECOND, 999_999 * SECOND, 1_000_000 * SECOND];
        assert_eq!(due(rare, &times), [1_000_000, 0, 0, 1_000_000], "twelve days apart");
        let hourly = due(pace(1.0 / 3600.0), &[7, 3599 * SECOND, 3600 * SECOND + 7]);
        assert_eq!(hourly, [1, 0, 1], "one an hour, soon after the machine's start");
    }

    #[test]
    fn what_is_far_behind_is_not_made_up_for() {
        assert_eq!(due(pace(1e6), &[0, 50_000_000]), [1, 50_000], "half of what may be");
        let late = due(pace(1e6), &[0, SECOND]);
        assert_eq!(late, [1, 1], "a second");
    }

    #[test]
    fn less_is_made_up_for_where_that_is_asked_for() {
        let dial = Dial::new(pace(1e6)).catching_up(Duration::from_millis(1));
        let mut timetable = Timetable::of(dial, (0, 1));
        let mut at = |now| sent(&mut timetable, now);
        assert_eq!((at(0), at(1_000_000)), (1, 1000), "as far as may be");
        assert_eq!((at(2_002_000), at(2_003_000)), (1, 1), "what was missed is left out");
        assert_eq!(timetable.restarts(), 1);
    }

    #[test]
    fn workers_take_turns() {
        let dial = Dial::new(pace(1e6));
        let mut workers: Vec<_> =
            (0..4).map(|worker| Timetable::of(dial.clone(), (worker, 4))).collect();
        let mut turns = Vec::new();
        for now in (0..8000).step_by(1000) {
            for (number, worker) in workers.iter_mut().enumerate() {
                turns.extend(std::iter::repeat_n(number, sent(worker, now) as usize));
            }
        }
        assert_eq!(turns, [0, 1, 2, 3, 0, 1, 2, 3], "one a microsecond, each in its turn");
    }

    #[test]
    fn another_pace_begins_when_it_is_set_and_makes_up_for_nothing() {
        let dial = Dial::new(pace(1.0 / 3600.0));
        let mut timetable = Timetable::of(dial.clone(), (0, 1));
        let mut at = |now| sent(&mut timetable, now);
        assert_eq!((at(0), at(SECOND)), (1, 0));
        dial.set(pace(1e6));
        assert_eq!(at(2 * SECOND), 1, "not the two million of before");
        assert_eq!(at(2 * SECOND + 5000), 5, "and then at once at the new pace");
        dial.set(pace(0.0));
        assert_eq!(at(900_000 * SECOND), 0, "a pause");
        dial.set(pace(1e3));
        assert_eq!(at(900_001 * SECOND), 1, "and on, without the time between");
        dial.set(pace(1.0));
        assert_eq!(at(900_001 * SECOND), 0);
        assert_eq!(at(900_001 * SECOND + 500_000_000), 0, "the last is half a second ago");
        assert_eq!(at(900_002 * SECOND), 1);
    }

    #[test]
    fn a_pause_from_the_beginning_sends_nothing() {
        let dial = Dial::new(pace(0.0));
        let mut timetable = Timetable::of(dial.clone(), (0, 1));
        let mut at = |now| sent(&mut timetable, now);
        assert_eq!((at(SECOND), at(2 * SECOND)), (0, 0));
        dial.set(pace(1e3));
        assert_eq!((at(3 * SECOND), at(3 * SECOND + 1_000_000)), (1, 1));
    }

    #[test]
    fn a_pause_holds_a_burst_that_has_begun() {
        let bursts = |pps| Pace { pps, burst: 1000 };
        let dial = Dial::new(bursts(1e5));
        let mut timetable = Timetable::of(dial.clone(), (0, 1));
        let mut at = |now| {
            let packets = timetable.due(now, 256);
            timetable.sent(packets);
            packets
        };
        assert_eq!(at(SECOND), 256, "as many as were wanted");
        dial.set(bursts(0.0));
        assert_eq!((at(SECOND + 1), at(SECOND + 2)), (0, 0));
        dial.set(bursts(1e5));
        let rest = [(); 4].map(|()| at(SECOND + 3));
        assert_eq!(rest, [256, 256, 232, 0], "what is left of it, and no other before its time");
    }

    #[test]
    fn a_pace_may_change_at_the_very_moment_of_a_burst() {
        let dial = Dial::new(pace(3e6));
        let mut timetable = Timetable::of(dial.clone(), (0, 1));
        let mut now = SECOND;
        for step in 1..10 {
            assert_eq!(sent(&mut timetable, now), 1, "burst {step}");
            // Once in three its next one is a ns further off than its period says.
            dial.set(pace(3e6 + f64::from(step)));
            assert_eq!(sent(&mut timetable, now), 0, "burst {step}");
            now = timetable.next_ns().unwrap();
        }
    }

    #[test]
    fn who_is_behind_when_the_pace_changes_is_behind_by_as_many_packets() {
        for (sentence, before, after, late_ns, packets) in [
            ("as fast", 1e6, 1e6 + 0.1, 10_500, 10),
            ("twice as fast", 1e6, 2e6, 10_500, 10),
            ("half as fast", 1e6, 5e5, 10_500, 10),
            ("so slow that it would take too long", 1e6, 10.0, 10_500, 0),
            ("a pause", 1e6, 0.0, 10_500, -1),
            ("too far behind before", 1e6, 2e6, SECOND, 0),
        ] {
            let dial = Dial::new(pace(before));
            let mut timetable = Timetable::of(dial.clone(), (0, 1));
            sent(&mut timetable, SECOND);
            dial.set(pace(after));
            // Besides the packet that is due at once.
            let due = i64::from(sent(&mut timetable, SECOND + 1000 + late_ns)) - 1;
            assert_eq!(due, packets, "{sentence}");
        }
    }

    #[test]
    fn a_ramp_loses_nothing_to_a_worker_that_comes_late() {
        // From 0 to 100,000 a second within 2 s, looked at every 3 ms: 100,000 packets.
        let dial = Dial::new(pace(0.1));
        let mut timetable = Timetable::of(dial.clone(), (0, 1));
        let mut packets = 0;
        for ms in 0..2000_u64 {
            if ms % 20 == 0 {
                dial.set(pace((ms + 10) as f64 * 50.0));
            }
            packets += if ms % 3 == 0 { sent(&mut timetable, ms * 1_000_000) } else { 0 };
        }
        assert!((99_500..=100_500).contains(&packets), "{packets}");
    }

    #[test]
    fn many_small_steps_send_as_many_as_their_mean_says() {
        // From 0 to 100 a second within 10 s, in steps of 20 ms: 500 packets.
        let dial = Dial::new(pace(0.1));
        let mut timetable = Timetable::of(dial.clone(), (0, 1));
        let mut packets = 0;
        for step in 0..500_u64 {
            dial.set(pace((step as f64 + 0.5) / 5.0));
            let step_ns = step * 20_000_000;
            packets += (0..200).map(|i| sent(&mut timetable, step_ns + i * 100_000)).sum::<u32>();
        }
        assert!((490..=510).contains(&packets), "{packets}");
    }
}
