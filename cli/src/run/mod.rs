//! A run: one thread per piece of work, and the control thread, which handles signals, time limits, the
//! status and the ledger so far.

mod beside;
mod receive;

use std::collections::BTreeSet;
use std::io::Stdout;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use sluicegate::error::{Error, Result};
use sluicegate::link::{ThreadCpuUsage, pin_thread};
use sluicegate::port::{Queue, QueueStats};
use sluicegate::ring::Wait;

use crate::args::Common;
use crate::counters::{LAST, Snapshots, Totals, Wanted, WorkerCounters};
use crate::notice;
use crate::pipe_reader;
use crate::report::Report;
use crate::signals::Signals;
use crate::status::Status;
pub use beside::Receivers;
pub use receive::{
    CHECK_INTERVAL, DRAIN_INTERVAL, IN_FLIGHT_TIMEOUT, Nothing, ReceiveCounts, Visitor, receive,
};

/// The time limit of workers' answers; the ledger so far excludes a worker that has not answered.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between checks while snapshots are pending.
const ANSWER_TICK: Duration = Duration::from_millis(10);

/// How a run is controlled, besides its flags.
#[derive(Clone, Copy)]
pub struct RunOptions<'a> {
    pub common: &'a Common,
    /// How workers wait.
    pub wait: Wait,
    /// Packets go to standard output: the status goes to stderr.
    pub stdout_is_taken: bool,
}

/// The work of one thread of a run.
pub trait Work: Send {
    /// The counts of a worker.
    type Counts: Send + Sync;

    /// The thread's name.
    fn name(&self) -> String;

    /// Returns the time since which it receives, if it only receives. Then its packets arrive until the time that it
    /// sets by [`WorkerThread::ended_at`].
    fn opened_at(&self) -> Option<Instant> {
        None
    }

    /// Returns the number by which the thread gets one of the CPUs that the user named: usually `index`, its
    /// number among the threads of the run; `None` if it needs none of them.
    fn cpu_number(&self, index: usize) -> Option<usize> {
        Some(index)
    }

    /// Does the work until it is stopped or finished. Publishes a snapshot of its counts when requested. A
    /// failure also ends the other threads.
    fn run(self, thread: &mut WorkerThread<'_, Self::Counts>) -> (Self::Counts, Result<()>);
}

/// The decisions and reports of a run, on its control thread.
pub trait RunControl<T> {
    /// The maximum time between two calls of [`tick`](Self::tick).
    const TICK: Duration = Duration::from_millis(100);

    /// Returns the report so far, requested by SIGUSR1.
    fn report_so_far(&mut self, outcomes: &Outcomes<T>, elapsed: Duration) -> Report;

    /// Shows the workers' counts, once per interval.
    fn watch(&mut self, status: &mut Status, counters: &[WorkerCounters], elapsed: Duration) {
        status.show(Totals::sum(counters), elapsed);
    }

    /// Does periodic work. Break ends the run for the user, who pressed a key.
    fn tick(&mut self, _status: &mut Status, _elapsed: Duration) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Writes what is in memory, requested by SIGUSR2.
    fn save(&mut self) {}

    /// Called once, when reception has stopped, before the workers have processed all packets.
    fn at_end(&mut self) {}
}

/// The result of a thread, at the end or so far.
#[derive(Debug)]
pub struct Outcome<T> {
    /// The CPU it is pinned to.
    pub cpu: Option<usize>,
    /// The share of time on a CPU.
    pub busy: f64,
    /// Messages about its ports printed during the run.
    pub notices: Vec<String>,
    /// The time of its last packet; of a snapshot, the time of the snapshot.
    ended: Instant,
    pub counts: T,
}

/// The outcomes of a run's threads; `None` for a thread that has not answered.
pub type Outcomes<T> = [Option<Arc<Outcome<T>>>];

/// A run that has ended.
#[derive(Debug)]
pub struct Run<T> {
    /// The outcome of each worker; none is missing.
    pub outcomes: Vec<Option<Arc<Outcome<T>>>>,
    /// The time of reception: until the run was stopped, or the last source ended; for receivers the time in which
    /// their packets arrived.
    pub elapsed: Duration,
    /// The run ended because the reader of standard output, or of another pipe, left.
    pub reader_left: bool,
    /// The run ended because of a signal or a key.
    pub ended_by_user: bool,
    /// The first worker's failure.
    pub result: Result<()>,
}

impl<T> Run<T> {
    /// Ends a command that writes packets: its failure, except that of a pipe without a reader.
    pub fn end(self) -> Result<()> {
        if self.reader_left {
            notice::say("the reader closed the pipe");
        }
        self.result
    }
}

/// The state that all workers of a run share.
#[derive(Debug)]
pub struct RunContext {
    /// Set when reception must stop.
    pub stop: Stop,
    /// Packets still wanted by `--count`, over all workers.
    pub wanted: Wanted,
    /// How to wait.
    pub wait: Wait,
    /// Interfaces reported as down.
    down: Mutex<BTreeSet<String>>,
}

/// A worker's thread: its share of the run's state.
pub struct WorkerThread<'a, T> {
    pub run: &'a RunContext,
    pub counters: &'a WorkerCounters,
    snapshots: &'a Snapshots<Outcome<T>>,
    index: usize,
    /// The latest request for a snapshot that it has answered.
    answered: u32,
    cpu: Option<usize>,
    clocks: ThreadCpuUsage,
    notices: Vec<String>,
    ended: Option<Instant>,
}

