//! Compression on threads of its own: chunks are packed side by side and written in order.
//!
//! A file is one frame, for Wireshark (4.0) does not find a second one. What each chunk becomes
//! can be read as soon as it is written, whatever follows, so that a file whose writer was
//! killed is readable up to the last one, and a few bytes that are always the same (the
//! epilogue) complete a file at any time: nothing carries a checksum over the whole. Blocks of
//! LZ4 do not depend on each other, so any number of threads can make them; Zstandard's do, so
//! several threads make a frame of each chunk, and Wireshark does not read the file.
//!
//! The workers get chunks in turn, through queues of bounded length. Each chunk has a channel to the
//! next one: a worker writes when the chunk before is written. A worker that panics drops its chunks,
//! and with them the channels, so all that follow are lost.

use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use zstd::bulk::Compressor;
use zstd::stream::raw::{Encoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::{CParameter, compress_bound};

use super::super::Compression;
use super::chunk::Piece;
use super::config::OutputConfig;
use super::target::{Failure, OutputCounts, OutputFile, lock};
use crate::without_signals;
use sluicegate_base::error::{Error, Result};

/// Chunks that wait before each worker; more would only be memory.
const QUEUE: usize = 2;

/// A chunk on its way.
struct PackJob {
    progress: Arc<OutputCounts>,
    target: Arc<Mutex<OutputFile>>,
    bytes: Vec<u8>,
    packets: u64,
    place: FileOffset,
    /// Tells when the job before is written; an error if it never will be.
    before: Receiver<()>,
    /// Tells the next job when this one is written. None then.
    written: Option<SyncSender<()>>,
}

impl Drop for PackJob {
    /// Counts a job that was not written: its worker has exited, or that of a job before it.
    fn drop(&mut self) {
        if self.written.is_some() {
            let error = io::Error::other("a thread ended unexpectedly");
            self.progress.fail(Failure::new("compress", Path::new("the capture"), error));
            self.progress.lose(self.packets);
        }
    }
}

/// Where in its file a piece stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileOffset {
    /// Nothing is before it.
    pub(super) first: bool,
    /// Nothing follows: close the file.
    pub(super) last: bool,
}

/// The workers of an output.
#[derive(Debug)]
pub(super) struct Packer {
    progress: Arc<OutputCounts>,
    queues: Vec<SyncSender<PackJob>>,
    threads: Vec<JoinHandle<()>>,
    /// The worker that gets the next job.
    next: usize,
    /// Tells when the job submitted last is written.
    last_written: Receiver<()>,
    emptied: Receiver<Vec<u8>>,
}

impl Packer {
    /// Starts the workers.
    pub(super) fn start(config: &OutputConfig, progress: &Arc<OutputCounts>) -> Result<Self> {
        let (give_back, emptied) = channel();
        let mut packer = Self {
            progress: Arc::clone(progress),
            queues: Vec::new(),
            threads: Vec::new(),
            next: 0,
            last_written: already_written(),
            emptied,
        };
        for _ in 0..config.workers() {
            packer
                .add_worker(config, give_back.clone())
                .map_err(|error| Error::system("start", "the compression threads", error))?;
        }
        Ok(packer)
    }

    fn add_worker(&mut self, config: &OutputConfig, give_back: Sender<Vec<u8>>) -> io::Result<()> {
        let codec = Codec::new(config)?;
        let (queue, jobs) = sync_channel(QUEUE);
        let thread = thread::Builder::new().name(format!("sluice-pack{}", self.queues.len()));
        let thread = without_signals(|| thread.spawn(move || work(codec, &jobs, &give_back)))?;
        self.queues.push(queue);
        self.threads.push(thread);
        Ok(())
    }

    /// Hands a copy of a piece on; waits while the queue is full.
    pub(super) fn submit(
        &mut self,
        target: &Arc<Mutex<OutputFile>>,
        piece: &Piece<'_>,
        place: FileOffset,
    ) {
        let mut bytes = self.emptied.try_recv().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(piece.bytes);
        let (written, last_written) = sync_channel(1);
        let job = PackJob {
            progress: Arc::clone(&self.progress),
            target: Arc::clone(target),
            bytes,
            packets: piece.packets,
            place,
            before: std::mem::replace(&mut self.last_written, last_written),
            written: Some(written),
        };
        // A job that finds no worker counts itself as lost.
        let _ = self.queues[self.next].send(job);
        self.next = (self.next + 1) % self.queues.len();
    }

    /// Waits until all that was handed on is written or lost.
    pub(super) fn settle(&mut self) {
        if self.last_written.recv().is_ok() {
            self.last_written = already_written();
        }
    }
}

