//! A file that a server has open for this process, its forked children, and processes that were sent the file.

use std::cell::Cell;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::kill;
use nix::sys::socket::{
    AddressFamily, Shutdown, SockFlag, SockType, UnixAddr, connect, getsockopt, setsockopt,
    shutdown, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::Pid;

use super::doorbell::{Doorbell, ENTRIES, NO_LIMIT, Operation, hush};
use super::message::{
    CLOSE, JOIN, LINES, LIST, Message, REGION, REGISTER, Received, VERSION, WAKER, errno,
    network_namespace, receive, send,
};
use super::session::SPINS;
use crate::abi::{PortName, Request};
use crate::engine::{NetmapFile, Region, WaitSources};

/// The time after which a client looks whether the server still exists.
const ANSWER_SECONDS: i64 = 20;
/// The reason of a connection without a hello.
const CLOSED: &str =
    "it has ended, or reached a limit of its process, which it prints: start it again";
/// The sleep of a thread that cannot be woken, because no descriptor or entry is left.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// The time that a process waits to join a file.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The sleep of a thread that waits for another thread's request.
const LOCK_INTERVAL: Duration = Duration::from_micros(100);

thread_local! {
    /// This thread's number, 0 if unknown.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// Makes a forked child learn its number again. Call it there.
pub fn forget_thread() {
    THREAD.set(0);
}

fn thread() -> u32 {
    if THREAD.get() == 0 {
        THREAD.set(nix::unistd::gettid().as_raw().cast_unsigned());
    }
    THREAD.get()
}

/// Returns true if no thread has this number.
fn has_exited(thread: u32) -> bool {
    kill(Pid::from_raw(thread.cast_signed()), None) == Err(Errno::ESRCH)
}

/// A file that a server has open for this process.
pub struct RemoteFile {
    socket: OwnedFd,
    doorbell: Doorbell,
    requests: RequestLock,
    region: OnceLock<Region>,
    /// The sockets that wake the threads of the doorbell's entries.
    wakers: [OnceLock<OwnedFd>; ENTRIES],
    spins: u32,
    log: fn(&str),
    /// The end of the server has been logged.
    ended: AtomicBool,
    /// Closing it is left to other processes.
    is_left: bool,
}

impl fmt::Debug for RemoteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteFile").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl RemoteFile {
    /// Opens a file at the server that listens at `path`; with `here`, only if its interfaces are those of this
    /// process. None if there is no such server.
    ///
    /// # Errors
    /// EACCES: the server is for others. EPROTO: it has another version. EMFILE: a limit of open files is reached.
    pub fn open(path: &Path, here: bool, log: fn(&str)) -> Result<Option<Self>, Errno> {
        let Some((socket, hello)) = dial(path)? else { return Ok(None) };
        let failed = |reason: &str, errno| {
            log(&format!("the server at {}: {reason}", path.display()));
            errno
        };
        let (hello, files) = match hello {
            Ok(Some(hello)) => hello,
            Ok(None) => return Err(failed(CLOSED, Errno::ENXIO)),
            Err(errno) => return Err(failed("it does not answer: start it again", errno)),
        };
        if here && hello.body != network_namespace() {
            return Ok(None);
        }
        if hello.number != VERSION {
            return Err(failed(
                "it is of another version of sluice: start it again",
                Errno::EPROTO,
            ));
        }
        let [memory, bell] = <[OwnedFd; 2]>::try_from(files).map_err(|_| {
            let text = if hello.text.is_empty() { "it sends no memory" } else { &hello.text };
            failed(text, Errno::EMFILE)
        })?;
        Self::new(socket, memory, bell, log).map(Some)
    }

    /// Opens a file that another process has open, by its socket, which that process has sent. The file is shared: end
    /// it with [`leave`](NetmapFile::leave).
    ///
    /// # Errors
    /// ENXIO: the server has ended. EPROTO: it has another version. EMFILE: a limit of open files is reached.
    pub fn join(socket: OwnedFd, log: fn(&str)) -> Result<Self, Errno> {
        let (answer, files) = ask_to_join(&socket)?.ok_or(Errno::ENXIO)?;
        if answer.body != VERSION.to_ne_bytes() {
            return Err(Errno::EPROTO);
        }
        let [memory, bell] = <[OwnedFd; 2]>::try_from(files).map_err(|_| Errno::EPROTO)?;
        Self::new(socket, memory, bell, log)
    }

    fn new(socket: OwnedFd, memory: OwnedFd, bell: OwnedFd, log: fn(&str)) -> Result<Self, Errno> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            doorbell: Doorbell::open(memory, bell)?,
            socket,
            requests: RequestLock::default(),
            region: OnceLock::new(),
            wakers: [const { OnceLock::new() }; ENTRIES],
            spins: if cpus > 1 { SPINS } else { 0 },
            log,
            ended: AtomicBool::new(false),
            is_left: false,
        })
    }

    /// Sends a request, and returns its answer. Its lines go to the log.
    fn ask(&self, message: &Message) -> Result<(Message, Vec<OwnedFd>), Errno> {
        let (answer, files) = match exchange(&self.socket, &self.requests, message) {
            Ok(Some(answer)) => answer,
            Err(Errno::EMFILE) => {
                (self.log)("the limit of open files is reached: raise it by `ulimit -n`");
                return Err(Errno::EMFILE);
            }
            Ok(None) | Err(_) => return Err(self.has_ended()),
        };
        answer.text.lines().for_each(self.log);
        match answer.number {
            0 => Ok((answer, files)),
            errno => Err(Errno::from_raw(errno.cast_signed())),
        }
    }

    /// Returns the socket by which the server wakes an entry.
    fn waker(&self, entry: usize) -> Result<&OwnedFd, Errno> {
        if let Some(waker) = self.wakers[entry].get() {
            return Ok(waker);
        }
        let body = (entry as u32).to_ne_bytes().to_vec();
        let (_, files) = self.ask(&Message { number: WAKER, body, ..Message::default() })?;
        let waker = files.into_iter().next().ok_or(Errno::EPROTO)?;
        Ok(self.wakers[entry].get_or_init(|| waker))
    }

    fn entry(&self) -> Result<usize, Errno> {
        let entry = self.doorbell.claim(thread(), has_exited).ok_or(Errno::EAGAIN)?;
        // A signal handler in the middle of a call.
        if self.doorbell.is_busy(entry) { Err(Errno::EAGAIN) } else { Ok(entry) }
    }

    fn call(&self, operation: Operation) -> Result<u32, Errno> {
        self.call_at(self.entry()?, operation)
    }

    fn sync(&self, operation: Operation) -> Result<(), Errno> {
        match self.call(operation)? {
            0 => Ok(()),
            errno => Err(Errno::from_raw(errno.cast_signed())),
        }
    }

    fn call_at(&self, entry: usize, operation: Operation) -> Result<u32, Errno> {
        let answer =
            self.doorbell.call(entry, operation, self.spins, || server_lives(&self.socket));
        if self.doorbell.take_lines() {
            // The answer's lines go to the log.
            let _ = self.ask(&Message { number: LINES, ..Message::default() });
        }
        answer.map_err(|_| self.has_ended())
    }

    /// Logs the end of the server, once.
    fn has_ended(&self) -> Errno {
        if !self.ended.swap(true, Ordering::Relaxed) {
            (self.log)("the server has ended: start it, and the program again");
        }
        Errno::ENXIO
    }
}

