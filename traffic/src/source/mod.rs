//! Sources of packets for a port's transmit ring: made to a plan, or read from a file; as fast as
//! can be, or when they are due.

mod fill;
mod made;
mod replay;

use std::time::Duration;

use sluicegate::error::{Error, Result};
pub use sluicegate::ring::Filled;
use sluicegate::ring::RingMut;

pub use made::Made;
pub use replay::{Replay, ReplayOptions, Tempo};

use crate::rate::Gaps;

/// Packets that a source has left out, or sent shorter than they once were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Packets that are longer than what they were for can send.
    pub too_long: u64,
    /// Packets that are shorter than an Ethernet header.
    pub too_short: u64,
    /// Packets that begin otherwise than those of what they were for: no Ethernet packets, mostly.
    pub other_link_type: u64,
    /// Packets that were sent as they stand in a file, which has not all of their bytes.
    pub cut_in_file: u64,
}

impl LeftOut {
    /// Packets that were not sent at all.
    pub fn packets(&self) -> u64 {
        self.too_long + self.too_short + self.other_link_type
    }

    /// The same of two sources.
    pub fn plus(self, other: Self) -> Self {
        Self {
            too_long: self.too_long + other.too_long,
            too_short: self.too_short + other.too_short,
            other_link_type: self.other_link_type + other.other_link_type,
            cut_in_file: self.cut_in_file + other.cut_in_file,
        }
    }
}

/// How long before its time a sleeper is woken: the kernel may take as long.
const WAKE_BEFORE: Duration = Duration::from_millis(1);
/// The longest sleep: who sleeps does not see that it is to end.
const MAX_SLEEP: Duration = Duration::from_millis(20);

/// Sleeps where something is far from being due, and spins where it is near.
fn rest_until(due_ns: u64, now_ns: u64) {
    let left = Duration::from_nanos(due_ns.saturating_sub(now_ns));
    match left.saturating_sub(WAKE_BEFORE) {
        far if far >= WAKE_BEFORE => std::thread::sleep(far.min(MAX_SLEEP)),
        _ => std::hint::spin_loop(),
    }
}

/// Where the packets of one worker come from.
pub trait Source: Send {
    /// Puts up to `most` packets that are due into the ring, as many as it has room for, and gives
    /// their slots to the backend. `now_ns` is the time of a clock that never goes back.
    ///
    /// # Errors
    /// It cannot go on.
    fn fill(&mut self, ring: &mut RingMut<'_>, most: u32, now_ns: u64) -> Result<Filled>;

    /// What was put into the ring has been handed over, at this time.
    fn handed_over(&mut self, _now_ns: u64) {}

    /// Nothing was due: waits until something may be, for some 20 ms at most.
    ///
    /// # Errors
    /// What it reads from cannot be waited for.
    fn rest(&mut self, _now_ns: u64) -> Result<()> {
        std::hint::spin_loop();
        Ok(())
    }

    /// Whether there are no more.
    fn is_finished(&self) -> bool;

    /// Why there are no more, where that is no good reason; once.
    fn failure(&mut self) -> Option<Error> {
        None
    }

    /// How late packets were, each against its time; empty where they have none.
    fn lateness(&self) -> Gaps;

    /// Packets that were not sent, or not whole.
    fn left_out(&self) -> LeftOut;

    /// Times it was too far behind to make up for it.
    fn restarts(&self) -> u64;
}
