//! Writing capture files, fast and whole.
//!
//! ```text
//! receive threads                     writer thread              compression threads
//! Packet --Encoder--> Chunk --------> Merger --Chunk--> Output -> frame -> file
//!                      |  one source, no compression     ^
//!                      +---------------------------------+
//! ```
//!
//! An [`Encoder`] turns packets into records inside a [`Chunk`] of memory: no allocation, no
//! lock, no clock. A [`Merger`] brings the chunks of several receive threads into the order of
//! time. An [`Output`] writes them: to one file or a row of them, plain or compressed. Whatever
//! goes wrong, a file ends with a complete record, and [`Output::counts`] say where every packet went.
//!
//! All numbers in the files are little-endian, whatever the machine.

mod block;
mod chunk;
mod config;
mod order;
mod output;
mod pack;
mod record;
mod rotate;
mod target;

pub use block::InterfaceStats;
pub use chunk::{Chunk, Record, Records};
pub use config::{FileAccess, OutputConfig, Summary};
pub use order::Merger;
pub use output::Output;
pub use record::{Encoder, EncoderConfig};
pub use rotate::Rotation;
pub use target::OutputCounts;

/// Each of these may be handed from thread to thread.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Chunk>();
    is_send::<Encoder>();
    is_send::<Merger>();
    is_send::<Output>();
};
