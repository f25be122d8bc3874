//! epoll.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use libc::{epoll_event, pollfd, sigset_t, timespec};
use nix::errno::Errno;

use super::answer;
use crate::epoll_set::{EpollSet, Ready};
use crate::table::{self, Object};
use crate::wait::{Deadline, Waited, WaitedFiles, duration_of, wait};
use crate::{host, ownership, real};

/// epoll_ctl(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let Some(file) = table::netmap(fd).filter(|_| ownership::is_this_process()) else {
        // SAFETY: the caller's.
        return unsafe { real::epoll_ctl(epoll, operation, fd, event) };
    };
    // SAFETY: the caller's; it may be null.
    let wanted = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
    // The kernel's event never comes: the descriptor is an empty epoll instance.
    let mut none = wanted.map(|wanted| epoll_event { events: 0, ..wanted });
    let none = none.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: the event is null or our own.
    let result = unsafe { real::epoll_ctl(epoll, operation, fd, none) };
    if result < 0 {
        return result;
    }
    let Some(wanted) = wanted.filter(|_| operation != libc::EPOLL_CTL_DEL) else {
        if let Some(set) = known_set(epoll) {
            set.remove(fd, &file);
        }
        return result;
    };
    match set_of(epoll) {
        Ok(set) => {
            set.set(fd, &file, wanted);
            result
        }
        Err(errno) => {
            // Otherwise a second try fails with EEXIST.
            // SAFETY: the event is not needed.
            unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
            answer(Err::<c_int, _>(errno))
        }
    }
}

/// Returns the netmap files of an epoll instance; new if it had none.
fn set_of(epoll: c_int) -> Result<Arc<EpollSet>, Errno> {
    loop {
        match table::get(epoll).as_deref() {
            Some(Object::Epoll(set)) => return Ok(Arc::clone(set)),
            Some(Object::Netmap(_)) => return Err(Errno::EINVAL),
            None => {}
        }
        let set = Arc::new(EpollSet::default());
        let _alone = host::lock_out_forks();
        // Otherwise another thread has added the first file.
        if table::insert_first(epoll, Object::Epoll(Arc::clone(&set)))? {
            return Ok(set);
        }
    }
}

/// Returns the netmap files of an epoll instance, if it has had any.
fn known_set(epoll: c_int) -> Option<Arc<EpollSet>> {
    if !table::has(epoll) {
        return None;
    }
    match &*table::get(epoll)? {
        Object::Epoll(set) => Some(Arc::clone(set)),
        Object::Netmap(_) => None,
    }
}

/// An epoll instance with netmap files.
struct Instance {
    fd: c_int,
    set: Arc<EpollSet>,
    /// The files that the last sync found ready.
    ready: Vec<Ready>,
}

impl Waited for Instance {
    fn sync(&mut self) -> usize {
        self.ready = self.set.sync();
        self.ready.len()
    }

    fn others(&self, list: &mut Vec<pollfd>) {
        list.push(pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 });
    }

    fn take(&mut self, list: &[pollfd]) -> usize {
        list.iter().filter(|it| it.revents != 0).count()
    }

    fn files(&self, files: &mut WaitedFiles) {
        self.set.files(files);
    }
}

impl Instance {
    fn new(fd: c_int, set: Arc<EpollSet>) -> Self {
        Self { fd, set, ready: Vec::new() }
    }

    /// Waits, and writes the events.
    ///
    /// # Safety
    /// `events` has this room.
    unsafe fn wait(
        &mut self,
        events: *mut epoll_event,
        room: c_int,
        deadline: Deadline,
        mask: Option<&sigset_t>,
    ) -> Result<usize, Errno> {
        let room = usize::try_from(room).ok().filter(|room| *room > 0).ok_or(Errno::EINVAL)?;
        loop {
            let ready = wait(self, deadline, mask)?;
            // SAFETY: the caller's.
            let written = unsafe { self.write(events, room)? };
            // Another thread may have taken the kernel's events.
            if ready == 0 || written > 0 {
                return Ok(written);
            }
        }
    }

    /// Writes the events of the kernel, and those of the netmap files behind them.
    ///
    /// # Safety
    /// `events` has this room.
    unsafe fn write(&self, events: *mut epoll_event, room: usize) -> Result<usize, Errno> {
        let for_kernel = self.set.room_for_kernel(room, self.ready.len());
        let mut written = 0;
        if for_kernel > 0 {
            // SAFETY: the caller's.
            let count = unsafe { real::epoll_wait(self.fd, events, for_kernel as c_int, 0) };
            written = Errno::result(count)? as usize;
        }
        for event in self.set.take(&self.ready, room - written) {
            // SAFETY: the caller's; fewer than `room` are written before.
            unsafe { events.add(written).write_unaligned(event) };
            written += 1;
        }
        Ok(written)
    }
}

/// epoll_wait(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
) -> c_int {
    match known_set(epoll) {
        // SAFETY: the caller's.
        None => unsafe { real::epoll_wait(epoll, events, room, timeout_ms) },
        Some(set) => {
            let deadline = Deadline::after_ms(timeout_ms);
            // SAFETY: the caller's.
            answer(unsafe { Instance::new(epoll, set).wait(events, room, deadline, None) })
        }
    }
}

/// epoll_pwait(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    match known_set(epoll) {
        // SAFETY: the caller's.
        None => unsafe { real::epoll_pwait(epoll, events, room, timeout_ms, mask) },
        Some(set) => {
            let deadline = Deadline::after_ms(timeout_ms);
            // SAFETY: the caller's; the mask is null or valid.
            let mask = unsafe { mask.as_ref() };
            // SAFETY: the caller's.
            answer(unsafe { Instance::new(epoll, set).wait(events, room, deadline, mask) })
        }
    }
}

/// epoll_pwait2(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let Some(set) = known_set(epoll) else {
        // SAFETY: the caller's.
        return unsafe { real::epoll_pwait2(epoll, events, room, timeout, mask) };
    };
    // SAFETY: the caller's; time and mask are null or valid.
    let (time, mask) = unsafe { (timeout.as_ref(), mask.as_ref()) };
    answer(time.map(duration_of).transpose().and_then(|time| {
        // SAFETY: the caller's.
        unsafe { Instance::new(epoll, set).wait(events, room, Deadline::after(time), mask) }
    }))
}
