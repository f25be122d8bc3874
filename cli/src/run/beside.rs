//! Receiving beside a run that does something else: threads of their own, which the caller ends.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use sluicegate::error::{Error, Result};
use sluicegate::link::ThreadCpuUsage;
use sluicegate::port::Queue;
use sluicegate::ring::Wait;

use super::receive::Receiving;
use super::{Outcome, ReceiveCounts, Run, RunContext, Stop, Visitor, Work, WorkerThread};
use crate::counters::{Snapshots, Wanted, WorkerCounters};

/// The outcome of a thread, its failure, and its visitor.
type Ended<V> = (Outcome<ReceiveCounts>, Result<()>, V);

/// Threads that receive, one per queue.
pub struct Receivers<V> {
    context: Arc<RunContext>,
    threads: Vec<JoinHandle<Ended<V>>>,
    /// When the first queue was opened.
    started: Instant,
}

impl<V: Visitor + 'static> Receivers<V> {
    /// Starts a thread for each queue and its visitor.
    ///
    /// # Errors
    /// The system has no thread or file descriptor left.
    pub fn start(work: Vec<(Queue, V)>, wait: Wait) -> Result<Self> {
        let down = Mutex::default();
        let context = RunContext { stop: Stop::new()?, wanted: Wanted::new(None), wait, down };
        let context = Arc::new(context);
        let opened_at = work.iter().map(|(queue, _)| queue.opened_at()).min();
        let started = opened_at.unwrap_or_else(Instant::now);
        let mut receivers = Self { context: Arc::clone(&context), threads: Vec::new(), started };
        for (queue, visitor) in work {
            let context = Arc::clone(&context);
            let thread = std::thread::Builder::new().name("receiver".into());
            let thread = thread.spawn(move || receive(&context, queue, visitor));
            let thread = thread.map_err(|e| Error::start("a receiving thread", e))?;
            receivers.threads.push(thread);
        }
        Ok(receivers)
    }

    /// Reports whether a thread has ended on its own: its interface was removed, or it failed.
    pub fn is_over(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Stops reception, and returns the packets received before with the visitors of all threads. The run's
    /// time ends with `last`: the end of sending, or the last packet if it came later.
    pub fn end(mut self, last: Instant) -> (Run<ReceiveCounts>, Vec<V>) {
        self.context.stop.set();
        let elapsed = last.saturating_duration_since(self.started);
        let (mut outcomes, mut visitors, mut result) = (Vec::new(), Vec::new(), Ok(()));
        for thread in self.threads.drain(..) {
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (outcome, of_thread, visitor) = ended;
            outcomes.push(Some(Arc::new(outcome)));
            visitors.push(visitor);
            result = result.and(of_thread);
        }
        let (reader_left, ended_by_user) = (false, false);
        (Run { outcomes, elapsed, reader_left, ended_by_user, result }, visitors)
    }
}

impl<V> Drop for Receivers<V> {
    fn drop(&mut self) {
        // Threads that nobody waits for end by themselves.
        self.context.stop.set();
    }
}

fn receive<V: Visitor>(context: &RunContext, queue: Queue, mut visitor: V) -> Ended<V> {
    let (counters, snapshots) = (WorkerCounters::default(), Snapshots::of(1));
    let mut thread = WorkerThread {
        run: context,
        counters: &counters,
        snapshots: &snapshots,
        index: 0,
        answered: 0,
        cpu: None,
        clocks: ThreadCpuUsage::begin(),
        notices: Vec::new(),
        ended: None,
    };
    let (counts, result) = Receiving::of(queue, &mut visitor).run(&mut thread);
    (thread.outcome(counts), result, visitor)
}
