//! SIGINT and SIGTERM as something to wait for, in place of the end of everything.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use sluicegate::error::{Error, Result};

/// Holds the signals back until somebody takes them, in this thread and in those it starts from
/// now on: any other would take them with their default action.
pub fn hold() -> Result<SigSet> {
    let set = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    set.thread_block().map_err(|error| Error::system("catch", "signals", error))?;
    Ok(set)
}

/// The signals that end a command, held and readable. When it goes, they end the process at once
/// again: what is left to do then may wait for a reader.
pub struct Signals {
    held: SigSet,
    fd: Arc<SignalFd>,
}

impl Signals {
    /// Catches them from now on.
    pub fn catch() -> Result<Self> {
        let held = hold()?;
        let fd = SignalFd::with_flags(&held, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(|error| Error::system("catch", "signals", error))?;
        Ok(Self { held, fd: Arc::new(fd) })
    }

    /// Takes one, if one has come.
    pub fn take(&self) -> bool {
        matches!(self.fd.read_signal(), Ok(Some(_)))
    }

    /// From now on the second signal ends the process with status 130; the first, if the run was
    /// `asked` to end by one. Files are being completed, which may wait for a reader or a disk.
    pub fn end_at_second(&self, mut asked: bool) -> Result<()> {
        let fd = Arc::clone(&self.fd);
        let watch = move || {
            loop {
                // What goes wrong with it, reading will tell.
                let _ = poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
                match fd.read_signal() {
                    Ok(Some(_)) if asked => std::process::exit(130),
                    Ok(Some(_)) => asked = true,
                    Ok(None) | Err(Errno::EINTR) => {}
                    Err(_) => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("signals".into()).spawn(watch);
        thread.map(|_| ()).map_err(|e| Error::system("start", "the thread for signals", e))
    }

    /// Waits until `deadline`; true where one came before.
    pub fn wait(&self, deadline: Instant) -> Result<bool> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, or the last fraction of a millisecond would be spent spinning.
            let left = left + Duration::from_micros(999);
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(Error::system("wait for", "signals", error)),
            }
            if self.take() {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }
}

/// Readable when one has come.
impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // It can fail only for a set that is none.
        let _ = self.held.thread_unblock();
    }
}
