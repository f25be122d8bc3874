//! Compression on worker threads: chunks are compressed in parallel and written in order.
//!
//! A file is one frame, because Wireshark (4.0) does not find a second one. A compressed chunk is readable as
//! soon as it is written. So if the writer is killed, the file is readable up to the last chunk. The frame
//! has no checksum over the whole, so a constant epilogue of a few bytes completes a file at any time. LZ4
//! blocks do not depend on each other, so any number of threads can make them. Zstandard blocks do, so
//! several threads make one frame of each chunk, and Wireshark does not read the file.
//!
//! A gzip member ends with a checksum, so each chunk is a member: a file needs no epilogue, and any number of
//! threads can make them. Wireshark reads all members of a file.
//!
//! The workers get chunks in turn, through bounded queues. A channel connects each chunk to the next one: a
//! worker writes its chunk when the previous one is written. A worker that panics drops its chunks and their
//! channels, so all later chunks are lost.

use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use flate2::{Compress, FlushCompress, Status};
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use zstd::bulk::Compressor;
use zstd::stream::raw::{Encoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::{CParameter, compress_bound};

use super::super::Compression;
use super::chunk::Piece;
use super::config::OutputConfig;
use super::output_file::{Failure, OutputCounts, OutputFile, lock};
use crate::without_signals;
use sluicegate_base::error::{Error, Result};

/// Chunks queued for each worker; more would only cost memory.
const QUEUE: usize = 2;

/// A chunk to compress and write.
struct PackJob {
    progress: Arc<OutputCounts>,
    target: Arc<Mutex<OutputFile>>,
    bytes: Vec<u8>,
    packets: u64,
    place: FileOffset,
    /// Receives a message when the previous job is written; an error if it never will be.
    before: Receiver<()>,
    /// Signals the next job when this one is written; `None` afterwards.
    written: Option<SyncSender<()>>,
}

impl Drop for PackJob {
    /// Counts the packets of an unwritten job as lost: its worker, or that of an earlier job, has exited.
    fn drop(&mut self) {
        if self.written.is_some() {
            let error = io::Error::other("a thread ended unexpectedly");
            self.progress.fail(Failure::new("compress", Path::new("the capture"), error));
            self.progress.lose(self.packets);
        }
    }
}

/// The position of a piece in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileOffset {
    /// The first piece.
    pub(super) first: bool,
    /// The last piece: close the file after it.
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
    /// Receives a message when the last submitted job is written.
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
            packer.add_worker(config, give_back.clone()).map_err(|error| {
                Error::start("the compression threads", error)
                    .remedy("use fewer threads or a lower level, or compress by lz4")
            })?;
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

    /// Queues a copy of a piece; waits while the queue is full.
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
        // If the worker has exited, dropping the job counts it as lost.
        let _ = self.queues[self.next].send(job);
        self.next = (self.next + 1) % self.queues.len();
    }

    /// Waits until all submitted pieces are written or lost.
    pub(super) fn settle(&mut self) {
        if self.last_written.recv().is_ok() {
            self.last_written = already_written();
        }
    }
}

/// Returns the channel that lets the first job write at once.
fn already_written() -> Receiver<()> {
    let (written, before) = sync_channel(1);
    // The channel has room for one message, and its receiver exists.
    let _ = written.send(());
    before
}

impl Drop for Packer {
    /// Waits until the workers have finished their jobs.
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // The job of a worker that panicked has counted its loss.
            let _ = thread.join();
        }
    }
}

/// Runs a worker: compresses jobs, and writes each after its predecessor.
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
            // Both sends fail if the output was dropped: then there is no next job and no need for buffers.
            let _ = written.send(());
            let _ = give_back.send(std::mem::take(&mut job.bytes));
        }
    }
}

/// Returns the bytes that complete a file: an empty last block.
pub(super) fn epilogue(config: &OutputConfig) -> &'static [u8] {
    match config.compression {
        Compression::Zstd if config.workers() == 1 => &[1, 0, 0],
        Compression::Lz4 => &LZ4_END,
        Compression::Zstd | Compression::Gzip | Compression::None => &[],
    }
}

/// Bytes of an LZ4 frame before its blocks: magic, FLG, BD, header checksum.
const LZ4_HEAD: usize = 7;
/// The EndMark.
const LZ4_END: [u8; 4] = [0; 4];

/// The encoder of a compressed format.
enum Codec {
    /// Zstandard, one frame per file.
    Zstd(Encoder<'static>),
    /// Zstandard, one frame per chunk.
    ZstdFrames(Compressor<'static>),
    /// LZ4, one frame per file.
    Lz4,
    /// Gzip, one member per chunk.
    Gzip(Compress),
}

/// The base-2 logarithm of gzip's maximum window.
const GZIP_WINDOW_BITS: u8 = 15;

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
            Compression::Gzip => {
                let level = flate2::Compression::new(config.level().cast_unsigned());
                Ok(Self::Gzip(Compress::new_gzip(level, GZIP_WINDOW_BITS)))
            }
            Compression::Lz4 | Compression::None => Ok(Self::Lz4),
        }
    }

    /// Compresses bytes so that they are readable without later ones. `first` means the first bytes of a
    /// file. The result for no bytes is empty.
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
            Self::Gzip(compress) => gzip_member(compress, bytes, packed),
        }
    }
}

/// Continues a frame, up to the end of a block.
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

/// Makes a frame, and removes the end mark and, if not `first`, the header: a file has one of each.
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

/// Makes a member.
fn gzip_member(compress: &mut Compress, bytes: &[u8], packed: &mut Vec<u8>) -> io::Result<()> {
    /// More than the header and the trailer.
    const ROOM: usize = 64;
    compress.reset();
    loop {
        let rest = &bytes[compress.total_in() as usize..];
        packed.reserve(rest.len() + ROOM);
        if compress.compress_vec(rest, packed, FlushCompress::Finish)? == Status::StreamEnd {
            return Ok(());
        }
    }
}
