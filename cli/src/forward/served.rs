//! What a relay has in its hands: queues, and the ways between them.

use std::time::Instant;

use nix::errno::Errno;
use sluicegate::error::{Error, Result};
use sluicegate::port::Queue;

/// A queue, and what it is used for.
pub struct Served {
    pub queue: Queue,
    /// Which of the two ports it is of.
    pub side: usize,
    pub receives: bool,
    pub sends: bool,
    /// It can be sent to again when its interface, down, has come up.
    pub waits: bool,
    /// The interface went down then, and nothing has moved since.
    pub down_since: Option<Instant>,
    /// Interfaces of its packets that the targets have been told of.
    pub described: usize,
}

impl Served {
    pub fn new(queue: Queue, side: usize) -> Self {
        Self {
            queue,
            side,
            receives: false,
            sends: false,
            waits: true,
            down_since: None,
            described: 0,
        }
    }

    /// Whether packets were given to it that it has not sent.
    pub fn is_sending(&self) -> bool {
        self.sends && self.queue.tx().available() + 1 < self.queue.tx().num_slots()
    }

    /// Sends what it was given, as far as the interface takes it. Returns how many slots are room
    /// again, and whether it is down.
    pub fn send(&mut self) -> Result<(u32, bool)> {
        match self.queue.sync_tx() {
            Ok(slots) => Ok((slots, false)),
            // It may come up again; until then packets wait.
            Err(error) if self.may_come_up(&error) => Ok((0, true)),
            Err(error) => Err(error),
        }
    }

    /// Sends what it can of what it was given, and no more after that.
    pub fn end(&mut self) -> Result<()> {
        match self.queue.close_tx() {
            // What is not sent is counted.
            Err(error) if self.may_come_up(&error) => Ok(()),
            result => result,
        }
    }

    fn may_come_up(&self, error: &Error) -> bool {
        self.waits && error.errno() == Some(Errno::ENETDOWN as i32)
    }
}

/// From a queue to a queue, by their places in the relay.
#[derive(Debug)]
pub struct Way {
    pub from: usize,
    pub to: usize,
    /// The target was full at the last look.
    pub blocked: bool,
    /// Slots of packets that wait at the source and have been looked at: the first ones.
    pub looked_at: u32,
}

impl Way {
    pub fn new(from: usize, to: usize) -> Self {
        Self { from, to, blocked: false, looked_at: 0 }
    }
}
