//! An open of /dev/netmap in this process.

use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::poll::PollFlags;
use sluicegate_netmap::engine::{NetmapFile, Region, WaitSources};

use crate::caller_memory::OwnMemory;
use crate::calls::{Call, Calls, OPEN_AND_CLOSE};
use crate::forks;
use crate::log;
use crate::ownership::FileOwner;
use crate::requests;
use crate::standard_streams::Reserved;

/// The open file, and the process that may use it.
pub struct File {
    open: ManuallyDrop<Box<dyn NetmapFile>>,
    owner: FileOwner,
    calls: Calls,
    /// The reason why another process owns the file has been printed.
    refused: AtomicBool,
    /// Other processes may have the file, too.
    was_shared: AtomicBool,
}

/// Events that mean the same to poll(2).
const RX: PollFlags = PollFlags::POLLIN.union(PollFlags::POLLRDNORM);
const TX: PollFlags = PollFlags::POLLOUT.union(PollFlags::POLLWRNORM);

impl File {
    /// Wraps a file, which this process owns.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub fn new(open: Box<dyn NetmapFile>) -> Result<Self, Errno> {
        let owner = FileOwner::new()?;
        let (refused, was_shared) = Default::default();
        Ok(Self {
            open: ManuallyDrop::new(open),
            owner,
            calls: Calls::default(),
            refused,
            was_shared,
        })
    }

    /// Returns the owner.
    pub fn owner(&self) -> &FileOwner {
        &self.owner
    }

    /// Returns the calls in progress.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Notes that other processes may have the file, too: they are forked, or were sent it.
    pub fn note_sharing(&self) {
        self.was_shared.store(true, Ordering::Relaxed);
    }

    /// Returns the socket by which another process can join the file; none if the engine is in this process.
    pub fn connection(&self) -> Option<BorrowedFd<'_>> {
        self.open.connection()
    }

    /// Calls a function while no other thread of this process has a request of the file.
    pub fn between_requests(&self, work: &mut dyn FnMut()) {
        self.open.between_requests(work);
    }

    /// Leaves the file without an owner, if a child can be it.
    pub fn release(&self, keeps_all: bool) {
        if !self.open.is_shared() && self.owner.is_ours() {
            self.owner.release(keeps_all || self.open.has_threads());
        }
    }

    fn begin(&self) -> Result<(&dyn NetmapFile, Call<'_>), Errno> {
        // Before the claim: a fork waits for neither, but sees the call, or the claim sees the fork.
        let call = self.calls.begin();
        match self.owner.claim() {
            Ok(()) => Ok((&**self.open, call)),
            Err(_) if self.open.is_shared() => Ok((&**self.open, call)),
            Err(reason) => {
                // Once: a program may poll in a loop.
                if !self.refused.swap(true, Ordering::Relaxed) {
                    log::error(reason);
                }
                Err(Errno::EBUSY)
            }
        }
    }

    /// Passes on an ioctl.
    ///
    /// # Errors
    /// netmap's.
    pub fn ioctl(&self, request: u32, argument: u64) -> Result<(), Errno> {
        log::was_explained();
        let _reserved = requests::is_control(request).then(Reserved::new);
        let attaches = requests::attaches(request, argument);
        let result =
            self.begin().and_then(|(open, _call)| open.ioctl(request, &OwnMemory, argument));
        if attaches && result.is_ok() {
            forks::keep_all_files();
        }
        if result == Err(Errno::EOPNOTSUPP) && !log::was_explained() {
            log::error(format_args!(
                "{}: not supported here; `man sluice-netmap` has a list",
                requests::describe(request, argument)
            ));
        }
        result
    }

    /// Returns the memory to map.
    ///
    /// # Errors
    /// EINVAL before a port is registered.
    pub fn region(&self) -> Result<Region, Errno> {
        let (open, _call) = self.begin()?;
        open.region()
    }

    /// Syncs, and returns those of the events that are ready, and errors.
    pub fn poll(&self, events: PollFlags) -> PollFlags {
        let Ok((open, _call)) = self.begin() else { return PollFlags::POLLERR };
        let found = open.poll(engine_events(events));
        let mut ready = found - RX - TX;
        if found.intersects(RX) {
            ready |= events & RX;
        }
        if found.intersects(TX) {
            ready |= events & TX;
        }
        ready
    }

    /// Arms and returns the events that end a sleep.
    pub fn wait(&self, events: PollFlags) -> WaitSources {
        let Ok((open, _call)) = self.begin() else { return WaitSources::default() };
        open.wait(engine_events(events))
    }
}

/// Translates events to those of the engine, which knows one name of each.
fn engine_events(events: PollFlags) -> PollFlags {
    let mut known = events & !(RX | TX);
    known.set(PollFlags::POLLIN, events.intersects(RX));
    known.set(PollFlags::POLLOUT, events.intersects(TX));
    known
}

impl Drop for File {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let _call = OPEN_AND_CLOSE.begin();
        // Another process goes on with the port: what closing it undoes would be undone for that process.
        if !self.open.is_shared() && !self.owner.may_close() {
            return;
        }
        // SAFETY: taken once, here, and not used afterwards.
        let open = unsafe { ManuallyDrop::take(&mut self.open) };
        if self.was_shared.load(Ordering::Relaxed) {
            open.leave();
        }
    }
}
