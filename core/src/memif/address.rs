//! Where the control socket is: a file, or a name of the kernel's own (`@name`).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, listen, socket,
};

use super::channel::Channel;

/// A control socket's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A file.
    File(PathBuf),
    /// A name without a file; it goes with its owner. Of the network namespace.
    Abstract(String),
}

/// A socket that clients connect to. Its file is removed with it.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    /// Removes the file.
    _file: Option<SocketFile>,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode, for the file may have become another's.
    identity: Option<(u64, u64)>,
}

impl Address {
    /// `@name` or a file's path.
    pub(crate) fn of(name: &str) -> Self {
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
    pub(crate) fn connect(&self) -> Result<Channel, Errno> {
        let socket = new_socket()?;
        connect(socket.as_raw_fd(), &self.unix()?)?;
        Ok(Channel::new(socket))
    }

    /// Listens there. A file that nobody listens at any more is replaced; EADDRINUSE means that
    /// somebody does, or that it is no socket.
    pub(crate) fn listen(&self) -> Result<Listener, Errno> {
        let socket = new_socket()?;
        let address = self.unix()?;
        match (bind(socket.as_raw_fd(), &address), self) {
            (Err(Errno::EADDRINUSE), Self::File(path)) if self.is_stale(path) => {
                std::fs::remove_file(path).map_err(errno)?;
                bind(socket.as_raw_fd(), &address)?;
            }
            (bound, _) => bound?,
        }
        let file = match self {
            Self::File(path) => Some(SocketFile { path: path.clone(), identity: identity(path) }),
            Self::Abstract(_) => None,
        };
        let listener = Listener { socket, _file: file };
        listen(&listener.socket, Backlog::new(16)?)?;
        Ok(listener)
    }

    /// Whether a file is a socket that nobody listens at.
    fn is_stale(&self, path: &Path) -> bool {
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
        is_socket && self.connect().is_err_and(|error| error == Errno::ECONNREFUSED)
    }
}

impl Listener {
    /// The next client, if one has come.
    pub(crate) fn accept(&self) -> Result<Option<Channel>, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        match accept4(self.socket.as_raw_fd(), flags) {
            Ok(fd) => Ok(Some(Channel::accepted(fd))),
            // One that left again is none.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // A file that is left is replaced by whoever listens there next.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_goes_with_its_listener_and_a_stale_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let address = Address::of(path.to_str().unwrap());
        assert_eq!(address.connect().err(), Some(Errno::ENOENT));

        let first = address.listen().unwrap();
        assert!(address.connect().is_ok());
        assert_eq!(address.listen().err(), Some(Errno::EADDRINUSE), "it is served");
        drop(first);
        assert!(!path.exists());

        let killed = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(killed);
        assert!(path.exists(), "left behind");
        let second = address.listen().unwrap();
        assert!(address.connect().is_ok());

        std::fs::rename(&path, folder.path().join("elsewhere")).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(second);
        assert!(path.exists(), "another's file stays");
        assert_eq!(address.listen().err(), Some(Errno::EADDRINUSE), "no socket");
    }

    #[test]
    fn a_name_without_a_file_is_free_again_at_once() {
        let address = Address::of("@sluice-test-address");
        for _ in 0..2 {
            let listener = address.listen().unwrap();
            assert_eq!(address.listen().err(), Some(Errno::EADDRINUSE));
            let client = address.connect().unwrap();
            let served = listener.accept().unwrap().unwrap();
            assert_eq!(served.peer_process(), Some(std::process::id().cast_signed()));
            drop(client);
        }
        assert_eq!(address.connect().err(), Some(Errno::ECONNREFUSED));
    }
}
