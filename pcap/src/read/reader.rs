//! A capture file, read packet by packet.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::options::{Options, text};
use super::pcap::{self, Pcap};
use super::pcapng::PcapNg;
use super::pseudo::to_host;
use super::source::Buffer;
use super::source::ByteOrder;
use super::source::{ByteSource, Compression};
use super::{PacketSpan, Parsed};
use sluicegate_base::error::{Error, Result};
use sluicegate_base::ring::Interface;
use sluicegate_base::ring::{Meta, Packet};

/// A capture file being read.
///
/// The format, the byte order and the compression are told from the file's first bytes. A file
/// that breaks off or is damaged gives the packets before the damage, then one error, then
/// its end.
#[derive(Debug)]
pub struct Reader {
    /// The file's name in messages.
    path: PathBuf,
    source: ByteSource,
    buffer: Buffer,
    format: Format,
    interfaces: Vec<Interface>,
    /// Where in the uncompressed file the unread bytes begin.
    offset: u64,
    finished: bool,
    /// The last packet's, for [`Record`] to point at.
    meta: Meta,
}

#[derive(Debug)]
enum Format {
    Pcap(Pcap),
    PcapNg(PcapNg),
}

impl Format {
    /// The byte order of the host that wrote what is being read.
    fn order(&self) -> ByteOrder {
        match self {
            Self::Pcap(format) => format.order(),
            Self::PcapNg(format) => format.order(),
        }
    }
}

/// A packet in a file, with what the file says of it beyond its metadata.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    packet: Packet<'a>,
    options: Options<'a>,
}

impl<'a> Record<'a> {
    /// The packet, in one piece however long it is.
    pub fn packet(&self) -> Packet<'a> {
        self.packet
    }

    /// The card's queue it was received from or sent to (pcapng's `epb_queue`).
    pub fn queue(&self) -> Option<u32> {
        self.options.clone().queue()
    }

    /// The packet's comments (pcapng's `opt_comment`), without control characters, cut at 1024 bytes.
    pub fn comments(&self) -> impl Iterator<Item = String> {
        self.options.clone().comments().map(text)
    }
}

/// The outcome of a look for the next packet.
#[derive(Debug)]
pub enum Outcome {
    /// A packet.
    Packet(Placed),
    /// A block that is none; it was stepped over.
    Skipped,
    /// Nothing has arrived yet.
    NotYet,
    /// There is more, but no room for it until the buffer may move.
    NoRoom,
    /// There is no more.
    End,
}

/// A packet and its place in the reader's buffer.
#[derive(Debug)]
pub struct Placed {
    /// Its metadata.
    pub meta: Meta,
    /// Its bytes in the buffer.
    pub data: Range<usize>,
    options: Range<usize>,
}

/// The next step after the buffer has run out.
enum Refill {
    Done,
    NotYet,
    NoRoom,
    End,
}

impl Reader {
    /// Opens a capture file; `-` is standard input. Waits for the file's header and, in pcapng,
    /// for the first interface, so that the link type is known.
    ///
    /// # Errors
    /// No such file, no capture file, or one that breaks off before its first packet could
    /// come. Files that gzip, xz and bzip2 made are refused with a remedy.
    pub fn open(path: &Path) -> Result<Self> {
        let mut source = ByteSource::open(path)?;
        let mut buffer = Buffer::new()?;
        let path = match path.to_str() {
            Some("-") => PathBuf::from("standard input"),
            _ => path.to_owned(),
        };
        let mut magic = first_bytes(&mut source, &mut buffer, &path)?;
        if let Some(compression) = Compression::of(magic) {
            let begun = buffer.unread().to_vec();
            buffer.consume(begun.len());
            source = source
                .decompressed(compression, begun)
                .map_err(|e| Error::path("decompress", &path, e))?;
            magic = first_bytes(&mut source, &mut buffer, &path)?;
        }
        let mut reader = Self {
            path,
            source,
            buffer,
            format: Format::PcapNg(PcapNg::new()),
            interfaces: Vec::new(),
            offset: 0,
            finished: false,
            meta: Meta::default(),
        };
        if Pcap::recognises(magic) {
            reader.read_pcap_header()?;
        } else if PcapNg::recognises(magic) {
            reader.read_to_first_interface()?;
        } else {
            return Err(reader.broken(unknown_format(magic)));
        }
        Ok(reader)
    }

    fn read_pcap_header(&mut self) -> Result<()> {
        while self.buffer.unread().len() < pcap::HEADER_BYTES {
            if let Refill::End = self.refill(pcap::HEADER_BYTES, true, true)? {
                return Err(self.cut_short(pcap::HEADER_BYTES));
            }
        }
        let (format, interface) =
            Pcap::new(self.buffer.unread()).map_err(|reason| self.broken(reason))?;
        self.consume(pcap::HEADER_BYTES);
        self.interfaces.push(interface);
        self.format = Format::Pcap(format);
        Ok(())
    }

    fn read_to_first_interface(&mut self) -> Result<()> {
        while self.interfaces.is_empty() {
            match self.step() {
                // A packet before the first interface is an error already.
                Ok(Parsed::Packet { record_bytes: n, .. } | Parsed::Skip(n)) => self.consume(n),
                Ok(Parsed::Need(wanted)) => {
                    if let Refill::End = self.refill(wanted, true, true)? {
                        return Err(match self.buffer.unread() {
                            [] => self.broken("the file describes no interface".into()),
                            _ => self.cut_short(wanted),
                        });
                    }
                }
                Err(reason) => return Err(self.broken(reason)),
            }
        }
        Ok(())
    }

    /// The file's format. One that is pcap has one interface; pcapng may name more as it goes on.
    pub fn format(&self) -> crate::Format {
        match self.format {
            Format::Pcap(_) => crate::Format::Pcap,
            Format::PcapNg(_) => crate::Format::Pcapng,
        }
    }

