//! An output, which writes chunks to files.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use jiff::tz::TimeZone;

use super::super::{Compression, Format};
use super::block::{self, BlockLayout, InterfaceStats};
use super::chunk::{Chunk, Piece};
use super::compress::{FileOffset, Packer, epilogue};
use super::config::{OutputConfig, Summary};
use super::event::{ExpiredFile, FileEvent};
use super::output_file::{
    Failure, OutputCounts, OutputFile, check_directory, lock, open_directory,
};
use super::rotate::{Name, Schedule};
use sluicegate_base::error::{Error, Result};
use sluicegate_base::ring::{Interface, now_ns};

/// Writes chunks of records to one file or a series of files.
///
/// One thread uses it. A failure is permanent: every later call returns it again, and later packets count as
/// lost. [`finish`](Self::finish) is always safe. If an output is dropped instead, its file has no
/// statistics, and a compressed file lacks its last bytes.
#[derive(Debug)]
pub struct Output {
    config: OutputConfig,
    layout: BlockLayout,
    /// `None` for standard output.
    name: Option<Name>,
    interfaces: Vec<Described>,
    /// Blocks to write before the next record.
    pending: Vec<u8>,
    current: Option<Current>,
    kept: VecDeque<Arc<Mutex<OutputFile>>>,
    schedule: Schedule,
    packer: Option<Packer>,
    progress: Arc<OutputCounts>,
    /// Counts of the files so far; `finish` fills in the rest.
    summary: Summary,
    /// The number of the newest file, in its name.
    number: u64,
    /// The files' directory, if files must be synced.
    synced: Option<File>,
}

#[derive(Debug)]
struct Described {
    interface: Interface,
    filter: Option<String>,
    stats: Option<InterfaceStats>,
}

/// The file being written.
#[derive(Debug)]
struct Current {
    target: Arc<Mutex<OutputFile>>,
    /// Its header has been written.
    begun: bool,
    /// Bytes submitted for it, before compression.
    bytes: u64,
    packets: u64,
}

impl Output {
    /// Opens an output. The file is created now, unless its name depends on the first packet.
    ///
    /// # Errors
    /// The configuration is invalid, or the kernel cannot create the file.
    pub fn create(config: OutputConfig) -> Result<Self> {
        let mut output = Self::prepare(config)?;
        output.begin()?;
        Ok(output)
    }

    /// Prepares an output that creates no file before [`begin`](Self::begin). The process may drop privileges
    /// between the two calls.
    ///
    /// # Errors
    /// The configuration is invalid, or the kernel cannot open the directory that `sync` needs.
    pub fn prepare(config: OutputConfig) -> Result<Self> {
        config.check()?;
        let progress = Arc::new(OutputCounts::default());
        let packer = match config.compression {
            Compression::None => None,
            _ => Some(Packer::start(&config, &progress)?),
        };
        let is_file = config.path.as_os_str() != "-";
        let name = || Name::new(&config.path, config.rotation.is_on(), TimeZone::system());
        let name = is_file.then(name).transpose()?;
        let directory = name.as_ref().map(Name::directory);
        let synced = directory.filter(|_| config.sync).map(open_directory).transpose();
        let synced = synced.map_err(|failure| failure.at_start())?;
        Ok(Self {
            layout: BlockLayout::new(config.format, config.microseconds),
            name,
            interfaces: Vec::new(),
            pending: Vec::new(),
            current: None,
            kept: VecDeque::new(),
            schedule: Schedule::new(&config.rotation),
            packer,
            progress,
            synced,
            summary: Summary::default(),
            number: 0,
            config,
        })
    }

    /// Creates the file now, unless its name depends on the first packet. Later files are created with the
    /// privileges that the process has then; a directory that does not permit this is an error now.
    ///
    /// # Errors
    /// A file cannot be created there.
    pub fn begin(&mut self) -> Result<()> {
        if let Some(name) = self.name.as_ref().filter(|_| self.config.begins_files_later()) {
            check_directory(name.directory())?;
        }
        if self.config.rotation.on_request || self.name.as_ref().is_some_and(|name| name.timed) {
            return Ok(());
        }
        self.open(0).map_err(|failure| failure.at_start())
    }

