//! A file that a server has open for this process, its forked children, and processes that were sent the file.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::connection::{ask_to_join, dial, exchange, new_request, server_lives};
use super::doorbell::{Doorbell, ENTRIES, NO_LIMIT, Operation, drain};
use super::message::{CLOSE, LINES, Message, REGION, REGISTER, VERSION, WAKER, network_namespace};
use super::request_lock::ThreadLock;
use super::session::SPINS;
use crate::abi::{PortName, Request};
use crate::engine::{NetmapFile, Region, WaitSources};

/// The reason of a connection without a hello.
const NO_HELLO: &str =
    "it has ended, or its limit of open files is reached (see what it prints): start it again";
const OTHER_VERSION: &str = "it is of another version of sluice: start it again";
const FILE_LIMIT: &str = "the limit of open files is reached: raise it by `ulimit -n`";
/// The sleep of a thread that cannot be woken, because no descriptor or entry is left.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

thread_local! {
    /// This thread, if it is known.
    static THREAD: Cell<Option<Thread>> = const { Cell::new(None) };
    /// The file in which this thread has a request or a call: its address, or 0.
    static CALLING: Cell<usize> = const { Cell::new(0) };
}

/// A thread, as other processes know it.
#[derive(Clone, Copy)]
struct Thread {
    number: u32,
    /// The namespace of the number: an inode, 0 if it is unknown.
    namespace: u64,
}

/// Makes a forked child learn its number again. Call it there.
pub fn forget_thread() {
    THREAD.set(None);
}

fn thread() -> Thread {
    THREAD.get().unwrap_or_else(|| {
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |it| it.ino());
        let number = nix::unistd::gettid().as_raw().cast_unsigned();
        THREAD.set(Some(Thread { number, namespace }));
        Thread { number, namespace }
    })
}

/// Returns true if no thread has this number.
fn has_exited(thread: u32) -> bool {
    kill(Pid::from_raw(thread.cast_signed()), None) == Err(Errno::ESRCH)
}

/// A request or call of this thread, until it is dropped.
struct Entered {
    /// The file in which the thread was before: a signal handler may use another one.
    before: usize,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CALLING.set(self.before);
    }
}