impl<T> WorkerThread<'_, T> {
    /// Returns true if a snapshot is requested.
    #[inline]
    pub fn wants_snapshot(&self) -> bool {
        self.snapshots.asked() != self.answered
    }

    /// Publishes the requested snapshot.
    pub fn publish(&mut self, counts: T) {
        self.answered = self.snapshots.asked();
        self.snapshots.answer(self.index, self.answered, Arc::new(self.outcome(counts)));
    }

    /// Publishes the last snapshot of a worker that answers no more requests.
    pub fn publish_last(&self, counts: T) {
        self.snapshots.answer(self.index, LAST, Arc::new(self.outcome(counts)));
    }

    /// Sets the time of the last packet, which ends the run's time.
    pub fn ended_at(&mut self, at: Instant) {
        self.ended = Some(at);
    }

    /// The share of the time that the thread was on a CPU.
    pub fn busy(&self) -> f64 {
        self.clocks.share()
    }

    /// Prints a queue's notices.
    pub fn say_notices(&mut self, queue: &mut Queue) {
        while let Some(notice) = queue.take_notice() {
            notice::say(&notice);
            self.notices.push(notice);
        }
    }

    /// Prints a queue's last notices, and returns its counters. If they cannot be read and `result` is Ok, stores
    /// the error there.
    pub fn last_stats(&mut self, queue: &mut Queue, result: &mut Result<()>) -> QueueStats {
        self.say_notices(queue);
        queue.stats().unwrap_or_else(|error| {
            *result = std::mem::replace(result, Ok(())).and(Err(error));
            QueueStats::default()
        })
    }

    /// Reports that a queue's interface went down or came up, once for all queues.
    pub fn report_link(&self, queue: &Queue, up: bool) {
        let Some(interface) = queue.interfaces().first() else { return };
        let name = &interface.name;
        let mut down = self.run.down.lock().unwrap_or_else(PoisonError::into_inner);
        match up {
            true if down.remove(name) => notice::say(format_args!("{name} is up")),
            false if down.insert(name.clone()) => {
                notice::say(format_args!("{name} is down; waiting for it to come up"));
            }
            _ => {}
        }
    }

    fn outcome(&self, counts: T) -> Outcome<T> {
        Outcome {
            cpu: self.cpu,
            busy: self.busy(),
            notices: self.notices.clone(),
            ended: self.ended.unwrap_or_else(Instant::now),
            counts,
        }
    }
}

