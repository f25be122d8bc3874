//! Starts a command from a thread, whose CPU and namespace the command inherits. The thread lives as
//! long as the command may run.
//!
//! The kernel ends a child with the thread that has started it (PR_SET_PDEATHSIG, prctl(2)). So what
//! the bench has started ends with it, even where it is killed.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::{Pid, getpid, getppid};
use sluicegate::error::{Error, Result};
use sluicegate::link::{netns, pin_thread};

/// A command that was started.
#[derive(Debug)]
pub struct Started {
    pub child: Child,
    /// The thread that has started it goes with this value.
    _thread: Sender<()>,
}

/// Starts a command, in a namespace and on a CPU if they are named.
pub fn spawn(mut command: Command, namespace: Option<&str>, cpu: Option<usize>) -> Result<Started> {
    prepare(&mut command, getpid());
    let namespace = namespace.map(str::to_owned);
    let (tell, told) = channel();
    let (leave, left) = channel();
    let start = move || {
        let failed = tell.clone();
        let mut here = move || hold(&mut command, cpu, &tell, &left);
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
    thread.map_err(|error| Error::system("start", "a thread for a program", error))?;
    let ended = || Error::Usage("the thread that starts programs has ended".into());
    let child = told.recv().map_err(|_| ended())??;
    Ok(Started { child, _thread: leave })
}

/// Starts a command by this thread, tells of it, and stays until nobody wants the command any more.
fn hold(
    command: &mut Command,
    cpu: Option<usize>,
    tell: &Sender<Result<Child>>,
    left: &Receiver<()>,
) -> Result<()> {
    cpu.map_or(Ok(()), pin_thread)?;
    let child = command.spawn().map_err(|error| {
        Error::system("start", command.get_program().display().to_string(), error)
    })?;
    if tell.send(Ok(child)).is_ok() {
        // Nothing is ever sent: the other end goes.
        let _ = left.recv();
    }
    Ok(())
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

/// A text, and what writes the same in a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The text.
    pub text: String,
    /// A command.
    pub shell: String,
}

impl From<String> for Input {
    fn from(text: String) -> Self {
        let shell = format!("printf %s {}", quoted(&text));
        Self { text, shell }
    }
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_command_ends_with_the_thread_that_started_it() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let Started { mut child, _thread } = spawn(command, None, None).unwrap();
        assert_eq!(child.try_wait().unwrap(), None);
        drop(_thread);
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{status}");
    }

    #[test]
    fn one_that_is_not_there_is_told() {
        let error = spawn(Command::new("no-such-program"), None, None).unwrap_err().to_string();
        assert!(error.starts_with("start no-such-program: "), "{error}");
    }
}
