//! Descriptors of netmap files in messages between processes (SCM_RIGHTS).
//!
//! ```text
//!   sender                                 receiver
//!   sendmsg: the file's socket             recvmsg: a socket that is connected to the server that this process uses?
//!   in place of the descriptor     --->    join the file; its descriptor takes the socket's number
//! ```
//!
//! Both processes share the file, as after a fork: the last of them closes it. A process without the library may pass
//! the socket on.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use sluicegate_netmap::shared::{RemoteFile, ThreadLock, server_of};

use crate::file::File;
use crate::standard_streams::Reserved;
use crate::table::{self, Handle, Object};
use crate::{calls, environment, host, log, real};

/// Returns the descriptor to send for a file, which lives as long as the file.
///
/// # Errors
/// EOPNOTSUPP: the engine is in this process.
pub fn send(file: &File) -> Result<c_int, Errno> {
    let Some(socket) = file.connection() else {
        log::error(
            "sendmsg: a process without a server cannot pass a port to another process; start `sluice netmap serve`, \
             and both programs with SLUICE_NETMAP_SERVER=SOCKET",
        );
        return Err(Errno::EOPNOTSUPP);
    };
    // Before the receiver may have it.
    file.note_sharing();
    Ok(socket.as_raw_fd())
}

/// Makes a received descriptor that stands for a netmap file a descriptor of that file. Leaves others as they are.
pub fn receive(fd: c_int) {
    // SAFETY: recvmsg(2) has just made the descriptor, which the program does not know yet.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let Some(path) = server_of(socket) else { return };
    if !environment::server_path().is_some_and(|own| is_same(&own, &path)) {
        return;
    }
    if let Err(errno) = join(socket) {
        let path = path.display();
        log::error(format_args!("recvmsg: cannot use a port of the server at {path}: {errno}"));
    }
}

/// Returns true if two paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().map(|it| (it.dev(), it.ino())).ok();
    one == other || identity(one).is_some_and(|it| identity(other) == Some(it))
}

/// Threads that receive a file at the same time join it once. The sender may let them wait, but not those that open files.
static JOINS: ThreadLock = ThreadLock::new();

fn join(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    if calls::is_interrupted() {
        // A signal handler in the middle of a call of its thread, which may have the locks.
        return Err(Errno::EAGAIN);
    }
    let _call = host::begin()?;
    let _reserved = Reserved::new();
    let alone = JOINS.lock();
    let handle = match known(socket) {
        Some(handle) => handle,
        None => {
            let own = socket.try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
            let file = File::new(Box::new(RemoteFile::join(own, log::from_engine)?))?;
            Handle::new(Object::Netmap(Arc::new(file))).ok_or(Errno::EMFILE)?
        }
    };
    drop(alone);
    let Object::Netmap(file) = &*handle else { return Err(Errno::EBADF) };
    let (fd, mut replaced) = (socket.as_raw_fd(), Ok(()));
    // Closing a socket ends the lock that a request of this process has on it.
    file.between_requests(&mut || replaced = replace(fd));
    replaced?;
    // Not during a fork, as in `host::open`.
    let _alone = host::lock();
    table::put(fd, handle).map(drop)
}

/// Makes a received descriptor one of an open file of this library.
fn replace(fd: c_int) -> Result<(), Errno> {
    // SAFETY: descriptors of this library, and the received one, which the program does not know yet.
    unsafe {
        let flags = Errno::result(real::fcntl64(fd, libc::F_GETFD, 0))?;
        let close_on_exec = if flags & libc::FD_CLOEXEC == 0 { 0 } else { libc::O_CLOEXEC };
        let empty = Errno::result(libc::epoll_create1(libc::EPOLL_CLOEXEC))?;
        let replaced = Errno::result(real::dup3(empty, fd, close_on_exec));
        real::close(empty);
        replaced.map(drop)
    }
}

/// Finds a file that this process has, by its socket.
fn known(socket: BorrowedFd<'_>) -> Option<Handle> {
    let wanted = cookie(socket)?;
    let is_it = |file: &File| file.connection().and_then(cookie) == Some(wanted);
    table::objects().find(|object| matches!(&**object, Object::Netmap(file) if is_it(file)))
}

/// Returns the number by which the kernel distinguishes sockets.
fn cookie(socket: BorrowedFd<'_>) -> Option<u64> {
    let (mut cookie, mut length) = (0_u64, size_of::<u64>() as libc::socklen_t);
    let value = (&raw mut cookie).cast::<c_void>();
    // SAFETY: the option's value has 8 bytes.
    let result = unsafe {
        let option = libc::SO_COOKIE;
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, &mut length)
    };
    (result == 0).then_some(cookie)
}
