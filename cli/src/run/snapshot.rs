//! Snapshots of what workers have counted, made while they run, for the ledger so far.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A worker that has not answered within this time is held up by a file or a pipe: the ledger so far
/// goes without it.
const TIMEOUT: Duration = Duration::from_secs(1);

/// One worker's snapshot: the control thread asks for it, the worker makes it between two batches.
#[derive(Debug)]
pub struct Snapshot<T> {
    asked: AtomicBool,
    /// The worker has ended, and made its last one.
    closed: AtomicBool,
    made: Mutex<Option<Arc<T>>>,
}

impl<T> Default for Snapshot<T> {
    fn default() -> Self {
        let (asked, closed) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { asked, closed, made: Mutex::new(None) }
    }
}

impl<T> Snapshot<T> {
    /// Returns true if a snapshot is requested from the worker.
    #[inline]
    pub fn is_asked(&self) -> bool {
        // Flags by themselves: the mutex publishes the snapshot.
        self.asked.load(Ordering::Relaxed)
    }

    /// Publishes the worker's snapshot, when it is asked for.
    pub fn publish(&self, snapshot: T) {
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(snapshot));
        self.asked.store(false, Ordering::Relaxed);
    }

    /// Publishes the worker's last snapshot, before it ends.
    pub fn close(&self, snapshot: T) {
        self.publish(snapshot);
        self.closed.store(true, Ordering::Relaxed);
    }

    fn is_awaited(&self) -> bool {
        self.is_asked() && !self.closed.load(Ordering::Relaxed)
    }

    /// The latest snapshot, unless the worker is late.
    fn latest(&self) -> Option<Arc<T>> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.clone().filter(|_| !self.is_awaited())
    }
}

/// A request for the ledger so far that waits for the workers' snapshots.
#[derive(Debug, Default)]
pub struct Inquiry {
    until: Option<Instant>,
}

impl Inquiry {
    /// Asks all workers for a snapshot, unless they have been asked and have not answered.
    pub fn ask<'a, T: 'a>(&mut self, workers: impl IntoIterator<Item = &'a Snapshot<T>>) {
        if !self.is_open() {
            self.until = Some(Instant::now() + TIMEOUT);
            workers.into_iter().for_each(|worker| worker.asked.store(true, Ordering::Relaxed));
        }
    }

    /// Returns true if a request to the workers is unanswered.
    pub fn is_open(&self) -> bool {
        self.until.is_some()
    }

    /// Returns the workers' snapshots, once, when all have answered or the time is over; none of a
    /// worker that is late.
    pub fn answer<'a, T: 'a, I>(&mut self, workers: I) -> Option<Vec<Option<Arc<T>>>>
    where
        I: IntoIterator<Item = &'a Snapshot<T>> + Clone,
    {
        let until = self.until?;
        if workers.clone().into_iter().any(Snapshot::is_awaited) && Instant::now() < until {
            return None;
        }
        self.until = None;
        Some(workers.into_iter().map(Snapshot::latest).collect())
    }
}

/// One worker's counters, on cache lines of their own. Only the worker writes them, once a
/// batch; others read them now and then. Relaxed throughout: each is a count by itself, and
/// nothing else is published through it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    received: AtomicU64,
    lost: AtomicU64,
}

/// Counts at one moment, of one worker or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets received.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Packets the kernel had for us, as of the last look.
    pub received: u64,
    /// Packets it lost for want of room, as of the last look.
    pub lost: u64,
}

impl WorkerCounters {
    /// Adds a batch. A single writer: load and store suffice.
    #[inline]
    pub fn add(&self, packets: u64, bytes: u64) {
        self.packets.store(self.packets.load(Ordering::Relaxed) + packets, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Notes what the backend has counted.
    pub fn note(&self, received: u64, lost: u64) {
        self.received.store(received, Ordering::Relaxed);
        self.lost.store(lost, Ordering::Relaxed);
    }

    /// The counts now.
    pub fn totals(&self) -> Totals {
        Totals {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }
}

impl Totals {
    /// The sum over several workers.
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a WorkerCounters>) -> Self {
        all.into_iter().fold(Self::default(), |sum, counters| {
            let one = counters.totals();
            Self {
                packets: sum.packets + one.packets,
                bytes: sum.bytes + one.bytes,
                received: sum.received + one.received,
                lost: sum.lost + one.lost,
            }
        })
    }

    /// The difference to an earlier snapshot.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            packets: self.packets - earlier.packets,
            bytes: self.bytes - earlier.bytes,
            received: self.received.saturating_sub(earlier.received),
            lost: self.lost.saturating_sub(earlier.lost),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(inquiry: &mut Inquiry, workers: &[Snapshot<i32>]) -> Option<Vec<Option<i32>>> {
        let made = inquiry.answer(workers)?;
        Some(made.into_iter().map(|snapshot| snapshot.map(|it| *it)).collect())
    }

    #[test]
    fn an_inquiry_is_answered_once_when_all_workers_have() {
        let workers = [Snapshot::default(), Snapshot::default()];
        let mut inquiry = Inquiry::default();
        assert_eq!(answer(&mut inquiry, &workers), None, "nothing was asked");
        inquiry.ask(&workers);
        assert!(workers.iter().all(Snapshot::is_asked));
        workers[0].publish(1);
        assert_eq!(answer(&mut inquiry, &workers), None, "one has not answered");
        workers[1].publish(2);
        assert_eq!(answer(&mut inquiry, &workers), Some(vec![Some(1), Some(2)]));
        assert_eq!(answer(&mut inquiry, &workers), None, "once");
    }

    #[test]
    fn a_worker_that_has_ended_answers_again_and_a_late_one_does_not() {
        let workers = [Snapshot::default(), Snapshot::default()];
        workers[0].close(1);
        workers[1].publish(2);
        for _ in 0..2 {
            let mut inquiry = Inquiry::default();
            inquiry.ask(&workers);
            inquiry.until = Some(Instant::now());
            assert_eq!(answer(&mut inquiry, &workers), Some(vec![Some(1), None]));
        }
    }
}
