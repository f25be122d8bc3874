//! The client of a control socket.

use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use super::{MAX_CLIENTS, MAX_LINE_BYTES, receive};
use crate::error::{Error, Result};

/// Time to wait for an answer by default.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
const HANGS: &str = "it hangs, or has reached its limit of open files: end it, and start it again, with a \
                     higher `ulimit -n`";
/// The maximum length of an answer.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A connection to a running command.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
}

impl Client {
    /// Connects to the socket of a command. Its answers may take 20 s.
    ///
    /// # Errors
    /// No command listens there, the user may not connect, or the command is too busy to accept.
    pub fn connect(path: &Path) -> Result<Self> {
        Self::connect_timeout(path, ANSWER_TIMEOUT)
    }

    /// Connects as [`connect`](Self::connect) does, with a timeout for the connection and for each answer.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); also if the timeout is zero.
    pub fn connect_timeout(path: &Path, timeout: Duration) -> Result<Self> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Error::Usage(format!(
                "no running command at {}; start it, or select another by --name or --control",
                path.display()
            )),
            ErrorKind::PermissionDenied => Error::Privilege {
                operation: format!("connecting to {}", path.display()),
                capability: "its owner's rights",
                remedy: "run it with sudo".into(),
            },
            ErrorKind::WouldBlock => {
                Error::path("connect to", path, ErrorKind::TimedOut.into()).remedy(HANGS)
            }
            _ => Error::path("connect to", path, error),
        };
        let stream = connected(path, timeout).map_err(failed)?;
        Ok(Self { stream, path: path.to_owned() })
    }

    /// Sends a request and waits for the answer: a line, and the files sent with it.
    ///
    /// # Errors
    /// The request is too long, or the command does not answer, or exits.
    pub fn ask(&mut self, request: &str) -> Result<(String, Vec<OwnedFd>)> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock => {
                Error::path("ask", &self.path, ErrorKind::TimedOut.into()).remedy(HANGS)
            }
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                Error::path("ask", &self.path, error).remedy(closed_remedy())
            }
            _ => Error::path("ask", &self.path, error),
        };
        if request.len() > MAX_LINE_BYTES {
            return Err(Error::Usage(format!("a request has at most {MAX_LINE_BYTES} bytes")));
        }
        let line = format!("{}\n", request.replace('\n', " "));
        (&self.stream).write_all(line.as_bytes()).map_err(failed)?;
        let (mut answer, mut files) = (Vec::new(), Vec::new());
        let mut piece = vec![0; 64 << 10];
        while answer.last() != Some(&b'\n') {
            match receive(&self.stream, &mut piece, &mut files) {
                Ok(0) => return Err(failed(ErrorKind::UnexpectedEof.into())),
                Ok(bytes) if answer.len() + bytes <= MAX_ANSWER_BYTES => {
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

/// Connects, with a timeout also for what follows: if too many clients wait to be accepted, the send timeout
/// applies (net/unix/af_unix.c, `unix_stream_connect`).
fn connected(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let stream = UnixStream::from(socket);
    stream.set_write_timeout(Some(timeout))?;
    stream.set_read_timeout(Some(timeout))?;
    connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(stream)
}

/// Becomes readable when the peer closes, as long as no request is pending.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Returns the remedy of a closed connection. A server closes one beyond its maximum, whether or not it has read
/// the request.
fn closed_remedy() -> String {
    format!(
        "it has ended, or has its maximum of {MAX_CLIENTS} connections: end some, such as those of monitor: \
         ports, and ask again"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn nobody_waits_for_ever_to_be_let_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _busy = UnixListener::bind(&path).unwrap();
        let moment = Duration::from_millis(20);
        let mut waiting = Vec::new();
        let error = loop {
            match connected(&path, moment) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(!waiting.is_empty());
    }

    #[test]
    fn a_client_waits_for_an_answer_as_long_as_it_wants() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        // It accepts connections, as a suspended command does, and never answers.
        let _suspended = UnixListener::bind(&path).unwrap();
        let mut client = Client::connect_timeout(&path, Duration::from_millis(20)).unwrap();
        let timeouts = [client.stream.read_timeout(), client.stream.write_timeout()];
        assert!(timeouts.iter().all(|it| it.as_ref().unwrap().unwrap() < ANSWER_TIMEOUT));
        let error = client.ask("hello").unwrap_err().to_string();
        assert!(error.contains("timed out") && error.contains(HANGS), "{error}");
        assert!(Client::connect_timeout(&path, Duration::ZERO).is_err(), "it would wait for ever");
    }
}
