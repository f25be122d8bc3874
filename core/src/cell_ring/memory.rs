//! The memory of a ring, and the accesses of both sides.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use super::{CellGeometry, CellHeader, MAX_RING_BYTES, MAX_SNAPLEN, at, cell};
use crate::error::{Error, Result};
use sluicegate_base::memory::{Mmap, PAGE_BYTES};
use sluicegate_base::ring::AtomicU32;

/// "slumon" and the version of the layout.
const MAGIC: u64 = 0x736c_756d_6f6e_0002;

/// A ring in memory that both sides have mapped.
#[derive(Clone, Debug)]
pub(crate) struct CellRing {
    map: Arc<Mmap>,
    /// The offset of the ring in the mapping.
    start: usize,
    geometry: CellGeometry,
    cell_bytes: usize,
}

impl CellRing {
    /// Returns the ring that begins `start` bytes into a mapping.
    ///
    /// # Panics
    /// If the ring is not on a cache line or not within the mapping, or the number of cells is not a power
    /// of two.
    pub(crate) fn new(map: &Arc<Mmap>, start: usize, geometry: CellGeometry) -> Self {
        assert!(start.is_multiple_of(64) && geometry.cells.is_power_of_two());
        assert!(start as u64 + geometry.ring_bytes() <= map.bytes() as u64);
        let cell_bytes = geometry.cell_bytes() as usize;
        Self { map: Arc::clone(map), start, geometry, cell_bytes }
    }

