//! The file of an output: after a failed write it is cut back to its last whole record.

use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io::{self, IsTerminal, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{AccessFlags, access, getegid, geteuid};

use super::chunk::Piece;
use super::config::FileAccess;
use super::event::FileEvent;
use sluicegate_base::error::{Error, Result};

/// Requested size of a pipe to the reader, in bytes: the maximum for an unprivileged process.
const PIPE_BYTES: i32 = 1 << 20;

/// The reason why nothing more can be written.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    operation: &'static str,
    path: PathBuf,
    source: Arc<io::Error>,
    remedy: &'static str,
}

impl Failure {
    pub(super) fn new(operation: &'static str, path: &Path, source: io::Error) -> Self {
        let remedy = match source.raw_os_error() {
            Some(libc::EPIPE) => "the reader has closed the pipe",
            Some(libc::EFBIG) => {
                "the limit of a file's size is reached: raise it (ulimit -f), or begin new files by size \
                 (capture --rotate-size)"
            }
            Some(libc::EIO) => "the device failed: see the kernel's log, and write elsewhere",
            // The compressor's own errors have no number.
            None if operation == "compress" => {
                "capture again with fewer compression threads or a lower level, or compress by lz4"
            }
            _ => "",
        };
        Self { operation, path: path.to_owned(), source: Arc::new(source), remedy }
    }

    fn with(mut self, remedy: &'static str) -> Self {
        self.remedy = remedy;
        self
    }

    /// Returns the error of an output in use.
    pub(crate) fn error(&self) -> Error {
        self.to_error(Error::open_file)
    }

    /// Returns the error of an output that failed to begin.
    pub(super) fn at_start(&self) -> Error {
        self.to_error(Error::path)
    }

    fn to_error(&self, error: fn(&'static str, &Path, io::Error) -> Error) -> Error {
        let source = match self.source.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::new(self.source.kind(), self.source.to_string()),
        };
        let error = error(self.operation, &self.path, source);
        if self.remedy.is_empty() { error } else { error.remedy(self.remedy) }
    }
}

/// One open file, or standard output.
#[derive(Debug)]
pub(super) struct OutputFile {
    /// `None` once it is closed.
    file: Option<File>,
    path: PathBuf,
    /// A regular file, which can be truncated.
    regular: bool,
    /// A regular file that had a name when it was opened: a descriptor may lead to one without.
    named: bool,
    /// Device and inode, which identify the file.
    identity: (u64, u64),
    bytes: u64,
    packets: u64,
    /// The bytes that complete a non-empty file; empty once written.
    pub(super) epilogue: &'static [u8],
    /// Its directory, if both must be synced before the file is closed.
    directory: Option<File>,
}

impl OutputFile {
    /// Creates a file, or truncates an existing one. A regular file is locked (flock(2)), so that no second
    /// writer overwrites it.
    pub(super) fn create(path: &Path, access: FileAccess) -> Result<Self, Failure> {
        Self::open(path, access, false)
    }

    /// Creates a file that does not exist; `None` if it does.
    pub(super) fn create_new(path: &Path, access: FileAccess) -> Result<Option<Self>, Failure> {
        match Self::open(path, access, true) {
            Err(failure) if failure.source.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            other => other.map(Some),
        }
    }

    fn open(path: &Path, access: FileAccess, new: bool) -> Result<Self, Failure> {
        let file = open_unchanged(path, access, new)?;
        empty(&file, path)?;
        set_access(&file, path, access)?;
        Self::new(file, path)
    }

    /// Opens standard output. A terminal is rejected.
    pub(super) fn standard_output() -> Result<Self, Failure> {
        let path = Path::new("standard output");
        let failure = |error: io::Error| Failure::new("open", path, error);
        let output = io::stdout();
        if output.is_terminal() {
            let error = io::Error::other("it is a terminal");
            return Err(failure(error).with("send it to a file or a pipe"));
        }
        let fd: OwnedFd = output.as_fd().try_clone_to_owned().map_err(failure)?;
        Self::new(fd.into(), path)
    }

