//! Wakes a sleeping reader: a flag in the ring, and a file that becomes readable.
//!
//! ```text
//!   writer                              reader
//!   store PRODUCED                      store WAKE_AT, ASLEEP
//!   fence                               fence
//!   load ASLEEP: 0, or too early: done  load PRODUCED: WAKE_AT reached: stay awake
//!   clear ASLEEP, make file readable    sleep until the file is readable, or for the limit
//! ```
//!
//! While the reader is awake, a writer only pays for the load of a flag that is in its cache. `WAKE_AT`
//! lets a reader sleep until the ring has filled to a level, and then be woken once.
//!
//! With both fences, at least one side sees the other's store. A writing thread has its fence
//! ([`SleepFlag::due`]). The XDP program has none on x86: it would wait, for each packet, until all the
//! packet's bytes have reached the cache. There a store of `PRODUCED` may become visible some 100 ns after
//! the load of `ASLEEP`. So a reader that wants packets at once polls for longer than that
//! ([`STORE_DELAY`]) before it sleeps. The sleep's limit bounds the remaining delay.
//!
//! If a thread writes, the file is the reader's end of a socket pair. If the XDP program writes, it is a
//! BPF ring buffer (BPF_RB_FORCE_WAKEUP, Linux 5.8). The reader cannot block the writer through either: a
//! full socket or buffer is readable already.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nix::sys::socket::{MsgFlags, recv, send};

use super::CellRing;
use super::at;
use sluicegate_base::memory::{Mmap, PAGE_BYTES};
use sluicegate_base::ring::{AtomicU32, Ordering, fence};

/// Time within which a store of another CPU becomes visible.
pub(super) const STORE_DELAY: Duration = Duration::from_micros(2);

/// Maximum number of wake-ups discarded at once. A writer sends one per sleep.
const MAX_DRAINED: u32 = 64;

/// The file that a sleeping reader waits for.
#[derive(Debug)]
pub(crate) enum WakeSource {
    /// The reader's end of a pair of sockets.
    Socket(OwnedFd),
    /// A BPF ring buffer, and the pages with its consumer and producer positions.
    Kernel { buffer: OwnedFd, consumer: Mmap, producer: Mmap },
}

impl WakeSource {
    /// Maps the positions of a BPF ring buffer.
    ///
    /// # Errors
    /// The kernel refuses to map it.
    pub(crate) fn of_buffer(buffer: OwnedFd) -> std::io::Result<Self> {
        let consumer = Mmap::shared(buffer.as_fd(), PAGE_BYTES)?;
        let producer = Mmap::read_only(buffer.as_fd(), PAGE_BYTES as i64, PAGE_BYTES)?;
        Ok(Self::Kernel { buffer, consumer, producer })
    }

    /// Discards the wake-ups up to now. Never waits.
    pub(crate) fn drain(&self) {
        match self {
            Self::Socket(socket) => {
                let next = || recv(socket.as_raw_fd(), &mut [0u8; 64], MsgFlags::MSG_DONTWAIT);
                // Limited, because another process may send without end.
                let _ = (0..MAX_DRAINED).all(|_| matches!(next(), Ok(1..)));
            }
            Self::Kernel { consumer, producer, .. } => {
                // Both pair with __bpf_ringbuf_reserve, which stores the producer's position by release and
                // reads the consumer's by acquire. The reader may skip all records up to there.
                let produced = position(producer).load(Ordering::Acquire);
                position(consumer).store(produced, Ordering::Release);
            }
        }
    }
}

/// Returns the position in a page of a ring buffer.
fn position(page: &Mmap) -> &AtomicU64 {
    // SAFETY: the first word of the mapping, which the borrow keeps. The kernel accesses it as a whole
    // (kernel/bpf/ringbuf.c), and this process only by atomic operations.
    unsafe { page.at(0).cast().as_ref() }
}

impl AsFd for WakeSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Socket(socket) => socket.as_fd(),
            Self::Kernel { buffer, .. } => buffer.as_fd(),
        }
    }
}

