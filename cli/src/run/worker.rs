//! A worker: one queue, one thread, batch in, batch out.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use sluicegate::error::{Error, Result};
use sluicegate::link::ThreadCpuUsage;
use sluicegate::port::{Queue, QueueStats};
use sluicegate::ring::{Packet, Readiness, Wait};

use crate::notice;

use super::control::{Ended, Work};
use super::counters::{Snapshot, Totals, Wanted, WorkerCounters};

/// How long a worker may sleep before it looks at the stop flag again.
const TICK: Duration = Duration::from_millis(100);
/// Between two looks at what is left, once nothing more is let in.
const DRAIN: Duration = Duration::from_millis(1);
/// Packets from before an interface went down are here within this time after.
const LAST_PACKETS: Duration = Duration::from_millis(100);
/// How often it asks the kernel for its statistics; they count in 32 bits.
const LOOK: Duration = Duration::from_millis(500);

/// A handler of packets. Each worker has one and calls it batch by batch.
pub trait Visitor: Send {
    /// Before a batch: its queue may have met new interfaces.
    fn prepare(&mut self, _queue: &Queue) {}

    /// Looks at a packet.
    fn packet(&mut self, packet: &Packet<'_>);

    /// After a batch. Break ends the run: what it failed at, the visitor keeps.
    fn batch_done(&mut self) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Nothing has come for a moment: hand on what is held back, however little.
    fn idle(&mut self) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// After the last batch.
    fn finish(&mut self) {}
}

/// Looks at nothing: what remains is the cost of receiving.
pub struct Nothing;

impl Visitor for Nothing {
    #[inline]
    fn packet(&mut self, _packet: &Packet<'_>) {}
}

/// A visitor that is always told of its end, also if its worker fails, panics or never starts.
/// Other threads may wait for what it would have delivered.
struct Finished<'a, V: Visitor>(Option<&'a mut V>);

impl<'a, V: Visitor> Finished<'a, V> {
    /// Of this visitor.
    fn at_end(visitor: &'a mut V) -> Self {
        Self(Some(visitor))
    }
}

impl<V: Visitor> Drop for Finished<'_, V> {
    fn drop(&mut self) {
        if let Some(visitor) = self.0.take() {
            visitor.finish();
        }
    }
}

/// The state that all workers of a run share.
#[derive(Debug)]
pub struct RunContext {
    /// Let nothing more in.
    pub stop: Stop,
    /// Packets still wanted by `--count`, over all workers.
    pub wanted: Wanted,
    /// How to wait.
    pub wait: Wait,
    /// Interfaces that are down, as far as the user has been told.
    pub down: Mutex<BTreeSet<String>>,
}

impl RunContext {
    /// Tells of an interface that went down or came up, once for all its queues.
    pub fn tell(&self, interface: &str, up: bool) {
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        match up {
            true if down.remove(interface) => notice::say(format_args!("{interface} is up")),
            false if down.insert(interface.to_owned()) => {
                notice::say(format_args!("{interface} is down; waiting for it to come up"));
            }
            _ => {}
        }
    }
}

/// The end of a run: the first call sets it and wakes the control thread.
#[derive(Debug)]
pub struct Stop {
    set: AtomicBool,
    at: OnceLock<Instant>,
    wake: EventFd,
}

impl Stop {
    /// Creates the stop of a run that has not ended.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> Result<Self> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| Error::system("create", "an eventfd", error))?;
        Ok(Self { set: AtomicBool::new(false), at: OnceLock::new(), wake })
    }

    /// Ends the run.
    pub fn set(&self) {
        self.at.get_or_init(Instant::now);
        // A flag by itself: nothing is published through it.
        if !self.set.swap(true, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Wakes the control thread.
    pub fn wake(&self) {
        // It fails only where a wake-up is pending.
        let _ = self.wake.write(1);
    }

    /// Takes the wake-up that is pending, if one is.
    pub fn take_wake(&self) {
        let _ = self.wake.read();
    }

    /// Returns true if the run is over.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Relaxed)
    }

    /// When it was ended.
    pub fn at(&self) -> Option<Instant> {
        self.at.get().copied()
    }
}

/// Readable when the control thread is to look.
impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// How a worker ended.
#[derive(Debug)]
pub struct Outcome {
    /// Its queue's number.
    pub queue: u32,
    /// The CPU it was pinned to.
    pub cpu: Option<usize>,
    /// Packets it received.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Packets that came after the run had ended and were let go.
    pub after_end: u64,
    /// The backend's own count.
    pub stats: QueueStats,
    /// The share of the time it was on a CPU.
    pub busy: f64,
    /// Times the interface went down.
    pub downs: u32,
    /// Messages about the port that were printed meanwhile.
    pub notices: Vec<String>,
    /// When it had handed on its last packet; of a snapshot, when that was made.
    pub ended: Instant,
    /// Why it ended early.
    pub error: Option<Error>,
}

impl Ended for Outcome {
    fn at(&self) -> Instant {
        self.ended
    }

    fn failed(&self) -> bool {
        self.error.is_some()
    }
}

/// A queue to receive from, and what is done with its packets.
pub struct Receiving<'a, V: Visitor> {
    queue: Queue,
    visitor: Finished<'a, V>,
}

impl<'a, V: Visitor> Receiving<'a, V> {
    pub fn new(queue: Queue, visitor: &'a mut V) -> Self {
        Self { queue, visitor: Finished::at_end(visitor) }
    }
}

