//! How far two CPUs lie apart: what a cache line takes from one to the other and back.
//!
//! The host of a virtual machine moves its CPUs about the chip while a bench runs, and then all that
//! two of them share costs several times as much. Steps can be compared only where they had it alike:
//! so a turn is run when the CPUs lie as near each other as they ever did, and again if they do not
//! any more at its end.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sluicegate::link::pin_thread;

use crate::bed::Cpus;
use crate::failure::Failure;
use crate::measurement::Measurement;
use crate::watch::Watch;

/// Tries, the last of which counts wherever the CPUs are.
const TRIES: u32 = 3;
/// How often is looked whether CPUs are near before a turn, and how long it is from one look to the next.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);
/// Times more than the least, up to which CPUs lie as near as ever.
const ALIKE: u32 = 2;
/// Times that a line goes to and fro in one go, and goes of which the best counts: the others were
/// disturbed.
const TRIPS: u32 = 500;
const GOES: u32 = 20;

/// How far the sender's CPU and the receiver's lie apart.
#[derive(Debug)]
pub(crate) struct Apart {
    /// None where there is one only.
    cpus: Option<[usize; 2]>,
    /// The least that was seen.
    nearest: Duration,
    /// What it was at the end of each turn that counts.
    turns: Vec<Duration>,
}

impl Apart {
    /// Of the first two of these.
    pub fn of(cpus: &Cpus) -> Self {
        let cpus = <[usize; 2]>::try_from(cpus.senders(2)).ok();
        Self { cpus, nearest: Duration::MAX, turns: Vec::new() }
    }

    /// Runs a turn, again where the CPUs were moved away from each other.
    pub fn turn(
        &mut self,
        watch: &dyn Watch,
        mut run: impl FnMut() -> Result<Measurement, Failure>,
    ) -> Result<Measurement, Failure> {
        let mut tries = 0;
        loop {
            let near = self.comes_near(watch)?;
            let turn = run()?;
            tries += 1;
            let apart = self.look();
            if near && self.is_near(apart) || tries == TRIES {
                self.turns.push(apart);
                return Ok(turn);
            }
        }
    }

    /// What there is to say of the turns so far.
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

    /// Waits until they are near, or for long enough: whether they are.
    fn comes_near(&mut self, watch: &dyn Watch) -> Result<bool, Failure> {
        for _ in 0..LOOKS {
            let apart = self.look();
            if self.is_near(apart) {
                return Ok(true);
            }
            watch.pause(PAUSE)?;
        }
        Ok(false)
    }

    fn is_near(&self, apart: Duration) -> bool {
        apart <= self.nearest.saturating_mul(ALIKE)
    }

    /// How far they are now; nothing where that makes no sense.
    fn look(&mut self) -> Duration {
        let apart = self.cpus.and_then(round_trip).unwrap_or_default();
        self.nearest = self.nearest.min(apart);
        apart
    }
}

/// What a cache line takes from the one CPU to the other and back; none if they are not to be had.
fn round_trip([here, there]: [usize; 2]) -> Option<Duration> {
    /// A line of its own, and the next, which CPUs fetch with it.
    #[repr(align(128))]
    struct Line(AtomicU32);
    let (ping, pong) = (Line(AtomicU32::new(0)), Line(AtomicU32::new(0)));
    // What each writes pairs with the other's look at it; nothing else is handed over.
    let wait = |line: &Line, number| {
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
    use crate::watch::Patient;

    fn apart(cpus: Option<[usize; 2]>, nearest: u64) -> Apart {
        Apart { cpus, nearest: Duration::from_nanos(nearest), turns: Vec::new() }
    }

    #[test]
    fn a_line_takes_time_between_two_cpus_that_there_are() {
        let cpus = Cpus::allowed().unwrap();
        if let Ok(two) = <[usize; 2]>::try_from(cpus.senders(2)) {
            let took = round_trip(two).unwrap();
            assert!(!took.is_zero() && took < Duration::from_millis(1), "{took:?}");
        }
        assert_eq!(round_trip([0, 100_000]), None);
    }

    #[test]
    fn a_turn_counts_at_once_where_cpus_are_near_or_there_is_one() {
        for cpus in [None, Some([0, 100_000])] {
            let mut apart = apart(cpus, u64::MAX);
            let mut runs = 0;
            let run = || {
                runs += 1;
                Ok(Measurement::default())
            };
            apart.turn(&Patient, run).unwrap();
            assert_eq!((runs, apart.note()), (1, None));
        }
    }

    #[test]
    fn turns_that_ran_further_apart_than_others_are_told() {
        let mut apart = apart(Some([0, 1]), 160);
        apart.turns = [160, 320, 321, 600].map(Duration::from_nanos).into();
        let note = apart.note().unwrap();
        assert!(note.starts_with("2 of 4 turns ran while CPU 0 and 1 lay"), "{note}");
        assert!(note.ends_with("up to 600 ns to the other and back, not 160"), "{note}");
    }

    #[test]
    fn a_turn_runs_again_where_cpus_were_moved_and_not_for_ever() {
        // Nothing takes a line as short a time as this.
        let cpus = <[usize; 2]>::try_from(Cpus::allowed().unwrap().senders(2)).ok();
        let Some(cpus) = cpus else { return };
        let mut apart = apart(Some(cpus), 0);
        let mut runs = 0;
        struct Hasty;
        impl Watch for Hasty {
            fn wait(&self, _: Duration) -> bool {
                true
            }
        }
        let run = || {
            runs += 1;
            Ok(Measurement::default())
        };
        apart.turn(&Hasty, run).unwrap();
        assert_eq!(runs, TRIES);
        assert!(apart.note().is_some());
    }
}
