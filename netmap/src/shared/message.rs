//! The messages of a file's socket, one packet of SOCK_SEQPACKET each.
//!
//! ```text
//!   client                             server
//!   connects                           accepts
//!              <-- hello: version, netns   with the doorbell's memory and socket
//!   request -->                        performs it
//!              <-- answer                  with the region, a thread's socket, or a list
//! ```
//!
//! Processes may share a file's socket: by fork, or because one has sent it to the other, which then joins.
//!
//! ```text
//!   another client                     server
//!   JOIN       -->
//!              <-- answer                  with the doorbell's memory and socket
//! ```
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, recvmsg, sendmsg};
use sluicegate_base::socket_file::files_in_message;

use crate::abi::PortName;
use crate::standard_streams::above_streams;

/// The version of messages and doorbell: client and server have the same.
pub(super) const VERSION: u32 = 2;

/// The maximum size of a message in bytes.
const MAX_BYTES: usize = 16 << 10;
/// Files that come with a message, at most.
const MAX_FILES: usize = 2;

/// The type of netmap's request that registers a port.
pub(super) const REGISTER: u32 = 1;
// The numbers of other messages are above those types.
/// Close the file.
pub(super) const CLOSE: u32 = 0x1_0001;
/// Return the socket that wakes the thread of an entry: the body has the entry's number.
pub(super) const WAKER: u32 = 0x1_0002;
/// Write a list of all ports into a file.
pub(super) const LIST: u32 = 0x1_0003;
/// Return the lines that calls have made for the user.
pub(super) const LINES: u32 = 0x1_0004;
/// Return the doorbell to a process that has received the file's socket from another process.
pub(super) const JOIN: u32 = 0x1_0005;
/// Return the region of the port, which another process may have registered.
pub(super) const REGION: u32 = 0x1_0006;

/// A request or an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    /// The type of a request; the errno of an answer, 0 for success; the server's [`VERSION`] in a hello.
    pub(super) number: u32,
    /// Identifies a request; its answer repeats it. A process may be killed before it has read an answer.
    pub(super) tag: u64,
    pub(super) port: PortName,
    /// A request's body, or its answer; the server's network namespace in a hello; its [`VERSION`] in the answer to
    /// [`JOIN`].
    pub(super) body: Vec<u8>,
    /// Lines for the user.
    pub(super) text: String,
}

/// A message and its files; None at the end of the connection.
pub(super) type Received = Result<Option<(Message, Vec<OwnedFd>)>, Errno>;

const NAME_BYTES: usize = 64;
const HEADER_BYTES: usize = 16 + NAME_BYTES;

impl Message {
    /// The server's first message.
    pub(super) fn hello() -> Self {
        Self { number: VERSION, body: network_namespace(), ..Self::default() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.body.len() + self.text.len());
        bytes.extend(self.number.to_ne_bytes());
        bytes.extend((self.body.len() as u32).to_ne_bytes());
        bytes.extend(self.tag.to_ne_bytes());
        bytes.extend(self.port.to_bytes::<NAME_BYTES>());
        bytes.extend(&self.body);
        bytes.extend(self.text.as_bytes());
        bytes.truncate(MAX_BYTES);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        let word = |at: usize| header[at..at + 4].try_into().map(u32::from_ne_bytes).ok();
        let (body, text) = rest.split_at_checked(usize::try_from(word(4)?).ok()?)?;
        Some(Self {
            number: word(0)?,
            tag: header[8..16].try_into().map(u64::from_ne_bytes).ok()?,
            port: PortName::from_bytes(&header[16..]),
            body: body.to_vec(),
            text: String::from_utf8_lossy(text).into_owned(),
        })
    }
}

/// Sends a message, with files.
///
/// # Errors
/// The other side has exited, or does not read.
pub(super) fn send(
    socket: &impl AsFd,
    message: &Message,
    files: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let fds: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights[..] };
    let (bytes, flags) = (message.encode(), MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT);
    let pieces = [IoSlice::new(&bytes)];
    loop {
        let socket = socket.as_fd().as_raw_fd();
        match sendmsg::<UnixAddr>(socket, &pieces, control, flags, None) {
            Err(Errno::EINTR) => {}
            sent => return sent.map(drop),
        }
    }
}

/// Receives a message, and its files if `takes_files`; otherwise the kernel closes them. None at the end.
///
/// # Errors
/// EAGAIN: none has come. EPROTO: it is no message. EMFILE: a file was lost, because the limit of open files is reached.
/// Those of recvmsg(2).
pub(super) fn receive(socket: &impl AsFd, takes_files: bool) -> Received {
    let mut bytes = [0; MAX_BYTES];
    let mut space = cmsg_space!([RawFd; MAX_FILES]);
    let (length, flags) = loop {
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let control = takes_files.then_some(&mut space[..]);
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
        let socket = socket.as_fd().as_raw_fd();
        match recvmsg::<UnixAddr>(socket, &mut pieces, control, flags) {
            Err(Errno::EINTR) => {}
            Err(Errno::ECONNRESET) => return Ok(None),
            received => break received.map(|it| (it.bytes, it.flags))?,
        }
    };
    let files = if takes_files { files_in_message(&space) } else { Vec::new() };
    let files = files.into_iter().map(above_streams).collect::<Result<_, _>>()?;
    match Message::decode(&bytes[..length]) {
        _ if length == 0 => Ok(None),
        _ if takes_files && flags.contains(MsgFlags::MSG_CTRUNC) => Err(Errno::EMFILE),
        Some(message) if !flags.contains(MsgFlags::MSG_TRUNC) => Ok(Some((message, files))),
        _ => Err(Errno::EPROTO),
    }
}

/// Identifies the network namespace of this thread: device and inode; nothing if it is unknown.
pub(super) fn network_namespace() -> Vec<u8> {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net");
    let identity = namespace.map(|it| [it.dev(), it.ino()].map(u64::to_ne_bytes).concat());
    identity.unwrap_or_default()
}

/// Returns the errno of an I/O error.
pub(super) fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written_and_others_are_refused() {
        let message = Message {
            number: 7,
            tag: 1 << 40,
            port: "vale0:a".into(),
            body: vec![1, 2, 3],
            text: "a line\nand another".into(),
        };
        let bytes = message.encode();
        assert_eq!(Message::decode(&bytes), Some(message));
        for end in 0..HEADER_BYTES + 3 {
            assert_eq!(Message::decode(&bytes[..end]), None, "{end} bytes");
        }
        let mut long = bytes;
        long[4..8].fill(0xff);
        assert_eq!(Message::decode(&long), None, "a body longer than the message");
    }
}
