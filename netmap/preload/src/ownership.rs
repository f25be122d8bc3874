//! Which process has an open file after a fork.
//!
//! A fork copies the engine, but not the rings, sockets and maps it works on: two processes that both sync
//! a ring would destroy it. So a fork leaves each file without an owner, and the first process that uses it
//! becomes the owner: a daemon whose parent has exited, a worker, or the parent of a child that only runs
//! another program. The other process gets EBUSY.
//!
//! Live frames are sent by threads, which a child does not have: it gets EBUSY for such a file. A card that is
//! attached to a switch has a thread, too, and any file may be of that switch: all stay with the parent. So they
//! do if another thread is in a call during the fork: its locks would stay locked in the child.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nix::errno::Errno;

use crate::real;

/// This process. A child of vfork has the memory, but is another.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The owner of a file: memory that a process shares with its children.
pub struct FileOwner {
    shared: NonNull<SharedOwner>,
    /// The process that opened the file.
    opener: u32,
    /// Threads of the process sent for the file at a fork: a child has lost them.
    had_threads: AtomicBool,
}

/// Memory that processes share.
struct SharedOwner {
    /// The owner, or 0.
    owner: AtomicU32,
    /// The process that was the owner before the last fork, or is it.
    last: AtomicU32,
}

// SAFETY: the memory is atomic, and stays mapped until this is dropped.
unsafe impl Send for FileOwner {}
// SAFETY: as above.
unsafe impl Sync for FileOwner {}

impl FileOwner {
    /// Makes this process the owner.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub fn new() -> Result<Self, Errno> {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            real::mmap64(std::ptr::null_mut(), size_of::<SharedOwner>(), access, flags, -1, 0)
        };
        if at == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let shared = NonNull::new(at.cast()).ok_or(Errno::ENOMEM)?;
        let owner = Self { shared, opener: process(), had_threads: AtomicBool::new(false) };
        owner.shared().owner.store(process(), Ordering::Relaxed);
        owner.shared().last.store(process(), Ordering::Relaxed);
        Ok(owner)
    }

    fn shared(&self) -> &SharedOwner {
        // SAFETY: mapped, aligned to a page, zeroed, and only atomics.
        unsafe { self.shared.as_ref() }
    }

    /// Makes this process the owner if there is none.
    ///
    /// # Errors
    /// Another process is the owner, or this one cannot be it: the reason, and the remedy.
    pub fn claim(&self) -> Result<(), &'static str> {
        if self.has_lost_threads() {
            return Err(
                "a forked process cannot use a port that threads of its parent serve; open the port after the \
                 fork, or, if no card is attached to a switch, set SLUICE_NETMAP_BACKEND=xdp",
            );
        }
        let (owner, own) = (&self.shared().owner, process());
        let is_owner = match owner.load(Ordering::Relaxed) {
            // Another thread of this process may have just done it.
            0 => owner
                .compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|found| found == own, |_| true),
            known => known == own,
        };
        is_owner.then_some(()).ok_or(
            "another process has used this descriptor during or after the fork, and has its rings; open the port in \
             the process that uses it",
        )
    }

    fn has_lost_threads(&self) -> bool {
        self.opener != process() && self.had_threads.load(Ordering::Relaxed)
    }

    /// Returns true if closing the file in this process closes the port. After a fork without a use, only the
    /// parent may do that: its child may close what it does not need.
    pub fn may_close(&self) -> bool {
        self.is_ours()
            || self.shared().last.load(Ordering::Relaxed) == process() && self.claim().is_ok()
    }

    /// Returns true if this process has used the file since the last fork.
    pub fn is_ours(&self) -> bool {
        self.shared().owner.load(Ordering::Relaxed) == process()
    }

    /// Leaves the file without an owner, if a child can be it.
    pub fn release(&self, has_threads: bool) {
        self.had_threads.store(has_threads, Ordering::Relaxed);
        if !has_threads {
            self.shared().last.store(process(), Ordering::Relaxed);
            self.shared().owner.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for FileOwner {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours, and no reference to it is left.
        unsafe { libc::munmap(self.shared.as_ptr().cast(), size_of::<SharedOwner>()) };
    }
}

fn process() -> u32 {
    PROCESS.load(Ordering::Relaxed)
}

/// Returns false in a child of vfork, which has this process's memory, but descriptors of its own.
pub fn is_this_process() -> bool {
    std::process::id() == process()
}

/// Learns which process this is: at the first open, and in a child.
pub fn set_process() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
}
