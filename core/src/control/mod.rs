//! Asking a command that runs: a request a line over a socket of the file system, an answer a line,
//! with files that go along where there are any. What a line says is up to those who use it.
//!
//! Only the owner and root may connect, by the socket's mode. Whoever does can do no harm: a
//! [`Server`] never waits, keeps at most [`MAX_LINE_BYTES`] of a request and one answer for each of
//! [`MAX_CLIENTS`], and lets go of who has said or read nothing for [`PATIENCE`].

mod client;
mod files;
mod server;

pub use client::Client;
pub use server::{Answer, Server, Service};

pub use crate::socket_file::socket_path;

use std::time::Duration;

/// The longest request.
pub const MAX_LINE_BYTES: usize = 16 << 10;
/// The most connections at once.
pub const MAX_CLIENTS: usize = 64;
/// Who neither asks nor reads an answer for so long is let go of, unless he is to be kept.
pub const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
