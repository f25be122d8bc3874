//! What outlives a process, recorded for the next one: a folder below `/run/sluice`, one file
//! for each thing.
//!
//! Whoever changes such a thing holds a lock meanwhile; a record is written in full and then
//! renamed, so that readers need no lock. All of it goes when the machine is switched off, with
//! what it tells of.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sluicegate_base::error::{Error, Result};

/// The records of one kind of thing.
#[derive(Clone, Copy, Debug)]
pub struct RecordDir {
    /// The folder they are in.
    pub folder: &'static str,
    /// The file that is locked meanwhile.
    pub lock: &'static str,
    /// What they are needed for: "making or removing a lab".
    pub purpose: &'static str,
    /// The capabilities which that takes.
    pub capability: &'static str,
}

/// The records of one kind, and the lock where there is one.
#[derive(Debug)]
pub struct Records {
    folder: &'static Path,
    _lock: Option<File>,
}

impl Records {
    /// Waits for others to be done with their changes, and keeps them from new ones.
    pub fn lock(place: &RecordDir) -> Result<Self> {
        let folder = Path::new(place.folder);
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::PermissionDenied => Error::Privilege {
                operation: place.purpose.into(),
                capability: place.capability,
                remedy: "run it with sudo".into(),
            },
            _ => unwritable("prepare", folder, e),
        };
        DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(failed)?;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(place.lock)
            .map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(Self { folder, _lock: Some(file) })
    }

    /// For looking only.
    pub fn read(place: &RecordDir) -> Self {
        Self { folder: Path::new(place.folder), _lock: None }
    }

    /// The names of the records there are, sorted.
    pub fn names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.folder) else {
            return Vec::new();
        };
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }

    /// A record's text.
    pub fn get(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)?).ok()
    }

    /// Makes a record, or another in its place.
    pub fn put(&self, name: &str, text: &str) -> Result<()> {
        let unfinished = self.folder.join(format!(".{name}"));
        fs::write(&unfinished, text)
            .and_then(|()| fs::rename(&unfinished, self.folder.join(name)))
            .map_err(|e| unwritable("write", &unfinished, e))
    }

    /// Removes a record.
    pub fn forget(&self, name: &str) -> Result<()> {
        let path = self.folder.join(name);
        fs::remove_file(&path).map_err(|e| unwritable("delete", &path, e))
    }

    /// A name with a slash would lead out of the folder.
    fn path(&self, name: &str) -> Option<PathBuf> {
        (!name.contains('/')).then(|| self.folder.join(name))
    }
}

fn unwritable(operation: &'static str, path: &Path, error: io::Error) -> Error {
    match error.raw_os_error() {
        // Elsewhere nobody would find it.
        Some(libc::EROFS) => Error::path(operation, path, error)
            .remedy("/run/sluice has to be writable: mount a tmpfs there"),
        _ => Error::path(operation, path, error),
    }
}
