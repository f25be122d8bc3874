//! UNIX sockets with a file name (unix(7)): listening on a path, distinguishing a stale file from one in use,
//! and the files that a message brings.

use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, ErrorKind};
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen,
    socket, sockopt,
};
use nix::unistd::{AccessFlags, Gid, Uid, access, fchownat, geteuid};

use crate::error::{Error, Result};

/// The folder of the running commands' sockets.
const RUNNING: &str = "/run/sluice";
/// The name of a socket in its folder.
const SOCKET: &str = "control.sock";
/// Maximum time to wait for other processes that begin to listen in the same folder.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The files on which sockets of this process listen.
static LISTENING: Mutex<Vec<Listening>> = Mutex::new(Vec::new());

/// A file on which a socket of this process listens.
#[derive(Clone, Debug)]
struct Listening {
    path: PathBuf,
    identity: Option<Identity>,
}

/// Device and inode.
type Identity = (u64, u64);

/// Gives the files on which this process's sockets listen to a user, before the process becomes that user.
/// Gives away each folder that holds one command's control socket, too.
///
/// # Errors
/// A file cannot be given away.
pub fn give_to(user: u32, group: u32) -> Result<(), Error> {
    if geteuid().as_raw() == user {
        return Ok(());
    }
    let owner = (user, group);
    for Listening { path, identity } in listening() {
        give(&path, owner, |file| Some((file.dev(), file.ino())) == identity)?;
        // Last, because from now on the user can put another file there.
        if let Some(folder) = path.parent().filter(|_| is_folder_of_one(&path)) {
            give(folder, owner, Metadata::is_dir)?;
        }
    }
    Ok(())
}

/// Gives a file of this process's user to another user, if `is_meant` accepts it. Gives away the inode that
/// was opened and checked, not the path, which may lead elsewhere at any time.
fn give(
    path: &Path,
    (user, group): (u32, u32),
    is_meant: impl Fn(&Metadata) -> bool,
) -> Result<(), Error> {
    let failed = |error: io::Error| Error::path("own", path, error);
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    // With O_PATH the access mode is ignored, but `OpenOptions` requires one.
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.uid() == geteuid().as_raw() && is_meant(&metadata) {
        let owner = (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
        fchownat(&file, "", owner.0, owner.1, AtFlags::AT_EMPTY_PATH)
            .map_err(|error| failed(error.into()))?;
    }
    Ok(())
}

/// Rejects a socket whose file this process may not remove when it exits.
///
/// # Errors
/// Such a socket exists.
pub fn check_removable() -> Result<(), Error> {
    match listening().iter().find(|it| !is_removable(&it.path)) {
        None => Ok(()),
        Some(Listening { path, .. }) => Err(Error::Privilege {
            operation: format!("removing the socket {} at the end", path.display()),
            capability: "the right to write to its folder",
            remedy: "put it into a folder where the user may write".into(),
        }),
    }
}

fn listening() -> Vec<Listening> {
    LISTENING.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn is_removable(path: &Path) -> bool {
    let folder = folder(path);
    let may_write = access(folder, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
    let is_ours = |file: io::Result<Metadata>| file.is_ok_and(|it| it.uid() == geteuid().as_raw());
    let sticky = folder.metadata().is_ok_and(|folder| folder.mode() & 0o1000 != 0);
    may_write && (!sticky || is_ours(fs::symlink_metadata(path)) || is_ours(folder.metadata()))
}

/// Returns the path of a named command's control socket: `/run/sluice/COMMAND/NAME/control.sock`. The
/// folder belongs to the user that the command becomes, so that the command can remove the socket.
///
/// # Errors
/// The name is invalid. Valid are letters, digits, `-`, `_` and `.`, 64 at most.
pub fn socket_path(command: &str, name: &str) -> Result<PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) || name.starts_with('.') {
        return Err(Error::Usage(format!(
            "'{name}' cannot be the name of a {command}: use letters, digits, '-', '_' and '.', 64 \
             at most"
        )));
    }
    Ok(Path::new(RUNNING).join(command).join(name).join(SOCKET))
}

/// Returns true if a socket's folder holds nothing else, like the folders of [`socket_path`].
pub fn is_folder_of_one(path: &Path) -> bool {
    let inner = path.strip_prefix(RUNNING).map(|inner| inner.components().collect::<Vec<_>>());
    matches!(
        inner.as_deref(),
        Ok([Component::Normal(_), Component::Normal(_), Component::Normal(file)]) if *file == SOCKET
    )
}

fn folder(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// The file of a listening socket. Dropping this removes the file, unless another process has replaced
/// it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Option<Identity>,
    /// Keeps the socket open until the file is removed. So no other process takes the file for stale and
    /// replaces it, and its inode number stays in use.
    _listening: OwnedFd,
}

impl SocketFile {
    /// Makes a socket listen at a path, with a backlog of `waiting`. A stale file is replaced.
    ///
    /// # Errors
    /// EADDRINUSE: another process listens there, or the file is not a socket.
    pub fn listen(socket: &OwnedFd, path: &Path, waiting: i32) -> Result<Self, Errno> {
        // One process at a time: a socket that is bound but does not listen yet looks stale.
        let _turn = turn(path);
        let address = UnixAddr::new(path)?;
        let listening = socket.try_clone().map_err(errno)?;
        match bind(socket.as_raw_fd(), &address) {
            Err(Errno::EADDRINUSE) if is_stale(path, getsockopt(socket, sockopt::SockType)?) => {
                fs::remove_file(path).map_err(errno)?;
                bind(socket.as_raw_fd(), &address)?;
            }
            bound => bound?,
        }
        let identity = identity(path);
        let file = Self { path: path.to_owned(), identity, _listening: listening };
        let listed = Listening { path: path.to_owned(), identity };
        LISTENING.lock().unwrap_or_else(PoisonError::into_inner).push(listed);
        listen(socket, Backlog::new(waiting)?)?;
        Ok(file)
    }

    /// Returns the path on which the socket listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = listening.iter().position(|it| it.path == self.path) {
            listening.swap_remove(place);
        }
        drop(listening);
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // A process without the permission leaves the file; the next one that listens there replaces
            // it.
            let _ = fs::remove_file(&self.path);
            if is_folder_of_one(&self.path) {
                // It stays if another process listens there now, or its parent is another user's.
                let _ = fs::remove_dir(folder(&self.path));
            }
        }
    }
}

