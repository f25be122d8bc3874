//! The files that programs have open at a server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

/// The open files, by a number of their own.
#[derive(Debug, Default)]
pub(super) struct OpenFiles(Mutex<BTreeMap<u64, Description>>);

/// A file: its process, and the port that it has registered.
#[derive(Clone, Debug)]
struct Description {
    process: i32,
    port: Option<String>,
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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Description>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the file of a process; None if the maximum is reached.
    pub(super) fn add(self: &Arc<Self>, process: i32) -> Option<OpenFileEntry> {
        let mut files = self.lock();
        if files.len() >= Self::MAX {
            return None;
        }
        let number = files.last_key_value().map_or(0, |(last, _)| last + 1);
        files.insert(number, Description { process, port: None });
        Some(OpenFileEntry { files: Arc::clone(self), number })
    }
}

impl OpenFileEntry {
    /// Notes the port that the file has registered.
    pub(super) fn set_port(&self, port: String) {
        if let Some(file) = self.files.lock().get_mut(&self.number) {
            file.port = Some(port);
        }
    }

    /// Describes the files that have a port: process, program and port.
    pub(super) fn list(&self) -> Value {
        let files: Vec<_> = self.files.lock().values().cloned().collect();
        let with_port = files.iter().filter(|file| file.port.is_some());
        with_port
            .map(|Description { process, port }| {
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
        self.files.lock().remove(&self.number);
    }
}
