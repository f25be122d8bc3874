//! The netmap files in an epoll instance.
//!
//! The kernel has them in the instance, too, with no events: so it answers wrong calls, and forgets a file
//! that is closed. Readiness is the level; `EPOLLET` reports a file as long as it is ready.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use libc::epoll_event;
use nix::poll::PollFlags;

use crate::calls::{Call, Calls};
use crate::file::File;
use crate::signals::Blocked;
use crate::wait::WaitedFiles;

/// Netmap files with the events that the program waits for.
#[derive(Default)]
pub struct EpollSet {
    members: Mutex<Vec<Member>>,
    /// Threads that have the members locked, or are about to.
    calls: Calls,
    /// The next answer begins with the kernel's events.
    kernel_first: AtomicBool,
}

#[derive(Clone)]
struct Member {
    fd: c_int,
    file: Weak<File>,
    /// The events to wait for, and flags.
    events: u32,
    /// The program's, for the answer.
    data: u64,
}

impl Member {
    /// The events to wait for, without flags; none after EPOLLONESHOT.
    fn flags(&self) -> PollFlags {
        PollFlags::from_bits_truncate(self.events as i16)
    }

    fn is(&self, fd: c_int, file: *const File) -> bool {
        self.fd == fd && self.file.as_ptr() == file
    }
}

/// A file that a sync has found ready.
pub struct Ready {
    member: Member,
    events: u32,
}

/// The members, locked. Meanwhile no signal handler runs in this thread, because it could need them, and a fork waits,
/// because they would stay locked in the child; it does not wait for a handler in the middle of another call, nor does a
/// fork of such a handler wait. Not to be kept while a file is synced or closed.
struct Locked<'a> {
    members: MutexGuard<'a, Vec<Member>>,
    // Dropped after the lock, in this order.
    _call: Call<'a>,
    _blocked: Blocked,
}

impl EpollSet {
    fn lock(&self) -> Locked<'_> {
        let _blocked = Blocked::new();
        let _call = self.calls.begin();
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { members, _call, _blocked }
    }

    /// Waits until no thread has the members locked. Called in a fork, so that no other begins.
    pub fn wait_for_calls(&self) {
        while self.calls.are_in_progress() {
            // Not a yield: a thread of a lower priority must get the CPU.
            std::thread::sleep(Duration::from_micros(10));
        }
    }

    /// Forgets the calls in progress, in a child.
    pub fn forget_calls(&self) {
        self.calls.reset();
    }

    /// Adds a file, or changes the events that the program waits for.
    pub fn set(&self, fd: c_int, file: &Arc<File>, event: epoll_event) {
        let member =
            Member { fd, file: Arc::downgrade(file), events: event.events, data: event.u64 };
        let members = &mut self.lock().members;
        remove_from(members, fd, file);
        members.push(member);
    }

    /// Removes a file.
    pub fn remove(&self, fd: c_int, file: &Arc<File>) {
        remove_from(&mut self.lock().members, fd, file);
    }

    /// Returns the members that wait for events, with their files.
    fn armed(&self) -> Vec<(Member, Arc<File>)> {
        let locked = self.lock();
        let armed = locked.members.iter().filter(|it| !it.flags().is_empty());
        armed.filter_map(|it| Some((it.clone(), it.file.upgrade()?))).collect()
    }

    /// Syncs the files. Returns those that are ready.
    pub fn sync(&self) -> Vec<Ready> {
        let found = self.armed().into_iter().map(|(member, file)| {
            let events = file.poll(member.flags()).bits() as u32;
            Ready { member, events }
        });
        found.filter(|it| it.events != 0).collect()
    }

    /// Adds the files to arm.
    pub fn files(&self, files: &mut WaitedFiles) {
        for (member, file) in self.armed() {
            files.add(&file, member.flags());
        }
    }

    /// Returns how many events of the kernel the next answer takes, of `room`: all, or what the netmap files
    /// leave, in turn.
    pub fn room_for_kernel(&self, room: usize, ready: usize) -> usize {
        if self.kernel_first.fetch_xor(true, Ordering::Relaxed) {
            return room;
        }
        room.saturating_sub(ready)
    }

    /// Returns the events that a sync has found, at most `room`. Leaves out those of files that another thread has
    /// changed since, or has got with EPOLLONESHOT.
    pub fn take(&self, ready: &[Ready], room: usize) -> Vec<epoll_event> {
        if ready.is_empty() {
            return Vec::new();
        }
        let members = &mut self.lock().members;
        let event = |Ready { member: found, events }: &Ready| {
            let same = |it: &&mut Member| {
                it.is(found.fd, found.file.as_ptr()) && it.events == found.events
            };
            let member = members.iter_mut().find(same)?;
            if member.events & libc::EPOLLONESHOT as u32 != 0 {
                member.events = 0;
            }
            Some(epoll_event { events: *events, u64: member.data })
        };
        let events = ready.iter().filter_map(event).take(room).collect();
        // Other files get their turn first.
        if !members.is_empty() {
            members.rotate_left(1);
        }
        events
    }
}

fn remove_from(members: &mut Vec<Member>, fd: c_int, file: &Arc<File>) {
    members.retain(|it| !it.is(fd, Arc::as_ptr(file)) && it.file.strong_count() > 0);
}
