//! A file's calls: entries in memory that client and server map, one for each thread of the client.
//!
//! ```text
//!   client thread                          server thread of the file
//!   entry: operation, events, state=ASKED
//!   set the entry's bit in `asked`     ->  take the bits; for each: perform, write the answer,
//!   server asleep? ring                    state=ANSWERED; client asleep? wake the futex
//!   spin, then sleep on `state`        <-
//! ```
//!
//! A client may write anything here at any time. It can only confuse itself: the server reads an operation once, and
//! answers whatever entry's bit is set.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::sys::time::TimeSpec;
use sluicegate_base::memory::Mmap;

use crate::engine::check_size;

/// Entries of a file, so threads that may use it at one time.
pub(super) const ENTRIES: usize = 63;

/// States of an entry.
const IDLE: u32 = 0;
/// The server has to answer, and the client spins.
const ASKED: u32 = 1;
/// The server has to answer, and the client sleeps on the state.
const AWAITED: u32 = 2;
const ANSWERED: u32 = 3;

/// A call of a client.
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
    /// The namespace of the owners' thread numbers.
    pid_namespace: AtomicU64,
}

#[repr(C)]
struct Page {
    head: Head,
    entries: [Entry; ENTRIES],
}

const _: () = assert!(size_of::<Page>() == 4096);

/// The memory, and this side's socket of the pair that wakes the server. Calls on sockets have flags of their own, so a
/// client cannot make the server's wait.
#[derive(Debug)]
pub(super) struct Doorbell {
    memory: OwnedFd,
    map: Mmap,
    socket: OwnedFd,
}

impl Doorbell {
    /// Makes a doorbell. Returns the client's socket of the pair, too.
    ///
    /// # Errors
    /// ENOMEM, EMFILE.
    pub(super) fn new() -> Result<(Self, OwnedFd), Errno> {
        let (memory, map) = Mmap::memfd(c"sluice-netmap-calls", size_of::<Page>(), false)
            .map_err(|error| error.errno().map_or(Errno::ENOMEM, Errno::from_raw))?;
        let (socket, end) = wake_pair()?;
        Ok((Self { memory, map, socket }, end))
    }

    /// Maps the server's doorbell.
    ///
    /// # Errors
    /// EPROTO: it is too short, or can be shortened. The kernel refuses.
    pub(super) fn open(memory: OwnedFd, socket: OwnedFd) -> Result<Self, Errno> {
        check_size(memory.as_fd(), size_of::<Page>() as u64)?;
        let map = Mmap::shared(memory.as_fd(), size_of::<Page>());
        let map = map.map_err(|error| super::message::errno(&error))?;
        Ok(Self { memory, map, socket })
    }

    /// Returns the memory file.
    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Returns this side's socket: the server's is readable when a client has woken it.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping has a page: `new` makes it, and `open` checks it and that the file cannot shrink.
        // It stays as long as `self`, and has only atomics, for which any bytes are valid; both sides access it as such.
        unsafe { self.map.base().cast().as_ref() }
    }
}

/// The client's side.
impl Doorbell {
    /// Sets the PID namespace of the threads, before the file is shared.
    pub(super) fn set_pid_namespace(&self, inode: u64) {
        self.page().head.pid_namespace.store(inode, Ordering::Relaxed);
    }

    /// Returns the PID namespace of the threads.
    #[inline]
    pub(super) fn pid_namespace(&self) -> u64 {
        self.page().head.pid_namespace.load(Ordering::Relaxed)
    }

