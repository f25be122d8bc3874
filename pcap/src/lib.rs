//! Capture files: pcap and pcapng, plain or compressed.
//!
//! ```text
//!   file, pipe --> read::Reader --> Packet --> write::Encoder --> Chunk --> write::Output --> file, pipe
//! ```
//!
//! ```no_run
//! use sluicegate_pcap::read::Reader; // in programs: sluicegate::file
//! use sluicegate_pcap::write::{Encoder, EncoderConfig, Output, OutputConfig};
//!
//! let mut reader = Reader::open("in.pcap".as_ref())?;
//! let mut output = Output::create(OutputConfig::new("out.pcapng.zst"))?;
//! output.add_interface(&reader.interfaces()[0], None)?;
//! let mut encoder = Encoder::new(&EncoderConfig::default());
//! let mut chunk = encoder.chunk();
//! while let Some(record) = reader.next_packet()? {
//!     while !encoder.append(&mut chunk, &record.packet()) {
//!         output.write(&chunk)?;
//!         chunk.clear();
//!     }
//! }
//! output.write(&chunk)?;
//! assert!(output.finish().failure.is_none());
//! # Ok::<(), sluicegate_base::Error>(())
//! ```
#![warn(unreachable_pub)]

pub mod read;
pub mod write;

use std::path::Path;
use std::str::FromStr;

use nix::sys::signal::{SigSet, SigmaskHow};
use sluicegate_base::error::Error;

/// Constants of both formats (draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng).
mod codes {
    pub(crate) const PCAP_MICROSECONDS: u32 = 0xa1b2_c3d4;
    pub(crate) const PCAP_NANOSECONDS: u32 = 0xa1b2_3c4d;
    /// A section's first block; the number reads the same in both byte orders.
    pub(crate) const SHB: u32 = 0x0a0d_0d0a;
    pub(crate) const IDB: u32 = 1;
    /// The obsolete Packet Block of early pcapng files.
    pub(crate) const OBSOLETE_PACKET: u32 = 2;
    pub(crate) const SPB: u32 = 3;
    pub(crate) const ISB: u32 = 5;
    pub(crate) const EPB: u32 = 6;

    /// Option codes. Those below 2 mean the same in every block.
    pub(crate) mod option {
        pub(crate) const END: u16 = 0;
        pub(crate) const COMMENT: u16 = 1;
        pub(crate) const SHB_HARDWARE: u16 = 2;
        pub(crate) const SHB_OS: u16 = 3;
        pub(crate) const SHB_USERAPPL: u16 = 4;
        pub(crate) const IF_NAME: u16 = 2;
        pub(crate) const IF_DESCRIPTION: u16 = 3;
        pub(crate) const IF_TSRESOL: u16 = 9;
        pub(crate) const IF_FILTER: u16 = 11;
        pub(crate) const IF_OS: u16 = 12;
        pub(crate) const IF_FCSLEN: u16 = 13;
        pub(crate) const IF_TSOFFSET: u16 = 14;
        pub(crate) const EPB_FLAGS: u16 = 2;
        pub(crate) const EPB_DROPCOUNT: u16 = 4;
        pub(crate) const EPB_QUEUE: u16 = 6;
        pub(crate) const ISB_STARTTIME: u16 = 2;
        pub(crate) const ISB_ENDTIME: u16 = 3;
        pub(crate) const ISB_IFRECV: u16 = 4;
        pub(crate) const ISB_IFDROP: u16 = 5;
        pub(crate) const ISB_FILTERACCEPT: u16 = 6;
        pub(crate) const ISB_OSDROP: u16 = 7;
        pub(crate) const ISB_USRDELIV: u16 = 8;
    }
}

/// How a capture file lays out its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The classic format: one link type, no interfaces, no comments
    /// (draft-ietf-opsawg-pcap).
    Pcap,
    /// The block format: the file holds interfaces, comments, losses and statistics
    /// (draft-ietf-opsawg-pcapng).
    #[default]
    Pcapng,
}

impl Format {
    /// Returns the format that a file name implies, compressed or not: "a.pcap", "a.pcapng.zst".
    pub fn of(path: &Path) -> Option<Self> {
        let inner = path.file_stem().map(Path::new);
        let named = match Compression::of(path) {
            Compression::None => path,
            _ => inner?,
        };
        named.extension()?.to_str()?.parse().ok()
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "pcap" => Ok(Self::Pcap),
            "pcapng" => Ok(Self::Pcapng),
            _ => Err(Error::Usage(format!("no file format '{name}': use pcap or pcapng"))),
        }
    }
}

/// The compression of a capture file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// Zstandard frames (RFC 8878), `.zst`.
    Zstd,
    /// LZ4 frames (LZ4 Frame Format 1.6), `.lz4`.
    Lz4,
    /// Gzip members (RFC 1952), `.gz`.
    Gzip,
}

impl Compression {
    /// Returns the compression that a file name implies.
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|e| e.to_str()) {
            Some("zst") => Self::Zstd,
            Some("lz4") => Self::Lz4,
            Some("gz") => Self::Gzip,
            _ => Self::None,
        }
    }
}

impl FromStr for Compression {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "none" => Ok(Self::None),
            "zstd" | "zst" => Ok(Self::Zstd),
            "lz4" => Ok(Self::Lz4),
            "gzip" | "gz" => Ok(Self::Gzip),
            _ => Err(Error::Usage(format!("no compression '{name}': use none, zstd, lz4 or gzip"))),
        }
    }
}

/// Runs `spawn` with all signals blocked in this thread; threads that it starts inherit the mask. A program
/// that handles signals as events blocks them in its own threads. A thread that it does not know would still
/// receive them, and the default action would end the program.
pub fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let result = spawn();
    if let Ok(before) = before {
        // The kernel accepts this mask: it was this thread's mask before.
        let _ = before.thread_set_mask();
    }
    result
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::*;

    #[test]
    fn a_name_says_format_and_compression() {
        let rows: &[(&str, Option<Format>, Compression, &str)] = &[
            ("a.pcap", Some(Format::Pcap), Compression::None, "plain pcap"),
            ("d/a.pcapng", Some(Format::Pcapng), Compression::None, "plain pcapng"),
            ("a.pcapng.zst", Some(Format::Pcapng), Compression::Zstd, "packed with zstd"),
            ("a.b.pcap.lz4", Some(Format::Pcap), Compression::Lz4, "packed with lz4"),
            ("a.zst", None, Compression::Zstd, "packed, but nobody knows what"),
            ("a.pcap.gz", Some(Format::Pcap), Compression::Gzip, "packed with gzip"),
            ("a.pcap.xz", None, Compression::None, "xz is not written"),
            ("pcap", None, Compression::None, "a name without extension"),
            ("-", None, Compression::None, "standard output"),
        ];
        for (name, format, compression, why) in rows {
            assert_eq!(Format::of(Path::new(name)), *format, "{why}");
            assert_eq!(Compression::of(Path::new(name)), *compression, "{why}");
        }
        assert!("pcapng2".parse::<Format>().is_err());
        assert!("xz".parse::<Compression>().is_err());
    }

    #[test]
    fn a_thread_takes_no_signal_and_its_maker_goes_on_taking_them() {
        let blocks = || SigSet::thread_get_mask().unwrap().contains(Signal::SIGINT);
        let inside = without_signals(|| std::thread::spawn(blocks)).join().unwrap();
        assert!(inside, "the thread that was made");
        assert!(!blocks(), "the one that made it");
    }
}
