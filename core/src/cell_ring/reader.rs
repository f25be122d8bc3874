//! Reading packets: the cells of rings as the slots of a [`Ring`].
//!
//! Slots show the cells themselves where the kernel alone writes them. Cells that another process may
//! write at any time are copied into the slots' buffers.
#![allow(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::wake::{STORE_DELAY, SleepFlag, WakeSource, is_reached};
use super::{CellHeader, CellRing, at};
use sluicegate_base::ring::cursor::Cursor;
use sluicegate_base::ring::{Meta, Ring, TimestampSource, fence};

/// Packets of a turn, where packets have no times: about as many as a CPU deals with before it
/// looks for other work (NAPI_POLL_WEIGHT of linux/netdevice.h).
const TURN: u32 = 64;

/// The rings that have packets to be read, and their order.
///
/// A reader takes a ring from it once for each run of packets, which costs by the logarithm of how
/// many rings have packets: on a machine of many CPUs most have none, and packets come in bursts.
#[derive(Debug)]
struct MergeQueue {
    /// By the time of each ring's next packet; otherwise one after the other.
    by_time: bool,
    /// The first is to be read first: its time, or which turn it is, and the ring.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    /// Turns given, where there are no times.
    given: u64,
}

/// The packets to read from one ring before those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MergeBound {
    pub ring: usize,
    /// Packets up to this time, if there is another ring; the first in any case.
    pub until_ns: Option<u64>,
    /// The most packets.
    pub packets: u32,
}

impl MergeQueue {
    fn new(rings: usize, by_time: bool) -> Self {
        Self { by_time, waiting: BinaryHeap::with_capacity(rings), given: 0 }
    }

    /// Takes a ring in that has packets and is not in yet. `next_ns` is the time of the first.
    fn add(&mut self, ring: usize, next_ns: u64) {
        self.given += 1;
        let key = if self.by_time { next_ns } else { self.given };
        self.waiting.push(Reverse((key, ring)));
    }

    /// The ring to be read now, which is out until it is [added](Self::add) again.
    fn take(&mut self) -> Option<MergeBound> {
        let Reverse((_, ring)) = self.waiting.pop()?;
        let other = self.waiting.peek().map(|&Reverse((key, _))| key);
        Some(match other {
            Some(_) if !self.by_time => MergeBound { ring, until_ns: None, packets: TURN },
            until_ns => MergeBound { ring, until_ns, packets: u32::MAX },
        })
    }
}

/// One ring being read.
#[derive(Debug)]
struct RingInput {
    ring: CellRing,
    cursor: Cursor,
    /// Cells that are in slots, and have not been given back.
    held: u32,
    /// Packets that the ring had lost before the last packet that was read.
    lost: u32,
    /// Where the writer was asked to wake the reader.
    wake_at: u32,
}

/// Slots one after the other whose cells are of one ring.
#[derive(Clone, Copy, Debug)]
struct SlotRun {
    source: usize,
    slots: u32,
}

/// Packets that were to be copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// All.
    pub matched: u64,
    /// Those that were lost for want of room.
    pub lost: u64,
}

/// Reads some rings, each in its order: several in the order of time, or in turns where packets
/// have no times. Nobody else reads them.
#[derive(Debug)]
pub(crate) struct Reader {
    sources: Vec<RingInput>,
    /// The sources that have unread packets, and no others.
    merge: MergeQueue,
    /// True if packets carry timestamps.
    timed: bool,
    /// True if packets are copied out of their cells.
    copies: bool,
    /// Packets that are unread, of all.
    unread: u32,
    /// The rings of the slots that the program has, oldest first.
    runs: VecDeque<SlotRun>,
    /// The ring's head when we last looked.
    head: u32,
    wake: WakeSource,
    asleep: bool,
}

impl Reader {
    /// Makes a reader of unread rings; `timed` if their packets have times. The writers wake it by `wake`.
    pub(crate) fn new(
        rings: impl IntoIterator<Item = CellRing>,
        timed: bool,
        wake: WakeSource,
    ) -> Self {
        Self::starting_at(rings, timed, wake, 0)
    }

    /// As [`new`](Self::new), for rings whose indices stand at `start`.
    pub(super) fn starting_at(
        rings: impl IntoIterator<Item = CellRing>,
        timed: bool,
        wake: WakeSource,
        start: u32,
    ) -> Self {
        let source = |ring: CellRing| {
            let cursor = Cursor::consuming(ring.geometry().cells, start);
            RingInput { ring, cursor, held: 0, lost: 0, wake_at: start }
        };
        let sources: Vec<RingInput> = rings.into_iter().map(source).collect();
        let (merge, runs) = (MergeQueue::new(sources.len(), timed), VecDeque::new());
        let copies = false;
        Self { sources, merge, timed, copies, unread: 0, runs, head: 0, wake, asleep: false }
    }

    /// Copies each packet into the buffer of its slot, because another process can write the cells.
    /// The ring needs buffers of [`snaplen`](Self::snaplen) bytes.
    pub(crate) fn copying(self) -> Self {
        Self { copies: true, ..self }
    }

