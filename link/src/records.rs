//! Records of changes that outlive a process: a folder below `/run/sluice` with one file for each changed
//! object; and [`Process`], which identifies the process that made a change.
//!
//! A process holds a lock while it changes such an object. A record is written in full and then renamed, so
//! readers need no lock. A reboot removes the records together with the changes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sluicegate_base::error::{Error, Result};

/// The location of one kind of record.
#[derive(Clone, Copy, Debug)]
pub struct RecordDir {
    /// The folder of the records.
    pub folder: &'static str,
    /// The lock file.
    pub lock: &'static str,
    /// The operation that needs them: "making or removing a lab".
    pub purpose: &'static str,
    /// The capabilities that the operation needs.
    pub capability: &'static str,
}

/// The records of one kind, with or without the lock.
#[derive(Debug)]
pub struct Records {
    folder: &'static Path,
    _lock: Option<File>,
}

impl Records {
    /// Opens the records with the lock: waits for other processes' changes, and blocks new ones.
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

    /// Opens the records without the lock, only to read.
    pub fn read(place: &RecordDir) -> Self {
        Self { folder: Path::new(place.folder), _lock: None }
    }

    /// Returns the names of all records, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names = names_in(self.folder);
        // A process that was killed in `put` leaves an unfinished record.
        names.retain(|name| !name.starts_with('.'));
        names
    }

    /// Returns a record's text.
    pub fn get(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)?).ok()
    }

    /// Creates or replaces a record. Its content is synced before it gets its name.
    pub fn put(&self, name: &str, text: &str) -> Result<()> {
        let unfinished = self.folder.join(format!(".{name}"));
        let write = || {
            let mut file = File::create(&unfinished)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&unfinished, self.folder.join(name))
        };
        write().map_err(|e| unwritable("write", &unfinished, e))
    }

    /// Removes a record.
    pub fn forget(&self, name: &str) -> Result<()> {
        let path = self.folder.join(name);
        fs::remove_file(&path).map_err(|e| unwritable("delete", &path, e))
    }

    /// Returns a record's path; `None` for a name with a slash, which would lead out of the folder.
    fn path(&self, name: &str) -> Option<PathBuf> {
        (!name.contains('/')).then(|| self.folder.join(name))
    }
}

/// Returns the names of the files in a folder, sorted; empty if it cannot be read.
pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

fn unwritable(operation: &'static str, path: &Path, error: io::Error) -> Error {
    match error.raw_os_error() {
        // A record elsewhere would not be found by other processes.
        Some(libc::EROFS) => Error::path(operation, path, error)
            .remedy("/run/sluice has to be writable: mount a tmpfs there"),
        _ => Error::path(operation, path, error),
    }
}

/// A process that owns an object that may outlive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its start, in ticks since the machine's start, because process numbers are reused.
    pub started: u64,
}

impl Process {
    /// Returns this process.
    ///
    /// # Errors
    /// No /proc.
    pub fn this() -> Result<Self> {
        let pid = std::process::id();
        let stat = stat(pid).map_err(|e| Error::path("read", Path::new("/proc/self/stat"), e));
        Ok(Self { pid, started: stat?.0 })
    }

    /// True if it runs. A zombie has exited and holds only its number.
    pub fn lives(self) -> bool {
        stat(self.pid).is_ok_and(|(started, ended)| started == self.started && !ended)
    }
}

/// Reads the start of a process, and true if it has exited (`/proc/PID/stat`, proc_pid_stat(5)).
fn stat(pid: u32) -> io::Result<(u64, bool)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Parses a line: the second field is a name in parentheses, with any characters; the third is the state, the
/// 20th the number of threads, the 22nd the start.
fn parse_stat(text: &str) -> Option<(u64, bool)> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    // A process continues after its first thread has exited, as long as it has others.
    Some((started, matches!(state, "Z" | "X") && threads <= 1))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn this_process_lives_and_one_that_started_at_another_time_does_not() {
        let process = Process::this().unwrap();
        assert!(process.lives());
        let another = Process { started: process.started + 1, ..process };
        assert!(!another.lives());
    }

    #[test]
    fn a_process_that_nobody_has_waited_for_does_not_live() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process { pid: child.id(), started: stat(child.id()).unwrap().0 };
        assert!(process.lives());
        // The child exits at the end of its input.
        drop(child.stdin.take());
        let zombie = || fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap();
        while !zombie().contains(") Z ") {
            std::thread::yield_now();
        }
        assert!(!process.lives());
        child.wait().unwrap();
        assert!(!process.lives());
    }

    #[test]
    fn a_stat_file_tells_the_start_and_whether_the_process_has_ended() {
        let stat = |name: &str, state: &str, threads: u32| {
            format!(
                "7 ({name}) {state} 1 7 7 0 -1 4194560 9 0 0 0 5 6 0 0 20 0 {threads} 0 4711 0\n"
            )
        };
        for (sentence, text, ended) in [
            ("it sleeps", stat("cat", "S", 1), Some(false)),
            ("its name holds what it likes", stat("a) Z 1 (b", "R", 3), Some(false)),
            ("a zombie", stat("cat", "Z", 1), Some(true)),
            ("dead, and on its way out", stat("cat", "X", 0), Some(true)),
            ("its first thread has ended, others go on", stat("cat", "Z", 2), Some(false)),
            ("half a file", "7 (cat) S 1".into(), None),
        ] {
            assert_eq!(parse_stat(&text), ended.map(|ended| (4711, ended)), "{sentence}");
        }
    }
}
