//! Requests to a running command over a Unix socket: one line per request and per answer, with open files
//! if needed. The users of this module define what a line means.
//!
//! The socket's mode lets only the owner and root connect. A client can do no harm: a [`Server`] never
//! waits, keeps at most [`MAX_LINE_BYTES`] of a request and one answer for each of [`MAX_CLIENTS`], and
//! disconnects a client that sends and reads nothing for [`IDLE_TIMEOUT`].

mod client;
mod server;

pub use client::Client;
pub use server::{Answer, Server, Service};

pub use crate::socket_file::socket_path;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, recvmsg, sendmsg};

use crate::socket_file::files_in_message;

/// The maximum length of a request.
pub const MAX_LINE_BYTES: usize = 16 << 10;
/// The maximum number of simultaneous connections.
pub const MAX_CLIENTS: usize = 64;
/// Time after which the server disconnects a client that sends no request and reads no answer, unless an
/// answer set [`Answer::keep`].
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of files with an answer: the kernel's limit (`SCM_MAX_FD`, include/net/scm.h).
const MAX_FILES: usize = 253;

/// Sends bytes, and `files` with the first of them (unix(7), SCM_RIGHTS). Returns the number of bytes sent.
fn send(socket: &UnixStream, bytes: &[u8], files: &[OwnedFd]) -> io::Result<usize> {
    let fds: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let sent =
        sendmsg::<UnixAddr>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None);
    Ok(sent?)
}

/// Receives bytes, and the files sent with them. Returns 0 at the end.
fn receive(socket: &UnixStream, bytes: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = cmsg_space!([RawFd; MAX_FILES]);
    let mut pieces = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut pieces, Some(&mut space), flags)?;
    let (length, flags) = (received.bytes, received.flags);
    files.extend(files_in_message(&space));
    match flags.contains(MsgFlags::MSG_CTRUNC) {
        // The kernel dropped some files, because this process has reached its limit of descriptors.
        true => Err(Errno::EMFILE.into()),
        false => Ok(length),
    }
}

#[cfg(test)]
mod tests;
