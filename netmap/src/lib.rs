//! Rings in netmap's memory layout, shared with an untrusted program in another process.
//!
//! ```text
//!   the server's memory                the region: a memory file that both map
//!   +-----------------+  hand out      +--------------------------------+
//!   | Ring: slots,    | -------------> | images: netmap_ring, slots     |  abi, image
//!   | metadata,       | <------------- +--------------------------------+
//!   | buffers         |  take back     | buffers                        |
//!   +-----------------+  (transfer)    +--------------------------------+
//!     ^ sync
//!     v
//!   backend of a port                    one bit per buffer, set if the program has it: lent_buffers
//! ```
//!
//! [`Region::open`] opens a port for the program; [`Served`] syncs one of its queues:
//!
//! ```
//! use sluicegate::port::OpenOptions;
//! use sluicegate_netmap::{Region, RegionConfig};
//!
//! let region = Region::new(RegionConfig::default())?;
//! let (_, mut queues) = region.open(&"null:".parse()?, &OpenOptions::default())?;
//! assert_eq!(queues[0].sync_rx()?, 511, "slots that the program sees, at rx_offset() of fd()");
//! # Ok::<(), sluicegate::Error>(())
//! ```
#![warn(unreachable_pub)]
#![deny(unsafe_code)]

pub mod abi;
pub mod engine;
mod image;
mod lent_buffers;
pub mod program_file;
mod region;
mod transfer;

pub use region::{Region, RegionConfig, Served};
