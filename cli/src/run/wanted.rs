//! How many packets are still wanted, by all threads of a run together.

use std::sync::atomic::{AtomicU64, Ordering};

/// The packets that `--count` leaves to handle. Relaxed throughout: the counters publish no other
/// memory.
#[derive(Debug)]
pub struct Wanted(Option<Limit>);

#[derive(Debug)]
struct Limit {
    /// Packets that no thread has reserved.
    free: AtomicU64,
    /// Packets that are still missing; of these some may be reserved.
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

    /// Reserves packets for this thread, `most` at most. Until they are [`settled`](Self::settle)
    /// nobody else gets them. None does not mean that there are enough: another may give back.
    #[inline]
    pub fn reserve(&self, most: u32) -> u32 {
        let Some(limit) = &self.0 else { return most };
        let taken = take(&limit.free, most.into());
        u32::try_from(taken).unwrap_or(most)
    }

    /// Says how many of those reserved there were; the others are free again. True: there are enough.
    #[inline]
    pub fn settle(&self, reserved: u32, used: u32) -> bool {
        let Some(limit) = &self.0 else { return false };
        limit.free.fetch_add((reserved - used).into(), Ordering::Relaxed);
        take(&limit.missing, used.into());
        limit.missing.load(Ordering::Relaxed) == 0
    }

    /// Counts packets that have come without being asked for, however many. True: there are enough.
    pub fn have_come(&self, packets: u64) -> bool {
        let Some(limit) = &self.0 else { return false };
        take(&limit.free, packets);
        take(&limit.missing, packets);
        limit.missing.load(Ordering::Relaxed) == 0
    }
}

/// Takes as many from a count as there are, `most` at most. How many.
fn take(count: &AtomicU64, most: u64) -> u64 {
    let less = |count: u64| Some(count.saturating_sub(most));
    match count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
        Ok(before) | Err(before) => before.min(most),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn as_many_as_are_wanted_are_used_and_no_more() {
        let wanted = Wanted::new(Some(100_000));
        let over = AtomicBool::new(false);
        let used: u64 = std::thread::scope(|scope| {
            let work = |seed: u32| {
                let (mut sum, mut random) = (0, seed);
                while !over.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(1_103_515_245).wrapping_add(12_345);
                    let reserved = wanted.reserve(random >> 16 & 63);
                    // Often a part comes back, as where packets take several slots.
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
    fn without_a_limit_there_are_never_enough() {
        let wanted = Wanted::new(None);
        assert_eq!(wanted.reserve(7), 7);
        assert!(!wanted.settle(7, 7) && !wanted.have_come(u64::MAX));
    }

    #[test]
    fn what_comes_unasked_counts() {
        let wanted = Wanted::new(Some(10));
        assert!(!wanted.have_come(9));
        assert_eq!(wanted.reserve(5), 1);
        assert!(wanted.have_come(5), "more than were wanted");
    }
}
