//! The watch over the workers: signals, time, status, the ledger so far.

use std::io::{Stdout, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use sluicegate::error::{Error, Result};
use sluicegate::link::pin_thread;
use sluicegate::port::Queue;
use sluicegate::ring::Wait;

use super::counters::{Inquiry, Snapshot, Wanted, WorkerCounters};
use super::worker::{Outcome, Receiving, RunContext, Stop, Visitor};
use crate::signals::Signals;

/// Between two looks of the control thread, where nothing wakes it.
const TICK: Duration = Duration::from_millis(100);
/// Interval between checks while workers owe their snapshots.
const ANSWER_TICK: Duration = Duration::from_millis(10);

/// When a run ends, and where its threads run.
#[derive(Clone, Debug)]
pub struct Limits {
    /// After this time.
    pub duration: Option<Duration>,
    /// After this many packets.
    pub count: Option<u64>,
    /// The CPUs for the workers, in turns; anywhere if empty.
    pub cpus: Vec<usize>,
    /// How workers wait.
    pub wait: Wait,
    /// Time between two looks at the counters.
    pub interval: Duration,
    /// Stop when nobody reads standard output any more, even if nothing is to be written.
    pub watch_reader: bool,
}

/// The work of one thread of a run.
pub trait Work: Send {
    /// How it ends.
    type Outcome: Ended + Send + Sync;

    /// The thread's name.
    fn name(&self) -> String;

    /// Does it, until told to stop, or until there is no more to do. Publishes a snapshot of its outcome
    /// when it is asked for one, and before it returns.
    fn run(
        self,
        shared: &RunContext,
        counters: &WorkerCounters,
        snapshot: &Snapshot<Self::Outcome>,
        cpu: Option<usize>,
    ) -> Self::Outcome;
}

/// Attends a run, on its control thread.
pub trait Control<O> {
    /// At each interval: the workers' counts and the time since the start.
    fn watch(&mut self, counters: &[WorkerCounters], at: Duration);

    /// On SIGUSR1: what each worker has done in the time since the start; none of a worker that is held
    /// up.
    fn ledger(&mut self, outcomes: &[Option<Arc<O>>], at: Duration);

    /// Some ten times a second.
    fn tick(&mut self) {}

    /// Once, when nothing more is let in, before the workers have dealt with all that came.
    fn at_end(&mut self) {}
}

/// How a thread's work has ended.
pub trait Ended {
    /// When it had handed on its last packet.
    fn at(&self) -> Instant;

    /// Returns true if the work failed: then the others end, too.
    fn failed(&self) -> bool;
}

/// A run that has ended.
#[derive(Debug)]
pub struct Run<O = Outcome> {
    /// How each worker ended.
    pub outcomes: Vec<O>,
    /// From the first packet let in to the last: until the run was stopped, or until the last
    /// source had come to its end.
    pub elapsed: Duration,
    /// It ended because nobody read standard output any more.
    pub reader_left: bool,
}

/// Runs a worker on each queue with the visitor beside it; see [`supervise`].
///
/// # Errors
/// As those of [`supervise`].
pub fn run<V: Visitor>(
    work: Vec<(Queue, &mut V)>,
    limits: &Limits,
    signals: &Signals,
    attendant: &mut impl Control<Outcome>,
) -> Result<Run> {
    // All of them before the first thread: one that cannot be started leaves the rest to be told.
    let work = work.into_iter().map(|(queue, visitor)| Receiving::new(queue, visitor)).collect();
    supervise::<Receiving<'_, V>>(work, limits, signals, attendant)
}

/// Runs a thread for each piece of work.
///
/// # Errors
/// A CPU that cannot be used. Failures of workers stand in their outcomes.
pub fn supervise<W: Work>(
    work: Vec<W>,
    limits: &Limits,
    signals: &Signals,
    attendant: &mut impl Control<W::Outcome>,
) -> Result<Run<W::Outcome>> {
    let counters: Vec<WorkerCounters> = work.iter().map(|_| WorkerCounters::default()).collect();
    let snapshots: Vec<Snapshot<W::Outcome>> = work.iter().map(|_| Snapshot::default()).collect();
    let shared = RunContext {
        stop: Stop::new()?,
        wanted: Wanted::new(limits.count),
        wait: limits.wait,
        down: Mutex::default(),
    };
    let running = AtomicUsize::new(work.len());
    let stdout = limits.watch_reader.then(stdout);
    let mut events = Events { signals: Some(signals), stdout, stop: &shared.stop };
    let start = Instant::now();
    let mut reader_left = false;
    let mut open = true;
    let outcomes = thread::scope(|scope| {
        // Whatever way this scope is left, the workers end.
        let _stop = StopOnDrop(&shared.stop);
        let workers: Vec<ScopedJoinHandle<'_, Result<W::Outcome>>> = work
            .into_iter()
            .zip(counters.iter().zip(&snapshots))
            .enumerate()
            .map(|(i, (work, (counters, snapshot)))| {
                let (shared, running) = (&shared, &running);
                let cpu = limits.cpus.get(i % limits.cpus.len().max(1)).copied();
                thread::Builder::new().name(work.name()).spawn_scoped(scope, move || {
                    let _ended = RunningWorker { count: running, stop: &shared.stop };
                    let stop = StopOnDrop(&shared.stop);
                    cpu.map_or(Ok(()), pin_thread)?;
                    let outcome = work.run(shared, counters, snapshot, cpu);
                    if !outcome.failed() {
                        // A file that has been read to its end does not end the others.
                        std::mem::forget(stop);
                    }
                    Ok(outcome)
                })
            })
            .collect::<std::io::Result<_>>()
            .map_err(|e| Error::system("start", "a worker thread", e))?;
        let mut next_look = limits.interval;
        let mut inquiry = Inquiry::default();
        while running.load(Ordering::Relaxed) > 0 {
            if shared.stop.is_set() && std::mem::take(&mut open) {
                attendant.at_end();
            }
            let elapsed = start.elapsed();
            let end = limits.duration.filter(|_| !shared.stop.is_set());
            if end.is_some_and(|end| elapsed >= end) {
                shared.stop.set();
                continue;
            }
            attendant.tick();
            if signals.take_ledger_request() {
                inquiry.ask(&snapshots);
            }
            if let Some(outcomes) = inquiry.answer(&snapshots) {
                attendant.ledger(&outcomes, elapsed);
            }
            if elapsed >= next_look {
                attendant.watch(&counters, elapsed);
                next_look = elapsed + limits.interval;
            }
            let until = next_look.min(end.unwrap_or(Duration::MAX)).saturating_sub(elapsed);
            let tick = if inquiry.is_open() { ANSWER_TICK } else { TICK };
            match events.wait(until.min(tick))? {
                None => continue,
                // The user may not want to wait for files to be closed.
                Some(ControlEvent::Signal) => signals.end_at_second()?,
                Some(ControlEvent::ReaderLeft) => reader_left = true,
            }
            shared.stop.set();
        }
        if open {
            attendant.at_end();
        }
        let end = |worker: ScopedJoinHandle<'_, Result<W::Outcome>>| match worker.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        workers.into_iter().map(end).collect::<Result<Vec<_>>>()
    })?;
    let ended = shared.stop.at().or_else(|| outcomes.iter().map(Ended::at).max());
    let elapsed = ended.unwrap_or(start).saturating_duration_since(start);
    Ok(Run { outcomes, elapsed, reader_left })
}

/// Tells all workers to stop when it goes: one that fails, however it fails, ends the run.
struct StopOnDrop<'a>(&'a Stop);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// A worker that has not ended, however it ends.
struct RunningWorker<'a> {
    count: &'a AtomicUsize,
    stop: &'a Stop,
}

