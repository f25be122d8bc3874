//! Reading capture files: pcap in all its variants and pcapng, plain or compressed with zstd,
//! lz4 or gzip, from a file or a pipe.
//!
//! ```text
//!   source            buffer                     reader
//!   file, pipe,  -->  bytes, read as they  -->   finds records where they lie:
//!   decoder           arrive                     pcap.rs, pcapng.rs
//! ```
//!
//! The reader accepts every file that libpcap 1.10 accepts, with at most 65,536 interfaces. It also accepts
//! valid files that libpcap refuses: with interfaces of several link types, or sections of several byte
//! orders. A length in a file never causes an allocation by itself: it is checked against libpcap's limits
//! before the buffer grows to hold the record.

mod host_order_headers;
mod merged;
mod options;
mod pcap;
mod pcapng;
mod source;

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use host_order_headers::to_host;
pub use merged::{MergeOutcome, MergedReader};
use options::{BlockOptions, text};
use pcap::Pcap;
use pcapng::PcapNg;
use sluicegate_base::error::{Error, Result};
use sluicegate_base::ring::{Interface, Meta, Packet};
use source::{Buffer, ByteOrder, ByteSource};

use crate::Compression;

/// A capture file being read.
///
/// The file's first bytes determine the format, the byte order and the compression. A truncated or damaged
/// file yields the packets before the damage, then one error, then its end.
#[derive(Debug)]
pub struct Reader {
    /// The file's name in messages.
    path: PathBuf,
    source: ByteSource,
    buffer: Buffer,
    format: Format,
    interfaces: Vec<Interface>,
    /// The offset of the unread bytes in the decompressed file.
    offset: u64,
    compressed: bool,
    finished: bool,
    /// The last packet of [`next_packet`](Self::next_packet), whose metadata [`Record`] points at.
    last: ParsedPacket,
}

#[derive(Debug)]
enum Format {
    Pcap(Pcap),
    PcapNg(PcapNg),
}

impl Format {
    /// Returns the byte order of the host that wrote the part being read.
    fn order(&self) -> ByteOrder {
        match self {
            Self::Pcap(format) => format.order(),
            Self::PcapNg(format) => format.order(),
        }
    }
}

/// A packet in a file, with its metadata, queue and comments.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    packet: Packet<'a>,
    options: BlockOptions<'a>,
}

impl<'a> Record<'a> {
    /// Returns the packet, in one piece whatever its length.
    pub fn packet(&self) -> Packet<'a> {
        self.packet
    }

    /// Returns true if the record has options of pcapng.
    #[inline]
    pub(crate) fn has_options(&self) -> bool {
        !self.options.is_empty()
    }

    /// Returns the card's queue that received or sent it (pcapng's `epb_queue`).
    pub fn queue(&self) -> Option<u32> {
        self.options.clone().queue()
    }

    /// Returns the packet's comments as they are in the file.
    pub(crate) fn raw_comments(&self) -> impl Iterator<Item = &'a [u8]> {
        self.options.clone().comments()
    }

    /// Returns the packet's comments (pcapng's `opt_comment`), without control characters, cut at 1024 bytes.
    pub fn comments(&self) -> impl Iterator<Item = String> {
        self.options.clone().comments().map(text)
    }
}

/// The result of a search for the next packet.
#[derive(Debug)]
pub enum Outcome {
    /// A packet.
    Packet(ParsedPacket),
    /// A block without a packet; it was skipped.
    Skipped,
    /// Nothing has arrived yet.
    NotYet,
    /// There is more, but no room for it unless the buffer's bytes may move.
    NoRoom,
    /// The end of the file.
    End,
}

/// A packet and the positions of its parts: in the reader's buffer or, during parsing, in its record.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ParsedPacket {
    /// Its metadata.
    pub meta: Meta,
    /// Its bytes.
    pub data: Range<usize>,
    /// pcapng's options; empty without any.
    options: Range<usize>,
}

/// The result of parsing the beginning of a run of bytes.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    /// A packet and the size of its record.
    Packet { record_bytes: usize, found: ParsedPacket },
    /// A record without a packet, of this size.
    Skip(usize),
    /// Too few bytes: this many are needed.
    Need(usize),
}

