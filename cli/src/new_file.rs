//! A file for a result, which keeps its content until there is one.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sluicegate::error::{Error, Result};
use sluicegate::file::write::{FileAccess, open_protected};

/// A file that keeps its content until its text is written. If it is new, it is removed unless that happens.
pub struct NewFile {
    path: PathBuf,
    file: File,
    /// A standard stream: the text is added to its content.
    is_stream: bool,
    /// A regular file that had a name when it was opened: a descriptor may lead to one without.
    is_named: bool,
    /// The file is new and empty.
    is_new: bool,
}

impl NewFile {
    /// Returns true for a standard stream.
    pub fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Opens or creates a file for the user and with the mode of `access`, if given.
    ///
    /// # Errors
    /// It cannot be created or written, or another user may have prepared it.
    pub fn create(path: &Path, access: Option<FileAccess>) -> Result<Self> {
        if let Some(stream) = standard_stream(path) {
            let file = stream.map_err(|error| Error::path("open", path, error))?.into();
            return Ok(Self {
                path: path.to_owned(),
                file,
                is_stream: true,
                is_named: false,
                is_new: false,
            });
        }
        let is_new = path.symlink_metadata().is_err();
        let file = open_protected(path, access)?;
        let is_named = is_named(&file);
        Ok(Self { path: path.to_owned(), file, is_stream: false, is_named, is_new })
    }

    /// Returns the path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the content.
    ///
    /// # Errors
    /// The disk is full, or something else removed the file.
    pub fn write(mut self, text: &[u8]) -> Result<()> {
        let is_file = !self.is_stream && self.file.metadata().is_ok_and(|it| it.is_file());
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(text));
        written.map_err(|error| Error::open_file("write", &self.path, error))?;
        self.is_new = false;
        if self.is_named && !is_named(&self.file) {
            let error = io::Error::other("it was removed after the start");
            return Err(Error::open_file("write", &self.path, error));
        }
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Another file may have taken the name.
        let found = (self.file.metadata().ok()).zip(self.path.symlink_metadata().ok());
        if self.is_new && found.is_some_and(|(file, named)| is_same(&file, &named)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn is_named(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.nlink() > 0)
}

/// Returns a copy of standard output or standard error if the path is its name. If the path were opened, a file would
/// lose its mode and what the command has printed.
fn standard_stream(path: &Path) -> Option<io::Result<OwnedFd>> {
    let is = |names: [&str; 3]| names.iter().any(|name| path == Path::new(name));
    if is(["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"]) {
        Some(io::stdout().as_fd().try_clone_to_owned())
    } else if is(["/dev/stderr", "/dev/fd/2", "/proc/self/fd/2"]) {
        Some(io::stderr().as_fd().try_clone_to_owned())
    } else {
        None
    }
}
