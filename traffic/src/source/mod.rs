//! Sources of packets for a port's transmit ring: made to a plan, or read from a file; as fast as
//! can be, or when they are due.

mod fill;
mod made;
mod replay;

use sluicegate::error::Result;
use sluicegate::ring::RingMut;

pub use made::Made;
pub use replay::{Replay, Tempo};

use crate::rate::Gaps;

/// What was put into a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Packets.
    pub packets: u32,
    /// Their bytes, without the frame check sequence.
    pub bytes: u64,
}

/// Where the packets of one worker come from.
pub trait Source: Send {
    /// Puts up to `most` packets that are due into the ring, as many as it has room for, and gives
    /// their slots to the backend. `now_ns` is the time of a clock that never goes back.
    ///
    /// # Errors
    /// A file that is broken; what came before is in the ring.
    fn fill(&mut self, ring: &mut RingMut<'_>, most: u32, now_ns: u64) -> Result<Filled>;

    /// Whether there are no more.
    fn is_finished(&self) -> bool;

    /// How late packets were, each against its time; empty where they have none.
    fn lateness(&self) -> Gaps;

    /// Packets that were left out, because no ring like the one they were for holds them.
    fn too_long(&self) -> u64;

    /// Times it was too far behind to make up for it.
    fn restarts(&self) -> u64;
}
