//! Reading packets: the cells of rings as the slots of a [`Ring`].
//!
//! If only the kernel writes the cells, slots point at the cells themselves. If another process may write
//! them at any time, they are copied into the slots' buffers.
#![allow(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::wake::{STORE_DELAY, SleepFlag, WakeSource};
use super::{CellHeader, CellRing, at};
use sluicegate_base::ring::cursor::Cursor;
use sluicegate_base::ring::{Meta, Ring, TimestampSource, fence};

/// Packets per turn if packets have no timestamps: about as many as a CPU handles before it checks for
/// other work (NAPI_POLL_WEIGHT of linux/netdevice.h).
const TURN: u32 = 64;

/// The order in which to read the rings that have packets.
///
/// The reader takes a ring from it once per run of packets. The cost is logarithmic in the number of rings
/// with packets: on a machine with many CPUs most rings are empty, and packets come in bursts.
#[derive(Debug)]
struct MergeQueue {
    /// Orders rings by the time of their next packet, otherwise by turn.
    by_time: bool,
    /// The rings with packets, the next one first: its packet's time or its turn, and its number.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    /// Turns assigned so far.
    given: u64,
}

/// The packets to read from one ring before those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MergeBound {
    pub ring: usize,
    /// The time of the last packet to read, if another ring has packets. The first packet is read in any
    /// case.
    pub until_ns: Option<u64>,
    /// The maximum number of packets.
    pub packets: u32,
}

impl MergeQueue {
    fn new(rings: usize, by_time: bool) -> Self {
        Self { by_time, waiting: BinaryHeap::with_capacity(rings), given: 0 }
    }

    /// Adds a ring that has packets and is not queued. `next_ns` is the time of its first packet.
    fn add(&mut self, ring: usize, next_ns: u64) {
        self.given += 1;
        let key = if self.by_time { next_ns } else { self.given };
        self.waiting.push(Reverse((key, ring)));
    }

    /// Removes and returns the ring to read next. [`add`](Self::add) queues it again.
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
    /// Cells that are in slots and have not been given back.
    held: u32,
    /// The ring's count of lost packets at the last packet read.
    lost: u32,
    /// The index at which the writer was asked to wake the reader.
    wake_at: u32,
}

/// Consecutive slots whose cells belong to one ring.
#[derive(Clone, Copy, Debug)]
struct SlotRun {
    source: usize,
    slots: u32,
}

/// Counts of the packets to copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CellRingCounts {
    /// All, including lost ones.
    pub matched: u64,
    /// Packets that were lost because a ring was full.
    pub lost: u64,
}

/// Reads one or more rings, each in its own order. Several rings are merged by time, or in turns if packets
/// have no timestamps. A ring has one reader.
#[derive(Debug)]
pub(crate) struct Reader {
    sources: Vec<RingInput>,
    /// The sources that have unread packets.
    merge: MergeQueue,
    /// True if packets carry timestamps.
    timed: bool,
    /// True if packets are copied out of their cells.
    copies: bool,
    /// Unread packets of all sources.
    unread: u32,
    /// The rings of the slots that the program holds, oldest first.
    runs: VecDeque<SlotRun>,
    /// The slot ring's head at the last call.
    head: u32,
    wake: WakeSource,
    asleep: bool,
}

impl Reader {
    /// Makes a reader of unread rings; `timed` if their packets have timestamps. The writers wake it
    /// through `wake`.
    pub(crate) fn new(
        rings: impl IntoIterator<Item = CellRing>,
        timed: bool,
        wake: WakeSource,
    ) -> Self {
        Self::starting_at(rings, timed, wake, 0)
    }

    /// Makes a reader as [`new`](Self::new) does, for rings whose indices begin at `start`.
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

    /// Returns the maximum number of bytes kept of a packet.
    pub(crate) fn snaplen(&self) -> u32 {
        self.sources.first().map_or(0, |source| source.ring.geometry().snaplen)
    }

    /// Returns the number of cells of each ring.
    pub(crate) fn cells(&self) -> u32 {
        self.sources.first().map_or(0, |source| source.ring.geometry().cells)
    }

    /// Returns the number of known packets that are in no slot yet.
    #[inline]
    pub(crate) fn unread(&self) -> u32 {
        self.unread
    }

    /// Reads the writers' indices. Returns the number of packets that are in no slot yet.
    #[inline]
    pub(crate) fn look(&mut self) -> u32 {
        for i in 0..self.sources.len() {
            let source = &mut self.sources[i];
            let before = source.unread();
            source.cursor.peek(source.ring.word(at::PRODUCED), u32::MAX);
            let there = source.unread();
            self.unread += there - before;
            if before == 0 && there > 0 {
                self.await_turn(i);
            }
        }
        self.unread
    }

