//! Events in the lives of the files of an output, for a receiver in another thread.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::output_file::{OutputFile, lock};

/// An event in the life of a file.
#[derive(Debug)]
pub enum FileEvent {
    /// The file with this path is complete.
    Complete(PathBuf),
    /// The rotation keeps only newer files. The receiver deletes this one, after its `Complete`.
    Expired(ExpiredFile),
}

/// A complete file that a rotation no longer keeps.
#[derive(Debug)]
pub struct ExpiredFile(pub(super) Arc<Mutex<OutputFile>>);

impl ExpiredFile {
    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        lock(&self.0).path().to_owned()
    }

    /// Returns the number of packets written to the file.
    pub fn packets(&self) -> u64 {
        lock(&self.0).packets()
    }

    /// Deletes the file. Returns false if it does not exist, is another file now, or cannot be deleted.
    pub fn delete(self) -> bool {
        let file = lock(&self.0);
        file.path().symlink_metadata().is_ok() && file.delete()
    }
}
