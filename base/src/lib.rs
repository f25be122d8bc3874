//! The lowest crate of Sluice: rings of slots, the pools and mappings that hold their bytes, errors and
//! units, and positions of Ethernet and IP headers. It neither sends nor receives packets.
//!
//! ```text
//!   Ring      slots between head and tail, one Meta beside each      ring
//!     |
//!   Pool      buffers of equal size, one owner each                  memory
//!     |
//!   Mmap      pages of the process, of a file, or of the kernel
//! ```
//!
//! A backend owns a [`Ring`](ring::Ring) and fills or empties its slots; a program works on it through a
//! [`RingMut`](ring::RingMut), which the queue of a port lends.
#![warn(unreachable_pub)]

pub mod error;
#[cfg(test)]
#[path = "../tests/frame/mod.rs"]
mod frame;
pub mod headers;
pub mod memory;
pub mod regular_file;
pub mod ring;
pub mod socket_file;
pub mod text_error;
pub mod units;

pub use error::{Error, Result};
