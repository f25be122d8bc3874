//! The index arithmetic of both sides of a ring, without its entries.
//!
//! Indices only increase and wrap at 2³², or at 2¹⁶; an entry's position is its index modulo the ring's
//! size. Each side stores one index and reads the other's. It keeps private copies of both, and reads the
//! shared one only when its copy leaves nothing to do.
//!
//! An index from the other side is accepted only if it moves forward, and by no more than the ring allows.
//! Any other index is counted and ignored, so a batch is never larger than the ring.

use std::fmt;
use std::marker::PhantomData;

// The atomics of memory shared with the kernel: under `--cfg loom` they are loom's, so that a test can
// explore every interleaving of both sides.
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

/// An index that both sides of a ring see: 32 bits in the kernel's rings, 16 in memif's.
pub trait Index: fmt::Debug {
    /// All bits of an index, which wraps after the maximum.
    const MASK: u32;

    /// Reads the index.
    fn load(&self, order: Ordering) -> u32;
    /// Writes the index.
    fn store(&self, index: u32, order: Ordering);
}

impl Index for AtomicU32 {
    const MASK: u32 = u32::MAX;

    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn store(&self, index: u32, order: Ordering) {
        self.store(index, order);
    }
}

impl Index for AtomicU16 {
    const MASK: u32 = 0xffff;

    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order).into()
    }

    #[inline]
    fn store(&self, index: u32, order: Ordering) {
        // The upper bits are 0: see `step`.
        self.store(index as u16, order);
    }
}

/// Returns the index `n` steps after another.
#[inline]
fn step<I: Index>(from: u32, n: u32) -> u32 {
    from.wrapping_add(n) & I::MASK
}

/// Returns the number of steps from one index to another, counting up.
#[inline]
fn steps<I: Index>(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from) & I::MASK
}

/// One side of a ring. The side owns the entries from its own index on: empty ones for the producer, full
/// ones for the consumer. It hands them over to the other side in order.
#[derive(Debug)]
pub struct Cursor<I = AtomicU32> {
    entries: u32,
    /// The first index that this side owns: a copy of the index it stored.
    first: u32,
    /// The first index that this side does not own any more, from a copy of the other side's index that may
    /// be out of date.
    end: u32,
    /// Distance from the other side's index to `end`: the ring's size for a producer, which may be one
    /// round ahead of the consumer; 0 for a consumer, which may go as far as the producer.
    ahead: u32,
    /// Reads that found an invalid index of the other side.
    pub faults: u64,
    _index: PhantomData<fn(I)>,
}

impl<I: Index> Cursor<I> {
    /// Makes the producer's side of an empty ring of `entries` entries, a power of two, with both indices
    /// at `start`.
    pub fn producing(entries: u32, start: u32) -> Self {
        Self::new(entries, start, entries)
    }

    /// Makes the consumer's side of such a ring.
    pub fn consuming(entries: u32, start: u32) -> Self {
        Self::new(entries, start, 0)
    }

    fn new(entries: u32, start: u32, ahead: u32) -> Self {
        debug_assert!(entries.is_power_of_two() && entries <= I::MASK / 2 + 1);
        let end = step::<I>(start, ahead);
        Self { entries, first: start, end, ahead, faults: 0, _index: PhantomData }
    }

    /// Returns the number of entries that this side owns by its copies: room to produce, or entries to
    /// consume.
    #[inline]
    pub fn cached(&self) -> u32 {
        steps::<I>(self.first, self.end)
    }

    /// Returns how many of `wanted` entries this side owns. Reads the other side's index only if the copy
    /// does not suffice.
    #[inline]
    pub fn peek(&mut self, other: &I, wanted: u32) -> u32 {
        if self.cached() < wanted {
            self.read(other);
        }
        self.cached().min(wanted)
    }

    /// Returns the index of the entry `i` steps after the first that this side owns.
    #[inline]
    pub fn index(&self, i: u32) -> u32 {
        step::<I>(self.first, i)
    }

    /// Hands over this side's first `n` entries. Release: pairs with the other side's acquiring read of
    /// this index. It publishes that this side has written the entries, or has read them
    /// (net/xdp/xsk_queue.h: __xskq_cons_peek; xskq_prod_nb_free and its callers; in a ring of copies, the
    /// read on which the program's writes depend).
    #[inline]
    pub fn submit(&mut self, own: &I, n: u32) {
        assert!(n <= self.cached(), "{n} entries submitted of {}", self.cached());
        self.first = step::<I>(self.first, n);
        own.store(self.first, Ordering::Release);
    }

    /// Returns the number of entries that the other side owns.
    #[inline]
    pub fn others(&mut self, other: &I) -> u32 {
        self.read(other);
        self.entries - self.cached()
    }

    /// Acquire: pairs with the other side's releasing store of this index (__xskq_prod_submit,
    /// __xskq_cons_release; in a ring of copies, the program's last store). The store publishes the entries
    /// before it, or that they have been read and may be overwritten.
    #[inline]
    fn read(&mut self, other: &I) {
        let end = step::<I>(other.load(Ordering::Acquire), self.ahead);
        if steps::<I>(self.end, end) <= self.entries - self.cached() {
            self.end = end;
        } else {
            self.faults += 1;
        }
    }
}

