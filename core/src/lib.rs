//! Packets between Linux and a program at the speed of the wire, on the stock kernel.
#![deny(unsafe_code)]

pub mod error;
pub mod file;
pub mod filter;
pub mod forward;
pub mod ledger;
pub mod link;
pub mod memory;
pub mod port;
pub mod ring;

pub use error::{Error, Result};
