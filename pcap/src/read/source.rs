//! Where a file's bytes come from: the file itself, a pipe, or a thread that decompresses.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};

use crate::threads::without_signals;
use sluicegate_base::error::{Error, Result};

/// A compression, told by a file's first four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Zstd,
    Lz4,
}

/// Frames without packets that both formats allow anywhere, the beginning included.
const SKIPPABLE: std::ops::RangeInclusive<u32> = 0x184d_2a50..=0x184d_2a5f;
const ZSTD: u32 = 0xfd2f_b528;
const LZ4: u32 = 0x184d_2204;

impl Compression {
    /// The compression these bytes begin with.
    pub(super) fn of(magic: [u8; 4]) -> Option<Self> {
        match u32::from_le_bytes(magic) {
            ZSTD => Some(Self::Zstd),
            LZ4 => Some(Self::Lz4),
            // Written by pzstd; lz4's tools begin no file with one.
            magic if SKIPPABLE.contains(&magic) => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Bytes that can be waited for.
#[derive(Debug)]
pub(super) struct ByteSource {
    file: File,
    /// A regular file never keeps a reader waiting.
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
        Ok(Self { file, regular: kind.is_file(), decoder: None })
    }

    /// Puts a thread in between that decompresses: `begun` and what follows it. The thread
    /// ends with the source, or when the source is dropped and its next bytes find no reader.
    pub(super) fn decompressed(self, by: Compression, begun: Vec<u8>) -> io::Result<Self> {
        // A socket, not a pipe: writing to a pipe without a reader would raise SIGPIPE.
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        let packed = BufReader::with_capacity(1 << 17, Cursor::new(begun).chain(self.file));
        let decode = move || match by {
            Compression::Zstd => pump(zstd::Decoder::with_buffer(packed)?, &theirs),
            Compression::Lz4 => unpack_lz4(packed, &theirs),
        };
        let thread = std::thread::Builder::new().name("decompress".into());
        let decoder = without_signals(|| thread.spawn(decode))?;
        Ok(Self { file: File::from(ours), regular: false, decoder: Some(decoder) })
    }

    /// What to poll for more; none where there is no need to wait.
    pub(super) fn pollable(&self) -> Option<BorrowedFd<'_>> {
        (!self.regular).then(|| self.file.as_fd())
    }

    /// Whether a read would return at once.
    pub(super) fn is_ready(&self) -> io::Result<bool> {
        let Some(fd) = self.pollable() else {
            return Ok(true);
        };
        match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads what there is, waiting only if there is nothing. 0 is the end.
    ///
    /// # Errors
    /// The file cannot be read, or what is compressed is damaged; what came before has been
    /// read by then.
    pub(super) fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read(room) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Whoever handed us the pipe had set it to non-blocking.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => wait_for_input(&self.file)?,
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

/// Waits until a descriptor has something to read, or has ended.
fn wait_for_input(file: &impl AsFd) -> io::Result<()> {
    match poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Data that is not what it should be.
fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Passes bytes on as they come.
fn pump(mut from: impl Read, to: &OwnedFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let mut chunk = vec![0; 1 << 17];
    loop {
        let n = from.read(&mut chunk)?;
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

/// Decompresses lz4 frames, one after the other; the decoder itself knows but one.
fn unpack_lz4(packed: impl BufRead, to: &OwnedFd) -> io::Result<()> {
    let mut packed = Watched { inner: packed, ran_dry: false };
    while let Some(magic) = packed.magic()? {
        if SKIPPABLE.contains(&magic) {
            packed.skip_frame()?;
            continue;
        }
        let begun = io::Cursor::new(magic.to_le_bytes());
        pump(lz4_flex::frame::FrameDecoder::new(begun.chain(&mut packed)), to)?;
        // The decoder takes an end between two blocks for the frame's end.
        if packed.ran_dry {
            return Err(damaged("the lz4 frame is cut short"));
        }
    }
    Ok(())
}

/// A reader that remembers whether more was asked of it than it had.
struct Watched<R> {
    inner: R,
    ran_dry: bool,
}

impl<R: BufRead> Watched<R> {
    /// A frame's first four bytes; none at the end.
    fn magic(&mut self) -> io::Result<Option<u32>> {
        if self.inner.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut magic = [0; 4];
        self.inner.read_exact(&mut magic)?;
        Ok(Some(u32::from_le_bytes(magic)))
    }

    /// Steps over the rest of a skippable frame.
    fn skip_frame(&mut self) -> io::Result<()> {
        let mut length = [0; 4];
        self.inner.read_exact(&mut length)?;
        let length = u64::from(u32::from_le_bytes(length));
        let skipped = io::copy(&mut self.inner.by_ref().take(length), &mut io::sink())?;
        match skipped == length {
            true => Ok(()),
            false => Err(damaged("the lz4 frame is cut short")),
        }
    }
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(room)?;
        self.ran_dry |= n == 0 && !room.is_empty();
        Ok(n)
    }
}