impl Reader {
    /// Opens a capture file; `-` is standard input. Waits for the file's header and, in pcapng,
    /// for the first interface, so that the link type is known.
    ///
    /// # Errors
    /// The file does not exist, is not a capture file, or ends before its first packet. Files compressed by
    /// xz or bzip2 are rejected with a remedy.
    pub fn open(path: &Path) -> Result<Self> {
        let mut reader = Self {
            path: match path.to_str() {
                Some("-") => PathBuf::from("standard input"),
                _ => path.to_owned(),
            },
            source: ByteSource::open(path)?,
            buffer: Buffer::new()?,
            format: Format::PcapNg(PcapNg::new()),
            interfaces: Vec::new(),
            offset: 0,
            compressed: false,
            finished: false,
            last: ParsedPacket::default(),
        };
        let mut magic = reader.head()?;
        let compression = source::compression(magic);
        if compression != Compression::None {
            let begun = reader.buffer.unread().to_vec();
            reader.buffer.consume(begun.len());
            let decompressed = reader.source.decompress(compression, begun);
            decompressed.map_err(|e| Error::path("decompress", &reader.path, e))?;
            reader.compressed = true;
            magic = reader.head()?;
        }
        if Pcap::recognises(magic) {
            let (format, interface) =
                Pcap::new(reader.head()?).map_err(|reason| reader.broken(reason))?;
            reader.consume(pcap::HEADER_BYTES);
            reader.interfaces.push(interface);
            reader.format = Format::Pcap(format);
        } else if !PcapNg::recognises(magic) {
            return Err(reader.broken(unknown_format(magic)));
        }
        while reader.interfaces.is_empty() {
            // A packet before the first interface is an error already.
            if let Outcome::End = reader.advance(true, true)? {
                return Err(reader.broken("the file describes no interface".into()));
            }
        }
        Ok(reader)
    }

    /// Waits for the first bytes of the file, compressed or not.
    fn head<const N: usize>(&mut self) -> Result<[u8; N]> {
        loop {
            if let Some(head) = self.buffer.unread().first_chunk() {
                return Ok(*head);
            }
            if let Some(Outcome::End) = self.refill(N, true, true)? {
                return Err(match self.buffer.unread().len() {
                    ..4 => self.broken("the file is too short to be a capture file".into()),
                    _ => self.cut_short(N),
                });
            }
        }
    }

    /// Returns the file's format. A pcap file has one interface; a pcapng file may add interfaces later.
    pub fn format(&self) -> crate::Format {
        match self.format {
            Format::Pcap(_) => crate::Format::Pcap,
            Format::PcapNg(_) => crate::Format::Pcapng,
        }
    }

    /// Returns the interfaces read so far; at least one. A pcapng file may add interfaces later; those of a
    /// later section come after those of an earlier one. [`Meta::interface`] is an index into them.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Returns a packet that [`advance`](Self::advance) found last, with its queue and comments.
    pub fn record<'a>(&'a self, found: &'a ParsedPacket) -> Record<'a> {
        let options = self.buffer.bytes(found.options.clone());
        Record {
            packet: Packet::new(&found.meta, self.buffer.bytes(found.data.clone())),
            options: BlockOptions::new(options, self.format.order()),
        }
    }

