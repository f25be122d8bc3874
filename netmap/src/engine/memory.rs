//! The memory of a region: a memory file that programs map, and may write at any time.
//!
//! So no reference to its bytes exists. Words are accessed as atomics, packets are copied by address, and a
//! value is read once and checked before it is used.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::stat::fstat;
use sluicegate_base::memory::Mmap;

use super::Region;

/// A sealed memory file, mapped into this process.
#[derive(Debug)]
pub(super) struct RegionMemory {
    fd: Arc<OwnedFd>,
    map: Mmap,
}

/// Checks that a memory file has this size, and cannot shrink.
///
/// # Errors
/// EPROTO: it is too short, or can be shortened.
pub(crate) fn check_size(file: BorrowedFd<'_>, bytes: u64) -> Result<(), Errno> {
    let seals = fcntl(file, FcntlArg::F_GET_SEALS)?;
    let is_sealed = SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK);
    let is_long_enough = fstat(file)?.st_size as u64 >= bytes;
    if is_sealed && is_long_enough { Ok(()) } else { Err(Errno::EPROTO) }
}

impl RegionMemory {
    /// Makes a memory file of `bytes` bytes. Its pages are allocated when they are first written.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn new(bytes: usize) -> Result<Self, Errno> {
        let (fd, map) = Mmap::memfd(c"sluice-netmap", bytes, false).map_err(|_| Errno::ENOMEM)?;
        Ok(Self { fd: Arc::new(fd), map })
    }

    /// Maps a region as its program does.
    ///
    /// # Errors
    /// EPROTO: the file is too short, or can be shortened. ENOMEM.
    pub(super) fn map(region: &Region) -> Result<Self, Errno> {
        let bytes = usize::try_from(region.bytes).map_err(|_| Errno::ENOMEM)?;
        check_size(region.fd.as_fd(), region.bytes)?;
        let map = Mmap::shared(region.fd.as_fd(), bytes).map_err(|_| Errno::ENOMEM)?;
        Ok(Self { fd: Arc::clone(&region.fd), map })
    }

    /// Returns the file.
    pub(super) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Returns the size of the file.
    pub(super) fn bytes(&self) -> usize {
        self.map.bytes()
    }

    /// Returns the word at an offset, which is a multiple of 4.
    ///
    /// # Panics
    /// If the word is not within the region.
    #[inline]
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        let start = self.start(offset, 4);
        assert!(offset.is_multiple_of(4));
        // SAFETY: the word lies in the mapping, which `self` keeps, and is aligned, because the mapping begins
        // with a page. This process accesses it as an atomic only; other processes may write it at any time.
        unsafe { AtomicU32::from_ptr(start.cast()) }
    }

    /// Returns the double word at an offset, which is a multiple of 8.
    ///
    /// # Panics
    /// If it is not within the region.
    #[inline]
    pub(super) fn double_word(&self, offset: usize) -> &AtomicU64 {
        let start = self.start(offset, 8);
        assert!(offset.is_multiple_of(8));
        // SAFETY: as in `word`. Words of 4 bytes are never part of a double word.
        unsafe { AtomicU64::from_ptr(start.cast()) }
    }

    /// Copies bytes into the region.
    ///
    /// # Panics
    /// If the bytes do not fit.
    #[inline]
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.start(offset, bytes.len());
        // SAFETY: the target lies in the mapping; `bytes` is other memory, because no slice of the mapping exists.
        // A program may access the target meanwhile, and sees any bytes.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Copies bytes out of the region.
    ///
    /// # Panics
    /// If the region has fewer.
    #[inline]
    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.start(offset, bytes.len());
        // SAFETY: as in `write`. A program may write the source meanwhile: any bytes are valid.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Copies bytes to another region, or to another place in this one.
    ///
    /// # Panics
    /// If either region has fewer bytes.
    #[inline]
    pub(super) fn copy_to(&self, offset: usize, to: &Self, to_offset: usize, bytes: usize) {
        let (from, to) = (self.start(offset, bytes), to.start(to_offset, bytes));
        // SAFETY: both lie in their mappings, and may overlap if a program names one buffer twice. Programs may
        // access both meanwhile: any bytes are valid.
        unsafe { to.copy_from(from, bytes) };
    }

    /// Sets a range to zero.
    ///
    /// # Panics
    /// If it is not within the region.
    pub(super) fn clear(&self, offset: usize, bytes: usize) {
        let start = self.start(offset, bytes);
        // SAFETY: as in `write`.
        unsafe { start.write_bytes(0, bytes) };
    }

    /// Reads the first word of a structure's field.
    #[inline]
    pub(super) fn load(&self, offset: usize) -> u32 {
        // Acquire: pairs with the program's store of a cursor, after which it does not write the slots before it.
        self.word(offset).load(Ordering::Acquire)
    }

    /// Writes a field of 4 bytes.
    #[inline]
    pub(super) fn store(&self, offset: usize, value: u32) {
        // Release: pairs with the program's read of a cursor, and publishes the slots and bytes before it.
        self.word(offset).store(value, Ordering::Release);
    }

    /// Returns the address of a range.
    #[inline]
    fn start(&self, offset: usize, bytes: usize) -> *mut u8 {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.map.bytes());
        assert!(fits, "{bytes} bytes at {offset} of a region of {}", self.map.bytes());
        self.map.base().as_ptr().wrapping_add(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_in_and_out_and_between_regions() {
        let (one, other) = (RegionMemory::new(8192).unwrap(), RegionMemory::new(4096).unwrap());
        one.write(8188, b"wxyz");
        one.copy_to(8188, &other, 0, 4);
        let mut bytes = [0; 4];
        other.read(0, &mut bytes);
        assert_eq!(&bytes, b"wxyz");
        assert_eq!(other.load(0), u32::from_le_bytes(*b"wxyz"));
        other.clear(0, 2);
        assert_eq!(other.double_word(0).load(Ordering::Relaxed), 0x7a79_0000);
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095")]
    fn no_byte_beyond_the_end_is_touched() {
        RegionMemory::new(4096).unwrap().write(4095, b"no");
    }
}
