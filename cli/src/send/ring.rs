//! Sending through a port: a worker for each queue fills its transmit ring.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use sluicegate::error::{Error, Result};
use sluicegate::link::{ThreadCpuUsage, pin_thread};
use sluicegate::port::{Port, Queue, QueueStats};
use sluicegate_traffic::rate::Gaps;
use sluicegate_traffic::source::{LeftOut, PacketSource};

use super::run::{Done, Orders};
use crate::run::{Inquiry, Snapshot, WorkerCounters};

/// Packets between two looks at the clock and at whether to go on: as many as one call to the kernel
/// takes; where the ring has room for twice as many and more, half of it. Of those that have a time, only
/// what is due.
const BATCH: u32 = 256;
/// The upper limit of a batch.
const BATCH_MAX: u32 = 1024;

/// How long the last packets may take by themselves.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long they may take once the user wants the end.
const IMPATIENCE: Duration = Duration::from_millis(40);
/// Between two looks at what there is to say of the port.
const NOTICE: Duration = Duration::from_millis(200);
/// If no packet leaves for this long, the receiver is absent: the next checks are this far apart.
const STUCK: Duration = Duration::from_millis(1);
const STUCK_LOOK: Duration = Duration::from_micros(50);
/// Between two looks at whether they have left.
const LAST_LOOK: Duration = Duration::from_millis(1);

/// Gives a worker its packets: its number, and of how many.
pub type Supply = Box<dyn Fn(u32, u32, &Orders) -> Result<Box<dyn PacketSource>>>;

/// Sends through a port.
pub struct RingSender {
    port: Port,
    supply: Supply,
    ends: Arc<AtomicBool>,
    /// A worker has failed.
    failed: Arc<AtomicBool>,
    /// Notices of the workers' queues, not yet taken.
    notices: Arc<Mutex<Vec<String>>>,
    workers: Vec<SendWorker>,
    outcomes: Vec<SenderOutcome>,
    inquiry: Inquiry,
}

struct SendWorker {
    counters: Arc<WorkerCounters>,
    snapshot: Arc<Snapshot<Done>>,
    thread: Option<JoinHandle<SenderOutcome>>,
}

/// How a worker ended.
#[derive(Debug)]
struct SenderOutcome {
    done: Done,
    gaps: Gaps,
    result: Result<()>,
    /// From when to when it sent.
    span: Range<Duration>,
    /// It failed in a way that leaves the others nothing to do.
    ends_others: bool,
    /// Kept until the report is complete: closing a queue may delay other workers and readers of
    /// the interface's counters.
    _queue: Queue,
}

