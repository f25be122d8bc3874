//! A ring: the part that a program sees, in its region, and the engine's own cursors.
//!
//! ```text
//!   transmit:  hwcur <= rhead <= rtail      the program's slots: [head, tail)
//!              [hwcur, rhead) to be sent
//!   receive:   hwcur <= rhead <= rtail      [hwcur, rhead) released, to be filled again
//! ```
//!
//! The engine believes nothing in the region: a sync reads the program's cursors once, checks them against its
//! own, and checks each slot that it reads. Cursors that break the rules get netmap's answer: the sync has no effect, and
//! the ring is repaired ([`RingState::reinit`]).

use std::mem::{offset_of, size_of};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;

use super::region::{BUFFER_BYTES, RegionState};
use crate::abi::flags;
use crate::abi::structures::{RingHeader, Slot};

/// The fewest and the most slots of a ring.
pub(super) const SLOTS: std::ops::RangeInclusive<u32> = 8..=4096;

/// The direction of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the program.
    Transmit,
    /// To the program.
    Receive,
}

/// The first word of a slot, which is all that the engine reads of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotHead {
    pub(super) buffer: u32,
    pub(super) len: u16,
    pub(super) flags: u16,
}

impl SlotHead {
    #[inline]
    fn from_word(word: u64) -> Self {
        Self { buffer: word as u32, len: (word >> 32) as u16, flags: (word >> 48) as u16 }
    }

    #[inline]
    fn to_word(self) -> u64 {
        u64::from(self.buffer) | u64::from(self.len) << 32 | u64::from(self.flags) << 48
    }
}

const _: () = {
    assert!(cfg!(target_endian = "little"), "a slot's words are read as numbers");
    assert!(offset_of!(Slot, len) == 4 && offset_of!(Slot, flags) == 6);
};

/// The memory of a ring, as programs see it.
#[derive(Clone, Debug)]
pub(super) struct SharedRing {
    region: Arc<RegionState>,
    offset: usize,
    num_slots: u32,
}

impl SharedRing {
    /// Makes a ring in a region: with a buffer in each slot, or with empty slots.
    ///
    /// # Errors
    /// ENOMEM: no room or no buffers.
    pub(super) fn new(
        region: &Arc<RegionState>,
        (way, number): (Way, u16),
        num_slots: u32,
        with_buffers: bool,
    ) -> Result<Self, Errno> {
        let offset = region.take_ring(Self::bytes(num_slots))?;
        let buffers = match region.take_buffers(if with_buffers { num_slots as usize } else { 0 }) {
            Ok(buffers) => buffers,
            Err(errno) => {
                region.give_ring(offset, Self::bytes(num_slots));
                return Err(errno);
            }
        };
        let ring = Self { region: Arc::clone(region), offset, num_slots };
        let (_, buffers_at) = region.areas();
        region.memory.clear(offset, Self::bytes(num_slots));
        let distance = buffers_at as i64 - offset as i64;
        region.memory.write(offset + offset_of!(RingHeader, buf_ofs), &distance.to_ne_bytes());
        let dir = if way == Way::Transmit { 0 } else { 1 << 16 };
        for (field, value) in [
            (offset_of!(RingHeader, num_slots), num_slots),
            (offset_of!(RingHeader, nr_buf_size), BUFFER_BYTES),
            // `dir` is the upper half of this word.
            (offset_of!(RingHeader, ringid), u32::from(number) | dir),
        ] {
            ring.store(field, value);
        }
        for (i, buffer) in (0..).zip(buffers) {
            ring.set_slot(i, SlotHead { buffer, ..SlotHead::default() });
        }
        Ok(ring)
    }

    /// Returns the size of a ring.
    fn bytes(num_slots: u32) -> usize {
        size_of::<RingHeader>() + num_slots as usize * size_of::<Slot>()
    }

    /// Returns the offset of the ring in its region.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of slots.
    #[inline]
    pub(super) fn num_slots(&self) -> u32 {
        self.num_slots
    }

    /// Returns the region.
    #[inline]
    pub(super) fn region(&self) -> &Arc<RegionState> {
        &self.region
    }

    /// Reads a field of the header.
    #[inline]
    pub(super) fn load(&self, field: usize) -> u32 {
        self.region.memory.load(self.offset + field)
    }