/// Locks the folder, so that only one process at a time checks for a stale file and replaces it. None after
/// a timeout: any process that may read the folder can hold the lock.
fn turn(path: &Path) -> Option<File> {
    let place = folder(path);
    let mut folder = File::open(place).ok()?;
    let end = Instant::now() + LOCK_TIMEOUT;
    while Instant::now() < end {
        if let Err(TryLockError::WouldBlock) = folder.try_lock() {
            sleep(Duration::from_millis(1));
            continue;
        }
        let of = |it: Metadata| (it.dev(), it.ino());
        if folder.metadata().ok().map(of) == fs::metadata(place).ok().map(of) {
            return Some(folder);
        }
        // Its last user has removed the folder meanwhile, and another process may have made it again.
        folder = File::open(place).ok()?;
    }
    None
}

/// Returns true if a file is the socket of a process that exited without removing it. Other files refuse
/// connections as well (net/unix/af_unix.c, `unix_find_bsd`), and stay.
fn is_stale(path: &Path, kind: SockType) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    // A full backlog is not a refusal, and this call does not wait for it.
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = || {
        let socket = socket(AddressFamily::Unix, kind, flags, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path)?)
    };
    is_socket && probe() == Err(Errno::ECONNREFUSED)
}

fn identity(path: &Path) -> Option<Identity> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

