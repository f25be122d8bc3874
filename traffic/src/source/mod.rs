//! Sources of packets for a port's transmit ring: made to a plan, or read from a file; as fast as
//! can be, or when they are due.

mod replay;

use std::sync::Arc;
use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::ring::RingMut;

use crate::plan::{Frames, Plan};
use crate::rate::{Dial, Gaps, Timetable};

pub use sluicegate::ring::Filled;

pub use replay::{Replay, ReplayOptions, Tempo};

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

    /// Adds the counts of two sources.
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
/// The longest sleep: a sleeping worker does not notice a stop request.
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
pub trait PacketSource: Send {
    /// Puts up to `most` packets that are due into the ring, as many as it has room for, and gives
    /// their slots to the backend. `now_ns` is the time of a clock that never goes back.
    ///
    /// # Errors
    /// It cannot go on.
    fn fill(&mut self, ring: &mut RingMut<'_>, most: u32, now_ns: u64) -> Result<Filled>;

    /// Records the time at which the packets in the ring were handed over.
    fn handed_over(&mut self, _now_ns: u64) {}

    /// Waits when nothing was due, at most about 20 ms.
    ///
    /// # Errors
    /// What it reads from cannot be waited for.
    fn rest(&mut self, _now_ns: u64) -> Result<()> {
        std::hint::spin_loop();
        Ok(())
    }

    /// Reports whether the source is exhausted.
    fn is_finished(&self) -> bool;

    /// Takes the error that ended the source early.
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

/// Puts a worker's packets into transmit rings.
#[derive(Debug)]
pub(super) struct Filler {
    frames: Frames<Arc<Plan>>,
    /// A packet that is longer than a slot's buffer, on its way into several.
    long: Vec<u8>,
    /// How many of its bytes there are; 0 where none waits.
    waiting: usize,
    too_long: u64,
}

impl Filler {
    /// Creates a filler for packets of at most `longest` bytes.
    pub fn new(frames: Frames<Arc<Plan>>, longest: usize) -> Self {
        Self { frames, long: vec![0; longest], waiting: 0, too_long: 0 }
    }

    /// Packets that were left out, because the ring has fewer slots than they need.
    pub fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Puts up to `most` packets into the ring, as many as it has room for, and gives their slots
    /// to the backend.
    pub fn fill(&mut self, ring: &mut RingMut<'_>, most: u32) -> Filled {
        let mut filled = Filled::default();
        loop {
            if self.waiting == 0 {
                let frames = &mut self.frames;
                let built = ring.build(most - filled.packets, |buffer| frames.next_into(buffer));
                filled.packets += built.packets;
                filled.bytes += built.bytes;
            }
            if filled.packets == most || ring.available() == 0 {
                return filled;
            }
            let Some(bytes) = self.split(ring) else { return filled };
            filled.packets += 1;
            filled.bytes += bytes as u64;
        }
    }

    /// Puts a packet into several slots and gives them to the backend: its bytes. `None` if it needs
    /// more slots than there are; it waits then.
    #[cold]
    fn split(&mut self, ring: &mut RingMut<'_>) -> Option<usize> {
        if self.waiting == 0 {
            self.waiting = self.frames.next_into(&mut self.long)?;
        }
        let mut at = ring.head();
        let buffer = ring.buffer_mut(at).len();
        let slots = self.waiting.div_ceil(buffer.max(1)) as u32;
        if slots >= ring.num_slots() {
            // It would wait for ever.
            self.waiting = 0;
            self.too_long += 1;
            return None;
        }
        if slots > ring.available() || buffer == 0 {
            return None;
        }
        let bytes = std::mem::take(&mut self.waiting);
        let mut pieces = self.long[..bytes].chunks(buffer).peekable();
        while let Some(piece) = pieces.next() {
            ring.buffer_mut(at)[..piece.len()].copy_from_slice(piece);
            ring.set_bytes(at, piece.len() as u16, pieces.peek().is_some());
            at = ring.next(at);
        }
        ring.release(slots);
        Some(bytes)
    }
}

/// A worker's packets of a plan, endlessly many or some.
#[derive(Debug)]
pub struct PlanSource {
    filler: Filler,
    left: Option<u64>,
    timetable: Option<Timetable>,
}

impl PlanSource {
    /// The packets of worker `worker` of `workers`: `packets`, or endlessly many; at the pace that
    /// all workers keep together, if there is one. `time_ns` is asked where a packet is to carry the time.
    pub fn new(
        plan: &Arc<Plan>,
        (worker, workers): (u32, u32),
        packets: Option<u64>,
        pace: Option<Dial>,
        time_ns: fn() -> u64,
    ) -> Self {
        let frames = Frames::new(Arc::clone(plan), worker, workers, time_ns);
        let timetable = pace.map(|dial| Timetable::of(dial, (worker, workers)));
        Self { filler: Filler::new(frames, plan.longest()), left: packets, timetable }
    }
}

impl PacketSource for PlanSource {
    #[inline]
    fn fill(&mut self, ring: &mut RingMut<'_>, most: u32, now_ns: u64) -> Result<Filled> {
        let mut most = self.left.map_or(most, |left| left.min(most.into()) as u32);
        if let Some(timetable) = &mut self.timetable {
            most = timetable.due(now_ns, most);
        }
        let left_out = self.filler.too_long();
        let filled = self.filler.fill(ring, most);
        // What is left out had its turn, too.
        let left_out = (self.filler.too_long() - left_out) as u32;
        if let Some(timetable) = &mut self.timetable {
            timetable.sent(filled.packets + left_out);
        }
        self.left = self.left.map(|left| left.saturating_sub((filled.packets + left_out).into()));
        Ok(filled)
    }

    fn rest(&mut self, now_ns: u64) -> Result<()> {
        // Without a timetable the ring has no room: some may come at any time.
        rest_until(self.timetable.as_ref().and_then(Timetable::next_ns).unwrap_or(0), now_ns);
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.left == Some(0)
    }

    fn lateness(&self) -> Gaps {
        self.timetable.as_ref().map(Timetable::gaps).cloned().unwrap_or_default()
    }

    fn left_out(&self) -> LeftOut {
        LeftOut { too_long: self.filler.too_long(), ..LeftOut::default() }
    }

    fn restarts(&self) -> u64 {
        self.timetable.as_ref().map_or(0, Timetable::restarts)
    }
}
