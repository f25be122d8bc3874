//! Memory: mappings that unmap themselves, and the pool, a memory file of packet buffers of one size,
//! which other processes can share.
//!
//! ```text
//!   buffers × buffer bytes
//!   +-----+-----+-----+- - -+-----+
//!   |  0  |  1  |  2  |     | n-1 |
//!   +-----+-----+-----+- - -+-----+
//!     0 and 1 are reserved, as in netmap
//! ```
//!
//! A buffer is identified by its number. At any time it has exactly one holder: the free list, one slot
//! of one ring, the kernel (AF_XDP), or the caller of `take`. It moves by exchange; its
//! number is never copied. That makes `&mut` to a slot's bytes sound, and forwarding free of copies. Taking
//! and returning buffers locks a mutex: ports do that when they open and close, not per packet.
//!
//! Rings are not in the file, because a process that can write a slot can make it name any bytes.
//!
//! [`Mmap`] provides addresses, never slices: the module that shares the memory with the kernel or another
//! process proves when each byte may be read.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use crate::error::{Error, Result};

/// The unit of mappings.
pub const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// A region of memory, unmapped when dropped.
#[derive(Debug)]
pub struct Mmap {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: Mmap holds an address range, not references into it. Sending or sharing it moves no data; each
// access to its memory is an unsafe operation with its own proof.
unsafe impl Send for Mmap {}
// SAFETY: as above.
unsafe impl Sync for Mmap {}

impl Mmap {
    /// Maps private, zeroed memory without a file. The kernel allocates a page when it is first touched.
    pub fn anonymous(bytes: usize) -> Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::map(bytes, READ_WRITE, flags, -1, 0)
            .map_err(|e| Error::system("map", "anonymous memory", e))
    }

    /// Maps the first `bytes` bytes of the object `fd`, shared with its other users.
    pub fn shared(fd: BorrowedFd<'_>, bytes: usize) -> std::io::Result<Self> {
        Self::map(bytes, READ_WRITE, libc::MAP_SHARED, fd.as_raw_fd(), 0)
    }

    /// Maps `bytes` bytes of the object `fd`, from `offset` on, for reading only: a write there kills the
    /// process.
    pub fn read_only(
        fd: BorrowedFd<'_>,
        offset: libc::off64_t,
        bytes: usize,
    ) -> std::io::Result<Self> {
        Self::map(bytes, libc::PROT_READ, libc::MAP_SHARED, fd.as_raw_fd(), offset)
    }

