//! A program that runs.

use std::fs::{self, DirEntry, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use sluicegate::error::{Error, Kind, Result};
use tempfile::TempDir;

use super::spawn::Started;
use super::{GRACE, LOOK, PATIENCE, SLUICE};
use crate::failure::Failure;
use crate::process_output::ProcessOutput;
use crate::rounds::BenchObserver;

/// When a program is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// As soon as it has written this, to either of its outputs.
    Says(&'static str),
    /// As soon as this file exists.
    Has(PathBuf),
    /// As soon as it has a thread whose name begins so.
    Runs(&'static str),
    /// After this time.
    After(Duration),
}

/// A program that runs. It is killed where it is forgotten.
#[derive(Debug)]
pub struct Running {
    pub(super) name: String,
    pub(super) started: Started,
    pub(super) out: File,
    pub(super) err: File,
    /// Its working directory, removed on drop.
    pub(super) _folder: TempDir,
}

impl Running {
    /// Waits until it is ready.
    ///
    /// # Errors
    /// The process ends first or takes too long, or the observer stops the bench.
    pub fn until(&mut self, ready: &Ready, watch: &dyn BenchObserver) -> Result<(), Failure> {
        let limit = match ready {
            Ready::Says(_) | Ready::Has(_) | Ready::Runs(_) => PATIENCE,
            Ready::After(time) => *time,
        };
        let deadline = Instant::now() + limit;
        loop {
            let said = self.said();
            self.still_runs()?;
            match ready {
                Ready::Says(word) if said.out.contains(word) || said.err.contains(word) => {
                    return Ok(());
                }
                Ready::Has(file) if file.exists() => return Ok(()),
                Ready::Runs(named) if self.runs(named) => return Ok(()),
                Ready::Says(_) | Ready::Has(_) | Ready::Runs(_) if Instant::now() > deadline => {
                    return Err(Failure::of(format!("{} does not get ready", self.name)));
                }
                Ready::After(_) if Instant::now() > deadline => return Ok(()),
                _ => watch.pause(LOOK)?,
            }
        }
    }

    /// Returns true if one of its threads has a name that starts with `named`.
    fn runs(&self, named: &str) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid()));
        let name = |task: DirEntry| fs::read_to_string(task.path().join("comm"));
        let names = tasks.into_iter().flatten().flatten().map(name);
        names.flatten().any(|name| name.starts_with(named))
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.started.child.id()
    }

    /// Time that its threads, and those of its children, have been on a CPU, in ns. A thread that has
    /// ended is not in it.
    pub fn cpu_ns(&self) -> u64 {
        cpu_ns(self.pid())
    }

    /// Waits until it has ended by itself, after this time or a little later.
    ///
    /// # Errors
    /// The process takes much longer or fails, or the observer stops the bench.
    pub fn over(&mut self, time: Duration, watch: &dyn BenchObserver) -> Result<(), Failure> {
        let deadline = Instant::now() + time + PATIENCE;
        loop {
            match self.status()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.ended_early(status)),
                None if Instant::now() > deadline => {
                    return Err(Failure::of(format!("{} does not end", self.name)));
                }
                None => watch.pause(LOOK)?,
            }
        }
    }

    /// An error where it has ended already.
    ///
    /// # Errors
    /// It has ended.
    pub fn still_runs(&mut self) -> Result<(), Failure> {
        match self.status()? {
            None => Ok(()),
            Some(status) => Err(self.ended_early(status)),
        }
    }

    /// Sluice's exit status classifies the failure.
    fn ended_early(&self, status: ExitStatus) -> Failure {
        let kind = match (self.name.as_str(), status.code()) {
            (SLUICE, Some(2)) => Kind::Usage,
            (SLUICE, Some(3)) => Kind::Privilege,
            _ => Kind::Runtime,
        };
        let complaint = self.complaint();
        // Sluice's errors start with its name; the reason has it already.
        let complaint = complaint.trim_start_matches("sluice: ");
        Failure::Step { kind, reason: format!("{} ended: {complaint}", self.name) }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It takes longer than `limit`.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.status()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(Error::system("wait for the end of", &self.name, late));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Ends it by SIGINT, if it has not ended by itself; what it said. Some do not end so: they are
    /// killed after a while, and what they had still to say is missing.
    ///
    /// # Errors
    /// The kernel does not tell of its end.
    pub fn end(mut self) -> Result<ProcessOutput> {
        if self.status()?.is_none() {
            self.signal(Signal::SIGINT);
            if self.wait(GRACE).is_err() {
                self.signal(Signal::SIGKILL);
                self.wait(PATIENCE)?;
            }
        }
        Ok(self.said())
    }

    /// Has it stand still, until it may [go on](Self::go_on).
    pub fn hold(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Sends a signal to it and its children, as a terminal does.
    fn signal(&self, signal: Signal) {
        // Where they have ended meanwhile there is nothing to be told; one that is in another group
        // than it was put into is told by itself.
        if killpg(self.process(), signal).is_err() {
            let _ = kill(self.process(), signal);
        }
    }

    fn process(&self) -> Pid {
        Pid::from_raw(self.pid().cast_signed())
    }

    /// Returns its output so far.
    pub fn said(&self) -> ProcessOutput {
        ProcessOutput { out: text(&self.out), err: text(&self.err) }
    }

    /// Returns its exit status if it has ended, and then kills what it left in its process group.
    fn status(&mut self) -> Result<Option<ExitStatus>> {
        // A look that leaves it its number, so that the group is still its own.
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let seen = waitid(Id::Pid(self.process()), look);
        if matches!(seen, Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..))) {
            self.signal(Signal::SIGKILL);
        }
        let status = self.started.child.try_wait();
        status.map_err(|error| Error::system("wait for", &self.name, error))
    }

    /// Returns its error message, in one line.
    pub fn complaint(&self) -> String {
        let ProcessOutput { out, err } = self.said();
        complaint(&err).or_else(|| complaint(&out)).unwrap_or("it did not say why").to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.status(), Ok(None)) {
            self.signal(Signal::SIGKILL);
            // One that the kernel does not let go of is not waited for any longer.
            let _ = self.wait(PATIENCE);
        }
    }
}

