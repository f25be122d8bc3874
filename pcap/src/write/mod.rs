//! Writing capture files: fast, and always with complete records.
//!
//! ```text
//! receive threads                     writer thread              compression threads
//! Packet --Encoder--> Chunk --------> Merger --Chunk--> Output -> frame -> file
//!                      |  one source, no compression     ^
//!                      +---------------------------------+
//! ```
//!
//! An [`Encoder`] turns packets into records inside a [`Chunk`] of memory: no allocation, no lock, no clock.
//! A [`Merger`] merges the chunks of several receive threads by time. An [`Output`] writes them to one file
//! or a series of files, plain or compressed. A [`History`] before it keeps the newest chunks in memory until
//! a trigger asks for them. After any failure a file ends with a complete record, and
//! [`Output::counts`] account for every packet.
//!
//! All numbers in the files are little-endian, on every machine.

mod block;
mod chunk;
mod compress;
mod config;
mod encoder;
mod event;
mod history;
mod merge;
mod output;
mod output_file;
mod rotate;

pub use block::InterfaceStats;
pub use chunk::{Chunk, EncodedRecord, EncodedRecords};
pub use config::{FileAccess, OutputConfig, Summary, output_path};
pub use encoder::{Encoder, EncoderConfig};
pub use event::{ExpiredFile, FileEvent};
pub use history::{History, HistoryConfig, HistoryPart, InMemory};
pub use merge::Merger;
pub use output::Output;
pub use output_file::{OutputCounts, open_protected};
pub use rotate::Rotation;

/// Asserts that each of these types is `Send`.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Chunk>();
    is_send::<Encoder>();
    is_send::<History>();
    is_send::<Merger>();
    is_send::<Output>();
};
