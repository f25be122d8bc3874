//! Counters that the threads of a run share: packets still wanted, and snapshots of the workers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The workers' snapshots: the control thread requests them, and each worker makes one between two batches.
#[derive(Debug)]
pub struct Snapshots<T> {
    /// The number of requests so far.
    asked: AtomicU32,
    /// Each worker's snapshot, and the request that it answers.
    made: Mutex<Vec<(u32, Option<Arc<T>>)>>,
}

/// The request number of a worker's last snapshot, which answers all later requests.
pub const LAST: u32 = u32::MAX;

impl<T> Snapshots<T> {
    /// Creates the list for a number of workers, without snapshots.
    pub fn of(workers: usize) -> Self {
        let made = (0..workers).map(|_| (0, None)).collect();
        Self { asked: AtomicU32::new(0), made: Mutex::new(made) }
    }

    /// Requests a snapshot from all workers.
    pub fn ask(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of the latest request.
    #[inline]
    pub fn asked(&self) -> u32 {
        // `Relaxed` suffices: the mutex publishes the snapshots.
        self.asked.load(Ordering::Relaxed)
    }

    /// Answers a request with a worker's snapshot.
    pub fn answer(&self, worker: usize, request: u32, snapshot: Arc<T>) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)[worker] =
            (request, Some(snapshot));
    }

    /// Returns the workers' snapshots when all have answered the latest request or the time is over. The
    /// snapshot of a late worker, delayed by a file or a pipe, is `None`.
    pub fn answers(&self, until: Instant) -> Option<Vec<Option<Arc<T>>>> {
        let asked = self.asked();
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let in_time =
            made.iter().map(|(request, snapshot)| snapshot.clone().filter(|_| *request >= asked));
        let in_time: Vec<_> = in_time.collect();
        let complete = in_time.iter().all(Option::is_some);
        (complete || Instant::now() >= until).then_some(in_time)
    }
}

/// One worker's counters, on separate cache lines. Only the worker writes them, once per batch; other threads
/// read them occasionally. All accesses are relaxed, because each count is independent and publishes nothing
/// else.
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
    /// Packets that the kernel had for the port, at the last poll.
    pub received: u64,
    /// Packets that it lost for lack of room, at the last poll.
    pub lost: u64,
}

