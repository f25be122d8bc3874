//! close, dup, fcntl: the table follows the program's descriptors.
//!
//! A child of vfork shares the table with its parent, but not the descriptors: its calls change nothing.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_uint};

use nix::errno::Errno;

use crate::table::{self, Handle};
use crate::{host, ownership, real};

/// Returns true if a call on this descriptor concerns the table.
fn is_tracked(fd: c_int) -> bool {
    table::has(fd) && ownership::is_this_process()
}

/// Runs a call that makes a copy of `from`, and makes the copy lead where `from` does. The copy is closed if it cannot.
fn copy(from: c_int, call: impl FnOnce() -> c_int) -> c_int {
    // Before the call: then another thread may close `from`.
    let original = if is_tracked(from) { table::get(from) } else { None };
    let copy = call();
    if copy < 0 {
        drop_keeping_errno(original);
        return copy;
    }
    let Some(original) = original else {
        // dup2 has closed what had the number.
        let closed = if is_tracked(copy) { table::remove(copy) } else { None };
        drop_keeping_errno(closed);
        return copy;
    };
    let errno = Errno::last();
    let replaced = {
        let _alone = host::lock_out_forks();
        table::put(copy, original)
    };
    match replaced {
        // Only now: other threads' calls always find a file.
        Ok(closed) => {
            drop(closed);
            errno.set();
            copy
        }
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
    copy(fd, || unsafe { real::dup(fd) })
}

/// dup2(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: the caller's.
    let call = || unsafe { real::dup2(fd, to) };
    if fd == to { call() } else { copy(fd, call) }
}

/// dup3(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's.
    let call = || unsafe { real::dup3(fd, to, flags) };
    if fd == to { call() } else { copy(fd, call) }
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
    let call = || unsafe { real::fcntl64(fd, command, argument) };
    let copies = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    if copies { copy(fd, call) } else { call() }
}
