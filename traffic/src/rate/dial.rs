//! The pace that workers keep, set while they run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{MAX_BEHIND, Pace, Period};

/// A pace that all workers of a run look at, and one thread sets. How long bursts are stays.
#[derive(Clone, Debug)]
pub struct Dial {
    shared: Arc<Shared>,
    burst: u32,
    most_behind: Duration,
}

#[derive(Debug)]
struct Shared {
    ns: AtomicU64,
    fraction: AtomicU64,
}

impl Dial {
    /// That stands at a pace: of all workers together.
    pub fn new(pace: Pace) -> Self {
        let Period { ns, fraction } = pace.period();
        let shared = Shared { ns: ns.into(), fraction: u64::from(fraction).into() };
        Self { shared: Arc::new(shared), burst: pace.burst.max(1), most_behind: MAX_BEHIND }
    }

    /// The same for who makes up for less: at most this, and never more than [`MAX_BEHIND`].
    #[must_use]
    pub fn catching_up(self, most_behind: Duration) -> Self {
        Self { most_behind: most_behind.min(MAX_BEHIND), ..self }
    }

    /// Another pace from now on.
    pub fn set(&self, pace: Pace) {
        let Period { ns, fraction } = pace.period();
        // Both pair with the loads of `period`. Nothing else is published, and who sees one of the
        // two before the other is wrong by less than a ns once.
        self.shared.fraction.store(fraction.into(), Ordering::Relaxed);
        self.shared.ns.store(ns, Ordering::Relaxed);
    }

    /// From one burst to the next, whoever sends it.
    #[inline]
    pub fn period(&self) -> Period {
        // Both pair with the stores of `set`.
        let fraction = self.shared.fraction.load(Ordering::Relaxed) as u32;
        Period { ns: self.shared.ns.load(Ordering::Relaxed), fraction }
    }

    /// How far behind a worker may be and still make up for it.
    pub fn most_behind(&self) -> Duration {
        self.most_behind
    }

    /// Packets a burst.
    pub fn burst(&self) -> u32 {
        self.burst
    }
}