/// The interleavings of the two sides. Run with
/// `RUSTFLAGS="--cfg loom" cargo test -p sluicegate-base --lib --target-dir target/loom -- loom`.
#[cfg(all(test, loom))]
#[allow(unsafe_code, reason = "entries that loom watches")]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A ring as the kernel has it: two indices, and entries whose accesses loom checks for races.
    struct Shared<I> {
        producer: I,
        consumer: I,
        entries: Vec<UnsafeCell<u32>>,
    }

    /// An index that a test can construct.
    trait Start: Index + Send + Sync + 'static {
        fn at(start: u32) -> Self;
    }

    impl Start for AtomicU32 {
        fn at(start: u32) -> Self {
            Self::new(start)
        }
    }

    impl Start for AtomicU16 {
        fn at(start: u32) -> Self {
            Self::new(start as u16)
        }
    }

    impl<I: Start> Shared<I> {
        fn new(entries: u32, start: u32) -> Arc<Self> {
            Arc::new(Self {
                producer: I::at(start),
                consumer: I::at(start),
                entries: (0..entries).map(|_| UnsafeCell::new(u32::MAX)).collect(),
            })
        }

        fn put(&self, index: u32, value: u32) {
            // SAFETY: loom checks that nothing else accesses the entry meanwhile.
            self.entries[index as usize % self.entries.len()].with_mut(|e| unsafe { *e = value });
        }

        fn take(&self, index: u32) -> u32 {
            // SAFETY: loom checks that nothing writes the entry meanwhile.
            self.entries[index as usize % self.entries.len()].with(|e| unsafe { *e })
        }
    }

    /// The kernel as consumer (xsk_queue.h: xskq_cons_peek_addr_unchecked, then xskq_cons_release,
    /// published by __xskq_cons_release). It takes one entry at a time and publishes `batch` at once, or
    /// fewer if it finds no more.
    fn kernel_consumes<I: Start>(ring: &Shared<I>, start: u32, count: u32, batch: u32) {
        let (mut cached_prod, mut cached_cons) = (start, start);
        for number in 0..count {
            if cached_prod == cached_cons {
                ring.consumer.store(cached_cons, Ordering::Release);
            }
            while cached_prod == cached_cons {
                cached_prod = ring.producer.load(Ordering::Acquire);
                if cached_prod == cached_cons {
                    thread::yield_now();
                }
            }
            assert_eq!(ring.take(cached_cons), number, "whole, and in order");
            cached_cons = step::<I>(cached_cons, 1);
            if steps::<I>(start, cached_cons) % batch == 0 {
                ring.consumer.store(cached_cons, Ordering::Release);
            }
        }
        ring.consumer.store(cached_cons, Ordering::Release);
    }

    /// The kernel as producer (xskq_prod_reserve_desc, then xskq_prod_submit), one entry at a time.
    fn kernel_produces<I: Start>(ring: &Shared<I>, start: u32, count: u32) {
        let entries = ring.entries.len() as u32;
        let mut at = start;
        for number in 0..count {
            while steps::<I>(ring.consumer.load(Ordering::Acquire), at) == entries {
                thread::yield_now();
            }
            ring.put(at, number);
            at = step::<I>(at, 1);
            ring.producer.store(at, Ordering::Release);
        }
    }

    /// Runs a model over the interleavings with up to three preemptions: both sides have two steps per
    /// entry, and all interleavings would take hours.
    fn explore(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    fn we_produce<I: Start>(entries: u32, count: u32, ours: u32, theirs: u32) {
        let start = I::MASK - 1;
        explore(move || {
            let ring = Shared::<I>::new(entries, start);
            let kernels = Arc::clone(&ring);
            let kernel = thread::spawn(move || kernel_consumes(&kernels, start, count, theirs));
            let mut cursor = Cursor::<I>::producing(entries, start);
            let mut number = 0;
            while number < count {
                let n = cursor.peek(&ring.consumer, ours.min(count - number));
                (0..n).for_each(|i| ring.put(cursor.index(i), number + i));
                match n {
                    0 => thread::yield_now(),
                    n => cursor.submit(&ring.producer, n),
                }
                number += n;
            }
            kernel.join().unwrap();
            assert_eq!((cursor.others(&ring.consumer), cursor.faults), (0, 0));
        });
    }

    fn we_consume<I: Start>(entries: u32, count: u32, ours: u32) {
        let start = I::MASK - 1;
        explore(move || {
            let ring = Shared::<I>::new(entries, start);
            let kernels = Arc::clone(&ring);
            let kernel = thread::spawn(move || kernel_produces(&kernels, start, count));
            let mut cursor = Cursor::<I>::consuming(entries, start);
            let mut number = 0;
            while number < count {
                let n = cursor.peek(&ring.producer, ours);
                for i in 0..n {
                    assert_eq!(ring.take(cursor.index(i)), number + i, "whole, and in order");
                }
                match n {
                    0 => thread::yield_now(),
                    n => cursor.submit(&ring.consumer, n),
                }
                number += n;
            }
            kernel.join().unwrap();
            assert_eq!((number, cursor.faults), (count, 0));
        });
    }

    #[test]
    fn loom_what_we_produce_the_kernel_reads_whole_and_in_order() {
        we_produce::<AtomicU32>(1, 3, 1, 1);
        we_produce::<AtomicU32>(2, 3, 2, 1);
        we_produce::<AtomicU32>(2, 3, 2, 2);
    }

    #[test]
    fn loom_what_the_kernel_produces_we_read_whole_and_in_order() {
        we_consume::<AtomicU32>(1, 3, 1);
        we_consume::<AtomicU32>(2, 3, 1);
        we_consume::<AtomicU32>(2, 3, 2);
    }

    #[test]
    fn loom_indices_of_16_bits_wrap_earlier() {
        we_produce::<AtomicU16>(2, 3, 2, 2);
        we_consume::<AtomicU16>(2, 3, 2);
    }
}
