//! One end of a ring: its entries, their buffers, and the notification of the other end.

use std::os::fd::{AsFd, BorrowedFd};

use super::message::ProtocolError;
use super::notifier::Notifier;
use super::ring::{Buffer, Descriptor, NEXT, OwnBuffers, RingMemory};
use sluicegate_base::memory::prefetch;
use sluicegate_base::ring::cursor::Cursor;
use sluicegate_base::ring::{AtomicU16, Ordering};

/// Entries from the copied one to the prefetched one, whose cache lines the peer's CPU has.
pub(super) const AHEAD: u32 = 8;

/// One end of a ring in either direction.
#[derive(Debug)]
pub struct RingEnd {
    memory: RingMemory,
    notifier: Notifier,
    cursor: Cursor<AtomicU16>,
    /// For each place in the ring: true if a sent packet ends there.
    ends: Vec<bool>,
}

impl RingEnd {
    /// Creates the client's end of a new ring.
    pub(super) fn of_client(memory: RingMemory, notifier: Notifier) -> Self {
        let cursor = Cursor::producing(memory.entries(), 0);
        Self::new(memory, notifier, cursor)
    }

    /// Creates the server's end of a client's ring.
    pub(super) fn of_server(memory: RingMemory, notifier: Notifier) -> Self {
        // Relaxed: only this side stores its index.
        let start = memory.tail().load(Ordering::Relaxed).into();
        let cursor = Cursor::consuming(memory.entries(), start);
        Self::new(memory, notifier, cursor)
    }

    fn new(memory: RingMemory, notifier: Notifier, cursor: Cursor<AtomicU16>) -> Self {
        let ends = vec![false; memory.entries() as usize];
        Self { memory, notifier, cursor, ends }
    }

    /// Returns the buffers if this end is the client, which owns the memory: an entry always has the same
    /// buffer, whatever its descriptor contains.
    #[inline]
    pub(super) fn own(&self) -> Option<OwnBuffers> {
        self.memory.own()
    }

    /// Returns the number of entries of the ring.
    #[inline]
    pub(super) fn entries(&self) -> u32 {
        self.memory.entries()
    }

    /// Returns how many of `wanted` entries belong to this end. Reads the other side's index only if fewer
    /// are known.
    #[inline]
    pub fn peek(&mut self, wanted: u32) -> u32 {
        // The client stores the head, the server the tail.
        let other = if self.own().is_some() { self.memory.tail() } else { self.memory.head() };
        self.cursor.peek(other, wanted)
    }

    /// Returns the number of usable entries, up to `wanted`, and checks the other side's index.
    ///
    /// # Errors
    /// The other side's index is invalid.
    #[inline]
    pub(super) fn claim(&mut self, wanted: u32) -> Result<u32, ProtocolError> {
        let claimed = self.peek(wanted);
        if self.cursor.faults == 0 {
            return Ok(claimed);
        }
        let index = if self.own().is_some() { "tail" } else { "head" };
        Err(ProtocolError(format!("a ring's {index} is out of range")))
    }

    /// Returns the place in the ring of this end's entry `i`.
    #[inline]
    pub(super) fn place(&self, i: u32) -> usize {
        self.memory.place(self.cursor.index(i))
    }

    /// Returns the whole buffer of entry `i`, at a client.
    #[inline]
    fn own_buffer(&self, i: u32) -> Option<Buffer> {
        self.own().map(|own| own.at(self.place(i)))
    }

    /// Returns the room in this end's entry `i`. Reads the descriptor once.
    #[inline]
    pub(super) fn room(&self, i: u32) -> Buffer {
        let peers = || self.locate(self.memory.read(self.cursor.index(i)));
        self.own_buffer(i).unwrap_or_else(peers)
    }

    /// Returns the piece of a packet in this end's entry `i`. Reads the descriptor once. Always inlined, as are
    /// its users: a descriptor then stays in registers.
    #[inline(always)]
    pub(super) fn piece(&self, i: u32) -> Buffer {
        let descriptor = self.memory.read(self.cursor.index(i));
        let Some(Buffer { start, descriptor: own }) = self.own_buffer(i) else {
            let piece = self.locate(descriptor);
            let fits = descriptor.length <= u16::MAX.into();
            return Buffer { start: piece.start.filter(|_| fits), ..piece };
        };
        let fits = descriptor.length <= own.length;
        let descriptor = Descriptor { region: own.region, offset: own.offset, ..descriptor };
        Buffer { start: start.filter(|_| fits), descriptor }
    }

