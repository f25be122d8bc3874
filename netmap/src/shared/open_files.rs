//! The files that programs have open at a server.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

/// The longest wait for files that are being closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The open files, by a number of their own.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    files: Mutex<Files>,
    /// A file was closed.
    closed: Condvar,
}

#[derive(Debug, Default)]
struct Files {
    open: BTreeMap<u64, Description>,
    /// The number of the next file.
    next: u64,
    /// Files that were closed.
    closed: u64,
}

/// A file: its connection and process, and the port that it has registered.
#[derive(Clone, Debug)]
struct Description {
    connection: Arc<OwnedFd>,
    process: i32,
    port: Option<String>,
}

impl Description {
    /// Returns true if the connection has ended, but the session has not closed the file yet.
    fn has_ended(&self) -> bool {
        let mut connection = [PollFd::new(self.connection.as_fd(), PollFlags::empty())];
        poll(&mut connection, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

/// An open file, until it is dropped.
#[derive(Debug)]
pub(super) struct OpenFileEntry {
    files: Arc<OpenFiles>,
    number: u64,
}

impl OpenFiles {
    /// Files at one time.
    pub(super) const MAX: usize = 512;

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the file of a process; None if the maximum is reached.
    pub(super) fn add(
        self: &Arc<Self>,
        connection: &Arc<OwnedFd>,
        process: i32,
    ) -> Option<OpenFileEntry> {
        let mut files = self.lock();
        if files.open.len() >= Self::MAX {
            return None;
        }
        let number = files.next;
        files.next += 1;
        let connection = Arc::clone(connection);
        files.open.insert(number, Description { connection, process, port: None });
        Some(OpenFileEntry { files: Arc::clone(self), number })
    }
}

impl OpenFileEntry {
    /// Returns how many files were closed.
    pub(super) fn closed(&self) -> u64 {
        self.files.lock().closed
    }

    /// Waits until the files of clients that have exited are closed. Returns false if there are none, and none was closed
    /// since `closed` were.
    pub(super) fn wait_for_ended(&self, closed: u64) -> bool {
        let files = self.files.lock();
        let any_closed = files.closed != closed;
        let others = files.open.iter().filter(|(number, _)| **number != self.number);
        let ended = others.filter(|(_, file)| file.has_ended());
        let ended: Vec<u64> = ended.map(|(number, _)| *number).collect();
        let is_open =
            |files: &mut Files| ended.iter().any(|number| files.open.contains_key(number));
        // A poisoned lock has no more to tell.
        drop(self.files.closed.wait_timeout_while(files, CLOSE_TIMEOUT, is_open));
        any_closed || !ended.is_empty()
    }

    /// Notes the port that the file has registered.
    pub(super) fn set_port(&self, port: String) {
        if let Some(file) = self.files.lock().open.get_mut(&self.number) {
            file.port = Some(port);
        }
    }

    /// Describes the files that have a port: process, program and port.
    pub(super) fn list(&self) -> Value {
        let files: Vec<_> = self.files.lock().open.values().cloned().collect();
        let with_port = files.iter().filter(|file| file.port.is_some());
        with_port
            .map(|Description { process, port, .. }| {
                // The process may have exited, and a forked child may have the file.
                let program = std::fs::read_to_string(format!("/proc/{process}/comm"));
                let program = program.ok().map(|name| name.trim_end().to_owned());
                json!({"pid": process, "program": program, "port": port})
            })
            .collect()
    }
}

impl Drop for OpenFileEntry {
    fn drop(&mut self) {
        let mut files = self.files.lock();
        files.open.remove(&self.number);
        files.closed += 1;
        drop(files);
        self.files.closed.notify_all();
    }
}
