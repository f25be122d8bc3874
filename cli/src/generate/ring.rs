//! Sending through a port: a worker for each queue fills its transmit ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use sluicegate::error::{Error, Result};
use sluicegate::link::pin_thread;
use sluicegate::port::{Port, Queue};
use sluicegate_traffic::fill::Filler;
use sluicegate_traffic::plan::{Frames, Plan};
use sluicegate_traffic::rate::{Gaps, Pace, Timetable};

use super::run::{Done, Orders};
use crate::run::Counters;

/// Packets between two looks at the clock or at whether to go on.
const BATCH: u32 = 64;

/// What sends through a port.
#[derive(Debug)]
pub struct RingSender {
    port: Port,
    plan: Arc<Plan>,
    pace: Option<Pace>,
    ends: Arc<AtomicBool>,
    workers: Vec<Worker>,
    outcomes: Vec<Outcome>,
}

#[derive(Debug)]
struct Worker {
    counters: Arc<Counters>,
    thread: Option<JoinHandle<Result<Outcome>>>,
}

/// How a worker ended.
#[derive(Debug, Default)]
struct Outcome {
    done: Done,
    gaps: Gaps,
}

impl RingSender {
    /// Sends a plan through a port.
    pub fn new(port: Port, plan: &Arc<Plan>, pace: Option<Pace>) -> Self {
        let pace = pace.map(|pace| pace.shared_by(port.queues.len() as u32));
        let (plan, ends) = (Arc::clone(plan), Arc::default());
        Self { port, plan, pace, ends, workers: Vec::new(), outcomes: Vec::new() }
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Begins to send.
    pub fn start(&mut self, orders: &Orders) -> Result<()> {
        let queues = std::mem::take(&mut self.port.queues);
        let workers = queues.len();
        for (index, queue) in queues.into_iter().enumerate() {
            let counters = Arc::<Counters>::default();
            let share = Share {
                queue,
                index,
                workers,
                left: orders.share(index, workers),
                cpu: orders.cpu(index),
                plan: Arc::clone(&self.plan),
                timetable: self.pace.map(Timetable::new),
                counters: Arc::clone(&counters),
                ends: Arc::clone(&self.ends),
            };
            let thread = std::thread::Builder::new()
                .name(format!("queue-{index}"))
                .spawn(move || share.send())
                .map_err(|e| Error::system("start", "a worker thread", e))?;
            self.workers.push(Worker { counters, thread: Some(thread) });
        }
        Ok(())
    }

    /// Packets and bytes of each worker so far.
    pub fn counts(&self) -> Vec<(u64, u64)> {
        let totals = self.workers.iter().map(|worker| worker.counters.totals());
        totals.map(|totals| (totals.packets, totals.bytes)).collect()
    }

    /// Whether all workers have ended.
    pub fn is_finished(&self) -> bool {
        let finished = |worker: &Worker| worker.thread.as_ref().is_none_or(JoinHandle::is_finished);
        self.workers.iter().all(finished)
    }

    /// Ends all workers. The first failure of one is the answer.
    pub fn end(&mut self) -> Result<()> {
        // Pairs with the workers' loads; nothing else is published through it.
        self.ends.store(true, Ordering::Relaxed);
        let mut result = Ok(());
        for worker in &mut self.workers {
            let Some(thread) = worker.thread.take() else { continue };
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            self.outcomes.push(match ended {
                Ok(outcome) => outcome,
                Err(error) => {
                    result = result.and(Err(error));
                    let totals = worker.counters.totals();
                    let done =
                        Done { packets: totals.packets, bytes: totals.bytes, ..Done::default() };
                    Outcome { done, ..Outcome::default() }
                }
            });
        }
        result
    }

    /// What each worker did.
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
struct Share {
    queue: Queue,
    index: usize,
    workers: usize,
    /// Packets still to be sent.
    left: Option<u64>,
    cpu: Option<usize>,
    plan: Arc<Plan>,
    timetable: Option<Timetable>,
    counters: Arc<Counters>,
    ends: Arc<AtomicBool>,
}

impl Share {
    fn send(mut self) -> Result<Outcome> {
        self.cpu.map_or(Ok(()), pin_thread)?;
        let start = now();
        let plan = Arc::clone(&self.plan);
        let frames = Frames::new(&plan, self.index as u32, self.workers as u32, monotonic_ns);
        let mut filler = Filler::new(frames, plan.longest());
        while self.left != Some(0) && !self.ends.load(Ordering::Relaxed) {
            self.batch(&mut filler)?;
        }
        self.queue.close_tx()?;
        let refused = self.queue.stats()?.refused;
        let totals = self.counters.totals();
        let processor = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
        let elapsed = now().saturating_sub(start).as_secs_f64();
        let busy = processor.map_or(0.0, |time| time.as_secs_f64() / elapsed.max(1e-9));
        let timetable = self.timetable.unwrap_or_default();
        Ok(Outcome {
            done: Done {
                packets: totals.packets,
                bytes: totals.bytes,
                refused,
                restarts: timetable.restarts(),
                busy,
            },
            gaps: timetable.into_gaps(),
        })
    }

    /// Fills the ring with what is due, and sends.
    fn batch(&mut self, filler: &mut Filler<'_>) -> Result<()> {
        let mut most = self.left.map_or(BATCH, |left| left.min(BATCH.into()) as u32);
        if let Some(timetable) = &mut self.timetable {
            most = timetable.due(monotonic_ns(), most);
            if most == 0 {
                std::hint::spin_loop();
                return self.queue.sync_tx().map(|_| ());
            }
        }
        let filled = filler.fill(&mut self.queue.tx_mut(), most);
        if let Some(timetable) = &mut self.timetable {
            timetable.sent(filled.packets);
        }
        self.counters.add(filled.packets.into(), filled.bytes);
        self.left = self.left.map(|left| left - u64::from(filled.packets));
        if self.queue.sync_tx()? == 0 && filled.packets == 0 {
            // The ring is full and the kernel takes nothing.
            std::thread::yield_now();
        }
        Ok(())
    }
}

fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

fn monotonic_ns() -> u64 {
    now().as_nanos() as u64
}