/// Asks to join a file, for a second at most: the process that has sent it may hold the lock, or take the answer.
fn ask_to_join(socket: &OwnedFd) -> Received {
    let end = Instant::now() + JOIN_TIMEOUT;
    while let Err(errno) = lock_file(socket.as_fd(), libc::F_WRLCK, false) {
        if Instant::now() > end {
            return Err(errno);
        }
        std::thread::sleep(LOCK_INTERVAL);
    }
    let answer =
        send(socket, &Message { number: JOIN, ..Message::default() }, &[]).and_then(|()| {
            let mut wanted = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            let left = end.saturating_duration_since(Instant::now());
            match poll(&mut wanted, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO))? {
                0 => Err(Errno::ETIMEDOUT),
                _ => receive(socket, true),
            }
        });
    let _ = lock_file(socket.as_fd(), libc::F_UNLCK, false);
    answer
}

/// Returns true if the connection has not ended.
fn server_lives(socket: &OwnedFd) -> bool {
    let mut socket = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    // A signal does not end the connection.
    !poll(&mut socket, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Sends a request, and receives its answer.
fn exchange(socket: &OwnedFd, requests: &RequestLock, message: &Message) -> Received {
    let _alone = requests.lock(socket.as_fd());
    let answer = send(socket, message, &[]).and_then(|()| {
        loop {
            match receive(socket, true) {
                // Opening a card may take long.
                Err(Errno::EAGAIN) if server_lives(socket) => {}
                answer => return answer,
            }
        }
    });
    // A registered port without its memory is of no use.
    let is_complete = match &answer {
        Err(Errno::EMFILE) => message.number != REGISTER,
        answer => matches!(answer, Ok(Some(_))),
    };
    if !is_complete {
        // A late answer must not be taken for that of the next request.
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
    }
    answer
}

/// Returns the path of the server to which a socket is connected, if the server belongs to root or to the owner of the
/// path. None for other descriptors, which it leaves as they are.
pub fn server_of(socket: BorrowedFd<'_>) -> Option<PathBuf> {
    let path = peer_path(socket)?;
    if getsockopt(&socket, sockopt::SockType) != Ok(SockType::SeqPacket) {
        return None;
    }
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

/// Connects to a server. Returns its hello; None if there is no server.
fn dial(path: &Path) -> Result<Option<(OwnedFd, Received)>, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    let limit = TimeVal::seconds(ANSWER_SECONDS);
    setsockopt(&socket, sockopt::SendTimeout, &limit)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &limit)?;
    let connected = loop {
        match connect(socket.as_raw_fd(), &UnixAddr::new(path)?) {
            Err(Errno::EINTR) => {}
            connected => break connected,
        }
    };
    match connected {
        Err(Errno::ENOENT | Errno::ECONNREFUSED) => return Ok(None),
        connected => connected?,
    }
    let hello = receive(&socket, true);
    Ok(Some((socket, hello)))
}

/// Returns a server's regions, ports and files, as JSON; None if there is no server.
///
/// # Errors
/// The server does not answer, or has another version.
pub fn list(path: &Path) -> Result<Option<String>, Errno> {
    let Some((socket, hello)) = dial(path)? else { return Ok(None) };
    match hello? {
        Some((hello, files)) if hello.number == VERSION && files.is_empty() => {
            return Err(Errno::EMFILE);
        }
        Some((hello, _)) if hello.number == VERSION => {}
        _ => return Err(Errno::EPROTO),
    }
    send(&socket, &Message { number: LIST, ..Message::default() }, &[])?;
    let (answer, files) = receive(&socket, true)?.ok_or(Errno::ENXIO)?;
    if answer.number != 0 {
        return Err(Errno::from_raw(answer.number.cast_signed()));
    }
    let mut file = File::from(files.into_iter().next().ok_or(Errno::EPROTO)?);
    let mut text = String::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_string(&mut text));
    read.map_err(|error| errno(&error))?;
    Ok(Some(text))
}

