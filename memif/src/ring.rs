//! Shared memory and its rings. The client supplies regions, as files. A ring is a header of two cache lines,
//! followed by the descriptors.
//!
//! ```text
//!   0    cookie  flags  head        64   tail        128   desc  desc  desc  …   2ⁿ of 16 bytes
//!   +--------+-------+------+- - - +------+- - - - -+------+------+------+- -+
//!   | u32    | u16   | u16  |      | u16  |         |      |      |      |   |
//!   +--------+-------+------+- - - +------+- - - - -+------+------+------+- -+
//!             the receiver's  the client's  the server's
//! ```
//!
//! Head and tail count up and wrap at 2¹⁶; the client stores head, the server tail. Descriptors in [tail,
//! head) belong to the server, the others to the client.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::stat::fstat;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use super::message::ProtocolError;
use sluicegate_base::error::Result;
use sluicegate_base::memory::Mmap;
use sluicegate_base::ring::{AtomicU16, Ordering};

/// Maximum of regions of a client: DPDK has one for each part of its heap.
pub(super) const MAX_REGIONS: u16 = 256;
/// Maximum total size of a client's regions.
const MAX_BYTES: u64 = 1 << 40;

/// A region, mapped by one end.
#[derive(Debug)]
pub(super) struct Region {
    map: Mmap,
    /// The size that the peer has sent; the mapping may be larger.
    bytes: u64,
}

/// All regions of a client; exactly one if this end is the client.
#[derive(Debug, Default)]
pub(super) struct Regions(Vec<Region>);

impl Region {
    /// Maps a client's region. It must be ordinary memory with a sealed size: a peer that could shrink
    /// it could kill this process when it reads a removed page (SIGBUS). `trusts` skips these checks.
    fn of_peer(file: OwnedFd, bytes: u64, trusts: bool) -> Result<Self, ProtocolError> {
        let breach = |reason: &str| ProtocolError(format!("memory region: {reason}"));
        if bytes == 0 || bytes > MAX_BYTES {
            return Err(breach("its size makes no sense"));
        }
        if !trusts {
            let seals = fcntl(&file, FcntlArg::F_GET_SEALS).unwrap_or(0);
            if !SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK) {
                return Err(breach("not sealed against shrinking (F_SEAL_SHRINK)"));
            }
            // Huge pages can run out later, which also kills the process.
            if !fstatfs(&file).is_ok_and(|it| it.filesystem_type() == TMPFS_MAGIC) {
                return Err(breach("not ordinary memory (memfd)"));
            }
        }
        match fstat(&file) {
            Ok(it) if it.st_size.cast_unsigned() >= bytes => {}
            _ => return Err(breach("smaller than was said")),
        }
        let map = Mmap::shared(file.as_fd(), bytes as usize)
            .map_err(|error| breach(&format!("cannot be mapped: {error}")))?;
        Ok(Self { map, bytes })
    }

    /// Returns the address of bytes; `None` if they are not entirely in the region.
    #[inline]
    fn locate(&self, offset: u32, bytes: u32) -> Option<NonNull<u8>> {
        let end = u64::from(offset) + u64::from(bytes);
        // An empty range at the very end has no address.
        (end <= self.bytes && u64::from(offset) < self.bytes).then(|| self.map.at(offset as usize))
    }
}

impl Regions {
    /// Creates a client's single region of new memory. Also returns the file that shares it.
    pub(super) fn own(bytes: usize) -> Result<(OwnedFd, Self)> {
        let (file, map) = Mmap::memfd(c"sluice-memif", bytes, false)?;
        let bytes = map.bytes() as u64;
        Ok((file, Self(vec![Region { map, bytes }])))
    }

    /// Adds the next region.
    pub(super) fn add(
        &mut self,
        index: u16,
        file: OwnedFd,
        bytes: u64,
        trusts: bool,
    ) -> Result<(), ProtocolError> {
        if usize::from(index) != self.0.len() || index >= MAX_REGIONS {
            return Err(ProtocolError(format!("region {index} out of turn")));
        }
        let all: u64 = self.0.iter().map(|region| region.bytes).sum();
        if all.saturating_add(bytes) > MAX_BYTES {
            return Err(ProtocolError("too much memory in all regions".into()));
        }
        self.0.push(Region::of_peer(file, bytes, trusts)?);
        Ok(())
    }

