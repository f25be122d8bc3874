//! The loop of `sluice edit`: reads packets, changes those to keep, and writes them.

use std::io::stderr;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::errno::Errno;
use nix::libc::{EDQUOT, ENOSPC};
use nix::poll::{PollFd, PollFlags, poll};
use sluicegate::error::{Error, Result};
use sluicegate::file::Format;
use sluicegate::file::read::{MergeOutcome, MergedReader, Record};
use sluicegate::file::write::{Chunk, Encoder, EncoderConfig, Output, OutputConfig};
use sluicegate::port::{Interface, LINKTYPE_ETHERNET};
use sluicegate::ring::{Meta, Packet};
use sluicegate_traffic::rewrite::Rewrite;

use super::selection::{Selection, Verdict};
use crate::file_flags::PCAP_END_NS;
use crate::ledger::Section;
use crate::pipe_reader;
use crate::recorded::Recorded;
use crate::report::{FilesReport, Report, Traffic};
use crate::signals::Signals;

/// The longest wait between two looks at the signals, in ms.
const WAIT_MS: u16 = 100;
/// Packets between two looks at the signals.
const SIGNAL_INTERVAL: u64 = 1 << 12;

/// Edits the packets of files into another one.
pub struct Editor {
    selection: Selection,
    changes: Changes,
    writer: PacketWriter,
    counts: Counts,
    begun: Instant,
    /// The names of the files that are read.
    inputs: String,
}

/// Counts of packets read.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    packets: u64,
    /// Their bytes on the wire.
    bytes: u64,
    excluded: u64,
    filtered: u64,
    recorded: Option<Recorded>,
}