fn errno(error: io::Error) -> Errno {
    match error.kind() {
        // The owner has just removed the file.
        ErrorKind::NotFound => Errno::EADDRINUSE,
        _ => Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// Returns the files of a message (unix(7), SCM_RIGHTS), from the space for control messages that recvmsg(2)
/// filled. They are in its only control message, because no socket option requests another. nix returns none
/// if the kernel dropped some (MSG_CTRUNC), and would leak the others.
#[allow(unsafe_code)]
pub fn files_in_message(space: &[u8]) -> Vec<OwnedFd> {
    // The header: length including itself, level, type. All zeros if no file came.
    const LEVEL_AT: usize = offset_of!(libc::cmsghdr, cmsg_level);
    const FILES_AT: usize = size_of::<libc::cmsghdr>();
    let rights = [libc::SOL_SOCKET.to_ne_bytes(), libc::SCM_RIGHTS.to_ne_bytes()];
    let bytes = match (space.first_chunk(), space.get(LEVEL_AT..FILES_AT)) {
        (Some(bytes), Some(kind)) if kind == rights.as_flattened() => usize::from_ne_bytes(*bytes),
        _ => return Vec::new(),
    };
    let numbers = space.get(FILES_AT..bytes).unwrap_or_default();
    let files = numbers.as_chunks().0.iter().map(|number| {
        // SAFETY: the kernel has just made the descriptor for this process, and only this function knows it.
        // So it is owned here.
        unsafe { OwnedFd::from_raw_fd(i32::from_ne_bytes(*number)) }
    });
    files.collect()
}

/// Leaves the file like a killed process does, even if a forked child of another test still holds the
/// socket.
#[cfg(test)]
fn leave_behind(path: &Path) {
    use nix::sys::socket::{Shutdown, shutdown};
    let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    shutdown(listener.as_raw_fd(), Shutdown::Both).unwrap();
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    fn begin(path: &Path) -> Result<(OwnedFd, SocketFile), Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        let file = SocketFile::listen(&socket, path, 8)?;
        Ok((socket, file))
    }

    #[test]
    fn a_file_goes_with_its_listener_and_a_stale_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let first = begin(&path).unwrap();
        assert_eq!(begin(&path).err(), Some(Errno::EADDRINUSE), "it is served");
        drop(first);
        assert!(!path.exists());
        leave_behind(&path);
        assert!(path.exists());
        let second = begin(&path).unwrap();
        fs::rename(&path, folder.path().join("elsewhere")).unwrap();
        let third = begin(&path).unwrap();
        drop(second);
        assert!(path.exists(), "another's file stays");
        drop(third);
        fs::write(&path, "a letter").unwrap();
        assert_eq!(begin(&path).err(), Some(Errno::EADDRINUSE), "no socket");
        assert_eq!(fs::read(&path).unwrap(), b"a letter");
    }

    #[test]
    fn a_file_is_given_to_a_user_only_if_it_is_the_one_that_is_meant() {
        let folder = tempfile::tempdir().unwrap();
        let [secret, path, link] = ["secret", "socket", "link"].map(|it| folder.path().join(it));
        fs::write(&secret, "kept").unwrap();
        leave_behind(&path);
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        let user = (65_534, 65_534);
        let owner = |path: &Path| fs::symlink_metadata(path).unwrap().uid();
        let meant = identity(&path);
        let is_meant = |file: &Metadata| Some((file.dev(), file.ino())) == meant;
        give(&secret, user, is_meant).unwrap();
        give(&link, user, Metadata::is_file).unwrap();
        assert_eq!(owner(&secret), geteuid().as_raw(), "another file");
        if !geteuid().is_root() {
            return println!("skipped: needs root; get it by sudo");
        }
        give(&path, user, is_meant).unwrap();
        assert_eq!(owner(&path), user.0);
    }

    #[test]
    fn one_that_is_too_busy_to_answer_is_not_stale() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _busy = begin(&path).unwrap();
        // As many clients as the backlog holds, and one more.
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let mut waiting = Vec::new();
        loop {
            let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
            match connect(socket.as_raw_fd(), &UnixAddr::new(&path).unwrap()) {
                Ok(()) => waiting.push(socket),
                Err(error) => break assert_eq!(error, Errno::EAGAIN),
            }
        }
        assert_eq!(begin(&path).err(), Some(Errno::EADDRINUSE));
    }

    #[test]
    fn who_ends_leaves_the_file_of_who_begins_at_that_moment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let begin_and_end = || {
            let mut begun = 0;
            for _ in 0..2000 {
                let Ok((listening, _file)) = begin(&path) else { continue };
                let asks = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
                match connect(asks.as_raw_fd(), &UnixAddr::new(&path).unwrap()) {
                    // Processes that check for a stale file fill the backlog.
                    Ok(()) | Err(Errno::EAGAIN) => begun += 1,
                    Err(error) => panic!("it listens, and is not reached: {error}"),
                }
                drop(listening);
            }
            begun
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(begin_and_end)).collect();
            let begun: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            assert!(begun > 0);
        });
    }

    #[test]
    fn of_those_who_begin_at_one_moment_one_listens() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let path = folder.path().join(round.to_string());
            leave_behind(&path);
            let start = Barrier::new(4);
            let begun: Vec<_> = std::thread::scope(|scope| {
                let begin = || {
                    start.wait();
                    begin(&path)
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(begin)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(begun.iter().filter(|one| one.is_ok()).count(), 1);
            assert!(std::os::unix::net::UnixStream::connect(&path).is_ok(), "it is reached");
        }
    }

    #[test]
    fn only_the_folder_of_one_socket_is_given_away() {
        for (path, given) in [
            ("/run/sluice/switch/lan/control.sock", true),
            ("/run/sluice/control.sock", false),
            ("/run/sluice/switch/control.sock", false),
            ("/run/sluice/switch/lan/more/control.sock", false),
            ("/run/sluice/../etc/control.sock", false),
            ("/run/sluice/switch/lan/other.sock", false),
            ("/tmp/switch/lan/control.sock", false),
        ] {
            assert_eq!(is_folder_of_one(Path::new(path)), given, "{path}");
        }
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_none() {
        let path = socket_path("switch", "office").unwrap();
        assert_eq!(path, Path::new("/run/sluice/switch/office/control.sock"));
        for name in ["", "..", "a/b", ".a", "a b", &"a".repeat(65)] {
            assert!(socket_path("switch", name).is_err(), "{name}");
        }
    }
}