    /// The most bytes of a packet that are kept.
    pub(crate) fn snaplen(&self) -> u32 {
        self.sources.first().map_or(0, |source| source.ring.geometry().snaplen)
    }

    /// Cells of each ring.
    pub(crate) fn cells(&self) -> u32 {
        self.sources.first().map_or(0, |source| source.ring.geometry().cells)
    }

    /// Known packets that are in no slot yet.
    #[inline]
    pub(crate) fn unread(&self) -> u32 {
        self.unread
    }

    /// Reads the indices of the writers. Returns how many packets are in no slot yet.
    #[inline]
    pub(crate) fn look(&mut self) -> u32 {
        for i in 0..self.sources.len() {
            let source = &mut self.sources[i];
            let before = source.unread();
            source.cursor.look(source.ring.word(at::PRODUCED), u32::MAX);
            let there = source.unread();
            self.unread += there - before;
            if before == 0 && there > 0 {
                self.await_turn(i);
            }
        }
        self.unread
    }

    /// Makes the writers skip these rings. A packet that is being copied at this moment still comes.
    pub(crate) fn close(&self) {
        for source in &self.sources {
            // Relaxed: a request by itself.
            source.ring.word(at::CLOSED).store(1, Ordering::Relaxed);
        }
    }

    /// Returns true if nothing more will be written: the next look finds all packets that are left.
    pub(crate) fn has_ended(&self) -> bool {
        // Acquire: pairs with the writer's releasing store behind its last index and counts.
        self.sources.iter().all(|source| source.ring.word(at::ENDED).load(Ordering::Acquire) != 0)
    }

    /// Gives back the cells of slots that the program has released.
    pub(crate) fn give_back(&mut self, ring: &Ring) {
        let mut released = ring.distance(self.head, ring.head());
        self.head = ring.head();
        while let Some(run) = self.runs.front_mut().filter(|_| released > 0) {
            let n = released.min(run.slots);
            self.sources[run.source].give_back(n);
            released -= n;
            run.slots -= n;
            if run.slots == 0 {
                self.runs.pop_front();
            }
        }
    }

    /// Fills slots with the packets that are known to be there; `wall_ns` turns the writer's time
    /// into the time of day. Returns how many slots.
    pub(crate) fn fill(&mut self, ring: &mut Ring, mut wall_ns: impl FnMut(u64) -> u64) -> u32 {
        let mut room = ring.room();
        let mut tail = ring.tail();
        while room > 0
            && let Some(turn) = self.merge.take()
        {
            let i = turn.ring;
            let most = self.sources[i].unread().min(turn.packets).min(room);
            let mut slots = 0;
            let goes_on = |reader: &Self| match turn.until_ns {
                Some(until_ns) => reader.sources[i].next_ns() <= until_ns,
                None => true,
            };
            while slots < most && (slots == 0 || goes_on(self)) {
                self.show(ring, tail, i, &mut wall_ns);
                tail = ring.next(tail);
                slots += 1;
            }
            room -= slots;
            self.unread -= slots;
            match self.runs.back_mut() {
                _ if self.copies => self.sources[i].give_back(slots),
                Some(run) if run.source == i => run.slots += slots,
                _ => self.runs.push_back(SlotRun { source: i, slots }),
            }
            if self.sources[i].unread() > 0 {
                self.await_turn(i);
            }
        }
        let filled = ring.distance(ring.tail(), tail);
        ring.publish(tail);
        filled
    }

    /// Lets a source that has unread packets wait for its turn.
    #[inline]
    fn await_turn(&mut self, i: usize) {
        let next_ns = match self.sources.len() {
            // There is none to compare it with.
            1 => 0,
            _ => self.sources[i].next_ns(),
        };
        self.merge.add(i, next_ns);
    }

    /// Fills a slot with the next packet of a source that has one.
    #[inline]
    fn show(&mut self, ring: &mut Ring, slot: u32, i: usize, wall_ns: &mut impl FnMut(u64) -> u64) {
        let (timed, copies) = (self.timed, self.copies);
        let source = &mut self.sources[i];
        let index = source.cursor.index(source.held);
        let header = source.ring.header(index);
        let CellHeader { time_ns, wire_bytes, captured_bytes, lost, .. } = header;
        let mut meta = Meta {
            wire_bytes: wire_bytes.max(captured_bytes),
            drops_before: lost.wrapping_sub(source.lost),
            direction: header.direction(),
            ..Meta::default()
        };
        if timed {
            meta.timestamp_ns = wall_ns(time_ns);
            meta.timestamp_source = TimestampSource::Software;
        }
        let packet = source.ring.packet(index);
        if copies {
            // SAFETY: the slot is behind the tail, so it and its buffer are the backend's.
            let buffer = unsafe { ring.buffer_unchecked(slot) };
            let bytes = buffer.len().min(captured_bytes as usize);
            // SAFETY: the cell has room for `snaplen` bytes from here on, to which `header` has cut
            // the length, and is mapped; the buffer is other memory, with room for `bytes`. The
            // writer may store there meanwhile: no reference is made, and any bytes are a packet.
            unsafe { packet.as_ptr().copy_to_nonoverlapping(buffer.as_mut_ptr(), bytes) };
            ring.fill(slot, bytes as u16, false, meta);
        } else {
            *ring.meta_mut(slot) = meta;
            // SAFETY: the cell has room for `snaplen` bytes from here on, at most 65,535, to which
            // `header` has cut the length, and stays mapped as long as the reader, which lives in one
            // queue with the ring. The kernel alone writes it, and does not write it again until we
            // publish that it is consumed, which is in the first sync after the slot was given back
            // (`give_back`).
            unsafe { ring.point(slot, packet, captured_bytes as u16, false) };
        }
        source.held += 1;
        source.lost = lost;
    }

