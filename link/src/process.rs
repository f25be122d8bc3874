//! A process, known again when another has got its number.

use std::fs;
use std::io;
use std::path::Path;

use sluicegate_base::error::{Error, Result};

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
        Self::of(pid).map_err(|e| Error::path("read", Path::new("/proc/self/stat"), e))
    }

    fn of(pid: u32) -> io::Result<Self> {
        let Stat { started, .. } = Stat::of(pid)?;
        Ok(Self { pid, started })
    }

    /// Whether it runs. A zombie has ended: it holds nothing but its number.
    pub fn lives(self) -> bool {
        Stat::of(self.pid).is_ok_and(|stat| stat.started == self.started && !stat.ended)
    }
}

/// The fields of `/proc/PID/stat` that tell processes apart (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    started: u64,
    ended: bool,
}

impl Stat {
    fn of(pid: u32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Self::parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// The second field is a name in parentheses that can hold anything; the third is the state, the
    /// 20th the number of threads, the 22nd the start.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        let threads: u64 = fields.nth(16)?.parse().ok()?;
        let started = fields.nth(1)?.parse().ok()?;
        // A process whose first thread has ended goes on as long as it has others.
        let ended = matches!(state, "Z" | "X") && threads <= 1;
        Some(Self { started, ended })
    }
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
        let process = Process::of(child.id()).unwrap();
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
            let expected = ended.map(|ended| Stat { started: 4711, ended });
            assert_eq!(Stat::parse(&text), expected, "{sentence}");
        }
    }
}
