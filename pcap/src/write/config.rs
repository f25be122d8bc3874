//! The configuration of an output, and its summary at the end.

use std::path::PathBuf;

use super::super::{Compression, Format};
use super::rotate::Rotation;
use sluicegate_base::error::{Error, Result};

/// The level for captures: level 3 takes nearly twice the time of short packets and saves
/// nothing on them.
const ZSTD_LEVEL: i32 = 1;
const MAX_WORKERS: usize = 64;

/// Where packets are written, and how.
#[derive(Clone, Debug)]
pub struct OutputConfig {
    /// The file; `-` is standard output. Its last part may hold strftime conversions: local
    /// time, of the file's first packet. With rotation a running number goes before the
    /// extensions: `a-00001.pcapng.zst`. A file of that name is overwritten.
    pub path: PathBuf,
    /// The format.
    pub format: Format,
    /// pcap only: times in microseconds, as the encoder's.
    pub microseconds: bool,
    /// The compression.
    pub compression: Compression,
    /// Zstandard's level; 1 if none is given. The others have none.
    pub level: Option<i32>,
    /// Threads that compress, 1 to 64. With more than one, a zstd file consists of many
    /// frames: every reader of the format takes it, but Wireshark (4.0) only unpacked.
    pub workers: usize,
    /// When to begin new files.
    pub rotation: Rotation,
    /// The user's remarks; pcapng only.
    pub comments: Vec<String>,
    /// Each file is on its disk before it counts as closed (fsync(2)), so that a power failure
    /// takes none that was complete. Writing waits for it.
    pub sync: bool,
    /// Permissions of the files.
    pub access: FileAccess,
}

/// Permissions of files that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAccess {
    /// Permission bits. Packets hold secrets: 0600 by default.
    pub mode: u32,
    /// The user and the group that get files which the process owns.
    pub owner: Option<(u32, u32)>,
}

impl Default for FileAccess {
    fn default() -> Self {
        Self { mode: 0o600, owner: None }
    }
}

impl OutputConfig {
    /// One file, of the format and compression its name asks for; pcapng if it asks for none.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            format: Format::of(&path).unwrap_or_default(),
            compression: Compression::of(&path),
            path,
            microseconds: false,
            level: None,
            workers: 1,
            rotation: Rotation::default(),
            comments: Vec::new(),
            sync: false,
            access: FileAccess::default(),
        }
    }

    /// True if files are begun while packets arrive, and not only at the start.
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
        let Some(level) = self.level else {
            return Ok(());
        };
        let levels = zstd::compression_level_range();
        if self.compression == Compression::Zstd && levels.contains(&level) {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "compression level {level}: only zstd has levels, {} to {}",
            levels.start(),
            levels.end()
        )))
    }

    /// Zstandard's level.
    pub(super) fn level(&self) -> i32 {
        self.level.unwrap_or(ZSTD_LEVEL)
    }

    /// Threads that compress.
    pub(super) fn workers(&self) -> usize {
        self.workers.clamp(1, MAX_WORKERS)
    }
}

/// Counts of the packets that an output was given, and of its files.
#[must_use = "a failure to write stands in `failure`"]
#[derive(Debug, Default)]
pub struct Summary {
    /// Files that were made.
    pub files: u64,
    /// Packets that were written.
    pub packets: u64,
    /// Packets that were handed over and could not be written.
    pub lost: u64,
    /// Bytes that were written, after compression.
    pub bytes: u64,
    /// Files that were deleted to keep only the newest.
    pub files_deleted: u64,
    /// Packets in files that were deleted.
    pub packets_deleted: u64,
    /// Files that should have been deleted and could not be, or are no longer ours.
    pub files_left: u64,
    /// Why not everything was written.
    pub failure: Option<Error>,
}