impl<V: Visitor> Work for Receiving<'_, V> {
    type Outcome = Outcome;

    fn name(&self) -> String {
        format!("queue-{}", self.queue.number())
    }

    /// Receives until told to stop, the source ends, or something fails.
    fn run(
        self,
        shared: &RunContext,
        counters: &WorkerCounters,
        snapshot: &Snapshot<Outcome>,
        cpu: Option<usize>,
    ) -> Outcome {
        let Self { mut queue, mut visitor } = self;
        let mut worker = Worker {
            queue: &mut queue,
            shared,
            counters,
            snapshot,
            cpu,
            clocks: ThreadCpuUsage::begin(),
            closed: false,
            after_end: 0,
            downs: 0,
            down_since: None,
            notices: Vec::new(),
        };
        let mut error = visitor.0.as_deref_mut().and_then(|visitor| worker.run(visitor).err());
        worker.say_notices();
        drop(visitor);
        let ended = Instant::now();
        let stats = worker.queue.stats().unwrap_or_else(|failure| {
            error.get_or_insert(failure);
            QueueStats::default()
        });
        counters.note(stats.received, stats.dropped_ring_full);
        snapshot.close(worker.outcome(stats));
        Outcome { error, ended, ..worker.outcome(stats) }
    }
}

/// A worker at work.
struct Worker<'a> {
    queue: &'a mut Queue,
    shared: &'a RunContext,
    counters: &'a WorkerCounters,
    snapshot: &'a Snapshot<Outcome>,
    cpu: Option<usize>,
    clocks: ThreadCpuUsage,
    /// Nothing more is let in; what comes out still came before.
    closed: bool,
    after_end: u64,
    downs: u32,
    /// It went down then, and no packet has come since.
    down_since: Option<Instant>,
    notices: Vec<String>,
}

impl Worker<'_> {
    fn tell(&self, up: bool) {
        if let Some(interface) = self.queue.interfaces().first() {
            self.shared.tell(&interface.name, up);
        }
    }

    /// The worker's results so far, with the backend's current counters.
    fn outcome(&self, stats: QueueStats) -> Outcome {
        let Totals { packets, bytes, .. } = self.counters.totals();
        Outcome {
            queue: self.queue.number(),
            cpu: self.cpu,
            packets,
            bytes,
            after_end: self.after_end,
            stats,
            busy: self.clocks.share(),
            downs: self.downs,
            notices: self.notices.clone(),
            ended: Instant::now(),
            error: None,
        }
    }

    fn run(&mut self, visitor: &mut impl Visitor) -> Result<()> {
        let mut looked = Instant::now();
        let mut first_error = None;
        let mut broken = false;
        loop {
            if !self.closed && self.shared.stop.is_set() {
                self.close()?;
            }
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
                    // What came before the interface went still comes out.
                    self.close()?;
                    first_error.get_or_insert(error);
                }
            }
            if self.snapshot.is_asked() {
                let stats = self.queue.stats()?;
                self.snapshot.publish(self.outcome(stats));
            }
            if looked.elapsed() > LOOK {
                looked = Instant::now();
                let stats = self.queue.stats()?;
                self.counters.note(stats.received, stats.dropped_ring_full);
                if let Err(error) = self.check() {
                    self.close()?;
                    first_error.get_or_insert(error);
                }
            }
            if broken {
                self.shared.stop.set();
            }
        }
    }

    /// Looks at what has become of the source, and says what there is to say. An error means that
    /// no packets will come any more.
    fn check(&mut self) -> Result<()> {
        let checked = if self.closed { Ok(()) } else { self.queue.check() };
        self.say_notices();
        checked
    }

    fn say_notices(&mut self) {
        while let Some(notice) = self.queue.take_notice() {
            notice::say(&notice);
            self.notices.push(notice);
        }
    }

    /// Tells of an interface that was down and is up: packets came.
    fn packets_came(&mut self) {
        if self.down_since.is_some_and(|since| since.elapsed() > LAST_PACKETS) {
            self.down_since = None;
            self.tell(true);
        }
    }

    /// Adds what was counted where it came in, of a queue whose packets stay there.
    fn count_in_kernel(&mut self) {
        let (packets, bytes) = self.queue.take_kernel_counters();
        if packets == 0 {
            return;
        }
        self.packets_came();
        self.counters.add(packets, bytes);
        if self.shared.wanted.have_come(packets) {
            self.shared.stop.set();
        }
    }

    /// Lets nothing more in, here and at the other workers.
    fn close(&mut self) -> Result<()> {
        self.shared.stop.set();
        if !std::mem::replace(&mut self.closed, true) {
            self.queue.stop_rx()?;
        }
        Ok(())
    }

    /// Waits for packets, or a moment. An error means that none will come any more.
    fn wait(&mut self) -> Result<()> {
        if self.closed {
            std::thread::sleep(DRAIN);
            return Ok(());
        }
        if self.queue.wait_rx(self.shared.wait, TICK)? == Readiness::Down {
            self.downs += 1;
            self.down_since = Some(Instant::now());
            self.tell(false);
        }
        Ok(())
    }

    /// Looks at all packets in the ring, or at as many as are wanted.
    #[inline]
    fn visit(&mut self, visitor: &mut impl Visitor) {
        let rx = self.queue.rx();
        // No more packets than slots; where some may be too many, as many as there are.
        let limited = self.shared.wanted.is_limited();
        let there = if limited { rx.packets().count() as u32 } else { rx.available() };
        let wanted = self.shared.wanted.reserve(there);
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
        if self.shared.wanted.settle(wanted, packets) {
            self.shared.stop.set();
        }
        self.counters.add(packets.into(), bytes);
    }
}

/// The first worker's error, if any ended with one.
pub fn first_error(outcomes: &mut [Outcome]) -> anyhow::Result<()> {
    match outcomes.iter_mut().find_map(|outcome| outcome.error.take()) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
