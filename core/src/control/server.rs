//! The server of a control socket.

use std::fs::{DirBuilder, Permissions, set_permissions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::geteuid;

use super::{IDLE_TIMEOUT, MAX_CLIENTS, MAX_LINE_BYTES, send};
use crate::error::{Error, Result};
use crate::socket_file::{SocketFile, is_folder_of_one};

/// Maximum of further attempts to listen in a folder that other commands remove.
const MAX_ATTEMPTS: u32 = 10;
/// Maximum time to wait until the kernel has closed the socket of a killed command, which takes up to a quarter of a
/// second.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Rare, because each attempt connects to a command that runs.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A handler of requests.
pub trait Service {
    /// Answers a client's request: a line without its end.
    fn answer(&mut self, client: u64, request: &str) -> Answer;

    /// Reports that a client with [`Answer::keep`] has disconnected.
    fn left(&mut self, client: u64);
}

/// An answer to a request.
#[derive(Debug, Default)]
pub struct Answer {
    /// A line, without its end.
    pub line: String,
    /// Files to send with it, at most 253.
    pub files: Vec<OwnedFd>,
    /// Keeps a silent client connected until it disconnects.
    pub keep: bool,
}

/// A socket that accepts requests.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    file: SocketFile,
    clients: Vec<ClientConnection>,
    next: u64,
}

#[derive(Debug)]
struct ClientConnection {
    number: u64,
    stream: UnixStream,
    /// The received part of a request.
    input: Vec<u8>,
    /// The unsent part of an answer, and its files.
    output: Vec<u8>,
    files: Vec<OwnedFd>,
    kept: bool,
    /// No more requests are read; the remaining answers are sent.
    closing: bool,
    active: Instant,
}

impl Server {
    /// Listens at a path. Makes missing folders. The folder of a named command's socket is removed with the socket,
    /// except by a command with `--user`, because the parent is root's.
    ///
    /// # Errors
    /// Another command listens there, also a second later, or a permission is missing.
    pub fn bind(path: &Path) -> Result<Self> {
        let (mut attempts, end) = (0, Instant::now() + EXIT_TIMEOUT);
        let (listener, file) = loop {
            let listening = make_folder(path).and_then(|()| listen_at(path));
            match listening.as_ref().err().map(io::Error::kind) {
                // A command that ended has just removed the folder.
                Some(ErrorKind::NotFound) if attempts < MAX_ATTEMPTS => attempts += 1,
                Some(ErrorKind::AddrInUse) if Instant::now() < end => sleep(RETRY_INTERVAL),
                _ => break listening.map_err(|error| refused(path, error))?,
            }
        };
        Ok(Self { listener, file, clients: Vec::new(), next: 0 })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Reads requests, answers complete ones, and sends answers. Never waits.
    pub fn serve(&mut self, service: &mut impl Service) {
        self.accept();
        let now = Instant::now();
        for client in &mut self.clients {
            client.read(now);
            client.answer(service);
            client.write(now);
        }
        self.clients.retain(|client| {
            let is_alive = client.is_alive(now);
            if !is_alive && client.kept {
                service.left(client.number);
            }
            is_alive
        });
    }

    fn accept(&mut self) {
        // An error ends the loop: no client is waiting, or a later call reports the error again.
        while let Ok((stream, _)) = self.listener.accept() {
            if self.clients.len() >= MAX_CLIENTS || stream.set_nonblocking(true).is_err() {
                continue;
            }
            self.next += 1;
            self.clients.push(ClientConnection {
                number: self.next,
                stream,
                input: Vec::new(),
                output: Vec::new(),
                files: Vec::new(),
                kept: false,
                closing: false,
                active: Instant::now(),
            });
        }
    }
}

/// Makes the folder of a socket, for this process's user.
fn make_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    if is_folder_of_one(path) && folder.metadata()?.uid() != geteuid().as_raw() {
        // A command of another user has left the folder.
        chown(folder, Some(geteuid().as_raw()), None)?;
        set_permissions(folder, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Makes a socket whose file only its owner can use from the start.
fn listen_at(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // The file gets the socket's mode (net/unix/af_unix.c, unix_bind_bsd).
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    let file = SocketFile::listen(&socket, path, MAX_CLIENTS as i32)?;
    Ok((socket.into(), file))
}

fn refused(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::AddrInUse => Error::Usage(format!(
            "{} belongs to another running command, or is not a socket: take another --name or --control",
            path.display()
        )),
        ErrorKind::PermissionDenied => Error::Privilege {
            operation: format!("a control socket at {}", path.display()),
            capability: "the right to write there",
            remedy: "run it with sudo, or name a socket elsewhere with --control PATH".into(),
        },
        _ => Error::path("listen at", path, error).remedy("name another with --control PATH"),
    }
}

impl ClientConnection {
    /// Reads the available bytes, up to one request that is too long.
    fn read(&mut self, now: Instant) {
        let mut piece = [0; 4096];
        while !self.closing && self.input.len() <= MAX_LINE_BYTES {
            match self.stream.read(&mut piece) {
                Ok(0) => self.closing = true,
                Ok(bytes) => {
                    self.input.extend_from_slice(&piece[..bytes]);
                    self.active = now;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.closing = true,
            }
        }
    }

    /// Answers one request, if the previous answer was sent.
    fn answer(&mut self, service: &mut impl Service) {
        if !self.output.is_empty() {
            return;
        }
        let end = self.input.iter().position(|&byte| byte == b'\n');
        if end.unwrap_or(self.input.len()) > MAX_LINE_BYTES {
            self.closing = true;
            self.input.clear();
            let error = format!("a request has at most {MAX_LINE_BYTES} bytes");
            self.output = format!("{{\"error\":\"{error}\",\"kind\":\"usage\"}}\n").into_bytes();
            return;
        }
        let Some(end) = end else { return };
        let line: Vec<u8> = self.input.drain(..=end).collect();
        let Answer { line, files, keep } =
            service.answer(self.number, String::from_utf8_lossy(&line[..end]).trim());
        self.output = line.into_bytes();
        self.output.push(b'\n');
        self.files = files;
        self.kept |= keep;
    }

    /// Sends as much as the socket accepts.
    fn write(&mut self, now: Instant) {
        while !self.output.is_empty() {
            match send(&self.stream, &self.output, &self.files) {
                Ok(sent) => {
                    self.output.drain(..sent);
                    self.files.clear();
                    self.active = now;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.output.clear();
                    self.input.clear();
                    self.closing = true;
                }
            }
        }
    }

    /// Returns true if the client stays connected. One that closes its sending side still gets its answers.
    fn is_alive(&self, now: Instant) -> bool {
        let silent = now.saturating_duration_since(self.active) > IDLE_TIMEOUT;
        let waits = self.kept && self.output.is_empty();
        let is_owed = !self.output.is_empty() || self.input.contains(&b'\n');
        if self.closing { is_owed && !silent } else { waits || !silent }
    }
}
