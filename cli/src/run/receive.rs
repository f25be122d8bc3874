//! Receiving: one thread per queue, which processes batches.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use sluicegate::error::Result;
use sluicegate::port::{Queue, QueueStats};
use sluicegate::ring::{Packet, Readiness};

use super::{Outcome, Outcomes, Run, RunControl, RunOptions, Work, WorkerThread, supervise};
use crate::counters::Totals;
use crate::ledger::Section;
use crate::recorded::Recorded;
use crate::report::{Report, Thread, Traffic};
use crate::signals::Signals;

/// The longest sleep of a worker between two checks of the stop flag.
const TICK: Duration = Duration::from_millis(100);
/// Interval between checks for remaining packets after the end.
pub const DRAIN_INTERVAL: Duration = Duration::from_millis(1);
/// Packets received before an interface went down arrive within this time.
pub const IN_FLIGHT_TIMEOUT: Duration = Duration::from_millis(100);
/// Interval between reads of the kernel's statistics, which are 32-bit counters, and checks of interfaces.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A handler of packets. Each worker has one and calls it batch by batch.
pub trait Visitor: Send {
    /// Called before a batch: the queue may have new interfaces.
    fn prepare(&mut self, _queue: &Queue) {}

    /// Handles a packet.
    fn packet(&mut self, packet: &Packet<'_>);

    /// Called after a batch. Break ends the run; the visitor keeps its error.
    fn batch_done(&mut self) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Called when no packet has arrived for a moment. By default as after a batch.
    fn idle(&mut self) -> ControlFlow<()> {
        self.batch_done()
    }

    /// Called after the last batch.
    fn finish(&mut self) {}
}

/// Ignores packets: the remaining cost is that of receiving.
pub struct Nothing;

impl Visitor for Nothing {
    #[inline]
    fn packet(&mut self, _packet: &Packet<'_>) {}
}

/// Calls a visitor's `finish` in any case, also if its worker fails, panics or never starts: other threads
/// may wait for its output.
struct FinishOnDrop<'a, V: Visitor>(Option<&'a mut V>);

impl<V: Visitor> Drop for FinishOnDrop<'_, V> {
    fn drop(&mut self) {
        if let Some(visitor) = self.0.take() {
            visitor.finish();
        }
    }
}

/// The packets that a thread received.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveCounts {
    /// Its queue's number.
    pub queue: u32,
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Packets received after the end of the run and dropped.
    pub after_end: u64,
    /// The backend's own count.
    pub stats: QueueStats,
    /// Times the interface went down.
    pub downs: u32,
    /// The times of the packets of a file.
    pub recorded: Option<Recorded>,
}

/// Runs a worker on each queue with its visitor.
///
/// # Errors
/// The errors of [`supervise`].
pub fn receive<V: Visitor>(
    work: Vec<(Queue, &mut V)>,
    options: RunOptions<'_>,
    signals: &Signals,
    control: &mut impl RunControl<ReceiveCounts>,
) -> Result<Run<ReceiveCounts>> {
    // All are created before the first thread starts: if one cannot start, the others still finish.
    let work = work.into_iter().map(|(queue, visitor)| Receiving::of(queue, visitor));
    supervise(work.collect(), options, signals, control)
}

/// A queue to receive from, and the handler of its packets.
pub(super) struct Receiving<'a, V: Visitor> {
    queue: Queue,
    visitor: FinishOnDrop<'a, V>,
}

impl<'a, V: Visitor> Receiving<'a, V> {
    pub(super) fn of(queue: Queue, visitor: &'a mut V) -> Self {
        Self { queue, visitor: FinishOnDrop(Some(visitor)) }
    }
}