impl WorkerCounters {
    /// Adds a batch. A single writer: load and store suffice.
    #[inline]
    pub fn add(&self, packets: u64, bytes: u64) {
        self.packets.store(self.packets.load(Ordering::Relaxed) + packets, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Stores the backend's counts.
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
}

/// The remaining packets of `--count`. All accesses are relaxed, because the counters publish no other
/// memory.
#[derive(Debug)]
pub struct Wanted(Option<Limit>);

#[derive(Debug)]
struct Limit {
    /// Packets that no thread has reserved.
    free: AtomicU64,
    /// Packets still missing, including reserved ones.
    missing: AtomicU64,
}

impl Wanted {
    /// Limits the run to `count` packets; without a limit the threads share no counter.
    pub fn new(count: Option<u64>) -> Self {
        let limit = |count| Limit { free: AtomicU64::new(count), missing: AtomicU64::new(count) };
        Self(count.map(limit))
    }

    /// Returns true if there is a limit.
    pub fn is_limited(&self) -> bool {
        self.0.is_some()
    }

    /// Returns true if the run has as many packets as it is limited to.
    pub fn is_met(&self) -> bool {
        self.0.as_ref().is_some_and(|limit| limit.missing.load(Ordering::Relaxed) == 0)
    }

    /// Reserves at most `most` packets for this thread. No other thread gets them until they are
    /// [`settled`](Self::settle). A result of 0 does not mean that the run has enough packets: another thread
    /// may return some.
    #[inline]
    pub fn reserve(&self, most: u32) -> u32 {
        let Some(limit) = &self.0 else { return most };
        let taken = take(&limit.free, most.into());
        u32::try_from(taken).unwrap_or(most)
    }

    /// Reports the number of reserved packets that were used, and frees the others. Returns true if the run
    /// has enough packets.
    #[inline]
    pub fn settle(&self, reserved: u32, used: u32) -> bool {
        let Some(limit) = &self.0 else { return false };
        limit.free.fetch_add((reserved - used).into(), Ordering::Relaxed);
        take(&limit.missing, used.into());
        self.is_met()
    }

    /// Counts packets that arrived without a reservation, in any number. Returns true if the run has enough
    /// packets.
    pub fn have_come(&self, packets: u64) -> bool {
        let Some(limit) = &self.0 else { return false };
        take(&limit.free, packets);
        take(&limit.missing, packets);
        self.is_met()
    }
}

/// Takes at most `most` from a count. Returns the number taken.
fn take(count: &AtomicU64, most: u64) -> u64 {
    let less = |count: u64| Some(count.saturating_sub(most));
    match count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
        Ok(before) | Err(before) => before.min(most),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    fn answers(snapshots: &Snapshots<i32>, late: bool) -> Option<Vec<Option<i32>>> {
        let until = Instant::now() + if late { Duration::ZERO } else { Duration::from_secs(60) };
        let made = snapshots.answers(until)?;
        Some(made.into_iter().map(|snapshot| snapshot.map(|it| *it)).collect())
    }

    #[test]
    fn a_request_is_answered_when_all_workers_have() {
        let snapshots = Snapshots::of(2);
        snapshots.ask();
        snapshots.answer(0, snapshots.asked(), Arc::new(1));
        assert_eq!(answers(&snapshots, false), None, "one has not answered");
        snapshots.answer(1, snapshots.asked(), Arc::new(2));
        assert_eq!(answers(&snapshots, false), Some(vec![Some(1), Some(2)]));
        snapshots.ask();
        assert_eq!(answers(&snapshots, false), None, "another request");
    }

    #[test]
    fn a_worker_that_has_ended_answers_again_and_a_late_one_does_not() {
        let snapshots = Snapshots::of(2);
        snapshots.answer(0, LAST, Arc::new(1));
        snapshots.answer(1, snapshots.asked(), Arc::new(2));
        for _ in 0..2 {
            snapshots.ask();
            assert_eq!(answers(&snapshots, true), Some(vec![Some(1), None]));
        }
    }

    #[test]
    fn exactly_the_wanted_packets_are_used() {
        let wanted = Wanted::new(Some(100_000));
        let over = AtomicBool::new(false);
        let used: u64 = std::thread::scope(|scope| {
            let work = |seed: u32| {
                let (mut sum, mut random) = (0, seed);
                while !over.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(1_103_515_245).wrapping_add(12_345);
                    let reserved = wanted.reserve(random >> 16 & 63);
                    // Often a part is returned, for example when packets take several slots.
                    let used = reserved.min(random >> 22 & 63);
                    std::thread::yield_now();
                    if wanted.settle(reserved, used) {
                        over.store(true, Ordering::Relaxed);
                    }
                    sum += u64::from(used);
                }
                sum
            };
            let threads: Vec<_> = (1..5).map(|seed| scope.spawn(move || work(seed))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(used, 100_000);
        assert_eq!(wanted.reserve(1), 0);
    }

    #[test]
    fn a_run_without_a_limit_never_has_enough() {
        let wanted = Wanted::new(None);
        assert_eq!(wanted.reserve(7), 7);
        assert!(!wanted.settle(7, 7) && !wanted.have_come(u64::MAX));
    }

    #[test]
    fn packets_counted_by_the_kernel_count_towards_the_limit() {
        let wanted = Wanted::new(Some(10));
        assert!(!wanted.have_come(9));
        assert_eq!(wanted.reserve(5), 1);
        assert!(wanted.have_come(5), "more than were wanted");
    }
}