/// Wakes the reader of a socket. Never waits: a full socket is readable already, and MSG_DONTWAIT belongs
/// to the call, so the reader cannot change it.
pub(super) fn wake(socket: &OwnedFd) {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    // A reader that has exited needs no wake-up.
    let _ = send(socket.as_raw_fd(), &[0], flags);
}

/// The words of a ring that control a reader's sleep.
#[derive(Clone, Copy, Debug)]
pub(super) struct SleepFlag<'a> {
    asleep: &'a AtomicU32,
    wake_at: &'a AtomicU32,
}

impl<'a> SleepFlag<'a> {
    pub(super) fn of(ring: &'a CellRing) -> Self {
        Self { asleep: ring.word(at::ASLEEP), wake_at: ring.word(at::WAKE_AT) }
    }

    /// Asks the writer to wake the reader when its index reaches `wake_at`. The reader may sleep if the index
    /// has not reached it after this and a [`fence`].
    pub(super) fn set(self, wake_at: u32) {
        // Pairs with the load in `due`; the release below publishes it.
        self.wake_at.store(wake_at, Ordering::Relaxed);
        // Release: pairs with the writer's acquiring load in `due`; it sees this `wake_at`, not an old
        // one.
        self.asleep.store(1, Ordering::Release);
    }

    /// Tells the writer that the reader is awake.
    pub(super) fn clear(self) {
        // Pairs with the load in `due`, and publishes nothing: a late store costs one wake-up.
        self.asleep.store(0, Ordering::Relaxed);
    }

    /// Returns true if the writer, which has stored the index `produced`, must wake the reader: at most
    /// once per sleep.
    pub(super) fn due(self, produced: u32) -> bool {
        // Pairs with the reader's fence between setting the flag and its last check.
        fence(Ordering::SeqCst);
        // Acquire: pairs with the reader's release in `set`.
        if self.asleep.load(Ordering::Acquire) == 0 {
            return false;
        }
        // Pairs with the store in `set`, by the acquire above.
        let due = is_reached(produced, self.wake_at.load(Ordering::Relaxed));
        if due {
            // Only this side reads the flag, so it pairs with its own load.
            self.asleep.store(0, Ordering::Relaxed);
        }
        due
    }
}

/// Returns true if a wrapping index has reached another.
#[inline]
pub(super) fn is_reached(index: u32, at: u32) -> bool {
    index.wrapping_sub(at).cast_signed() >= 0
}

/// The interleavings of flag and index. Run them like those of `Cursor` (`ring/cursor.rs`).
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    #[derive(Debug)]
    struct Shared {
        produced: AtomicU32,
        asleep: AtomicU32,
        wake_at: AtomicU32,
        woken: AtomicBool,
    }

    impl Shared {
        fn flag(&self) -> SleepFlag<'_> {
            SleepFlag { asleep: &self.asleep, wake_at: &self.wake_at }
        }
    }

    #[test]
    fn loom_a_reader_that_sleeps_at_a_level_is_woken_when_it_is_reached() {
        for level in [1, 2] {
            loom::model(move || {
                let start = u32::MAX;
                let shared = Arc::new(Shared {
                    produced: AtomicU32::new(start),
                    asleep: AtomicU32::new(0),
                    // From an earlier sleep.
                    wake_at: AtomicU32::new(start.wrapping_sub(1)),
                    woken: AtomicBool::new(false),
                });
                let theirs = Arc::clone(&shared);
                let writer = thread::spawn(move || {
                    for n in 1..=2 {
                        let produced = start.wrapping_add(n);
                        theirs.produced.store(produced, Ordering::Release);
                        if theirs.flag().due(produced) {
                            assert!(n >= level, "woken too early");
                            let before = theirs.woken.swap(true, Ordering::Relaxed);
                            assert!(!before, "woken twice");
                        }
                    }
                });
                let wake_at = start.wrapping_add(level);
                shared.flag().set(wake_at);
                fence(Ordering::SeqCst);
                let sleeps = !is_reached(shared.produced.load(Ordering::Acquire), wake_at);
                writer.join().unwrap();
                assert!(!sleeps || shared.woken.load(Ordering::Relaxed), "sleeps on");
            });
        }
    }
}
