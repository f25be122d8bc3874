//! Sources of packets for a port's transmit ring: generated from a plan or read from a file, at full speed or
//! by a timetable.

mod limited;
mod replay;

use std::sync::Arc;
use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::ring::{Meta, Packet, RingMut};

use crate::plan::{FrameBuilder, Plan, StreamTotals};
use crate::rate::{Dial, Gaps, Timetable};

pub use sluicegate::ring::Filled;

use limited::LimitedSource;
pub(crate) use limited::StreamLimits;
pub use replay::{Replay, ReplayOptions, Tempo};

/// Packets that a source omitted, or sent shorter than they were on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkippedPackets {
    /// Packets longer than the target can send.
    pub too_long: u64,
    /// Packets shorter than an Ethernet header.
    pub too_short: u64,
    /// Packets of another link type than the target's.
    pub other_link_type: u64,
    /// Packets sent although the file lacks some of their bytes.
    pub cut_in_file: u64,
    /// Packets cut to the maximum length.
    pub cut_to_mtu: u64,
}

impl SkippedPackets {
    /// Returns the number of packets not sent.
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
            cut_to_mtu: self.cut_to_mtu + other.cut_to_mtu,
        }
    }
}

/// A sleep ends this long before a packet is due, because the kernel may wake the thread this late.
const WAKE_BEFORE: Duration = Duration::from_millis(1);
/// The longest sleep: a sleeping worker does not detect a stop request.
const MAX_SLEEP: Duration = Duration::from_millis(20);

/// Sleeps if the due time is far away, and spins if it is near.
fn rest_until(due_ns: u64, now_ns: u64) {
    let left = Duration::from_nanos(due_ns.saturating_sub(now_ns));
    match left.saturating_sub(WAKE_BEFORE) {
        far if far >= WAKE_BEFORE => std::thread::sleep(far.min(MAX_SLEEP)),
        _ => std::hint::spin_loop(),
    }
}

/// A source of one worker's packets.
pub trait PacketSource: Send {
    /// Writes up to `most` due packets into the ring, as far as there is room, and gives their slots to the
    /// backend. `now_ns` is the time of a clock that never goes back.
    ///
    /// # Errors
    /// The source cannot continue.
    fn fill(&mut self, ring: &mut RingMut<'_>, most: u32, now_ns: u64) -> Result<Filled>;

    /// Records the time at which the packets in the ring were submitted.
    fn handed_over(&mut self, _now_ns: u64) {}

    /// Waits after a call without due packets, for about 20 ms at most.
    ///
    /// # Errors
    /// The source cannot wait for its input.
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

    /// Returns the lateness of each packet; empty if packets have no times.
    fn lateness(&self) -> Gaps;

    /// Returns the packets not sent, or not sent entirely.
    fn skipped(&self) -> SkippedPackets;

    /// Returns how often the source was too late to catch up.
    fn restarts(&self) -> u64;

    /// Returns the totals of each stream, including packets that were too long; empty without streams.
    fn streams(&self) -> Vec<StreamTotals> {
        Vec::new()
    }
}

/// A worker's packets of a plan: a number of packets, or endless.
#[derive(Debug)]
pub struct PlanSource {
    frames: FrameBuilder<Arc<Plan>>,
    /// A packet longer than a slot's buffer, until there is room for it in several slots.
    long: Vec<u8>,
    /// The length of that packet; 0 if there is none.
    waiting: usize,
    /// Packets that need more slots than the ring has.
    too_long: u64,
    left: Option<u64>,
    timetable: Option<Timetable>,
}

/// Creates the source of worker `worker` of `workers`, as [`PlanSource::new`] does. Streams with a count leave
/// the mix after it, and the source is exhausted when none is left.
pub fn of_plan(
    plan: &Arc<Plan>,
    worker: (u32, u32),
    packets: Option<u64>,
    pace: Option<Dial>,
    time_ns: fn() -> u64,
) -> Box<dyn PacketSource> {
    let source = PlanSource::new(plan, worker, packets, pace, time_ns);
    match StreamLimits::of(plan, worker) {
        Some(limits) => Box::new(LimitedSource::new(source, limits, plan.has_rates)),
        None => Box::new(source),
    }
}

impl PlanSource {
    /// Creates the source of worker `worker` of `workers`: `packets` packets, or endless; at the pace of all
    /// workers together, if there is one. `time_ns` supplies the times in packets. Counts of streams have no
    /// effect.
    pub fn new(
        plan: &Arc<Plan>,
        (worker, workers): (u32, u32),
        packets: Option<u64>,
        pace: Option<Dial>,
        time_ns: fn() -> u64,
    ) -> Self {
        Self {
            frames: FrameBuilder::new(Arc::clone(plan), worker, workers, time_ns),
            long: vec![0; plan.longest()],
            waiting: 0,
            too_long: 0,
            left: packets,
            timetable: pace.map(|dial| Timetable::of(dial, (worker, workers))),
        }
    }