impl<V: Visitor> Work for Receiving<'_, V> {
    type Counts = ReceiveCounts;

    fn name(&self) -> String {
        format!("queue-{}", self.queue.number())
    }

    fn opened_at(&self) -> Option<Instant> {
        Some(self.queue.opened_at())
    }

    /// Receives until stopped, until the source ends, or until a failure.
    fn run(self, thread: &mut WorkerThread<'_, ReceiveCounts>) -> (ReceiveCounts, Result<()>) {
        let Self { mut queue, mut visitor } = self;
        let mut receiver = QueueReceiver {
            queue: &mut queue,
            thread,
            closed_at: None,
            came: false,
            after_end: 0,
            downs: 0,
            down_since: None,
            recorded: None,
        };
        let mut result = visitor.0.as_deref_mut().map_or(Ok(()), |visitor| receiver.run(visitor));
        drop(visitor);
        let ended_at = receiver.ended_at();
        receiver.thread.ended_at(ended_at);
        let stats = receiver.thread.last_stats(receiver.queue, &mut result);
        receiver.thread.counters.note(stats.received, stats.dropped_ring_full);
        (receiver.received(stats), result)
    }
}

/// A worker that receives from a queue.
struct QueueReceiver<'a, 'b> {
    queue: &'a mut Queue,
    thread: &'a mut WorkerThread<'b, ReceiveCounts>,
    /// When reception stopped; earlier packets are still returned.
    closed_at: Option<Instant>,
    /// Packets came in the last round, or since reception stopped.
    came: bool,
    after_end: u64,
    downs: u32,
    /// When the interface went down; no packet has come since.
    down_since: Option<Instant>,
    /// The times of the packets of a file.
    recorded: Option<Recorded>,
}

impl QueueReceiver<'_, '_> {
    /// The worker's counts so far, with the backend's current counters.
    fn received(&self, stats: QueueStats) -> ReceiveCounts {
        let Totals { packets, bytes, .. } = self.thread.counters.totals();
        let (queue, after_end, downs) = (self.queue.number(), self.after_end, self.downs);
        ReceiveCounts { queue, packets, bytes, after_end, stats, downs, recorded: self.recorded }
    }

    /// Returns the end of the time in which its packets arrived.
    fn ended_at(&self) -> Instant {
        let run = self.thread.run;
        match self.closed_at {
            // A thread that slept at the end of the run closes the queue later.
            Some(closed_at) if self.came && !run.wanted.is_met() => closed_at,
            _ => run.stop.at().unwrap_or_else(Instant::now),
        }
    }

    fn run(&mut self, visitor: &mut impl Visitor) -> Result<()> {
        let mut checked_at = Instant::now();
        let mut first_error = None;
        let mut broken = false;
        loop {
            if self.closed_at.is_none() && self.thread.run.stop.is_set() {
                self.close()?;
            }
            // Of those that came before, only the last round's may have come after the end of the run.
            self.came &= self.closed_at.is_some();
            if self.queue.sync_rx()? > 0 {
                self.packets_came();
                visitor.prepare(self.queue);
                if broken {
                    self.after_end += self.queue.rx().packets().count() as u64;
                } else {
                    self.visit(visitor);
                }
                let slots = self.queue.rx().available();
                self.queue.rx_mut().release(slots);
                broken = broken || visitor.batch_done().is_break();
            } else {
                self.count_in_kernel();
                if self.queue.is_finished() {
                    return first_error.map_or(Ok(()), Err);
                }
                broken = broken || visitor.idle().is_break();
                if let Err(error) = self.wait() {
                    // Packets received before the failure are still returned.
                    self.close()?;
                    first_error.get_or_insert(error);
                }
            }
            if self.thread.wants_snapshot() {
                let stats = self.queue.stats()?;
                self.thread.publish(self.received(stats));
            }
            if checked_at.elapsed() > CHECK_INTERVAL {
                checked_at = Instant::now();
                let stats = self.queue.stats()?;
                self.thread.counters.note(stats.received, stats.dropped_ring_full);
                if let Err(error) = self.check() {
                    self.close()?;
                    first_error.get_or_insert(error);
                }
            }
            if broken {
                self.thread.run.stop.set();
            }
        }
    }

    /// Checks the source, and prints its notices. An error means that no more packets will come.
    fn check(&mut self) -> Result<()> {
        let checked = if self.closed_at.is_some() { Ok(()) } else { self.queue.check() };
        self.thread.say_notices(self.queue);
        checked
    }

    /// Notes that packets arrived, and reports that an interface is up again.
    fn packets_came(&mut self) {
        self.came = true;
        if self.down_since.is_some_and(|since| since.elapsed() > IN_FLIGHT_TIMEOUT) {
            self.down_since = None;
            self.thread.report_link(self.queue, true);
        }
    }

