//! Reading copies where they lie: the cells of rings, as the slots of a [`Ring`].
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::turns::Turns;
use super::{Copies, WallClock, at, cell};
use crate::ring::cursor::Cursor;
use crate::ring::{AtomicU32, Direction, Meta, Ring, TimestampSource};

/// What is in front of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Header {
    pub monotonic_ns: u64,
    pub wire_bytes: u32,
    pub captured_bytes: u32,
    /// All that the ring had lost by then.
    pub lost: u32,
}

/// One ring being read.
#[derive(Debug)]
struct Source {
    number: u32,
    cursor: Cursor,
    /// Cells that stand in slots, and have not been given back.
    held: u32,
    /// What the ring had lost before the last packet that was read.
    lost: u32,
}

/// Slots one after the other whose cells are of one ring.
#[derive(Clone, Copy, Debug)]
struct Run {
    source: usize,
    slots: u32,
}

/// What packets were to be copied.
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
    copies: Arc<Copies>,
    sources: Vec<Source>,
    /// Those that have packets that are unread, and no others.
    turns: Turns,
    /// Packets that are unread, of all.
    unread: u32,
    /// Of the slots the program has, from the oldest on.
    runs: VecDeque<Run>,
    /// The ring's head when we last looked.
    head: u32,
}

impl Reader {
    /// Reads rings that nobody has read from, by their numbers.
    pub fn new(copies: &Arc<Copies>, rings: impl IntoIterator<Item = u32>) -> Self {
        Self::starting_at(copies, rings, 0)
    }

    /// The same for rings whose indices do not stand at 0.
    pub(super) fn starting_at(
        copies: &Arc<Copies>,
        rings: impl IntoIterator<Item = u32>,
        start: u32,
    ) -> Self {
        let geometry = copies.geometry();
        let known = rings.into_iter().filter(|&ring| ring < geometry.rings);
        let sources: Vec<Source> = known
            .map(|number| Source {
                number,
                cursor: Cursor::consuming(geometry.cells, start),
                held: 0,
                lost: 0,
            })
            .collect();
        let turns = Turns::new(sources.len(), geometry.stamped);
        let (copies, runs) = (Arc::clone(copies), VecDeque::new());
        Self { copies, sources, turns, unread: 0, runs, head: 0 }
    }

    /// Packets known to be there that stand in no slot yet.
    #[inline]
    pub fn unread(&self) -> u32 {
        self.unread
    }

    /// Looks what the program has written since the last look; how many packets are there now
    /// that stand in no slot yet.
    #[inline]
    pub fn look(&mut self) -> u32 {
        for i in 0..self.sources.len() {
            let source = &mut self.sources[i];
            let before = source.unread();
            let producer = index(&self.copies, source.number, at::PRODUCED);
            source.cursor.look(producer, u32::MAX);
            let there = source.unread();
            self.unread += there - before;
            if before == 0 && there > 0 {
                self.wait_turn(i);
            }
        }
        self.unread
    }

    /// From now on the program passes these rings by, as if it had not matched. What it is dealing
    /// with at this moment still comes.
    pub fn close(&self) {
        for source in &self.sources {
            // Alone: nothing is published by it.
            index(&self.copies, source.number, at::CLOSED).store(1, Ordering::Relaxed);
        }
    }

    /// Gives the cells back whose slots the program has released.
    pub fn give_back(&mut self, ring: &Ring) {
        let mut released = ring.distance(self.head, ring.head());
        self.head = ring.head();
        while let Some(run) = self.runs.front_mut().filter(|_| released > 0) {
            let n = released.min(run.slots);
            let source = &mut self.sources[run.source];
            let consumer = index(&self.copies, source.number, at::CONSUMED);
            source.cursor.hand_over(consumer, n);
            source.held -= n;
            released -= n;
            run.slots -= n;
            if run.slots == 0 {
                self.runs.pop_front();
            }
        }
    }

    /// Points slots at the packets that are known to be there. How many.
    pub fn fill(&mut self, ring: &mut Ring, clock: &mut WallClock) -> u32 {
        let mut room = ring.room();
        let mut tail = ring.tail();
        while room > 0
            && let Some(turn) = self.turns.take()
        {
            let i = turn.ring;
            let most = self.sources[i].unread().min(turn.packets).min(room);
            let mut slots = 0;
            let goes_on = |reader: &Self| match turn.until_ns {
                Some(until_ns) => reader.next_ns(i) <= until_ns,
                None => true,
            };
            while slots < most && (slots == 0 || goes_on(self)) {
                self.place(ring, tail, i, clock);
                tail = ring.next(tail);
                slots += 1;
            }
            room -= slots;
            self.unread -= slots;
            match self.runs.back_mut() {
                Some(run) if run.source == i => run.slots += slots,
                _ => self.runs.push_back(Run { source: i, slots }),
            }
            if self.sources[i].unread() > 0 {
                self.wait_turn(i);
            }
        }
        let filled = ring.distance(ring.tail(), tail);
        ring.publish(tail);
        filled
    }