impl Editor {
    pub fn new<'a>(
        inputs: impl Iterator<Item = &'a Path>,
        selection: Selection,
        changes: Changes,
        writer: PacketWriter,
    ) -> Self {
        let inputs: Vec<String> = inputs.map(|path| path.display().to_string()).collect();
        let (counts, begun, inputs) = (Counts::default(), Instant::now(), inputs.join(" "));
        Self { selection, changes, writer, counts, begun, inputs }
    }

    /// Edits packets until the files or the numbers to keep end, the output fails, or a signal requests the
    /// end.
    ///
    /// # Errors
    /// The first file that is damaged, after the packets of all; a packet that the output cannot hold.
    pub fn run(&mut self, reader: &mut MergedReader, signals: &Signals, json: bool) -> Result<()> {
        let mut damage = None;
        while !self.selection.is_complete() {
            let found = reader.advance();
            self.add_interfaces(reader.interfaces())?;
            match (found, reader.record()) {
                (Ok(MergeOutcome::Packet), Some(record)) => {
                    if self.edit(&record, reader.interfaces())?.is_break() {
                        break;
                    }
                    if !self.counts.packets.is_multiple_of(SIGNAL_INTERVAL) {
                        continue;
                    }
                }
                (Ok(MergeOutcome::NotYet), _) => {
                    if self.writer.pass_on().is_break() {
                        break;
                    }
                    wait(reader.pollable())?;
                }
                (Ok(_), _) => break,
                (Err(error), _) => _ = damage.get_or_insert(error),
            }
            if signals.take_ledger_request() {
                // A closed terminal does not end the run.
                let _ = self.report_so_far().print(&mut stderr().lock(), json);
            }
            if signals.end_is_requested() {
                break;
            }
        }
        damage.map_or(Ok(()), Err)
    }

    /// Adds the interfaces that have appeared to the filter and the output.
    #[inline]
    fn add_interfaces(&mut self, interfaces: &[Interface]) -> Result<()> {
        self.selection.add_interfaces(interfaces)?;
        self.writer.add_interfaces(interfaces, self.selection.expression())
    }

    /// Edits a packet. Break means that the output has failed.
    ///
    /// # Errors
    /// The output's format cannot hold the packet's time.
    fn edit(&mut self, record: &Record<'_>, interfaces: &[Interface]) -> Result<ControlFlow<()>> {
        let packet = record.packet();
        self.counts.packets += 1;
        self.counts.bytes += u64::from(packet.meta().wire_bytes);
        Recorded::add(&mut self.counts.recorded, packet.meta().timestamp_ns);
        match self.selection.judge(&packet) {
            Verdict::Excluded => self.counts.excluded += 1,
            Verdict::Filtered => self.counts.filtered += 1,
            Verdict::Keep => {
                let link_type = interfaces[packet.meta().interface as usize].link_type;
                let packet = self.changes.apply(&packet, link_type);
                return self.writer.append(record, &packet, self.counts.packets);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Writes the rest. Returns the report, and the failure of the output.
    pub fn finish(mut self) -> (Report, Option<Error>) {
        // A failure is in the summary, too.
        let _ = self.writer.write();
        let mut report = self.report();
        let PacketWriter { output, path, refused, reader_left, .. } = self.writer;
        let summary = output.finish();
        report.ledger.add(Section::Out, "written", summary.packets);
        report.ledger.add(Section::Loss, "not_written", summary.lost + refused);
        let errno = summary.failure.as_ref().and_then(Error::errno);
        if (summary.failure.is_some() || refused > 0) && !matches!(errno, Some(ENOSPC | EDQUOT)) {
            report.ledger.advise("not_written", "see the error, which names the cause");
        }
        let path = match path.to_str() {
            Some("-") => "standard output".into(),
            _ => path.display().to_string(),
        };
        let (count, bytes, deleted) = (summary.files, summary.bytes, summary.files_deleted);
        report.files = Some(FilesReport { path, count, bytes, deleted, to_delete: 0 });
        let left = || Error::system("write", "standard output", Errno::EPIPE);
        (report, summary.failure.or_else(|| reader_left.then(left)))
    }

    /// Returns the report so far; packets being compressed are on their way.
    fn report_so_far(&self) -> Report {
        let mut report = Report { so_far: true, ..self.report() };
        let counts = self.writer.output.counts();
        report.ledger.add(Section::Out, "written", counts.written());
        report.ledger.add(Section::Loss, "not_written", counts.lost());
        report
    }

    /// Returns the report on the packets read.
    fn report(&self) -> Report {
        let Counts { packets, bytes, excluded, filtered, recorded } = self.counts;
        let elapsed = self.begun.elapsed();
        let mut report = Report {
            command: "edit",
            port: self.inputs.clone(),
            backend: "pcap".into(),
            elapsed_s: elapsed.as_secs_f64(),
            recorded,
            traffic: Traffic::over(packets, bytes, recorded.map_or(elapsed, Recorded::duration)),
            ..Report::default()
        };
        report.ledger.add(Section::In, "read", packets);
        report.ledger.add(Section::Omitted, "cut", excluded);
        report.ledger.add(Section::Omitted, "filtered", filtered);
        report.ledger.add(Section::Note, "rewritten", self.changes.rewritten);
        report.ledger.add(Section::Note, "not_rewritten", self.changes.other_link_type);
        report.ledger.add(Section::Note, "partly_rewritten", self.changes.partly);
        report
    }
}

/// Changes to the packets that are kept.
pub struct Changes {
    rewrite: Rewrite,
    shift_ns: i64,
    /// The changed packet.
    packet: (Meta, Vec<u8>),
    /// Packets that a rule changed.
    rewritten: u64,
    /// Packets of link types that rules cannot change.
    other_link_type: u64,
    /// Packets with a tunnel or protocol whose addresses rules do not reach.
    partly: u64,
}

impl Changes {
    pub fn new(rewrite: Rewrite, shift_ns: i64) -> Self {
        let packet = (Meta::default(), Vec::new());
        Self { rewrite, shift_ns, packet, rewritten: 0, other_link_type: 0, partly: 0 }
    }

    /// Returns the changed packet.
    fn apply<'a>(&'a mut self, packet: &Packet<'a>, link_type: u16) -> Packet<'a> {
        let (meta, bytes) = &mut self.packet;
        *meta = *packet.meta();
        meta.timestamp_ns = meta.timestamp_ns.saturating_add_signed(self.shift_ns);
        if self.rewrite.is_empty() {
            return packet.with_meta(meta);
        }
        if !Rewrite::supports(link_type) {
            self.other_link_type += 1;
            return packet.with_meta(meta);
        }
        bytes.clear();
        bytes.extend_from_slice(packet.head());
        self.partly += u64::from(!self.rewrite.apply(link_type, bytes));
        if link_type == LINKTYPE_ETHERNET {
            self.rewrite.change_tag(bytes, &mut meta.wire_bytes);
        }
        self.rewritten += u64::from(bytes.as_slice() != packet.head());
        Packet::new(meta, bytes)
    }
}

/// Writes packets to the output.
pub struct PacketWriter {
    encoder: Encoder,
    chunk: Chunk,
    output: Output,
    path: PathBuf,
    snaplen: u32,
    /// The bytes that rules may add to a packet.
    growth: u32,
    /// The number of interfaces in the output.
    interfaces: usize,
    format: Format,
    /// Packets whose times the format cannot hold.
    refused: u64,
    /// The reader of standard output left while the input was silent.
    reader_left: bool,
}

impl PacketWriter {
    /// Creates the output, if it can hold packets of these interfaces.
    pub fn create(
        encoder: &EncoderConfig,
        output: OutputConfig,
        interfaces: &[Interface],
        filter: Option<&str>,
        growth: u32,
    ) -> Result<Self> {
        let (snaplen, format, path) = (encoder.snaplen, encoder.format, output.path.clone());
        let encoder = Encoder::new(encoder);
        let (chunk, output) = (encoder.chunk(), Output::prepare(output)?);
        let mut writer = Self {
            encoder,
            chunk,
            output,
            path,
            snaplen,
            growth,
            interfaces: 0,
            format,
            refused: 0,
            reader_left: false,
        };
        writer.add_interfaces(interfaces, filter)?;
        writer.output.begin()?;
        Ok(writer)
    }

    fn add_interfaces(&mut self, interfaces: &[Interface], filter: Option<&str>) -> Result<()> {
        for interface in &interfaces[self.interfaces..] {
            let mut interface = interface.clone();
            interface.snaplen = match (interface.snaplen, self.snaplen) {
                (0, limit) => limit,
                (snaplen, 0) => snaplen.saturating_add(self.growth),
                (snaplen, limit) => snaplen.saturating_add(self.growth).min(limit),
            };
            self.output.add_interface(&interface, filter)?;
            self.interfaces += 1;
        }
        Ok(())
    }

    /// Appends a packet, the one with this number of those read, with the comments of its record.
    ///
    /// # Errors
    /// The format cannot hold the packet's time.
    fn append(
        &mut self,
        record: &Record<'_>,
        packet: &Packet<'_>,
        number: u64,
    ) -> Result<ControlFlow<()>> {
        if self.format == Format::Pcap && packet.meta().timestamp_ns >= PCAP_END_NS {
            self.refused += 1;
            return Err(Error::Usage(format!(
                "{}: packet {number} has a time after 2106-02-07, which pcap cannot hold; write pcapng, or \
                 --shift the times",
                self.path.display()
            )));
        }
        if self.encoder.append_record(&mut self.chunk, record, packet) {
            return Ok(ControlFlow::Continue(()));
        }
        let written = self.write();
        // An empty chunk has room for any packet.
        self.encoder.append_record(&mut self.chunk, record, packet);
        Ok(written)
    }

    /// Writes the packets so far. Break means that the output has failed.
    fn write(&mut self) -> ControlFlow<()> {
        let written = self.output.write(&self.chunk);
        self.chunk.clear();
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Writes the packets so far if a reader of standard output may wait for them.
    fn pass_on(&mut self) -> ControlFlow<()> {
        if self.path != Path::new("-") {
            return ControlFlow::Continue(());
        }
        self.write()?;
        self.reader_left = pipe_reader::has_left_now();
        let fails = self.output.flush().is_err() || self.reader_left;
        if fails { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Waits until a file has more to read, or the signals are due.
pub fn wait(input: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut fds: Vec<_> = input.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).into_iter().collect();
    match poll(&mut fds, WAIT_MS) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(Error::system("wait for", "a file", error)),
    }
}
