//! Connections to a server: one for each open file.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Shutdown, SockFlag, SockType, UnixAddr, connect, getsockopt, setsockopt,
    shutdown, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::message::{JOIN, LIST, Message, REGISTER, Received, VERSION, errno, receive, send};
use super::request_lock::{ThreadLock, lock_requests, try_lock_out_processes, unlock};

/// The time in which a server accepts, greets, and lists its files.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// The time that a process waits to join a file.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The sleep of a process that waits for another process's request.
const JOIN_INTERVAL: Duration = Duration::from_micros(100);

/// Connects to a server. Returns its hello; None if there is no server.
pub(super) fn dial(path: &Path) -> Result<Option<(OwnedFd, Received)>, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    // A server that is stopped accepts none: connect(2) waits for room in its list.
    let limit = TimeVal::seconds(ANSWER_TIMEOUT.as_secs().cast_signed());
    setsockopt(&socket, sockopt::SendTimeout, &limit)?;
    let end = Instant::now() + ANSWER_TIMEOUT;
    loop {
        match connect(socket.as_raw_fd(), &UnixAddr::new(path)?) {
            Err(Errno::ENOENT | Errno::ECONNREFUSED) => return Ok(None),
            Err(Errno::EINTR) if Instant::now() < end => {}
            Err(Errno::EINTR | Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
            connected => break connected?,
        }
    }
    let hello = answer(&socket, 0, Some(end));
    Ok(Some((socket, hello)))
}

/// Makes a request with a new tag: the process's number and a counter.
pub(super) fn new_request(number: u32, body: Vec<u8>) -> Message {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let tag = u64::from(std::process::id()) << 32 | u64::from(next);
    Message { number, tag, body, ..Message::default() }
}

/// Waits for the answer with this tag, until `end`. Skips those of requests whose process did not read them. None at the
/// end of the connection.
///
/// # Errors
/// ETIMEDOUT. Those of [`receive`].
fn answer(socket: &OwnedFd, tag: u64, end: Option<Instant>) -> Received {
    loop {
        let mut wanted = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let timeout = left.map_or(Ok(PollTimeout::NONE), PollTimeout::try_from);
        match poll(&mut wanted, timeout.unwrap_or(PollTimeout::MAX)) {
            Ok(0) => return Err(Errno::ETIMEDOUT),
            Err(Errno::EINTR) => continue,
            waited => waited?,
        };
        match receive(socket, true) {
            // Another process has taken it.
            Err(Errno::EAGAIN) => {}
            Ok(Some((answer, _))) if answer.tag != tag => {}
            answer => return answer,
        }
    }
}

/// Sends a request, and receives its answer.
pub(super) fn exchange(socket: &OwnedFd, requests: &ThreadLock, message: &Message) -> Received {
    let _alone = lock_requests(requests, socket.as_fd());
    // Opening a card may take long.
    let answer = send(socket, message, &[]).and_then(|()| answer(socket, message.tag, None));
    if message.number == REGISTER && matches!(answer, Err(Errno::EMFILE)) {
        // A registered port without its memory is of no use.
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
    }
    answer
}

/// Asks to join a file, for a second at most: the process that has sent it may hold the lock, or take the answer.
pub(super) fn ask_to_join(socket: &OwnedFd) -> Received {
    let end = Instant::now() + JOIN_TIMEOUT;
    while try_lock_out_processes(socket.as_fd()).is_err() {
        if Instant::now() > end {
            return Err(Errno::ETIMEDOUT);
        }
        std::thread::sleep(JOIN_INTERVAL);
    }
    let request = new_request(JOIN, Vec::new());
    let answer = send(socket, &request, &[]).and_then(|()| answer(socket, request.tag, Some(end)));
    unlock(socket.as_fd());
    answer
}

/// Returns true if the connection has not ended.
pub(super) fn server_lives(socket: &OwnedFd) -> bool {
    let mut socket = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    // A signal does not end the connection.
    !poll(&mut socket, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Returns the path of the server to which a socket is connected, if the server belongs to root or to the owner of the
/// path. None for other descriptors, which it leaves as they are.
pub fn server_of(socket: BorrowedFd<'_>) -> Option<PathBuf> {
    // First: it allocates nothing, and a signal handler may receive other descriptors.
    if getsockopt(&socket, sockopt::SockType) != Ok(SockType::SeqPacket) {
        return None;
    }
    let path = peer_path(socket)?;
    // Another user may have a file system of its own, and a server at the same path there.
    let user = getsockopt(&socket, sockopt::PeerCredentials).ok()?.uid();
    let is_trusted = user == 0 || path.metadata().is_ok_and(|it| it.uid() == user);
    is_trusted.then_some(path)
}

/// Returns the path to which a UNIX socket is connected; None for other descriptors.
#[allow(unsafe_code)]
fn peer_path(socket: BorrowedFd<'_>) -> Option<PathBuf> {
    // A path of 108 bytes has no NUL, and the kernel's length counts one.
    let mut address: libc::sockaddr_storage =
        // SAFETY: zeros are valid for it.
        unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the address has this length, and both live as long as the call.
    let result = unsafe {
        libc::getpeername(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut length)
    };
    if result != 0 || i32::from(address.ss_family) != libc::AF_UNIX {
        return None;
    }
    // SAFETY: storage is larger than a UNIX address and aligned for it; all bytes are initialized.
    let address = unsafe { &*(&raw const address).cast::<libc::sockaddr_un>() };
    let bytes: Vec<u8> =
        address.sun_path.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    (!bytes.is_empty()).then(|| OsString::from_vec(bytes).into())
}

/// Returns a server's regions, ports and files, as JSON; None if there is no server.
///
/// # Errors
/// ENXIO: the server has ended. EMFILE: it has its limit of files. EPROTO: it has another version. EACCES: it is for
/// others. ETIMEDOUT: it does not answer.
pub fn list(path: &Path) -> Result<Option<String>, Errno> {
    let Some((socket, hello)) = dial(path)? else { return Ok(None) };
    match hello? {
        Some((hello, files)) if hello.number == VERSION && files.is_empty() => {
            return Err(Errno::EMFILE);
        }
        Some((hello, _)) if hello.number == VERSION => {}
        Some(_) => return Err(Errno::EPROTO),
        None => return Err(Errno::ENXIO),
    }
    let request = new_request(LIST, Vec::new());
    send(&socket, &request, &[])?;
    let end = Instant::now() + ANSWER_TIMEOUT;
    let (answer, files) = answer(&socket, request.tag, Some(end))?.ok_or(Errno::ENXIO)?;
    if answer.number != 0 {
        return Err(Errno::from_raw(answer.number.cast_signed()));
    }
    let mut file = File::from(files.into_iter().next().ok_or(Errno::EPROTO)?);
    let mut text = String::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_string(&mut text));
    read.map_err(|error| errno(&error))?;
    Ok(Some(text))
}
