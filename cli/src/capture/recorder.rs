//! The recorder of a queue, whose packets become records in a chunk or lines on the terminal, and the
//! control thread of a capture.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use sluicegate::error::{Error, Result};
use sluicegate::file::write::{Chunk, Encoder, InterfaceStats, Output};
use sluicegate::port::{Interface, Queue};
use sluicegate::ring::{Packet, now_ns};

use super::file::{File, Numbers};
use super::lines::Lines;
use super::merge::Message;
use super::merge::Quiet;
use super::options::Options;
use crate::counters::{Totals, WorkerCounters};
use crate::ledger::Role;
use crate::report::Report;
use crate::run::{Outcomes, Received, Run, RunControl, Visitor};
use crate::status::Status;

/// Chunks that one recorder may have on their way at most: 32 MiB.
const MAX_CHUNKS: usize = 256;

/// Where full chunks go.
pub enum HandOn {
    /// Straight to the file: this is the only recorder.
    Write,
    /// To the thread that merges several recorders' chunks; empty ones come back.
    Merge { source: usize, to: SyncSender<Message>, back: Receiver<Chunk>, made: usize },
}

/// Writes one queue's packets to the file.
pub struct Recorder {
    encoder: Encoder,
    chunk: Chunk,
    hand_on: HandOn,
    file: Arc<File>,
    numbers: Arc<Numbers>,
    known: usize,
    handed_on: Instant,
    /// How long a part of a chunk may be held back.
    patience: Duration,
    /// The promises of a live queue; none for a file or a pipe.
    quiet: Option<Quiet>,
    error: Option<Error>,
}

impl Recorder {
    pub fn new(
        mut encoder: Encoder,
        hand_on: HandOn,
        file: Arc<File>,
        numbers: Arc<Numbers>,
        patience: Duration,
        quiet: Option<Quiet>,
        interfaces: &[Interface],
    ) -> Result<Self> {
        let in_file = numbers.of(interfaces, &file)?;
        in_file.iter().for_each(|&number| encoder.map_interface(number));
        Ok(Self {
            chunk: encoder.chunk(),
            known: in_file.len(),
            encoder,
            hand_on,
            file,
            numbers,
            handed_on: Instant::now(),
            patience,
            quiet,
            error: None,
        })
    }

    /// Takes the recorder's error; errors of the file are separate.
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    fn meet(&mut self, queue: &Queue) {
        let interfaces = queue.interfaces();
        if interfaces.len() == self.known {
            return;
        }
        match self.numbers.of(interfaces, &self.file) {
            Ok(in_file) => {
                let new = in_file.iter().skip(self.known);
                new.for_each(|&number| self.encoder.map_interface(number));
                self.known = in_file.len();
            }
            Err(error) => self.error = Some(error),
        }
    }

    #[inline]
    fn packet(&mut self, packet: &Packet<'_>) {
        if !self.encoder.append(&mut self.chunk, packet) {
            self.pass_on();
            // An empty chunk takes a packet of any length.
            self.encoder.append(&mut self.chunk, packet);
        }
    }

    /// Hands the chunk on and begins a new one.
    fn pass_on(&mut self) {
        self.handed_on = Instant::now();
        if self.chunk.is_empty() {
            return;
        }
        match &mut self.hand_on {
            HandOn::Write => {
                self.file.write(&self.chunk);
                self.chunk.clear();
            }
            HandOn::Merge { source, to, back, made } => {
                let next = match back.try_recv() {
                    Ok(chunk) => chunk,
                    Err(_) if *made < MAX_CHUNKS => {
                        *made += 1;
                        self.encoder.chunk()
                    }
                    // Backpressure: the kernel's ring takes what comes meanwhile.
                    Err(_) => back.recv().unwrap_or_else(|_| self.encoder.chunk()),
                };
                let full = std::mem::replace(&mut self.chunk, next);
                // The merging thread lives until every recorder has ended.
                let _ = to.send(Message::Chunk(*source, full));
            }
        }
    }

    fn idle(&mut self) {
        let quiet_until_ns = self.quiet.as_mut().map(Quiet::look);
        if self.handed_on.elapsed() < self.patience {
            return;
        }
        let was_empty = self.chunk.is_empty();
        self.pass_on();
        match &self.hand_on {
            HandOn::Write if !was_empty => self.file.flush(),
            HandOn::Write => {}
            HandOn::Merge { source, to, .. } => {
                if let Some(until_ns) = quiet_until_ns {
                    let _ = to.send(Message::Silent(*source, until_ns));
                }
            }
        }
    }

    fn finish(&mut self) {
        self.pass_on();
        if let HandOn::Merge { source, to, .. } = &self.hand_on {
            let _ = to.send(Message::End(*source));
        }
    }

