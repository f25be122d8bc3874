//! The server: it accepts a connection for each open file, and starts its thread.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, accept4, getsockopt, socket, sockopt};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, fchownat};
use sluicegate::Error;
use sluicegate_base::socket_file::SocketFile;

use super::doorbell::refuse_files;
use super::message::{Message, send};
use super::open_files::OpenFiles;
use super::session::{self, Session};
use crate::engine::{Engine, EngineOptions};

const STACK_BYTES: usize = 512 << 10;
/// Programs that wait to be accepted, at most.
const BACKLOG: i32 = 64;
/// The pause after a program could not be accepted, because a limit of this process is reached.
const LIMIT_INTERVAL: u16 = 100;

/// Where programs look for a server.
pub fn default_path() -> PathBuf {
    "/run/sluice/netmap.sock".into()
}

/// An engine that programs share, and the socket where it listens.
#[derive(Debug)]
pub struct Server {
    engine: Arc<Engine>,
    listener: OwnedFd,
    _file: SocketFile,
    files: Arc<OpenFiles>,
}

impl Server {
    /// Listens at a path, for processes of this user and of `group`. The engine's lines go to the programs that cause
    /// them, in place of `options.log`.
    ///
    /// # Errors
    /// Another server listens there, or a permission is missing.
    pub fn bind(path: &Path, group: Option<Gid>, options: EngineOptions) -> Result<Self, Error> {
        // Programs that were sent a file know its server by this path.
        let path =
            std::path::absolute(path).map_err(|error| Error::path("listen at", path, error))?;
        let (listener, file) = listen(&path, group)?;
        raise_file_limit();
        let engine = Engine::new(EngineOptions { log: Some(session::keep_line), ..options });
        Ok(Self { engine, listener, _file: file, files: Arc::default() })
    }

    /// Serves programs until one of `ends` is readable. `failed` gets the reason why a program could not be served: a
    /// limit of this process is reached.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub fn serve(&self, ends: &[BorrowedFd<'_>], failed: impl Fn(&Error)) -> Result<(), Error> {
        let mut has_failed = false;
        loop {
            let all = ends.iter().copied().chain([self.listener.as_fd()]);
            let mut list: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            match poll(&mut list, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::system("wait for", "programs", errno)),
            }
            if list[..ends.len()].iter().any(|it| it.any() == Some(true)) {
                return Ok(());
            }
            match self.accept() {
                Ok(()) => has_failed = false,
                Err(error) => {
                    // Once, until it succeeds again.
                    if !std::mem::replace(&mut has_failed, true) {
                        failed(&error);
                    }
                    // The program still waits.
                    let _ = poll(&mut list[..ends.len()], LIMIT_INTERVAL);
                }
            }
        }
    }

    /// Serves the next program, if one waits.
    fn accept(&self) -> Result<(), Error> {
        let program = match accept4(self.listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => return Ok(()),
            accepted => accepted.map_err(|errno| Error::system("accept", "a program", errno))?,
        };
        let program = Arc::new(owned(program));
        refuse_files(&program);
        let process = getsockopt(&program, sockopt::PeerCredentials).map_or(0, |it| it.pid());
        let Some(entry) = self.files.add(&program, process) else {
            let text = format!("{} files are open, which is its limit: close some", OpenFiles::MAX);
            // The program may have exited.
            let _ = send(&program, &Message { text, ..Message::hello() }, &[]);
            return Ok(());
        };
        let session = match Session::greet(&self.engine, program, entry) {
            // It has exited.
            Err(Errno::EPIPE | Errno::ECONNRESET) => return Ok(()),
            greeted => greeted.map_err(|errno| Error::system("serve", "a program", errno))?,
        };
        let thread = thread::Builder::new().name("netmap file".into()).stack_size(STACK_BYTES);
        let started = thread.spawn(move || session.run());
        started.map(drop).map_err(|error| Error::start("the thread of a program's file", error))
    }
}

/// Listens at a path, for processes of this user and of `group`.
fn listen(path: &Path, group: Option<Gid>) -> Result<(OwnedFd, SocketFile), Error> {
    let failed = |errno: Errno| {
        let remedy = match errno {
            Errno::EADDRINUSE => {
                "another server, or a file that is no socket, has this path: end it, or choose another --socket"
            }
            _ => "choose another --socket",
        };
        Error::path("listen at", path, errno.into()).remedy(remedy)
    };
    if path == default_path()
        && let Some(folder) = path.parent()
    {
        let created = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
        created.map_err(|error| Error::path("create", folder, error))?;
    }
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(failed)?;
    // The file gets this mode from the start (net/unix/af_unix.c, unix_bind_bsd).
    fchmod(&listener, Mode::S_IRUSR | Mode::S_IWUSR).map_err(failed)?;
    let file = SocketFile::listen(&listener, path, BACKLOG).map_err(failed)?;
    if let Some(group) = group {
        give_to_group(path, group)
            .map_err(|error| Error::path("give to the group", path, error))?;
    }
    Ok((listener, file))
}

/// Opens a socket's file to a group. Another user who may write its folder can put a link there: it is not followed.
fn give_to_group(path: &Path, group: Gid) -> std::io::Result<()> {
    let flags = nix::libc::O_PATH | nix::libc::O_NOFOLLOW;
    // With O_PATH the access mode is ignored, but `OpenOptions` requires one.
    let file = std::fs::File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.file_type().is_socket() {
        return Err(Errno::EEXIST.into());
    }
    fchownat(&file, "", None, Some(group), AtFlags::AT_EMPTY_PATH)?;
    // The descriptor's own name: fchmod(2) does not take it.
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(name, std::fs::Permissions::from_mode(0o660))
}

/// Lets this process have as many open files as it may: each file of a program takes several.
fn raise_file_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

#[allow(unsafe_code)]
fn owned(fd: i32) -> OwnedFd {
    // SAFETY: accept4(2) has just made the descriptor for this process.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
