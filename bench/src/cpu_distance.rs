//! How far two CPUs lie apart: what a cache line takes from one to the other and back.
//!
//! The host of a virtual machine moves its CPUs about the chip while a bench runs: now a line takes some
//! 50 ns, now 160, now 600, and in the last case all that two CPUs share costs several times as much.
//! Steps can be compared only where they had it alike: so a turn is put off until the CPUs lie near each
//! other, and run again if they do not any more at its end. CPUs at rest may lie elsewhere than those
//! that work: where a turn has looked while it ran, that counts. Where they did not come near in time, no turn waits
//! until they were near again.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sluicegate::link::pin_thread;

use crate::measurement::Measurement;
use crate::observer::BenchObserver;
use crate::observer::Failure;
use crate::testbed::Cpus;

/// Tries, the last of which counts wherever the CPUs are.
const TRIES: u32 = 3;
/// The most looks at whether CPUs that have moved apart are near again, and the time between two of them.
const MAX_LOOKS: u32 = 20;
/// A wait takes as long as this many turns at most.
const TURNS: u32 = 5;
pub(crate) const PAUSE: Duration = Duration::from_millis(250);
/// Up to here CPUs are near each other, even where they were nearer once.
const NEAR: Duration = Duration::from_nanos(300);
/// Times more than the least, up to which CPUs that are never as near as that lie as near as ever.
const ALIKE: u32 = 2;
/// Times that a line goes to and fro in one go, and goes of which the best counts: the others were
/// disturbed.
const TRIPS: u32 = 500;
const GOES: u32 = 20;

/// How far the sender's CPU and the receiver's lie apart.
#[derive(Debug)]
pub(crate) struct CpuDistance {
    /// None where there is one only.
    cpus: Option<[usize; 2]>,
    /// The least that was seen.
    nearest: Duration,
    /// Distance at the end of each turn that counts.
    turns: Vec<Duration>,
    /// [`looks`].
    looks: u32,
    /// They were waited for, and have stayed apart since.
    in_vain: bool,
    /// [`round_trip`].
    measure: fn([usize; 2]) -> Option<Duration>,
}

impl CpuDistance {
    /// Watches the first two of `cpus`, for turns that take `turn`.
    pub fn of(cpus: &Cpus, turn: Duration) -> Self {
        let cpus = <[usize; 2]>::try_from(cpus.senders(2)).ok();
        Self {
            cpus,
            nearest: Duration::MAX,
            turns: Vec::new(),
            looks: looks(turn),
            in_vain: false,
            measure: round_trip,
        }
    }

    /// Runs a turn, again where the CPUs were moved away from each other.
    pub fn turn(
        &mut self,
        watch: &dyn BenchObserver,
        mut run: impl FnMut() -> Result<Measurement, Failure>,
    ) -> Result<Measurement, Failure> {
        let mut tries = 1;
        loop {
            let near = self.comes_near(watch)?;
            let turn = run()?;
            let apart = match turn.apart_ns {
                Some(ns) => self.saw(Duration::from_nanos(ns)),
                None => self.look(),
            };
            if near && !self.is_near(apart) && tries < TRIES {
                tries += 1;
                continue;
            }
            self.turns.push(apart);
            return Ok(turn);
        }
    }

    /// Returns a note on the turns so far, if their distances differ.
    pub fn note(&self) -> Option<String> {
        let [a, b] = self.cpus?;
        let far: Vec<_> = self.turns.iter().filter(|&&apart| !self.is_near(apart)).collect();
        let farthest = far.iter().max()?;
        let [nearest, farthest] = [self.nearest, **farthest].map(|it| it.as_nanos());
        Some(format!(
            "{} of {} turns ran while CPU {a} and {b} lay further apart: a cache line took up to \
             {farthest} ns to the other and back, not {nearest}",
            far.len(),
            self.turns.len()
        ))
    }

    /// Waits until they are near, or for long enough, and where they did not, not again before they
    /// were: whether they are.
    fn comes_near(&mut self, watch: &dyn BenchObserver) -> Result<bool, Failure> {
        let looks = if self.in_vain { 1 } else { self.looks };
        for look in 1..=looks {
            let apart = self.look();
            if self.is_near(apart) {
                self.in_vain = false;
                return Ok(true);
            }
            if look < looks {
                watch.pause(PAUSE)?;
            }
        }
        self.in_vain = true;
        Ok(false)
    }

