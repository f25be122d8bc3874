//! close, dup, fcntl: the table follows the program's descriptors.
//!
//! A child of vfork shares the table with its parent, but not the descriptors: its calls change nothing.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_uint};

use nix::errno::Errno;

use crate::table::{self, Handle};
use crate::{ownership, real};

/// Returns true if a call on this descriptor concerns the table.
fn is_tracked(fd: c_int) -> bool {
    table::has(fd) && ownership::is_this_process()
}

/// Makes a new descriptor lead where its original does. The new descriptor is closed if it cannot.
fn follow(from: c_int, copy: c_int) -> c_int {
    if copy < 0 || !is_tracked(from) {
        return copy;
    }
    let Some(handle) = table::get(from) else { return copy };
    match table::put(copy, handle) {
        Ok(()) => copy,
        Err(errno) => {
            // SAFETY: a new descriptor that nobody else knows.
            unsafe { real::close(copy) };
            errno.set();
            -1
        }
    }
}

/// close(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // Before the kernel gives the number to another thread.
    let closed = if is_tracked(fd) { table::remove(fd) } else { None };
    // SAFETY: the caller's.
    let result = unsafe { real::close(fd) };
    drop_keeping_errno(closed);
    result
}

/// Drops a reference, which may close a port, without a change of errno.
fn drop_keeping_errno(closed: Option<Handle>) {
    if closed.is_some() {
        let errno = Errno::last();
        drop(closed);
        errno.set();
    }
}

/// close_range(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // The kernel closes nothing if it does not know a flag, or only marks.
    let known = libc::CLOSE_RANGE_UNSHARE as c_int;
    if flags & !known == 0 {
        remove_range(first, last);
    }
    // SAFETY: the caller's.
    unsafe { real::close_range(first, last, flags) }
}

/// closefrom(3).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    remove_range(c_uint::try_from(first).unwrap_or(0), c_uint::MAX);
    // SAFETY: the caller's.
    unsafe { real::closefrom(first) }
}

/// Takes descriptors out of the table that are about to be closed.
fn remove_range(first: c_uint, last: c_uint) {
    for fd in table::numbers(first, last).filter(|fd| is_tracked(*fd)) {
        drop(table::remove(fd));
    }
}

/// dup(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's.
    follow(fd, unsafe { real::dup(fd) })
}

/// dup2(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: the caller's.
    replace(fd, to, || unsafe { real::dup2(fd, to) })
}

/// dup3(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's.
    replace(fd, to, || unsafe { real::dup3(fd, to, flags) })
}

/// Runs a call that closes the descriptor `to` and makes it a copy of `fd`.
fn replace(fd: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if fd == to {
        return call();
    }
    let closed = if is_tracked(to) { table::remove(to) } else { None };
    let result = call();
    if result >= 0 {
        drop_keeping_errno(closed);
        return follow(fd, result);
    }
    if let Some(closed) = closed {
        // It was in the table before, so its number is not too high.
        let _ = table::put(to, closed);
    }
    result
}

/// fcntl(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's.
    unsafe { fcntl64(fd, command, argument) }
}

/// fcntl(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's.
    let result = unsafe { real::fcntl64(fd, command, argument) };
    let copies = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    if copies { follow(fd, result) } else { result }
}
