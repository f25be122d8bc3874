//! A mapping that unmaps itself.
//!
//! [`Mmap`] gives addresses, never slices: the module that shares the memory with the kernel or another
//! process proves when each byte may be read.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use crate::error::{Error, Result};

/// The unit mappings are made in.
pub const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// A region of memory, unmapped when dropped.
#[derive(Debug)]
pub struct Mmap {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: Mmap holds an address range, not references into it. Sending or sharing it moves
// no data; each access to the memory behind it is an unsafe operation with its own proof.
unsafe impl Send for Mmap {}
// SAFETY: as above.
unsafe impl Sync for Mmap {}

impl Mmap {
    /// Private memory, zeroed, backed by nothing; pages come into being when touched.
    pub fn anonymous(bytes: usize) -> Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::map(bytes, READ_WRITE, flags, -1, 0)
            .map_err(|e| Error::system("map", "anonymous memory", e))
    }

    /// `bytes` bytes of what `fd` stands for, from its start, shared with the others who map it.
    pub fn shared(fd: BorrowedFd<'_>, bytes: usize) -> std::io::Result<Self> {
        Self::map(bytes, READ_WRITE, libc::MAP_SHARED, fd.as_raw_fd(), 0)
    }

    /// `bytes` bytes of what `fd` stands for, from `offset` on, to be read only: a write there would
    /// kill.
    pub fn read_only(
        fd: BorrowedFd<'_>,
        offset: libc::off64_t,
        bytes: usize,
    ) -> std::io::Result<Self> {
        Self::map(bytes, libc::PROT_READ, libc::MAP_SHARED, fd.as_raw_fd(), offset)
    }

    /// As [`shared`](Self::shared), from `offset` on and with all pages in place at once. What
    /// `offset` means is the file's to say: for a socket it names one of its rings.
    pub fn shared_at(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> std::io::Result<Self> {
        let offset = libc::off64_t::try_from(offset)
            .map_err(|_| std::io::Error::from_raw_os_error(libc::EOVERFLOW))?;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Self::map(bytes, READ_WRITE, flags, fd.as_raw_fd(), offset)
    }

    /// A new memory file of `bytes` bytes and its mapping. With `huge`, pages of 2 MiB where
    /// the system has enough of them set aside (`vm.nr_hugepages`), ordinary ones otherwise. Its
    /// size is sealed: nobody who has the file can take memory away under a mapping.
    pub fn memfd(name: &CStr, bytes: usize, huge: bool) -> Result<(OwnedFd, Self)> {
        if huge && let Ok(pair) = Self::memfd_with(name, bytes, libc::MFD_HUGETLB) {
            return Ok(pair);
        }
        Self::memfd_with(name, bytes, 0).map_err(|e| {
            let object = format!("{bytes} bytes of shared memory");
            match e.raw_os_error() {
                Some(libc::EFBIG) => Error::system("create", object, e)
                    .remedy("the limit of a file's size holds for it: ulimit -f unlimited"),
                _ => Error::system("create", object, e),
            }
        })
    }

    fn memfd_with(name: &CStr, bytes: usize, flags: u32) -> std::io::Result<(OwnedFd, Self)> {
        let unit = if flags & libc::MFD_HUGETLB == 0 { PAGE_BYTES } else { HUGE_PAGE_BYTES };
        let bytes = bytes.next_multiple_of(unit);
        // SAFETY: `name` is a terminated string that outlives the call.
        let fd = unsafe {
            libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags)
        };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: `fd` was just returned by the kernel and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        nix::unistd::ftruncate(&fd, bytes as i64)?;
        let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(size))?;
        let map = Self::shared(fd.as_fd(), bytes)?;
        Ok((fd, map))
    }

    fn map(
        bytes: usize,
        protection: i32,
        flags: i32,
        fd: i32,
        at: libc::off64_t,
    ) -> std::io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is
        // in use; the arguments are checked by the kernel.
        let base = unsafe { libc::mmap64(std::ptr::null_mut(), bytes, protection, flags, fd, at) };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        match NonNull::new(base.cast()) {
            Some(base) => Ok(Self { base, bytes }),
            None => Err(std::io::Error::from_raw_os_error(libc::ENOMEM)),
        }
    }

    /// The first byte's address.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The address `offset` bytes into the region; an offset beyond it is a bug of the caller.
    #[inline]
    pub fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.bytes);
        self.base.map_addr(|base| base.saturating_add(offset))
    }

    /// The region's size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mmap {
    fn drop(&mut self) {
        // SAFETY: base and bytes are those of a mapping this value made and alone owns; the
        // types built on it keep it alive as long as they hold addresses into it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_one_memory_file_see_the_same_bytes() {
        let (fd, first) = Mmap::memfd(c"sluice-test", 100, false).unwrap();
        let second = Mmap::shared(fd.as_fd(), first.bytes()).unwrap();
        assert_eq!(first.bytes(), PAGE_BYTES, "sizes are whole pages");
        // SAFETY: both mappings are one page long and nobody else knows them.
        let seen = unsafe {
            first.base().as_ptr().add(99).write_volatile(7);
            second.base().as_ptr().add(99).read_volatile()
        };
        assert_eq!(seen, 7);
    }

    #[test]
    fn nobody_changes_the_size_of_a_memory_file() {
        let (fd, _) = Mmap::memfd(c"sluice-test", 8192, false).unwrap();
        for bytes in [0, 4096, 16384] {
            assert_eq!(nix::unistd::ftruncate(&fd, bytes), Err(nix::Error::EPERM), "{bytes}");
        }
    }
}
