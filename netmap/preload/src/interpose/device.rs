//! open, ioctl, mmap.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_ulong, c_void};

use libc::{mode_t, off_t, size_t};
use nix::errno::Errno;

use super::answer;
use crate::{host, log, real, requests, table};

const DEVICE: &std::ffi::CStr = c"/dev/netmap";
/// The second byte of netmap's requests (`_IO('i', …)`). The kernel answers others for all files.
const REQUEST_TYPE: u32 = b'i' as u32;

/// Returns true if a path is netmap's device.
///
/// # Safety
/// `path` is null or ends with a NUL byte.
unsafe fn is_device(path: *const c_char) -> bool {
    // SAFETY: the caller's, and a text with its own NUL byte.
    !path.is_null() && unsafe { libc::strcmp(path, DEVICE.as_ptr()) } == 0
}

/// open(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's, here and below.
    unsafe { open64(path, flags, mode) }
}

/// open(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        if is_device(path) { answer(host::open(flags)) } else { real::open64(path, flags, mode) }
    }
}

/// openat(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn openat(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { openat64(folder, path, flags, mode) }
}

/// openat(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn openat64(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        if is_device(path) {
            answer(host::open(flags))
        } else {
            real::openat64(folder, path, flags, mode)
        }
    }
}

/// open(2) of programs that are compiled with checks.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { __open64_2(path, flags) }
}

/// open(2) of programs that are compiled with checks.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        if is_device(path) { answer(host::open(flags)) } else { real::__open64_2(path, flags) }
    }
}

/// openat(2) of programs that are compiled with checks.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __openat_2(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { __openat64_2(folder, path, flags) }
}

/// openat(2) of programs that are compiled with checks.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __openat64_2(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        if is_device(path) {
            answer(host::open(flags))
        } else {
            real::__openat64_2(folder, path, flags)
        }
    }
}

/// ioctl(2). The argument of a request without one is not looked at.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // Programs that have the request in an int pass it with its sign.
    let number = request as u32;
    match table::netmap(fd) {
        Some(file) if number >> 8 & 0xff == REQUEST_TYPE => {
            let result = file.ioctl(number, argument as u64);
            log::debug(|| {
                let request = requests::describe(number, argument as u64);
                format!("ioctl({fd}, {request}): {}", outcome(result))
            });
            answer(result.map(|()| 0))
        }
        // SAFETY: the caller's.
        _ => unsafe { real::ioctl(fd, request, argument) },
    }
}

fn outcome(result: Result<(), Errno>) -> String {
    result.map_or_else(|errno| errno.to_string(), |()| "done".into())
}

/// mmap(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mmap(
    at: *mut c_void,
    bytes: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    from: off_t,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { mmap64(at, bytes, access, flags, fd, from) }
}

/// mmap(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mmap64(
    at: *mut c_void,
    bytes: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    from: off_t,
) -> *mut c_void {
    let Some(file) = table::netmap(fd) else {
        // SAFETY: the caller's.
        return unsafe { real::mmap64(at, bytes, access, flags, fd, from) };
    };
    let region = file.region().and_then(|region| {
        let end = u64::try_from(from).ok().and_then(|from| from.checked_add(bytes as u64));
        if end.is_some_and(|end| end <= region.bytes) { Ok(region) } else { Err(Errno::EINVAL) }
    });
    match region {
        Ok(region) => {
            let memory = std::os::fd::AsRawFd::as_raw_fd(&*region.fd);
            // SAFETY: the caller's, and the engine's own memory file. The mapping outlives the descriptor.
            unsafe { real::mmap64(at, bytes, access, flags, memory, from) }
        }
        Err(errno) => {
            log::debug(|| format!("mmap({fd}) of {bytes} bytes from {from}: {errno}"));
            errno.set();
            libc::MAP_FAILED
        }
    }
}
