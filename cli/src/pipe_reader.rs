//! The reader of a pipe on standard output, whose exit ends a command that waits.

use std::io::{Stdout, stdout};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags};
use nix::sys::stat::{SFlag, fstat};

/// Returns standard output if it is a pipe. A terminal that hung up ends no command: after `disown`, it goes on.
pub fn stdout_pipe() -> Option<Stdout> {
    let stdout = stdout();
    let mode = fstat(&stdout).ok()?.st_mode;
    (mode & SFlag::S_IFMT.bits() == SFlag::S_IFIFO.bits()).then_some(stdout)
}

/// Returns an entry for poll(2) that reports the exit of a pipe's reader.
pub fn entry(pipe: &Stdout) -> PollFd<'_> {
    // No event is requested: poll reports the error of a pipe without a reader in any case.
    PollFd::new(pipe.as_fd(), PollFlags::empty())
}

/// Returns true if poll(2) reported the exit of the reader.
pub fn has_left(entry: &PollFd<'_>) -> bool {
    entry.revents().is_some_and(|events| events.contains(PollFlags::POLLERR))
}
