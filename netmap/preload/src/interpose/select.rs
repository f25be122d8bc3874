//! select and pselect.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::time::Duration;

use libc::{fd_set, pollfd, sigset_t, timespec, timeval};
use nix::errno::Errno;

use super::answer;
use crate::wait::{Deadline, duration_of, wait};
use crate::wait_list::WaitList;
use crate::{real, table};

/// The events of each set: those that put a descriptor into the answer, as in Linux (fs/select.c).
const READ: i16 =
    libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLIN | libc::POLLHUP | libc::POLLERR;
const WRITE: i16 = libc::POLLWRBAND | libc::POLLWRNORM | libc::POLLOUT | libc::POLLERR;
const EXCEPT: i16 = libc::POLLPRI;
/// Events that poll(2) reports without being asked.
const UNASKED: i16 = libc::POLLHUP | libc::POLLERR;

/// The sets of a call, of descriptors below `count`; null for none.
struct Sets {
    count: c_int,
    /// Each with its events.
    sets: [(*mut fd_set, i16); 3],
}

impl Sets {
    fn new(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set) -> Self {
        Self { count, sets: [(read, READ), (write, WRITE), (except, EXCEPT)] }
    }

    /// Returns the word of a set with a descriptor's bit, and the bit.
    fn bit(set: *mut fd_set, fd: c_int) -> (*mut u64, u64) {
        // A set is an array of words, which may be longer than `fd_set`.
        (set.cast::<u64>().wrapping_add(fd as usize / 64), 1 << (fd % 64))
    }

    /// The events that the sets ask for.
    ///
    /// # Safety
    /// Each set is null or has a bit for each descriptor below `count` and the size of the process's table.
    unsafe fn events(&self, fd: c_int) -> i16 {
        let asks = |&(set, _): &(*mut fd_set, i16)| {
            let (word, bit) = Self::bit(set, fd);
            // SAFETY: the caller's.
            !set.is_null() && unsafe { word.read() } & bit != 0
        };
        self.sets.iter().filter(|it| asks(it)).fold(0, |all, it| all | it.1)
    }

    /// Returns true if the table has a descriptor of a set.
    ///
    /// # Safety
    /// As of `events`.
    unsafe fn has_ours(&self) -> bool {
        let Some(last) = u32::try_from(self.count).ok().and_then(|count| count.checked_sub(1))
        else {
            return false;
        };
        // SAFETY: the caller's.
        table::numbers(0, last).any(|fd| unsafe { self.events(fd) } != 0)
    }

    /// Waits, and writes the answer into the sets. Returns the number of bits.
    ///
    /// # Safety
    /// As of `events`.
    unsafe fn wait(&self, deadline: Deadline, mask: Option<&sigset_t>) -> Result<usize, Errno> {
        let asked = (0..limited(self.count)).filter_map(|fd| {
            // SAFETY: the caller's.
            let events = unsafe { self.events(fd) };
            (events != 0).then_some(pollfd { fd, events: events & !UNASKED, revents: 0 })
        });
        let mut waited = WaitList::new(asked);
        wait(&mut waited, deadline, mask)?;
        if waited.events().any(|events| events & libc::POLLNVAL != 0) {
            return Err(Errno::EBADF);
        }
        let mut bits = 0;
        for entry in waited.entries() {
            for (set, events) in self.sets.iter().filter(|it| !it.0.is_null()) {
                let (word, bit) = Self::bit(*set, entry.fd);
                // SAFETY: the caller's.
                unsafe {
                    if word.read() & bit == 0 {
                        continue;
                    }
                    if entry.revents & events == 0 {
                        word.write(word.read() & !bit);
                    } else {
                        bits += 1;
                    }
                }
            }
        }
        Ok(bits)
    }
}

/// Limits a count to the size of this process's table of descriptors, as the kernel does: sets may end there.
fn limited(count: c_int) -> c_int {
    if count <= libc::FD_SETSIZE as c_int {
        return count;
    }
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok());
    size.map_or(count, |size| count.min(size))
}

/// select(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = Sets::new(count, read, write, except);
    // SAFETY: the caller's; the time is null or valid.
    unsafe {
        if table::is_empty() || !sets.has_ours() {
            return real::select(count, read, write, except, timeout);
        }
        let time = match timeout.as_ref().map(time_of).transpose() {
            Ok(time) => time,
            Err(errno) => return answer(Err::<c_int, _>(errno)),
        };
        let deadline = Deadline::after(time);
        let result = sets.wait(deadline, None);
        if let (Some(timeout), Some(left)) = (timeout.as_mut(), deadline.remaining()) {
            // As Linux does.
            timeout.tv_sec = left.as_secs() as i64;
            timeout.tv_usec = i64::from(left.subsec_micros());
        }
        answer(result)
    }
}

fn time_of(time: &timeval) -> Result<Duration, Errno> {
    let part = |value| u64::try_from(value).map_err(|_| Errno::EINVAL);
    // The microseconds may be more than a second.
    let (seconds, microseconds) = (part(time.tv_sec)?, part(time.tv_usec)?);
    Ok(Duration::from_secs(seconds).saturating_add(Duration::from_micros(microseconds)))
}

/// pselect(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = Sets::new(count, read, write, except);
    // SAFETY: the caller's; time and mask are null or valid.
    unsafe {
        if table::is_empty() || !sets.has_ours() {
            return real::pselect(count, read, write, except, timeout, mask);
        }
        let time = timeout.as_ref().map(duration_of).transpose();
        answer(time.and_then(|time| sets.wait(Deadline::after(time), mask.as_ref())))
    }
}
