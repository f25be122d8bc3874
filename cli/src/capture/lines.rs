//! Printing packets, one line each. In transit a line is a pcapng record whose packet is the text, so lines
//! are merged by time like packets.

use std::io::{self, Write, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluicegate::file::write::{Chunk, EncodedRecord, Encoder, EncoderConfig};
use sluicegate::port::Interface;
use sluicegate::ring::{Meta, Packet};

use super::chunks::{ChunkOptions, ChunkRoute, ChunkSender, ChunkSink, Quiet};
use crate::notice;
use crate::print::{Printer, TimeFormat};

/// The size of a chunk that is written directly, and of one that waits for other queues.
const STRAIGHT_BYTES: usize = 64 << 10;
const MERGED_BYTES: usize = 8 << 10;
/// Maximum of waiting text of one queue: equal to that of a queue's chunks in transit to a file.
const MAX_BYTES: usize = 32 << 20;
/// Interval at which an idle queue passes on lines and promises silence.
const LINE_HOLD_TIME: Duration = Duration::from_millis(10);

/// Standard output, shared by the lines of all queues.
pub struct LineOutput {
    starts: LineStarts,
    state: Mutex<LineState>,
    failed: AtomicBool,
}

/// The parts of a line that depend on the lines before it.
#[derive(Default)]
pub struct LineStarts {
    /// The packet's number, as of tcpdump's `-#`.
    number: bool,
    gaps: Option<Gaps>,
}

impl LineStarts {
    /// Creates the starts of lines whose printers have this format of times.
    pub fn new(number: bool, format: TimeFormat, nanoseconds: bool) -> Self {
        let gaps = match format {
            TimeFormat::Delta => Some(Gaps { since_first: false, nanoseconds }),
            TimeFormat::Elapsed => Some(Gaps { since_first: true, nanoseconds }),
            _ => None,
        };
        Self { number, gaps }
    }

    fn write(&self, state: &mut LineState, timestamp_ns: u64) {
        if self.number {
            state.lines += 1;
            // A write to memory cannot fail.
            let _ = write!(state.text, "{:5}  ", state.lines);
        }
        if let Some(gaps) = &self.gaps {
            gaps.write(state, timestamp_ns);
        }
    }
}

/// Times between lines, as tcpdump's `-ttt` and `-ttttt` print them.
struct Gaps {
    since_first: bool,
    nanoseconds: bool,
}

#[derive(Default)]
struct LineState {
    text: Vec<u8>,
    /// Lines so far, if they are numbered.
    lines: u64,
    /// The latest time of a line that was written.
    latest_ns: u64,
    /// The time that the next line's gap is counted from.
    gap_from_ns: Option<u64>,
    late: u64,
    lost: u64,
    failure: Option<io::Error>,
}

impl Gaps {
    /// Writes the time since the line that it is counted from, and a blank.
    fn write(&self, state: &mut LineState, timestamp_ns: u64) {
        const NS: u64 = 1_000_000_000;
        let from = *state.gap_from_ns.get_or_insert(timestamp_ns);
        if !self.since_first {
            state.gap_from_ns = Some(timestamp_ns);
        }
        let sign = if timestamp_ns < from { '-' } else { ' ' };
        // The difference of the times as they would be printed.
        let unit = if self.nanoseconds { 1 } else { 1000 };
        let gap = (timestamp_ns / unit).abs_diff(from / unit) * unit;
        let (s, ns) = (gap / NS, gap % NS);
        let (h, m, s) = (s / 3600, s / 60 % 60, s % 60);
        // A write to memory cannot fail.
        let _ = match self.nanoseconds {
            true => write!(state.text, "{sign}{h:02}:{m:02}:{s:02}.{ns:09} "),
            false => write!(state.text, "{sign}{h:02}:{m:02}:{s:02}.{:06} ", ns / 1000),
        };
    }
}

impl LineOutput {
    pub fn new(starts: LineStarts) -> Self {
        Self { starts, state: Mutex::default(), failed: AtomicBool::new(false) }
    }

    /// Packets whose lines were not written.
    pub fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// Packets whose lines were written after a later one's.
    pub fn late(&self) -> u64 {
        self.lock().late
    }

    /// Takes the error of standard output; a reader that has left is not an error.
    pub fn take_error(&self) -> Option<io::Error> {
        self.lock().failure.take().filter(|error| !notice::reader_left(error, stdout()))
    }

    fn lock(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes to an output of any kind.
    fn write_to(&self, chunk: &Chunk, mut out: impl Write) {
        let mut state = self.lock();
        if self.has_failed() {
            state.lost += chunk.packets();
            return;
        }
        state.text.clear();
        for record in chunk.records() {
            self.starts.write(&mut state, record.timestamp_ns);
            state.text.extend_from_slice(text_of(&record));
            state.late += u64::from(record.timestamp_ns < state.latest_ns);
            state.latest_ns = state.latest_ns.max(record.timestamp_ns);
        }
        if let Err(error) = out.write_all(&state.text).and_then(|()| out.flush()) {
            state.lost += chunk.packets();
            state.failure = Some(error);
            // `Relaxed` suffices: the mutex publishes the failure.
            self.failed.store(true, Ordering::Relaxed);
        }
    }
}

impl ChunkSink for LineOutput {
    fn take(&self, chunk: &mut Chunk) {
        self.write_to(chunk, stdout().lock());
        chunk.clear();
    }

    fn flush(&self) {}

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

/// The text of a line's record: an Enhanced Packet Block has the packet's length at byte 20, and the
/// packet from byte 28 on.
fn text_of<'a>(record: &EncodedRecord<'a>) -> &'a [u8] {
    let packet = record.bytes[20..].split_first_chunk::<4>();
    packet.map_or(&[], |(bytes, rest)| &rest[4..][..u32::from_le_bytes(*bytes) as usize])
}

/// Prints one queue's packets to standard output, in order with those of other queues.
pub struct Lines {
    printer: Printer,
    text: String,
    pub sender: ChunkSender<LineOutput>,
    /// Link type and name of each interface, by its number.
    interfaces: Vec<(u16, String)>,
    /// Names the interface in each line.
    names_device: bool,
}

impl Lines {
    /// Creates the printer of a queue; `quiet` if it receives live packets. With `names_device` each line
    /// names the interface.
    pub fn new(
        printer: Printer,
        route: ChunkRoute,
        output: Arc<LineOutput>,
        quiet: Option<Quiet>,
        names_device: bool,
    ) -> Self {
        let bytes = match route {
            ChunkRoute::Straight => STRAIGHT_BYTES,
            ChunkRoute::Merged { .. } => MERGED_BYTES,
        };
        let (hold_time, max_chunks) = (LINE_HOLD_TIME, MAX_BYTES / bytes);
        let options = ChunkOptions { bytes, max_chunks, hold_time, quiet, hurries: true };
        let sender = ChunkSender::new(encoder(), route, output, options);
        Self { printer, text: String::new(), sender, interfaces: Vec::new(), names_device }
    }

    pub fn meet(&mut self, interfaces: &[Interface]) {
        let json = self.printer.json;
        let name = |name: &String| match json && !name.is_empty() {
            true => serde_json::Value::from(name.as_str()).to_string(),
            false => name.clone(),
        };
        let new = interfaces.iter().skip(self.interfaces.len());
        self.interfaces.extend(new.map(|it| (it.link_type, name(&it.name))));
    }

    pub fn packet(&mut self, packet: &Packet<'_>) {
        let interface = packet.meta().interface as usize;
        let (link_type, name) = self.interfaces.get(interface).map_or((0, ""), |(t, n)| (*t, n));
        let device = (self.names_device || self.printer.json).then_some(name);
        self.text.clear();
        self.printer.line(&mut self.text, link_type, device, packet);
        let timestamp_ns = packet.meta().timestamp_ns;
        let meta = Meta { timestamp_ns, ..Meta::default() };
        self.sender.append(&Packet::new(&meta, self.text.as_bytes()));
    }
}

/// The encoder of records whose packets are lines. With bytes below it, a line is longer than its packet.
pub fn encoder() -> Encoder {
    Encoder::new(&EncoderConfig { snaplen: u32::MAX, ..EncoderConfig::default() })
}

/// Creates an empty chunk for the merged lines of several queues.
pub fn merged_chunk() -> Chunk {
    encoder().chunk_of(STRAIGHT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(lines: &[(u64, &str)]) -> Chunk {
        let mut encoder = encoder();
        let mut chunk = merged_chunk();
        for &(timestamp_ns, text) in lines {
            let meta = Meta { timestamp_ns, ..Meta::default() };
            assert!(encoder.append(&mut chunk, &Packet::new(&meta, text.as_bytes())));
        }
        chunk
    }

    #[test]
    fn lines_are_written_as_they_are_and_late_ones_counted() {
        let (output, mut out) = (LineOutput::new(LineStarts::default()), Vec::new());
        output.write_to(&chunk(&[(8, "a\n"), (3, "bcd\n"), (u64::MAX, "efghij\n")]), &mut out);
        output.write_to(&chunk(&[(9, "")]), &mut out);
        assert_eq!(out, b"a\nbcd\nefghij\n");
        assert_eq!((output.late(), output.lost()), (2, 0));
    }

    #[test]
    fn lines_after_a_failure_are_lost_and_the_failure_is_returned_once() {
        let output = LineOutput::new(LineStarts::default());
        let mut full: &mut [u8] = &mut [0; 3];
        output.write_to(&chunk(&[(1, "abc")]), &mut full);
        assert!(!output.has_failed());
        output.write_to(&chunk(&[(2, "d"), (3, "e")]), &mut full);
        output.write_to(&chunk(&[(4, "f")]), &mut full);
        assert_eq!((output.lost(), output.has_failed()), (3, true));
        assert!(output.take_error().is_some() && output.take_error().is_none());
    }
}
