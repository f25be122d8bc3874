//! The program's counters.

use super::Program;
use crate::counters::COUNTERS;

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Their bytes, without the frame check sequence.
    pub bytes: u64,
}

impl Program {
    /// Returns the counters of the present tables, summed over all CPUs, by [number](crate::counters).
    pub fn counts(&self) -> Vec<Count> {
        self.counts_of(self.generation & 1)
    }

    pub(super) fn counts_of(&self, side: u32) -> Vec<Count> {
        let mut counts = vec![Count::default(); usize::from(COUNTERS)];
        for first in self.firsts(side) {
            for (at, count) in counts.iter_mut().enumerate() {
                count.packets += self.counters.get((first + at) * 2);
                count.bytes += self.counters.get((first + at) * 2 + 1);
            }
        }
        counts
    }

    pub(super) fn clear_counts(&self, side: u32) {
        for word in
            self.firsts(side).flat_map(|first| first * 2..(first + usize::from(COUNTERS)) * 2)
        {
            self.counters.set(word, 0);
        }
    }

    /// Returns the first counter of each CPU.
    fn firsts(&self, side: u32) -> impl Iterator<Item = usize> + use<> {
        (0..self.cpus).map(move |cpu| (cpu * 2 + side as usize) * usize::from(COUNTERS))
    }
}