/// Runs a thread for each piece of work.
///
/// # Errors
/// A thread cannot be started or pinned to its CPU. Failures of workers are in the run's result.
pub fn supervise<W: Work, C: RunControl<W::Counts>>(
    work: Vec<W>,
    options: RunOptions<'_>,
    signals: &Signals,
    control: &mut C,
) -> Result<Run<W::Counts>> {
    let RunOptions { common, wait, stdout_is_taken } = options;
    let mut status = Status::new(common, stdout_is_taken);
    let counters: Vec<WorkerCounters> = work.iter().map(|_| WorkerCounters::default()).collect();
    let snapshots = Snapshots::of(work.len());
    let shared = RunContext {
        stop: Stop::new()?,
        wanted: Wanted::new(common.count),
        wait,
        down: Mutex::default(),
    };
    let running = AtomicUsize::new(work.len());
    // Each event source is polled until it has requested the end.
    let mut reader = pipe_reader::stdout_reader();
    let mut asking = Some(signals);
    // Packets arrive as soon as a queue is open.
    let opened = || work.iter().filter_map(Work::opened_at);
    let (begin, start) = (opened().min(), opened().max().unwrap_or_else(Instant::now));
    let receives = begin.is_some();
    let (mut reader_left, mut ended_by_user) = (false, false);
    let mut open = true;
    let ends = thread::scope(|scope| {
        // Stops the workers however this scope is left.
        let _stop = StopOnDrop(&shared.stop);
        let workers: Vec<ScopedJoinHandle<'_, Result<_>>> = work
            .into_iter()
            .zip(&counters)
            .enumerate()
            .map(|(index, (work, counters))| {
                let (shared, running, snapshots) = (&shared, &running, &snapshots);
                let cpu = work.cpu_number(index).and_then(|number| common.cpu(number));
                thread::Builder::new().name(work.name()).spawn_scoped(scope, move || {
                    let _ended = RunningWorker { count: running, stop: &shared.stop };
                    let stop = StopOnDrop(&shared.stop);
                    cpu.map_or(Ok(()), pin_thread)?;
                    let (clocks, notices) = (ThreadCpuUsage::begin(), Vec::new());
                    let mut thread = WorkerThread {
                        run: shared,
                        counters,
                        snapshots,
                        index,
                        answered: 0,
                        cpu,
                        clocks,
                        notices,
                        ended: None,
                    };
                    let (counts, result) = work.run(&mut thread);
                    let outcome = Arc::new(thread.outcome(counts));
                    snapshots.answer(index, LAST, Arc::clone(&outcome));
                    if result.is_ok() {
                        // The end of a file does not end the other workers.
                        std::mem::forget(stop);
                    }
                    Ok((outcome, result))
                })
            })
            .collect::<std::io::Result<_>>()
            .map_err(|e| Error::start("a worker thread", e))?;
        let mut next_status = status.interval();
        // The time limit of answers, while workers owe them.
        let mut answers_until = None;
        while running.load(Ordering::Relaxed) > 0 {
            let elapsed = start.elapsed();
            if common.duration.is_some_and(|end| elapsed >= end) {
                shared.stop.set();
            } else if control.tick(&mut status, elapsed).is_break() {
                ended_by_user |= !shared.stop.is_set();
                shared.stop.set();
            }
            if shared.stop.is_set() && std::mem::take(&mut open) {
                control.at_end();
            }
            if signals.take_ledger_request() && answers_until.is_none() {
                answers_until = Some(Instant::now() + ANSWER_TIMEOUT);
                snapshots.ask();
            }
            if signals.take_save_request() {
                control.save();
            }
            if let Some(outcomes) = answers_until.and_then(|until| snapshots.answers(until)) {
                answers_until = None;
                status.ledger(&control.report_so_far(&outcomes, elapsed));
            }
            if elapsed >= next_status {
                control.watch(&mut status, &counters, elapsed);
                next_status = elapsed + status.interval();
            }
            let end = common.duration.filter(|_| open).unwrap_or(Duration::MAX);
            let until = next_status.min(end).saturating_sub(elapsed);
            let tick = if answers_until.is_some() { ANSWER_TICK } else { C::TICK };
            let (signal, left) =
                wait_for_event(&shared.stop, asking, reader.as_ref(), until.min(tick))?;
            ended_by_user |= signal && !shared.stop.is_set();
            if left {
                (reader, reader_left) = (None, true);
                shared.stop.set();
            }
            if signal {
                asking = None;
                shared.stop.set();
                // The user may not want to wait for files to be closed.
                signals.end_at_second()?;
                if std::mem::take(&mut open) {
                    control.at_end();
                }
            }
        }
        if open {
            control.at_end();
        }
        let end = |worker: ScopedJoinHandle<'_, Result<_>>| match worker.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let ends = workers.into_iter().map(end).collect::<Result<Vec<_>>>();
        if signals.take_save_request() {
            control.save();
        }
        // The run ended before it could answer.
        if answers_until.is_some() || signals.take_ledger_request() {
            let outcomes = snapshots.answers(Instant::now()).unwrap_or_default();
            status.ledger(&control.report_so_far(&outcomes, start.elapsed()));
        }
        ends
    });
    status.done();
    let (outcomes, results): (Vec<Arc<Outcome<_>>>, Vec<_>) = ends?.into_iter().unzip();
    let last = || outcomes.iter().map(|outcome| outcome.ended).max();
    let end = if receives { last() } else { shared.stop.at().or_else(last) };
    let elapsed = end.unwrap_or(start).saturating_duration_since(begin.unwrap_or(start));
    let outcomes = outcomes.into_iter().map(Some).collect();
    // The run has ended for its reader: the other workers ended as at a signal.
    reader_left |= results.iter().any(is_reader_left);
    let result = results.into_iter().filter(|result| !is_reader_left(result)).collect();
    Ok(Run { outcomes, elapsed, reader_left, ended_by_user, result })
}

