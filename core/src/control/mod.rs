//! Asking a command that runs: a request a line over a socket of the file system, an answer a line,
//! with files that go along where there are any. What a line says is up to those who use it.
//!
//! Only the owner and root may connect, by the socket's mode. Whoever does can do no harm: a
//! [`Server`] never waits, keeps at most [`MOST_LINE_BYTES`] of a request and one answer for each of
//! [`MOST_CLIENTS`], and lets go of who has said or read nothing for [`PATIENCE`].

mod client;
mod files;
mod server;

pub use client::Client;
pub use server::{Answer, Server, Service};

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};

/// Where the sockets of running commands are.
const FOLDER: &str = "/run/sluice";
/// The socket's name in its folder.
const SOCKET: &str = "control.sock";
/// The longest request.
pub const MOST_LINE_BYTES: usize = 16 << 10;
/// The most connections at once.
pub const MOST_CLIENTS: usize = 64;
/// Who neither asks nor reads an answer for so long is let go of, unless he is to be kept.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The socket of a command that runs under a name: `/run/sluice/COMMAND/NAME/control.sock`. The folder is
/// the user's that the command becomes, so that it can remove the socket.
///
/// # Errors
/// The name is none: letters, digits, `-`, `_` and `.`, 64 at most.
pub fn socket_path(command: &str, name: &str) -> Result<PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) || name.starts_with('.') {
        return Err(Error::Usage(format!(
            "'{name}' cannot be the name of a {command}: use letters, digits, '-', '_' and '.', 64 \
             at most"
        )));
    }
    Ok(Path::new(FOLDER).join(command).join(name).join(SOCKET))
}

/// Whether a socket's folder is there for it alone, as that of [`socket_path`] is.
pub(crate) fn is_folder_of_one(path: &Path) -> bool {
    let inner = path.strip_prefix(FOLDER).map(|inner| inner.components().collect::<Vec<_>>());
    matches!(
        inner.as_deref(),
        Ok([Component::Normal(_), Component::Normal(_), Component::Normal(file)]) if *file == SOCKET
    )
}

#[cfg(test)]
mod tests;