    fn new(file: File, path: &Path) -> Result<Self, Failure> {
        let metadata = file.metadata().map_err(|error| Failure::new("look at", path, error))?;
        if metadata.file_type().is_fifo() {
            // A larger pipe means fewer switches to the reader. If this fails, the default size suffices.
            let _ = fcntl(&file, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
        }
        Ok(Self {
            regular: metadata.is_file(),
            named: metadata.is_file() && metadata.nlink() > 0,
            identity: (metadata.dev(), metadata.ino()),
            file: Some(file),
            path: path.to_owned(),
            bytes: 0,
            packets: 0,
            epilogue: &[],
            directory: None,
        })
    }

    /// Makes `close` sync a regular file and its directory to the disk.
    pub(super) fn synced(mut self, directory: &File) -> Result<Self, Failure> {
        if self.regular {
            let directory = directory.try_clone();
            self.directory = Some(directory.map_err(|e| Failure::new("sync", &self.path, e))?);
        }
        Ok(self)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the open file lost its last name.
    fn is_removed(&self) -> bool {
        let links = || self.file.as_ref()?.metadata().ok().map(|metadata| metadata.nlink());
        self.named && links() == Some(0)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.file.is_none()
    }

    /// Returns the number of packets in the file.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// Writes a piece. Returns the bytes and packets written, and the reason if the rest was not; the file is
    /// complete then.
    fn write(&mut self, piece: &Piece<'_>) -> (u64, u64, Option<Failure>) {
        let Some(file) = &mut self.file else {
            let error = io::Error::other("the file is closed");
            return (0, 0, Some(Failure::new("write", &self.path, error)));
        };
        let (done, error) = write_all(file, piece.bytes);
        let (whole, packets) = piece.whole_in(done);
        let mut bytes = whole as u64;
        self.bytes += bytes;
        self.packets += packets;
        let Some(error) = error else { return (bytes, packets, None) };
        if self.regular {
            cut_end(file, (done - whole) as u64);
            bytes += self.complete().0;
        }
        let failure = Failure::new("write", &self.path, error);
        (bytes, packets, Some(failure))
    }

    /// Writes the epilogue. Even on a full disk there is room for it, where a partial record was cut off.
    fn complete(&mut self) -> (u64, Option<io::Error>) {
        let epilogue = std::mem::take(&mut self.epilogue);
        match &mut self.file {
            Some(file) if self.bytes > 0 => {
                let (done, error) = write_all(file, epilogue);
                (done as u64, error)
            }
            _ => (0, None),
        }
    }

    /// Completes and closes the file; returns the bytes written for this. Some file systems report a failed
    /// write only now.
    fn close(&mut self) -> (u64, Option<Failure>) {
        let (bytes, error) = self.complete();
        let mut failure = error.map(|error| Failure::new("write", &self.path, error));
        // The directory holds the file's name.
        if let (Some(file), Some(directory)) = (&self.file, self.directory.take())
            && let Err(error) = file.sync_all().and_then(|()| sync_directory(&directory))
        {
            failure.get_or_insert(Failure::new("sync", &self.path, error));
        }
        // A child of this process may hold a copy of the descriptor until it executes its program.
        self.file.as_ref().map(File::unlock);
        // close(2) frees the descriptor even if a signal interrupts it.
        if let Some(file) = self.file.take()
            && let Err(errno) = nix::unistd::close(file)
            && errno != Errno::EINTR
        {
            failure.get_or_insert(Failure::new("close", &self.path, errno.into()));
        }
        (bytes, failure)
    }

    /// Deletes a regular file into which nothing was written. Returns true if that happened.
    pub(super) fn delete_empty(&self) -> bool {
        self.regular && self.bytes == 0 && self.delete()
    }

    /// Deletes the file, if no other file has replaced it. False if a file still exists.
    pub(super) fn delete(&self) -> bool {
        match fs::symlink_metadata(&self.path) {
            Ok(metadata) if (metadata.dev(), metadata.ino()) == self.identity => {
                fs::remove_file(&self.path).is_ok()
            }
            Ok(_) => false,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// Opens or creates a file, and leaves its content. Sets its owner and mode to those of `access`; without, a new
/// file has the usual mode. In a directory where others may create entries, follows no link, and rejects a file
/// that another user may have prepared.
///
/// # Errors
/// The file is rejected, or cannot be created or written.
pub fn open_protected(path: &Path, access: Option<FileAccess>) -> Result<File> {
    let usual = FileAccess { mode: 0o666, owner: None };
    let file = open_unchanged(path, access.unwrap_or(usual), false);
    let file = file.and_then(|file| {
        access.map_or(Ok(()), |access| set_access(&file, path, access))?;
        Ok(file)
    });
    file.map_err(|failure| failure.at_start())
}

/// Opens or creates a file, as [`open_protected`], but changes nothing of an existing one.
fn open_unchanged(path: &Path, access: FileAccess, new: bool) -> Result<File, Failure> {
    let mut options = File::options();
    options.write(true).truncate(false).mode(access.mode);
    let shared = others_may_write(path);
    if shared {
        // Another user could have put a link to one of our files there, or a pipe whose other end nobody
        // opens.
        let waits = if is_trusted_pipe(path) { 0 } else { libc::O_NONBLOCK };
        options.custom_flags(libc::O_NOFOLLOW | waits);
    }
    let (created, file) = match options.create_new(new).open(path) {
        // With O_CREAT, root could not open the files of `access.owner` in /tmp (fs.protected_regular).
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (shared, options.create(true).create_new(shared).open(path))
        }
        opened => (new, opened),
    };
    let file = file.map_err(|error| create_failure(path, error))?;
    if shared && !created {
        check_own(&file, path, access)?;
    }
    Ok(file)
}

/// Returns true if users other than root and the process's may create entries in a path's directory. A link there
/// may lead anywhere.
fn others_may_write(path: &Path) -> bool {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let Ok(metadata) = directory.unwrap_or(Path::new(".")).metadata() else { return true };
    let (mode, user, group) = (metadata.mode(), geteuid().as_raw(), getegid().as_raw());
    let by_owner = metadata.uid() != 0 && metadata.uid() != user;
    let by_group = mode & 0o020 != 0 && metadata.gid() != group;
    by_owner || by_group || mode & 0o002 != 0
}

/// Locks and empties a regular file.
fn empty(file: &File, path: &Path) -> Result<(), Failure> {
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(());
    }
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        let error = io::Error::other("another program or port holds a lock on it");
        return Err(Failure::new("write to", path, error)
            .with("choose another name (lslocks shows the holder)"));
    }
    // Some network file systems support no locks; the file stays unlocked there. A new file is not truncated,
    // because some file systems write a truncated file to the disk when it is closed.
    match file.metadata() {
        Ok(metadata) if metadata.len() == 0 => Ok(()),
        _ => file.set_len(0).map_err(|error| create_failure(path, error)),
    }
}

/// Rejects an existing file in a directory where others may create entries if it does not belong to the user of
/// `access`, otherwise the process's: its owner could read the packets. A hard link to a file of root, which its
/// maker may remove before it is counted here, must not give that file to the user of `access`.
fn check_own(file: &File, path: &Path, access: FileAccess) -> Result<(), Failure> {
    let failed = |error| create_failure(path, error);
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() && is_trusted(&metadata) {
        return Ok(());
    }
    let reason = if !metadata.is_file() {
        "it is no regular file".into()
    } else if metadata.uid() != access.owner.map_or(geteuid().as_raw(), |(user, _)| user) {
        format!("it belongs to user ID {}", metadata.uid())
    } else if metadata.nlink() > 1 {
        format!("it has {} names", metadata.nlink())
    } else {
        return Ok(());
    };
    // Another file has to be named, as for a link.
    let kind = io::ErrorKind::InvalidFilename;
    let error = io::Error::new(kind, format!("another user may have prepared it: {reason}"));
    Err(Failure::new("write to", path, error)
        .with("remove it first, or write to a directory of your own"))
}

/// True if a path leads to a pipe created by the process's user or root.
fn is_trusted_pipe(path: &Path) -> bool {
    let metadata = fs::symlink_metadata(path);
    metadata.is_ok_and(|it| it.file_type().is_fifo() && is_trusted(&it))
}

fn is_trusted(metadata: &Metadata) -> bool {
    metadata.uid() == 0 || metadata.uid() == geteuid().as_raw()
}

/// Sets the owner and the mode of a file that belongs to the process's user, or to that of `access`.
fn set_access(file: &File, path: &Path, access: FileAccess) -> Result<(), Failure> {
    let set = || {
        let metadata = file.metadata()?;
        let user = metadata.uid();
        let is_own = user == geteuid().as_raw() || Some(user) == access.owner.map(|owner| owner.0);
        if !metadata.is_file() || !is_own {
            return Ok(());
        }
        // First: the mode is for the new group, not for the previous one.
        if let Some((_, group)) = access.owner.filter(|(_, group)| *group != metadata.gid()) {
            fchown(file, None, Some(group))?;
        }
        if metadata.mode() & 0o7777 != access.mode {
            file.set_permissions(Permissions::from_mode(access.mode))?;
        }
        match access.owner {
            Some((owner, _)) if owner != user => fchown(file, Some(owner), None),
            _ => Ok(()),
        }
    };
    set().map_err(|error| Failure::new("set the owner and mode of", path, error))
}

fn create_failure(path: &Path, error: io::Error) -> Failure {
    let errno = error.raw_os_error();
    let failure = Failure::new("create", path, error);
    match errno {
        Some(libc::ENOENT) => failure.with("its directory does not exist: create it first"),
        Some(libc::ENOTDIR) => failure.with("its directory is a file"),
        Some(libc::EISDIR) => failure.with("name a file in it"),
        Some(libc::ELOOP) => failure.with(
            "it is a symbolic link in a directory that others may write to: name the file it leads to",
        ),
        Some(libc::EACCES | libc::EPERM) => {
            failure.with("choose a place where you may write, or ask its owner")
        }
        Some(libc::ENXIO) => failure.with("it is a pipe that nobody reads, or a socket: remove it"),
        Some(libc::ENAMETOOLONG) => failure.with("choose a shorter name"),
        _ => failure,
    }
}

/// Opens the directory of files to sync: once, before the first file, because the process may lose its access
/// to the directory later.
pub(super) fn open_directory(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| Failure::new("open", path, error))
}

fn sync_directory(directory: &File) -> io::Result<()> {
    match directory.sync_all() {
        // The file system cannot sync directories (fsync(2)); syncing the file has to suffice.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other,
    }
}

/// Checks that files can be created in a directory, before the first packet arrives.
pub(super) fn check_directory(directory: &Path) -> Result<()> {
    let failure = |error: io::Error, remedy| {
        let failure = Failure::new("write to", directory, error);
        Err(failure.at_start().remedy(remedy))
    };
    match directory.metadata() {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => {
            let error = io::Error::from_raw_os_error(libc::ENOTDIR);
            return failure(error, "name a directory before the file");
        }
        Err(error) => return failure(error, "the directory must exist: create it first"),
    }
    match access(directory, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Ok(()),
        Err(errno) => failure(errno.into(), "choose a place where you may write, or ask its owner"),
    }
}

/// Writes all bytes, in as many calls as needed. Returns the bytes written, and the error that stopped the
/// write.
fn write_all(file: &mut File, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut done = 0;
    while done < bytes.len() {
        match file.write(&bytes[done..]) {
            Ok(0) => return (done, Some(io::ErrorKind::WriteZero.into())),
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Standard output can be a non-blocking pipe of another process.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLOUT)];
                if let Err(errno) = poll(&mut fds, PollTimeout::NONE)
                    && errno != Errno::EINTR
                {
                    return (done, Some(errno.into()));
                }
            }
            Err(error) => return (done, Some(error)),
        }
    }
    (done, None)
}

