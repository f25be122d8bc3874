//! A file's calls: entries in memory that client and server map, one for each thread of the client.
//!
//! ```text
//!   client thread                          server thread of the file
//!   entry: operation, events, state=ASKED
//!   set the entry's bit in `asked`     ->  take the bits; for each: perform, write the answer,
//!   server asleep? write the eventfd       state=ANSWERED; client asleep? wake the futex
//!   spin, then sleep on `state`        <-
//! ```
//!
//! A client may write anything here at any time. It can only confuse itself: the server reads an operation once, and
//! answers whatever entry's bit is set.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use sluicegate_base::memory::Mmap;

/// Entries of a file, so threads that may use it at one time.
pub(super) const ENTRIES: usize = 63;

/// States of an entry.
const IDLE: u32 = 0;
/// The server has to answer, and the client spins.
const ASKED: u32 = 1;
/// The server has to answer, and the client sleeps on the state.
const AWAITED: u32 = 2;
const ANSWERED: u32 = 3;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// NIOCTXSYNC.
    TxSync,
    /// NIOCRXSYNC.
    RxSync,
    /// The syncs of poll(2), for these events.
    Poll(u16),
    /// Preparation of a sleep for these events. The answer: the longest sleep in µs, or [`NO_LIMIT`].
    Arm(u16),
}

/// No limit of a sleep.
pub(super) const NO_LIMIT: u32 = u32::MAX;

impl Operation {
    fn encode(self) -> u32 {
        let (number, events) = match self {
            Self::TxSync => (0, 0),
            Self::RxSync => (1, 0),
            Self::Poll(events) => (2, events),
            Self::Arm(events) => (3, events),
        };
        number << 16 | u32::from(events)
    }

    fn decode(word: u32) -> Option<Self> {
        let events = word as u16;
        match word >> 16 {
            0 => Some(Self::TxSync),
            1 => Some(Self::RxSync),
            2 => Some(Self::Poll(events)),
            3 => Some(Self::Arm(events)),
            _ => None,
        }
    }
}

/// One thread's call. A cache line of its own.
#[repr(C, align(64))]
struct Entry {
    /// The client's thread that has the entry, or 0.
    owner: AtomicU32,
    state: AtomicU32,
    operation: AtomicU32,
    answer: AtomicU32,
}

#[repr(C, align(64))]
struct Head {
    /// A bit for each entry whose call the server has not taken.
    asked: AtomicU64,
    /// 1 while the server sleeps, or is about to.
    asleep: AtomicU32,
    /// 1 if a call has made lines for the user, which the client has not asked for.
    lines: AtomicU32,
}

#[repr(C)]
struct Page {
    head: Head,
    entries: [Entry; ENTRIES],
}

const _: () = assert!(size_of::<Page>() == 4096);

/// The memory, and the eventfd that wakes the server.
#[derive(Debug)]
pub(super) struct Doorbell {
    memory: OwnedFd,
    map: Mmap,
    event: EventFd,
}

impl Doorbell {
    /// Makes a doorbell.
    ///
    /// # Errors
    /// ENOMEM, EMFILE.
    pub(super) fn new() -> Result<Self, Errno> {
        let (memory, map) = Mmap::memfd(c"sluice-netmap-calls", size_of::<Page>(), false)
            .map_err(|error| error.errno().map_or(Errno::ENOMEM, Errno::from_raw))?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self { memory, map, event: EventFd::from_value_and_flags(0, flags)? })
    }

    /// Maps the server's doorbell.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn open(memory: OwnedFd, event: OwnedFd) -> Result<Self, Errno> {
        let map = Mmap::shared(memory.as_fd(), size_of::<Page>());
        let map = map.map_err(|error| super::message::errno(&error))?;
        // SAFETY: the server sent an eventfd as the second file.
        Ok(Self { memory, map, event: unsafe { EventFd::from_owned_fd(event) } })
    }

    /// Returns the memory file.
    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Returns the descriptor that wakes the server.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping has a page, zeroed at first, which stays as long as `self`; it is only atomics, for which
        // any bytes are valid, and both sides access it as such.
        unsafe { self.map.base().cast().as_ref() }
    }
}

/// The client's side.
impl Doorbell {
    /// Claims an entry for a thread: its own, a free one, or one whose owner `is_gone`.
    pub(super) fn claim(&self, thread: u32, is_gone: impl Fn(u32) -> bool) -> Option<usize> {
        let entries = &self.page().entries;
        let of =
            |owner: u32| entries.iter().position(|it| it.owner.load(Ordering::Relaxed) == owner);
        if let Some(own) = of(thread) {
            return Some(own);
        }
        for (index, entry) in entries.iter().enumerate() {
            let owner = entry.owner.load(Ordering::Relaxed);
            let is_answered = || matches!(entry.state.load(Ordering::Relaxed), IDLE | ANSWERED);
            if (owner == 0 || is_gone(owner) && is_answered())
                // AcqRel: what the previous owner did to the entry is done.
                && entry.owner.compare_exchange(owner, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                return Some(index);
            }
        }
        None
    }