    /// Returns the address of bytes in a region; `None` if they do not exist.
    #[inline]
    pub(super) fn locate(&self, region: u16, offset: u32, bytes: u32) -> Option<NonNull<u8>> {
        self.0.get(usize::from(region))?.locate(offset, bytes)
    }
}

/// The first word of a ring's header.
const COOKIE: u32 = 0x3e3_1f20;
/// Flag: the receiver requests no wake-up.
const MASK_INT: u16 = 1;

const FLAGS_AT: usize = 4;
const HEAD_AT: usize = 6;
const TAIL_AT: usize = 64;
const DESCRIPTORS_AT: usize = 128;
const DESCRIPTOR_BYTES: usize = 16;
/// Flag: the packet continues in the next descriptor.
pub(super) const NEXT: u16 = 1;
/// Maximum of entries, as a power of two: more would make 16-bit indices ambiguous.
pub(super) const MAX_LOG2_ENTRIES: u8 = 14;

/// The position of a packet, of a part of one, or of room for one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// See [`NEXT`].
    pub flags: u16,
    pub region: u16,
    /// Bytes of the packet or the room.
    pub length: u32,
    /// The offset in the region.
    pub offset: u32,
    pub metadata: u32,
}

/// A ring's memory, accessed by one end.
#[derive(Debug)]
pub(crate) struct RingMemory {
    /// The memory of the ring and of its buffers; this keeps it mapped.
    regions: Arc<Regions>,
    base: NonNull<u8>,
    mask: u32,
    /// The buffers of a client's ring.
    own: Option<OwnBuffers>,
}

// SAFETY: the addresses point into memory that `regions` keeps mapped and that belongs to no thread.
unsafe impl Send for RingMemory {}

/// The consecutive buffers of a client's ring, one an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnBuffers {
    start: NonNull<u8>,
    /// The offset of the first buffer in the region.
    offset: u32,
    /// The size of a buffer.
    pub bytes: u32,
}

/// An entry's buffer: room for a packet, or a packet or a piece of one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Buffer {
    /// The address of `descriptor.length` bytes in a region; `None` if they are in no region.
    pub start: Option<NonNull<u8>>,
    pub descriptor: Descriptor,
}

impl OwnBuffers {
    /// Returns the buffer of an entry at a place in the ring.
    #[inline]
    pub(super) fn at(&self, place: usize) -> Buffer {
        let before = place as u32 * self.bytes;
        let start = self.start.map_addr(|start| start.saturating_add(before as usize));
        let offset = self.offset + before;
        let descriptor =
            Descriptor { flags: 0, region: 0, length: self.bytes, offset, metadata: 0 };
        Buffer { start: Some(start), descriptor }
    }
}

/// Returns the size of a ring in bytes.
pub(super) fn ring_bytes(log2_entries: u8) -> u32 {
    (DESCRIPTORS_AT + (DESCRIPTOR_BYTES << log2_entries)) as u32
}

impl RingMemory {
    /// Creates an empty ring in this client's region, and buffers of `buffer_bytes` from `buffers` on.
    pub(super) fn create(
        regions: &Arc<Regions>,
        offset: u32,
        log2_entries: u8,
        buffers: u32,
        buffer_bytes: u32,
    ) -> Self {
        let inside = |offset, bytes| {
            regions.locate(0, offset, bytes).expect("the region was made for its rings and buffers")
        };
        let start = inside(offset, ring_bytes(log2_entries));
        let first = inside(buffers, buffer_bytes << log2_entries);
        let own = OwnBuffers { start: first, offset: buffers, bytes: buffer_bytes };
        let ring = Self { own: Some(own), ..Self::at(regions, start, log2_entries) };
        // SAFETY: `start` has room for the header and is aligned (`at`); the region was just made,
        // and nobody else has it yet.
        unsafe { start.cast::<u32>().write_volatile(COOKIE) };
        ring.flags().store(MASK_INT, Ordering::Relaxed);
        ring
    }

    /// Opens a peer's ring, at a position that the peer has sent.
    pub(super) fn of_peer(
        regions: &Arc<Regions>,
        region: u16,
        offset: u32,
        log2_entries: u8,
    ) -> Result<Self, ProtocolError> {
        let breach = |reason: &str| ProtocolError(format!("ring: {reason}"));
        if log2_entries > MAX_LOG2_ENTRIES {
            return Err(breach("too many entries"));
        }
        if !offset.is_multiple_of(8) {
            return Err(breach("not aligned"));
        }
        let start = regions.locate(region, offset, ring_bytes(log2_entries));
        let start = start.ok_or_else(|| breach("not in a region"))?;
        // SAFETY: `locate` found the whole ring in the mapping. Volatile: the peer may write there.
        let cookie = unsafe { start.cast::<u32>().read_volatile() };
        if cookie != COOKIE {
            return Err(breach("no ring where it was said to be (cookie)"));
        }
        Ok(Self::at(regions, start, log2_entries))
    }