impl Drop for RunningWorker<'_> {
    fn drop(&mut self) {
        // The wake-up, a system call, is after it.
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.stop.wake();
    }
}

/// An event that ends a run from outside.
enum ControlEvent {
    Signal,
    ReaderLeft,
}

/// The signals, the reader of standard output, and the workers' ends.
struct Events<'a> {
    /// Until one has asked for the end.
    signals: Option<&'a Signals>,
    stdout: Option<Stdout>,
    stop: &'a Stop,
}

impl Events<'_> {
    /// Waits for an event; `None` if none has come, or the workers' state may have changed. That the
    /// reader left is said once.
    fn wait(&mut self, timeout: Duration) -> Result<Option<ControlEvent>> {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        // No event is asked of stdout: a pipe without a reader reports an error all the same.
        let stdout = self.stdout.as_ref().map(|stdout| stdout.as_fd());
        let stdout = stdout.map(|fd: BorrowedFd<'_>| PollFd::new(fd, PollFlags::empty()));
        let signals = self.signals.map(|signals| PollFd::new(signals.as_fd(), PollFlags::POLLIN));
        let stop = PollFd::new(self.stop.as_fd(), PollFlags::POLLIN);
        let mut fds: Vec<PollFd<'_>> = stdout.into_iter().chain(signals).chain([stop]).collect();
        match nix::poll::poll(&mut fds, timeout) {
            Ok(0) | Err(Errno::EINTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(Error::system("wait for", "signals", error)),
        }
        self.stop.take_wake();
        let broken = fds.first().filter(|_| self.stdout.is_some()).and_then(PollFd::revents);
        if broken.is_some_and(|events| events.contains(PollFlags::POLLERR)) {
            self.stdout = None;
            return Ok(Some(ControlEvent::ReaderLeft));
        }
        Ok(self.signals.take_if(|signals| signals.take()).map(|_| ControlEvent::Signal))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use sluicegate::port::{OpenOptions, Port};
    use sluicegate::ring::Packet;

    use super::*;

    /// One that panics at the first packet, if it is to.
    #[derive(Default)]
    struct Fails {
        panics: bool,
        finished: u32,
    }

    impl Visitor for Fails {
        fn packet(&mut self, _packet: &Packet<'_>) {
            assert!(!self.panics, "as it was told");
        }

        fn finish(&mut self) {
            self.finished += 1;
        }
    }

    struct Nobody;

    impl Control<Outcome> for Nobody {
        fn watch(&mut self, _counters: &[WorkerCounters], _at: Duration) {}

        fn ledger(&mut self, _outcomes: &[Option<Arc<Outcome>>], _at: Duration) {}
    }

    #[test]
    fn every_visitor_hears_of_its_end_once() {
        for (sentence, panics, cpus) in [
            ("one whose worker panics, too", [true, false], vec![]),
            ("those whose threads cannot be pinned, too", [false, false], vec![100_000]),
            ("those that come to their end", [false, false], vec![]),
        ] {
            let options = OpenOptions { queues: 2, ..OpenOptions::default() };
            let port = Port::open(&"null:/0-1".parse().unwrap(), &options).unwrap();
            let mut visitors = panics.map(|panics| Fails { panics, ..Fails::default() });
            let limits = Limits {
                duration: Some(Duration::from_secs(10)),
                // One that is to panic may come last.
                count: (!panics[0]).then_some(1000),
                cpus,
                wait: Wait::Sleep,
                interval: Duration::from_secs(1),
                watch_reader: false,
            };
            let signals = Signals::catch().unwrap();
            let work = port.queues.into_iter().zip(&mut visitors).collect();
            let ended = catch_unwind(AssertUnwindSafe(|| {
                run(work, &limits, &signals, &mut Nobody).is_ok()
            }));
            assert_eq!(ended.is_err(), panics[0], "{sentence}");
            assert_eq!(visitors.map(|visitor| visitor.finished), [1, 1], "{sentence}");
        }
    }
}
