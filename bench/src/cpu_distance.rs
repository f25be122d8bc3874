//! The distance of two CPUs: the round trip of a cache line between them.
//!
//! The host of a virtual machine moves its CPUs across the chip while a bench runs: a round trip takes 50 ns,
//! then 160, then 600. In the last case all memory that two CPUs share costs several times as much. Results
//! are comparable only at similar distances. So a turn waits until the CPUs are near each other, and runs
//! again if they are distant at its end. After a wait that timed out, no turn waits until the CPUs have been
//! near again. Idle CPUs may have other positions than busy ones, so a distance measured by the turn itself
//! takes precedence.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sluicegate::link::pin_thread;

use crate::measurement::Measurement;
use crate::observer::{BenchObserver, Failure};
use crate::testbed::Cpus;

/// Maximum of runs of a turn; the last one counts at any distance.
const MAX_TRIES: u32 = 3;
/// Maximum of measurements of a wait, and the time between two.
const MAX_CHECKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);
/// The longest wait, in turns.
const MAX_TURNS: u32 = 5;
/// Up to this distance CPUs are near, even if they were nearer before.
const NEAR: Duration = Duration::from_nanos(300);
/// Up to this multiple of the smallest distance CPUs are also near.
const ALIKE: u32 = 2;
/// Round trips of a measurement, and number of measurements. The shortest counts, because the others were
/// disturbed.
const TRIPS: u32 = 500;
const REPEATS: u32 = 20;

/// The distance of the sender's CPU and the receiver's.
#[derive(Debug)]
pub(crate) struct CpuDistance {
    /// None if the machine has one CPU.
    cpus: Option<[usize; 2]>,
    /// The smallest distance so far.
    nearest: Duration,
    /// The distances at the end of the turns that count.
    turns: Vec<Duration>,
    /// [`checks`].
    checks: u32,
    /// The last wait was too long; the CPUs have not been near since.
    timed_out: bool,
    /// [`round_trip`].
    measure: fn([usize; 2]) -> Option<Duration>,
}

impl CpuDistance {
    /// Watches the first two of `cpus`, for turns that take `turn`.
    pub fn of(cpus: &Cpus, turn: Duration) -> Self {
        Self {
            cpus: cpus.senders(2).try_into().ok(),
            nearest: Duration::MAX,
            turns: Vec::new(),
            checks: checks(turn),
            timed_out: false,
            measure: round_trip,
        }
    }