/// Removes the last bytes, if this process wrote them and nothing follows.
fn cut_end(file: &mut File, bytes: u64) {
    if let (Ok(metadata), Ok(position)) = (file.metadata(), file.stream_position())
        && position == metadata.len()
    {
        // If this fails too, the file ends in half a record, which every reader reports.
        let end = position.saturating_sub(bytes);
        let _ = file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end)));
    }
}

/// Counts of an output's packets, and the failure that stopped writing. Updated once per chunk. Reading them
/// takes no lock, because a writer may be waiting for a pipe.
#[derive(Debug)]
pub struct OutputCounts {
    /// The first time after the last file; `u64::MAX` if unknown.
    end_ns: AtomicU64,
    written: AtomicU64,
    lost: AtomicU64,
    after_last_file: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
    /// The receiver of the files' events.
    events: Mutex<Option<Sender<FileEvent>>>,
    /// The first file that was removed before it was closed.
    removed: OnceLock<PathBuf>,
}

impl Default for OutputCounts {
    fn default() -> Self {
        Self {
            end_ns: AtomicU64::new(u64::MAX),
            written: AtomicU64::default(),
            lost: AtomicU64::default(),
            after_last_file: AtomicU64::default(),
            bytes: AtomicU64::default(),
            failed: AtomicBool::default(),
            failure: Mutex::default(),
            events: Mutex::default(),
            removed: OnceLock::new(),
        }
    }
}

