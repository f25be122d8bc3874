//! The watch over the workers: signals, time, status; and their pinning.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use sluicegate::error::{Error, Result};
use sluicegate::port::Queue;
use sluicegate::ring::Wait;

use super::counters::Counters;
use super::worker::{Outcome, Shared, Visitor, receive};

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
}

/// A run that has ended.
#[derive(Debug)]
pub struct Run {
    /// How each worker ended.
    pub outcomes: Vec<Outcome>,
    /// From the first packet let in to the last.
    pub elapsed: Duration,
}

/// Runs a worker on each queue with the visitor beside it. `watch` is called at each interval
/// with the counts of each worker, the time since the start and since the last call.
///
/// # Errors
/// A CPU that cannot be used. Failures of workers stand in their outcomes.
pub fn run<V: Visitor>(
    work: Vec<(Queue, &mut V)>,
    limits: &Limits,
    mut watch: impl FnMut(&[Counters], Duration),
) -> Result<Run> {
    let signals = Signals::catch()?;
    let counters: Vec<Counters> = work.iter().map(|_| Counters::default()).collect();
    let shared = Shared {
        stop: AtomicBool::new(false),
        wanted: AtomicI64::new(limits.count.map_or(i64::MAX / 2, |n| n.min(1 << 62) as i64)),
        wait: limits.wait,
    };
    let start = Instant::now();
    let mut asked = false;
    let mut stopped_at = None;
    let outcomes = thread::scope(|scope| {
        // Whatever way this scope is left, the workers end.
        let _stop = StopOnDrop(&shared);
        let workers: Vec<ScopedJoinHandle<'_, Result<Outcome>>> = work
            .into_iter()
            .zip(&counters)
            .enumerate()
            .map(|(i, ((queue, visitor), counters))| {
                let shared = &shared;
                let cpu = limits.cpus.get(i % limits.cpus.len().max(1)).copied();
                thread::Builder::new().name(format!("queue-{}", queue.number())).spawn_scoped(
                    scope,
                    move || {
                        let _stop = StopOnDrop(shared);
                        pin(cpu)?;
                        Ok(receive(queue, visitor, shared, counters, cpu))
                    },
                )
            })
            .collect::<std::io::Result<_>>()
            .map_err(|e| Error::system("start", "a worker thread", e))?;
        let mut next_look = limits.interval;
        while !workers.iter().all(ScopedJoinHandle::is_finished) {
            let elapsed = start.elapsed();
            if shared.stop.load(Ordering::Relaxed) {
                stopped_at.get_or_insert(elapsed);
            }
            let end = limits.duration.filter(|_| stopped_at.is_none());
            if end.is_some_and(|end| elapsed >= end) {
                shared.stop.store(true, Ordering::Relaxed);
                continue;
            }
            if elapsed >= next_look {
                watch(&counters, elapsed);
                next_look = elapsed + limits.interval;
            }
            let until = next_look.min(end.unwrap_or(Duration::MAX)).saturating_sub(elapsed);
            if signals.wait(until.min(Duration::from_millis(20)))? {
                if std::mem::replace(&mut asked, true) {
                    // Asked twice: the user does not want to wait for files to be closed.
                    std::process::exit(130);
                }
                shared.stop.store(true, Ordering::Relaxed);
            }
        }
        let end = |worker: ScopedJoinHandle<'_, Result<Outcome>>| match worker.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        workers.into_iter().map(end).collect::<Result<Vec<_>>>()
    })?;
    let elapsed = stopped_at.unwrap_or_else(|| start.elapsed());
    Ok(Run { outcomes, elapsed })
}

/// Tells all workers to stop when it goes: one that ends, however it ends, ends the run.
struct StopOnDrop<'a>(&'a Shared);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).map_err(|error| {
        Error::system("pin a thread to", format!("CPU {cpu}"), error)
            .remedy("see /sys/devices/system/cpu/online for the CPUs there are")
    })
}

/// SIGINT and SIGTERM, taken as events instead of interruptions.
struct Signals(SignalFd);

impl Signals {
    fn catch() -> Result<Self> {
        let failed = |error| Error::system("catch", "signals", error);
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        set.add(Signal::SIGTERM);
        set.thread_block().map_err(failed)?;
        SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map(Self)
            .map_err(failed)
    }

    /// Whether a signal has come, after waiting for one.
    fn wait(&self, timeout: Duration) -> Result<bool> {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        match nix::poll::poll(&mut fds, timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => Ok(false),
            Ok(_) => Ok(matches!(self.0.read_signal(), Ok(Some(_)))),
            Err(error) => Err(Error::system("wait for", "signals", error)),
        }
    }
}
