//! The source of a file's bytes (the file itself, a pipe, or a thread that decompresses), and the buffer that
//! receives them, in which packets stay in place.
//!
//! ```text
//!   0            start              end                 capacity
//!   +-------------+------------------+----------------------+
//!   | consumed    | unread           | room                 |
//!   +-------------+------------------+----------------------+
//! ```
//!
//! Slots of a ring may point into the consumed bytes. Those keep their address and their values until
//! [`make_room`](Buffer::make_room) is allowed to move.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::thread::JoinHandle;

use flate2::bufread::GzDecoder;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};

use crate::{Compression, without_signals};
use sluicegate_base::error::{Error, Result};
use sluicegate_base::memory::Mmap;

/// Skippable frames, which zstd and lz4 allow anywhere, even at the beginning.
const SKIPPABLE: std::ops::RangeInclusive<u32> = 0x184d_2a50..=0x184d_2a5f;
const ZSTD: u32 = 0xfd2f_b528;
const LZ4: u32 = 0x184d_2204;
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Bytes that the decompressing thread reads and passes on at once.
const CHUNK_BYTES: usize = 1 << 17;

/// Returns the compression of a file with these first four bytes.
pub(super) fn compression(magic: [u8; 4]) -> Compression {
    match u32::from_le_bytes(magic) {
        ZSTD => Compression::Zstd,
        LZ4 => Compression::Lz4,
        // pzstd writes such frames; lz4's tools begin no file with one.
        number if SKIPPABLE.contains(&number) => Compression::Zstd,
        _ if magic.starts_with(&GZIP) => Compression::Gzip,
        _ => Compression::None,
    }
}

/// An open file, whose lock ends with it even while a child of this process holds a copy of the descriptor,
/// before it executes its program.
#[derive(Debug)]
struct InputFile(File);

impl Drop for InputFile {
    fn drop(&mut self) {
        // Where nothing is locked, nothing happens.
        let _ = self.0.unlock();
    }
}

impl Read for InputFile {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room)
    }
}

/// A source of bytes that a caller can poll.
#[derive(Debug)]
pub(super) struct ByteSource {
    file: InputFile,
    /// A regular file, which never makes a reader wait.
    regular: bool,
    decoder: Option<JoinHandle<io::Result<()>>>,
}

impl ByteSource {
    /// Opens a file; `-` is standard input.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let opened = if path == Path::new("-") {
            io::stdin().as_fd().try_clone_to_owned().map(File::from)
        } else {
            File::open(path)
        };
        let file = opened.map_err(|e| Error::path("open", path, e))?;
        let kind = file.metadata().map_err(|e| Error::path("open", path, e))?;
        if kind.is_file() {
            // An output of any name would need the lock alone to empty this file. Where it is being written, or
            // there are no locks, it is read all the same.
            let _ = file.try_lock_shared();
        }
        Ok(Self { file: InputFile(file), regular: kind.is_file(), decoder: None })
    }

    /// Starts a thread that decompresses `begun` and the bytes after it. The thread ends with the compressed
    /// bytes, or when it writes after the source was dropped.
    pub(super) fn decompress(&mut self, by: Compression, begun: Vec<u8>) -> io::Result<()> {
        // A socket, not a pipe: writing to a pipe without a reader would raise SIGPIPE.
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        let file = std::mem::replace(&mut self.file, InputFile(File::from(ours)));
        self.regular = false;
        let packed = BufReader::with_capacity(CHUNK_BYTES, Cursor::new(begun).chain(file));
        let decode = move || match by {
            Compression::Zstd => pump(zstd::Decoder::with_buffer(packed)?, &theirs),
            Compression::Lz4 => unpack_lz4(packed, &theirs),
            Compression::Gzip => unpack_gzip(packed, &theirs),
            Compression::None => pump(packed, &theirs),
        };
        let thread = std::thread::Builder::new().name("decompress".into());
        self.decoder = Some(without_signals(|| thread.spawn(decode))?);
        Ok(())
    }

    /// Returns the descriptor to poll for more bytes; `None` if reads never wait.
    pub(super) fn pollable(&self) -> Option<BorrowedFd<'_>> {
        (!self.regular).then(|| self.file.0.as_fd())
    }

    /// Reports whether a read would return at once.
    pub(super) fn is_ready(&self) -> io::Result<bool> {
        Ok(self.regular || readable(&self.file.0, PollTimeout::ZERO)?)
    }

    /// Reads the available bytes; waits only if there are none. 0 is the end.
    ///
    /// # Errors
    /// The file is unreadable, or compressed data is damaged; all bytes before that have been read.
    pub(super) fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read(room) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // This process inherited a non-blocking pipe.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    readable(&self.file.0, PollTimeout::NONE)?;
                }
                Ok(0) => return self.end().map(|()| 0),
                other => return other,
            }
        }
    }

    fn end(&mut self) -> io::Result<()> {
        match self.decoder.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(e))) => Err(e),
            Some(Err(_)) => Err(damaged("the decompressor gave up")),
        }
    }
}

