//! Bytes over a socket, and open files along with them (unix(7), SCM_RIGHTS).
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};

/// The most files with an answer: what the kernel takes (`SCM_MAX_FD`, include/net/scm.h).
pub(super) const MAX_FILES: usize = 253;

/// Sends bytes, and these files with the first of them. How many bytes.
pub(super) fn send(socket: &UnixStream, bytes: &[u8], files: &[OwnedFd]) -> io::Result<usize> {
    let fds: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let sent =
        sendmsg::<UnixAddr>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None);
    Ok(sent?)
}

/// Receives bytes, and the files that came with them. 0 is the end.
pub(super) fn receive(
    socket: &UnixStream,
    bytes: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = cmsg_space!([RawFd; MAX_FILES]);
    let mut pieces = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut pieces, Some(&mut space), flags)?;
    for control in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control {
            // SAFETY: the kernel has just made these descriptors for this process and told nobody
            // else of them, so that each is owned here.
            files.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok(received.bytes)
}
