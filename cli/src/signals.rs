//! Signals as events to wait for: SIGINT, SIGTERM, SIGHUP and SIGQUIT request the end of a command, SIGUSR1
//! requests the ledger so far, SIGUSR2 that `capture --keep` writes the packets in memory.
//!
//! A SIGHUP that the caller ignores (nohup) stays ignored. A dropped session may send SIGHUP twice, and a
//! service manager SIGTERM and SIGHUP. So after the first request for the end only SIGINT and SIGQUIT end the
//! process at once, and not while they may repeat that request: timeout(1) signals its child, then its group.

use std::io::Stdout;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use sluicegate::error::{Error, Result};

use crate::pipe_reader;

/// Signals that request the end of a command.
const END: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
/// Signals that end the process at once after an earlier request for the end.
const END_AT_ONCE: [Signal; 2] = [Signal::SIGINT, Signal::SIGQUIT];
/// Within this time after a request for the end, signals count as the same request. A second key press takes
/// longer.
const SAME_REQUEST: Duration = Duration::from_millis(200);
/// The signal that requests the ledger so far.
const LEDGER: Signal = Signal::SIGUSR1;
/// The signal that requests to write the packets in memory.
const SAVE: Signal = Signal::SIGUSR2;
const FLAGS: SfdFlags = SfdFlags::SFD_CLOEXEC.union(SfdFlags::SFD_NONBLOCK);
/// The exit status of a process that ends at once.
const STATUS_AT_ONCE: i32 = 130;

/// Blocks the signals that never end a command, in this thread and those it starts: SIGUSR1, even before
/// there is a ledger, SIGUSR2, and SIGXFSZ. Then a write beyond the file size limit fails with EFBIG.
pub fn hold_harmless() -> Result<()> {
    block(&SigSet::from_iter([LEDGER, SAVE, Signal::SIGXFSZ]))
}

/// Blocks the signals that end a command, in this thread and those it starts, because any other thread would
/// receive them with their default action.
pub fn hold() -> Result<SigSet> {
    let mut set = SigSet::from_iter(END);
    if is_ignored(Signal::SIGHUP) {
        set.remove(Signal::SIGHUP);
    }
    block(&set)?;
    Ok(set)
}

fn block(set: &SigSet) -> Result<()> {
    set.thread_block().map_err(|error| Error::system("catch", "signals", error))
}

/// Returns true if the process ignores a signal, as `nohup` arranges.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (signal as u32 - 1) != 0)
}

/// The signals of a command, blocked and readable.
///
/// After the drop they have their default action again, because printing the result may wait for a reader. If
/// the end was requested, they stay blocked instead, and [`Signals::end_at_second`] applies.
pub struct Signals {
    blocked: SigSet,
    shared: Arc<SignalState>,
}

struct SignalState {
    fd: SignalFd,
    /// When a signal first requested the end.
    end_asked: OnceLock<Instant>,
    /// A signal has requested the ledger, which has not been printed since.
    ledger_asked: AtomicBool,
    /// A signal has requested to write the packets in memory, which has not been done since.
    save_asked: AtomicBool,
    /// A thread ends the process at the second signal.
    watched: AtomicBool,
}

impl Signals {
    /// Starts to catch the signals.
    pub fn catch() -> Result<Self> {
        let blocked = hold()?;
        hold_harmless()?;
        let mut read = blocked;
        read.add(LEDGER);
        read.add(SAVE);
        let fd = SignalFd::with_flags(&read, FLAGS)
            .map_err(|error| Error::system("catch", "signals", error))?;
        let shared = SignalState {
            fd,
            end_asked: OnceLock::new(),
            ledger_asked: AtomicBool::new(false),
            save_asked: AtomicBool::new(false),
            watched: AtomicBool::new(false),
        };
        Ok(Self { blocked, shared: Arc::new(shared) })
    }

