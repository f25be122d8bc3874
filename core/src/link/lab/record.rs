//! The labs that are up, recorded one a file under `/run/sluice/labs`.
//!
//! Whoever makes or removes a lab holds a lock meanwhile; a record is written in full and then
//! renamed, so that readers need no lock.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::LabConfig;
use crate::error::{Error, Result};

const FOLDER: &str = "/run/sluice/labs";
const LOCK: &str = "/run/sluice/lab.lock";

/// The process a scratch lab belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub pid: u32,
    /// When it started, in ticks since the machine did: numbers of processes come again.
    pub started: u64,
}

impl Owner {
    pub fn this_process() -> Result<Self> {
        let pid = std::process::id();
        started(pid)
            .map(|started| Self { pid, started })
            .map_err(|e| Error::path("read", Path::new("/proc/self/stat"), e))
    }

    pub fn lives(self) -> bool {
        started(self.pid).is_ok_and(|started| started == self.started)
    }
}

/// The 22nd field of `/proc/PID/stat`; the second is a name in parentheses that can hold anything.
fn started(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19)?.parse().ok())
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// What is recorded of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub config: LabConfig,
    pub owner: Option<Owner>,
}

impl Record {
    fn to_text(&self) -> String {
        let mut text = format!("shape {}\nqueues {}\n", self.config.shape, self.config.queues);
        if let Some(owner) = self.owner {
            text += &format!("owner {} {}\n", owner.pid, owner.started);
        }
        text
    }

    fn parse(name: &str, text: &str) -> Option<Self> {
        let mut config = LabConfig { name: name.into(), ..LabConfig::default() };
        let mut owner = None;
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["shape", shape] => config.shape = shape.parse().ok()?,
                ["queues", queues] => config.queues = queues.parse().ok()?,
                ["owner", pid, started] => {
                    let (pid, started) = (pid.parse().ok()?, started.parse().ok()?);
                    owner = Some(Owner { pid, started });
                }
                _ => return None,
            }
        }
        config.check().ok()?;
        Some(Self { config, owner })
    }
}

/// The records, and the lock where there is one.
pub(super) struct Registry {
    _lock: Option<File>,
}

impl Registry {
    /// Waits for others to be done with making or removing labs, and keeps them from it.
    pub fn lock() -> Result<Self> {
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::PermissionDenied => Error::Privilege {
                operation: "making or removing a lab".into(),
                capability: "CAP_SYS_ADMIN and CAP_NET_ADMIN",
                remedy: "run it with sudo".into(),
            },
            _ => Error::path("prepare", Path::new(FOLDER), e),
        };
        let folder = DirBuilder::new().recursive(true).mode(0o755).create(FOLDER);
        folder.map_err(failed)?;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(LOCK)
            .map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(Self { _lock: Some(file) })
    }

    /// For looking only.
    pub fn read() -> Self {
        Self { _lock: None }
    }

    /// The labs, by name. What is no record is passed over.
    pub fn list(&self) -> Vec<Record> {
        let Ok(entries) = fs::read_dir(FOLDER) else {
            return Vec::new();
        };
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names.iter().filter_map(|name| self.get(name)).collect()
    }

    pub fn get(&self, name: &str) -> Option<Record> {
        let text = fs::read_to_string(path(name)?).ok()?;
        Record::parse(name, &text)
    }

    pub fn put(&self, record: &Record) -> Result<()> {
        let name = &record.config.name;
        let unfinished = Path::new(FOLDER).join(format!(".{name}"));
        fs::write(&unfinished, record.to_text())
            .and_then(|()| fs::rename(&unfinished, Path::new(FOLDER).join(name)))
            .map_err(|e| Error::path("write", &unfinished, e))
    }

    pub fn forget(&self, name: &str) -> Result<()> {
        let path = Path::new(FOLDER).join(name);
        fs::remove_file(&path).map_err(|e| Error::path("delete", &path, e))
    }
}

/// A lab's record. A name with a slash would lead out of the folder.
fn path(name: &str) -> Option<PathBuf> {
    (!name.contains('/')).then(|| Path::new(FOLDER).join(name))
}

#[cfg(test)]
mod tests {
    use super::super::Shape;
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for (shape, queues, owner) in
            [(Shape::Pair, 1, None), (Shape::Line, 8, Some(Owner { pid: 7, started: 1 << 40 }))]
        {
            let name = "lab".to_owned();
            let config = LabConfig { name, shape, queues };
            let record = Record { config, owner };
            assert_eq!(Record::parse("lab", &record.to_text()), Some(record));
        }
    }

    #[test]
    fn what_is_no_record_is_none() {
        for (sentence, name, text) in [
            ("an unknown shape", "lab", "shape ring\n"),
            ("an unknown line", "lab", "shape pair\ncolour red\n"),
            ("no number of queues", "lab", "queues many\n"),
            ("too many queues", "lab", "queues 1000000\n"),
            ("half an owner", "lab", "owner 7\n"),
            ("a name that is none", "../lab", "shape pair\n"),
        ] {
            assert_eq!(Record::parse(name, text), None, "{sentence}");
        }
    }

    #[test]
    fn this_process_lives_and_one_that_started_at_another_time_does_not() {
        let owner = Owner::this_process().unwrap();
        assert!(owner.lives());
        let another = Owner { started: owner.started + 1, ..owner };
        assert!(!another.lives());
    }
}
