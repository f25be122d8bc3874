//! A running program: started, waited for, measured, ended.
//!
//! A thread starts the program, which inherits the thread's CPU and namespace. The thread lives as long as the
//! program may run: the kernel kills the program with that thread (PR_SET_PDEATHSIG, prctl(2)), so that
//! nothing outlives the bench, even if the bench is killed.

use std::fs::{self, DirEntry, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigHandler, SigSet, Signal, kill, killpg, signal};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpid, getppid};
use sluicegate::error::{Error, ErrorKind, Result};
use sluicegate::link::{netns, pin_thread};
use tempfile::TempDir;

use super::{ProcessOutput, SLUICE, TIMEOUT};
use crate::observer::{BenchObserver, Failure, Patient};

/// Time for a program to end on SIGINT.
const GRACE: Duration = Duration::from_secs(10);
/// Time between two checks of a program.
const INTERVAL: Duration = Duration::from_millis(10);

/// The sign that a program is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// It has written this to one of its outputs.
    Says(&'static str),
    /// This file exists.
    Has(PathBuf),
    /// It has a thread whose name starts with this.
    Runs(&'static str),
    /// It was started.
    AtOnce,
}

/// A running program. It is killed on drop.
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
        self.poll(TIMEOUT, watch, "does not get ready", |it| {
            let said = it.output();
            it.still_runs()?;
            let is_ready = match ready {
                Ready::Says(word) => said.out.contains(word) || said.err.contains(word),
                Ready::Has(file) => file.exists(),
                Ready::Runs(named) => it.runs(named),
                Ready::AtOnce => true,
            };
            Ok(is_ready.then_some(()))
        })
    }

    /// Calls `done` until it returns a value.
    fn poll<T>(
        &mut self,
        limit: Duration,
        watch: &dyn BenchObserver,
        late: &str,
        mut done: impl FnMut(&mut Self) -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(value) = done(self)? {
                return Ok(value);
            }
            if Instant::now() > deadline {
                return Err(Failure::of(format!("{} {late}", self.name)));
            }
            watch.pause(INTERVAL)?;
        }
    }

    /// Returns true if one of its threads has a name that starts with `named`.
    fn runs(&self, named: &str) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid()));
        let name = |task: DirEntry| fs::read_to_string(task.path().join("comm"));
        let names = tasks.into_iter().flatten().flatten().map(name);
        names.flatten().any(|name| name.starts_with(named))
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.started.child.id()
    }

    /// The CPU time of its running threads and those of its children, in ns.
    pub fn cpu_ns(&self) -> u64 {
        cpu_ns(self.pid())
    }

    /// Waits until it has ended on its own, which should take little more than `time`.
    ///
    /// # Errors
    /// The process takes much longer or fails, or the observer stops the bench.
    pub fn over(&mut self, time: Duration, watch: &dyn BenchObserver) -> Result<(), Failure> {
        let status = self.poll(time + TIMEOUT, watch, "does not end", Self::status)?;
        if status.success() { Ok(()) } else { Err(self.ended_early(status)) }
    }

    /// Reports an error if it has ended.
    ///
    /// # Errors
    /// It has ended.
    pub fn still_runs(&mut self) -> Result<(), Failure> {
        self.status()?.map_or(Ok(()), |status| Err(self.ended_early(status)))
    }

    /// Sluice's exit status classifies the failure.
    fn ended_early(&self, status: ExitStatus) -> Failure {
        let kind = match (self.name.as_str(), status.code()) {
            (SLUICE, Some(2)) => ErrorKind::Usage,
            (SLUICE, Some(3)) => ErrorKind::Privilege,
            _ => ErrorKind::Runtime,
        };
        let complaint = self.complaint();
        // Sluice's errors start with its name, which the reason already contains.
        let complaint = complaint.trim_start_matches("sluice: ");
        Failure::Step { kind, reason: format!("{} ended: {complaint}", self.name) }
    }

    /// Waits for its end; the observer cannot stop this.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<ExitStatus, Failure> {
        self.poll(limit, &Patient, "does not end", Self::status)
    }

    /// Waits for its end, even if it fails, and returns its output.
    ///
    /// # Errors
    /// It takes too long.
    pub fn to_end(mut self) -> Result<ProcessOutput, Failure> {
        self.wait(TIMEOUT)?;
        Ok(self.output())
    }

    /// Ends it by SIGINT if it still runs, and returns its output. It is killed if that does not end it; its
    /// last output is missing then.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn end(mut self) -> Result<ProcessOutput, Failure> {
        if self.status()?.is_none() {
            self.signal(Signal::SIGINT);
            if self.wait(GRACE).is_err() {
                self.signal(Signal::SIGKILL);
                self.wait(TIMEOUT)?;
            }
        }
        Ok(self.output())
    }

    /// Sends a signal to it and its children, as a terminal does.
    pub fn signal(&self, signal: Signal) {
        // Processes that have exited need no signal; one that left its group gets its own.
        if killpg(self.process(), signal).is_err() {
            let _ = kill(self.process(), signal);
        }
    }

    fn process(&self) -> Pid {
        Pid::from_raw(self.pid().cast_signed())
    }

    /// Returns its output so far.
    pub fn output(&self) -> ProcessOutput {
        ProcessOutput { out: text(&self.out), err: text(&self.err) }
    }

    /// Returns its exit status if it has ended, and then kills what it left in its process group.
    fn status(&mut self) -> Result<Option<ExitStatus>, Failure> {
        // This call does not release the process number, so the group still belongs to the process.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let seen = waitid(Id::Pid(self.process()), flags);
        if matches!(seen, Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..))) {
            self.signal(Signal::SIGKILL);
        }
        let status = self.started.child.try_wait();
        Ok(status.map_err(|error| Error::system("wait for", &self.name, error))?)
    }

    /// Returns its error message, in one line.
    pub fn complaint(&self) -> String {
        let ProcessOutput { out, err } = self.output();
        complaint(&err).or_else(|| complaint(&out)).unwrap_or("it did not say why").to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.status(), Ok(None)) {
            self.signal(Signal::SIGKILL);
            // If the kernel does not end it, nothing more can be done.
            let _ = self.wait(TIMEOUT);
        }
    }
}