/// Returns true if something failed because the reader of a pipe left.
pub fn is_reader_left(result: &Result<()>) -> bool {
    result.as_ref().is_err_and(|error| error.errno() == Some(Errno::EPIPE as i32))
}

/// The end of a run: the first call sets it and wakes the control thread.
#[derive(Debug)]
pub struct Stop {
    at: OnceLock<Instant>,
    wake: EventFd,
}

impl Stop {
    fn new() -> Result<Self> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| Error::system("create", "an eventfd", error))?;
        Ok(Self { at: OnceLock::new(), wake })
    }

    /// Ends the run.
    pub fn set(&self) {
        if self.at.set(Instant::now()).is_ok() {
            self.wake();
        }
    }

    /// Returns true if the run is over.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.at.get().is_some()
    }

    /// Returns the time of the end.
    pub fn at(&self) -> Option<Instant> {
        self.at.get().copied()
    }

    /// Wakes the control thread.
    fn wake(&self) {
        // This fails only if a wake-up is already pending.
        let _ = self.wake.write(1);
    }
}

/// Ends the run when dropped: a worker that fails in any way stops the others.
struct StopOnDrop<'a>(&'a Stop);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Counts a worker as running until it ends, even by a panic.
struct RunningWorker<'a> {
    count: &'a AtomicUsize,
    stop: &'a Stop,
}

impl Drop for RunningWorker<'_> {
    fn drop(&mut self) {
        // The wake-up follows: a system call orders the two.
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.stop.wake();
    }
}

/// Waits for a signal, the exit of the reader of standard output, the end of a worker, or the end of the
/// time. Returns which of the first two occurred.
fn wait_for_event(
    stop: &Stop,
    signals: Option<&Signals>,
    stdout: Option<&Stdout>,
    timeout: Duration,
) -> Result<(bool, bool)> {
    let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
    let mut fds = vec![PollFd::new(stop.wake.as_fd(), PollFlags::POLLIN)];
    fds.extend(stdout.map(pipe_reader::entry));
    fds.extend(signals.map(|signals| PollFd::new(signals.as_fd(), PollFlags::POLLIN)));
    match nix::poll::poll(&mut fds, timeout) {
        Ok(0) | Err(Errno::EINTR) => return Ok((false, false)),
        Ok(_) => {}
        Err(error) => return Err(Error::system("wait for", "signals", error)),
    }
    let reader_left = stdout.is_some() && fds.get(1).is_some_and(pipe_reader::has_left);
    let _ = stop.wake.read();
    Ok((signals.is_some_and(Signals::take), reader_left))
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use clap::Parser;
    use sluicegate::port::{OpenOptions, Port};
    use sluicegate::ring::Packet;

    use super::*;

    /// Panics at the first packet, if requested.
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

    impl RunControl<ReceiveCounts> for Nobody {
        fn report_so_far(&mut self, _: &Outcomes<ReceiveCounts>, _: Duration) -> Report {
            Report::default()
        }
    }

    #[derive(clap::Parser)]
    struct CommonFlags {
        #[command(flatten)]
        common: Common,
    }

    #[test]
    fn every_visitor_finishes_once() {
        // The panicking visitor has no packet limit, because it may be the last.
        for (sentence, panics, flags) in [
            ("one whose worker panics, too", [true, false], "--duration=10s"),
            ("those whose threads cannot be pinned, too", [false, false], "--cpus=8191"),
            ("those that come to their end", [false, false], "--count=1000"),
        ] {
            let options = OpenOptions { queues: 2, ..OpenOptions::default() };
            let port = Port::open(&"null:/0-1".parse().unwrap(), &options).unwrap();
            let mut visitors = panics.map(|panics| Fails { panics, ..Fails::default() });
            let CommonFlags { common } = CommonFlags::parse_from(["test", flags]);
            let options = RunOptions { common: &common, wait: Wait::Sleep, stdout_is_taken: false };
            let signals = Signals::catch().unwrap();
            let work = port.queues.into_iter().zip(&mut visitors).collect();
            let ended = catch_unwind(AssertUnwindSafe(|| {
                receive(work, options, &signals, &mut Nobody).is_ok()
            }));
            assert_eq!(ended.is_err(), panics[0], "{sentence}");
            assert_eq!(visitors.map(|visitor| visitor.finished), [1, 1], "{sentence}");
        }
    }
}