    /// Makes a ring in a file that another process can map.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn in_file(geometry: CellGeometry) -> Result<(Self, OwnedFd)> {
        let (file, map) = Mmap::memfd(c"sluice-watch", geometry.ring_bytes() as usize, false)?;
        let ring = Self::new(&Arc::new(map), 0, geometry);
        // SAFETY: the mapping is new and used by nobody else, and these words are in its first page,
        // aligned.
        unsafe {
            ring.part(at::MAGIC).cast::<u64>().write(MAGIC);
            ring.part(at::CELL_COUNT).cast::<u32>().write(geometry.cells);
            ring.part(at::SNAPLEN).cast::<u32>().write(geometry.snaplen);
        }
        Ok((ring, file))
    }

    /// Maps a ring in a file that another process has made. `object` names the ring in error messages.
    ///
    /// # Errors
    /// The file is not a ring, or it may shrink.
    pub(crate) fn of_file(file: &OwnedFd, object: &str) -> Result<Self> {
        let wrong = |reason: &str| {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidData, reason);
            Error::system("watch", object, source).remedy("both sides have to be of one version")
        };
        let failed = |error: nix::Error| Error::system("watch", object, error);
        let bytes = nix::sys::stat::fstat(file).map_err(failed)?.st_size;
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes >= PAGE_BYTES);
        let bytes = bytes.ok_or_else(|| wrong("the file is too small for a ring"))?;
        let seals =
            SealFlag::from_bits_truncate(fcntl(file, FcntlArg::F_GET_SEALS).map_err(failed)?);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) {
            return Err(wrong("the file may shrink"));
        }
        let map = Mmap::shared(file.as_fd(), bytes)
            .map_err(|error| Error::system("map the ring of", object, error))?;
        let word = |at: i16| map.at(at as usize);
        // SAFETY: the first page is mapped and stays mapped, and these words are in it, aligned. The
        // process that made the ring does not write them any more, and every bit pattern is a valid number.
        let (magic, cells, snaplen) = unsafe {
            (
                word(at::MAGIC).cast::<u64>().read_volatile(),
                word(at::CELL_COUNT).cast::<u32>().read_volatile(),
                word(at::SNAPLEN).cast::<u32>().read_volatile(),
            )
        };
        let geometry = CellGeometry { cells, snaplen };
        let possible = cells.is_power_of_two() && (1..=MAX_SNAPLEN).contains(&snaplen);
        let most = MAX_RING_BYTES.min(bytes as u64);
        match magic == MAGIC && possible && geometry.ring_bytes() <= most {
            true => Ok(Self::new(&Arc::new(map), 0, geometry)),
            false => Err(wrong("the file is no ring")),
        }
    }

    pub(crate) fn geometry(&self) -> CellGeometry {
        self.geometry
    }

    /// Returns an index or a flag in the ring's header.
    #[inline]
    pub(crate) fn word(&self, at: i16) -> &AtomicU32 {
        // SAFETY: the word is in the ring's header, in the mapping that `self` keeps, and is aligned to 4.
        // Both sides access it as a whole, and this side only by atomic operations.
        unsafe { self.part(at).cast().as_ref() }
    }

    /// Returns a counter in the ring's header.
    pub(crate) fn counter(&self, at: i16) -> &AtomicU64 {
        // SAFETY: as in `word`, aligned to 8.
        unsafe { self.part(at).cast().as_ref() }
    }

    /// Returns the address of a word in the ring's header.
    #[inline]
    fn part(&self, at: i16) -> NonNull<u8> {
        let at = at as usize;
        assert!(at < at::CELLS as usize);
        self.map.at(self.start + at)
    }

    /// Returns the start of the cell at an index.
    #[inline]
    fn cell(&self, index: u32) -> NonNull<u8> {
        let number = (index & (self.geometry.cells - 1)) as usize;
        self.map.at(self.start + at::CELLS as usize + number * self.cell_bytes)
    }

    /// Reads the header of a cell that the reader owns, and limits its length to the cell's size.
    #[inline]
    pub(crate) fn header(&self, index: u32) -> CellHeader {
        // SAFETY: the cell is in the mapping and aligned to 8 (rings and cells have multiples of 64 bytes),
        // and every bit pattern is a valid header. A writer that obeys the indices does not write the cell
        // now.
        let mut header = unsafe { self.cell(index).cast::<CellHeader>().read_volatile() };
        header.captured_bytes = header.captured_bytes.min(self.geometry.snaplen);
        header
    }

    /// Reads the time from the header of a cell that the reader owns.
    #[inline]
    pub(crate) fn time_ns(&self, index: u32) -> u64 {
        // SAFETY: as in `header`; the time comes first.
        unsafe { self.cell(index).cast::<u64>().read_volatile() }
    }

    /// Returns the start of a cell's packet, which has room for `snaplen` bytes.
    #[inline]
    pub(crate) fn packet(&self, index: u32) -> NonNull<u8> {
        self.cell(index).map_addr(|cell| cell.saturating_add(cell::PACKET as usize))
    }

    /// Writes a packet, truncated to the snap length, into a cell that the writer owns.
    #[inline]
    pub(crate) fn write<'a>(
        &self,
        index: u32,
        mut header: CellHeader,
        segments: impl Iterator<Item = &'a [u8]>,
    ) {
        let mut left = self.geometry.snaplen as usize;
        let mut to = self.packet(index);
        for segment in segments {
            let bytes = segment.len().min(left);
            // SAFETY: the cell has room for `snaplen` bytes after its header, of which `left` from `to` on
            // are still unwritten. It is in the mapping. A reader that obeys the indices does not read it
            // now, and a reader that does not harms only itself: no reference to the cell is made here. The
            // segment is borrowed and lies elsewhere.
            unsafe { std::ptr::copy_nonoverlapping(segment.as_ptr(), to.as_ptr(), bytes) };
            to = to.map_addr(|to| to.saturating_add(bytes));
            left -= bytes;
        }
        header.captured_bytes = self.geometry.snaplen - left as u32;
        self.write_header(index, header);
    }

    /// Writes the header of a cell that the writer owns.
    #[inline]
    pub(crate) fn write_header(&self, index: u32, header: CellHeader) {
        // SAFETY: as in `write`; cells begin on 64 bytes.
        unsafe { self.cell(index).cast::<CellHeader>().write(header) };
    }
}