    /// Claims an entry for a thread that is in no call: its own, a free one, or one whose owner `has_exited`. None if
    /// there is none, or if a call of a killed thread with the same number is not answered yet.
    pub(super) fn claim(&self, thread: u32, has_exited: impl Fn(u32) -> bool) -> Option<usize> {
        let entries = &self.page().entries;
        let owner = |it: &Entry| it.owner.load(Ordering::Relaxed);
        let is_answered = |it: &Entry| matches!(it.state.load(Ordering::Relaxed), IDLE | ANSWERED);
        let own = entries.iter().position(|it| owner(it) == thread);
        let claimed = match own {
            Some(own) => is_answered(&entries[own]).then_some(own),
            None => entries.iter().position(|entry| {
                let owner = owner(entry);
                (owner == 0 || has_exited(owner) && is_answered(entry))
                    // AcqRel: what the previous owner did to the entry is done.
                    && entry.owner.compare_exchange(owner, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            }),
        };
        if let Some(claimed) = claimed {
            entries[claimed].state.store(IDLE, Ordering::Relaxed);
        }
        claimed
    }

    /// Returns true once if calls have made lines for the user.
    #[inline]
    pub(super) fn take_lines(&self) -> bool {
        let lines = &self.page().head.lines;
        // Relaxed: the answer of the call, which was read with Acquire, publishes it.
        lines.load(Ordering::Relaxed) != 0 && lines.swap(0, Ordering::Relaxed) != 0
    }

    /// Makes a call, and waits for the answer. `lives` reports whether the server still exists; it is called every
    /// [`CHECK_INTERVAL`].
    ///
    /// # Errors
    /// ENXIO: the server does not exist.
    pub(super) fn call(
        &self,
        entry: usize,
        operation: Operation,
        spins: u32,
        lives: impl Fn() -> bool,
    ) -> Result<u32, Errno> {
        let page = self.page();
        let it = &page.entries[entry];
        it.state.store(ASKED, Ordering::Relaxed);
        it.operation.store(operation.encode(), Ordering::Relaxed);
        // SeqCst: pairs with `announce_sleep`. The server sees the bit, or this side sees that it sleeps. Also Release:
        // publishes the entry, and what the program has written into the rings.
        page.head.asked.fetch_or(1 << entry, Ordering::SeqCst);
        if page.head.asleep.load(Ordering::SeqCst) == 1
            && page.head.asleep.swap(0, Ordering::SeqCst) == 1
        {
            wake(&self.socket);
        }
        let has_answered = || {
            (0..spins).any(|_| {
                std::hint::spin_loop();
                // Acquire: pairs with the Release in `answer`, which publishes rings and answer.
                it.state.load(Ordering::Acquire) == ANSWERED
            })
        };
        while !has_answered() {
            let ordering = Ordering::Acquire;
            if it.state.compare_exchange(ASKED, AWAITED, ordering, ordering) == Err(ANSWERED) {
                break;
            }
            futex_wait(&it.state, AWAITED, CHECK_INTERVAL);
            if it.state.load(ordering) == ANSWERED {
                break;
            }
            // Another process that was to wake the server may have exited before it did.
            wake(&self.socket);
            if !lives() {
                it.state.store(IDLE, Ordering::Relaxed);
                return Err(Errno::ENXIO);
            }
        }
        let answer = it.answer.load(Ordering::Relaxed);
        it.state.store(IDLE, Ordering::Relaxed);
        Ok(answer)
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
        drain(&self.socket);
    }
}

/// Makes the pair of sockets of a wake-up: the server's, and the client's.
///
/// # Errors
/// EMFILE.
pub(super) fn wake_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (own, client) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
    refuse_files(&own);
    Ok((own, client))
}

/// Wakes the other side of a pair. Never waits, and raises no SIGPIPE.
pub(super) fn wake(socket: &OwnedFd) {
    // A full buffer wakes it as well, and the end of the other side shows elsewhere.
    let _ = send(socket.as_raw_fd(), &[1], MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT);
}

/// Reads earlier wake-ups. Never waits.
pub(super) fn drain(socket: &OwnedFd) {
    let _ = recv(socket.as_raw_fd(), &mut [0; 64], MsgFlags::MSG_DONTWAIT);
}

/// Makes the kernel refuse descriptors that a client sends: closing one may take long. Linux 6.16; before, only the
/// thread of that client waits.
pub(super) fn refuse_files(socket: &OwnedFd) {
    const SO_PASSRIGHTS: i32 = 83;
    let off = 0i32;
    // SAFETY: the option's value is an int, which lives as long as the call.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            size_of::<i32>() as u32,
        );
    }
}

/// Sleeps until the word changes or the time is over; both processes share it.
fn futex_wait(word: &AtomicU32, expected: u32, time: Duration) {
    let time = TimeSpec::from_duration(time);
    // SAFETY: futex(2) reads the word, which is mapped, and the time, which lives as long as the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, time.as_ref())
    };
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: futex(2) uses the address only as a key.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}
