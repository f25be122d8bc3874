//! Where the control socket is: a file, or a name of the kernel's own (`@name`).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, accept4, bind, connect, listen,
    shutdown, socket,
};

use super::channel::Channel;
use sluicegate_base::socket_file::SocketFile;

/// So many may wait to be accepted.
const WAITING: i32 = 16;

/// A control socket's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A file.
    File(PathBuf),
    /// A name without a file; it goes with its owner. Of the network namespace.
    Abstract(String),
}

/// A socket that clients connect to. Its file is removed with it.
#[derive(Debug)]
pub struct Listener {
    /// Removes the file.
    file: Option<SocketFile>,
    socket: OwnedFd,
}

impl Address {
    /// `@name` or a file's path.
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

    /// Connects to who listens there.
    pub fn connect(&self) -> Result<Channel, Errno> {
        let socket = new_socket()?;
        connect(socket.as_raw_fd(), &self.unix()?)?;
        Ok(Channel::new(socket))
    }

    /// Listens there. A file that nobody listens at any more is replaced; EADDRINUSE means that
    /// somebody does, or is about to, or that it is no socket.
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

    /// Whether what is in the way is another's who listens or is about to, or has just gone.
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
    /// The next client, if one has come.
    pub fn accept(&self) -> Result<Option<Channel>, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        match accept4(self.socket.as_raw_fd(), flags) {
            Ok(fd) => Ok(Some(Channel::accepted(fd))),
            // One that left again is none.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // First, since nobody replaces the file as long as we listen.
        self.file = None;
        // A child that is between fork and exec has the socket, too: nobody shall connect to that.
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

    use super::*;

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

    /// A name without a file that no other run of the tests has.
    fn own_name(name: &str) -> String {
        format!("@sluice-test-{}-{name}", std::process::id())
    }

    /// Listens as soon as no child of another test, just forked, has the last listener's socket.
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
            let gone = if name.starts_with('@') { Errno::ECONNREFUSED } else { Errno::ENOENT };
            assert_eq!(address.connect().err(), Some(gone));
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
