//! Sending through a port: a worker for each queue fills its transmit ring.

use std::ops::RangeFrom;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use sluicegate::error::{Error, Result};
use sluicegate::port::{Queue, QueueStats};
use sluicegate_traffic::source::{PacketSource, SkippedPackets};

use super::{SendCounts, SendWork, WorkerResult};
use crate::run::WorkerThread;

/// Packets between two checks of the clock and the stop flag: the number that one system call takes, or half
/// of a larger ring. If packets have times, only due ones.
const BATCH: u32 = 256;
/// The upper limit of a batch.
const BATCH_MAX: u32 = 1024;

/// Time limit of the last packets.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit of the last packets after the user has ended the run.
const STOPPED_TIMEOUT: Duration = Duration::from_millis(40);
/// Interval between checks for notices of the port.
const NOTICE_INTERVAL: Duration = Duration::from_millis(200);
/// A sender whose packets have not left for this long sleeps between checks.
const STUCK_TIME: Duration = Duration::from_millis(1);
const STUCK_INTERVAL: Duration = Duration::from_micros(50);
/// Interval between checks for the departure of the last packets.
const DRAIN_INTERVAL: Duration = Duration::from_millis(1);

/// One queue's share of the work.
pub struct RingWorker {
    index: u32,
    /// The number of its thread among those of all targets, by which it gets a CPU.
    pub cpu_number: usize,
    queue: Queue,
    source: Box<dyn PacketSource>,
}

impl RingWorker {
    /// Creates a worker for each queue and its source.
    pub fn all(
        queues: Vec<Queue>,
        sources: Vec<Box<dyn PacketSource>>,
        cpu_numbers: RangeFrom<usize>,
    ) -> Vec<SendWork> {
        let workers = (0..).zip(cpu_numbers).zip(queues.into_iter().zip(sources));
        let worker = |((index, cpu_number), (queue, source))| {
            SendWork::Ring(Self { index, cpu_number, queue, source })
        };
        workers.map(worker).collect()
    }

    /// Takes the error that ended the source early.
    pub fn failure(&mut self) -> Option<Error> {
        self.source.failure()
    }

    pub fn name(&self) -> String {
        format!("queue-{}", self.index)
    }

    pub fn run(&mut self, thread: &mut WorkerThread<'_, SendCounts>) -> (SendCounts, Result<()>) {
        let begin = Instant::now();
        let mut result = self.send_all(thread);
        // Packets in the ring are still sent, even after a failure; only briefly if the user ends the run.
        let end = Instant::now() + DRAIN_TIMEOUT;
        result = result.and_then(|()| self.drain(thread, end));
        let left = match thread.run.stop.is_set() {
            true => STOPPED_TIMEOUT,
            false => end.saturating_duration_since(Instant::now()).max(STOPPED_TIMEOUT),
        };
        result = result.and(self.queue.close_tx_within(left));
        let stats = thread.last_stats(&mut self.queue, &mut result);
        let sent = SendCounts { span: Some((begin, Instant::now())), ..self.sent(stats, thread) };
        (sent, result)
    }

    /// Computes the worker's counts from the queue's current ones.
    fn sent(&self, stats: QueueStats, thread: &WorkerThread<'_, SendCounts>) -> SendCounts {
        let totals = thread.counters.totals();
        let never_pushed = self.source.skipped();
        let done = WorkerResult {
            packets: totals.packets + never_pushed.packets(),
            bytes: totals.bytes.saturating_sub(stats.too_long_bytes),
            skipped: SkippedPackets {
                too_long: never_pushed.too_long + stats.too_long,
                ..never_pushed
            },
            streams: self.source.streams(),
            stats,
            restarts: self.source.restarts(),
            busy: thread.busy(),
        };
        SendCounts { workers: vec![done], gaps: self.source.lateness(), span: None }
    }

    /// Waits for the ring to become empty, unless the user ends the run.
    fn drain(&mut self, thread: &mut WorkerThread<'_, SendCounts>, end: Instant) -> Result<()> {
        while !self.has_sent_all() && !thread.run.stop.is_set() && Instant::now() < end {
            if self.queue.sync_tx()? == 0 {
                std::thread::sleep(DRAIN_INTERVAL);
            }
        }
        Ok(())
    }

    fn send_all(&mut self, thread: &mut WorkerThread<'_, SendCounts>) -> Result<()> {
        let batch = (self.queue.tx().num_slots() / 2).clamp(BATCH, BATCH_MAX);
        let mut now_ns = monotonic_ns();
        let (mut moved_ns, mut noted_ns) = (now_ns, now_ns);
        while !self.source.is_finished() && !thread.run.stop.is_set() {
            let filled = self.source.fill(&mut self.queue.tx_mut(), batch, now_ns)?;
            thread.counters.add(filled.packets.into(), filled.bytes);
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
            } else if now_ns - moved_ns > STUCK_TIME.as_nanos() as u64 {
                std::thread::sleep(STUCK_INTERVAL);
            }
            if thread.wants_snapshot() {
                let stats = self.queue.stats()?;
                thread.publish(self.sent(stats, thread));
            }
            if now_ns - noted_ns > NOTICE_INTERVAL.as_nanos() as u64 {
                noted_ns = now_ns;
                thread.say_notices(&mut self.queue);
            }
        }
        Ok(())
    }

    /// Reports whether the ring is empty: packets in it would wait while the source rests.
    fn has_sent_all(&mut self) -> bool {
        // The backend always keeps one slot.
        let ring = self.queue.tx_mut();
        ring.available() + 1 == ring.num_slots()
    }
}

/// The clock of packets' timetables, in ns.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| Duration::from(now).as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluicegate::port::{Directions, OpenOptions, Port};
    use sluicegate_traffic::source::of_plan;
    use sluicegate_traffic::spec::{Defaults, Spec};

    use super::*;
    use crate::run::Work;

    #[test]
    fn threads_of_rings_get_the_cpus_after_those_of_live_frames() {
        let plan = Spec::parse("[[stream]]\nlayers = ['ether']").unwrap();
        let plan = Arc::new(plan.plan(&Defaults::default()).unwrap());
        let options = OpenOptions { usage: Directions::Send, queues: 2, ..OpenOptions::default() };
        let port = Port::open(&"null:".parse().unwrap(), &options).unwrap();
        let sources = (0..2).map(|worker| of_plan(&plan, (worker, 2), None, None, || 0)).collect();
        // Live frames have one thread in the run, and two beside it.
        let mut work = RingWorker::all(port.queues, sources, 2..);
        let numbers = (1..).zip(&mut work).map(|(index, work)| work.cpu_number(index));
        assert_eq!(numbers.collect::<Vec<_>>(), [Some(2), Some(3)]);
    }
}
