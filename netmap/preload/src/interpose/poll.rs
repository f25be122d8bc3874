//! poll and ppoll.
#![allow(unsafe_code)]

use std::ffi::c_int;

use libc::{nfds_t, pollfd, sigset_t, size_t, timespec};
use nix::errno::Errno;

use super::answer;
use crate::wait::{Deadline, duration_of, wait};
use crate::wait_list::WaitList;
use crate::{real, table};

/// Returns true if the table has a descriptor of the list.
///
/// # Safety
/// `list` points to this number of elements.
unsafe fn has_ours(list: *const pollfd, count: nfds_t) -> bool {
    !table::is_empty()
        // SAFETY: the caller's; each element is read once, because another thread may write it.
        && (0..count as usize).any(|at| table::has(unsafe { (&raw const (*list.add(at)).fd).read() }))
}

/// Waits for a list that has a netmap file.
///
/// # Safety
/// `list` points to this number of elements.
unsafe fn wait_for(
    list: *mut pollfd,
    count: nfds_t,
    deadline: Deadline,
    mask: Option<&sigset_t>,
) -> Result<usize, Errno> {
    let count = count as usize;
    // SAFETY: the caller's.
    let entries = (0..count).map(|at| unsafe { list.add(at).read() });
    let mut waited = WaitList::new(entries);
    let ready = wait(&mut waited, deadline, mask)?;
    for (at, events) in waited.events().enumerate() {
        // SAFETY: `waited` has as many entries as the list.
        unsafe { (&raw mut (*list.add(at)).revents).write(events) };
    }
    Ok(ready)
}

/// poll(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(list: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        if !has_ours(list, count) {
            return real::poll(list, count, timeout_ms);
        }
        answer(wait_for(list, count, Deadline::after_ms(timeout_ms), None))
    }
}

/// poll(2) of programs that are compiled with checks.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    bytes: size_t,
) -> c_int {
    // SAFETY: the caller's; libc ends the process if the list is too short.
    unsafe {
        if fits(count, bytes) {
            poll(list, count, timeout_ms)
        } else {
            real::__poll_chk(list, count, timeout_ms, bytes)
        }
    }
}

/// Returns true if memory of this size holds a list.
fn fits(count: nfds_t, bytes: size_t) -> bool {
    count <= (bytes / size_of::<pollfd>()) as nfds_t
}

/// ppoll(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's; time and mask are null or valid.
    unsafe {
        if !has_ours(list, count) {
            return real::ppoll(list, count, timeout, mask);
        }
        let time = timeout.as_ref().map(duration_of).transpose();
        answer(time.and_then(|time| wait_for(list, count, Deadline::after(time), mask.as_ref())))
    }
}

/// ppoll(2) of programs that are compiled with checks.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    bytes: size_t,
) -> c_int {
    // SAFETY: the caller's; libc ends the process if the list is too short.
    unsafe {
        if fits(count, bytes) {
            ppoll(list, count, timeout, mask)
        } else {
            real::__ppoll_chk(list, count, timeout, mask, bytes)
        }
    }
}
