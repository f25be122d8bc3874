//! Times, counted by how long they are: a histogram.

/// How late packets were, each against the timetable: an error of an eighth at most, up to 4 s.
pub type Gaps = Histogram<3, 32>;

/// How long packets were on their way: an error of one in 32 at most, up to 68 s.
pub type Latencies = Histogram<5, 36>;

/// Counts of times in ns, in classes that grow with them: each power of two is divided into
/// 2^`STEP_BITS` steps. Times of 2^`POWERS` ns and longer are in the last class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram<const STEP_BITS: u32, const POWERS: u32> {
    counts: Vec<u64>,
}

impl<const STEP_BITS: u32, const POWERS: u32> Histogram<STEP_BITS, POWERS> {
    /// Steps each power of two is divided into.
    pub(crate) const STEPS: u32 = 1 << STEP_BITS;
    /// That number's logarithm.
    pub(crate) const STEP_BITS: u32 = STEP_BITS;
    /// Times of 2 to this and longer are in the last class.
    pub(crate) const POWERS: u32 = POWERS;
    /// How many classes there are.
    pub const CLASSES: usize = ((POWERS - STEP_BITS + 1) << STEP_BITS) as usize;

    /// From the counts of the classes.
    pub fn from_counts(counts: impl IntoIterator<Item = u64>) -> Self {
        let mut counts: Vec<u64> = counts.into_iter().collect();
        counts.resize(Self::CLASSES, 0);
        Self { counts }
    }

    /// The class of a time: the shortest have one each, then each power of two has as many.
    #[inline]
    pub fn class(ns: u64) -> usize {
        let ns = ns.min((1 << POWERS) - 1);
        if ns < u64::from(Self::STEPS) {
            return ns as usize;
        }
        let power = ns.ilog2() - STEP_BITS;
        (power << STEP_BITS) as usize + (ns >> power) as usize
    }

    /// The longest time of a class, in ns; the last has longer ones, too.
    pub(crate) fn longest(class: usize) -> u64 {
        let class = class as u64;
        let steps = u64::from(Self::STEPS);
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

    /// The times counted, from the shortest: of each class that has any its longest time in ns,
    /// and how many.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = self.counts.iter().enumerate();
        all.filter(|(_, count)| **count > 0).map(|(class, &count)| (Self::longest(class), count))
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

impl<const STEP_BITS: u32, const POWERS: u32> Default for Histogram<STEP_BITS, POWERS> {
    fn default() -> Self {
        Self::from_counts([])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_one_another_and_know_their_ends() {
        fn check<const STEP_BITS: u32, const POWERS: u32>() {
            type Of<const STEP_BITS: u32, const POWERS: u32> = Histogram<STEP_BITS, POWERS>;
            let around_powers = (0..POWERS).flat_map(|bit| [(1 << bit) - 1, 1 << bit]);
            for ns in (0..10_000).chain(around_powers) {
                let class = Of::<STEP_BITS, POWERS>::class(ns);
                let longest = Of::<STEP_BITS, POWERS>::longest(class);
                assert!(class < Of::<STEP_BITS, POWERS>::CLASSES && longest >= ns, "{ns}");
                assert!(longest <= ns + (ns >> STEP_BITS), "{ns} in {class}");
                let next = Of::<STEP_BITS, POWERS>::class(ns + 1);
                assert!(next == class || next == class + 1, "{ns}");
            }
            let last = Of::<STEP_BITS, POWERS>::class(u64::MAX);
            assert_eq!(last, Of::<STEP_BITS, POWERS>::CLASSES - 1);
        }
        check::<3, 32>();
        check::<5, 36>();
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
