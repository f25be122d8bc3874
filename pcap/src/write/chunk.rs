//! A chunk: whole records in one buffer, to be written to a file.

use std::hint::black_box;

use super::block::BlockLayout;

/// Default size of a chunk: large enough that one system call per chunk costs nothing, small enough that its
/// bytes are still in the second-level cache when the kernel copies them.
pub(super) const CHUNK_BYTES: usize = 128 << 10;

/// Memory that a chunk beyond the first ones leaves to smaller allocations, whose failure aborts the process.
/// Chunks that took the last byte made captures abort under a limit of memory.
pub(super) const FREE_BYTES: usize = 4 << 20;

/// Whole records of one file layout, appended by an [`Encoder`](super::Encoder).
///
/// A chunk is reusable: [`clear`](Self::clear) keeps the memory.
#[derive(Clone, Debug)]
pub struct Chunk {
    layout: BlockLayout,
    /// Initialized once; the records are `bytes[..used]`.
    bytes: Vec<u8>,
    used: usize,
    capacity: usize,
    packets: u64,
    first_ns: u64,
    last_ns: u64,
    pub(super) ordered: bool,
}

impl Chunk {
    pub(super) fn new(layout: BlockLayout, capacity: usize) -> Self {
        Self::of(layout, vec![0; capacity])
    }

    /// Creates an empty chunk, whose memory the kernel has provided already; `None` if there is too little.
    pub(super) fn try_new(layout: BlockLayout, capacity: usize) -> Option<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(capacity).ok()?;
        // Apart from the chunk: as one, each chunk would stay a mapping of its own, whose number the kernel limits.
        let mut rest = Vec::<u8>::new();
        rest.try_reserve_exact(FREE_BYTES).ok()?;
        // Otherwise the compiler may leave the unused memory out.
        black_box(&rest);
        drop(rest);
        // Not zeros: the compiler may leave those to the kernel, which provides the memory later.
        bytes.resize(capacity, 1);
        Some(Self::of(layout, bytes))
    }

    fn of(layout: BlockLayout, bytes: Vec<u8>) -> Self {
        let capacity = bytes.len();
        Self {
            layout,
            bytes,
            used: 0,
            capacity,
            packets: 0,
            first_ns: u64::MAX,
            last_ns: 0,
            ordered: true,
        }
    }

    /// Returns the bytes of all records.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Returns the number of records.
    #[inline]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the time of the earliest record, in ns since 1970; `None` in an empty chunk.
    #[inline]
    pub fn first_ns(&self) -> Option<u64> {
        (self.packets > 0).then_some(self.first_ns)
    }

    /// Returns the time of the latest record, in ns since 1970; `None` in an empty chunk.
    #[inline]
    pub fn last_ns(&self) -> Option<u64> {
        (self.packets > 0).then_some(self.last_ns)
    }

    /// True if it holds no record.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// True if a record of `bytes` bytes can be appended. An empty chunk has room for any.
    #[inline]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.used + bytes <= self.capacity || self.used == 0
    }

    /// Removes the records and keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.used = 0;
        self.packets = 0;
        self.first_ns = u64::MAX;
        self.last_ns = 0;
        self.ordered = true;
    }

    /// Iterates over the records.
    pub fn records(&self) -> EncodedRecords<'_> {
        EncodedRecords::new(self.layout, self.bytes())
    }

    /// Returns the whole content as a piece to write.
    pub(super) fn piece(&self) -> Piece<'_> {
        Piece { bytes: self.bytes(), packets: self.packets, records: Some(self.layout) }
    }

    #[inline]
    pub(super) fn layout(&self) -> BlockLayout {
        self.layout
    }

    /// Reserves room for one more record, which the caller fills; `None` if the chunk is full. The room holds
    /// bytes of earlier records.
    #[inline]
    pub(super) fn append(&mut self, record_bytes: usize, timestamp_ns: u64) -> Option<&mut [u8]> {
        if !self.has_room(record_bytes) {
            return None;
        }
        self.packets += 1;
        self.ordered &= timestamp_ns >= self.last_ns;
        self.first_ns = self.first_ns.min(timestamp_ns);
        self.last_ns = self.last_ns.max(timestamp_ns);
        let start = self.used;
        self.used += record_bytes;
        if self.used > self.bytes.len() {
            self.grow();
        }
        Some(&mut self.bytes[start..start + record_bytes])
    }

    /// Copies a record from another chunk of the same layout; false without room.
    #[inline]
    pub(super) fn copy(&mut self, record: &EncodedRecord<'_>) -> bool {
        let Some(room) = self.append(record.bytes.len(), record.timestamp_ns) else {
            return false;
        };
        room.copy_from_slice(record.bytes);
        true
    }

    /// Copies all records of another chunk; false, without a change, if they do not fit.
    pub(super) fn copy_all(&mut self, other: &Self) -> bool {
        if !self.has_room(other.used) {
            return false;
        }
        for record in other.records() {
            // It fits, as all of them do.
            self.copy(&record);
        }
        true
    }

    /// Creates an empty chunk like this one, whose memory the kernel has provided already; `None` if there is too
    /// little.
    pub fn try_like(&self) -> Option<Self> {
        Self::try_new(self.layout, self.capacity)
    }

    /// Makes memory too short for another chunk like this one.
    #[cfg(test)]
    pub(super) fn exhaust(&mut self) {
        self.capacity = isize::MAX as usize;
    }

    /// Returns the bytes of memory that it occupies.
    pub(super) fn memory(&self) -> usize {
        self.bytes.len()
    }

    /// Returns true if a record larger than the chunk has grown it.
    pub(super) fn has_grown(&self) -> bool {
        self.bytes.len() > self.capacity
    }

    /// Grows the chunk for a single record larger than it.
    #[cold]
    fn grow(&mut self) {
        self.bytes.resize(self.used, 0);
    }
}

