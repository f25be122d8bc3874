//! The memory of a ring, and what both sides may do with it.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use super::Geometry;
use crate::error::{Error, Result};
use crate::memory::{Mmap, PAGE_BYTES};
use crate::ring::{AtomicU32, Direction};

/// "slumon" and the version of what follows.
const MAGIC: u64 = 0x736c_756d_6f6e_0001;

/// Where the parts stand.
mod at {
    pub const MAGIC: usize = 0;
    pub const CELLS: usize = 8;
    pub const SNAPLEN: usize = 12;
    pub const PRODUCED: usize = 128;
    pub const CONSUMED: usize = 256;
    pub const CLOSED: usize = 260;
    pub const OFFERED: usize = 384;
    pub const LOST: usize = 392;
    pub const ENDED: usize = 400;
    pub const FIRST_CELL: usize = 512;
}

/// What stands in front of a packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// Nanoseconds since 1970 (UTC).
    pub timestamp_ns: u64,
    pub wire_bytes: u32,
    pub captured_bytes: u32,
    /// All that the ring had lost by then.
    pub lost: u32,
    /// 1 in, 2 out.
    pub direction: u32,
}

const HEADER_BYTES: usize = size_of::<Header>();
const _: () = assert!(HEADER_BYTES == 24);
/// Cells begin on lines of their own.
const CELL_UNIT: usize = 64;

impl Header {
    pub fn of(direction: Direction) -> u32 {
        match direction {
            Direction::Unknown => 0,
            Direction::In => 1,
            Direction::Out => 2,
        }
    }

    pub fn direction(&self) -> Direction {
        match self.direction {
            1 => Direction::In,
            2 => Direction::Out,
            _ => Direction::Unknown,
        }
    }
}

impl Geometry {
    fn cell_bytes(&self) -> usize {
        (HEADER_BYTES + self.snaplen as usize).next_multiple_of(CELL_UNIT)
    }

    pub(super) fn bytes(&self) -> usize {
        at::FIRST_CELL + self.cells as usize * self.cell_bytes()
    }
}

/// A ring in memory that two processes have mapped.
#[derive(Debug)]
pub(super) struct Shared {
    map: Mmap,
    pub geometry: Geometry,
}

impl Shared {
    /// Makes a ring, and the file to hand on.
    pub fn make(geometry: Geometry) -> Result<(Self, OwnedFd)> {
        let (file, map) = Mmap::memfd(c"sluice-watch", geometry.bytes(), false)?;
        // SAFETY: the mapping is new, nobody else has it yet, and these places are in its first
        // page, aligned.
        unsafe {
            map.at(at::MAGIC).cast::<u64>().write(MAGIC);
            map.at(at::CELLS).cast::<u32>().write(geometry.cells);
            map.at(at::SNAPLEN).cast::<u32>().write(geometry.snaplen);
        }
        Ok((Self { map, geometry }, file))
    }

    /// Maps a ring that another process has made.
    ///
    /// # Errors
    /// It is none, or its memory could be taken away.
    pub fn of(file: &OwnedFd, object: &str) -> Result<Self> {
        let wrong = |reason: &str| {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidData, reason);
            Error::system("watch", object, source).remedy("both sides have to be of one version")
        };
        let failed = |error: nix::Error| Error::system("watch", object, error);
        let bytes = nix::sys::stat::fstat(file).map_err(failed)?.st_size;
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes >= PAGE_BYTES);
        let bytes = bytes.ok_or_else(|| wrong("a file too small for a ring"))?;
        let seals =
            SealFlag::from_bits_truncate(fcntl(file, FcntlArg::F_GET_SEALS).map_err(failed)?);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) {
            return Err(wrong("a file that may shrink"));
        }
        let map = Mmap::shared(file.as_fd(), bytes)
            .map_err(|error| Error::system("map the ring of", object, error))?;
        // SAFETY: the first page is mapped and cannot go, and these places are in it, aligned; who
        // made the ring writes them no more, and any bits are a number.
        let (magic, cells, snaplen) = unsafe {
            (
                map.at(at::MAGIC).cast::<u64>().read_volatile(),
                map.at(at::CELLS).cast::<u32>().read_volatile(),
                map.at(at::SNAPLEN).cast::<u32>().read_volatile(),
            )
        };
        let geometry = Geometry { cells, snaplen };
        if magic != MAGIC || Geometry::new(cells, snaplen)? != geometry || geometry.bytes() > bytes
        {
            return Err(wrong("a file that is no ring"));
        }
        Ok(Self { map, geometry })
    }

    pub fn produced(&self) -> &AtomicU32 {
        self.word(at::PRODUCED)
    }

    pub fn consumed(&self) -> &AtomicU32 {
        self.word(at::CONSUMED)
    }

    /// Not 0 when the reader wants no more.
    pub fn closed(&self) -> &AtomicU32 {
        self.word(at::CLOSED)
    }

    /// Not 0 when nothing more will be written.
    pub fn ended(&self) -> &AtomicU32 {
        self.word(at::ENDED)
    }

    /// Packets that were to be copied.
    pub fn offered(&self) -> &AtomicU64 {
        self.long(at::OFFERED)
    }

    /// Of these, those that found the ring full.
    pub fn lost(&self) -> &AtomicU64 {
        self.long(at::LOST)
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the place is in the first page of the mapping, which lives as long as `self`, and
        // aligned; both sides access it by atomic operations only.
        unsafe { self.map.at(at).cast().as_ref() }
    }

    fn long(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as in `word`.
        unsafe { self.map.at(at).cast().as_ref() }
    }

    fn cell(&self, index: u32) -> NonNull<u8> {
        let place = (index & (self.geometry.cells - 1)) as usize;
        self.map.at(at::FIRST_CELL + place * self.geometry.cell_bytes())
    }

    /// Writes a packet into a cell that is the writer's: as many of its bytes as are kept.
    #[inline]
    pub fn write<'a>(
        &self,
        index: u32,
        mut header: Header,
        segments: impl Iterator<Item = &'a [u8]>,
    ) {
        let cell = self.cell(index);
        let mut left = self.geometry.snaplen as usize;
        let mut to = cell.map_addr(|cell| cell.saturating_add(HEADER_BYTES));
        for segment in segments {
            let bytes = segment.len().min(left);
            // SAFETY: the cell has room for `snaplen` bytes behind its header, of which `left` are
            // still unwritten from `to` on. It is in the mapping; a reader that keeps to the
            // indices does not look at it now, and one that does not harms itself: no reference is
            // made to it here. The segment is borrowed and lies elsewhere.
            unsafe { std::ptr::copy_nonoverlapping(segment.as_ptr(), to.as_ptr(), bytes) };
            to = to.map_addr(|to| to.saturating_add(bytes));
            left -= bytes;
        }
        header.captured_bytes = self.geometry.snaplen - left as u32;
        // SAFETY: as above; cells begin on 64 bytes.
        unsafe { cell.cast::<Header>().write(header) };
    }

    /// What a cell holds that is the reader's: its header, with a length that the cell has, and where
    /// the packet is.
    #[inline]
    pub fn read(&self, index: u32) -> (Header, NonNull<u8>) {
        let cell = self.cell(index);
        // SAFETY: the cell is in the mapping and aligned, and any bits are numbers. The writer that
        // keeps to the indices does not write it now.
        let mut header = unsafe { cell.cast::<Header>().read_volatile() };
        header.captured_bytes = header.captured_bytes.min(self.geometry.snaplen);
        (header, cell.map_addr(|cell| cell.saturating_add(HEADER_BYTES)))
    }
}
