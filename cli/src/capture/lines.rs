//! Printing packets, one line each, a batch a write.

use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;

use sluicegate::port::Interface;
use sluicegate::ring::Packet;

use crate::print::Printer;

/// Lines that wait for the end of a batch are written early beyond this many bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// Prints one queue's packets to standard output.
pub struct Lines {
    printer: Printer,
    text: String,
    /// Link type of each interface, by its number.
    link_types: Vec<u16>,
    failure: Option<io::Error>,
    /// Packets whose lines wait to be written.
    waiting: u64,
    /// Packets whose lines standard output did not take.
    lost: u64,
}

impl Lines {
    pub fn new(printer: Printer) -> Self {
        Self {
            printer,
            text: String::with_capacity(BUFFER_BYTES + 4096),
            link_types: Vec::new(),
            failure: None,
            waiting: 0,
            lost: 0,
        }
    }

    /// Packets whose lines standard output did not take.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// What went wrong with standard output; a reader that has had enough is no error.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.failure.take().filter(|error| error.kind() != ErrorKind::BrokenPipe)
    }

    pub fn meet(&mut self, interfaces: &[Interface]) {
        let new = interfaces.iter().skip(self.link_types.len());
        self.link_types.extend(new.map(|interface| interface.link_type));
    }

    pub fn packet(&mut self, packet: &Packet<'_>) {
        if self.failure.is_some() {
            self.lost += 1;
            return;
        }
        self.waiting += 1;
        let interface = packet.meta().interface as usize;
        let link_type = self.link_types.get(interface).copied().unwrap_or_default();
        self.printer.line(&mut self.text, link_type, packet);
        if self.text.len() > BUFFER_BYTES {
            self.write();
        }
    }

    /// Writes the batch's lines at once, so that those of several threads do not mix.
    pub fn batch_done(&mut self) -> ControlFlow<()> {
        self.write();
        if self.failure.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn write(&mut self) {
        if self.text.is_empty() || self.failure.is_some() {
            return;
        }
        let mut out = io::stdout().lock();
        let written = out.write_all(self.text.as_bytes()).and_then(|()| out.flush());
        self.failure = written.err();
        let packets = std::mem::take(&mut self.waiting);
        if self.failure.is_some() {
            self.lost += packets;
        }
        self.text.clear();
    }
}