    /// Returns the next packet, or `None` at the end. Waits if the file is a pipe.
    ///
    /// # Errors
    /// The file is unreadable, damaged or truncated. All packets before the fault have been returned; the
    /// next call reports the end of the file.
    pub fn next_packet(&mut self) -> Result<Option<Record<'_>>> {
        let placed = loop {
            match self.advance(true, true)? {
                Outcome::Packet(placed) => break placed,
                Outcome::End => return Ok(None),
                Outcome::Skipped | Outcome::NotYet | Outcome::NoRoom => {}
            }
        };
        self.last = placed;
        Ok(Some(self.record(&self.last)))
    }

    /// Searches for the next packet. The bytes of earlier packets keep their addresses unless `may_move`;
    /// without `may_wait` the call never waits.
    pub fn advance(&mut self, may_move: bool, may_wait: bool) -> Result<Outcome> {
        while !self.finished {
            match self.step() {
                Ok(Parsed::Packet { record_bytes, found: mut placed }) => {
                    placed.shift(self.buffer.start());
                    self.consume(record_bytes);
                    let link_type = self.interfaces[placed.meta.interface as usize].link_type;
                    let data = self.buffer.bytes_mut(placed.data.clone());
                    let order = self.format.order();
                    to_host(link_type, order, data, &mut placed.meta.wire_bytes);
                    return Ok(Outcome::Packet(placed));
                }
                Ok(Parsed::Skip(n)) => {
                    self.consume(n);
                    return Ok(Outcome::Skipped);
                }
                Ok(Parsed::Need(wanted)) => match self.refill(wanted, may_move, may_wait)? {
                    None => {}
                    Some(Outcome::End) if self.buffer.unread().is_empty() => self.finish(),
                    Some(Outcome::End) => return Err(self.cut_short(wanted)),
                    Some(outcome) => return Ok(outcome),
                },
                Err(reason) => return Err(self.broken(reason)),
            }
        }
        Ok(Outcome::End)
    }

    /// Returns the bytes of a packet that was found.
    pub fn bytes(&self, at: Range<usize>) -> &[u8] {
        self.buffer.bytes(at)
    }

    /// Returns the address of a byte of a packet that was found; valid until [`advance`](Self::advance) may
    /// move bytes.
    pub fn address(&self, at: usize) -> NonNull<u8> {
        self.buffer.address(at)
    }

    /// Returns the descriptor to poll for more bytes; `None` for a regular file.
    pub fn pollable(&self) -> Option<BorrowedFd<'_>> {
        self.source.pollable()
    }

    /// True after the end of the file or an error.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Stops reading.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    #[inline]
    fn step(&mut self) -> Result<Parsed, String> {
        let unread = self.buffer.unread();
        match &mut self.format {
            Format::Pcap(format) => format.step(unread),
            Format::PcapNg(format) => format.step(unread, &mut self.interfaces),
        }
    }

    fn consume(&mut self, n: usize) {
        self.buffer.consume(n);
        self.offset += n as u64;
    }

    /// Reads more into the buffer. Returns `None` on success, otherwise the reason.
    fn refill(&mut self, wanted: usize, may_move: bool, may_wait: bool) -> Result<Option<Outcome>> {
        if !self.buffer.make_room(wanted, may_move)? {
            return Ok(Some(Outcome::NoRoom));
        }
        if !may_wait && !self.source.is_ready().map_err(|e| self.unreadable(e))? {
            return Ok(Some(Outcome::NotYet));
        }
        match self.source.read(self.buffer.room()) {
            Ok(0) => Ok(Some(Outcome::End)),
            Ok(n) => {
                self.buffer.filled(n);
                Ok(None)
            }
            Err(e) => Err(self.unreadable(e)),
        }
    }

    /// Returns the error of a failed read: the kernel's, or damage in compressed data.
    fn unreadable(&mut self, error: io::Error) -> Error {
        self.finished = true;
        if error.raw_os_error().is_some() {
            return Error::path("read", &self.path, error);
        }
        let offset = self.offset + self.buffer.unread().len() as u64;
        let reason = format!(
            "cannot decompress: {error}; if the data is damaged or cut short, copy the file again"
        );
        self.file_error(offset, reason)
    }

    fn cut_short(&mut self, wanted: usize) -> Error {
        let there = self.buffer.unread().len();
        self.broken(format!(
            "the file is cut short: {wanted} bytes are needed here, {there} are left"
        ))
    }

    fn broken(&mut self, reason: String) -> Error {
        self.finished = true;
        self.file_error(self.offset, reason)
    }

    fn file_error(&self, offset: u64, reason: String) -> Error {
        Error::File { path: self.path.clone(), offset, decompressed: self.compressed, reason }
    }
}

impl ParsedPacket {
    /// Converts offsets within a record to offsets in the buffer, where the record begins at `at`.
    fn shift(&mut self, at: usize) {
        let shifted = |range: &Range<usize>| at + range.start..at + range.end;
        (self.data, self.options) = (shifted(&self.data), shifted(&self.options));
    }
}

/// Returns the remedy for a file that is not a capture file.
fn unknown_format(magic: [u8; 4]) -> String {
    let tool = match magic {
        [0xfd, b'7', b'z', b'X'] => "xz",
        [b'B', b'Z', b'h', _] => "bzip2",
        // lz4's legacy format, older than its frames.
        [0x02, 0x21, 0x4c, 0x18] => "lz4",
        _ => {
            return "not a capture file: pcap and pcapng can be read, plain or compressed with \
                    zstd, lz4 or gzip"
                .into();
        }
    };
    format!(
        "compressed with {tool}, which is not read: decompress it into a pipe \
         (`{tool} -dc FILE |`, then pcap:-) or use zstd"
    )
}

/// Returns the maximum length of a packet of a link type; libpcap treats a greater length as damage
/// (libpcap's `max_snaplen_for_dlt`).
fn packet_limit(link_type: u16) -> u32 {
    const DBUS: u16 = 231;
    const USBPCAP: u16 = 249;
    const EBHSCR: u16 = 279;
    match link_type {
        DBUS => 128 << 20,
        EBHSCR => 8 << 20,
        USBPCAP => 1 << 20,
        _ => 256 << 10,
    }
}

/// Returns the maximum length of an interface's packets, from its snapshot length in the file: 0 and values
/// that do not fit an `int` mean "no limit" (libpcap's `pcap_adjust_snapshot`).
fn snapshot_limit(link_type: u16, snaplen: u32) -> u32 {
    match snaplen {
        1..=0x7fff_ffff => snaplen,
        _ => packet_limit(link_type),
    }
}
