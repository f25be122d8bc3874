//! A hash table of 64-bit entries in memory that XDP programs read: lines of eight entries, two lines for each key.
//!
//! ```text
//!   key --hash--> line a: [ entry entry entry ... ]   8 x 8 bytes, one cache line
//!            `--> line b: [ entry entry entry ... ]
//! ```
//!
//! An entry holds the whole key above its value, so a look-up is exact. A new entry goes into the first line with room, so
//! a look-up ends at a line that has some. With both full, an entry of them moves to its other line; if none can, the table
//! is built again with twice the lines. The hash has a random seed: nobody can choose addresses that fill a line.

use crate::image::Image;

/// Bytes of `struct scrub_buckets`.
pub const PARAMS_BYTES: usize = 16;
/// Entries of a line.
pub const LINE_ENTRIES: usize = 8;
/// Share of the entries in use, at most, when a table is made. Of a large table, few lines are in a cache: a second line for
/// some keys costs less than twice the lines.
const MAX_LOAD_PERCENT: usize = 75;

/// A line: entries of key and value, 0 where none is.
pub type Line = [u64; LINE_ENTRIES];

/// The table. Values have `VALUE_BITS` bits, and keys the rest.
#[derive(Clone, Debug)]
pub struct Buckets<const VALUE_BITS: u32> {
    lines: Vec<Line>,
    seed: u64,
}

/// Returns the two lines of a key, of a power of two.
///
/// Two rounds of multiplication and folding; as `buckets_find` in bpf/buckets.h.
fn lines_of(key: u64, seed: u64, mask: u32) -> [u32; 2] {
    let mixed = (key ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(seed | 1);
    let mixed = mixed ^ mixed >> 29;
    let first = mixed as u32 & mask;
    let second = (mixed >> 32) as u32 & mask;
    // Never the same one twice.
    [first, if first == second { second ^ 1 } else { second } & mask]
}

impl<const VALUE_BITS: u32> Buckets<VALUE_BITS> {
    /// Builds a table of keys, each given once, and their values. No entry may be 0.
    pub fn build(entries: &[(u64, u64)], seed: u64) -> Self {
        let lines = (entries.len() * 100 / MAX_LOAD_PERCENT).div_ceil(LINE_ENTRIES);
        let mut lines = lines.next_power_of_two().max(2);
        loop {
            let mut table = Self { lines: vec![[0; LINE_ENTRIES]; lines], seed };
            if entries.iter().all(|&(key, value)| table.insert(key, value)) {
                return table;
            }
            lines *= 2;
        }
    }

    fn insert(&mut self, key: u64, value: u64) -> bool {
        let lines = self.lines_of(key);
        let entry = key << VALUE_BITS | value;
        lines.into_iter().any(|line| self.add(line, entry))
            || lines.into_iter().any(|line| self.make_room(line) && self.add(line, entry))
    }

    /// Adds an entry to a line, if that has room.
    fn add(&mut self, line: usize, entry: u64) -> bool {
        let free = self.lines[line].iter_mut().find(|it| **it == 0);
        free.map(|free| *free = entry).is_some()
    }

    /// Moves one entry of a full line to its other line.
    fn make_room(&mut self, line: usize) -> bool {
        (0..LINE_ENTRIES).any(|at| {
            let entry = self.lines[line][at];
            let others = self.lines_of(entry >> VALUE_BITS).into_iter().filter(|it| *it != line);
            let moved = others.into_iter().any(|it| self.add(it, entry));
            if moved {
                self.lines[line][at] = 0;
            }
            moved
        })
    }

    /// Returns the lines of a key.
    fn lines_of(&self, key: u64) -> [usize; 2] {
        lines_of(key, self.seed, self.mask()).map(|it| it as usize)
    }

    /// Returns the value of a key.
    pub fn get(&self, key: u64) -> Option<u64> {
        for line in self.lines_of(key).map(|it| &self.lines[it]) {
            let found = line.iter().find(|it| *it >> VALUE_BITS == key && **it != 0);
            if found.is_some() || line.contains(&0) {
                return found.map(|it| it & ((1 << VALUE_BITS) - 1));
            }
        }
        None
    }

    /// Appends the lines to an image. Returns `struct scrub_buckets`.
    pub fn append(&self, image: &mut Image) -> [u8; PARAMS_BYTES] {
        let entries = self.lines.iter().flatten();
        let first = image.append(entries.map(|it| it.to_ne_bytes()));
        let mut params = [0; PARAMS_BYTES];
        params[..8].copy_from_slice(&self.seed.to_ne_bytes());
        params[8..12].copy_from_slice(&self.mask().to_ne_bytes());
        params[12..].copy_from_slice(&first.to_ne_bytes());
        params
    }

    /// Returns the number of lines less one.
    fn mask(&self) -> u32 {
        (self.lines.len() - 1) as u32
    }

    /// Returns the lines.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_entries_are_found_and_no_others() {
        let entries: Vec<_> = (0..195_000_u64).map(|it| (it * 977 + 5, it & 0xffff)).collect();
        let table = Buckets::<16>::build(&entries, 0x0123_4567_89ab_cdef);
        for &(key, value) in &entries {
            assert_eq!(table.get(key), Some(value));
            assert_eq!(table.get(key + 1), None);
        }
        let used = table.lines().iter().flatten().filter(|it| **it != 0).count();
        assert_eq!(used, entries.len());
        assert!(
            table.lines().len() * LINE_ENTRIES < 2 * entries.len(),
            "{} lines",
            table.lines().len()
        );
    }

    #[test]
    fn an_empty_table_finds_nothing() {
        let table = Buckets::<16>::build(&[], 1);
        assert_eq!((table.get(0), table.get(1), table.mask()), (None, None, 1));
    }

    #[test]
    fn the_two_lines_differ() {
        for key in 0..10_000 {
            let [a, b] = lines_of(key, 77, 1);
            assert_ne!(a, b);
        }
    }
}