    /// Writes a field of the header.
    #[inline]
    pub(super) fn store(&self, field: usize, value: u32) {
        self.region.memory.store(self.offset + field, value);
    }

    /// Writes the time of a sync.
    pub(super) fn store_time(&self, [seconds, microseconds]: [u64; 2]) {
        let at = self.offset + offset_of!(RingHeader, ts);
        // Relaxed: the time publishes nothing.
        self.region.memory.double_word(at).store(seconds, Ordering::Relaxed);
        self.region.memory.double_word(at + 8).store(microseconds, Ordering::Relaxed);
    }

    #[inline]
    fn slot_at(&self, index: u32) -> usize {
        debug_assert!(index < self.num_slots);
        self.offset + size_of::<RingHeader>() + index as usize * size_of::<Slot>()
    }

    /// Reads the first word of a slot.
    #[inline]
    pub(super) fn slot(&self, index: u32) -> SlotHead {
        // Relaxed: the cursors publish slots.
        let word = self.region.memory.double_word(self.slot_at(index)).load(Ordering::Relaxed);
        SlotHead::from_word(word)
    }

    /// Writes the first word of a slot.
    #[inline]
    pub(super) fn set_slot(&self, index: u32, slot: SlotHead) {
        self.region
            .memory
            .double_word(self.slot_at(index))
            .store(slot.to_word(), Ordering::Relaxed);
    }

    /// Copies a whole slot, with its pointer, to the slot of the same number in another ring. Returns its first
    /// word.
    #[inline]
    pub(super) fn pass_slot(&self, index: u32, to: &Self) -> SlotHead {
        let slot = self.slot(index);
        let (from_ptr, to_ptr) = (self.slot_at(index) + 8, to.slot_at(index) + 8);
        let ptr = self.region.memory.double_word(from_ptr).load(Ordering::Relaxed);
        to.set_slot(index, slot);
        to.region.memory.double_word(to_ptr).store(ptr, Ordering::Relaxed);
        slot
    }

    /// Frees the ring and the buffers in those of its slots that `owns` names.
    pub(super) fn free(&self, owns: impl Fn(u32) -> bool) {
        let buffers = (0..self.num_slots).filter(|&i| owns(i)).map(|i| self.slot(i).buffer);
        self.region.give_buffers(buffers);
        self.region.give_ring(self.offset, Self::bytes(self.num_slots));
    }
}

/// A ring and the engine's cursors of it.
#[derive(Clone, Debug)]
pub(super) struct RingState {
    pub(super) shared: SharedRing,
    pub(super) way: Way,
    /// The program's cursors at the last sync.
    pub(super) rhead: u32,
    pub(super) rcur: u32,
    /// The tail that the program has.
    pub(super) rtail: u32,
    /// The first slot that the port has not finished with: to be sent, or to be filled again.
    pub(super) hwcur: u32,
    /// The tail at the next publication.
    pub(super) hwtail: u32,
}

const HEAD: usize = offset_of!(RingHeader, head);
const CUR: usize = offset_of!(RingHeader, cur);
const TAIL: usize = offset_of!(RingHeader, tail);

impl RingState {
    /// Makes the state of a new ring: a transmit ring has room in all slots but one.
    pub(super) fn new(shared: SharedRing, way: Way) -> Self {
        let tail = if way == Way::Transmit { shared.num_slots() - 1 } else { 0 };
        shared.store(TAIL, tail);
        Self { shared, way, rhead: 0, rcur: 0, rtail: tail, hwcur: 0, hwtail: tail }
    }

    /// Returns the number of slots.
    #[inline]
    pub(super) fn num_slots(&self) -> u32 {
        self.shared.num_slots()
    }

    /// Returns the slot after this one.
    #[inline]
    pub(super) fn next(&self, index: u32) -> u32 {
        if index + 1 >= self.num_slots() { 0 } else { index + 1 }
    }

    /// Returns the slot before this one.
    #[inline]
    pub(super) fn before(&self, index: u32) -> u32 {
        if index == 0 { self.num_slots() - 1 } else { index - 1 }
    }