    fn at(regions: &Arc<Regions>, base: NonNull<u8>, log2_entries: u8) -> Self {
        // Descriptors are read as words of 8 bytes.
        assert!(base.cast::<u64>().is_aligned() && log2_entries <= MAX_LOG2_ENTRIES);
        Self { regions: Arc::clone(regions), base, mask: (1 << log2_entries) - 1, own: None }
    }

    /// Returns the buffers of a client's ring. A server uses the positions in the client's descriptors.
    #[inline]
    pub(super) fn own(&self) -> Option<OwnBuffers> {
        self.own
    }

    /// Returns the address of bytes in a region; `None` if they do not exist.
    #[inline]
    pub(super) fn locate(&self, region: u16, offset: u32, bytes: u32) -> Option<NonNull<u8>> {
        self.regions.locate(region, offset, bytes)
    }

    #[inline]
    fn index(&self, at: usize) -> &AtomicU16 {
        // SAFETY: the header lies in the mapping (`create`, `of_peer`), which lives as long as
        // `self`; the place is even, and both sides access it atomically only.
        unsafe { self.base.add(at).cast().as_ref() }
    }

    /// Returns the client's index.
    #[inline]
    pub(super) fn head(&self) -> &AtomicU16 {
        self.index(HEAD_AT)
    }

    /// Returns the server's index.
    #[inline]
    pub(super) fn tail(&self) -> &AtomicU16 {
        self.index(TAIL_AT)
    }

    #[inline]
    fn flags(&self) -> &AtomicU16 {
        self.index(FLAGS_AT)
    }

    /// Requests a wake-up of the receiver, or none. Relaxed: the receiver's fence orders it (see
    /// [`notifier`](super::notifier)).
    #[inline]
    pub(super) fn ask_for_wakeup(&self, wanted: bool) {
        self.flags().store(if wanted { 0 } else { MASK_INT }, Ordering::Relaxed);
    }

    /// True if the receiver requests a wake-up. Relaxed: as above.
    #[inline]
    pub(super) fn wants_wakeup(&self) -> bool {
        self.flags().load(Ordering::Relaxed) & MASK_INT == 0
    }

    /// Returns the number of entries.
    #[inline]
    pub(super) fn entries(&self) -> u32 {
        self.mask + 1
    }

    /// Returns the place of an index's entry in the ring.
    #[inline]
    pub(super) fn place(&self, index: u32) -> usize {
        (index & self.mask) as usize
    }

    /// Returns the address of a descriptor, as two words.
    #[inline]
    pub(super) fn words(&self, index: u32) -> NonNull<u64> {
        let at = DESCRIPTORS_AT + self.place(index) * DESCRIPTOR_BYTES;
        // SAFETY: the masked entry is in the ring, and so in the mapping; its offset is a multiple of 8, like
        // the base.
        unsafe { self.base.add(at).cast() }
    }

    /// Reads a descriptor once, so that later writes of the peer have no effect.
    #[inline]
    pub(super) fn read(&self, index: u32) -> Descriptor {
        let at = self.words(index);
        // SAFETY: both words of the entry lie in the mapping (`words`). Volatile: a peer that writes to an
        // entry of this end causes wrong numbers and nothing worse. A descriptor is integers without padding,
        // for which any bytes are a value.
        unsafe { std::mem::transmute([at.read_volatile(), at.add(1).read_volatile()]) }
    }