/// Waits until a descriptor has something to read or has ended; false after the timeout.
fn readable(file: &impl AsFd, timeout: PollTimeout) -> io::Result<bool> {
    match poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLIN)], timeout) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the error for damaged data.
fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Copies bytes as they arrive.
fn pump(from: impl Read, to: &OwnedFd) -> io::Result<()> {
    pump_by(&mut vec![0; CHUNK_BYTES], from, to)
}

fn pump_by(chunk: &mut [u8], mut from: impl Read, to: &OwnedFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    loop {
        let n = from.read(chunk)?;
        if n == 0 {
            return Ok(());
        }
        let mut left = &chunk[..n];
        while !left.is_empty() {
            match send(to.as_raw_fd(), left, MsgFlags::MSG_NOSIGNAL) {
                Ok(sent) => left = &left[sent..],
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Decompresses the members of a gzip file. As by gzip(1), zeros after the last one are padding.
fn unpack_gzip(mut packed: impl BufRead, to: &OwnedFd) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        pump_by(&mut chunk, GzDecoder::new(&mut packed), to)?;
        match packed.fill_buf()?.first() {
            None => return Ok(()),
            Some(0) => return skip_zeros(packed),
            Some(_) => {}
        }
    }
}

/// Reads zeros to the end.
fn skip_zeros(mut packed: impl BufRead) -> io::Result<()> {
    loop {
        let rest = packed.fill_buf()?;
        if rest.is_empty() {
            return Ok(());
        }
        if rest.iter().any(|byte| *byte != 0) {
            return Err(damaged("zeros and other bytes follow the gzip data"));
        }
        let bytes = rest.len();
        packed.consume(bytes);
    }
}

/// Decompresses consecutive lz4 frames; the decoder itself reads a single frame.
fn unpack_lz4(packed: impl BufRead, to: &OwnedFd) -> io::Result<()> {
    let mut packed = EofRecorder { inner: packed, ran_dry: false };
    while let Some(magic) = packed.magic()? {
        if SKIPPABLE.contains(&magic) {
            packed.skip_frame()?;
            continue;
        }
        let begun = io::Cursor::new(magic.to_le_bytes());
        pump(lz4_flex::frame::FrameDecoder::new(begun.chain(&mut packed)), to)?;
        // The decoder mistakes an end of file between two blocks for the frame's end.
        if packed.ran_dry {
            return Err(damaged("the lz4 frame is cut short"));
        }
    }
    Ok(())
}

/// A reader that records whether a read reached its end.
struct EofRecorder<R> {
    inner: R,
    ran_dry: bool,
}

impl<R: BufRead> EofRecorder<R> {
    /// Reads a frame's first four bytes; `None` at the end.
    fn magic(&mut self) -> io::Result<Option<u32>> {
        if self.inner.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut magic = [0; 4];
        self.inner.read_exact(&mut magic)?;
        Ok(Some(u32::from_le_bytes(magic)))
    }

    /// Skips the rest of a skippable frame.
    fn skip_frame(&mut self) -> io::Result<()> {
        let mut length = [0; 4];
        self.inner.read_exact(&mut length)?;
        let length = u64::from(u32::from_le_bytes(length));
        let skipped = io::copy(&mut self.inner.by_ref().take(length), &mut io::sink())?;
        if skipped == length { Ok(()) } else { Err(damaged("the lz4 frame is cut short")) }
    }
}

impl<R: Read> Read for EofRecorder<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(room)?;
        self.ran_dry |= n == 0 && !room.is_empty();
        Ok(n)
    }
}

/// Holds many packets of ordinary length and fits a CPU's cache.
const INITIAL_BYTES: usize = 1 << 20;

/// A buffer between a source and a parser. Positions count from its first byte.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Zeroed memory, reached through raw pointers only: a slot's pointer stays valid whatever is borrowed
    /// here.
    memory: Mmap,
    start: usize,
    end: usize,
}

