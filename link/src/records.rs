//! Records of changes that outlive a process: a folder below `/run/sluice`, one file for each thing
//! that was changed; and [`Process`], which names the process that made a change.
//!
//! A process that changes such a thing holds a lock meanwhile. A record is written in full and then
//! renamed, so readers need no lock. A reboot removes the records together with the changes.

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
    /// The operation that needs them: "making or removing a lab".
    pub purpose: &'static str,
    /// The capabilities that the operation needs.
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

    /// Opens the records without the lock, to read only.
    pub fn read(place: &RecordDir) -> Self {
        Self { folder: Path::new(place.folder), _lock: None }
    }

    /// The names of the records there are, sorted.
    pub fn names(&self) -> Vec<String> {
        names_in(self.folder)
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

/// The names of the files in a folder, sorted; none if it cannot be read.
pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

fn unwritable(operation: &'static str, path: &Path, error: io::Error) -> Error {
    match error.raw_os_error() {
        // No other process would find a record elsewhere.
        Some(libc::EROFS) => Error::path(operation, path, error)
            .remedy("/run/sluice has to be writable: mount a tmpfs there"),
        _ => Error::path(operation, path, error),
    }
}

/// A process to whom something belongs that would outlive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in ticks since the machine did: numbers of processes come again.
    pub started: u64,
}

impl Process {
    /// This process.
    ///
    /// # Errors
    /// No /proc.
    pub fn this() -> Result<Self> {
        let pid = std::process::id();
        let stat = stat(pid).map_err(|e| Error::path("read", Path::new("/proc/self/stat"), e));
        Ok(Self { pid, started: stat?.0 })
    }

    /// True if it runs. A zombie has exited: it holds nothing but its number.
    pub fn lives(self) -> bool {
        stat(self.pid).is_ok_and(|(started, ended)| started == self.started && !ended)
    }
}

/// When a process started, and whether it has ended (`/proc/PID/stat`, proc_pid_stat(5)).
fn stat(pid: u32) -> io::Result<(u64, bool)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The second field is a name in parentheses that can hold anything; the third is the state, the
/// 20th the number of threads, the 22nd the start.
fn parse_stat(text: &str) -> Option<(u64, bool)> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    // A process whose first thread has ended goes on as long as it has others.
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
        // It ends with its input.
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