/// A file that a server has open for this process.
pub struct RemoteFile {
    socket: OwnedFd,
    doorbell: Doorbell,
    requests: ThreadLock,
    region: OnceLock<Region>,
    /// The sockets that wake the threads of the doorbell's entries.
    wakers: [OnceLock<OwnedFd>; ENTRIES],
    spins: u32,
    log: fn(&str),
    /// The end of the server has been logged.
    ended: AtomicBool,
    /// The limit of open files has been logged.
    is_limited: AtomicBool,
    /// Another PID namespace has been logged.
    is_foreign: AtomicBool,
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
            Ok(None) => return Err(failed(NO_HELLO, Errno::ENXIO)),
            Err(Errno::EPROTO) => return Err(failed(OTHER_VERSION, Errno::EPROTO)),
            Err(Errno::EMFILE) => {
                log(FILE_LIMIT);
                return Err(Errno::EMFILE);
            }
            Err(errno) => return Err(failed("it does not answer: start it again", errno)),
        };
        if here && hello.body != network_namespace() {
            return Ok(None);
        }
        if hello.number != VERSION {
            return Err(failed(OTHER_VERSION, Errno::EPROTO));
        }
        let [memory, waker] = <[OwnedFd; 2]>::try_from(files).map_err(|_| {
            let text = if hello.text.is_empty() { "it sends no memory" } else { &hello.text };
            failed(text, Errno::EMFILE)
        })?;
        let file = Self::new(socket, memory, waker, log)?;
        file.doorbell.set_pid_namespace(thread().namespace);
        Ok(Some(file))
    }

    /// Opens a file that another process has open, by its socket, which that process has sent. Dropping it leaves the
    /// file to the others.
    ///
    /// # Errors
    /// ENXIO: the server has ended. EBADF: the file is closed. EPROTO: the server has another version. EMFILE: a limit of
    /// open files is reached. ETIMEDOUT: another process keeps the file busy. EXDEV: this process is in another PID
    /// namespace.
    pub fn join(socket: OwnedFd, log: fn(&str)) -> Result<Self, Errno> {
        let answer = ask_to_join(&socket).map_err(|errno| match errno {
            Errno::EPIPE => Errno::ENXIO,
            errno => errno,
        });
        let (answer, files) = answer?.ok_or(Errno::ENXIO)?;
        if answer.number != 0 {
            return Err(Errno::from_raw(answer.number.cast_signed()));
        }
        if answer.body != VERSION.to_ne_bytes() {
            return Err(Errno::EPROTO);
        }
        let [memory, waker] = <[OwnedFd; 2]>::try_from(files).map_err(|_| Errno::EMFILE)?;
        let mut file = Self::new(socket, memory, waker, log)?;
        file.is_left = true;
        file.check_namespace(thread())?;
        Ok(file)
    }

    fn new(socket: OwnedFd, memory: OwnedFd, waker: OwnedFd, log: fn(&str)) -> Result<Self, Errno> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            doorbell: Doorbell::open(memory, waker)?,
            socket,
            requests: ThreadLock::default(),
            region: OnceLock::new(),
            wakers: [const { OnceLock::new() }; ENTRIES],
            spins: if cpus > 1 { SPINS } else { 0 },
            log,
            ended: AtomicBool::new(false),
            is_limited: AtomicBool::new(false),
            is_foreign: AtomicBool::new(false),
            is_left: false,
        })
    }

    /// Sends a request, and returns its answer. Its lines go to the log.
    fn ask(&self, message: &Message) -> Result<(Message, Vec<OwnedFd>), Errno> {
        let _entered = self.enter()?;
        let (answer, files) = match exchange(&self.socket, &self.requests, message) {
            Ok(Some(answer)) => answer,
            Err(Errno::EMFILE) => {
                if !self.is_limited.swap(true, Ordering::Relaxed) {
                    (self.log)(FILE_LIMIT);
                }
                // Its connection is closed, which is not the server's end.
                self.ended.fetch_or(message.number == REGISTER, Ordering::Relaxed);
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
        let (_, files) = self.ask(&new_request(WAKER, body))?;
        let waker = files.into_iter().next().ok_or(Errno::EPROTO)?;
        Ok(self.wakers[entry].get_or_init(|| waker))
    }

    /// Returns this thread's entry.
    ///
    /// # Errors
    /// EAGAIN: none is free, or as `enter`. EXDEV: this process is in another PID namespace.
    fn entry(&self) -> Result<usize, Errno> {
        let _entered = self.enter()?;
        let thread = thread();
        self.check_namespace(thread)?;
        self.doorbell.claim(thread.number, has_exited).ok_or(Errno::EAGAIN)
    }

    /// Begins a request or a call.
    ///
    /// # Errors
    /// EAGAIN: this is a signal handler in the middle of one of its thread.
    fn enter(&self) -> Result<Entered, Errno> {
        let address = std::ptr::from_ref(self).addr();
        if CALLING.get() == address {
            return Err(Errno::EAGAIN);
        }
        Ok(Entered { before: CALLING.replace(address) })
    }

    /// Checks that the other processes of the file know this thread by its number.
    fn check_namespace(&self, thread: Thread) -> Result<(), Errno> {
        if thread.namespace == self.doorbell.pid_namespace() {
            return Ok(());
        }
        if !self.is_foreign.swap(true, Ordering::Relaxed) {
            (self.log)(
                "a process in another PID namespace cannot use this file: open the port there",
            );
        }
        Err(Errno::EXDEV)
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
        let entered = self.enter()?;
        let answer =
            self.doorbell.call(entry, operation, self.spins, || server_lives(&self.socket));
        drop(entered);
        if self.doorbell.take_lines() {
            // The answer's lines go to the log.
            let _ = self.ask(&new_request(LINES, Vec::new()));
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

impl NetmapFile for RemoteFile {
    fn request(&self, port: &mut PortName, request: &mut Request) -> Result<(), Errno> {
        let message = new_request(request.kind().into(), request.encode());
        let message = Message { port: port.clone(), ..message };
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
        let (answer, files) = self.ask(&new_request(REGION, Vec::new()))?;
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
            drain(waker);
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
        let _alone = self.requests.lock();
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
            let _ = self.ask(&new_request(CLOSE, Vec::new()));
        }
    }
}
