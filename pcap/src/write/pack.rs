//! Compression on threads of its own: chunks are packed side by side and written in order.
//!
//! A file is one frame, for Wireshark (4.0) does not find a second one. What each chunk becomes
//! can be read as soon as it is written, whatever follows, so that a file whose writer was
//! killed is readable up to the last one, and a few bytes that are always the same (the
//! epilogue) complete a file at any time: nothing carries a checksum over the whole. Blocks of
//! LZ4 do not depend on each other, so any number of threads can make them; Zstandard's do, so
//! several threads make a frame of each chunk, and Wireshark does not read the file.
//!
//! The workers get chunks in turn, through queues of bounded length, and each waits for its
//! turn to write.

use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use zstd::bulk::Compressor;
use zstd::stream::raw::{Encoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::{CParameter, compress_bound};

use super::super::Compression;
use super::super::threads::without_signals;
use super::config::OutputConfig;
use super::target::{Failure, Piece, Target, TargetProgress, lock};
use sluicegate_base::error::{Error, Result};

/// Chunks that wait before each worker; more would only be memory.
const QUEUE: usize = 2;

/// A chunk on its way.
struct PackJob {
    number: u64,
    target: Arc<Mutex<Target>>,
    bytes: Vec<u8>,
    packets: u64,
    place: FileOffset,
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
    workers: Vec<PackWorker>,
    shared: Arc<PackQueue>,
    submitted: u64,
    emptied: Receiver<Vec<u8>>,
}

#[derive(Debug)]
struct PackWorker {
    /// `None` once there is nothing more to do.
    jobs: Option<SyncSender<PackJob>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct PackQueue {
    progress: Arc<TargetProgress>,
    turn: Mutex<PackTurn>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct PackTurn {
    /// The job that writes next.
    next: u64,
    /// A worker has exited: order cannot be kept any more.
    broken: bool,
}

impl Packer {
    /// Starts the workers.
    pub(super) fn start(config: &OutputConfig, progress: &Arc<TargetProgress>) -> Result<Self> {
        let shared = Arc::new(PackQueue {
            progress: Arc::clone(progress),
            turn: Mutex::default(),
            moved: Condvar::new(),
        });
        let (give_back, emptied) = channel();
        let workers = (0..config.workers())
            .map(|number| {
                let codec = Codec::new(config)?;
                PackWorker::start(number, codec, &shared, give_back.clone())
            })
            .collect::<io::Result<_>>()
            .map_err(|error| Error::system("start", "the compression threads", error))?;
        Ok(Self { workers, shared, submitted: 0, emptied })
    }

    /// Hands a copy of a piece on; waits while the queue is full.
    pub(super) fn submit(
        &mut self,
        target: &Arc<Mutex<Target>>,
        piece: &Piece<'_>,
        place: FileOffset,
    ) {
        let mut bytes = self.emptied.try_recv().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(piece.bytes);
        let job = PackJob {
            number: self.submitted,
            target: Arc::clone(target),
            bytes,
            packets: piece.packets,
            place,
        };
        let worker = &self.workers[(self.submitted % self.workers.len() as u64) as usize];
        let sent = match &worker.jobs {
            Some(jobs) => jobs.send(job).is_ok(),
            None => false,
        };
        if sent {
            self.submitted += 1;
        } else {
            self.shared.abandon(piece.packets);
        }
    }

    /// Waits until all that was handed on is written or lost.
    pub(super) fn settle(&self) {
        drop(self.shared.wait_for(self.submitted));
    }
}

impl Drop for Packer {
    /// Lets the workers finish what they have.
    fn drop(&mut self) {
        for worker in &mut self.workers {
            worker.jobs = None;
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                // A worker that panicked has said so through `Shared::abandon`.
                let _ = thread.join();
            }
        }
    }
}

impl PackWorker {
    fn start(
        number: usize,
        codec: Codec,
        shared: &Arc<PackQueue>,
        give_back: Sender<Vec<u8>>,
    ) -> io::Result<Self> {
        let (send, jobs) = sync_channel(QUEUE);
        let shared = Arc::clone(shared);
        let thread = thread::Builder::new().name(format!("sluice-pack{number}"));
        let work = move || work(codec, &jobs, &shared, &give_back);
        let thread = without_signals(|| thread.spawn(work))?;
        Ok(Self { jobs: Some(send), thread: Some(thread) })
    }
}

/// A worker's life.
fn work(
    mut codec: Codec,
    jobs: &Receiver<PackJob>,
    shared: &PackQueue,
    give_back: &Sender<Vec<u8>>,
) {
    let mut packed = Vec::new();
    for job in jobs {
        let mut watch = PanicGuard { shared, packets: job.packets };
        let done = codec.pack(&job.bytes, job.place.first, &mut packed);
        let turn = shared.wait_for(job.number);
        let in_order = !turn.broken;
        // Nobody else writes before the turn moves on: no need to hold the others up.
        drop(turn);
        match done {
            Ok(()) if in_order => {
                let piece = Piece { bytes: &packed, packets: job.packets, records: None };
                shared.progress.write(&job.target, &piece);
            }
            Ok(()) => shared.progress.lose(job.packets),
            Err(error) => {
                let failure = Failure::new("compress", lock(&job.target).path(), &error);
                shared.progress.fail(failure);
                shared.progress.lose(job.packets);
            }
        }
        watch.packets = 0;
        if job.place.last {
            shared.progress.close(&job.target);
        }
        shared.turn().next = job.number + 1;
        shared.moved.notify_all();
        // The output may have been dropped, and with it the need for buffers.
        let _ = give_back.send(job.bytes);
    }
}

impl PackQueue {
    fn turn(&self) -> MutexGuard<'_, PackTurn> {
        lock(&self.turn)
    }

    /// Waits until all jobs before this one are done, or cannot be.
    fn wait_for(&self, number: u64) -> MutexGuard<'_, PackTurn> {
        self.moved
            .wait_while(self.turn(), |turn| turn.next < number && !turn.broken)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a worker exited with this many packets.
    fn abandon(&self, packets: u64) {
        let error = io::Error::other("a thread ended unexpectedly");
        let failure = Failure::new("compress", Path::new("the capture"), &error);
        self.progress.fail(failure);
        self.progress.lose(packets);
        self.turn().broken = true;
        self.moved.notify_all();
    }
}

/// Keeps the others from waiting forever for a worker that panicked.
struct PanicGuard<'a> {
    shared: &'a PackQueue,
    packets: u64,
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.abandon(self.packets);
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