/// The time on CPUs of a process and its children, in ns.
fn cpu_ns(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten().map(|task| task.path());
    tasks
        .map(|task| {
            // proc(5): ns on a CPU, ns waiting for one, turns.
            let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
            let own = text.split_ascii_whitespace().next().and_then(|ns| ns.parse().ok());
            let children = fs::read_to_string(task.join("children")).unwrap_or_default();
            let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
            own.unwrap_or(0_u64) + children.map(cpu_ns).sum::<u64>()
        })
        .sum()
}

/// The first line that speaks of an error, or else the last one: some explain at length.
fn complaint(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let error = lines.clone().find(|line| line.to_ascii_lowercase().contains("error"));
    error.or_else(|| lines.next_back())
}

/// All of a file, wherever its writer is.
fn text(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().map_or(0, |it| it.len() as usize)];
    let read = file.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::SigSet;

    use super::super::Program;
    use super::*;
    use crate::rounds::Patient;
    use crate::testbed::{End, Side, Testbed};

    fn testbed() -> Testbed {
        let side = |interface: &str| Side { netns: None, interface: interface.into() };
        Testbed::here(side("a"), side("b"))
    }

    #[test]
    fn a_command_is_shown_as_a_shell_takes_it() {
        let program = Program::tool("count", ["xdp:right0?a=b", "-f", "it's", ""]);
        assert_eq!(program.shown(), r"count 'xdp:right0?a=b' -f 'it'\''s' ''");
        let program = program.reading("a hare\n".to_owned());
        let typed = "printf %s 'a hare\n' | taskset -c 3 count 'xdp:";
        assert!(program.typed(Some(3)).starts_with(typed), "{}", program.typed(Some(3)));
    }

    #[test]
    fn a_program_reads_and_writes() {
        let program = Program::tool("cat", ["-"]).reading("of a hare\n".to_owned());
        assert_eq!(program.run(&testbed(), End::Left).unwrap(), "of a hare\n");
    }

    #[test]
    fn one_that_fails_says_why() {
        let program = Program::tool("sh", ["-c", "echo bad luck >&2; exit 3"]);
        let error = program.run(&testbed(), End::Left).unwrap_err().to_string();
        assert!(error.ends_with(": bad luck"), "{error}");
    }

    #[test]
    fn of_many_lines_the_one_with_the_error_counts() {
        let nft = "/dev/stdin:3:4-4: Error: syntax error\n } }\n   ^\n";
        assert_eq!(complaint(nft), Some("/dev/stdin:3:4-4: Error: syntax error"));
        assert_eq!(complaint("starting\nno such device\n\n"), Some("no such device"));
        assert_eq!(complaint(" \n"), None);
    }

    #[test]
    fn it_is_waited_for_until_it_says_that_it_is_ready_and_then_ended() {
        // No child that is just being started: a signal then may be its, and not the shell's.
        let script = "trap 'echo ended; exit' INT; echo ready; sleep 60 & wait";
        let program = Program::tool("sh", ["-c", script]);
        let mut running = program.start(&testbed(), End::Right, None).unwrap();
        running.until(&Ready::Says("ready"), &Patient).unwrap();
        assert_eq!(running.end().unwrap().out, "ready\nended\n");
    }

    #[test]
    fn it_is_waited_for_until_a_thread_runs() {
        let mut running =
            Program::tool("sleep", ["60"]).start(&testbed(), End::Right, None).unwrap();
        running.until(&Ready::Runs("slee"), &Patient).unwrap();
        assert!(running.runs("sleep") && !running.runs("queue-"));
    }

    #[test]
    fn signals_that_the_bench_holds_back_are_not_held_back_from_what_it_starts() {
        let held = SigSet::from(Signal::SIGINT);
        held.thread_block().unwrap();
        let program = Program::tool("sleep", ["60"]);
        let running = program.start(&testbed(), End::Right, None).unwrap();
        running.end().unwrap();
        held.thread_unblock().unwrap();
    }

    #[test]
    fn what_it_leaves_behind_ends_with_it() {
        let program = Program::tool("sh", ["-c", "sleep 60 & echo $!"]);
        let left = program.run(&testbed(), End::Right).unwrap().trim().parse::<u32>().unwrap();
        // Nobody's child is somebody's to be waited for; it takes a moment.
        let deadline = Instant::now() + PATIENCE;
        while fs::read_to_string(format!("/proc/{left}/stat"))
            .is_ok_and(|stat| !stat.contains(") Z "))
        {
            assert!(Instant::now() < deadline, "process {left} is left");
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn who_can_mend_it_is_known_of_our_own_command() {
        let script = ["-c", "echo needs CAP_NET_RAW; exit 3"];
        let kind = |name| {
            let mut running =
                Program::tool("sh", script).start(&testbed(), End::Left, None).unwrap();
            running.name = String::from(name);
            running.until(&Ready::Says("ready"), &Patient).unwrap_err().kind()
        };
        assert_eq!(kind(SLUICE), Some(Kind::Privilege));
        assert_eq!(kind("sh"), Some(Kind::Runtime));
    }

    #[test]
    fn one_that_ends_before_it_is_ready_is_an_error() {
        let program = Program::tool("sh", ["-c", "echo no such interface"]);
        let mut running = program.start(&testbed(), End::Right, None).unwrap();
        let failure = running.until(&Ready::Says("ready"), &Patient).unwrap_err();
        assert_eq!(failure.to_string(), "sh ended: no such interface");
    }
}