    /// Runs a turn, again if the CPUs were moved away from each other.
    pub fn run_apart(
        &mut self,
        watch: &dyn BenchObserver,
        mut run: impl FnMut() -> Result<Measurement, Failure>,
    ) -> Result<Measurement, Failure> {
        let (cpus, measure) = (self.cpus, self.measure);
        let check = || cpus.and_then(measure);
        let mut tries = 0;
        loop {
            tries += 1;
            let checks = if self.timed_out { 1 } else { self.checks };
            let before = wait_until(self.near(), checks, watch, check)?;
            let before = self.saw(before);
            self.timed_out = !self.is_near(before);
            let turn = run()?;
            let apart = turn.apart_ns.map(Duration::from_nanos).or_else(check);
            let apart = self.saw(apart);
            if self.timed_out || self.is_near(apart) || tries == MAX_TRIES {
                self.turns.push(apart);
                return Ok(turn);
            }
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

    /// Returns the longest round trip between CPUs that count as near.
    pub fn near(&self) -> Duration {
        self.nearest.saturating_mul(ALIKE).max(NEAR)
    }

    fn is_near(&self, apart: Duration) -> bool {
        apart <= self.near()
    }

    /// Records a distance; zero if there is none.
    fn saw(&mut self, apart: Option<Duration>) -> Duration {
        self.nearest = self.nearest.min(apart.unwrap_or(Duration::MAX));
        apart.unwrap_or_default()
    }
}

/// Returns the number of measurements until a wait ends, because a short turn is not worth a long wait.
pub(crate) fn checks(turn: Duration) -> u32 {
    let checks = (turn * MAX_TURNS).as_millis() / PAUSE.as_millis();
    u32::try_from(checks).unwrap_or(MAX_CHECKS).clamp(1, MAX_CHECKS)
}

/// Measures the distance until it is at most `near`, and returns the last one.
pub(crate) fn wait_until(
    near: Duration,
    checks: u32,
    watch: &dyn BenchObserver,
    check: impl Fn() -> Option<Duration>,
) -> Result<Option<Duration>, Failure> {
    let mut apart = check();
    for _ in 1..checks {
        if apart.is_none_or(|apart| apart <= near) {
            break;
        }
        watch.pause(PAUSE)?;
        apart = check();
    }
    Ok(apart)
}

/// Measures a cache line's round trip between the first two of `cpus`; none if the machine has one CPU. Work
/// on these CPUs delays the result by milliseconds, but does not change it.
pub(crate) fn apart(cpus: &Cpus) -> Option<Duration> {
    round_trip(cpus.senders(2).try_into().ok()?)
}

/// Measures a cache line's round trip between two CPUs; none if a thread cannot be pinned to them.
fn round_trip([here, there]: [usize; 2]) -> Option<Duration> {
    /// A separate cache line, and the next one, which CPUs fetch with it.
    #[repr(align(128))]
    struct CacheLine(AtomicU32);
    let (ping, pong) = (CacheLine(AtomicU32::new(0)), CacheLine(AtomicU32::new(0)));
    // Each store pairs with the other thread's load of that line; they publish nothing else.
    let wait = |line: &CacheLine, number| {
        while line.0.load(Ordering::Acquire) != number {
            std::hint::spin_loop();
        }
    };
    let numbers = 1..=TRIPS * REPEATS;
    let (meeting, pinned) = (Barrier::new(2), AtomicU32::new(0));
    // Neither thread begins if one is not pinned.
    let meet = |cpu| {
        // Relaxed: the barrier orders it.
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
        let checks = checks(Duration::from_secs(1));
        CpuDistance { cpus, nearest, turns: Vec::new(), checks, timed_out: false, measure }
    }

    /// Number of runs and of pauses in three turns.
    fn runs_and_pauses(mut apart: CpuDistance) -> (u32, u32, CpuDistance) {
        let (watch, mut runs) = (Hasty::default(), 0);
        for _ in 0..3 {
            let run = || {
                runs += 1;
                Ok(Measurement::default())
            };
            apart.run_apart(&watch, run).unwrap();
        }
        (runs, watch.0.get(), apart)
    }

    /// Does not wait, and counts the waits.
    #[derive(Default)]
    struct Hasty(std::cell::Cell<u32>);

    impl BenchObserver for Hasty {
        fn wait(&self, _: Duration) -> bool {
            self.0.set(self.0.get() + 1);
            true
        }
    }

    #[test]
    fn a_round_trip_between_two_cpus_takes_time() {
        let cpus = Cpus::allowed().unwrap();
        if let Ok(two) = <[usize; 2]>::try_from(cpus.senders(2)) {
            let took = round_trip(two).unwrap();
            assert!(!took.is_zero(), "{took:?}");
        }
        assert_eq!(round_trip([0, 100_000]), None);
    }

    #[test]
    fn a_turn_counts_at_once_if_cpus_are_near_or_there_is_one() {
        let near = |_| Some(Duration::from_nanos(320));
        for apart in [apart(Some(CPUS), near), apart(None, near), apart(Some(CPUS), |_| None)] {
            let (runs, pauses, apart) = runs_and_pauses(apart);
            assert_eq!((runs, pauses, apart.note()), (3, 0, None));
        }
    }

    #[test]
    fn a_wait_is_no_longer_than_some_turns() {
        for (ms, expected) in [(50, 1), (100, 2), (500, 10), (1000, 20), (60_000, 20)] {
            assert_eq!(checks(Duration::from_millis(ms)), expected, "{ms} ms");
        }
    }

    #[test]
    fn near_cpus_do_not_become_far_because_they_were_nearer_once() {
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
    fn cpus_that_stay_apart_are_waited_for_once_and_noted() {
        let far = |_| Some(Duration::from_nanos(321));
        let (runs, pauses, mut apart) = runs_and_pauses(apart(Some(CPUS), far));
        assert_eq!((runs, pauses), (3, MAX_CHECKS - 1));
        apart.turns.push(Duration::from_nanos(600));
        apart.turns.push(Duration::from_nanos(160));
        let note = apart.note().unwrap();
        assert!(note.starts_with("4 of 5 turns ran while CPU 0 and 1 lay"), "{note}");
        assert!(note.ends_with("up to 600 ns to the other and back, not 160"), "{note}");
    }

    #[test]
    fn a_turn_that_measured_a_long_distance_runs_again() {
        let mut apart = apart(Some(CPUS), |_| Some(Duration::from_nanos(160)));
        let mut said = [600, 100].into_iter();
        let run = || Ok(Measurement { apart_ns: said.next(), ..Measurement::default() });
        let turn = apart.run_apart(&Hasty::default(), run).unwrap();
        assert_eq!(turn.apart_ns, Some(100));
        assert_eq!((apart.turns.len(), apart.nearest), (1, Duration::from_nanos(100)));
    }

    #[test]
    fn cpus_that_came_near_again_are_waited_for_again() {
        /// Far until the wait has timed out, then near for one turn, then far to the end.
        fn near_once(_: [usize; 2]) -> Option<Duration> {
            static CHECK: AtomicU32 = AtomicU32::new(0);
            // One check follows the first turn; others precede and follow the second.
            let second = MAX_CHECKS + 1..MAX_CHECKS + 3;
            let check = CHECK.fetch_add(1, Ordering::Relaxed);
            Some(Duration::from_nanos(if second.contains(&check) { 160 } else { 600 }))
        }
        let (runs, pauses, apart) = runs_and_pauses(apart(Some(CPUS), near_once));
        assert_eq!((runs, pauses), (3, 2 * (MAX_CHECKS - 1)));
        assert!(apart.note().unwrap().starts_with("2 of 3 turns"));
    }

    #[test]
    fn a_turn_that_ends_with_cpus_apart_runs_again_up_to_a_limit() {
        /// Near before a turn, far after it.
        fn now_and_then(_: [usize; 2]) -> Option<Duration> {
            static CHECK: AtomicU32 = AtomicU32::new(0);
            let check = CHECK.fetch_add(1, Ordering::Relaxed);
            Some(Duration::from_nanos(if check.is_multiple_of(2) { 160 } else { 600 }))
        }
        let (runs, pauses, apart) = runs_and_pauses(apart(Some(CPUS), now_and_then));
        assert_eq!((runs, pauses), (3 * MAX_TRIES, 0));
        assert!(apart.note().unwrap().starts_with("3 of 3 turns"));
    }
}