    /// Writes up to `most` packets into the ring, as far as there is room, and gives their slots to the
    /// backend.
    #[inline]
    fn build(&mut self, ring: &mut RingMut<'_>, most: u32) -> Filled {
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

    /// Writes a packet into several slots, gives them to the backend and returns its length. Returns `None`
    /// if too few slots are free: the packet waits.
    #[cold]
    fn split(&mut self, ring: &mut RingMut<'_>) -> Option<usize> {
        if self.waiting == 0 {
            self.waiting = self.frames.next_into(&mut self.long)?;
        }
        let meta = Meta::default();
        let packet = Packet::new(&meta, &self.long[..self.waiting]);
        let pushed = ring.push(&packet);
        if !pushed && ring.can_ever_hold(&packet) {
            return None;
        }
        self.too_long += u64::from(!pushed);
        let bytes = std::mem::take(&mut self.waiting);
        pushed.then_some(bytes)
    }
}

impl PacketSource for PlanSource {
    #[inline]
    fn fill(&mut self, ring: &mut RingMut<'_>, most: u32, now_ns: u64) -> Result<Filled> {
        let mut most = self.left.map_or(most, |left| left.min(most.into()) as u32);
        if let Some(timetable) = &mut self.timetable {
            most = timetable.due(now_ns, most);
        }
        let too_long_before = self.too_long;
        let filled = self.build(ring, most);
        // An omitted packet also uses up its turn.
        let packets = filled.packets + (self.too_long - too_long_before) as u32;
        if let Some(timetable) = &mut self.timetable {
            timetable.sent(packets);
        }
        self.left = self.left.map(|left| left.saturating_sub(packets.into()));
        Ok(filled)
    }

    fn rest(&mut self, now_ns: u64) -> Result<()> {
        // Without a timetable the ring is full, and may have room again at any time.
        rest_until(self.timetable.as_ref().and_then(Timetable::next_ns).unwrap_or(0), now_ns);
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.left == Some(0)
    }

    fn lateness(&self) -> Gaps {
        self.timetable.as_ref().map(Timetable::gaps).cloned().unwrap_or_default()
    }

    fn skipped(&self) -> SkippedPackets {
        SkippedPackets { too_long: self.too_long, ..SkippedPackets::default() }
    }

    fn restarts(&self) -> u64 {
        self.timetable.as_ref().map_or(0, Timetable::restarts)
    }

    fn streams(&self) -> Vec<StreamTotals> {
        let mut totals = self.frames.totals();
        if self.waiting > 0 {
            // This packet is made, and counts once it is in the ring.
            let last = &mut totals[self.frames.last_stream()];
            last.packets -= 1;
            last.bytes -= self.waiting as u64;
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use sluicegate::port::{Directions, OpenOptions, Port};

    use super::*;
    use crate::spec::{Defaults, Spec};

    #[test]
    fn a_packet_longer_than_a_slot_takes_several_or_is_omitted() {
        let spec = Spec::parse("[[stream]]\nsize = 9014\nlayers = ['ether', 'ipv4', 'udp']\n");
        let plan = Arc::new(spec.unwrap().plan(&Defaults::default()).unwrap());
        // A packet takes five slots; a slot of each ring stays free.
        for (sentence, slots, sent, too_long) in [
            ("the fourth waits for room", 16, [3, 3, 1], 0),
            ("none of them ever fits", 4, [0, 0, 0], 3),
        ] {
            let name = format!("null:?slots={slots}").parse().unwrap();
            let options = OpenOptions { usage: Directions::Send, ..OpenOptions::default() };
            let mut queue = Port::open(&name, &options).unwrap().queues.remove(0);
            let mut source = PlanSource::new(&plan, (0, 1), Some(7), None, || 0);
            let mut frames = FrameBuilder::new(Arc::clone(&plan), 0, 1, || 0);
            let (mut frame, mut scratch) = (vec![0; 9014], Vec::new());
            for packets in sent {
                let first = queue.tx().head();
                let filled = source.fill(&mut queue.tx_mut(), 64, 0).unwrap();
                assert_eq!(
                    filled,
                    Filled { packets, bytes: u64::from(packets) * 9014 },
                    "{sentence}"
                );
                for packet in queue.tx().pending_tx(first) {
                    frames.next_into(&mut frame);
                    assert!(packet.contiguous(&mut scratch) == frame, "{sentence}");
                }
                queue.sync_tx().unwrap();
            }
            assert_eq!(source.skipped().too_long, too_long, "{sentence}");
            assert_eq!(source.is_finished(), too_long == 0, "{sentence}");
        }
    }
}
