//! Flags for the content of capture files, for `capture` and `edit`.

use std::path::Path;

use sluicegate::error::{Error, Result};
use sluicegate::file::write::OutputConfig;
use sluicegate::file::{Compression, Format};

use crate::ports;

/// The first time that pcap cannot hold: it counts seconds in 32 bits.
pub const PCAP_END_NS: u64 = (1 << 32) * 1_000_000_000;

/// Flags for the content of written files.
#[derive(clap::Args, Clone, Debug)]
pub struct FileFlags {
    /// zstd, lz4, gzip or none [default: by the extension .zst, .lz4 or .gz]
    #[arg(long, value_name = "METHOD")]
    pub compress: Option<Compression>,

    /// Level of zstd, 1 (fast) to 19 (small), or of gzip, 1 to 9 [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=19))]
    compress_level: Option<i32>,

    /// Compression threads
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=64))]
    compress_threads: u8,

    /// Comment in a pcapng file; may be repeated
    #[arg(long, value_name = "TEXT")]
    comment: Vec<String>,
}

impl FileFlags {
    /// Returns true if a flag needs a file.
    pub fn need_file(&self) -> bool {
        self.compress.is_some()
            || self.compress_level.is_some()
            || self.compress_threads > 1
            || !self.comment.is_empty()
    }

    /// Returns the description of an output with this name, and this format unless the name decides.
    ///
    /// # Errors
    /// The name promises a compression that is not written; flags that contradict each other.
    pub fn output(&self, path: &Path, format: Option<Format>, micro: bool) -> Result<OutputConfig> {
        if self.compress.is_none() {
            ports::refuse_extension(path)?;
        }
        let mut config = OutputConfig::new(path);
        config.format = format.unwrap_or(config.format);
        config.compression = self.compress.unwrap_or(config.compression);
        let problem = if micro && config.format != Format::Pcap {
            "--micro needs a pcap file, or --format pcap"
        } else if !self.comment.is_empty() && config.format != Format::Pcapng {
            "a pcap file has no comments; use pcapng, or remove --comment"
        } else if self.compress_threads > 1 && config.compression == Compression::None {
            "--compress-threads needs --compress zstd, lz4 or gzip"
        } else {
            config.microseconds = micro;
            config.level = self.compress_level;
            config.workers = self.compress_threads.into();
            config.comments.clone_from(&self.comment);
            return Ok(config);
        };
        Err(Error::Usage(problem.into()))
    }
}
