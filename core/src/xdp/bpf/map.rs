//! Maps: making one, its entries, and the sign in a map of sockets that an owner lives.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::object::{checked, info, opened};

/// Makes an empty map of sockets, XSKMAP, with `entries` places.
pub(crate) fn create_socket_map(name: &CStr, entries: u32) -> io::Result<OwnedFd> {
    // SAFETY: `name` is terminated and outlives the call; no options.
    opened(unsafe {
        libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_XSKMAP,
            name.as_ptr(),
            4,
            4,
            entries,
            std::ptr::null(),
        )
    })
}

/// Makes a map of one interface, DEVMAP, to redirect to: an interface of this thread's network
/// namespace. The kernel takes it out when it is removed.
pub(crate) fn create_interface_map(name: &CStr, interface: u32) -> io::Result<OwnedFd> {
    // SAFETY: `name` is terminated and outlives the call; no options.
    let map = opened(unsafe {
        libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_DEVMAP,
            name.as_ptr(),
            4,
            4,
            1,
            std::ptr::null(),
        )
    })?;
    write_entry(map.as_fd(), 0, &interface.to_ne_bytes(), Write::Any)?;
    Ok(map)
}

/// Makes an array that can be mapped, of `entries` values of zeros. Linux 5.5; values of more
/// than 4 MiB 5.15.
pub(crate) fn create_mapped_array(
    name: &CStr,
    value_bytes: u32,
    entries: u32,
) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    // SAFETY: `name` is terminated; it and `options`, which says its own size, outlive the call.
    opened(unsafe {
        libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_ARRAY,
            name.as_ptr(),
            4,
            value_bytes,
            entries,
            &raw const options,
        )
    })
}

/// Makes a ring buffer of so many bytes, a power of two of pages. Linux 5.8.
pub(crate) fn create_ring_buffer(name: &CStr, bytes: u32) -> io::Result<OwnedFd> {
    // SAFETY: `name` is terminated and outlives the call; no options.
    opened(unsafe {
        libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_RINGBUF,
            name.as_ptr(),
            0,
            0,
            bytes,
            std::ptr::null(),
        )
    })
}

/// Makes an empty array of maps that are like `inner`, with `entries` places.
pub(crate) fn create_map_of_maps(
    name: &CStr,
    inner: BorrowedFd<'_>,
    entries: u32,
) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
        inner_map_fd: inner.as_raw_fd().cast_unsigned(),
        ..Default::default()
    };
    // SAFETY: `name` is terminated; it and `options`, which says its own size, outlive the call.
    opened(unsafe {
        libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_ARRAY_OF_MAPS,
            name.as_ptr(),
            4,
            4,
            entries,
            &raw const options,
        )
    })
}

/// Makes an array of one value for each CPU, zeros.
pub(crate) fn create_per_cpu_value(name: &CStr, value_bytes: u32) -> io::Result<OwnedFd> {
    // SAFETY: `name` is terminated and outlives the call; no options.
    opened(unsafe {
        libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_PERCPU_ARRAY,
            name.as_ptr(),
            4,
            value_bytes,
            1,
            std::ptr::null(),
        )
    })
}

/// A hash table whose sizes are known, and that forgets what was not used for long when it is full.
#[derive(Debug)]
pub(crate) struct LruHash {
    fd: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
}

impl LruHash {
    /// Makes one with room for so many entries.
    pub(crate) fn create(
        name: &CStr,
        key_bytes: u32,
        value_bytes: u32,
        entries: u32,
    ) -> io::Result<Self> {
        // SAFETY: `name` is terminated and outlives the call; no options.
        let fd = opened(unsafe {
            libbpf_sys::bpf_map_create(
                libbpf_sys::BPF_MAP_TYPE_LRU_HASH,
                name.as_ptr(),
                key_bytes,
                value_bytes,
                entries,
                std::ptr::null(),
            )
        })?;
        Ok(Self { fd, key_bytes: key_bytes as usize, value_bytes: value_bytes as usize })
    }