impl OutputCounts {
    /// Writes a piece, if nothing has failed before.
    pub(super) fn write(&self, target: &Mutex<OutputFile>, piece: &Piece<'_>) {
        if self.check().is_err() {
            return self.lose(piece.packets);
        }
        let (bytes, packets, failure) = lock(target).write(piece);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.written.fetch_add(packets, Ordering::Relaxed);
        self.lose(piece.packets - packets);
        if let Some(failure) = failure {
            self.fail(failure);
        }
    }

    /// Closes a file, and announces it if it is complete.
    pub(super) fn close(&self, target: &Mutex<OutputFile>) {
        let mut file = lock(target);
        if file.is_removed() {
            let _ = self.removed.set(file.path().to_owned());
        }
        let (bytes, failure) = file.close();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(failure) = failure {
            return self.fail(failure);
        }
        // A file without packets is complete too, unless it has none because of a failure.
        if file.regular && (file.packets() > 0 || self.check().is_ok()) {
            self.announce(FileEvent::Complete(file.path().to_owned()));
        }
    }

    /// Sets the receiver of the files' events.
    pub(super) fn announce_files(&self, events: Option<Sender<FileEvent>>) {
        *lock(&self.events) = events;
    }

    /// Sends an event. Returns false if there is no receiver.
    pub(super) fn announce(&self, event: FileEvent) -> bool {
        lock(&self.events).as_ref().is_some_and(|events| events.send(event).is_ok())
    }

