//! `--step`: each packet waits for a line of standard input.

use std::io::{Write, stderr, stdin};
use std::os::fd::AsFd;

use jiff::tz::TimeZone;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;
use sluicegate::error::{Error, Result};
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::RingMut;
use sluicegate_traffic::rate::Gaps;
use sluicegate_traffic::source::{Filled, PacketSource, Replay, SkippedPackets};

use crate::notice;
use crate::print::{Printer, TimeFormat};

/// The longest wait: a waiting worker does not detect a stop request.
const MAX_WAIT_MS: u16 = 20;

/// A replay whose packets are shown one by one, and sent on request.
pub struct Steps {
    replay: Replay,
    /// A ring that discards packets. It holds the next packet until it is requested.
    staging: Queue,
    /// The head of that ring before the packet; `None` if there is none.
    next: Option<u32>,
    /// Packets requested and not yet sent.
    requested: u64,
    /// Standard input has ended.
    ended: bool,
    printer: Printer,
    link_type: u16,
    line: String,
    /// Packets that the target's ring cannot hold.
    too_long: u64,
    /// The replay's counts before the next packet was taken. Packets that it omits then, before and after that
    /// packet, count once that is sent.
    skipped_before: SkippedPackets,
}

impl Steps {
    /// Creates the source, and explains it.
    ///
    /// # Errors
    /// No memory for the ring.
    pub fn new(replay: Replay, link_type: u16) -> Result<Self> {
        let options = OpenOptions { usage: Directions::Send, ..OpenOptions::default() };
        let staging = Port::open(&"null:".parse()?, &options)?.queues.remove(0);
        notice::say("each packet waits for Enter; the end of standard input (^D) ends");
        Ok(Self {
            replay,
            staging,
            next: None,
            requested: 0,
            ended: false,
            printer: Printer::new(TimeFormat::default(), TimeZone::system()),
            link_type,
            line: String::new(),
            too_long: 0,
            skipped_before: SkippedPackets::default(),
        })
    }

    /// Takes the next packet from the replay and shows it.
    fn show_next(&mut self, now_ns: u64) -> Result<()> {
        self.skipped_before = self.replay.skipped();
        let head = self.staging.tx().head();
        if self.replay.fill(&mut self.staging.tx_mut(), 1, now_ns)?.packets == 0 {
            return Ok(());
        }
        self.next = Some(head);
        self.line.clear();
        for packet in self.staging.tx().pending_tx(head) {
            self.printer.line(&mut self.line, self.link_type, None, &packet);
        }
        // A closed stderr does not stop the command.
        let _ = stderr().write_all(self.line.as_bytes());
        Ok(())
    }

    /// Counts the lines that standard input has, and waits for some up to a time.
    fn read_requests(&mut self, wait_ms: u16) -> Result<()> {
        let failed = |error: Errno| Error::system("read", "standard input", error);
        let input = stdin();
        let mut events = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        match poll(&mut events, PollTimeout::from(wait_ms)) {
            Ok(0) | Err(Errno::EINTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(failed(error)),
        }
        let mut bytes = [0; 256];
        match read(input.as_fd(), &mut bytes) {
            Ok(0) => self.ended = true,
            Ok(read) => {
                let lines = bytes[..read].iter().filter(|byte| **byte == b'\n').count();
                self.requested += lines as u64;
            }
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    }
}

impl PacketSource for Steps {
    fn fill(&mut self, ring: &mut RingMut<'_>, most: u32, now_ns: u64) -> Result<Filled> {
        let mut filled = Filled::default();
        if self.next.is_none() {
            self.show_next(now_ns)?;
        }
        let Some(head) = self.next.filter(|_| self.requested > 0 && most > 0) else {
            return Ok(filled);
        };
        for packet in self.staging.tx().pending_tx(head) {
            if ring.push(&packet) {
                filled = Filled { packets: 1, bytes: packet.captured_bytes() as u64 };
            } else if ring.can_ever_hold(&packet) {
                return Ok(filled);
            } else {
                self.too_long += 1;
            }
        }
        self.staging.sync_tx()?;
        self.next = None;
        self.requested -= 1;
        Ok(filled)
    }

    fn rest(&mut self, now_ns: u64) -> Result<()> {
        match self.next {
            // A pipe has no packet yet, or the file is at its end.
            None if !self.replay.is_finished() => {
                self.read_requests(0)?;
                self.replay.rest(now_ns)
            }
            Some(_) if self.requested == 0 => self.read_requests(MAX_WAIT_MS),
            _ => Ok(()),
        }
    }

    fn is_finished(&self) -> bool {
        let done = self.next.is_none() && self.replay.is_finished();
        done || self.ended && self.requested == 0
    }

    fn failure(&mut self) -> Option<Error> {
        self.replay.failure()
    }

    fn lateness(&self) -> Gaps {
        Gaps::default()
    }

    fn skipped(&self) -> SkippedPackets {
        let skipped = match self.next {
            Some(_) => self.skipped_before,
            None => self.replay.skipped(),
        };
        SkippedPackets { too_long: skipped.too_long + self.too_long, ..skipped }
    }

    fn restarts(&self) -> u64 {
        0
    }
}