    /// The longest that a line takes between CPUs that are near each other.
    pub fn near(&self) -> Duration {
        self.nearest.saturating_mul(ALIKE).max(NEAR)
    }

    fn is_near(&self, apart: Duration) -> bool {
        apart <= self.near()
    }

    /// How far apart they are now; not at all where one cannot be had.
    fn look(&mut self) -> Duration {
        let Some(apart) = self.cpus.and_then(self.measure) else { return Duration::ZERO };
        self.saw(apart)
    }

    fn saw(&mut self, apart: Duration) -> Duration {
        self.nearest = self.nearest.min(apart);
        apart
    }
}

/// Looks until CPUs that lie apart are waited for no longer: a short turn is not worth a long wait.
pub(crate) fn looks(turn: Duration) -> u32 {
    let looks = (turn * TURNS).as_millis() / PAUSE.as_millis();
    u32::try_from(looks).unwrap_or(MAX_LOOKS).clamp(1, MAX_LOOKS)
}

/// Measures a cache line's round trip between the first two of `cpus`, in nanoseconds; none if there
/// is only one CPU. Work on these CPUs delays the answer by milliseconds and does not change it.
pub(crate) fn apart_ns(cpus: &Cpus) -> Option<u64> {
    let two = <[usize; 2]>::try_from(cpus.senders(2)).ok()?;
    round_trip(two).map(|apart| apart.as_nanos() as u64)
}

