//! The end of a process, as an event to wait for.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use sluicegate::Error;

/// Readable when a process has exited: a pidfd (pidfd_open(2), Linux 5.3).
#[derive(Debug)]
pub struct ProcessEnd(OwnedFd);

impl ProcessEnd {
    /// Finds a process.
    ///
    /// # Errors
    /// There is no such process.
    pub fn of(process: i32) -> Result<Self, Error> {
        // SAFETY: the call reads two numbers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
        let fd = Errno::result(fd);
        let fd = fd.map_err(|errno| Error::system("watch", format!("process {process}"), errno))?;
        // SAFETY: the kernel has just made the descriptor for this process; it sets FD_CLOEXEC.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }
}

impl AsFd for ProcessEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