impl RingSender {
    /// Sends through a port.
    pub fn new(port: Port, supply: Supply) -> Self {
        let (workers, outcomes) = (Vec::new(), Vec::new());
        let (ends, failed, notices) = (Arc::default(), Arc::default(), Arc::default());
        let inquiry = Inquiry::default();
        Self { port, supply, ends, failed, notices, workers, outcomes, inquiry }
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Begins to send. Where one worker cannot, those before it end again.
    pub fn start(&mut self, orders: &Orders) -> Result<()> {
        let started = self.start_all(orders);
        if started.is_err() {
            // Why it did not begin matters more than how the others end.
            let _ = self.end();
        }
        started
    }

    fn start_all(&mut self, orders: &Orders) -> Result<()> {
        let queues = std::mem::take(&mut self.port.queues);
        let workers = queues.len();
        for (index, queue) in queues.into_iter().enumerate() {
            let counters = Arc::<WorkerCounters>::default();
            let snapshot = Arc::<Snapshot<Done>>::default();
            let share = WorkShare {
                queue,
                source: (self.supply)(index as u32, workers as u32, orders)?,
                cpu: orders.cpu(index),
                counters: Arc::clone(&counters),
                snapshot: Arc::clone(&snapshot),
                ends: Arc::clone(&self.ends),
                notices: Arc::clone(&self.notices),
            };
            let failed = Arc::clone(&self.failed);
            let send = move || {
                let outcome = share.send();
                // Pairs with the load of `is_finished`; the outcome itself is joined for.
                failed.fetch_or(outcome.ends_others, Ordering::Relaxed);
                outcome
            };
            let thread = std::thread::Builder::new()
                .name(format!("queue-{index}"))
                .spawn(send)
                .map_err(|e| Error::system("start", "a worker thread", e))?;
            self.workers.push(SendWorker { counters, snapshot, thread: Some(thread) });
        }
        Ok(())
    }

    /// Packets and bytes of each worker so far.
    pub fn counts(&self) -> Vec<(u64, u64)> {
        let totals = self.workers.iter().map(|worker| worker.counters.totals());
        totals.map(|totals| (totals.packets, totals.bytes)).collect()
    }

    /// Asks all workers for what they have done so far.
    pub fn ask(&mut self) {
        self.inquiry.ask(self.workers.iter().map(|worker| &*worker.snapshot));
    }

    /// Returns each worker's counts once all asked workers have answered; `None` for a worker that
    /// is held up.
    pub fn answer(&mut self) -> Option<Vec<Option<Arc<Done>>>> {
        self.inquiry.answer(self.workers.iter().map(|worker| &*worker.snapshot))
    }

    /// Takes the notices about the port, each once.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reports whether all workers have ended, or one has failed.
    pub fn is_finished(&self) -> bool {
        let finished =
            |worker: &SendWorker| worker.thread.as_ref().is_none_or(JoinHandle::is_finished);
        self.workers.iter().all(finished) || self.failed.load(Ordering::Relaxed)
    }

    /// Ends all workers. The first failure of one is the answer.
    pub fn end(&mut self) -> Result<()> {
        // Pairs with the workers' loads; nothing else is published through it.
        self.ends.store(true, Ordering::Relaxed);
        let threads = self.workers.iter_mut().filter_map(|worker| worker.thread.take());
        let join = |thread: JoinHandle<_>| thread.join();
        let ended: Vec<SenderOutcome> = threads
            .map(|thread| join(thread).unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        self.outcomes.extend(ended);
        let results = self.outcomes.iter_mut().map(|outcome| {
            // ProcessOutput once.
            std::mem::replace(&mut outcome.result, Ok(()))
        });
        results.collect::<Vec<_>>().into_iter().collect()
    }

    /// From when the first worker began to when the last one ended; nothing before that.
    pub fn elapsed(&self) -> Option<Duration> {
        let begun = self.outcomes.iter().map(|outcome| outcome.span.start).min()?;
        let ended = self.outcomes.iter().map(|outcome| outcome.span.end).max()?;
        Some(ended.saturating_sub(begun))
    }

    /// Returns each worker's counts.
    pub fn done(&self) -> Vec<Done> {
        self.outcomes.iter().map(|outcome| outcome.done).collect()
    }

    /// How late packets were.
    pub fn gaps(&self) -> Gaps {
        self.outcomes.iter().fold(Gaps::default(), |mut all, outcome| {
            all.merge(&outcome.gaps);
            all
        })
    }
}

/// One worker's share of the work.
struct WorkShare {
    queue: Queue,
    source: Box<dyn PacketSource>,
    cpu: Option<usize>,
    counters: Arc<WorkerCounters>,
    snapshot: Arc<Snapshot<Done>>,
    ends: Arc<AtomicBool>,
    notices: Arc<Mutex<Vec<String>>>,
}

impl WorkShare {
    fn send(mut self) -> SenderOutcome {
        let (start, clocks) = (now(), ThreadCpuUsage::begin());
        let mut result = self.cpu.map_or(Ok(()), pin_thread).and_then(|()| self.send_all(&clocks));
        // What is in the ring goes out, whatever happened; not for long, if the user wants the end.
        let end = now() + PATIENCE;
        result = result.and_then(|()| self.drain(end));
        let left = match self.ends.load(Ordering::Relaxed) {
            true => IMPATIENCE,
            false => end.saturating_sub(now()).max(IMPATIENCE),
        };
        result = result.and(self.queue.close_tx_within(left));
        self.note();
        let stats = self.queue.stats().unwrap_or_else(|error| {
            let before = std::mem::replace(&mut result, Ok(()));
            result = before.and(Err(error));
            QueueStats::default()
        });
        // What its source ends with is no reason for others to end: each sends what it has before.
        let ends_others = result.is_err();
        result = result.and(self.source.failure().map_or(Ok(()), Err));
        let span = start..now();
        let done = self.done(stats, &clocks);
        self.snapshot.close(done);
        let gaps = self.source.lateness();
        SenderOutcome { done, gaps, result, span, ends_others, _queue: self.queue }
    }

    /// Computes the worker's counts from the queue's current ones.
    fn done(&self, stats: QueueStats, clocks: &ThreadCpuUsage) -> Done {
        let totals = self.counters.totals();
        let never_pushed = self.source.left_out();
        Done {
            packets: totals.packets + never_pushed.packets(),
            bytes: totals.bytes,
            accepted: stats.sent,
            redirects: stats.redirects,
            untraced: stats.untraced,
            rejected: stats.rejected,
            left_out: LeftOut { too_long: never_pushed.too_long + stats.too_long, ..never_pushed },
            refused: stats
                .refused
                .saturating_sub(stats.too_long + stats.unsent + stats.disconnected),
            unsent: stats.unsent,
            disconnected: stats.disconnected,
            restarts: self.source.restarts(),
            busy: clocks.share(),
        }
    }

    /// Waits for the ring to become empty, unless the user wants the end.
    fn drain(&mut self, end: Duration) -> Result<()> {
        // Pairs with the store of `end`.
        while !self.has_sent_all() && !self.ends.load(Ordering::Relaxed) && now() < end {
            if self.queue.sync_tx()? == 0 {
                std::thread::sleep(LAST_LOOK);
            }
        }
        Ok(())
    }

    fn send_all(&mut self, clocks: &ThreadCpuUsage) -> Result<()> {
        let batch = (self.queue.tx().num_slots() / 2).clamp(BATCH, BATCH_MAX);
        let mut now_ns = monotonic_ns();
        let (mut moved_ns, mut noted_ns) = (now_ns, now_ns);
        // Pairs with the store of `end`.
        while !self.source.is_finished() && !self.ends.load(Ordering::Relaxed) {
            let filled = self.source.fill(&mut self.queue.tx_mut(), batch, now_ns)?;
            self.counters.add(filled.packets.into(), filled.bytes);
            let left = self.queue.sync_tx()?;
            now_ns = monotonic_ns();
            if filled.packets > 0 {
                self.source.handed_over(now_ns);
            }
            if filled.packets > 0 || left > 0 {
                moved_ns = now_ns;
            } else if self.has_sent_all() {
                self.source.rest(now_ns)?;
                now_ns = monotonic_ns();
                moved_ns = now_ns;
            } else if now_ns - moved_ns > STUCK.as_nanos() as u64 {
                std::thread::sleep(STUCK_LOOK);
            }
            if self.snapshot.is_asked() {
                let stats = self.queue.stats()?;
                self.snapshot.publish(self.done(stats, clocks));
            }
            if now_ns - noted_ns > NOTICE.as_nanos() as u64 {
                noted_ns = now_ns;
                self.note();
            }
        }
        Ok(())
    }

    /// Hands on what there is to say of the port.
    fn note(&mut self) {
        while let Some(notice) = self.queue.take_notice() {
            self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
        }
    }

    /// Reports whether the ring is empty: packets in it would wait while the source rests.
    fn has_sent_all(&mut self) -> bool {
        // One slot is the backend's, always.
        let ring = self.queue.tx_mut();
        ring.available() + 1 == ring.num_slots()
    }
}

fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// The time of packets' timetables, in ns.
pub fn monotonic_ns() -> u64 {
    now().as_nanos() as u64
}
