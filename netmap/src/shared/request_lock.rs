//! The lock of a file's requests: each answer goes to the thread that has sent the request.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// The sleep of a thread that waits for another thread's request.
const LOCK_INTERVAL: Duration = Duration::from_micros(100);

/// A lock between threads. A forked child finds it free.
#[derive(Debug, Default)]
pub struct ThreadLock {
    /// The process of the thread that has it, or 0.
    process: AtomicU32,
}

/// The lock of a thread, until it is dropped.
#[derive(Debug)]
pub struct ThreadGuard<'a>(&'a ThreadLock);

impl ThreadLock {
    /// Makes a lock.
    pub const fn new() -> Self {
        Self { process: AtomicU32::new(0) }
    }

    /// Waits until no thread of this process has the lock, and takes it.
    pub fn lock(&self) -> ThreadGuard<'_> {
        let process = std::process::id();
        loop {
            let holder = self.process.load(Ordering::Relaxed);
            // A fork has copied another process's number.
            if holder != process
                // Acquire: pairs with `drop`.
                && self
                    .process
                    .compare_exchange(holder, process, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return ThreadGuard(self);
            }
            std::thread::sleep(LOCK_INTERVAL);
        }
    }
}

impl Drop for ThreadGuard<'_> {
    fn drop(&mut self) {
        self.0.process.store(0, Ordering::Release);
    }
}

/// The lock of a request, against threads and other processes.
pub(super) struct RequestGuard<'a> {
    socket: BorrowedFd<'a>,
    _threads: ThreadGuard<'a>,
}

/// Locks a file for a request. Other processes are kept out by a lock of the socket, which ends with the process that
/// has it, or when the process closes any descriptor of the socket.
pub(super) fn lock_requests<'a>(
    threads: &'a ThreadLock,
    socket: BorrowedFd<'a>,
) -> RequestGuard<'a> {
    let guard = RequestGuard { socket, _threads: threads.lock() };
    // EDEADLK: threads of two processes that wait for each other's process, although not for each other.
    while let Err(Errno::EINTR | Errno::EDEADLK) = lock_file(socket, libc::F_WRLCK, true) {
        std::thread::sleep(LOCK_INTERVAL);
    }
    guard
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        unlock(self.socket);
    }
}

/// Locks against other processes, if none of them has the lock.
///
/// # Errors
/// EAGAIN, EACCES: another process has it.
pub(super) fn try_lock_out_processes(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    lock_file(socket, libc::F_WRLCK, false)
}

/// Ends the lock against other processes.
pub(super) fn unlock(socket: BorrowedFd<'_>) {
    let _ = lock_file(socket, libc::F_UNLCK, false);
}

/// Sets the lock of this process on a file, and may wait for others.
fn lock_file(file: BorrowedFd<'_>, kind: i32, waits: bool) -> Result<(), Errno> {
    let whole = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    let argument = if waits { FcntlArg::F_SETLKW(&whole) } else { FcntlArg::F_SETLK(&whole) };
    fcntl(file, argument).map(drop)
}
