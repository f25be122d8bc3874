//! Keeps descriptors off the numbers of stdin, stdout and stderr, which a daemon may have closed: its lines would go into
//! them.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// Moves a descriptor off these numbers.
///
/// # Errors
/// EMFILE.
pub(crate) fn above_streams(file: OwnedFd) -> Result<OwnedFd, Errno> {
    if file.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(file);
    }
    let moved = fcntl(&file, FcntlArg::F_DUPFD_CLOEXEC(libc::STDERR_FILENO + 1))?;
    // SAFETY: the kernel has just made the descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(moved) })
}