    /// Adds the kernel's counts of a queue whose packets stay in the kernel.
    fn count_in_kernel(&mut self) {
        let (packets, bytes) = self.queue.take_kernel_counters();
        if packets == 0 {
            return;
        }
        self.packets_came();
        self.thread.counters.add(packets, bytes);
        if self.thread.run.wanted.have_come(packets) {
            self.thread.run.stop.set();
        }
    }

    /// Stops reception, here and in the other workers.
    fn close(&mut self) -> Result<()> {
        self.thread.run.stop.set();
        if self.closed_at.is_none() {
            let stopped = self.queue.stop_rx();
            self.closed_at = Some(Instant::now());
            stopped?;
        }
        Ok(())
    }

    /// Waits for packets, or for a moment. An error means that no more will arrive.
    fn wait(&mut self) -> Result<()> {
        if self.closed_at.is_some() {
            std::thread::sleep(DRAIN_INTERVAL);
            return Ok(());
        }
        if self.queue.wait_rx(self.thread.run.wait, TICK)? == Readiness::Down {
            self.downs += 1;
            self.down_since = Some(Instant::now());
            self.thread.report_link(self.queue, false);
        }
        Ok(())
    }

    /// Visits all packets in the ring, or as many as are wanted.
    #[inline]
    fn visit(&mut self, visitor: &mut impl Visitor) {
        let rx = self.queue.rx();
        // The slots bound the number of packets; a limited run counts them exactly.
        let limited = self.thread.run.wanted.is_limited();
        let there = if limited { rx.packets().count() as u32 } else { rx.available() };
        let wanted = self.thread.run.wanted.reserve(there);
        let (mut packets, mut bytes) = (0, 0);
        for packet in rx.packets() {
            if packets == wanted {
                self.after_end += 1;
                continue;
            }
            visitor.packet(&packet);
            packets += 1;
            bytes += u64::from(packet.meta().wire_bytes);
        }
        if self.queue.reads_file() {
            let visited = self.queue.rx().packets().take(packets as usize);
            visited.for_each(|it| Recorded::add(&mut self.recorded, it.meta().timestamp_ns));
        }
        if self.thread.run.wanted.settle(wanted, packets) {
            self.thread.run.stop.set();
        }
        self.thread.counters.add(packets.into(), bytes);
    }
}

impl Report {
    /// The report on one port so far; the interface's counters are read again at the end.
    pub fn counted_so_far(
        &mut self,
        outcomes: &Outcomes<ReceiveCounts>,
        elapsed: Duration,
    ) -> Self {
        let mut report = self.so_far();
        report.count(outcomes, elapsed);
        if let Some(counters) = &mut self.interface {
            report.host_dropped = counters.account(&mut report.ledger);
        }
        report.note_silent(outcomes);
        report
    }

    /// Fills in the workers' counts: the ledger's input, and the losses before it.
    pub fn count(&mut self, outcomes: &Outcomes<ReceiveCounts>, elapsed: Duration) {
        let sum = |n: fn(&ReceiveCounts) -> u64| {
            outcomes.iter().flatten().map(|outcome| n(&outcome.counts)).sum()
        };
        self.elapsed_s = elapsed.as_secs_f64();
        let recorded = outcomes.iter().flatten().filter_map(|outcome| outcome.counts.recorded);
        self.recorded = recorded.reduce(Recorded::with);
        // A file's rates are those of the recorded packets, not of reading.
        let time = self.recorded.map_or(elapsed, Recorded::duration);
        self.traffic = Traffic::over(sum(|it| it.packets), sum(|it| it.bytes), time);
        let mut times_down = 0;
        for outcome in outcomes.iter().flatten() {
            let Outcome { cpu, busy, notices, counts, .. } = &**outcome;
            let ReceiveCounts { queue, packets, after_end, stats, downs, .. } = *counts;
            self.threads.push(Thread { cpu: *cpu, queue, packets, busy: *busy });
            self.ledger.add_received(&stats, after_end);
            self.notices.extend_from_slice(notices);
            times_down = times_down.max(downs);
        }
        self.account_interface();
        // All queues of a port report the same events.
        self.ledger.add(Section::Note, "interface_down_events", times_down.into());
    }
}
