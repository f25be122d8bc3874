//! Wakes the receiver of a ring: an eventfd and a sleep flag in the ring.
//!
//! ```text
//!   sender                         receiver
//!   store index                    clear MASK_INT
//!   fence                          fence
//!   load MASK_INT                  load index
//!   not masked: write event        ring empty: sleep
//! ```
//!
//! Both fences are sequentially consistent, so at least one side sees the other's store, and no wake-up is
//! lost. Other programs have no fence there (DPDK's eth_memif_tx), so a sleeper also polls after a while.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::write;

use super::message::ProtocolError;
use super::ring::RingMemory;
use sluicegate_base::error::{Error, Result};
use sluicegate_base::ring::{Ordering, fence};

/// The event file of a ring.
#[derive(Debug)]
pub(crate) struct Notifier(OwnedFd);

impl Notifier {
    /// Creates an eventfd.
    pub(super) fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = EventFd::from_value_and_flags(0, flags);
        event.map(|event| Self(event.into())).map_err(|e| Error::system("create", "an event", e))
    }

    /// Takes a peer's file. It must be an eventfd, because a write to another file could block.
    pub(super) fn of_peer(file: OwnedFd) -> Result<Self, ProtocolError> {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let is_event =
            std::fs::read_link(link).is_ok_and(|it| it.as_os_str() == "anon_inode:[eventfd]");
        let set = fcntl(&file, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        match is_event && set.is_ok() {
            true => Ok(Self(file)),
            false => Err(ProtocolError("a ring's file is no event (eventfd)".into())),
        }
    }

    /// Wakes the receiver, if it sleeps. Call it after storing the index.
    #[inline]
    pub(super) fn ring(&self, ring: &RingMemory) {
        // Pairs with the fence in `enable`.
        fence(Ordering::SeqCst);
        if ring.wants_wakeup() {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // A peer may have cleared O_NONBLOCK, so this polls first; a full event already wakes the receiver.
        // The kernel has no write to an event that never waits (eventfd_write, fs/eventfd.c). So a peer that
        // clears O_NONBLOCK and fills the event between these two calls makes this process wait.
        let mut file = [PollFd::new(self.0.as_fd(), PollFlags::POLLOUT)];
        if poll(&mut file, PollTimeout::ZERO) == Ok(1) {
            let _ = write(&self.0, &1u64.to_ne_bytes());
        }
    }

    /// Makes senders wake the receiver. The receiver may sleep only if the ring is still empty after this
    /// call.
    pub(crate) fn enable(&self, ring: &RingMemory) {
        ring.ask_for_wakeup(true);
        // Pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
    }

    /// Notes that the receiver is awake, and clears the event.
    pub(crate) fn disable(&self, ring: &RingMemory) {
        ring.ask_for_wakeup(false);
        forget(self.0.as_fd());
    }

    /// True if the event is set. After [`disable`](Self::disable) this means that the peer has set it again,
    /// or that it is a semaphore (EFD_SEMAPHORE), which a read decrements by one.
    pub(crate) fn rings(&self) -> bool {
        let mut file = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        poll(&mut file, PollTimeout::ZERO) == Ok(1)
    }
}

/// Clears an event file. Never waits, although the peer also has the file and may have cleared O_NONBLOCK,
/// because eventfd_read (fs/eventfd.c, Linux 5.8) also checks the call's own flag.
fn forget(event: BorrowedFd<'_>) {
    let mut count = [0u8; 8];
    let buffer = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
    // SAFETY: `buffer` is one buffer of 8 bytes, which outlives the call. -1 for the offset reads as read(2)
    // does. If the event is not set, or the file is not an event any more, the bytes stay unchanged.
    let _ = unsafe { libc::preadv2(event.as_raw_fd(), &buffer, 1, -1, libc::RWF_NOWAIT) };
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Interleavings of flag and index. Run like the tests of cursors (`ring/cursor.rs`).
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;
    use sluicegate_base::ring::AtomicU16;

    #[test]
    fn loom_no_sleeper_is_forgotten() {
        loom::model(|| {
            let flags = Arc::new((AtomicU16::new(1), AtomicU16::new(0), AtomicBool::new(false)));
            let theirs = Arc::clone(&flags);
            let sender = thread::spawn(move || {
                let (masked, index, event) = &*theirs;
                index.store(1, Ordering::Release);
                fence(Ordering::SeqCst);
                if masked.load(Ordering::Relaxed) == 0 {
                    event.store(true, Ordering::Relaxed);
                }
            });
            let (masked, index, event) = &*flags;
            masked.store(0, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let sleeps = index.load(Ordering::Acquire) == 0;
            sender.join().unwrap();
            assert!(!sleeps || event.load(Ordering::Relaxed), "asleep for ever");
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::super::ring::Regions;
    use super::*;

    #[test]
    fn only_a_sleeper_is_woken() {
        let (_, regions) = Regions::own(4096).unwrap();
        let ring = RingMemory::create(&Arc::new(regions), 0, 3, 0, 1);
        let notifier = Notifier::new().unwrap();
        notifier.ring(&ring);
        assert!(!notifier.rings(), "awake");
        notifier.enable(&ring);
        assert!(!notifier.rings(), "nothing has come");
        notifier.ring(&ring);
        assert!(notifier.rings());
        notifier.disable(&ring);
        notifier.ring(&ring);
        assert!(!notifier.rings(), "awake again, and the event is forgotten");
    }

    #[test]
    fn a_peer_that_keeps_ringing_is_noticed() {
        let (_, regions) = Regions::own(4096).unwrap();
        let ring = RingMemory::create(&Arc::new(regions), 0, 3, 0, 1);
        let event = EventFd::from_value_and_flags(2, EfdFlags::EFD_SEMAPHORE).unwrap();
        let notifier = Notifier::of_peer(event.into()).unwrap();
        notifier.disable(&ring);
        assert!(notifier.rings(), "one of two is left");
        notifier.disable(&ring);
        assert!(!notifier.rings());
    }

    #[test]
    fn a_peer_cannot_block_the_reader() {
        let notifier = Notifier::new().unwrap();
        fcntl(&notifier.0, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        forget(notifier.as_fd());
        notifier.wake();
        assert!(notifier.rings(), "woken");
        forget(notifier.as_fd());
        assert!(!notifier.rings(), "and forgotten");
    }

    #[test]
    fn only_an_event_is_a_doorbell() {
        let notifier = Notifier::new().unwrap();
        assert!(Notifier::of_peer(notifier.0).is_ok());
        assert!(Notifier::of_peer(tempfile::tempfile().unwrap().into()).is_err());
        assert!(Notifier::of_peer(nix::unistd::pipe().unwrap().1).is_err());
    }
}
