//! The file that all recorders of a capture share, and the numbers of its interfaces.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluicegate::error::Result;
use sluicegate::file::write::{Chunk, Output};
use sluicegate::port::Interface;

/// The file of a capture, and how its interfaces are numbered there.
pub struct File {
    output: Mutex<Output>,
    /// It failed: there is no point in going on.
    failed: AtomicBool,
}

impl File {
    pub fn new(output: Output) -> Self {
        Self { output: Mutex::new(output), failed: AtomicBool::new(false) }
    }

    pub fn output(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a chunk; what cannot be written counts as lost.
    pub fn write(&self, chunk: &Chunk) {
        if self.output().write(chunk).is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    /// Writes what is held back.
    pub fn flush(&self) {
        if self.output().flush().is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub fn into_output(self) -> Output {
        self.output.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The numbers that one port's interfaces have in the file; shared by its queues.
pub struct Numbers {
    in_file: Mutex<Vec<u32>>,
    filter: Option<String>,
    /// Devices appear while the port is open: its counts are no single one's.
    pub several: bool,
}

impl Numbers {
    pub fn new(filter: Option<String>, several: bool) -> Self {
        Self { in_file: Mutex::new(Vec::new()), filter, several }
    }

    /// The numbers of all these interfaces; those not met before are added to the file.
    pub fn of(&self, interfaces: &[Interface], file: &File) -> Result<Vec<u32>> {
        let mut in_file = self.in_file.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(interface) = interfaces.get(in_file.len()) {
            let number = file.output().add_interface(interface, self.filter.as_deref())?;
            in_file.push(number);
        }
        Ok(in_file.clone())
    }
}
