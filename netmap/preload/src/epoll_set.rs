//! The netmap files in an epoll instance.
//!
//! The kernel has them in the instance, too, with no events: so it answers wrong calls, and forgets a file
//! that is closed. Readiness is the level; `EPOLLET` reports a file as long as it is ready.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use libc::{epoll_event, pollfd};
use nix::poll::PollFlags;

use crate::file::File;
use crate::wait::add_sources;

/// Netmap files with the events that the program waits for.
#[derive(Default)]
pub struct EpollSet {
    members: Mutex<Vec<Member>>,
    /// The next answer begins with the kernel's events.
    kernel_first: AtomicBool,
}

struct Member {
    fd: c_int,
    file: Weak<File>,
    /// The events to wait for, and flags.
    events: u32,
    /// The program's, for the answer.
    data: u64,
    /// Those of the events that the last sync found.
    ready: u32,
}

impl Member {
    /// The events to wait for, without flags; none after EPOLLONESHOT.
    fn flags(&self) -> PollFlags {
        PollFlags::from_bits_truncate(self.events as i16)
    }
}

impl EpollSet {
    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a file, or changes the events that the program waits for.
    pub fn set(&self, fd: c_int, file: &Arc<File>, event: epoll_event) {
        let member = Member {
            fd,
            file: Arc::downgrade(file),
            events: event.events,
            data: event.u64,
            ready: 0,
        };
        self.remove(fd, file);
        self.members().push(member);
    }

    /// Removes a file.
    pub fn remove(&self, fd: c_int, file: &Arc<File>) {
        let is_it = |it: &Member| it.fd == fd && it.file.as_ptr() == Arc::as_ptr(file);
        self.members().retain(|it| !is_it(it) && it.file.strong_count() > 0);
    }

    /// Syncs the files. Returns how many are ready.
    pub fn sync(&self) -> usize {
        let mut ready = 0;
        for member in self.members().iter_mut() {
            let flags = member.flags();
            member.ready = match member.file.upgrade() {
                Some(file) if !flags.is_empty() => file.poll(flags).bits() as u32,
                _ => 0,
            };
            ready += usize::from(member.ready != 0);
        }
        ready
    }

    /// Arms and adds the engine's wake-ups. Returns the longest sleep.
    pub fn arm(&self, list: &mut Vec<pollfd>) -> Option<Duration> {
        let members = self.members();
        let armed = members.iter().filter(|it| !it.flags().is_empty());
        let longest = armed.filter_map(|it| add_sources(it.file.upgrade()?.wait(it.flags()), list));
        longest.min()
    }

    /// Returns how many events of the kernel the next answer takes, of `room`: all, or what the netmap files
    /// leave, in turn.
    pub fn room_for_kernel(&self, room: usize) -> usize {
        if self.kernel_first.fetch_xor(true, Ordering::Relaxed) {
            return room;
        }
        room.saturating_sub(self.members().iter().filter(|it| it.ready != 0).count())
    }

    /// Returns the events that the last sync found, at most `room`.
    pub fn take(&self, room: usize) -> Vec<epoll_event> {
        let mut members = self.members();
        let ready = members.iter_mut().filter(|it| it.ready != 0).take(room);
        let event = |member: &mut Member| {
            let event = epoll_event { events: member.ready, u64: member.data };
            member.ready = 0;
            if member.events & libc::EPOLLONESHOT as u32 != 0 {
                member.events = 0;
            }
            event
        };
        let events = ready.map(event).collect();
        // Other files get their turn first.
        if !members.is_empty() {
            members.rotate_left(1);
        }
        events
    }
}