    #[inline]
    fn locate(&self, descriptor: Descriptor) -> Buffer {
        let Descriptor { region, length, offset, .. } = descriptor;
        Buffer { start: self.memory.locate(region, offset, length), descriptor }
    }

    /// Finds the rooms in the entries from `first` on, up to `end`, and prefetches them and later descriptors.
    #[inline]
    pub(super) fn find_rooms(&self, rooms: &mut [Buffer; AHEAD as usize], first: u32, end: u32) {
        // A cache line has four descriptors.
        for i in (first + AHEAD..end.min(first + 2 * AHEAD)).step_by(4) {
            prefetch(self.memory.words(self.cursor.index(i)).as_ptr().cast());
        }
        for (i, room) in (first..end).zip(rooms) {
            *room = self.room(i);
            if let Some(start) = room.start {
                prefetch(start.as_ptr());
            }
        }
    }

    /// Prefetches the descriptor of the piece in entry `i` if this end owns it.
    #[inline]
    pub(super) fn prefetch_piece(&self, i: u32) {
        if i < self.cursor.cached() {
            prefetch(self.memory.words(self.cursor.index(i)).as_ptr().cast());
        }
    }

    /// Returns the protocol error for a descriptor of bytes outside all regions.
    #[cold]
    pub(super) fn misplaced(&self, descriptor: Descriptor) -> ProtocolError {
        let Descriptor { region, length, offset, .. } = descriptor;
        ProtocolError(match self.own() {
            Some(OwnBuffers { bytes, .. }) => format!("{length} bytes in a buffer of {bytes}"),
            None => format!(
                "a packet of {length} bytes at {offset} in region {region}, which are not there"
            ),
        })
    }

    /// Marks the buffer of this end's entry `i` as filled with bytes of a packet, which ends there or
    /// continues in the next entry.
    #[inline]
    pub(super) fn fill(&mut self, i: u32, room: Descriptor, bytes: usize, ends: bool) {
        let flags = if ends { 0 } else { NEXT };
        let full = Descriptor { flags, length: bytes as u32, ..room };
        // A client's descriptor often has the length of a round ago. Not written, its cache line stays with
        // both CPUs.
        if self.own().is_none() || self.memory.read(self.cursor.index(i)) != full {
            self.memory.write(self.cursor.index(i), full);
        }
        let place = self.place(i);
        self.ends[place] = ends;
    }

    /// Marks the buffer of this end's entry `i` as empty, at a client. A server leaves this to the client.
    #[inline]
    pub(super) fn empty(&mut self, i: u32) {
        if let Some(own) = self.own_buffer(i) {
            self.memory.write(self.cursor.index(i), own.descriptor);
        }
    }

    /// Passes a client's empty buffers to the server for the first time.
    pub(super) fn offer(&mut self) {
        if self.own().is_some() {
            (0..self.entries()).for_each(|i| self.empty(i));
            self.submit(self.entries());
        }
    }

    /// Passes this end's first `n` entries to the other end.
    #[inline]
    pub(super) fn submit(&mut self, n: u32) {
        if n > 0 {
            let index = if self.own().is_some() { self.memory.head() } else { self.memory.tail() };
            self.cursor.submit(index, n);
        }
    }

    /// Passes this end's first `n` entries, which hold packets, to the other end, and wakes a sleeping
    /// receiver.
    #[inline]
    pub(super) fn publish(&mut self, n: u32) {
        if n > 0 {
            self.submit(n);
            self.notifier.ring(&self.memory);
        }
    }

    /// Returns the number of packets in entries that the other end still holds. It may have taken these
    /// packets already, because it returns entries later.
    pub fn in_flight(&mut self) -> u64 {
        let others = self.entries() - self.peek(u32::MAX);
        let ends = |back: &u32| self.ends[self.place(back.wrapping_neg())];
        (1..=others).filter(ends).count() as u64
    }

    /// Enables notifications: senders wake this end's receiver. The receiver may sleep only if the ring is
    /// still empty after this call.
    pub fn enable(&self) {
        self.notifier.enable(&self.memory);
    }

    /// Ends a wait: disables notifications and clears the event.
    pub fn disable(&self) {
        self.notifier.disable(&self.memory);
    }

    /// True if the event is set, so that it would wake a sleeper now.
    pub fn rings(&self) -> bool {
        self.notifier.rings()
    }
}

/// The event file: readable when this end's receiver is woken.
impl AsFd for RingEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}
