//! The server's side of one file: a thread that performs the client's requests and calls.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{setsockopt, sockopt};

use super::doorbell::{Doorbell, ENTRIES, NO_LIMIT, Operation, wake, wake_pair};
use super::message::{
    self, CLOSE, JOIN, LIST, Message, REGION, VERSION, WAKER, errno, receive, send,
};
use super::open_files::OpenFileEntry;
use crate::abi::Request;
use crate::engine::{Engine, NetmapFile, OpenFile, Sleeper, WaitSources};

/// Looks for calls before the thread sleeps, about 20 µs. None with one processor, where the client needs it.
pub(super) const SPINS: u32 = 1000;
/// Rounds of calls after which a busy thread looks for requests and wake-ups.
const BUSY_ROUNDS: u32 = 64;
/// Answers that a client has not read, at most: their files count as the server's.
const UNREAD_BYTES: usize = 32 << 10;
/// Lines of one answer.
const MAX_LINES: usize = 16;

thread_local! {
    /// Lines that the engine has logged for this thread's client.
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps a line of the engine for the next answer of this thread.
pub(super) fn keep_line(line: &str) {
    LINES.with_borrow_mut(|lines| {
        if lines.len() < MAX_LINES {
            lines.push(line.into());
        }
    });
}

/// A file that a client has open.
pub(super) struct Session {
    engine: Arc<Engine>,
    socket: Arc<OwnedFd>,
    doorbell: Doorbell,
    /// The client's socket of the doorbell, for other processes that join.
    doorbell_client: Arc<OwnedFd>,
    /// The file, and its place in the list of all; None after it is closed.
    open: Option<(OpenFile, OpenFileEntry)>,
    sleepers: Vec<EntrySleeper>,
    spins: u32,
}

/// The thread of an entry that may sleep.
#[derive(Default)]
struct EntrySleeper {
    key: Sleeper,
    /// The pair of sockets that wakes it: the server's, and the client's, which is kept for others that have this entry
    /// later.
    pair: Option<(OwnedFd, OwnedFd)>,
    /// While it sleeps, or is about to: its wake-up events.
    armed: Option<WaitSources>,
}

impl Session {
    /// Greets a client.
    ///
    /// # Errors
    /// No memory or descriptor is left; the client has exited.
    pub(super) fn greet(
        engine: &Arc<Engine>,
        socket: Arc<OwnedFd>,
        entry: OpenFileEntry,
    ) -> Result<Self, Errno> {
        let (doorbell, client) = Doorbell::new()?;
        setsockopt(&socket, sockopt::SndBuf, &UNREAD_BYTES)?;
        send(&socket, &Message::hello(), &[doorbell.memory(), client.as_fd()])?;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            engine: Arc::clone(engine),
            socket,
            doorbell,
            doorbell_client: Arc::new(client),
            open: Some((engine.open(), entry)),
            sleepers: (0..ENTRIES).map(|_| EntrySleeper::default()).collect(),
            spins: if cpus > 1 { SPINS } else { 0 },
        })
    }

    /// Serves the client until its last process has closed the file.
    pub(super) fn run(mut self) {
        let (mut idle, mut busy) = (0, 0);
        while self.open.is_some() {
            match self.doorbell.take() {
                0 if idle < self.spins => {
                    idle += 1;
                    std::hint::spin_loop();
                }
                0 => {
                    idle = 0;
                    if self.doorbell.announce_sleep() {
                        busy = 0;
                        let goes_on = self.wait_for_events(PollTimeout::NONE);
                        self.doorbell.end_sleep();
                        if !goes_on {
                            return;
                        }
                    }
                }
                asked => {
                    idle = 0;
                    busy += 1;
                    self.answer_calls(asked);
                    if busy == BUSY_ROUNDS {
                        busy = 0;
                        if !self.wait_for_events(PollTimeout::ZERO) {
                            return;
                        }
                    }
                }
            }
        }
    }

    fn answer_calls(&mut self, mut asked: u64) {
        while asked != 0 {
            let entry = asked.trailing_zeros() as usize;
            asked &= asked - 1;
            if entry < ENTRIES {
                let answer = self.perform(entry);
                if LINES.with_borrow(|lines| !lines.is_empty()) {
                    self.doorbell.announce_lines();
                }
                self.doorbell.answer(entry, answer);
            }
        }
    }

    /// Performs a call. Returns the answer's word.
    fn perform(&mut self, entry: usize) -> u32 {
        let (Some((file, _)), Some(operation)) = (&self.open, self.doorbell.operation(entry))
        else {
            return Errno::EINVAL as u32;
        };
        let errno = |result: Result<(), Errno>| result.map_or_else(|errno| errno as u32, |()| 0);
        let flags = |events: u16| PollFlags::from_bits_truncate(events.cast_signed());
        match operation {
            Operation::TxSync => errno(file.txsync()),
            Operation::RxSync => errno(file.rxsync()),
            Operation::Poll(events) => file.poll(flags(events)).bits().cast_unsigned().into(),
            Operation::Arm(events) => self.arm(entry, flags(events)),
        }
    }

    /// Arms the events that wake an entry's thread. Returns its longest sleep.
    fn arm(&mut self, entry: usize, events: PollFlags) -> u32 {
        let Some((file, _)) = &self.open else { return 0 };
        let sleeper = &mut self.sleepers[entry];
        // They stay armed during the sync that follows.
        let sources = sleeper.armed.insert(file.wait_as(&sleeper.key, events));
        let micros = |it: Duration| u32::try_from(it.as_micros()).unwrap_or(NO_LIMIT - 1);
        sources.longest.map_or(NO_LIMIT, micros)
    }

    /// Waits for a call, a request or an event; wakes the threads whose events have come, and answers a request. Returns
    /// false if the client has exited.
    fn wait_for_events(&mut self, timeout: PollTimeout) -> bool {
        let armed = || self.sleepers.iter().filter_map(|it| it.armed.as_ref());
        let mut wanted = BTreeMap::new();
        for &(fd, events) in armed().flat_map(|it| &it.descriptors) {
            *wanted.entry(fd).or_insert(PollFlags::empty()) |= events;
        }
        let all = WaitSources { descriptors: wanted.into_iter().collect(), longest: None };
        let mut list = vec![
            PollFd::new(self.doorbell.socket(), PollFlags::POLLIN),
            PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
        ];
        list.extend(all.polled());
        match poll(&mut list, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
        let has_message = list[1].any() == Some(true);
        self.wake_ready();
        !has_message || self.answer_request()
    }

    /// Wakes the threads whose events have come.
    fn wake_ready(&mut self) {
        for sleeper in &mut self.sleepers {
            if sleeper.armed.as_ref().is_some_and(is_ready) {
                sleeper.armed = None;
                if let Some((own, _)) = &sleeper.pair {
                    wake(own);
                }
            }
        }
    }

    /// Answers a request. Returns false at the end of the client.
    fn answer_request(&mut self) -> bool {
        // Files that a client sends are refused or closed.
        let mut message = match receive(&*self.socket, false) {
            Ok(Some((message, _))) => message,
            Err(Errno::EAGAIN) => return true,
            _ => return false,
        };
        let mut files = Vec::new();
        let result = self.request(&mut message, &mut files);
        message.number = result.map_or_else(|errno| errno as u32, |()| 0);
        message.text = LINES.take().join("\n");
        let files: Vec<BorrowedFd<'_>> = files.iter().map(|it| it.as_fd()).collect();
        send(&self.socket, &message, &files).is_ok()
    }

    /// Performs a request: the message becomes the answer, with files.
    fn request(
        &mut self,
        message: &mut Message,
        files: &mut Vec<Arc<OwnedFd>>,
    ) -> Result<(), Errno> {
        let (open, entry) = self.open.as_ref().ok_or(Errno::EBADF)?;
        match message.number {
            CLOSE => {
                self.sleepers.clear();
                self.open = None;
            }
            WAKER => files.push(Arc::new(self.waker(&message.body)?)),
            message::LINES => {}
            LIST => files.push(Arc::new(self.list(entry)?)),
            JOIN => {
                message.body = VERSION.to_ne_bytes().to_vec();
                let memory = self.doorbell.memory().try_clone_to_owned();
                files.push(Arc::new(memory.map_err(|_| Errno::EMFILE)?));
                files.push(Arc::clone(&self.doorbell_client));
            }
            REGION => {
                let region = open.region()?;
                message.body = region.bytes.to_ne_bytes().to_vec();
                files.push(region.fd);
            }
            number => {
                let kind = u16::try_from(number).map_err(|_| Errno::EINVAL)?;
                let mut request = Request::decode(kind, &message.body)?;
                let closed = entry.closed();
                let mut perform = || open.request(&mut message.port, &mut request);
                match perform() {
                    // As netmap, whose port is free when close(2) returns or the program is known to have exited.
                    Err(Errno::EBUSY) if entry.wait_for_ended(closed) => {
                        // The first reason no longer holds.
                        LINES.take();
                        perform()?;
                    }
                    result => result?,
                }
                if let Request::Register(_) = request {
                    entry.set_port(message.port.to_string());
                    files.push(open.region()?.fd);
                }
                message.body = request.encode();
            }
        }
        Ok(())
    }

    /// Makes a file with the list of regions, ports and files.
    fn list(&self, entry: &OpenFileEntry) -> Result<OwnedFd, Errno> {
        let mut list = self.engine.list();
        list["files"] = entry.list();
        let file = memfd_create("sluice-netmap-list", MFdFlags::MFD_CLOEXEC)?;
        let mut file = File::from(file);
        file.write_all(list.to_string().as_bytes()).map_err(|error| errno(&error))?;
        Ok(file.into())
    }

    /// Returns the client's socket of the pair that wakes an entry's thread.
    fn waker(&mut self, body: &[u8]) -> Result<OwnedFd, Errno> {
        let entry = body.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes) as usize);
        let sleeper = entry.and_then(|entry| self.sleepers.get_mut(entry)).ok_or(Errno::EINVAL)?;
        let (_, client) = match &mut sleeper.pair {
            Some(pair) => pair,
            missing => missing.insert(wake_pair()?),
        };
        client.try_clone().map_err(|_| Errno::EMFILE)
    }
}

/// Returns true if an event has come.
fn is_ready(sources: &WaitSources) -> bool {
    let mut list: Vec<PollFd<'_>> = sources.polled().collect();
    !list.is_empty() && poll(&mut list, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
