//! Leftovers: the files, as `FILE.gz`, that a program of `--post-rotate` made of a file. They are deleted with
//! it.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sluicegate::file::write::ExpiredFile;

/// The leftovers of each file that a rotation keeps.
#[derive(Default)]
pub struct Leftovers(HashMap<PathBuf, Vec<Leftover>>);

/// A file at a path.
#[derive(PartialEq)]
pub struct Leftover {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Leftovers {
    /// Returns the regular files whose names begin with the file's and a dot.
    pub fn beside(file: &Path) -> Vec<Leftover> {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let Some(name) = file.file_name() else { return Vec::new() };
        let Ok(entries) = fs::read_dir(folder.unwrap_or(Path::new("."))) else { return Vec::new() };
        let of_file = |entry: &fs::DirEntry| {
            let rest = entry.file_name();
            let rest = rest.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
            rest.is_some_and(|rest| rest.starts_with(b"."))
        };
        let entries = entries.flatten().filter(of_file);
        entries.filter_map(|entry| Leftover::at(entry.path())).collect()
    }

    /// Adds the files beside `file` that `before` does not list. The listed ones may belong to somebody else.
    pub fn add(&mut self, file: PathBuf, before: &[Leftover]) {
        let mut left = Self::beside(&file);
        left.retain(|it| !before.contains(it));
        if !left.is_empty() {
            self.0.insert(file, left);
        }
    }

    /// Deletes a file and its leftovers. Returns false if there was nothing.
    pub fn delete(&mut self, file: ExpiredFile) -> bool {
        let left = self.0.remove(&file.path()).unwrap_or_default();
        let deleted = left.iter().filter(|it| it.delete()).count();
        file.delete() || deleted > 0
    }
}

impl Leftover {
    fn at(path: PathBuf) -> Option<Self> {
        let found = path.symlink_metadata().ok().filter(Metadata::is_file)?;
        Some(Self { path, identity: (found.dev(), found.ino()) })
    }

    /// Deletes the file, unless another one has its place.
    fn delete(&self) -> bool {
        Self::at(self.path.clone()).as_ref() == Some(self) && fs::remove_file(&self.path).is_ok()
    }
}
