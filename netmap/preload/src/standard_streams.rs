//! Keeps the engine's descriptors off the numbers of stdin, stdout and stderr.
//!
//! A daemon may have closed these before it opens a port. A line on stderr, of the program or of this library,
//! would then go into a socket or a ring's memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::real;

/// The closed ones of descriptors 0 to 2 are in use until this is dropped: new descriptors get higher numbers.
pub struct Reserved {
    _files: Vec<File>,
}

impl Reserved {
    /// Opens /dev/null in place of the closed ones. Without it, the engine may get their numbers.
    pub fn new() -> Self {
        let closed = (0..=libc::STDERR_FILENO).filter(|fd| !is_open(*fd)).count();
        let files = (0..closed).filter_map(|_| File::open("/dev/null").ok());
        Self { _files: files.filter(|it| it.as_raw_fd() <= libc::STDERR_FILENO).collect() }
    }
}

fn is_open(fd: libc::c_int) -> bool {
    // SAFETY: the command has no argument.
    unsafe { real::fcntl64(fd, libc::F_GETFD, 0) >= 0 }
}