    /// Returns the number of steps from one slot to another.
    #[inline]
    pub(super) fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { to + self.num_slots() - from }
    }

    /// Returns the number of slots in a receive ring that may be filled: one always stays empty.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        self.num_slots() - 1 - self.distance(self.hwcur, self.hwtail)
    }

    /// Returns true if the program has slots that it has not seen, as it says itself now.
    #[inline]
    pub(super) fn shows_unseen(&self) -> bool {
        self.shared.load(CUR) != self.shared.load(TAIL)
    }

    /// Returns true if the program has moved its head since the last sync.
    #[inline]
    pub(super) fn is_moved(&self) -> bool {
        self.shared.load(HEAD) != self.rhead
    }

    /// Returns true if the program has slots that it has not seen, as of the last sync.
    #[inline]
    pub(super) fn has_unseen(&self) -> bool {
        self.rcur != self.rtail
    }

    /// Takes over the program's cursors. Returns false, without effect, if they break the rules: head between
    /// the last head and tail, cur between head and tail.
    #[inline]
    pub(super) fn prologue(&mut self) -> bool {
        let (head, cur) = (self.shared.load(HEAD), self.shared.load(CUR));
        let (first, last) = match self.way {
            Way::Transmit => (self.rhead, self.rtail),
            Way::Receive => (self.hwcur, self.hwtail),
        };
        let n = self.num_slots();
        let valid = head < n
            && cur < n
            && self.distance(first, head) <= self.distance(first, last)
            && self.distance(head, cur) <= self.distance(head, last);
        if !valid {
            return false;
        }
        if self.shared.load(TAIL) != self.rtail {
            self.shared.store(TAIL, self.rtail);
        }
        (self.rhead, self.rcur) = (head, cur);
        true
    }

    /// Shows the program the new tail.
    #[inline]
    pub(super) fn finalize(&mut self) {
        self.rtail = self.hwtail;
        self.shared.store(TAIL, self.rtail);
    }

    /// Repairs the ring after a program has broken its rules: removes invalid buffers and lengths from its slots,
    /// and sets its cursors to the engine's if one of them is outside the ring.
    pub(super) fn reinit(&mut self) {
        for i in 0..self.num_slots() {
            let slot = self.shared.slot(i);
            if self.shared.region().buffer(slot.buffer).is_none() {
                if slot.buffer != 0 || slot.len != 0 {
                    self.shared.set_slot(i, SlotHead { buffer: 0, len: 0, ..slot });
                }
            } else if u32::from(slot.len) > BUFFER_BYTES {
                self.shared.set_slot(i, SlotHead { len: 0, ..slot });
            }
        }
        let n = self.num_slots();
        if [HEAD, CUR, TAIL].iter().any(|&field| self.shared.load(field) >= n) {
            self.reset_cursors();
        }
    }

    /// Passes over the first invalid slot, so that the ring goes on. A transmit ring drops the packet that has it. A
    /// receive ring hands out the slots up to it, empty: only the program can put a buffer into it.
    pub(super) fn skip_invalid(&mut self) {
        if self.way == Way::Receive {
            return self.hand_out_invalid();
        }
        let (mut index, mut invalid) = (self.hwcur, false);
        while index != self.rhead {
            let (slot, at) = self.read(index);
            invalid |= at.is_none();
            let more = slot.flags & flags::MOREFRAG != 0;
            index = self.next(index);
            if invalid && !more {
                break;
            }
        }
        if invalid {
            self.hwcur = index;
            self.hwtail = self.before(index);
        }
    }

    /// Hands out a receive ring's next slots, empty, up to the first invalid one; one that has no room stays.
    fn hand_out_invalid(&mut self) {
        let mut index = self.hwtail;
        for _ in 0..self.room() {
            let slot = self.shared.slot(index);
            let next = self.next(index);
            if self.shared.region().buffer(slot.buffer).is_none() {
                self.shared.set_slot(index, SlotHead::default());
                self.hwtail = next;
                return;
            }
            // Part of a packet that the invalid slot has cut off.
            self.shared.set_slot(index, SlotHead { len: 0, flags: 0, ..slot });
            index = next;
        }
    }

    /// Sets the program's cursors to the engine's.
    fn reset_cursors(&mut self) {
        (self.rhead, self.rcur, self.rtail) = (self.hwcur, self.hwcur, self.hwtail);
        self.shared.store(HEAD, self.hwcur);
        self.shared.store(CUR, self.hwcur);
        self.shared.store(TAIL, self.hwtail);
    }

    /// Reads a slot, once. Without the offset of its buffer if this or the length is invalid.
    #[inline]
    pub(super) fn read(&self, index: u32) -> (SlotHead, Option<usize>) {
        let slot = self.shared.slot(index);
        let at = self.shared.region().buffer(slot.buffer);
        (slot, at.filter(|_| u32::from(slot.len) <= BUFFER_BYTES))
    }

    /// Reads a slot that is to be sent. None if its buffer or length is invalid.
    #[inline]
    pub(super) fn packet(&self, index: u32) -> Option<(SlotHead, usize)> {
        let (slot, at) = self.read(index);
        Some((slot, at?))
    }

    /// Swaps the buffers of this ring's packets with those of a transmit ring's room, and releases both slots.
    /// Returns their number.
    ///
    /// # Panics
    /// If the rings have different regions.
    pub(super) fn swap_to(&mut self, to: &mut Self) -> u32 {
        assert!(Arc::ptr_eq(self.shared.region(), to.shared.region()));
        let packets = self.distance(self.rhead, self.rtail);
        let n = packets.min(to.distance(to.rhead, to.rtail));
        for _ in 0..n {
            let (packet, room) = (self.shared.slot(self.rhead), to.shared.slot(to.rhead));
            // The upper byte of a switch's flags counts slots.
            let flags = packet.flags & flags::MOREFRAG | flags::BUF_CHANGED;
            to.shared.set_slot(to.rhead, SlotHead { flags, ..packet });
            self.shared.set_slot(self.rhead, SlotHead { flags: flags::BUF_CHANGED, ..room });
            (self.rhead, to.rhead) = (self.next(self.rhead), to.next(to.rhead));
        }
        for ring in [self, to] {
            ring.rcur = ring.rhead;
            ring.shared.store(HEAD, ring.rhead);
            ring.shared.store(CUR, ring.rhead);
        }
        n
    }

    /// Clears the marks of a slot that was sent: netmap's drivers do so, and programs count on it.
    #[inline]
    pub(super) fn clear_marks(&self, index: u32, slot: SlotHead) {
        let flags = slot.flags & !(flags::BUF_CHANGED | flags::REPORT);
        if flags != slot.flags {
            self.shared.set_slot(index, SlotHead { flags, ..slot });
        }
    }

    /// Writes a slot of a receive ring: `fill` gets the region and the offset of the slot's buffer. Returns false
    /// if the slot's buffer is invalid.
    #[inline]
    pub(super) fn fill_slot(
        &self,
        index: u32,
        (len, flags): (u16, u16),
        fill: impl FnOnce(&RegionState, usize),
    ) -> bool {
        let buffer = self.shared.slot(index).buffer;
        let Some(at) = self.shared.region().buffer(buffer) else { return false };
        fill(self.shared.region(), at);
        self.shared.set_slot(index, SlotHead { buffer, len, flags });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::region::RegionSize;

    fn ring(way: Way) -> RingState {
        let size = RegionSize { interfaces: 4096, rings: 8192, buffers: 100 };
        let region = Arc::new(RegionState::new(1, size, false).unwrap());
        RingState::new(SharedRing::new(&region, (way, 3), 10, true).unwrap(), way)
    }

    #[test]
    fn a_new_ring_is_as_programs_expect() {
        let tx = ring(Way::Transmit);
        let header = |field| tx.shared.load(field);
        assert_eq!([HEAD, CUR, TAIL].map(header), [0, 0, 9]);
        assert_eq!(header(offset_of!(RingHeader, num_slots)), 10);
        assert_eq!(header(offset_of!(RingHeader, nr_buf_size)), 2048);
        assert_eq!(header(offset_of!(RingHeader, ringid)), 3, "and dir 0 in its upper half");
        assert_eq!(tx.shared.slot(9), SlotHead { buffer: 11, len: 0, flags: 0 });
        let rx = ring(Way::Receive);
        assert_eq!(rx.shared.load(offset_of!(RingHeader, ringid)), 3 | 1 << 16);
        assert_eq!([HEAD, CUR, TAIL].map(|field| rx.shared.load(field)), [0, 0, 0]);
    }

    #[test]
    fn cursors_that_break_the_rules_are_refused_without_effect() {
        // First and last slot of the program, its head and cur.
        for (last, head, cur, valid, why) in [
            (9, 0, 0, true, "nothing new"),
            (9, 4, 6, true, "some, and some looked at"),
            (9, 9, 9, true, "all"),
            (9, 4, 3, false, "cur before head"),
            (9, 10, 10, false, "beyond the ring"),
            (9, 4, u32::MAX, false, "far beyond it"),
            (3, 2, 4, false, "cur beyond tail"),
            (3, 4, 4, false, "head beyond tail"),
            (3, 8, 9, false, "head before the last one"),
        ] {
            let mut tx = ring(Way::Transmit);
            (tx.hwtail, tx.rtail) = (last, last);
            tx.shared.store(TAIL, last);
            tx.shared.store(HEAD, head);
            tx.shared.store(CUR, cur);
            assert_eq!(tx.prologue(), valid, "{why}");
            assert_eq!((tx.rhead, tx.rcur), if valid { (head, cur) } else { (0, 0) }, "{why}");
        }
    }

    #[test]
    fn cursors_may_pass_the_rings_end() {
        let mut rx = ring(Way::Receive);
        (rx.hwcur, rx.rhead, rx.rcur, rx.rtail, rx.hwtail) = (8, 8, 8, 3, 3);
        for (head, cur, valid) in [(9, 2, true), (1, 3, true), (4, 4, false), (1, 9, false)] {
            rx.shared.store(HEAD, head);
            rx.shared.store(CUR, cur);
            assert_eq!(rx.prologue(), valid, "{head} {cur}");
        }
    }

    #[test]
    fn a_tail_that_a_program_overwrites_is_restored() {
        let mut tx = ring(Way::Transmit);
        tx.shared.store(TAIL, 77);
        assert!(tx.prologue());
        assert_eq!(tx.shared.load(TAIL), 9);
    }

    #[test]
    fn a_packet_with_an_invalid_slot_is_dropped_as_a_whole() {
        let mut tx = ring(Way::Transmit);
        for (i, (buffer, flags)) in
            (0..).zip([(2, flags::MOREFRAG), (0, flags::MOREFRAG), (4, 0), (0, 0)])
        {
            tx.shared.set_slot(i, SlotHead { buffer, len: 60, flags });
        }
        tx.rhead = 4;
        for expected in [3, 4, 4] {
            tx.skip_invalid();
            assert_eq!((tx.hwcur, tx.hwtail), (expected, expected - 1));
        }
    }

    #[test]
    fn an_invalid_slot_of_a_receive_ring_is_handed_out_empty_with_those_before_it() {
        let mut rx = ring(Way::Receive);
        let buffers = [2, 3, 0, 5].map(|buffer| SlotHead { buffer, len: 60, flags: 7 });
        (0..).zip(buffers).for_each(|(i, slot)| rx.shared.set_slot(i, slot));
        rx.skip_invalid();
        assert_eq!((rx.hwcur, rx.hwtail), (0, 3));
        let seen = [0, 1, 2, 3].map(|i| rx.shared.slot(i));
        let empty = |buffer| SlotHead { buffer, len: 0, flags: 0 };
        assert_eq!(seen, [empty(2), empty(3), empty(0), buffers[3]]);
        rx.hwtail = 9;
        rx.shared.set_slot(9, SlotHead { buffer: 0, len: 60, flags: 0 });
        rx.skip_invalid();
        assert_eq!(rx.hwtail, 9, "one slot stays empty");
    }

    #[test]
    fn a_broken_ring_is_repaired_as_netmap_does() {
        let mut tx = ring(Way::Transmit);
        let slots = [(1, 60), (100, 60), (5, 2049), (6, 2048)];
        for (i, (buffer, len)) in (0..).zip(slots) {
            tx.shared.set_slot(i, SlotHead { buffer, len, flags: 7 });
        }
        tx.shared.store(CUR, 5);
        tx.reinit();
        let seen = [0, 1, 2, 3].map(|i| (tx.shared.slot(i).buffer, tx.shared.slot(i).len));
        assert_eq!(seen, [(0, 0), (0, 0), (5, 0), (6, 2048)]);
        assert_eq!(tx.shared.load(CUR), 5, "a cursor within the ring stays");
        tx.shared.store(HEAD, 10);
        tx.reinit();
        assert_eq!([HEAD, CUR, TAIL].map(|field| tx.shared.load(field)), [0, 0, 9]);
    }
}
