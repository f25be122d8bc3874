//! Counts by key in bounded memory.

use std::collections::{HashMap, TryReserveError};
use std::hash::Hash;
use std::ops::AddAssign;

/// Packets and their bytes on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub packets: u64,
    pub bytes: u64,
}

impl Counters {
    pub fn of(bytes: u32) -> Self {
        Self { packets: 1, bytes: bytes.into() }
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Counts in both directions: from a conversation's lower address, or an address itself, and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounters {
    pub there: Counters,
    pub back: Counters,
}

impl DirectionCounters {
    /// The counts of both directions together.
    pub fn sum(self) -> Counters {
        let mut sum = self.there;
        sum += self.back;
        sum
    }
}

impl AddAssign for DirectionCounters {
    fn add_assign(&mut self, other: Self) {
        self.there += other.there;
        self.back += other.back;
    }
}

/// The counts of at most `max_keys` keys. A full table forgets the half with fewer bytes: these are counted as
/// others, and a key that comes again counts from there on. So the sum is exact, and the count of a key with
/// many bytes is exact or a little low.
#[derive(Debug)]
pub struct Table<K> {
    entries: HashMap<K, DirectionCounters>,
    max_keys: usize,
    /// Keys for which `entries` has memory.
    capacity: usize,
    /// Packets of forgotten keys.
    others: Counters,
    /// For the search of the median; empty meanwhile.
    counts: Vec<u64>,
}

impl<K: Copy + Eq + Hash> Table<K> {
    /// Creates a table, and allocates its memory.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn new(max_keys: usize) -> Result<Self, TryReserveError> {
        let (mut entries, mut counts) = (HashMap::new(), Vec::new());
        entries.try_reserve(max_keys)?;
        counts.try_reserve_exact(max_keys)?;
        let capacity = entries.capacity();
        Ok(Self { entries, max_keys, capacity, others: Counters::default(), counts })
    }

    /// Copies the counts of a table of the same size, into memory that it has.
    pub fn copy_from(&mut self, other: &Self) {
        self.entries.clone_from(&other.entries);
        self.others = other.others;
    }

    /// Counts a key.
    pub fn add(&mut self, key: K, counters: DirectionCounters) {
        if let Some(entry) = self.entries.get_mut(&key) {
            *entry += counters;
            return;
        }
        // Removed keys may still occupy memory. A full map allocates more, unless half of its keys are removed.
        let (len, free) = (self.entries.len(), self.entries.capacity() - self.entries.len());
        if len >= self.max_keys || free == 0 && len >= self.capacity / 2 {
            self.forget();
        }
        self.entries.insert(key, counters);
    }

    /// Removes the half of the keys with fewer bytes.
    fn forget(&mut self) {
        self.counts.extend(self.entries.values().map(|it| it.sum().bytes));
        let middle = self.counts.len() / 2;
        let (_, &mut median, _) = self.counts.select_nth_unstable(middle);
        self.counts.clear();
        // Keys with the median's bytes go until half of all keys are removed.
        let mut surplus = middle;
        let others = &mut self.others;
        for goes_first in [true, false] {
            self.entries.retain(|_, counters| {
                let Counters { bytes, .. } = counters.sum();
                let goes = surplus > 0 && (bytes < median || bytes == median && !goes_first);
                if goes {
                    surplus -= 1;
                    *others += counters.sum();
                }
                !goes
            });
        }
    }

    /// Adds another table's counts.
    pub fn merge(&mut self, other: &Self) {
        self.others += other.others;
        other.entries.iter().for_each(|(&key, &counters)| self.add(key, counters));
    }

    /// Number of keys that are known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Packets of keys that were forgotten.
    pub fn others(&self) -> Counters {
        self.others
    }

    /// The keys with the most bytes, in this order.
    pub fn top(&self, max_keys: usize) -> Vec<(K, DirectionCounters)>
    where
        K: Ord,
    {
        let mut all: Vec<_> = self.entries.iter().collect();
        // By key at last, so that equal runs print equal tables.
        all.sort_unstable_by(|(a, of_a), (b, of_b)| {
            of_b.sum().bytes.cmp(&of_a.sum().bytes).then_with(|| a.cmp(b))
        });
        all.truncate(max_keys);
        all.into_iter().map(|(&key, &counters)| (key, counters)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(bytes: u32) -> DirectionCounters {
        DirectionCounters { there: Counters::of(bytes), back: Counters::default() }
    }

    fn sum(table: &Table<u32>) -> Counters {
        let mut sum = table.others();
        table.top(usize::MAX).iter().for_each(|(_, counters)| sum += counters.sum());
        sum
    }

    #[test]
    fn a_full_table_keeps_the_keys_with_most_packets_and_the_sum() {
        let mut table = Table::new(100).unwrap();
        for round in 0..1000 {
            // Ten keys come again and again, among ever new ones.
            (0..10).for_each(|key| table.add(key, one(100)));
            table.add(1000 + round, one(60));
            assert!(table.len() <= 100);
        }
        let top = table.top(11);
        let keys: Vec<u32> = top[..10].iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, (0..10).collect::<Vec<_>>());
        assert!(
            top[..10].iter().all(|(_, it)| it.there == Counters { packets: 1000, bytes: 100_000 })
        );
        assert_eq!(sum(&table), Counters { packets: 11_000, bytes: 1_060_000 });
        assert!(table.others().packets > 0);
    }

    #[test]
    fn a_table_and_its_copy_keep_their_memory() {
        let [mut table, mut copy] = [0; 2].map(|_| Table::new(100).unwrap());
        let capacity = |table: &Table<u32>| table.entries.capacity();
        let max_capacity = capacity(&table);
        for key in 0..100_000 {
            table.add(key, one(60));
            assert!(capacity(&table) <= max_capacity, "memory for {} keys", capacity(&table));
        }
        copy.copy_from(&table);
        assert!(capacity(&copy) <= max_capacity);
        assert_eq!((copy.len(), sum(&copy)), (table.len(), sum(&table)));
    }

    #[test]
    fn equal_keys_are_forgotten_by_halves() {
        let mut table = Table::new(8).unwrap();
        (0..9).for_each(|key| table.add(key, one(60)));
        assert_eq!((table.len(), table.others().packets), (5, 4));
        assert_eq!(sum(&table).packets, 9);
        let mut other = Table::new(8).unwrap();
        other.merge(&table);
        assert_eq!((other.len(), sum(&other)), (5, sum(&table)));
    }
}