    /// Takes a pending signal; returns true if it requests the end.
    pub fn take(&self) -> bool {
        let ends = match self.shared.fd.read_signal() {
            Ok(Some(signal)) => self.shared.note(&signal).is_some(),
            Ok(None) | Err(_) => false,
        };
        // The kernel delivers SIGHUP before an earlier SIGUSR1, because its number is lower.
        if ends
            && let Ok(requests) = SignalFd::with_flags(&SigSet::from_iter([LEDGER, SAVE]), FLAGS)
        {
            while let Ok(Some(signal)) = requests.read_signal() {
                self.shared.note(&signal);
            }
        }
        ends
    }

    /// Returns true if a signal has requested the current ledger, once per signal.
    pub fn take_ledger_request(&self) -> bool {
        self.shared.ledger_asked.swap(false, Ordering::Relaxed)
    }

    /// Returns true if a signal has requested to write the packets in memory, once per signal.
    pub fn take_save_request(&self) -> bool {
        self.shared.save_asked.swap(false, Ordering::Relaxed)
    }

    /// From now on, SIGINT or SIGQUIT after a request for the end ends the process with status 130, because
    /// the rest of the work may wait for a reader or a disk. A separate thread reads the signals; the caller
    /// takes no more.
    pub fn end_at_second(&self) -> Result<()> {
        if self.shared.watched.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("signals".into());
        let thread = thread.spawn(move || shared.watch());
        thread.map(|_| ()).map_err(|e| Error::start("the thread for signals", e))
    }

    /// Returns true if a signal has requested the end, also one that the thread of
    /// [`end_at_second`](Self::end_at_second) has taken.
    pub fn end_is_requested(&self) -> bool {
        self.shared.end_asked.get().is_some()
    }

    /// Waits until `deadline`. Returns true if a signal requests the end before it, or the reader of standard output
    /// leaves.
    pub fn wait(&self, deadline: Instant) -> Result<bool> {
        self.wait_beside(pipe_reader::stdout_reader().as_ref(), deadline)
    }

    /// Waits as [`wait`](Self::wait) does, for a signal alone: the reader of standard output gets nothing yet.
    pub fn wait_for_signal(&self, deadline: Instant) -> Result<bool> {
        self.wait_beside(None, deadline)
    }

    fn wait_beside(&self, reader: Option<&Stdout>, deadline: Instant) -> Result<bool> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, so that the last fraction of a millisecond is not spent spinning.
            let left = left + Duration::from_micros(999);
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut fds = vec![PollFd::new(self.as_fd(), PollFlags::POLLIN)];
            fds.extend(reader.map(pipe_reader::entry));
            match poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(Error::system("wait for", "signals", error)),
            }
            if self.take() || fds.get(1).is_some_and(pipe_reader::has_left) {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }
}

impl SignalState {
    /// Records the request of a signal. Returns the signal if it requests the end.
    fn note(&self, signal: &siginfo) -> Option<Signal> {
        let signal = Signal::try_from(signal.ssi_signo.cast_signed()).ok()?;
        // `Relaxed` suffices: the flag publishes no other data.
        let request = match signal {
            LEDGER => &self.ledger_asked,
            SAVE => &self.save_asked,
            _ => {
                self.end_asked.get_or_init(Instant::now);
                return Some(signal);
            }
        };
        request.store(true, Ordering::Relaxed);
        None
    }

    /// Reads signals until one ends the process.
    fn watch(&self) {
        loop {
            // Reading reports the same error.
            let _ = poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
            let asked_before = self.end_asked.get().is_some_and(|at| at.elapsed() > SAME_REQUEST);
            match self.fd.read_signal() {
                Ok(Some(signal)) => {
                    let signal = self.note(&signal);
                    if asked_before && signal.is_some_and(|signal| END_AT_ONCE.contains(&signal)) {
                        std::process::exit(STATUS_AT_ONCE);
                    }
                }
                Ok(None) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// The descriptor is readable when a signal is pending.
impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // A pending signal would end the process.
        while let Ok(Some(signal)) = self.shared.fd.read_signal() {
            self.shared.note(&signal);
        }
        if self.shared.end_asked.get().is_some() && self.end_at_second().is_ok() {
            return;
        }
        // It fails only for an invalid set.
        let _ = self.blocked.thread_unblock();
    }
}