    /// The interfaces met so far; at least one. A pcapng file may add more as it is read, and
    /// those of a later section follow those before it. [`Meta::interface`] counts them.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// The next packet, waiting for it where the file is a pipe; none at the end.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or breaks off. The packets before that have come
    /// out by then; afterwards the file has ended.
    pub fn next_packet(&mut self) -> Result<Option<Record<'_>>> {
        let placed = loop {
            match self.advance(true, true)? {
                Outcome::Packet(placed) => break placed,
                Outcome::End => return Ok(None),
                Outcome::Skipped | Outcome::NotYet | Outcome::NoRoom => {}
            }
        };
        self.meta = placed.meta;
        let order = self.format.order();
        Ok(Some(Record {
            packet: Packet::new(&self.meta, self.buffer.bytes(placed.data)),
            options: Options::new(self.buffer.bytes(placed.options), order),
        }))
    }

    /// Looks for the next packet. The bytes of those found before stay where they are unless
    /// `may_move`; without `may_wait` nothing is waited for.
    pub fn advance(&mut self, may_move: bool, may_wait: bool) -> Result<Outcome> {
        while !self.finished {
            match self.step() {
                Ok(Parsed::Packet { record_bytes, found }) => {
                    let at = self.buffer.start();
                    self.consume(record_bytes);
                    let mut placed = found.placed(at);
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
                    Refill::Done => {}
                    Refill::NotYet => return Ok(Outcome::NotYet),
                    Refill::NoRoom => return Ok(Outcome::NoRoom),
                    Refill::End if self.buffer.unread().is_empty() => self.finish(),
                    Refill::End => return Err(self.cut_short(wanted)),
                },
                Err(reason) => return Err(self.broken(reason)),
            }
        }
        Ok(Outcome::End)
    }

    /// A found packet's bytes.
    pub fn bytes(&self, at: Range<usize>) -> &[u8] {
        self.buffer.bytes(at)
    }

    /// The address of a byte of a found packet; good until [`advance`](Self::advance) may move.
    pub fn address(&self, at: usize) -> NonNull<u8> {
        self.buffer.address(at)
    }

    /// The descriptor to poll for more; none for a regular file.
    pub fn pollable(&self) -> Option<BorrowedFd<'_>> {
        self.source.pollable()
    }

    /// The end has been reached, or an error.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Reads no more.
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

    fn refill(&mut self, wanted: usize, may_move: bool, may_wait: bool) -> Result<Refill> {
        if !self.buffer.make_room(wanted, may_move)? {
            return Ok(Refill::NoRoom);
        }
        let read = if may_wait || self.source.is_ready().map_err(|e| self.unreadable(e))? {
            self.source.read(self.buffer.room())
        } else {
            return Ok(Refill::NotYet);
        };
        match read {
            Ok(0) => Ok(Refill::End),
            Ok(n) => {
                self.buffer.filled(n);
                Ok(Refill::Done)
            }
            Err(e) => Err(self.unreadable(e)),
        }
    }

    fn unreadable(&mut self, error: io::Error) -> Error {
        self.finished = true;
        let at = self.offset + self.buffer.unread().len() as u64;
        cannot_read(&self.path, at, error)
    }

    fn cut_short(&mut self, wanted: usize) -> Error {
        let there = self.buffer.unread().len();
        self.broken(format!(
            "the file is cut short: {wanted} bytes are needed here, {there} are left"
        ))
    }

    fn broken(&mut self, reason: String) -> Error {
        self.finished = true;
        Error::File { path: self.path.clone(), offset: self.offset, reason }
    }
}

impl PacketSpan {
    /// The packet's place, its record beginning at a position in the buffer.
    fn placed(self, at: usize) -> Placed {
        let shifted = |range: Range<usize>| at + range.start..at + range.end;
        Placed { meta: self.meta, data: shifted(self.data), options: shifted(self.options) }
    }
}

/// Waits for the first four bytes of a file.
fn first_bytes(source: &mut ByteSource, buffer: &mut Buffer, path: &Path) -> Result<[u8; 4]> {
    loop {
        if let Some(magic) = buffer.unread().first_chunk() {
            return Ok(*magic);
        }
        buffer.make_room(4, true)?;
        let at = buffer.unread().len() as u64;
        match source.read(buffer.room()) {
            Ok(0) => {
                return Err(Error::File {
                    path: path.to_owned(),
                    offset: at,
                    reason: "the file is too short to be a capture file".into(),
                });
            }
            Ok(n) => buffer.filled(n),
            Err(e) => return Err(cannot_read(path, at, e)),
        }
    }
}

/// The kernel's refusal, or damage in compressed data.
fn cannot_read(path: &Path, offset: u64, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(_) => Error::path("read", path, error),
        None => Error::File {
            path: path.to_owned(),
            offset,
            reason: format!("the compressed data is damaged: {error}"),
        },
    }
}

/// The remedy for a file that is no capture file.
fn unknown_format(magic: [u8; 4]) -> String {
    let tool = match magic {
        [0x1f, 0x8b, ..] => "gzip",
        [0xfd, b'7', b'z', b'X'] => "xz",
        [b'B', b'Z', b'h', _] => "bzip2",
        // The format before lz4's frames.
        [0x02, 0x21, 0x4c, 0x18] => "lz4",
        _ => {
            return "no capture file: pcap and pcapng can be read, plain or compressed with \
                    zstd or lz4"
                .into();
        }
    };
    format!(
        "compressed with {tool}, which is not read: decompress it into a pipe \
         (`{tool} -dc FILE |`, then pcap:-) or use zstd"
    )
}
