//! Waits for netmap files and other descriptors at once.
//!
//! ```text
//!   sync the netmap files --ready--> ask the others, return
//!     | nothing
//!   block signals
//!   arm the engine's wake-ups  <--------------+
//!   sync the netmap files again: closes the race
//!   sleep on others and wake-ups (ppoll, with the program's signal mask)
//!     | a signal: return              |
//!   sync the netmap files --nothing---+
//!     | a netmap file or another is ready, or the time is over: return
//! ```
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{pollfd, sigset_t, timespec};
use nix::errno::Errno;
use nix::poll::PollFlags;

use crate::file::File;
use crate::real;
use crate::signals::Blocked;

/// Descriptors that a call waits for.
pub trait Waited {
    /// Syncs the netmap files. Returns how many are ready.
    fn sync(&mut self) -> usize;

    /// Adds the descriptors that are not netmap's.
    fn others(&self, list: &mut Vec<pollfd>);

    /// Takes the kernel's answer for the descriptors that `others` has added. Returns how many are ready.
    fn take(&mut self, list: &[pollfd]) -> usize;

    /// Adds the netmap files to arm.
    fn files(&self, files: &mut WaitedFiles);
}

/// Netmap files with the events to wait for, each once: a file has one wake-up for each thread.
#[derive(Default)]
pub struct WaitedFiles(Vec<(Arc<File>, PollFlags)>);

impl WaitedFiles {
    /// Adds events of a file.
    pub fn add(&mut self, file: &Arc<File>, events: PollFlags) {
        match self.0.iter_mut().find(|(it, _)| Arc::ptr_eq(it, file)) {
            Some((_, all)) => *all |= events,
            None => self.0.push((Arc::clone(file), events)),
        }
    }

    /// Arms the engine's wake-ups and adds them to a list. Returns the longest sleep.
    fn arm(self, list: &mut Vec<pollfd>) -> Option<Duration> {
        let entry =
            |&(fd, events): &(c_int, PollFlags)| pollfd { fd, events: events.bits(), revents: 0 };
        let limits = self.0.into_iter().filter_map(|(file, events)| {
            let sources = file.wait(events);
            list.extend(sources.descriptors.iter().map(entry));
            sources.longest
        });
        limits.min()
    }
}

/// The time when a call ends; none if it waits without a limit.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Option<Instant>,
    is_now: bool,
}

impl Deadline {
    /// A time from now; none for no limit.
    pub fn after(time: Option<Duration>) -> Self {
        let at = time.and_then(|time| Instant::now().checked_add(time));
        Self { at, is_now: time == Some(Duration::ZERO) }
    }

    /// The milliseconds of poll(2): none if negative.
    pub fn after_ms(ms: c_int) -> Self {
        Self::after(u64::try_from(ms).ok().map(Duration::from_millis))
    }

    /// Returns the time until then; none without a limit.
    pub fn remaining(self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

/// Waits until a descriptor is ready, and returns how many are; 0 at the deadline. While the thread sleeps, its
/// signal mask is `mask`, or the present one.
///
/// # Errors
/// EINTR, and other errors of ppoll(2).
pub fn wait(
    waited: &mut dyn Waited,
    deadline: Deadline,
    mask: Option<&sigset_t>,
) -> Result<usize, Errno> {
    let ready = waited.sync();
    let mut list = Vec::new();
    if ready > 0 || deadline.is_now {
        waited.others(&mut list);
        // As in the kernel, the mask counts only if nothing is ready.
        let mask = mask.filter(|_| ready == 0);
        if !list.is_empty() || mask.is_some() {
            match sleep(&mut list, Some(Duration::ZERO), mask) {
                Err(_) if ready > 0 => return Ok(ready),
                other => other?,
            }
        }
        return Ok(ready + waited.take(&list));
    }
    let blocked = Blocked::new();
    loop {
        list.clear();
        waited.others(&mut list);
        let others = list.len();
        let mut files = WaitedFiles::default();
        waited.files(&mut files);
        let longest = files.arm(&mut list);
        let ready = waited.sync();
        let remaining = deadline.remaining();
        let time = match (remaining, longest) {
            _ if ready > 0 => Some(Duration::ZERO),
            (Some(remaining), Some(longest)) => Some(remaining.min(longest)),
            (one, other) => one.or(other),
        };
        match sleep(&mut list, time, Some(mask.unwrap_or(blocked.before()))) {
            Ok(()) if ready > 0 => return Ok(ready + waited.take(&list[..others])),
            // The signal has come after the packets.
            Err(_) if ready > 0 => return Ok(ready),
            other => other?,
        }
        let ready = waited.sync() + waited.take(&list[..others]);
        if ready > 0 || remaining == Some(Duration::ZERO) {
            return Ok(ready);
        }
    }
}

/// Sleeps until a descriptor is ready or the time is over; none for no limit.
fn sleep(
    list: &mut [pollfd],
    time: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Result<(), Errno> {
    let time = time.map(timespec_of);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mask = mask.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the list has this length; time and mask are null or live longer than the call.
    let count = unsafe { real::ppoll(list.as_mut_ptr(), list.len() as u64, time, mask) };
    Errno::result(count).map(drop)
}

/// Converts a time; one that is too long is the longest.
pub fn timespec_of(time: Duration) -> timespec {
    let tv_sec = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    timespec { tv_sec, tv_nsec: i64::from(time.subsec_nanos()) }
}

/// Converts the program's time.
///
/// # Errors
/// EINVAL if it is negative or its nanoseconds are a second or more.
pub fn duration_of(time: &timespec) -> Result<Duration, Errno> {
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::EINVAL)?;
    let nanoseconds = u32::try_from(time.tv_nsec).ok().filter(|it| *it < 1_000_000_000);
    Ok(Duration::new(seconds, nanoseconds.ok_or(Errno::EINVAL)?))
}
