//! The control socket, a file or an abstract name (`@name`). It carries messages, each with at most one file.
//! Every wait for a message has a limit.
//!
//! It is a SOCK_SEQPACKET socket, so a message arrives whole or not at all.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr,
    accept4, bind, connect, getsockopt, listen, recvmsg, sendmsg, shutdown, socket, sockopt,
};

use super::message::{MESSAGE_BYTES, Message, ProtocolError};
use sluicegate_base::socket_file::{SocketFile, files_in_message};

/// Maximum of files that the kernel passes with one message (SCM_MAX_FD, include/net/scm.h).
const MAX_FILES: usize = 253;

/// The reason why a channel ended.
#[derive(Debug)]
pub enum ChannelEnd {
    /// The peer closed it, or was killed.
    Closed,
    /// The peer disconnected, with this reason.
    Told(String),
    /// The peer sent an invalid message.
    ProtocolError(ProtocolError),
    /// No message arrived in time.
    Late,
    /// This process requested the end.
    Stopped,
    /// The system has too few resources: room, memory or files.
    System(Errno),
}

impl From<ProtocolError> for ChannelEnd {
    fn from(breach: ProtocolError) -> Self {
        Self::ProtocolError(breach)
    }
}

/// A connected control socket.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Creates a channel over a connected, non-blocking socket.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Creates a channel over a socket that accept(2) has just returned.
    pub(super) fn accepted(fd: i32) -> Self {
        // SAFETY: accept(2) has just made the descriptor for this process, and the caller passes it on and
        // keeps no copy. So it is owned only here.
        Self { socket: unsafe { OwnedFd::from_raw_fd(fd) } }
    }

    /// Returns the process at the other end when the socket was connected.
    pub fn peer_process(&self) -> Option<i32> {
        getsockopt(&self.socket, sockopt::PeerCredentials).ok().map(|peer| peer.pid())
    }

    /// Sends a message, with or without a file. The socket buffers several messages for a peer that does not
    /// read.
    pub(super) fn send(
        &self,
        message: &Message,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), ChannelEnd> {
        let bytes = message.encode();
        let files = file.map(|file| [file.as_raw_fd()]);
        let rights = files.as_ref().map(|files| ControlMessage::ScmRights(files));
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let sent = sendmsg::<UnixAddr>(
            self.socket.as_raw_fd(),
            &[IoSlice::new(&bytes)],
            rights.as_slice(),
            flags,
            None,
        );
        match sent {
            Ok(_) => Ok(()),
            Err(Errno::EPIPE | Errno::ECONNRESET) => Err(ChannelEnd::Closed),
            Err(error) => Err(ChannelEnd::System(error)),
        }
    }

    /// Sends the peer the reason for the end. Errors are ignored, because the connection ends in any case.
    pub fn disconnect(&self, reason: &str) {
        let _ = self.send(&Message::Disconnect { code: 0, reason: reason.into() }, None);
    }

    /// Waits for a message until `end`, or until `wake` is readable. A DISCONNECT of the peer is returned as
    /// the end, not as a message.
    pub(super) fn receive(
        &self,
        wake: BorrowedFd<'_>,
        end: Instant,
    ) -> Result<(Message, Option<OwnedFd>), ChannelEnd> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let [readable, woken] = wait([self.socket.as_fd(), wake], left)?;
            if readable {
                match self.take()? {
                    (Message::Disconnect { reason, .. }, _) => {
                        return Err(ChannelEnd::Told(reason));
                    }
                    message => return Ok(message),
                }
            } else if woken {
                return Err(ChannelEnd::Stopped);
            } else if left.is_zero() {
                return Err(ChannelEnd::Late);
            }
        }
    }

    /// Reads the reason for the end, when no other message can arrive.
    pub fn hear_end(&self) -> ChannelEnd {
        match self.take() {
            Ok((Message::Disconnect { reason, .. }, _)) => ChannelEnd::Told(reason),
            Ok((other, _)) => ProtocolError(format!("unexpected message {}", other.what())).into(),
            Err(ended) => ended,
        }
    }

    fn take(&self) -> Result<(Message, Option<OwnedFd>), ChannelEnd> {
        let mut bytes = [0; MESSAGE_BYTES];
        // Room for all files that a message can carry, so that unexpected ones are closed.
        let mut space = cmsg_space!([i32; MAX_FILES]);
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let received =
            recvmsg::<UnixAddr>(self.socket.as_raw_fd(), &mut pieces, Some(&mut space), flags);
        let received = match received {
            Err(Errno::ECONNRESET | Errno::EPIPE) => return Err(ChannelEnd::Closed),
            received => received.map_err(ChannelEnd::System)?,
        };
        let (length, flags) = (received.bytes, received.flags);
        let mut files = files_in_message(&space);
        if flags.contains(MsgFlags::MSG_CTRUNC) {
            // The kernel dropped some files, because this process has reached its limit of descriptors.
            return Err(ChannelEnd::System(Errno::EMFILE));
        }
        if length == 0 {
            return Err(ChannelEnd::Closed);
        }
        if length != MESSAGE_BYTES || flags.contains(MsgFlags::MSG_TRUNC) {
            return Err(ProtocolError(format!("a message of not {MESSAGE_BYTES} bytes")).into());
        }
        if files.len() > 1 {
            return Err(ProtocolError("more than one file with a message".into()).into());
        }
        Ok((Message::decode(&bytes)?, files.pop()))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // A child between fork and exec also has the socket, and the peer must not wait for that child.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits until one of several files is readable, with a timeout. Returns which ones are.
pub fn wait<const N: usize>(
    files: [BorrowedFd<'_>; N],
    timeout: Duration,
) -> Result<[bool; N], ChannelEnd> {
    let mut polled = files.map(|file| PollFd::new(file, PollFlags::POLLIN));
    poll_for(&mut polled, timeout)?;
    Ok(polled.map(|file| file.any().unwrap_or(false)))
}

/// Waits until one of any number of files is readable, with a timeout. Returns the first one that is.
pub(super) fn wait_first(
    files: &[BorrowedFd<'_>],
    timeout: Duration,
) -> Result<Option<usize>, ChannelEnd> {
    let polled = files.iter().map(|&file| PollFd::new(file, PollFlags::POLLIN));
    let mut polled: Vec<_> = polled.collect();
    poll_for(&mut polled, timeout)?;
    Ok(polled.iter().position(|file| file.any().unwrap_or(false)))
}

fn poll_for(polled: &mut [PollFd<'_>], timeout: Duration) -> Result<(), ChannelEnd> {
    // Rounded up, so that the caller does not spin in the last millisecond.
    let timeout = PollTimeout::try_from(timeout.saturating_add(Duration::from_micros(999)));
    match poll(polled, timeout.unwrap_or(PollTimeout::MAX)) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(ChannelEnd::System(error)),
    }
}

/// Maximum of connections that wait to be accepted, and of accepted ones that wait for their handshake.
pub(super) const WAITING: i32 = 16;

/// A control socket's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A file.
    File(PathBuf),
    /// An abstract name in the network namespace, without a file. It is freed with its owner.
    Abstract(String),
}

/// A listening socket. Its file is removed on drop.
#[derive(Debug)]
pub struct Listener {
    /// Removes the file on drop.
    file: Option<SocketFile>,
    socket: OwnedFd,
}

impl Address {
    /// Parses `@name` or a file's path.
    pub fn of(name: &str) -> Self {
        match name.strip_prefix('@') {
            Some(name) => Self::Abstract(name.to_owned()),
            None => Self::File(PathBuf::from(name)),
        }
    }

    fn unix(&self) -> Result<UnixAddr, Errno> {
        match self {
            Self::File(path) => UnixAddr::new(path),
            Self::Abstract(name) => UnixAddr::new_abstract(name.as_bytes()),
        }
    }

    /// Connects to the process that listens at the address.
    pub fn connect(&self) -> Result<Channel, Errno> {
        let socket = new_socket()?;
        connect(socket.as_raw_fd(), &self.unix()?)?;
        Ok(Channel::new(socket))
    }

    /// Listens at the address. A stale file is replaced. EADDRINUSE means that a process listens at the file
    /// or is about to, or that the file is not a socket.
    pub fn listen(&self) -> Result<Listener, Errno> {
        let socket = new_socket()?;
        let file = match self {
            Self::File(path) => Some(SocketFile::listen(&socket, path, WAITING)?),
            Self::Abstract(_) => {
                bind(socket.as_raw_fd(), &self.unix()?)?;
                listen(&socket, Backlog::new(WAITING)?)?;
                None
            }
        };
        Ok(Listener { file, socket })
    }

    /// True if the address belongs to a process that listens, is about to, or has just exited.
    pub fn may_be_served(&self) -> bool {
        match self {
            Self::File(path) => {
                std::fs::symlink_metadata(path).map_or(true, |it| it.file_type().is_socket())
            }
            Self::Abstract(_) => true,
        }
    }
}

impl Listener {
    /// Accepts the next client, if there is one.
    pub fn accept(&self) -> Result<Option<Channel>, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        match accept4(self.socket.as_raw_fd(), flags) {
            Ok(fd) => Ok(Some(Channel::accepted(fd))),
            // A client that has already disconnected is ignored.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The file is removed first, because no process replaces it while this socket listens.
        self.file = None;
        // A child between fork and exec also has the socket, and no client must connect to that child.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    #[test]
    fn a_channel_ends_when_a_child_has_its_socket_still() {
        let (one, other) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .unwrap();
        let childs = one.try_clone().unwrap();
        let (one, other) = (Channel::new(one), Channel::new(other));
        one.disconnect("that was all");
        drop(one);
        let told = other.hear_end();
        assert!(matches!(&told, ChannelEnd::Told(reason) if reason == "that was all"), "{told:?}");
        assert!(matches!(other.hear_end(), ChannelEnd::Closed));
        drop(childs);
    }

    #[test]
    fn a_file_is_reached_as_long_as_somebody_listens_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let address = Address::of(path.to_str().unwrap());
        assert_eq!(address.connect().err(), Some(Errno::ENOENT));
        let first = address.listen().unwrap();
        assert!(address.connect().is_ok());
        assert_eq!(address.listen().err(), Some(Errno::EADDRINUSE), "it is served");
        drop(first);
        assert_eq!(address.connect().err(), Some(Errno::ENOENT));
        let mut killed = address.listen().unwrap();
        std::mem::forget(killed.file.take());
        drop(killed);
        assert_eq!(address.connect().err(), Some(Errno::ECONNREFUSED), "left behind");
        let _second = address.listen().unwrap();
        assert!(address.connect().is_ok(), "it was replaced");
    }

    /// Returns an abstract name that no other test run uses.
    fn own_name(name: &str) -> String {
        format!("@sluice-test-{}-{name}", std::process::id())
    }

    /// Listens once no forked child of another test holds the previous listener's socket.
    fn listen_again(address: &Address) -> Listener {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match address.listen() {
                Err(Errno::EADDRINUSE) if Instant::now() < end => std::thread::yield_now(),
                result => return result.unwrap(),
            }
        }
    }

    #[test]
    fn nobody_connects_to_a_socket_that_only_a_child_has_still() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        for name in [path.to_str().unwrap(), &own_name("child")] {
            let address = Address::of(name);
            let listener = address.listen().unwrap();
            let childs = listener.socket.try_clone().unwrap();
            drop(listener);
            let refused = if name.starts_with('@') { Errno::ECONNREFUSED } else { Errno::ENOENT };
            assert_eq!(address.connect().err(), Some(refused));
            drop(childs);
            let _listener = listen_again(&address);
            assert!(address.connect().is_ok());
        }
    }

    #[test]
    fn a_name_without_a_file_is_free_again() {
        let address = Address::of(&own_name("again"));
        for _ in 0..2 {
            let listener = listen_again(&address);
            assert_eq!(address.listen().err(), Some(Errno::EADDRINUSE));
            let client = address.connect().unwrap();
            let served = listener.accept().unwrap().unwrap();
            assert_eq!(served.peer_process(), Some(std::process::id().cast_signed()));
            drop(client);
        }
        assert_eq!(address.connect().err(), Some(Errno::ECONNREFUSED));
    }
}
