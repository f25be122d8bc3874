//! The server's side of one file: a thread that performs the client's requests and calls.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::doorbell::{Doorbell, ENTRIES, NO_LIMIT, Operation};
use super::message::{self, CLOSE, LIST, Message, WAKER, errno, receive, send};
use super::open_files::OpenFileEntry;
use crate::abi::Request;
use crate::engine::{Engine, NetmapFile, OpenFile, WaitSources};

/// Looks for calls before the thread sleeps, about 20 µs.
const SPINS: u32 = 1000;
/// Lines of one answer.
const MAX_LINES: usize = 16;

thread_local! {
    /// What the engine has said to this thread's client.
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
    socket: OwnedFd,
    doorbell: Doorbell,
    /// The file, and its place in the list of all; None after it is closed.
    open: Option<(OpenFile, OpenFileEntry)>,
    wakers: Vec<Option<EventFd>>,
    /// The entries whose threads sleep, or are about to, and what wakes them.
    armed: Vec<(usize, WaitSources)>,
}

impl Session {
    /// Greets a client.
    ///
    /// # Errors
    /// No memory or descriptor is left; the client has gone.
    pub(super) fn greet(
        engine: &Arc<Engine>,
        socket: OwnedFd,
        entry: OpenFileEntry,
    ) -> Result<Self, Errno> {
        let doorbell = Doorbell::new()?;
        send(&socket, &Message::hello(), &[doorbell.memory(), doorbell.event()])?;
        Ok(Self {
            engine: Arc::clone(engine),
            socket,
            doorbell,
            open: Some((engine.open(), entry)),
            wakers: (0..ENTRIES).map(|_| None).collect(),
            armed: Vec::new(),
        })
    }

    /// Serves the client until its last process has closed the file.
    pub(super) fn run(mut self) {
        let mut idle = 0;
        while self.open.is_some() {
            match self.doorbell.take() {
                0 if idle < SPINS => {
                    idle += 1;
                    std::hint::spin_loop();
                }
                0 => {
                    idle = 0;
                    if !self.sleep() {
                        return;
                    }
                }
                asked => {
                    idle = 0;
                    self.answer_calls(asked);
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

    /// Arms what wakes an entry's thread. Returns its longest sleep.
    fn arm(&mut self, entry: usize, events: PollFlags) -> u32 {
        // Arming reads wake-ups of this server thread, which may be those of another entry.
        self.wake_ready();
        let Some((file, _)) = &self.open else { return 0 };
        let sources = file.wait(events);
        let longest = sources.longest;
        // The thread syncs once more before it sleeps, so other calls do not disarm it.
        self.armed.retain(|(it, _)| *it != entry);
        self.armed.push((entry, sources));
        longest.map_or(NO_LIMIT, |it| u32::try_from(it.as_micros()).unwrap_or(NO_LIMIT - 1))
    }

    /// Wakes the threads whose events have come.
    fn wake_ready(&mut self) {
        let wakers = &self.wakers;
        self.armed.retain(|(entry, sources)| {
            let is_ready = is_ready(sources);
            if is_ready && let Some(waker) = &wakers[*entry] {
                let _ = waker.write(1);
            }
            !is_ready
        });
    }

    /// Sleeps until a call, a request or an event comes. Returns false if the client has gone.
    fn sleep(&mut self) -> bool {
        if !self.doorbell.announce_sleep() {
            return true;
        }
        let mut list = vec![
            PollFd::new(self.doorbell.event(), PollFlags::POLLIN),
            PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
        ];
        let sources = self.armed.iter().flat_map(|(_, sources)| sources.polled());
        list.extend(sources);
        let _ = poll(&mut list, PollTimeout::NONE);
        let has_message = list[1].any() == Some(true);
        self.doorbell.end_sleep();
        self.wake_ready();
        !has_message || self.answer_request()
    }

    /// Answers a request. Returns false at the end of the client.
    fn answer_request(&mut self) -> bool {
        // Files that a client sends are closed by the kernel.
        let Ok(Some((mut message, _))) = receive(&self.socket, false) else { return false };
        let mut file = None;
        let result = self.request(&mut message, &mut file);
        message.number = result.map_or_else(|errno| errno as u32, |()| 0);
        message.text = LINES.take().join("\n");
        let files: Vec<BorrowedFd<'_>> = file.iter().map(AsFd::as_fd).collect();
        send(&self.socket, &message, &files).is_ok()
    }

    /// Performs a request: the message becomes the answer, with a file.
    fn request(&mut self, message: &mut Message, file: &mut Option<OwnedFd>) -> Result<(), Errno> {
        let (open, entry) = self.open.as_ref().ok_or(Errno::EBADF)?;
        match message.number {
            CLOSE => {
                self.armed.clear();
                self.open = None;
            }
            WAKER => *file = Some(self.waker(&message.body)?),
            message::LINES => {}
            LIST => *file = Some(self.list(entry)?),
            number => {
                let kind = u16::try_from(number).map_err(|_| Errno::EINVAL)?;
                let mut request = Request::decode(kind, &message.body)?;
                open.request(&mut message.port, &mut request)?;
                if let Request::Register(_) = request {
                    entry.set_port(message.port.to_string());
                    let region = open.region()?.fd.try_clone();
                    *file = Some(region.map_err(|_| Errno::EMFILE)?);
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

    /// Makes the eventfd that wakes an entry's thread.
    fn waker(&mut self, body: &[u8]) -> Result<OwnedFd, Errno> {
        let entry = body.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes) as usize);
        let slot = entry.and_then(|entry| self.wakers.get_mut(entry)).ok_or(Errno::EINVAL)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = slot.insert(EventFd::from_value_and_flags(0, flags)?);
        event.as_fd().try_clone_to_owned().map_err(|_| Errno::EMFILE)
    }
}

/// Returns true if an event has come.
fn is_ready(sources: &WaitSources) -> bool {
    let mut list: Vec<PollFd<'_>> = sources.polled().collect();
    !list.is_empty() && poll(&mut list, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