    fn flow(&self) -> ControlFlow<()> {
        if self.error.is_some() || self.file.has_failed() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// A capture of one queue: records its packets, prints them, or both.
pub struct Capture {
    pub recorder: Option<Recorder>,
    pub lines: Option<Lines>,
}

impl Visitor for Capture {
    fn prepare(&mut self, queue: &Queue) {
        if let Some(recorder) = &mut self.recorder {
            recorder.meet(queue);
        }
        if let Some(lines) = &mut self.lines {
            lines.meet(queue.interfaces());
        }
    }

    #[inline]
    fn packet(&mut self, packet: &Packet<'_>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.packet(packet);
        }
        if let Some(lines) = &mut self.lines {
            lines.packet(packet);
        }
    }

    fn batch_done(&mut self) -> ControlFlow<()> {
        let printed = self.lines.as_mut().map_or(ControlFlow::Continue(()), Lines::batch_done);
        let recorded = self.recorder.as_ref().map_or(ControlFlow::Continue(()), Recorder::flow);
        if printed.is_break() { printed } else { recorded }
    }

    fn idle(&mut self) -> ControlFlow<()> {
        if let Some(recorder) = &mut self.recorder {
            recorder.idle();
        }
        let printed = self.lines.as_mut().map_or(ControlFlow::Continue(()), Lines::idle);
        if printed.is_break() { printed } else { self.batch_done() }
    }

    fn finish(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.finish();
        }
        if let Some(lines) = &mut self.lines {
            lines.finish();
        }
    }
}

/// Notes each interface's statistics so far, so that every file of a rotation ends with some. Writing
/// is not waited for: the control thread has to see signals.
pub fn note_statistics(
    file: &File,
    ports: &[(Range<usize>, Arc<Numbers>)],
    counters: &[WorkerCounters],
    started_ns: u64,
) {
    let Some(mut output) = file.idle_output() else { return };
    for (range, numbers) in ports {
        let totals = Totals::sum(&counters[range.clone()]);
        set_statistics(&mut output, numbers, totals, started_ns);
    }
}

/// Notes the final statistics.
pub fn note_final_statistics(
    file: &File,
    ports: &[(Range<usize>, Arc<Numbers>)],
    ended: &Run<Received>,
    started_ns: u64,
) {
    for (range, numbers) in ports {
        let mut totals = Totals::default();
        for outcome in ended.outcomes[range.clone()].iter().flatten() {
            let Received { packets, stats, after_end, .. } = outcome.counts;
            totals.packets += packets;
            totals.received += stats.received.saturating_sub(after_end);
            totals.lost += stats.dropped_ring_full;
        }
        set_statistics(&mut file.output(), numbers, totals, started_ns);
    }
}

/// A port's statistics; they are those of its only interface, so a file's several have none.
fn set_statistics(output: &mut Output, numbers: &Numbers, totals: Totals, started_ns: u64) {
    if numbers.several {
        return;
    }
    let Some(in_file) = numbers.known() else { return };
    let &[number] = in_file.as_slice() else { return };
    let taken_ns = now_ns();
    let stats = InterfaceStats {
        taken_ns,
        start_ns: Some(started_ns),
        end_ns: Some(taken_ns),
        received: Some(totals.received),
        dropped: None,
        filter_accepted: Some(totals.received),
        os_dropped: Some(totals.lost),
        delivered: Some(totals.packets),
        losses: match totals.lost {
            0 => Vec::new(),
            lost => vec![("ring full".into(), lost)],
        },
    };
    // The number came from the same output.
    let _ = output.set_statistics(number, stats);
}

/// Controls a capture.
pub struct CaptureControl<'a> {
    pub options: &'a Options,
    pub reports: &'a mut [Report],
    /// For each port: its queues' places among the workers, and its numbers in the file.
    pub ports: &'a [(Range<usize>, Arc<Numbers>)],
    pub file: Option<&'a File>,
    pub started_ns: u64,
}

impl RunControl<Received> for CaptureControl<'_> {
    fn report_so_far(&mut self, outcomes: &Outcomes<Received>, elapsed: Duration) -> Report {
        let of_port = |(report, (range, _)): (&mut Report, &(Range<usize>, _))| {
            report.counted_so_far(&outcomes[range.clone()], elapsed)
        };
        let mut whole =
            Report::together(self.reports.iter_mut().zip(self.ports).map(of_port).collect());
        for port in &mut whole.ports {
            port.ledger.add(Role::Out, "delivered", port.traffic.packets);
        }
        match self.file.map(File::counts) {
            Some(counts) => {
                whole.ledger.add(Role::Out, "written", counts.written());
                whole.ledger.add(Role::Loss, "not_written", counts.lost());
            }
            None => whole.ledger.add(Role::Out, "printed", whole.traffic.packets),
        }
        whole
    }

    fn watch(&mut self, status: &mut Status, counters: &[WorkerCounters], elapsed: Duration) {
        // The live line would cut the packets' lines to pieces.
        if !self.options.print {
            status.show(counters, elapsed);
        }
        if let Some(file) = self.file {
            note_statistics(file, self.ports, counters, self.started_ns);
        }
    }

    fn at_end(&mut self) {
        self.reports.iter_mut().for_each(Report::look_at_card);
    }
}