    /// Has a source that has unread packets wait for its turn.
    #[inline]
    fn wait_turn(&mut self, i: usize) {
        let next_ns = match self.sources.len() {
            // There is none to compare it with.
            1 => 0,
            _ => self.next_ns(i),
        };
        self.turns.add(i, next_ns);
    }

    /// When a source's next packet came, which is there.
    #[inline]
    fn next_ns(&self, i: usize) -> u64 {
        let source = &self.sources[i];
        self.header(source.number, source.cursor.index(source.held)).monotonic_ns
    }

    /// Points a slot at a source's next packet, which is there.
    #[inline]
    fn place(&mut self, ring: &mut Ring, slot: u32, i: usize, clock: &mut WallClock) {
        let source = &self.sources[i];
        let (number, place) = (source.number, source.cursor.index(source.held));
        let header = self.header(number, place);
        let Header { monotonic_ns, wire_bytes, captured_bytes, lost } = header;
        // Whatever the header says: nothing beyond the cell is a packet.
        let captured = captured_bytes.min(self.copies.geometry().snaplen);
        let meta = ring.meta_mut(slot);
        *meta = Meta {
            wire_bytes: wire_bytes.max(captured),
            lost_before: lost.wrapping_sub(source.lost),
            direction: Direction::In,
            ..Meta::default()
        };
        if self.copies.geometry().stamped {
            meta.timestamp_ns = clock.wall_ns(monotonic_ns);
            meta.timestamp_source = TimestampSource::Software;
        }
        let packet = cell(&self.copies, number, place, cell::PACKET as usize);
        // SAFETY: the cell has room for `snaplen` bytes from here on, at most 65,535, and stays
        // mapped as long as the reader, which lives in one queue with the ring. The program has
        // written it and does not write it again until we publish that it is consumed, which is
        // in the first sync after the slot was given back (`give_back`).
        unsafe { ring.point(slot, packet, captured as u16, false) };
        let source = &mut self.sources[i];
        source.held += 1;
        source.lost = lost;
    }

    /// The header of a packet that is there and not given back.
    #[inline]
    fn header(&self, number: u32, place: u32) -> Header {
        let start = cell(&self.copies, number, place, 0);
        // SAFETY: the cell lies in the mapping and is aligned to 8 at least (rings and cells have
        // multiples of 64 bytes, from a page on). The index was published after it was written,
        // so nobody writes it now.
        unsafe {
            Header {
                monotonic_ns: start.add(cell::TIME as usize).cast().read(),
                wire_bytes: start.add(cell::WIRE_BYTES as usize).cast().read(),
                captured_bytes: start.add(cell::CAPTURED_BYTES as usize).cast().read(),
                lost: start.add(cell::LOST as usize).cast().read(),
            }
        }
    }

    /// What the program has counted at these rings.
    pub fn counts(&self) -> Counts {
        self.sources.iter().fold(Counts::default(), |sum, source| {
            let count = |at| counter(&self.copies, source.number, at);
            Counts { matched: sum.matched + count(at::MATCHED), lost: sum.lost + count(at::LOST) }
        })
    }
}

impl Source {
    #[inline]
    fn unread(&self) -> u32 {
        self.cursor.known() - self.held
    }
}

/// Where a ring begins, and there something.
#[inline]
fn place_in(copies: &Copies, ring: u32, offset: usize) -> NonNull<u8> {
    assert!(ring < copies.geometry.rings);
    copies.map.at(ring as usize * copies.geometry.ring_bytes() as usize + offset)
}

/// Where something stands in a cell, by the index of the packet in it.
#[inline]
fn cell(copies: &Copies, ring: u32, index: u32, offset: usize) -> NonNull<u8> {
    let number = index & (copies.geometry.cells - 1);
    let before = number as usize * copies.geometry.cell_bytes() as usize;
    place_in(copies, ring, at::CELLS as usize + before + offset)
}

/// One of a ring's words: an index, or the mark that it is closed.
#[inline]
fn index(copies: &Copies, ring: u32, at: i16) -> &AtomicU32 {
    // SAFETY: the word lies in the mapping, which `copies` keeps, and is aligned to 4; both sides
    // access it as a whole, and we as an atomic only.
    unsafe { place_in(copies, ring, at as usize).cast().as_ref() }
}

/// One of a ring's counters: exact, of some moment.
fn counter(copies: &Copies, ring: u32, at: i16) -> u64 {
    // SAFETY: as in `index`, aligned to 8.
    let counter: &AtomicU64 = unsafe { place_in(copies, ring, at as usize).cast().as_ref() };
    counter.load(Ordering::Relaxed)
}
