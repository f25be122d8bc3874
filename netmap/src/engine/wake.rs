//! Waking a sleeping thread: an eventfd, and a flag that the thread is about to sleep.
//!
//! ```text
//!   thread                              ring's other side
//!   empty the eventfd, set the flag     publish slots
//!   sync once more: slots: stay awake   flag set: clear it, write the eventfd
//!   sleep until the eventfd is readable
//! ```

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{read, write};

use crate::standard_streams::above_streams;

/// Wakes one thread that sleeps in a file.
#[derive(Debug)]
pub(super) struct Waker {
    /// An eventfd.
    event: OwnedFd,
    asleep: AtomicBool,
    written: AtomicBool,
}

impl Waker {
    /// Makes a waker.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = above_streams(EventFd::from_value_and_flags(0, flags)?.into())?;
        Ok(Self { event, asleep: AtomicBool::new(false), written: AtomicBool::new(false) })
    }

    /// Announces a sleep, and reads earlier wake-ups. Sync once more afterwards. Returns the descriptor to wait for.
    pub(super) fn arm(&self) -> RawFd {
        // Before the flag: a wake-up that comes after it must end the sleep.
        self.drain();
        // Relaxed: the fence orders it before the syncs that follow, and pairs with the one in `wake`.
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.event.as_raw_fd()
    }

    /// Reads the wake-ups that have come.
    fn drain(&self) {
        if self.written.swap(false, Ordering::Acquire) {
            // Empty already if a wake-up was read between its write and its mark.
            let _ = read(&self.event, &mut [0; 8]);
        }
    }

    /// Wakes the thread if it sleeps. Call a fence after publishing, and before this.
    #[inline]
    fn wake(&self) {
        // Relaxed: the fence orders the load.
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.wake_anyway();
        }
    }

    /// Wakes the thread, whether it sleeps or is about to.
    pub(super) fn wake_anyway(&self) {
        let _ = write(&self.event, &1_u64.to_ne_bytes());
        // Release: pairs with `drain`, which reads the event after it.
        self.written.store(true, Ordering::Release);
    }
}

/// The threads to wake when a ring has new slots.
#[derive(Debug, Default)]
pub(super) struct Wakers(RwLock<Vec<Weak<Waker>>>);

impl Wakers {
    /// Adds a thread's waker.
    pub(super) fn add(&self, waker: &Arc<Waker>) {
        let mut wakers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        wakers.retain(|it| it.strong_count() > 0);
        wakers.push(Arc::downgrade(waker));
    }

    /// Wakes the threads that sleep.
    #[inline]
    pub(super) fn wake(&self) {
        // Pairs with the fence in `arm`: this side sees the flag, or the other side sees the new slots.
        fence(Ordering::SeqCst);
        let wakers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        wakers.iter().filter_map(Weak::upgrade).for_each(|waker| waker.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads how many wake-ups have come.
    fn count(waker: &Waker) -> Result<u64, Errno> {
        let mut bytes = [0; 8];
        read(&waker.event, &mut bytes).map(|_| u64::from_ne_bytes(bytes))
    }

    #[test]
    fn only_a_sleeper_is_woken_and_once() {
        let (wakers, waker) = (Wakers::default(), Arc::new(Waker::new().unwrap()));
        wakers.add(&waker);
        wakers.wake();
        assert_eq!(count(&waker), Err(Errno::EAGAIN), "it does not sleep");
        waker.arm();
        wakers.wake();
        wakers.wake();
        assert_eq!(count(&waker), Ok(1));
        waker.arm();
        wakers.wake();
        waker.arm();
        assert_eq!(count(&waker), Err(Errno::EAGAIN), "an earlier wake-up ends no later sleep");
    }
}