/// Keeps apart the requests of threads, and of processes that share the file: answers come in their order.
#[derive(Debug, Default)]
struct RequestLock {
    /// The process in which a thread has a request, or 0.
    process: AtomicU32,
}

/// The lock of a thread.
struct RequestGuard<'a>(&'a RequestLock, BorrowedFd<'a>);

impl RequestLock {
    /// Locks. Other processes are kept out by a lock of the socket, which ends with the process that has it, or when the
    /// process closes any descriptor of the socket.
    fn lock<'a>(&'a self, socket: BorrowedFd<'a>) -> RequestGuard<'a> {
        let guard = self.lock_out_threads(socket);
        // EDEADLK: threads of two processes that wait for each other's process, although not for each other.
        while let Err(Errno::EINTR | Errno::EDEADLK) = lock_file(socket, libc::F_WRLCK, true) {
            std::thread::sleep(LOCK_INTERVAL);
        }
        guard
    }

    /// Locks against other threads of this process.
    fn lock_out_threads<'a>(&'a self, socket: BorrowedFd<'a>) -> RequestGuard<'a> {
        let process = std::process::id();
        loop {
            let holder = self.process.load(Ordering::Relaxed);
            // A fork has copied another process's number. Acquire: pairs with `drop`.
            let is_free = holder != process;
            if is_free
                && self
                    .process
                    .compare_exchange(holder, process, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                break;
            }
            std::thread::sleep(LOCK_INTERVAL);
        }
        RequestGuard(self, socket)
    }
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        let _ = lock_file(self.1, libc::F_UNLCK, false);
        self.0.process.store(0, Ordering::Release);
    }
}