/// A record in a chunk.
#[derive(Clone, Copy, Debug)]
pub struct EncodedRecord<'a> {
    /// The whole record: header, packet, padding and options.
    pub bytes: &'a [u8],
    /// The packet's time, in ns since 1970; a whole number of microseconds if the file has no finer unit.
    pub timestamp_ns: u64,
}

/// The records of a chunk, first to last; see [`Chunk::records`].
#[derive(Clone, Debug)]
pub struct EncodedRecords<'a> {
    layout: BlockLayout,
    rest: &'a [u8],
}

impl<'a> EncodedRecords<'a> {
    #[inline]
    pub(super) fn new(layout: BlockLayout, bytes: &'a [u8]) -> Self {
        Self { layout, rest: bytes }
    }

    /// Returns the records not yet iterated over.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for EncodedRecords<'a> {
    type Item = EncodedRecord<'a>;

    #[inline]
    fn next(&mut self) -> Option<EncodedRecord<'a>> {
        let (bytes, timestamp_ns) = self.layout.first_record(self.rest)?;
        self.rest = &self.rest[bytes.len()..];
        Some(EncodedRecord { bytes, timestamp_ns })
    }
}

/// Bytes to write with one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub(super) bytes: &'a [u8],
    /// The packets in it.
    pub(super) packets: u64,
    /// The layout of its records, if it can be cut between them; `None` if it must be written whole.
    pub(super) records: Option<BlockLayout>,
}

impl<'a> Piece<'a> {
    /// Returns the time of the first record; `None` without records.
    pub(super) fn first_ns(&self) -> Option<u64> {
        Some(self.records?.first_record(self.bytes)?.1)
    }

    /// Returns the records, if it can be cut between them.
    pub(super) fn records(&self) -> Option<EncodedRecords<'a>> {
        Some(EncodedRecords { layout: self.records?, rest: self.bytes })
    }

    /// Cuts it after this many bytes and packets.
    pub(super) fn split(self, bytes: usize, packets: u64) -> (Self, Self) {
        let (now, later) = self.bytes.split_at(bytes);
        let piece = |bytes, packets| Self { bytes, packets, ..self };
        (piece(now, packets), piece(later, self.packets - packets))
    }

    /// Returns the bytes of the whole records within the first `bytes` bytes, and their number.
    pub(super) fn whole_in(&self, bytes: usize) -> (usize, u64) {
        if bytes == self.bytes.len() {
            return (bytes, self.packets);
        }
        let Some(layout) = self.records else { return (0, 0) };
        let mut records = EncodedRecords::new(layout, &self.bytes[..bytes]);
        let packets = records.by_ref().count() as u64;
        (bytes - records.rest().len(), packets)
    }
}