/// Measures a cache line's round trip between two CPUs; none if a thread cannot be pinned to them.
fn round_trip([here, there]: [usize; 2]) -> Option<Duration> {
    /// A line of its own, and the next, which CPUs fetch with it.
    #[repr(align(128))]
    struct CacheLine(AtomicU32);
    let (ping, pong) = (CacheLine(AtomicU32::new(0)), CacheLine(AtomicU32::new(0)));
    // What each writes pairs with the other's look at it; nothing else is handed over.
    let wait = |line: &CacheLine, number| {
        while line.0.load(Ordering::Acquire) != number {
            std::hint::spin_loop();
        }
    };
    let numbers = 1..=TRIPS * GOES;
    let (meeting, pinned) = (Barrier::new(2), AtomicU32::new(0));
    // Both are where they should be, or neither begins.
    let meet = |cpu| {
        // Relaxed: the barrier is what orders it.
        pinned.fetch_add(pin_thread(cpu).is_ok().into(), Ordering::Relaxed);
        meeting.wait();
        pinned.load(Ordering::Relaxed) == 2
    };
    let answer = || {
        for number in numbers.clone() {
            wait(&ping, number);
            pong.0.store(number, Ordering::Release);
        }
    };
    let ask = || {
        let (mut best, mut begun) = (Duration::MAX, Instant::now());
        for number in numbers.clone() {
            ping.0.store(number, Ordering::Release);
            wait(&pong, number);
            if number % TRIPS == 0 {
                best = best.min(begun.elapsed() / TRIPS);
                begun = Instant::now();
            }
        }
        best
    };
    thread::scope(|scope| {
        scope.spawn(|| meet(there).then(answer));
        let asks = scope.spawn(|| meet(here).then(ask));
        asks.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUS: [usize; 2] = [0, 1];

    fn apart(cpus: Option<[usize; 2]>, measure: fn([usize; 2]) -> Option<Duration>) -> CpuDistance {
        let nearest = Duration::from_nanos(160);
        let looks = looks(Duration::from_secs(1));
        CpuDistance { cpus, nearest, turns: Vec::new(), looks, in_vain: false, measure }
    }

    /// How often turns of it are run, and are put off, in three.
    fn runs_and_pauses(mut apart: CpuDistance) -> (u32, u32, CpuDistance) {
        let (watch, mut runs) = (Hasty::default(), 0);
        for _ in 0..3 {
            let run = || {
                runs += 1;
                Ok(Measurement::default())
            };
            apart.turn(&watch, run).unwrap();
        }
        (runs, watch.0.get(), apart)
    }

    /// Does not wait, and counts how often it was asked to.
    #[derive(Default)]
    struct Hasty(std::cell::Cell<u32>);

    impl BenchObserver for Hasty {
        fn wait(&self, _: Duration) -> bool {
            self.0.set(self.0.get() + 1);
            true
        }
    }

    #[test]
    fn a_line_takes_time_between_two_cpus_that_there_are() {
        let cpus = Cpus::allowed().unwrap();
        if let Ok(two) = <[usize; 2]>::try_from(cpus.senders(2)) {
            let took = round_trip(two).unwrap();
            assert!(!took.is_zero(), "{took:?}");
        }
        assert_eq!(round_trip([0, 100_000]), None);
    }

    #[test]
    fn a_turn_counts_at_once_where_cpus_are_near_or_there_is_one() {
        let near = |_| Some(Duration::from_nanos(320));
        for apart in [apart(Some(CPUS), near), apart(None, near), apart(Some(CPUS), |_| None)] {
            let (runs, pauses, apart) = runs_and_pauses(apart);
            assert_eq!((runs, pauses, apart.note()), (3, 0, None));
        }
    }

    #[test]
    fn a_wait_is_no_longer_than_some_turns() {
        for (ms, expected) in [(50, 1), (100, 2), (500, 10), (1000, 20), (60_000, 20)] {
            assert_eq!(looks(Duration::from_millis(ms)), expected, "{ms} ms");
        }
    }

    #[test]
    fn what_is_near_does_not_become_far_where_cpus_were_nearer_once() {
        for (nearest, ns, near) in [
            (50, 160, true),
            (50, 300, true),
            (50, 600, false),
            (160, 600, false),
            (500, 1000, true),
            (500, 1001, false),
        ] {
            let apart =
                CpuDistance { nearest: Duration::from_nanos(nearest), ..apart(None, |_| None) };
            assert_eq!(
                apart.is_near(Duration::from_nanos(ns)),
                near,
                "{ns} where it was {nearest}"
            );
        }
    }

    #[test]
    fn cpus_that_stay_apart_are_waited_for_once_and_told() {
        let far = |_| Some(Duration::from_nanos(321));
        let (runs, pauses, mut apart) = runs_and_pauses(apart(Some(CPUS), far));
        assert_eq!((runs, pauses), (3, MAX_LOOKS - 1));
        apart.turns.push(Duration::from_nanos(600));
        apart.turns.push(Duration::from_nanos(160));
        let note = apart.note().unwrap();
        assert!(note.starts_with("4 of 5 turns ran while CPU 0 and 1 lay"), "{note}");
        assert!(note.ends_with("up to 600 ns to the other and back, not 160"), "{note}");
    }

    #[test]
    fn a_turn_that_says_that_cpus_were_apart_runs_again_however_near_they_are_behind_it() {
        let mut apart = apart(Some(CPUS), |_| Some(Duration::from_nanos(160)));
        let mut said = [600, 100].into_iter();
        let run = || Ok(Measurement { apart_ns: said.next(), ..Measurement::default() });
        let turn = apart.turn(&Hasty::default(), run).unwrap();
        assert_eq!(turn.apart_ns, Some(100));
        assert_eq!((apart.turns.len(), apart.nearest), (1, Duration::from_nanos(100)));
    }

    #[test]
    fn cpus_that_came_near_again_are_waited_for_again() {
        /// CpuDistance until the wait has timed out, then near for one turn, then apart to the end.
        fn near_once(_: [usize; 2]) -> Option<Duration> {
            static LOOK: AtomicU32 = AtomicU32::new(0);
            // Behind the first turn is looked, too, and before and behind the second.
            let second = MAX_LOOKS + 1..MAX_LOOKS + 3;
            let look = LOOK.fetch_add(1, Ordering::Relaxed);
            Some(Duration::from_nanos(if second.contains(&look) { 160 } else { 600 }))
        }
        let (runs, pauses, apart) = runs_and_pauses(apart(Some(CPUS), near_once));
        assert_eq!((runs, pauses), (3, 2 * (MAX_LOOKS - 1)));
        assert!(apart.note().unwrap().starts_with("2 of 3 turns"));
    }

    #[test]
    fn a_turn_at_whose_end_cpus_are_apart_runs_again_and_not_for_ever() {
        /// Near before a turn, far behind it.
        fn now_and_then(_: [usize; 2]) -> Option<Duration> {
            static LOOK: AtomicU32 = AtomicU32::new(0);
            let look = LOOK.fetch_add(1, Ordering::Relaxed);
            Some(Duration::from_nanos(if look.is_multiple_of(2) { 160 } else { 600 }))
        }
        let (runs, pauses, apart) = runs_and_pauses(apart(Some(CPUS), now_and_then));
        assert_eq!((runs, pauses), (3 * TRIES, 0));
        assert!(apart.note().unwrap().starts_with("3 of 3 turns"));
    }
}
