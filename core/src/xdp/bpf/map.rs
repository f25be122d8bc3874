//! Maps: creating them, their entries, and memory shared with programs.

use std::ffi::CStr;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

use sluicegate_base::memory::{Mmap, PAGE_BYTES};

use super::{checked, info, opened, privileged};
use crate::error::Result;
use crate::raw_socket::RawSocket;

/// Creates a map. Sets the size of `options`.
fn create(
    kind: libbpf_sys::bpf_map_type,
    name: &CStr,
    (key_bytes, value_bytes): (u32, u32),
    entries: u32,
    options: libbpf_sys::bpf_map_create_opts,
) -> io::Result<OwnedFd> {
    let sz = size_of::<libbpf_sys::bpf_map_create_opts>() as u64;
    let options = libbpf_sys::bpf_map_create_opts { sz, ..options };
    // SAFETY: `name` is terminated; it and `options`, which contains its own size, outlive the call.
    opened(unsafe {
        libbpf_sys::bpf_map_create(
            kind,
            name.as_ptr(),
            key_bytes,
            value_bytes,
            entries,
            &raw const options,
        )
    })
}

/// Creates an empty map of AF_XDP sockets (XSKMAP).
pub(crate) fn create_socket_map(name: &CStr, entries: u32) -> io::Result<OwnedFd> {
    create(libbpf_sys::BPF_MAP_TYPE_XSKMAP, name, (4, 4), entries, Default::default())
}

/// Creates a map with one interface to redirect to (DEVMAP), an interface of this thread's network
/// namespace. The kernel removes the entry when the interface is removed.
pub(crate) fn create_interface_map(name: &CStr, interface: u32) -> io::Result<OwnedFd> {
    let map = create(libbpf_sys::BPF_MAP_TYPE_DEVMAP, name, (4, 4), 1, Default::default())?;
    write_entry(map.as_fd(), 0, &interface.to_ne_bytes(), Write::Any)?;
    Ok(map)
}

/// Creates an array of `entries` zeroed values that can be mapped. Linux 5.5; values larger than 4 MiB need
/// 5.15.
pub(crate) fn create_mapped_array(
    name: &CStr,
    value_bytes: u32,
    entries: u32,
) -> io::Result<OwnedFd> {
    let flags = libbpf_sys::BPF_F_MMAPABLE;
    let options = libbpf_sys::bpf_map_create_opts { map_flags: flags, ..Default::default() };
    create(libbpf_sys::BPF_MAP_TYPE_ARRAY, name, (4, value_bytes), entries, options)
}

/// Creates a BPF ring buffer of `bytes` bytes, a power-of-two number of pages. Linux 5.8.
pub(crate) fn create_ring_buffer(name: &CStr, bytes: u32) -> io::Result<OwnedFd> {
    create(libbpf_sys::BPF_MAP_TYPE_RINGBUF, name, (0, 0), bytes, Default::default())
}

/// Creates an empty array of maps with the type and sizes of `inner`.
pub(crate) fn create_map_of_maps(
    name: &CStr,
    inner: BorrowedFd<'_>,
    entries: u32,
) -> io::Result<OwnedFd> {
    let inner_map_fd = inner.as_raw_fd().cast_unsigned();
    let options = libbpf_sys::bpf_map_create_opts { inner_map_fd, ..Default::default() };
    create(libbpf_sys::BPF_MAP_TYPE_ARRAY_OF_MAPS, name, (4, 4), entries, options)
}

/// Creates an array of one zeroed value per CPU.
pub(crate) fn create_per_cpu_value(name: &CStr, value_bytes: u32) -> io::Result<OwnedFd> {
    let kind = libbpf_sys::BPF_MAP_TYPE_PERCPU_ARRAY;
    create(kind, name, (4, value_bytes), 1, Default::default())
}