    /// Maps as [`shared`](Self::shared) does, from `offset` on and with all pages populated at once. The
    /// object defines what `offset` means: for a socket it selects one of the rings.
    pub fn shared_at(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> std::io::Result<Self> {
        let offset = libc::off64_t::try_from(offset)
            .map_err(|_| std::io::Error::from_raw_os_error(libc::EOVERFLOW))?;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Self::map(bytes, READ_WRITE, flags, fd.as_raw_fd(), offset)
    }

    /// Makes a memory file of `bytes` bytes and maps it. With `huge`, its pages have 2 MiB if the system
    /// has reserved enough of them (`vm.nr_hugepages`), otherwise the ordinary size. The size is sealed: a
    /// process that has the file cannot shrink it under a mapping.
    pub fn memfd(name: &CStr, bytes: usize, huge: bool) -> Result<(OwnedFd, Self)> {
        if huge && let Ok(pair) = Self::memfd_with(name, bytes, libc::MFD_HUGETLB) {
            return Ok(pair);
        }
        Self::memfd_with(name, bytes, 0).map_err(|e| {
            let object = format!("{bytes} bytes of shared memory");
            match e.raw_os_error() {
                Some(libc::EFBIG) => Error::system("create", object, e).remedy(
                    "the limit of a file's size applies to shared memory too: ulimit -f unlimited",
                ),
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
        // SAFETY: the kernel has just returned `fd`, and nothing else owns it.
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
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use, and
        // the kernel checks the arguments.
        let base = unsafe { libc::mmap64(std::ptr::null_mut(), bytes, protection, flags, fd, at) };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        match NonNull::new(base.cast()) {
            Some(base) => Ok(Self { base, bytes }),
            None => Err(std::io::Error::from_raw_os_error(libc::ENOMEM)),
        }
    }

    /// Returns the address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the address `offset` bytes into the region; an offset beyond it is a bug of the caller.
    #[inline]
    pub fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.bytes);
        self.base.map_addr(|base| base.saturating_add(offset))
    }

    /// Returns the size of the region in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mmap {
    fn drop(&mut self) {
        // SAFETY: base and bytes describe a mapping that this value made and alone owns; the types built on
        // it keep it alive as long as they hold addresses into it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Buffers 0 and 1 are never handed out: 0 stands for "no buffer" (netmap's convention).
pub const RESERVED_BUFFERS: u32 = 2;

/// The largest pool: it fits an address space, and sizes below it do not overflow.
const MAX_BYTES: usize = 1 << 46;

/// The size of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Number of buffers that users can take.
    pub buffers: u32,
    /// Size of a buffer: a multiple of 64, and 2048 or 4096 if AF_XDP uses the pool.
    pub buffer_bytes: u32,
    /// Uses pages of 2 MiB if the system has enough.
    pub huge_pages: bool,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self { buffers: 4096, buffer_bytes: 2048, huge_pages: false }
    }
}

/// Packet buffers of one size.
#[derive(Debug)]
pub struct Pool {
    /// The file that `map` maps.
    fd: OwnedFd,
    map: Mmap,
    buffers: u32,
    buffer_bytes: u32,
    free: Mutex<Vec<u32>>,
}

impl Pool {
    /// Makes a pool.
    ///
    /// # Errors
    /// Not enough memory, or an invalid size.
    pub fn new(config: PoolConfig) -> Result<Arc<Self>> {
        let PoolConfig { buffers, buffer_bytes, huge_pages } = config;
        if buffer_bytes == 0 || buffer_bytes % 64 != 0 {
            let reason = format!("a buffer of {buffer_bytes} bytes: use a multiple of 64");
            return Err(Error::Usage(reason));
        }
        let buffers = buffers.saturating_add(RESERVED_BUFFERS);
        let bytes = (buffers as usize).checked_mul(buffer_bytes as usize);
        let Some(bytes) = bytes.filter(|&bytes| bytes <= MAX_BYTES) else {
            return Err(Error::Usage("the pool is larger than any memory: make it smaller".into()));
        };
        let (fd, map) = Mmap::memfd(c"sluice-pool", bytes, huge_pages)?;
        // Buffers are taken from the end: low numbers first, so a small user touches few pages.
        let free = Mutex::new((RESERVED_BUFFERS..buffers).rev().collect());
        Ok(Arc::new(Self { fd, map, buffers, buffer_bytes, free }))
    }

    /// Returns the size of a buffer.
    pub fn buffer_bytes(&self) -> u32 {
        self.buffer_bytes
    }

    /// Returns one more than the highest buffer number.
    pub fn buffers(&self) -> u32 {
        self.buffers
    }

    /// Returns the number of free buffers.
    pub fn free_buffers(&self) -> usize {
        self.free().len()
    }

    /// Returns the address of a buffer. Making the address is safe; using it needs the proof that the
    /// caller holds the buffer.
    #[inline]
    pub fn address(&self, buffer: u32) -> NonNull<u8> {
        debug_assert!(buffer < self.buffers);
        self.map.at(buffer as usize * self.buffer_bytes as usize)
    }

    /// Returns the size of the file.
    pub fn bytes(&self) -> usize {
        self.map.bytes()
    }

    /// Returns the file, to share the buffers with another process. Its size is sealed. A process that has
    /// the file can read and write every packet in the pool at any time.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes `n` buffers off the free list. The caller owns their bytes from now on.
    ///
    /// # Errors
    /// The pool has fewer free buffers.
    pub fn take(&self, n: usize) -> Result<Vec<u32>> {
        let mut free = self.free();
        let have = free.len();
        let Some(rest) = have.checked_sub(n) else {
            return Err(Error::Usage(format!(
                "the pool has {have} buffers left, {n} are needed: open the ports with \
                 Port::open_all, or set PoolConfig::buffers"
            )));
        };
        let mut taken = free.split_off(rest);
        taken.reverse();
        Ok(taken)
    }

    /// Returns buffers to the free list.
    ///
    /// # Safety
    /// The caller got each buffer from this pool, holds it alone, and does not use it any more: the next
    /// holder may write to it.
    #[allow(unsafe_code, reason = "the contract is the caller's")]
    pub unsafe fn give(&self, buffers: impl IntoIterator<Item = u32>) {
        self.free().extend(buffers);
    }

    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        // The list is consistent between any two statements that can panic.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Prefetches the cache line of an address that another CPU wrote, before this CPU reads it. Any address is
/// valid, because nothing is read.
#[inline]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_one_memory_file_see_the_same_bytes() {
        let (fd, first) = Mmap::memfd(c"sluice-test", 100, false).unwrap();
        let second = Mmap::shared(fd.as_fd(), first.bytes()).unwrap();
        assert_eq!(first.bytes(), PAGE_BYTES, "sizes are whole pages");
        // SAFETY: both mappings are one page long, and nothing else uses them.
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

    fn pool(buffers: u32) -> Arc<Pool> {
        Pool::new(PoolConfig { buffers, ..PoolConfig::default() }).unwrap()
    }

    #[test]
    fn a_buffer_is_with_one_holder_at_a_time() {
        let pool = pool(8);
        let first = pool.take(5).unwrap();
        let second = pool.take(3).unwrap();
        let mut all: Vec<u32> = first.iter().chain(&second).copied().collect();
        all.sort_unstable();
        assert_eq!(all, (2..10).collect::<Vec<_>>(), "0 and 1 are never handed out");
        assert!(pool.take(1).is_err());
        // SAFETY: just taken.
        unsafe { pool.give(first) };
        assert_eq!(pool.free_buffers(), 5);
    }

    #[test]
    fn buffers_do_not_overlap() {
        let pool = pool(4);
        let first = pool.address(0).as_ptr() as usize;
        assert_eq!(pool.address(3).as_ptr() as usize - first, 3 * 2048);
    }

    #[test]
    fn an_invalid_size_is_refused() {
        let config = PoolConfig { buffer_bytes: 100, ..PoolConfig::default() };
        assert!(Pool::new(config).unwrap_err().to_string().contains("multiple of 64"));
        let config = PoolConfig { buffers: u32::MAX, buffer_bytes: 1 << 20, huge_pages: false };
        let error = Pool::new(config).unwrap_err();
        assert!(error.to_string().contains("make it smaller"), "{error}");
    }
}
