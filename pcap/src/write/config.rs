//! The configuration of an output, and its final summary.

use std::path::{Path, PathBuf};

use super::super::{Compression, Format};
use super::rotate::Rotation;
use sluicegate_base::error::{Error, Result};

/// The level for captures: with short packets zstd's level 3 takes nearly twice the time and saves nothing.
const LEVEL: i32 = 1;
const MAX_WORKERS: usize = 64;

/// The path, format and rotation of an output.
#[derive(Clone, Debug)]
pub struct OutputConfig {
    /// The file; `-` is standard output. Its last component may contain strftime conversions, for the local
    /// time of the file's first packet. Rotation puts a sequence number before the extensions:
    /// `a-00001.pcapng.zst`. An existing file is overwritten, except by [`Rotation::on_request`].
    pub path: PathBuf,
    /// The format.
    pub format: Format,
    /// pcap only: times in microseconds; must equal the encoder's setting.
    pub microseconds: bool,
    /// pcap only: the maximum length of a packet, which the header states; must equal the encoder's setting,
    /// with the same 0. Interfaces with longer packets may be added after the header was written.
    pub snaplen: u32,
    /// The compression.
    pub compression: Compression,
    /// Zstandard's level, or gzip's, 1 to 9; 1 by default. LZ4 has none.
    pub level: Option<i32>,
    /// Threads that compress, 1 to 64. With more than one, a zstd file consists of many frames. Every zstd
    /// reader accepts such a file, but Wireshark (4.0) only once it is decompressed.
    pub workers: usize,
    /// The limits after which a new file begins.
    pub rotation: Rotation,
    /// The user's remarks; pcapng only.
    pub comments: Vec<String>,
    /// Calls fsync(2) on each file before it counts as closed, so that a power failure loses no complete
    /// file. Writing waits for it.
    pub sync: bool,
    /// Permissions of the files.
    pub access: FileAccess,
}

/// Returns the path of a file to write: `-` for the names of standard output. By such a name the file would be
/// opened once more, and the result would be printed into it.
pub fn output_path(path: PathBuf) -> PathBuf {
    let is_stdout =
        ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path == Path::new(name));
    if is_stdout { "-".into() } else { path }
}

/// Permissions of written files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAccess {
    /// Permission bits. Packets hold secrets: 0600 by default.
    pub mode: u32,
    /// The new user and group of files that the process owns.
    pub owner: Option<(u32, u32)>,
}

impl Default for FileAccess {
    fn default() -> Self {
        Self { mode: 0o600, owner: None }
    }
}

impl OutputConfig {
    /// A single file, with the format and compression that its name implies; pcapng by default.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = output_path(path.into());
        Self {
            format: Format::of(&path).unwrap_or_default(),
            compression: Compression::of(&path),
            path,
            microseconds: false,
            snaplen: 0,
            level: None,
            workers: 1,
            rotation: Rotation::default(),
            comments: Vec::new(),
            sync: false,
            access: FileAccess::default(),
        }
    }

    /// True if files may be created while packets arrive, not only at the start.
    pub fn begins_files_later(&self) -> bool {
        let name = self.path.file_name().and_then(|name| name.to_str());
        self.rotation.is_on() || name.is_some_and(|name| name.contains('%'))
    }

    pub(super) fn check(&self) -> Result<()> {
        self.rotation.check()?;
        if self.rotation.is_on() && self.path.as_os_str() == "-" {
            return Err(Error::Usage(
                "standard output is one stream: rotation needs a file name".into(),
            ));
        }
        let Some(level) = self.level else { return Ok(()) };
        let (name, levels) = match self.compression {
            Compression::Zstd => ("zstd", zstd::compression_level_range()),
            Compression::Gzip => ("gzip", 1..=9),
            Compression::Lz4 | Compression::None => {
                return Err(Error::Usage(format!(
                    "compression level {level}: only zstd and gzip have levels"
                )));
            }
        };
        if levels.contains(&level) {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "compression level {level}: {name} has levels {} to {}",
            levels.start(),
            levels.end()
        )))
    }

    /// Returns the level of zstd or gzip.
    pub(super) fn level(&self) -> i32 {
        self.level.unwrap_or(LEVEL)
    }

    /// Returns the number of compression threads.
    pub(super) fn workers(&self) -> usize {
        self.workers.clamp(1, MAX_WORKERS)
    }
}

/// Counts of an output's packets and files.
#[must_use = "a failure to write stands in `failure`"]
#[derive(Debug, Default)]
pub struct Summary {
    /// Files created.
    pub files: u64,
    /// Packets written.
    pub packets: u64,
    /// Packets submitted that could not be written.
    pub lost: u64,
    /// Packets that came after the last file of [`Rotation::last_file`].
    pub after_last_file: u64,
    /// Bytes written, after compression.
    pub bytes: u64,
    /// Files deleted to keep only the newest.
    pub files_deleted: u64,
    /// Files that the receiver of [`Output::announce_files`](super::Output::announce_files) deletes instead.
    pub files_expired: u64,
    /// Packets in the deleted files.
    pub packets_deleted: u64,
    /// Files due for deletion that could not be deleted, or were replaced by another file.
    pub files_left: u64,
    /// The reason why packets were not written.
    pub failure: Option<Error>,
}