    /// Returns true if a call of this entry is in progress.
    pub(super) fn is_busy(&self, entry: usize) -> bool {
        matches!(self.page().entries[entry].state.load(Ordering::Relaxed), ASKED | AWAITED)
    }

    /// Returns true once if calls have made lines for the user.
    #[inline]
    pub(super) fn take_lines(&self) -> bool {
        let lines = &self.page().head.lines;
        // Relaxed: the answer of the call, which was read with Acquire, publishes it.
        lines.load(Ordering::Relaxed) != 0 && lines.swap(0, Ordering::Relaxed) != 0
    }

    /// Asks the server, and waits for the answer. `lives` is asked now and then whether the server still exists.
    ///
    /// # Errors
    /// ENXIO: it does not.
    pub(super) fn call(
        &self,
        entry: usize,
        operation: Operation,
        spins: u32,
        lives: impl Fn() -> bool,
    ) -> Result<u32, Errno> {
        let page = self.page();
        let it = &page.entries[entry];
        it.operation.store(operation.encode(), Ordering::Relaxed);
        it.state.store(ASKED, Ordering::Relaxed);
        // SeqCst: pairs with `announce_sleep`. The server sees the bit, or this side sees that it sleeps. Also Release:
        // publishes the entry, and what the program has written into the rings.
        page.head.asked.fetch_or(1 << entry, Ordering::SeqCst);
        if page.head.asleep.load(Ordering::SeqCst) == 1
            && page.head.asleep.swap(0, Ordering::SeqCst) == 1
        {
            let _ = self.event.write(1);
        }
        for _ in 0..spins {
            // Acquire: pairs with the Release in `answer`, which publishes rings and answer.
            if it.state.load(Ordering::Acquire) == ANSWERED {
                return Ok(it.answer.load(Ordering::Relaxed));
            }
            std::hint::spin_loop();
        }
        loop {
            let asked =
                it.state.compare_exchange(ASKED, AWAITED, Ordering::Acquire, Ordering::Acquire);
            if asked == Err(ANSWERED) {
                return Ok(it.answer.load(Ordering::Relaxed));
            }
            futex_wait(&it.state, AWAITED, CHECK_INTERVAL);
            if it.state.load(Ordering::Acquire) == ANSWERED {
                return Ok(it.answer.load(Ordering::Relaxed));
            }
            if !lives() {
                it.state.store(IDLE, Ordering::Relaxed);
                return Err(Errno::ENXIO);
            }
        }
    }
}

/// The interval at which a waiting client looks whether the server still exists.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The server's side.
impl Doorbell {
    /// Takes the calls that clients have made: bits of entries.
    #[inline]
    pub(super) fn take(&self) -> u64 {
        let asked = &self.page().head.asked;
        // Relaxed: a look before the exchange, which is Acquire: it sees entries and rings.
        if asked.load(Ordering::Relaxed) == 0 { 0 } else { asked.swap(0, Ordering::AcqRel) }
    }

    /// Returns an entry's call; None if the client wrote none that exists.
    #[inline]
    pub(super) fn operation(&self, entry: usize) -> Option<Operation> {
        Operation::decode(self.page().entries[entry].operation.load(Ordering::Relaxed))
    }

    /// Announces that the call in progress has made lines for the user.
    pub(super) fn announce_lines(&self) {
        // Relaxed: `answer` publishes it.
        self.page().head.lines.store(1, Ordering::Relaxed);
    }

    /// Answers a call.
    #[inline]
    pub(super) fn answer(&self, entry: usize, answer: u32) {
        let it = &self.page().entries[entry];
        it.answer.store(answer, Ordering::Relaxed);
        // Release: publishes the answer and the rings. Acquire is not needed.
        if it.state.swap(ANSWERED, Ordering::Release) == AWAITED {
            futex_wake(&it.state);
        }
    }

    /// Announces the server's sleep. Returns false if a call has come: then it does not sleep.
    pub(super) fn announce_sleep(&self) -> bool {
        let head = &self.page().head;
        head.asleep.store(1, Ordering::SeqCst);
        // SeqCst: pairs with `call`.
        let is_idle = head.asked.load(Ordering::SeqCst) == 0;
        if !is_idle {
            self.end_sleep();
        }
        is_idle
    }

    /// Ends the server's sleep.
    pub(super) fn end_sleep(&self) {
        self.page().head.asleep.store(0, Ordering::Relaxed);
        let _ = self.event.read();
    }
}

/// Sleeps until the word changes or the time is over; both processes share it.
fn futex_wait(word: &AtomicU32, expected: u32, time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    // SAFETY: futex(2) reads the word, which is mapped, and the time, which lives as long as the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const time)
    };
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: futex(2) uses the address only as a key.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}
