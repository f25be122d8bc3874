//! The side that asks.

use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::files;
use crate::error::{Error, Result};

/// A command that lives answers within this time.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest answer.
const MOST_ANSWER_BYTES: usize = 64 << 20;

/// A connection to a command that runs.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
}

impl Client {
    /// Connects to the socket of a command.
    ///
    /// # Errors
    /// Nobody listens there, or not for everybody.
    pub fn connect(path: &Path) -> Result<Self> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Error::Usage(format!(
                "nothing runs at {}: start it first, or say by --name or --control which is meant",
                path.display()
            )),
            ErrorKind::PermissionDenied => Error::Privilege {
                operation: format!("connecting to {}", path.display()),
                capability: "its owner's rights",
                remedy: "run it with sudo".into(),
            },
            _ => Error::path("connect to", path, error),
        };
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        Ok(Self { stream, path: path.to_owned() })
    }

    /// Asks, and waits for the answer: a line, and the files that came along.
    ///
    /// # Errors
    /// It does not answer, or goes.
    pub fn ask(&mut self, request: &str) -> Result<(String, Vec<OwnedFd>)> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock => {
                Error::path("ask", &self.path, ErrorKind::TimedOut.into()).remedy("it hangs")
            }
            _ => Error::path("ask", &self.path, error),
        };
        let line = format!("{}\n", request.replace('\n', " "));
        (&self.stream).write_all(line.as_bytes()).map_err(failed)?;
        let (mut answer, mut files) = (Vec::new(), Vec::new());
        let mut piece = vec![0; 64 << 10];
        while answer.last() != Some(&b'\n') {
            match files::receive(&self.stream, &mut piece, &mut files) {
                Ok(0) => return Err(failed(ErrorKind::UnexpectedEof.into())),
                Ok(bytes) if answer.len() + bytes <= MOST_ANSWER_BYTES => {
                    answer.extend_from_slice(&piece[..bytes]);
                }
                Ok(_) => return Err(failed(ErrorKind::InvalidData.into())),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        answer.pop();
        let answer = String::from_utf8(answer);
        Ok((answer.map_err(|_| failed(ErrorKind::InvalidData.into()))?, files))
    }
}

/// Readable when the other side has gone, as long as nothing is asked.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