/// Maps "no such entry" to false.
fn existed(status: i32) -> io::Result<bool> {
    match checked(status) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Condition for writing a map entry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Write {
    /// Replaces an existing entry.
    Any = libbpf_sys::BPF_ANY as isize,
    /// Fails with `EEXIST` if the entry exists: the kernel decides which of two writers is first.
    New = libbpf_sys::BPF_NOEXIST as isize,
}

/// Writes the descriptor of a program, socket or map into a map of such objects.
pub(crate) fn put(
    map: BorrowedFd<'_>,
    key: u32,
    value: &impl AsRawFd,
    write: Write,
) -> io::Result<()> {
    write_entry(map, key, &value.as_raw_fd().to_ne_bytes(), write)
}

/// Writes an entry of a map. `EINVAL` if its keys do not have 4 bytes, its values do not have the length of
/// `value`, or the map is per-CPU.
pub(crate) fn write_entry(
    map: BorrowedFd<'_>,
    key: u32,
    value: &[u8],
    write: Write,
) -> io::Result<()> {
    check_sizes(map, value.len())?;
    // SAFETY: key and value have the map's lengths, which the kernel reads for maps that are not per-CPU.
    checked(unsafe {
        libbpf_sys::bpf_map_update_elem(
            map.as_raw_fd(),
            (&raw const key).cast(),
            value.as_ptr().cast(),
            write as u64,
        )
    })
    .map(|_| ())
}

/// Reads an entry of a map; false if it does not exist. `EINVAL` as in [`write_entry`].
pub(crate) fn read_entry(map: BorrowedFd<'_>, key: u32, value: &mut [u8]) -> io::Result<bool> {
    check_sizes(map, value.len())?;
    // SAFETY: key and value have the map's lengths, which the kernel reads and writes for maps that are not
    // per-CPU.
    let status = unsafe {
        libbpf_sys::bpf_map_lookup_elem(
            map.as_raw_fd(),
            (&raw const key).cast(),
            value.as_mut_ptr().cast(),
        )
    };
    existed(status)
}

/// Rejects a map whose entries are not a key of 4 bytes and one value of `value_bytes`: for a per-CPU map
/// the kernel would copy one value for every possible CPU.
fn check_sizes(map: BorrowedFd<'_>, value_bytes: usize) -> io::Result<()> {
    let info = map_info(map)?;
    let per_cpu = matches!(
        info.type_,
        libbpf_sys::BPF_MAP_TYPE_PERCPU_ARRAY
            | libbpf_sys::BPF_MAP_TYPE_PERCPU_HASH
            | libbpf_sys::BPF_MAP_TYPE_LRU_PERCPU_HASH
            | libbpf_sys::BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE
    );
    match (info.key_size, info.value_size as usize) == (4, value_bytes) && !per_cpu {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Removes an entry of a map, if it exists.
pub(crate) fn remove(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    if map_info(map)?.key_size != 4 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the key has 4 bytes, which the kernel reads.
    let status =
        unsafe { libbpf_sys::bpf_map_delete_elem(map.as_raw_fd(), (&raw const key).cast()) };
    existed(status).map(|_| ())
}

/// Removes a socket, even for a process that has dropped its privileges. Kernels before 5.19 with
/// kernel.unprivileged_bpf_disabled refuse every bpf(2) without CAP_BPF. The socket then leaves the map
/// when it is closed.
pub(crate) fn remove_socket(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    match remove(map, key) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
        other => other,
    }
}

/// Opens a socket that receives nothing: its presence in a map shows that its owner is alive.
pub(crate) fn liveness_socket() -> io::Result<OwnedFd> {
    let socket = RawSocket::open(libc::AF_XDP)?;
    // Newer kernels (7.2, but not 6.18) accept only sockets with a receive ring into a map.
    socket.set(libc::SOL_XDP, libc::XDP_RX_RING, 1u32)?;
    Ok(socket.into())
}

/// Returns a map's id.
pub(crate) fn map_id(map: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(map_info(map)?.id)
}

/// Returns a map's type, sizes and name.
pub(super) fn map_info(map: BorrowedFd<'_>) -> io::Result<libbpf_sys::bpf_map_info> {
    // SAFETY: a structure of numbers; its pointers are null.
    unsafe { info(map, libbpf_sys::bpf_map_info::default()) }
}

/// Counters of 64 bits that a program and this process share: the mapped values of an array map.
pub struct SharedCounters {
    map: OwnedFd,
    memory: Mmap,
    words: usize,
}

impl SharedCounters {
    /// Creates counters with these initial values.
    ///
    /// # Errors
    /// The kernel has no memory for them, or a privilege is missing.
    pub fn new(words: &[u64]) -> Result<Self> {
        let counters = Self::zeros(words.len(), "live frames")?;
        for (index, &word) in words.iter().enumerate() {
            counters.set(index, word);
        }
        Ok(counters)
    }

    /// Creates `words` zeroed counters; errors name `purpose`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn zeros(words: usize, purpose: &str) -> Result<Self> {
        let failed =
            |error| privileged(error, "CAP_BPF and CAP_NET_ADMIN", "make a map for", purpose);
        let bytes = (words * 8).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let map = create_mapped_array(c"sluice_live", bytes as u32, 1).map_err(failed)?;
        Self::over(map, bytes / 8).map_err(failed)
    }

    /// Maps the first `words` counters of an existing array map, which has at least as many and BPF_F_MMAPABLE.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn over(map: OwnedFd, words: usize) -> io::Result<Self> {
        let bytes = (words * 8).next_multiple_of(PAGE_BYTES);
        let memory = Mmap::shared(map.as_fd(), bytes)?;
        Ok(Self { map, memory, words: bytes / 8 })
    }

    /// Reads a counter.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn get(&self, index: usize) -> u64 {
        // Pairs with the program's plain stores: each counter has one writer and publishes nothing.
        self.word(index).load(Ordering::Relaxed)
    }

    /// Writes a counter.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn set(&self, index: usize, number: u64) {
        // Pairs with the program's plain loads, as above.
        self.word(index).store(number, Ordering::Relaxed);
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "word {index} of {}", self.words);
        // SAFETY: the address is aligned and in the mapping, which lives as long as the result. This
        // process accesses it atomically, and the program by whole words.
        unsafe { AtomicU64::from_ptr(self.memory.at(index * 8).cast().as_ptr()) }
    }
}

impl AsFd for SharedCounters {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl fmt::Debug for SharedCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCounters").field("words", &self.words).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::tests;

    #[test]
    fn only_entries_of_one_value_of_the_right_size_are_read_and_written() {
        if !tests::is_root() {
            return;
        }
        let shared = create_mapped_array(c"test", 8, 1).unwrap();
        let each = create_per_cpu_value(c"test", 8).unwrap();
        for (map, bytes, fits, sentence) in [
            (&shared, 8, true, "one value for all"),
            (&shared, 4, false, "it would be written beyond its end"),
            (&shared, 16, false, "half of it would be anything"),
            (&each, 8, false, "the kernel copies as many values as there are CPUs"),
        ] {
            // Larger than needed, in case the check fails.
            let mut room = vec![0; 1 << 20];
            let value = &mut room[..bytes];
            let read = read_entry(map.as_fd(), 0, value);
            let written = write_entry(map.as_fd(), 0, value, Write::Any);
            assert_eq!((read.is_ok(), written.is_ok()), (fits, fits), "{sentence}");
        }
    }
}