    /// Writes a descriptor.
    #[inline]
    pub(super) fn write(&self, index: u32, descriptor: Descriptor) {
        let at = self.words(index);
        // SAFETY: as in `read`.
        unsafe {
            let [first, second]: [u64; 2] = std::mem::transmute(descriptor);
            at.write_volatile(first);
            at.add(1).write_volatile(second);
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::unistd::ftruncate;

    use super::*;

    fn memfd(bytes: i64, seals: SealFlag) -> OwnedFd {
        let file = memfd_create(c"peer", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        file
    }

    #[test]
    fn memory_that_could_kill_us_is_refused() {
        let sealed = SealFlag::F_SEAL_SHRINK;
        let file = || tempfile::tempfile().unwrap().into();
        let rows: [(OwnedFd, u64, bool, Result<(), &str>); 9] = [
            (memfd(8192, sealed), 8192, false, Ok(())),
            (memfd(8192, sealed), 5000, false, Ok(())),
            (memfd(8192, sealed), 8193, false, Err("smaller than was said")),
            (memfd(8192, SealFlag::empty()), 8192, false, Err("not sealed")),
            (memfd(8192, SealFlag::empty()), 8192, true, Ok(())),
            (memfd(8192, sealed | SealFlag::F_SEAL_WRITE), 8192, false, Err("cannot be mapped")),
            (memfd(8192, sealed), 0, false, Err("makes no sense")),
            (memfd(8192, sealed), u64::MAX, true, Err("too much memory")),
            (file(), 4096, false, Err("not sealed")),
        ];
        for (file, bytes, trusts, expected) in rows {
            let mapped = Regions::default().add(0, file, bytes, trusts);
            match (mapped, expected) {
                (Ok(()), Ok(())) => {}
                (Err(ProtocolError(said)), Err(part)) => assert!(said.contains(part), "{said}"),
                (got, expected) => panic!("{got:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn regions_come_in_turn_and_not_without_end() {
        let mut regions = Regions::default();
        let add = |regions: &mut Regions, index, bytes| {
            regions.add(index, memfd(4096, SealFlag::F_SEAL_SHRINK), bytes, false)
        };
        assert!(add(&mut regions, 1, 4096).is_err());
        for index in 0..MAX_REGIONS {
            add(&mut regions, index, 4096).unwrap();
        }
        assert!(add(&mut regions, MAX_REGIONS, 4096).is_err());
        assert!(add(&mut regions, 0, 4096).is_err());
    }

    #[test]
    fn bytes_are_found_where_they_are_and_nowhere_else() {
        let (_, regions) = Regions::own(4096).unwrap();
        for (region, offset, bytes, found, why) in [
            (0, 0, 4096, true, "all of it"),
            (0, 0, 4097, false, "one more"),
            (0, 4095, 1, true, "the last"),
            (0, 4096, 0, false, "behind the last"),
            (0, u32::MAX, u32::MAX, false, "an overflow"),
            (1, 0, 1, false, "no such region"),
        ] {
            assert_eq!(regions.locate(region, offset, bytes).is_some(), found, "{why}");
        }
    }

    /// Compares with memif.h: memif_ring_t and memif_desc_t.
    #[test]
    fn a_ring_lies_in_memory_as_others_have_it() {
        let (file, regions) = Regions::own(ring_bytes(3) as usize).unwrap();
        let ring = RingMemory::create(&Arc::new(regions), 0, 3, 0, 1);
        ring.head().store(0x0102, Ordering::Relaxed);
        ring.tail().store(0x0304, Ordering::Relaxed);
        ring.ask_for_wakeup(true);
        let said = Descriptor { flags: NEXT, region: 2, length: 60, offset: 4096, metadata: 9 };
        ring.write(8 + 7, said);
        assert_eq!((ring.read(7), ring.entries()), (said, 8));
        let mut bytes = [0; 256];
        nix::sys::uio::pread(&file, &mut bytes, 0).unwrap();
        assert_eq!(bytes[..8], [0x20, 0x1f, 0xe3, 0x03, 0, 0, 2, 1]);
        assert_eq!(bytes[64..66], [4, 3]);
        assert_eq!(bytes[240..], [1, 0, 2, 0, 60, 0, 0, 0, 0, 16, 0, 0, 9, 0, 0, 0]);
        assert!(ring.wants_wakeup());
    }

    #[test]
    fn a_ring_that_is_none_is_refused() {
        let (_, regions) = Regions::own(8192).unwrap();
        let regions = Arc::new(regions);
        drop(RingMemory::create(&regions, 1024, 4, 4096, 64));
        for (region, offset, log2, part) in [
            (0, 1024, 4, ""),
            (0, 0, 4, "cookie"),
            (0, 1028, 4, "aligned"),
            (0, 1024, 15, "entries"),
            (0, 1024, 255, "entries"),
            (0, 1024, 9, "not in a region"),
            (1, 1024, 4, "not in a region"),
        ] {
            let made = RingMemory::of_peer(&regions, region, offset, log2);
            match made {
                Ok(_) => assert!(part.is_empty()),
                Err(ProtocolError(said)) => {
                    assert!(said.contains(part) && !part.is_empty(), "{said}")
                }
            }
        }
    }
}
