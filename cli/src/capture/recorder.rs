//! The visitor of a capture: packets become records in a chunk, and lines on the terminal.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use sluicegate::error::{Error, Result};
use sluicegate::file::write::{Chunk, Encoder, Output};
use sluicegate::port::{Interface, Queue};
use sluicegate::ring::Packet;

use super::lines::Lines;
use super::merge::Message;
use crate::run::Visitor;

/// Chunks that one recorder may have on their way at most: 32 MiB.
const MOST_CHUNKS: usize = 256;
/// A packet is not in the kernel's hands for longer than this before it comes to us.
const DELIVERY: Duration = Duration::from_millis(50);

/// The file of a capture, and how its interfaces are numbered there.
pub struct File {
    output: Mutex<Output>,
    /// It failed: there is no point in going on.
    failed: AtomicBool,
}

impl File {
    pub fn new(output: Output) -> Self {
        Self { output: Mutex::new(output), failed: AtomicBool::new(false) }
    }

    pub fn output(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a chunk; what cannot be written counts as lost.
    pub fn write(&self, chunk: &Chunk) {
        if self.output().write(chunk).is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    /// Writes what is held back.
    pub fn flush(&self) {
        if self.output().flush().is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub fn into_output(self) -> Output {
        self.output.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The numbers that one port's interfaces have in the file; shared by its queues.
pub struct Numbers {
    in_file: Mutex<Vec<u32>>,
    filter: Option<String>,
}

impl Numbers {
    pub fn new(filter: Option<String>) -> Self {
        Self { in_file: Mutex::new(Vec::new()), filter }
    }

    /// The numbers of all these interfaces; those not met before are added to the file.
    pub fn of(&self, interfaces: &[Interface], file: &File) -> Result<Vec<u32>> {
        let mut in_file = self.in_file.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(interface) = interfaces.get(in_file.len()) {
            let number = file.output().add_interface(interface, self.filter.as_deref())?;
            in_file.push(number);
        }
        Ok(in_file.clone())
    }
}

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
    /// A moment before the latest look that found nothing new.
    looked_ns: u64,
    error: Option<Error>,
}

impl Recorder {
    pub fn new(
        mut encoder: Encoder,
        hand_on: HandOn,
        file: Arc<File>,
        numbers: Arc<Numbers>,
        patience: Duration,
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
            looked_ns: 0,
            error: None,
        })
    }

    /// What went wrong here, other than in the file.
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
                    Err(_) if *made < MOST_CHUNKS => {
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
        // Not the time now: this thread may have stood still since it looked.
        let looked_ns = std::mem::replace(&mut self.looked_ns, now_ns());
        if self.handed_on.elapsed() < self.patience {
            return;
        }
        let was_empty = self.chunk.is_empty();
        self.pass_on();
        match &self.hand_on {
            HandOn::Write if !was_empty => self.file.flush(),
            HandOn::Write => {}
            HandOn::Merge { source, to, .. } => {
                let quiet_until = looked_ns.saturating_sub(DELIVERY.as_nanos() as u64);
                let _ = to.send(Message::Silent(*source, quiet_until));
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

/// Nanoseconds since 1970.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |time| time.as_nanos() as u64)
}

/// What a capture does with one queue's packets: record, print, or both.
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
        self.batch_done()
    }

    fn finish(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.finish();
        }
    }
}
