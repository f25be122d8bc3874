//! Printing packets, one line each, a batch a write.

use std::io::{self, stdout};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate::port::Interface;
use sluicegate::ring::Packet;

use super::merge::Quiet;
use super::order::{LineBatch, LineOrder};
use crate::notice;
use crate::print::Printer;

/// Lines that wait for the end of a batch are handed on early beyond this many bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// How often a queue in which nothing comes says so and lets lines go.
const PATIENCE: Duration = Duration::from_millis(10);

/// Prints one queue's packets to standard output, in their order among those of all queues.
pub struct Lines {
    printer: Printer,
    batch: LineBatch,
    order: Arc<LineOrder>,
    /// The queue's number there.
    queue: usize,
    /// The promises of a live queue; none for a file or a pipe.
    quiet: Option<Quiet>,
    promised: Instant,
    /// Link type and name of each interface, by its number.
    interfaces: Vec<(u16, String)>,
    /// Names the interface in each line.
    names_device: bool,
    flow: ControlFlow<()>,
    /// Packets that came after standard output had failed.
    lost: u64,
}

impl Lines {
    /// Creates the printer of the queue with this number; `quiet` if it receives live packets.
    /// With `names_device` each line names the interface.
    pub fn new(
        printer: Printer,
        order: Arc<LineOrder>,
        queue: usize,
        quiet: Option<Quiet>,
        names_device: bool,
    ) -> Self {
        Self {
            printer,
            batch: LineBatch::default(),
            order,
            queue,
            quiet,
            promised: Instant::now(),
            interfaces: Vec::new(),
            names_device,
            flow: ControlFlow::Continue(()),
            lost: 0,
        }
    }

    /// Packets whose lines standard output did not take.
    pub fn lost(&self) -> u64 {
        self.lost + self.order.lost(self.queue)
    }

    /// Packets whose lines went after a later one's.
    pub fn late(&self) -> u64 {
        self.order.late(self.queue)
    }

    /// Takes the error of standard output; a reader that has left is not an error.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.order.take_failure().filter(|error| !notice::reader_left(error, stdout()))
    }

    pub fn meet(&mut self, interfaces: &[Interface]) {
        let new = interfaces.iter().skip(self.interfaces.len());
        self.interfaces.extend(new.map(|it| (it.link_type, it.name.clone())));
    }

    pub fn packet(&mut self, packet: &Packet<'_>) {
        if self.flow.is_break() {
            self.lost += 1;
            return;
        }
        let interface = packet.meta().interface as usize;
        let (link_type, name) = self.interfaces.get(interface).map_or((0, ""), |(t, n)| (*t, n));
        let device = self.names_device.then_some(name);
        self.printer.line(&mut self.batch.text, link_type, device, packet);
        self.batch.end_line(packet.meta().timestamp_ns);
        if self.batch.text.len() > BUFFER_BYTES {
            self.flow = self.order.push(self.queue, &mut self.batch, self.quiet.is_some());
        }
    }

    /// Hands the batch's lines on.
    pub fn batch_done(&mut self) -> ControlFlow<()> {
        if !self.batch.text.is_empty() {
            self.flow = self.order.push(self.queue, &mut self.batch, self.quiet.is_some());
        }
        self.flow
    }

    /// Nothing has come for a moment: others need not wait, and what has waited long enough goes.
    pub fn idle(&mut self) -> ControlFlow<()> {
        let until_ns = self.quiet.as_mut().map_or(0, Quiet::look);
        if self.promised.elapsed() >= PATIENCE {
            self.promised = Instant::now();
            self.flow = self.order.quiet(self.queue, until_ns);
        }
        self.flow
    }

    /// Nothing will come any more.
    pub fn finish(&mut self) {
        let _ = self.batch_done();
        self.flow = self.order.quiet(self.queue, u64::MAX);
    }
}