/// Returns the CPU time of a process and its children, in ns.
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

/// The first line with an error, or else the last one: some programs explain at length.
fn complaint(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let error = lines.clone().find(|line| line.to_ascii_lowercase().contains("error"));
    error.or_else(|| lines.next_back())
}

/// Reads a whole file, independent of its writer's position.
fn text(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().map_or(0, |it| it.len() as usize)];
    let read = file.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// A process, and the thread that started it.
#[derive(Debug)]
pub(super) struct Started {
    child: Child,
    /// Dropping it ends the thread.
    _thread: Sender<()>,
}

/// Starts a command, in a namespace and on a CPU if they are named, and at real-time priority if requested.
pub(super) fn spawn(
    mut command: Command,
    namespace: Option<&str>,
    cpu: Option<usize>,
    real_time: bool,
) -> Result<Started> {
    prepare(&mut command, getpid());
    let namespace = namespace.map(str::to_owned);
    let (sender, started) = channel();
    let (leave, left) = channel();
    let start = move || {
        let failed = sender.clone();
        let mut here = move || {
            cpu.map_or(Ok(()), pin_thread)?;
            real_time.then(set_real_time).transpose()?;
            hold(&mut command, &sender, &left)
        };
        let ended = match namespace {
            Some(namespace) => netns::run_in_with_mounts(&namespace, here),
            None => here(),
        };
        if let Err(error) = ended {
            // The caller waits for this result.
            let _ = failed.send(Err(error));
        }
    };
    let thread = thread::Builder::new().name("starter".into()).spawn(start);
    thread.map_err(|error| Error::start("a thread for a program", error))?;
    let ended = || Error::Usage("the thread that starts programs has ended".into());
    let child = started.recv().map_err(|_| ended())??;
    Ok(Started { child, _thread: leave })
}

/// Starts a command from this thread, reports it, and stays until the command is dropped.
fn hold(command: &mut Command, sender: &Sender<Result<Child>>, left: &Receiver<()>) -> Result<()> {
    let child = command
        .spawn()
        .map_err(|error| Error::start(command.get_program().display().to_string(), error))?;
    if sender.send(Ok(child)).is_ok() {
        // Nothing is ever sent: the other end is dropped.
        let _ = left.recv();
    }
    Ok(())
}

/// Sets the lowest real-time priority for this thread, which then starts programs with it (sched(7)).
#[allow(unsafe_code)]
fn set_real_time() -> Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure is valid, and the kernel only reads it. 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) };
    Errno::result(result).map(drop).map_err(|errno| {
        Error::system("get real-time priority (CAP_SYS_NICE) for", "a program", errno)
    })
}