/// Sets the lock of this process on a file, and may wait for others.
fn lock_file(file: BorrowedFd<'_>, kind: i32, waits: bool) -> Result<(), Errno> {
    let whole = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    let argument = if waits { FcntlArg::F_SETLKW(&whole) } else { FcntlArg::F_SETLK(&whole) };
    fcntl(file, argument).map(drop)
}

impl NetmapFile for RemoteFile {
    fn request(&self, port: &mut PortName, request: &mut Request) -> Result<(), Errno> {
        let (number, body) = (request.kind().into(), request.encode());
        let message = Message { number, port: port.clone(), body, ..Message::default() };
        let (answer, files) = self.ask(&message)?;
        *request = Request::decode(request.kind(), &answer.body)?;
        *port = answer.port;
        if let (Request::Register(body), Some(fd)) = (&*request, files.into_iter().next()) {
            let _ = self.region.set(Region { fd: Arc::new(fd), bytes: body.memsize });
        }
        Ok(())
    }

    fn region(&self) -> Result<Region, Errno> {
        if let Some(region) = self.region.get() {
            return Ok(region.clone());
        }
        let (answer, files) = self.ask(&Message { number: REGION, ..Message::default() })?;
        let bytes = answer.body.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        let (bytes, fd) = bytes.zip(files.into_iter().next()).ok_or(Errno::EPROTO)?;
        Ok(self.region.get_or_init(|| Region { fd: Arc::new(fd), bytes }).clone())
    }

    fn poll(&self, events: PollFlags) -> PollFlags {
        match self.call(Operation::Poll(events.bits().cast_unsigned())) {
            Ok(ready) => PollFlags::from_bits_truncate(ready as i16),
            // No entry: the program waits and tries again.
            Err(Errno::EAGAIN) => PollFlags::empty(),
            Err(_) => PollFlags::POLLERR,
        }
    }

    fn wait(&self, events: PollFlags) -> WaitSources {
        let mut sources = WaitSources::default();
        let armed = self.entry().and_then(|entry| {
            let waker = self.waker(entry)?;
            // Earlier wake-ups.
            hush(waker);
            sources.descriptors.push((waker.as_raw_fd(), PollFlags::POLLIN));
            self.call_at(entry, Operation::Arm(events.bits().cast_unsigned()))
        });
        // The server's end shows as POLLHUP.
        sources.descriptors.push((self.socket.as_raw_fd(), PollFlags::empty()));
        match armed {
            Ok(NO_LIMIT) => {}
            Ok(limit) => sources.limit(Duration::from_micros(limit.into())),
            Err(_) => sources.limit(RETRY_INTERVAL),
        }
        sources
    }

    fn txsync(&self) -> Result<(), Errno> {
        self.sync(Operation::TxSync)
    }

    fn rxsync(&self) -> Result<(), Errno> {
        self.sync(Operation::RxSync)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn connection(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn between_requests(&self, work: &mut dyn FnMut()) {
        let _alone = self.requests.lock_out_threads(self.socket.as_fd());
        work();
    }

    fn leave(mut self: Box<Self>) {
        self.is_left = true;
    }
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        if !self.is_left {
            // Waits until the port is closed. A server that has ended has closed it.
            let _ = self.ask(&Message { number: CLOSE, ..Message::default() });
        }
    }
}
