//! The buffer a file is read into, and in which packets stay where they are.
//!
//! ```text
//!   0            start              end                 capacity
//!   +-------------+------------------+----------------------+
//!   | behind us   | to be read       | room                 |
//!   +-------------+------------------+----------------------+
//! ```
//!
//! Slots of a ring may point at what is behind `start`. Those bytes keep their place and their
//! values until [`make_room`](Buffer::make_room) is allowed to move.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;

use sluicegate_base::error::Result;
use sluicegate_base::memory::Mmap;

/// Holds many ordinary packets and fits a processor's cache.
const INITIAL_BYTES: usize = 1 << 20;

/// Bytes on their way from a source to a parser. Positions are counted from the buffer's own
/// beginning.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Zeroed memory, reached through raw pointers only: a slot's pointer stays good whatever
    /// is borrowed here.
    memory: Mmap,
    start: usize,
    end: usize,
}

impl Buffer {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { memory: Mmap::anonymous(INITIAL_BYTES)?, start: 0, end: 0 })
    }

    /// Where the unread bytes begin.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// The bytes that are there and have not been consumed.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        self.bytes(self.start..self.end)
    }

    /// Bytes at a place where bytes have been read to.
    ///
    /// # Panics
    /// Beyond what has been read.
    #[inline]
    pub(super) fn bytes(&self, at: Range<usize>) -> &[u8] {
        assert!(at.start <= at.end && at.end <= self.end);
        // SAFETY: `end` never passes the mapping's size, and mapped memory is initialised. A
        // slice lives as long as `&self`. Only `&mut self` writes here or unmaps, except the
        // program through slots that point behind `start`; it does so between syncs, when
        // nobody holds a slice of this buffer (see `address`).
        unsafe {
            let start = self.memory.base().add(at.start);
            std::slice::from_raw_parts(start.as_ptr(), at.len())
        }
    }

    /// Bytes at a place to which no slot points yet, to be put right.
    ///
    /// # Panics
    /// Beyond what has been read.
    #[inline]
    pub(super) fn bytes_mut(&mut self, at: Range<usize>) -> &mut [u8] {
        assert!(at.start <= at.end && at.end <= self.end);
        // SAFETY: as in `bytes`; `&mut self` makes it the only access.
        unsafe {
            let start = self.memory.base().add(at.start);
            std::slice::from_raw_parts_mut(start.as_ptr(), at.len())
        }
    }

    /// The address of a position. Whoever keeps it beyond a call must see to it that
    /// `make_room` is not allowed to move as long as he does.
    #[inline]
    pub(super) fn address(&self, at: usize) -> NonNull<u8> {
        assert!(at <= self.end);
        // SAFETY: `at` is within the mapping, or one past its last byte.
        unsafe { self.memory.base().add(at) }
    }

    /// Steps over bytes.
    #[inline]
    pub(super) fn consume(&mut self, n: usize) {
        assert!(n <= self.end - self.start);
        self.start += n;
    }

    /// Sees to it that at least one byte more can be read, and `wanted` unread bytes in all fit.
    /// With `may_move` it moves them to the front and grows as needed; what is behind `start`
    /// is lost then. False if there is no room without moving.
    pub(super) fn make_room(&mut self, wanted: usize, may_move: bool) -> Result<bool> {
        let unread = self.end - self.start;
        let wanted = wanted.max(unread + 1);
        if !may_move {
            return Ok(self.start + wanted <= self.memory.bytes());
        }
        let from = self.address(self.start);
        if wanted > self.memory.bytes() {
            let larger = Mmap::anonymous(wanted.next_power_of_two())?;
            // SAFETY: `unread` bytes are readable at `from` and writable in the larger, new
            // mapping, which overlaps nothing.
            unsafe { from.copy_to_nonoverlapping(larger.base(), unread) };
            self.memory = larger;
        } else if self.start > 0 {
            // SAFETY: both ranges are within the mapping; `copy_to` lets them overlap.
            unsafe { from.copy_to(self.memory.base(), unread) };
        }
        self.start = 0;
        self.end = unread;
        Ok(true)
    }

    /// The room behind the bytes, to be read into; follow with [`filled`](Self::filled).
    pub(super) fn room(&mut self) -> &mut [u8] {
        // SAFETY: the range from `end` to the mapping's size is mapped and initialised; no slot
        // points into it, for slots point behind `start`; `&mut self` excludes slices of it.
        unsafe {
            let start = self.memory.base().add(self.end);
            std::slice::from_raw_parts_mut(start.as_ptr(), self.memory.bytes() - self.end)
        }
    }

    /// Says how many bytes were read into the room.
    pub(super) fn filled(&mut self, n: usize) {
        assert!(n <= self.memory.bytes() - self.end);
        self.end += n;
    }
}

/// The order of a number's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

/// Bytes and how far they have been read. Every call answers `None` where they run out.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    order: ByteOrder,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8], order: ByteOrder) -> Self {
        Self { rest: bytes, order }
    }

    /// What has not been read.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(super) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Option<u16> {
        let bytes = self.array()?;
        Some(match self.order {
            ByteOrder::Little => u16::from_le_bytes(bytes),
            ByteOrder::Big => u16::from_be_bytes(bytes),
        })
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Option<u32> {
        let bytes = self.array()?;
        Some(match self.order {
            ByteOrder::Little => u32::from_le_bytes(bytes),
            ByteOrder::Big => u32::from_be_bytes(bytes),
        })
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Option<u64> {
        let bytes = self.array()?;
        Some(match self.order {
            ByteOrder::Little => u64::from_le_bytes(bytes),
            ByteOrder::Big => u64::from_be_bytes(bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_in(buffer: &mut Buffer, bytes: &[u8]) {
        buffer.room()[..bytes.len()].copy_from_slice(bytes);
        buffer.filled(bytes.len());
    }

    #[test]
    fn bytes_behind_stay_put_until_moving_is_allowed() {
        let mut buffer = Buffer::new().unwrap();
        read_in(&mut buffer, b"seen, new");
        buffer.consume(6);
        let seen = buffer.address(0);
        assert!(buffer.make_room(100, false).unwrap());
        assert!(!buffer.make_room(INITIAL_BYTES, false).unwrap());
        assert_eq!(buffer.address(0), seen);
        assert_eq!(buffer.bytes(0..4), b"seen");
        assert!(buffer.make_room(INITIAL_BYTES, true).unwrap());
        assert_eq!((buffer.start(), buffer.unread()), (0, &b"new"[..]));
    }

    #[test]
    fn it_grows_to_what_is_wanted_and_keeps_what_is_unread() {
        let mut buffer = Buffer::new().unwrap();
        read_in(&mut buffer, b"..tail");
        buffer.consume(2);
        assert!(buffer.make_room(3 * INITIAL_BYTES, true).unwrap());
        assert_eq!(buffer.unread(), b"tail");
        assert!(buffer.room().len() >= 3 * INITIAL_BYTES - 4);
    }

    #[test]
    fn a_full_buffer_makes_room_for_one_byte_at_least() {
        let mut buffer = Buffer::new().unwrap();
        buffer.filled(INITIAL_BYTES);
        assert!(!buffer.make_room(1, false).unwrap());
        assert!(buffer.make_room(1, true).unwrap());
        assert!(!buffer.room().is_empty());
    }
}