    /// Sends an event to a channel when a file is complete, also the last one. The receiver deletes the files
    /// that a rotation no longer keeps. The channel closes when the output has finished.
    pub fn announce_files(&mut self, events: Sender<FileEvent>) {
        self.progress.announce_files(Some(events));
    }

    /// Adds an interface, at any time; `filter` is the expression that its packets passed. Returns its number
    /// in the file. It is written with the next packet or [`flush`](Self::flush).
    ///
    /// # Errors
    /// A pcap file has one link type only.
    pub fn add_interface(&mut self, interface: &Interface, filter: Option<&str>) -> Result<u32> {
        let number = self.interfaces.len() as u32;
        if self.config.format == Format::Pcap
            && let Some(first) = self.interfaces.first()
            && first.interface.link_type != interface.link_type
        {
            let describe = |interface: &Interface| match interface.name.as_str() {
                // A pcap file has no interface names.
                "" => format!("one has {}", interface.link_type),
                name => format!("'{name}' has {}", interface.link_type),
            };
            return Err(Error::Usage(format!(
                "a pcap file holds one link type: {}, {}; use pcapng",
                describe(&first.interface),
                describe(interface)
            )));
        }
        if self.config.format == Format::Pcapng && self.current.as_ref().is_some_and(|c| c.begun) {
            block::interface_description(&mut self.pending, interface, filter);
        }
        self.interfaces.push(Described {
            interface: interface.clone(),
            filter: filter.map(str::to_owned),
            stats: None,
        });
        Ok(number)
    }