    /// Returns the writers' counters of these rings.
    pub(crate) fn counts(&self) -> Counts {
        self.sources.iter().fold(Counts::default(), |sum, source| {
            let count = |at| source.ring.counter(at).load(Ordering::Relaxed);
            Counts { matched: sum.matched + count(at::MATCHED), lost: sum.lost + count(at::LOST) }
        })
    }

    /// Asks the writers for a wake-up when one of the rings has `level` packets that were not given
    /// back, one more than are known in any case. Returns whether the reader may sleep: none has.
    pub(crate) fn go_to_sleep(&mut self, level: u32) -> bool {
        for source in &mut self.sources {
            source.wake_at = source.cursor.index(level.max(source.cursor.known() + 1));
        }
        // Before the writers are asked: a wake-up costs them more than a look.
        if self.is_due() {
            return false;
        }
        self.wake.drain();
        self.asleep = true;
        for source in &self.sources {
            SleepFlag::of(&source.ring).set(source.wake_at);
        }
        // Pairs with the writer's fence between its index and its look at the flag.
        fence(Ordering::SeqCst);
        if self.is_due() {
            return false;
        }
        if level > 1 || cfg!(not(target_arch = "x86_64")) {
            // A wake-up that is lost comes with the next packet; elsewhere the program has a fence.
            return true;
        }
        let settled = Instant::now() + STORE_DELAY;
        while Instant::now() < settled {
            if self.is_due() {
                return false;
            }
        }
        true
    }

    /// Returns true if a writer has reached the index at which the reader wants to be woken.
    fn is_due(&self) -> bool {
        self.sources.iter().any(|source| {
            // Acquire: as `Cursor::look`.
            let produced = source.ring.word(at::PRODUCED).load(Ordering::Acquire);
            is_reached(produced, source.wake_at)
        })
    }

    /// The writers need not wake the reader any more.
    pub(crate) fn wake_up(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.sources.iter().for_each(|source| SleepFlag::of(&source.ring).clear());
        }
    }
}

impl AsFd for Reader {
    /// Readable when a writer has woken the reader.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl RingInput {
    /// Gives the oldest `n` cells back that are held.
    #[inline]
    fn give_back(&mut self, n: u32) {
        self.cursor.hand_over(self.ring.word(at::CONSUMED), n);
        self.held -= n;
    }

    #[inline]
    fn unread(&self) -> u32 {
        self.cursor.known() - self.held
    }

    /// The time of the next packet of a source that has one.
    #[inline]
    fn next_ns(&self) -> u64 {
        self.ring.time_ns(self.cursor.index(self.held))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn turn(ring: usize, until_ns: Option<u64>, packets: u32) -> Option<MergeBound> {
        Some(MergeBound { ring, until_ns, packets })
    }

    #[test]
    fn the_ring_with_the_earliest_packet_goes_on_until_another_one_has_an_earlier() {
        let mut queue = MergeQueue::new(3, true);
        for (ring, next_ns) in [(0, 70), (1, 50), (2, 60)] {
            queue.add(ring, next_ns);
        }
        assert_eq!(queue.take(), turn(1, Some(60), u32::MAX));
        queue.add(1, 65);
        assert_eq!(queue.take(), turn(2, Some(65), u32::MAX));
        assert_eq!(queue.take(), turn(1, Some(70), u32::MAX));
        assert_eq!(queue.take(), turn(0, None, u32::MAX), "the only one need not be compared");
        assert_eq!(queue.take(), None);
    }

    #[test]
    fn without_times_each_has_its_turn() {
        let mut queue = MergeQueue::new(3, false);
        (0..3).for_each(|ring| queue.add(ring, 0));
        for round in 0..3 {
            for ring in 0..3 {
                assert_eq!(queue.take(), turn(ring, None, TURN), "round {round}");
                queue.add(ring, 0);
            }
        }
        (0..2).for_each(|ring| assert_eq!(queue.take(), turn(ring, None, TURN)));
        assert_eq!(queue.take(), turn(2, None, u32::MAX), "the only one need not stop");
    }
}