impl Buffer {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { memory: Mmap::anonymous(INITIAL_BYTES)?, start: 0, end: 0 })
    }

    /// Returns the position of the unread bytes.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Returns the bytes that were read and not yet consumed.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        self.bytes(self.start..self.end)
    }

    /// Returns the bytes in a range that has been filled.
    ///
    /// # Panics
    /// The range exceeds the bytes read so far.
    #[inline]
    pub(super) fn bytes(&self, at: Range<usize>) -> &[u8] {
        assert!(at.start <= at.end && at.end <= self.end);
        // SAFETY: `end` never passes the mapping's size, and mapped memory is initialised. A slice lives as
        // long as `&self`. Only `&mut self` writes here or unmaps, except the program through slots that
        // point before `start`; it does so between syncs, when nobody holds a slice of this buffer (see
        // `address`).
        unsafe {
            let start = self.memory.base().add(at.start);
            std::slice::from_raw_parts(start.as_ptr(), at.len())
        }
    }

    /// Returns bytes that no slot points to yet, for correction.
    ///
    /// # Panics
    /// The range exceeds the bytes read so far.
    #[inline]
    pub(super) fn bytes_mut(&mut self, at: Range<usize>) -> &mut [u8] {
        assert!(at.start <= at.end && at.end <= self.end);
        // SAFETY: as in `bytes`; `&mut self` makes it the only access.
        unsafe {
            let start = self.memory.base().add(at.start);
            std::slice::from_raw_parts_mut(start.as_ptr(), at.len())
        }
    }

    /// Returns the address of a position. A caller that keeps it must not allow `make_room` to move bytes.
    #[inline]
    pub(super) fn address(&self, at: usize) -> NonNull<u8> {
        assert!(at <= self.end);
        // SAFETY: `at` is within the mapping, or one past its last byte.
        unsafe { self.memory.base().add(at) }
    }

    /// Marks bytes as consumed.
    #[inline]
    pub(super) fn consume(&mut self, n: usize) {
        assert!(n <= self.end - self.start);
        self.start += n;
    }

    /// Makes room for at least one more byte, and for `wanted` unread bytes in all. With `may_move` it moves
    /// the unread bytes to the front and grows as needed; the consumed bytes are lost then. False if there is
    /// no room without moving.
    pub(super) fn make_room(&mut self, wanted: usize, may_move: bool) -> Result<bool> {
        let unread = self.end - self.start;
        let wanted = wanted.max(unread + 1);
        if !may_move {
            return Ok(self.start + wanted <= self.memory.bytes());
        }
        let from = self.address(self.start);
        if wanted > self.memory.bytes() {
            let larger = Mmap::anonymous(wanted.next_power_of_two())?;
            // SAFETY: `unread` bytes are readable at `from` and writable in the larger, new
            // mapping, which overlaps nothing.
            unsafe { from.copy_to_nonoverlapping(larger.base(), unread) };
            self.memory = larger;
        } else if self.start > 0 {
            // SAFETY: both ranges are within the mapping; `copy_to` lets them overlap.
            unsafe { from.copy_to(self.memory.base(), unread) };
        }
        self.start = 0;
        self.end = unread;
        Ok(true)
    }

    /// Returns the room after the bytes, to read into; call [`filled`](Self::filled) afterwards.
    pub(super) fn room(&mut self) -> &mut [u8] {
        // SAFETY: the range from `end` to the mapping's size is mapped and initialised; no slot points into
        // it, because slots point before `start`; `&mut self` excludes slices of it.
        unsafe {
            let start = self.memory.base().add(self.end);
            std::slice::from_raw_parts_mut(start.as_ptr(), self.memory.bytes() - self.end)
        }
    }

    /// Adds bytes that were read into the room.
    pub(super) fn filled(&mut self, n: usize) {
        assert!(n <= self.memory.bytes() - self.end);
        self.end += n;
    }
}

/// The order of a number's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

/// A cursor over bytes. Every call returns `None` if too few are left.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    order: ByteOrder,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8], order: ByteOrder) -> Self {
        Self { rest: bytes, order }
    }

    /// Returns the unread bytes.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(super) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(taken)
    }

    /// Reads a number's bytes, least significant first.
    #[inline]
    fn number<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        let mut bytes = *taken;
        if self.order == ByteOrder::Big {
            bytes.reverse();
        }
        Some(bytes)
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Option<u16> {
        self.number().map(u16::from_le_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.number().map(u32::from_le_bytes)
    }

    /// Reads a time: its upper word comes first, in either byte order.
    #[inline]
    pub(super) fn ticks(&mut self) -> Option<u64> {
        self.u32().zip(self.u32()).map(|(high, low)| u64::from(high) << 32 | u64::from(low))
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.number().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_in(buffer: &mut Buffer, bytes: &[u8]) {
        buffer.room()[..bytes.len()].copy_from_slice(bytes);
        buffer.filled(bytes.len());
    }

    #[test]
    fn bytes_behind_stay_put_until_moving_is_allowed() {
        let mut buffer = Buffer::new().unwrap();
        read_in(&mut buffer, b"seen, new");
        buffer.consume(6);
        let seen = buffer.address(0);
        assert!(buffer.make_room(100, false).unwrap());
        assert!(!buffer.make_room(INITIAL_BYTES, false).unwrap());
        assert_eq!(buffer.address(0), seen);
        assert_eq!(buffer.bytes(0..4), b"seen");
        assert!(buffer.make_room(INITIAL_BYTES, true).unwrap());
        assert_eq!((buffer.start(), buffer.unread()), (0, &b"new"[..]));
    }

    #[test]
    fn it_grows_to_what_is_wanted_and_keeps_what_is_unread() {
        let mut buffer = Buffer::new().unwrap();
        read_in(&mut buffer, b"..tail");
        buffer.consume(2);
        assert!(buffer.make_room(3 * INITIAL_BYTES, true).unwrap());
        assert_eq!(buffer.unread(), b"tail");
        assert!(buffer.room().len() >= 3 * INITIAL_BYTES - 4);
    }

    #[test]
    fn a_full_buffer_makes_room_for_one_byte_at_least() {
        let mut buffer = Buffer::new().unwrap();
        buffer.filled(INITIAL_BYTES);
        assert!(!buffer.make_room(1, false).unwrap());
        assert!(buffer.make_room(1, true).unwrap());
        assert!(!buffer.room().is_empty());
    }
}