    /// Counts packets that will not be written.
    pub(super) fn lose(&self, packets: u64) {
        self.lost.fetch_add(packets, Ordering::Relaxed);
    }

    /// Counts packets that came after the last file.
    pub(super) fn leave_out(&self, packets: u64) {
        self.after_last_file.fetch_add(packets, Ordering::Relaxed);
    }

    /// Records the reason why nothing more will be written. The first reason stays.
    pub(super) fn fail(&self, failure: Failure) {
        lock(&self.failure).get_or_insert(failure);
        // Publishes the reason to `check`.
        self.failed.store(true, Ordering::Release);
    }

    /// Returns the failure, if there was one.
    pub(super) fn check(&self) -> Result<()> {
        // Pairs with the store in `fail`.
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        match &*lock(&self.failure) {
            Some(failure) => Err(failure.error()),
            None => Ok(()),
        }
    }

    /// Returns the number of packets in the files.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns the number of submitted packets that could not be written.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns the number of packets that came after the last file of
    /// [`Rotation::last_file`](super::Rotation::last_file).
    pub fn after_last_file(&self) -> u64 {
        self.after_last_file.load(Ordering::Relaxed)
    }

    /// Returns the first file that something else removed before it was complete: its packets are in no file, although
    /// they count as written.
    pub fn removed(&self) -> Option<&Path> {
        self.removed.get().map(PathBuf::as_path)
    }

    /// Returns true if a packet with this time comes after the period of the last file, which has begun.
    pub fn is_after_end(&self, timestamp_ns: u64) -> bool {
        let end_ns = self.end_ns.load(Ordering::Relaxed);
        timestamp_ns >= end_ns && end_ns < u64::MAX
    }

    /// Sets the first time after the last file.
    pub(super) fn set_end(&self, end_ns: u64) {
        self.end_ns.store(end_ns, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Takes a lock, even after a panic: it protects counts, which stay valid.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
