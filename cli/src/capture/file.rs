//! The file that all recorders of a capture share, and the numbers of its interfaces.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use sluicegate::error::Result;
use sluicegate::file::write::{Chunk, Output, OutputCounts};
use sluicegate::port::Interface;

use super::chunks::ChunkSink;

/// Between two looks at whether a thread still writes, and how many there are at most.
const WRITING_INTERVAL: Duration = Duration::from_millis(1);
const WRITING_LOOKS: u32 = 10;

/// The file of a capture, and how its interfaces are numbered there.
pub struct File {
    output: Mutex<Output>,
    counts: Arc<OutputCounts>,
    /// It failed: there is no point in going on.
    failed: AtomicBool,
}

impl File {
    pub fn new(output: Output) -> Self {
        let counts = Arc::clone(output.counts());
        Self { output: Mutex::new(output), counts, failed: AtomicBool::new(false) }
    }

    pub fn output(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The output, unless a thread writes to it for longer than a moment: a pipe's reader may sleep.
    pub fn idle_output(&self) -> Option<MutexGuard<'_, Output>> {
        for _ in 0..WRITING_LOOKS {
            match self.output.try_lock() {
                Ok(output) => return Some(output),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(WRITING_INTERVAL),
            }
        }
        None
    }

    /// Counts of the packets written and of those that failed.
    pub fn counts(&self) -> &OutputCounts {
        &self.counts
    }

    pub fn into_output(self) -> Output {
        self.output.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChunkSink for File {
    fn write(&self, chunk: &Chunk) {
        if self.output().write(chunk).is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    fn flush(&self) {
        if self.output().flush().is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
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

    /// The numbers of the interfaces met so far, unless a thread is adding one.
    pub fn known(&self) -> Option<Vec<u32>> {
        self.in_file.try_lock().ok().map(|in_file| in_file.clone())
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