/// Lets the first job write at once.
fn already_written() -> Receiver<()> {
    let (written, before) = sync_channel(1);
    // It has room for one, and its receiver lives.
    let _ = written.send(());
    before
}

impl Drop for Packer {
    /// Lets the workers finish what they have.
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so through its job.
            let _ = thread.join();
        }
    }
}

/// A worker's life.
fn work(mut codec: Codec, jobs: &Receiver<PackJob>, give_back: &Sender<Vec<u8>>) {
    let mut packed = Vec::new();
    for mut job in jobs {
        let done = codec.pack(&job.bytes, job.place.first, &mut packed);
        let in_order = job.before.recv().is_ok();
        if in_order {
            match done {
                Ok(()) => {
                    let piece = Piece { bytes: &packed, packets: job.packets, records: None };
                    job.progress.write(&job.target, &piece);
                }
                Err(error) => {
                    let failure = Failure::new("compress", lock(&job.target).path(), error);
                    job.progress.fail(failure);
                    job.progress.lose(job.packets);
                }
            }
        }
        if job.place.last {
            job.progress.close(&job.target);
        }
        if in_order && let Some(written) = job.written.take() {
            // The output may have been dropped, and with it the next job and the need for buffers.
            let _ = written.send(());
            let _ = give_back.send(std::mem::take(&mut job.bytes));
        }
    }
}

/// Completes a file: an empty last block.
pub(super) fn epilogue(config: &OutputConfig) -> &'static [u8] {
    match config.compression {
        Compression::Zstd if config.workers() == 1 => &[1, 0, 0],
        Compression::Lz4 => &LZ4_END,
        Compression::Zstd | Compression::None => &[],
    }
}

/// Bytes of an LZ4 frame before its blocks: magic, FLG, BD, header checksum.
const LZ4_HEAD: usize = 7;
/// The EndMark.
const LZ4_END: [u8; 4] = [0; 4];

/// The encoder of a compressed format.
enum Codec {
    /// Zstandard, one frame a file.
    Zstd(Encoder<'static>),
    /// Zstandard, one frame a chunk.
    ZstdFrames(Compressor<'static>),
    /// LZ4, one frame a file.
    Lz4,
}

impl Codec {
    fn new(config: &OutputConfig) -> io::Result<Self> {
        match config.compression {
            Compression::Zstd if config.workers() == 1 => {
                Ok(Self::Zstd(Encoder::new(config.level())?))
            }
            Compression::Zstd => {
                let mut compressor = Compressor::new(config.level())?;
                compressor.set_parameter(CParameter::ChecksumFlag(true))?;
                Ok(Self::ZstdFrames(compressor))
            }
            Compression::Lz4 | Compression::None => Ok(Self::Lz4),
        }
    }

    /// Packs bytes, which are the first of their file or not, so that they can be read without
    /// those that follow. No bytes become none.
    fn pack(&mut self, bytes: &[u8], first: bool, packed: &mut Vec<u8>) -> io::Result<()> {
        packed.clear();
        if bytes.is_empty() {
            return Ok(());
        }
        match self {
            Self::Zstd(encoder) => {
                if first {
                    encoder.reinit()?;
                }
                zstd_blocks(encoder, bytes, packed)
            }
            Self::ZstdFrames(compressor) => {
                packed.reserve(compress_bound(bytes.len()));
                compressor.compress_to_buffer(bytes, packed)?;
                Ok(())
            }
            Self::Lz4 => lz4_blocks(bytes, first, packed),
        }
    }
}

/// Goes on with a frame, up to the end of a block.
fn zstd_blocks(
    encoder: &mut Encoder<'static>,
    bytes: &[u8],
    packed: &mut Vec<u8>,
) -> io::Result<()> {
    let mut input = InBuffer::around(bytes);
    loop {
        packed.reserve(compress_bound(bytes.len() - input.pos()));
        let filled = packed.len();
        let mut output = OutBuffer::around_pos(packed, filled);
        if input.pos() < bytes.len() {
            encoder.run(&mut input, &mut output)?;
        } else if encoder.flush(&mut output)? == 0 {
            return Ok(());
        }
    }
}

/// Makes a frame and takes off what belongs at the ends of the file only.
fn lz4_blocks(bytes: &[u8], first: bool, packed: &mut Vec<u8>) -> io::Result<()> {
    let info = FrameInfo::new()
        .block_size(BlockSize::Max1MB)
        .block_mode(BlockMode::Independent)
        .block_checksums(true);
    let mut encoder = FrameEncoder::with_frame_info(info, &mut *packed);
    encoder.write_all(bytes)?;
    encoder.finish()?;
    packed.truncate(packed.len() - LZ4_END.len());
    if !first {
        packed.drain(..LZ4_HEAD);
    }
    Ok(())
}