    /// Sets an interface's statistics so far. Each pcapng file ends with the last ones set; pcap cannot hold
    /// them.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn set_statistics(&mut self, interface: u32, stats: InterfaceStats) -> Result<()> {
        let wrong = || format!("statistics of interface {interface}, which was not added");
        let described = self.interfaces.get_mut(interface as usize);
        described.ok_or_else(|| Error::Usage(wrong()))?.stats = Some(stats);
        Ok(())
    }

    /// Writes a chunk's records, and begins new files when due. Without compression the kernel has the
    /// records when this returns.
    ///
    /// # Errors
    /// The disk is full, the pipe's reader has exited, or a file cannot be created; packets that could
    /// not be written are [`lost`](OutputCounts::lost). A chunk of another format; no interface yet.
    pub fn write(&mut self, chunk: &Chunk) -> Result<()> {
        let Some(last_ns) = chunk.last_ns() else { return self.progress.check() };
        let usage = if chunk.layout() != self.layout {
            "a chunk of another format than the output's"
        } else if self.interfaces.is_empty() {
            "packets without an interface: add one first"
        } else {
            return self.write_records(chunk.piece(), last_ns);
        };
        self.progress.lose(chunk.packets());
        Err(Error::Usage(usage.into()))
    }

    /// Returns true after the last file of [`Rotation::last_file`](super::Rotation::last_file): no more packets
    /// are written.
    pub fn is_complete(&self) -> bool {
        self.config.rotation.last_file.is_some_and(|last| self.summary.files >= last)
            && self.current.is_none()
    }

    /// Writes records, none later than `last_ns`.
    fn write_records(&mut self, mut rest: Piece<'_>, last_ns: u64) -> Result<()> {
        while let Some(first_ns) = rest.first_ns() {
            if self.is_complete() {
                self.progress.leave_out(rest.packets);
                break;
            }
            let opened = self
                .progress
                .check()
                .and_then(|()| self.open(first_ns).map_err(|failure| failure.error()));
            let Some(current) = self.current.as_mut().filter(|_| opened.is_ok()) else {
                self.progress.lose(rest.packets);
                return opened;
            };
            if current.packets == 0 {
                self.schedule.begin(first_ns);
                if self.config.rotation.last_file == Some(self.summary.files) {
                    self.progress.set_end(self.schedule.end_ns());
                }
            }
            self.write_pending();
            let reserved = self.statistics().len() as u64;
            let Some(current) = &mut self.current else { break };
            let (now, later) =
                self.schedule.divide(rest, last_ns, current.bytes + reserved, current.packets);
            if now.packets == 0 {
                self.end_file();
                continue;
            }
            current.packets += now.packets;
            let is_full = self.schedule.is_full(current.packets);
            self.submit(&now, false);
            if is_full && self.config.rotation.last_file == Some(self.summary.files) {
                // The file does not wait for a packet that it will not have.
                self.end_file();
            }
            rest = later;
        }
        self.progress.check()
    }

    /// Writes all pending data: interfaces without packets, and data being compressed.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn flush(&mut self) -> Result<()> {
        self.write_pending();
        if let Some(packer) = &mut self.packer {
            packer.settle();
        }
        self.progress.check()
    }

    /// Ends the file with its statistics: the next record begins a new one. Returns its path, unless no file was
    /// open.
    pub fn end_file(&mut self) -> Option<PathBuf> {
        let target = self.current.as_ref().map(|current| Arc::clone(&current.target))?;
        let blocks = self.statistics();
        self.submit_blocks(&blocks, true);
        self.current = None;
        let path = lock(&target).path().to_owned();
        Some(path)
    }

    /// Returns the counts, which another thread may read during a write.
    pub fn counts(&self) -> &Arc<OutputCounts> {
        &self.progress
    }

    /// Ends the file with its statistics and waits until everything is written. A capture without packets
    /// also creates a file.
    pub fn finish(mut self) -> Summary {
        // If this fails too, `progress` has the reason.
        let wanted = self.summary.files == 0 && !self.config.rotation.on_request;
        if wanted && self.progress.check().is_ok() {
            let _ = self.open(now_ns());
        }
        self.write_pending();
        let last = self.current.as_ref().map(|current| Arc::clone(&current.target));
        self.end_file();
        // Waits for the workers.
        self.packer = None;
        self.progress.announce_files(None);
        // A later file of a rotation for which the disk had no room.
        if self.summary.files > 1
            && self.progress.check().is_err()
            && last.is_some_and(|last| lock(&last).delete_empty())
        {
            self.summary.files -= 1;
        }
        self.summary.packets = self.progress.written();
        self.summary.lost = self.progress.lost();
        self.summary.after_last_file = self.progress.after_last_file();
        self.summary.bytes = self.progress.bytes();
        self.summary.failure = self.progress.check().err();
        self.summary
    }

    /// Opens the next file, if none is open.
    fn open(&mut self, first_ns: u64) -> Result<(), Failure> {
        if self.current.is_some() {
            return Ok(());
        }
        let created = self.create_file(first_ns);
        let target = created.inspect_err(|failure| self.progress.fail(failure.clone()))?;
        let target = Arc::new(Mutex::new(target));
        self.summary.files += 1;
        self.keep_newest(&target);
        self.current = Some(Current { target, begun: false, bytes: 0, packets: 0 });
        Ok(())
    }

    fn create_file(&mut self, first_ns: u64) -> Result<OutputFile, Failure> {
        let access = self.config.access;
        let mut target = loop {
            let Some(name) = &self.name else { break OutputFile::standard_output()? };
            // The name cannot express the time.
            let failed = |error: Error| {
                Failure::new("name", &self.config.path, io::Error::other(error.to_string()))
            };
            self.number += 1;
            let path = name.at(first_ns, self.number).map_err(failed)?;
            if !self.config.rotation.on_request {
                break OutputFile::create(&path, access)?;
            }
            // An earlier recording stays, and its number is skipped.
            if let Some(new) = OutputFile::create_new(&path, access)? {
                break new;
            }
        };
        target.epilogue = epilogue(&self.config);
        match &self.synced {
            Some(directory) => target.synced(directory),
            None => Ok(target),
        }
    }

    fn keep_newest(&mut self, newest: &Arc<Mutex<OutputFile>>) {
        let Some(most) = self.config.rotation.files else { return };
        self.kept.push_back(Arc::clone(newest));
        if self.kept.len() <= most as usize {
            return;
        }
        let Some(oldest) = self.kept.pop_front() else { return };
        let is_closed = lock(&oldest).is_closed();
        if let Some(packer) = self.packer.as_mut().filter(|_| !is_closed) {
            packer.settle();
        }
        if self.progress.announce(FileEvent::Expired(ExpiredFile(Arc::clone(&oldest)))) {
            self.summary.files_expired += 1;
            return;
        }
        let oldest = lock(&oldest);
        if oldest.delete() {
            self.summary.files_deleted += 1;
            self.summary.packets_deleted += oldest.packets();
        } else {
            self.summary.files_left += 1;
        }
    }

    /// Writes the file's header, if that is still missing, and the pending blocks.
    fn write_pending(&mut self) {
        let Some(current) = &mut self.current else { return };
        // Without an interface there is no link type, and no pcap header.
        let possible = self.config.format == Format::Pcapng || !self.interfaces.is_empty();
        if !current.begun && possible {
            current.begun = true;
            self.pending = self.head();
        }
        if !self.pending.is_empty() {
            let blocks = std::mem::take(&mut self.pending);
            self.submit_blocks(&blocks, false);
        }
    }

    /// Returns the bytes at the beginning of a file.
    fn head(&self) -> Vec<u8> {
        let mut head = Vec::new();
        if self.config.format == Format::Pcap {
            if let Some(first) = self.interfaces.first() {
                let (link_type, snaplen) = (first.interface.link_type, self.config.snaplen);
                head = block::pcap_header(self.layout, link_type, snaplen);
            }
            return head;
        }
        block::section_header(&mut head, &self.config.comments);
        for described in &self.interfaces {
            let filter = described.filter.as_deref();
            block::interface_description(&mut head, &described.interface, filter);
        }
        head
    }

    /// Returns the bytes at the end of a file.
    fn statistics(&self) -> Vec<u8> {
        let mut blocks = Vec::new();
        if self.config.format == Format::Pcapng {
            for (number, described) in self.interfaces.iter().enumerate() {
                if let Some(stats) = &described.stats {
                    block::interface_statistics(&mut blocks, number as u32, stats);
                }
            }
        }
        blocks
    }

    fn submit_blocks(&mut self, blocks: &[u8], last: bool) {
        let piece = Piece { bytes: blocks, packets: 0, records: None };
        self.submit(&piece, last);
    }

    /// Writes a piece to the current file, or passes it to the workers.
    fn submit(&mut self, piece: &Piece<'_>, last: bool) {
        let Some(current) = &mut self.current else { return self.progress.lose(piece.packets) };
        let first = current.bytes == 0;
        current.bytes += piece.bytes.len() as u64;
        match &mut self.packer {
            Some(packer) => packer.submit(&current.target, piece, FileOffset { first, last }),
            None => {
                self.progress.write(&current.target, piece);
                if last {
                    self.progress.close(&current.target);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pcap_parser::{parse_pcap_frame, parse_pcap_header};

    use super::*;
    use crate::write::{Encoder, EncoderConfig};
    use sluicegate_base::ring::{Meta, Packet};

    #[test]
    fn a_pcap_file_states_no_limit_that_a_later_interfaces_packet_exceeds() {
        let folder = tempfile::tempdir().unwrap();
        for (snaplen, kept) in [(0, 1514), (1000, 1000)] {
            let path = folder.path().join("a.pcap");
            let mut output =
                Output::create(OutputConfig { snaplen, ..OutputConfig::new(&path) }).unwrap();
            let config =
                EncoderConfig { format: Format::Pcap, snaplen, ..EncoderConfig::default() };
            let mut encoder = Encoder::new(&config);
            for (interface, limit) in [(0, 96), (1, 0)] {
                let (name, comment) = (String::new(), String::new());
                let described = Interface { name, link_type: 1, snaplen: limit, comment };
                output.add_interface(&described, None).unwrap();
                let bytes = vec![1; if limit == 0 { 1514 } else { 96 }];
                let meta = Meta { wire_bytes: 1514, interface, ..Meta::default() };
                let mut chunk = encoder.chunk();
                assert!(encoder.append(&mut chunk, &Packet::new(&meta, &bytes)));
                output.write(&chunk).unwrap();
            }
            assert!(output.finish().failure.is_none());
            let file = std::fs::read(&path).unwrap();
            let (rest, header) = parse_pcap_header(&file).unwrap();
            let (rest, _) = parse_pcap_frame(rest).unwrap();
            let (_, longest) = parse_pcap_frame(rest).unwrap();
            assert_eq!(longest.caplen, kept);
            assert!(longest.caplen <= header.snaplen, "{} bytes at most", header.snaplen);
            assert_eq!(header.snaplen, if snaplen == 0 { 262_144 } else { snaplen });
        }
    }
}
