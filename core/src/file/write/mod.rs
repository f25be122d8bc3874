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
//! goes wrong, a file ends with a complete record, and [`Output::written`] and
//! [`Output::lost`] say where every packet went.
//!
//! All numbers in the files are little-endian, whatever the machine.

mod block;
mod chunk;
mod name;
mod order;
mod output;
mod pack;
mod record;
mod rotate;
mod target;

pub use block::InterfaceStats;
pub use chunk::{Chunk, Record, Records};
pub use order::Merger;
pub use output::{Output, OutputConfig, Summary};
pub use record::{Encoder, EncoderConfig};
pub use rotate::Rotation;