    /// Writes an entry, whether or not it is there.
    ///
    /// # Panics
    /// If key or value are not as long as the table's.
    pub(crate) fn insert(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!((key.len(), value.len()), (self.key_bytes, self.value_bytes));
        let any = Write::Any as u64;
        let (fd, key, value) = (self.fd.as_raw_fd(), key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: key and value are as long as the kernel reads them.
        checked(unsafe { libbpf_sys::bpf_map_update_elem(fd, key, value, any) }).map(|_| ())
    }

    /// Takes an entry out; whether it was there.
    ///
    /// # Panics
    /// If the key is not as long as the table's.
    pub(crate) fn remove(&self, key: &[u8]) -> io::Result<bool> {
        assert_eq!(key.len(), self.key_bytes);
        let (fd, key) = (self.fd.as_raw_fd(), key.as_ptr().cast());
        // SAFETY: the key is as long as the kernel reads it.
        was_there(unsafe { libbpf_sys::bpf_map_delete_elem(fd, key) })
    }

    /// Takes all entries out that are there now.
    pub(crate) fn clear(&self) -> io::Result<()> {
        let (mut key, mut next) = (vec![0u8; self.key_bytes], vec![0u8; self.key_bytes]);
        let mut there = self.key_after(None, &mut key)?;
        while there {
            // Before it goes: behind one that is not there the kernel begins anew.
            there = self.key_after(Some(&key), &mut next)?;
            self.remove(&key)?;
            std::mem::swap(&mut key, &mut next);
        }
        Ok(())
    }

    /// Writes the key behind another to `next`, or the first; whether there is one.
    fn key_after(&self, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<bool> {
        assert!(key.is_none_or(|key| key.len() == self.key_bytes) && next.len() == self.key_bytes);
        let key = key.map_or(std::ptr::null(), <[u8]>::as_ptr).cast();
        let (fd, next) = (self.fd.as_raw_fd(), next.as_mut_ptr().cast());
        // SAFETY: both are as long as the kernel reads and writes; without a key it reads none.
        was_there(unsafe { libbpf_sys::bpf_map_get_next_key(fd, key, next) })
    }
}

impl AsFd for LruHash {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether there was such an entry.
fn was_there(status: i32) -> io::Result<bool> {
    match checked(status) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// How a map's entry is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Write {
    /// Whatever was there.
    Any = libbpf_sys::BPF_ANY as isize,
    /// Only where nothing is (`EEXIST` otherwise): the kernel decides who was first.
    New = libbpf_sys::BPF_NOEXIST as isize,
}

/// Puts a program or a socket, by its descriptor, into a map of such.
pub(crate) fn put(
    map: BorrowedFd<'_>,
    key: u32,
    value: &impl AsRawFd,
    write: Write,
) -> io::Result<()> {
    write_entry(map, key, &value.as_raw_fd().to_ne_bytes(), write)
}

/// Writes an entry of a map. `EINVAL` if its keys have not 4 bytes, its values not as many as
/// `value`, or each CPU has values of its own.
pub(crate) fn write_entry(
    map: BorrowedFd<'_>,
    key: u32,
    value: &[u8],
    write: Write,
) -> io::Result<()> {
    check_sizes(map, value.len())?;
    // SAFETY: key and value are as long as the map's, which is what the kernel reads where there is
    // one value for all CPUs.
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

/// Reads an entry of a map; none if there is none. `EINVAL` as in [`write_entry`].
pub(crate) fn read_entry(map: BorrowedFd<'_>, key: u32, value: &mut [u8]) -> io::Result<bool> {
    check_sizes(map, value.len())?;
    // SAFETY: key and value are as long as the map's, which is what the kernel reads and writes
    // where there is one value for all CPUs.
    let status = unsafe {
        libbpf_sys::bpf_map_lookup_elem(
            map.as_raw_fd(),
            (&raw const key).cast(),
            value.as_mut_ptr().cast(),
        )
    };
    was_there(status)
}

/// Whether a map's entries are read and written as a key of 4 bytes and a value of so many. Of a
/// map with values for each CPU the kernel copies one for every CPU there can be.
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

/// Takes an entry out of a map; that there is none is no error.
pub(crate) fn remove(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    if map_info(map)?.key_size != 4 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the key has 4 bytes, which is what the kernel reads.
    let status =
        unsafe { libbpf_sys::bpf_map_delete_elem(map.as_raw_fd(), (&raw const key).cast()) };
    was_there(status).map(|_| ())
}

/// Takes a socket out of a map of such, as [`remove`] does, for who may have given up its
/// privileges since it put it in: kernels before 5.19 answer no bpf(2) without CAP_BPF where
/// kernel.unprivileged_bpf_disabled is set (later ones ask for it where objects are made only).
/// Then the socket stays there until it is closed.
pub(crate) fn remove_socket(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    match remove(map, key) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
        other => other,
    }
}

/// A socket that receives nothing: a sign in a map that its owner lives.
pub(crate) fn token() -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this file descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // A ring of one entry: newer kernels (7.2 does, 6.18 does not) take no socket into a map
    // that could not receive.
    let entries = 1u32;
    // SAFETY: the value is a live integer of the size that is said; the kernel only reads it.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_RX_RING,
            (&raw const entries).cast(),
            size_of_val(&entries) as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
}

/// A map's number.
pub(crate) fn map_id(map: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(map_info(map)?.id)
}

/// A map's type, sizes and name.
pub(super) fn map_info(map: BorrowedFd<'_>) -> io::Result<libbpf_sys::bpf_map_info> {
    // SAFETY: a structure of numbers; its pointers are null.
    unsafe { info(map, libbpf_sys::bpf_map_info::default()) }
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
            // With room for more, should the check fail.
            let mut room = vec![0; 1 << 20];
            let value = &mut room[..bytes];
            let read = read_entry(map.as_fd(), 0, value);
            let written = write_entry(map.as_fd(), 0, value, Write::Any);
            assert_eq!((read.is_ok(), written.is_ok()), (fits, fits), "{sentence}");
        }
    }
}