/// Makes a command end with the bench, and start with no signal blocked and SIGINT not ignored. The
/// bench blocks the signals that end it, and a shell script ignores SIGINT in background jobs; the
/// command would inherit both and never end.
#[allow(unsafe_code)]
fn prepare(command: &mut Command, bench: Pid) {
    // A terminal's signals to the foreground group are for the bench alone.
    command.process_group(0);
    // SAFETY: between fork and exec this calls prctl(2), getppid(2), sigaction(2) and sigprocmask(2)
    // alone, by functions that are async-signal-safe (signal-safety(7)) or bare system calls, on a number and
    // on a set made on the stack; it allocates nothing, takes no lock, and touches nothing of the
    // parent's.
    unsafe {
        command.pre_exec(move || {
            set_pdeathsig(Signal::SIGKILL)?;
            // The bench may have exited before that.
            if getppid() != bench {
                return Err(Errno::ESRCH.into());
            }
            signal(Signal::SIGINT, SigHandler::SigDfl)?;
            SigSet::empty().thread_set_mask().map_err(Into::into)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::super::Program;
    use super::*;

    #[test]
    fn a_command_is_shown_as_a_shell_takes_it() {
        let program = Program::tool("count", ["xdp:right0?a=b", "-f", "it's", ""]);
        assert_eq!(program.shown(), r"count 'xdp:right0?a=b' -f 'it'\''s' ''");
        let program = program.reading("a hare\n".to_owned()).on(Some(3));
        let typed = "printf %s 'a hare\n' | taskset -c 3 count 'xdp:";
        assert!(program.typed().starts_with(typed), "{}", program.typed());
        let ping = Program::tool("ping", ["-n"]).on(Some(1)).real_time();
        assert_eq!(ping.typed(), "taskset -c 1 chrt -f 1 ping -n");
    }

    #[test]
    fn a_real_time_program_has_the_lowest_such_priority() {
        let program = Program::tool("chrt", ["-p", "0"]).real_time();
        match program.run(None) {
            Ok(said) => assert!(said.contains("SCHED_FIFO") && said.contains(": 1\n"), "{said}"),
            Err(failure) => {
                assert!(failure.to_string().contains("CAP_SYS_NICE"), "{failure}");
                eprintln!("skipped: no real-time priority here");
            }
        }
    }

    #[test]
    fn a_program_reads_and_writes() {
        let program = Program::tool("cat", ["-"]).reading("of a hare\n".to_owned());
        assert_eq!(program.run(None).unwrap(), "of a hare\n");
    }

    #[test]
    fn one_that_fails_says_why() {
        let program = Program::tool("sh", ["-c", "echo bad luck >&2; exit 3"]);
        let error = program.run(None).unwrap_err().to_string();
        assert!(error.ends_with(": bad luck"), "{error}");
    }

    #[test]
    fn the_line_with_the_error_is_reported() {
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
        let mut running = program.start(None).unwrap();
        running.until(&Ready::Says("ready"), &Patient).unwrap();
        assert_eq!(running.end().unwrap().out, "ready\nended\n");
    }

    #[test]
    fn it_is_waited_for_until_a_thread_runs() {
        let mut running = Program::tool("sleep", ["60"]).start(None).unwrap();
        running.until(&Ready::Runs("slee"), &Patient).unwrap();
        assert!(running.runs("sleep") && !running.runs("queue-"));
    }

    #[test]
    fn signals_that_the_bench_holds_back_are_not_held_back_from_what_it_starts() {
        let held = SigSet::from(Signal::SIGINT);
        held.thread_block().unwrap();
        let program = Program::tool("sleep", ["60"]);
        let running = program.start(None).unwrap();
        running.end().unwrap();
        held.thread_unblock().unwrap();
    }

    #[test]
    fn children_end_with_their_program() {
        let program = Program::tool("sh", ["-c", "sleep 60 & echo $!"]);
        let left = program.run(None).unwrap().trim().parse::<u32>().unwrap();
        // Another process reaps an orphan; that takes a moment.
        let deadline = Instant::now() + TIMEOUT;
        while fs::read_to_string(format!("/proc/{left}/stat"))
            .is_ok_and(|stat| !stat.contains(") Z "))
        {
            assert!(Instant::now() < deadline, "process {left} is left");
            std::thread::sleep(INTERVAL);
        }
    }

    #[test]
    fn the_exit_status_of_sluice_classifies_a_failure() {
        let script = ["-c", "echo needs CAP_NET_RAW; exit 3"];
        let kind = |name| {
            let mut running = Program::tool("sh", script).start(None).unwrap();
            running.name = String::from(name);
            running.until(&Ready::Says("ready"), &Patient).unwrap_err().kind()
        };
        assert_eq!(kind(SLUICE), Some(ErrorKind::Privilege));
        assert_eq!(kind("sh"), Some(ErrorKind::Runtime));
    }

    #[test]
    fn one_that_ends_before_it_is_ready_is_an_error() {
        let program = Program::tool("sh", ["-c", "echo no such interface"]);
        let mut running = program.start(None).unwrap();
        let failure = running.until(&Ready::Says("ready"), &Patient).unwrap_err();
        assert_eq!(failure.to_string(), "sh ended: no such interface");
    }

    #[test]
    fn a_command_ends_with_the_thread_that_started_it() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let Started { mut child, _thread } = spawn(command, None, None, false).unwrap();
        assert_eq!(child.try_wait().unwrap(), None);
        drop(_thread);
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{status}");
    }

    #[test]
    fn one_that_is_not_there_is_told() {
        let error =
            spawn(Command::new("no-such-program"), None, None, false).unwrap_err().to_string();
        assert!(error.starts_with("start no-such-program: "), "{error}");
    }
}
