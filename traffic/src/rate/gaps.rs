//! How late packets were, each against the timetable: a histogram.

const STEPS: u32 = Gaps::STEPS;
const STEP_BITS: u32 = Gaps::STEP_BITS;

/// Counts of times in ns, in classes that grow with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gaps {
    counts: Vec<u64>,
}

impl Gaps {
    /// Steps each power of two is divided into: an error of an eighth at most.
    pub(crate) const STEPS: u32 = 8;
    pub(crate) const STEP_BITS: u32 = Self::STEPS.ilog2();
    /// How many classes there are: for times up to 2³² ns; longer ones are in the last.
    pub const CLASSES: usize = ((32 - STEP_BITS + 1) * STEPS) as usize;

    /// From the counts of the classes.
    pub fn from_counts(counts: impl IntoIterator<Item = u64>) -> Self {
        let mut counts: Vec<u64> = counts.into_iter().collect();
        counts.resize(Self::CLASSES, 0);
        Self { counts }
    }

    /// The class of a time: times below 8 ns have one each, then each power of two has as
    /// many.
    #[inline]
    pub fn class(ns: u64) -> usize {
        let ns = ns.min(u64::from(u32::MAX)) as u32;
        if ns < STEPS {
            return ns as usize;
        }
        let power = ns.ilog2() - STEP_BITS;
        (power * STEPS + (ns >> power)) as usize
    }

    /// The longest time of a class, in ns.
    fn longest(class: usize) -> u64 {
        let class = class as u64;
        let steps = u64::from(STEPS);
        if class < 2 * steps {
            return class;
        }
        let power = class / steps - 1;
        ((class % steps + steps + 1) << power) - 1
    }

    /// Counts a time.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.counts[Self::class(ns)] += 1;
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }

    /// How many times there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// A time that this share of them does not exceed, in ns: the upper end of its class. `None` if
    /// there are none.
    pub fn percentile(&self, share: f64) -> Option<u64> {
        let whole = self.count();
        let wanted = ((whole as f64 * share).ceil() as u64).clamp(1, whole.max(1));
        let mut seen = 0;
        let class = self.counts.iter().position(|&count| {
            seen += count;
            seen >= wanted
        })?;
        Some(Self::longest(class))
    }
}

impl Default for Gaps {
    fn default() -> Self {
        Self::from_counts([])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_one_another_and_know_their_ends() {
        let around_powers = (0..32).flat_map(|bit| [(1 << bit) - 1, 1 << bit]);
        for ns in (0..10_000).chain(around_powers) {
            let class = Gaps::class(ns);
            assert!(class < Gaps::CLASSES && Gaps::longest(class) >= ns, "{ns}");
            assert!(Gaps::longest(class) <= ns + ns / 8, "{ns} in {class}");
            let next = Gaps::class(ns + 1);
            assert!(next == class || next == class + 1, "{ns}");
        }
        assert_eq!(Gaps::class(u64::MAX), Gaps::CLASSES - 1);
    }

    #[test]
    fn percentiles_are_of_the_times_counted() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.percentile(0.5), None);
        (1..=1000).for_each(|ns| gaps.add(ns));
        for (share, ns) in [(0.0, 1), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let found = gaps.percentile(share).unwrap();
            assert!(found >= ns && found <= ns + ns / 8, "{share}: {found}");
        }
    }
}