    /// Makes the writers skip these rings. A packet that is being copied at this moment still arrives.
    pub(crate) fn close(&self) {
        for source in &self.sources {
            // Pairs with the loads of `Writer::publish` and of the program: an independent request.
            source.ring.word(at::CLOSED).store(1, Ordering::Relaxed);
        }
    }

    /// Returns true if nothing more will be written: the next [`look`](Self::look) finds all remaining
    /// packets.
    pub(crate) fn has_ended(&self) -> bool {
        // Acquire: pairs with the writer's releasing store after its last index and counts.
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

    /// Fills slots with the known packets; `wall_ns` converts the writer's time to the time of day. Returns
    /// the number of filled slots.
    pub(crate) fn fill(&mut self, ring: &mut Ring, mut wall_ns: impl FnMut(u64) -> u64) -> u32 {
        let mut room = ring.backend_slots();
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

    /// Queues a source that has unread packets.
    #[inline]
    fn await_turn(&mut self, i: usize) {
        let next_ns = match self.sources.len() {
            // No other source to compare with.
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
            // SAFETY: the program does not own the slot, so the slot and its buffer belong to the backend.
            let buffer = unsafe { ring.buffer_unchecked(slot) };
            let bytes = buffer.len().min(captured_bytes as usize);
            // SAFETY: the cell has room for `snaplen` bytes from here on, and `header` has limited the
            // length to that. The cell is mapped; the buffer is other memory, with room for `bytes`. The
            // writer may store there meanwhile: no reference is made, and any bytes are a valid packet.
            unsafe { packet.as_ptr().copy_to_nonoverlapping(buffer.as_mut_ptr(), bytes) };
            ring.fill(slot, bytes as u16, false, meta);
        } else {
            *ring.meta_mut(slot) = meta;
            // SAFETY: the cell has room for `snaplen` bytes from here on, at most 65,535, and `header` has
            // limited the length to that. It stays mapped as long as the reader, which lives in one queue
            // with the ring. Only the kernel writes it, and not again before the reader publishes that it
            // is consumed: in the first sync after the slot was given back (`give_back`).
            unsafe { ring.point(slot, packet, captured_bytes as u16, false) };
        }
        source.held += 1;
        source.lost = lost;
    }

    /// Returns the writers' counters, summed over these rings.
    pub(crate) fn counts(&self) -> CellRingCounts {
        self.sources.iter().fold(CellRingCounts::default(), |sum, source| {
            // Pairs with the stores of `Writer::publish`, and with the program's plain stores.
            let count = |at| source.ring.counter(at).load(Ordering::Relaxed);
            CellRingCounts {
                matched: sum.matched + count(at::MATCHED),
                lost: sum.lost + count(at::LOST),
            }
        })
    }

    /// Asks the writers to wake the reader when a ring has `level` packets that were not given back, and at
    /// least one more than the known ones. Returns true if the reader may sleep, because no ring has
    /// reached that.
    pub(crate) fn go_to_sleep(&mut self, level: u32) -> bool {
        for source in &mut self.sources {
            source.wake_at = source.cursor.index(level.max(source.cursor.cached() + 1));
        }
        // Checked before the writers are asked: a wake-up costs them more than this check.
        if self.is_due() {
            return false;
        }
        self.wake.drain();
        self.asleep = true;
        for source in &self.sources {
            SleepFlag::of(&source.ring).set(source.wake_at);
        }
        // Pairs with the writer's fence between storing its index and checking the flag.
        fence(Ordering::SeqCst);
        if self.is_due() {
            return false;
        }
        if level > 1 || cfg!(not(target_arch = "x86_64")) {
            // On x86 a store may be seen late: with a level above 1, the next packet repeats the lost
            // wake-up. On other processors the program has a fence.
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

    /// Returns true if a writer has reached the index at which the reader wants to be woken. An invalid index,
    /// which [`look`](Self::look) ignores, is not due: it would keep the reader awake for ever.
    fn is_due(&self) -> bool {
        self.sources.iter().any(|source| {
            // Acquire: as in `Cursor::peek`.
            let produced = source.ring.word(at::PRODUCED).load(Ordering::Acquire);
            let ahead = |index: u32| index.wrapping_sub(source.cursor.index(0));
            (ahead(source.wake_at)..=self.cells()).contains(&ahead(produced))
        })
    }

    /// Tells the writers that they need not wake the reader any more.
    pub(crate) fn wake_up(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.sources.iter().for_each(|source| SleepFlag::of(&source.ring).clear());
        }
    }
}

impl AsFd for Reader {
    /// Returns the file that is readable when a writer has woken the reader.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl RingInput {
    /// Gives back the oldest `n` held cells.
    #[inline]
    fn give_back(&mut self, n: u32) {
        self.cursor.submit(self.ring.word(at::CONSUMED), n);
        self.held -= n;
    }

    #[inline]
    fn unread(&self) -> u32 {
        self.cursor.cached() - self.held
    }

    /// Returns the time of the next packet of a source that has one.
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
