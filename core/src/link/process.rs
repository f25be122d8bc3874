//! A process, known again when another has got its number.

use std::fs;
use std::io;
use std::path::Path;

use crate::error::{Error, Result};

/// A process to whom something belongs that would outlive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub pid: u32,
    /// When it started, in ticks since the machine did: numbers of processes come again.
    pub started: u64,
}

impl Process {
    /// This one.
    pub fn this() -> Result<Self> {
        let pid = std::process::id();
        started(pid)
            .map(|started| Self { pid, started })
            .map_err(|e| Error::path("read", Path::new("/proc/self/stat"), e))
    }

    /// Whether it has not ended.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_one_that_started_at_another_time_does_not() {
        let process = Process::this().unwrap();
        assert!(process.lives());
        let another = Process { started: process.started + 1, ..process };
        assert!(!another.lives());
    }
}
