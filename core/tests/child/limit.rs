//! A child is waited for, but not for ever: one that hangs fails its test, where the whole run
//! would hang with it and say nothing.
//!
//! One that has lost its parent is nobody's child any more, and is not found: where such a one holds
//! what a child has spoken into, that is said.

use std::fmt::Debug;
use std::fs;
use std::process::{Child, Output};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longer than anything takes that a test waits for, on a busy machine too.
const LIMIT: Duration = Duration::from_secs(120);
/// The longest that a killed process takes to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for a child's end: its status, and what it has said into pipes.
pub fn end(child: Child) -> Output {
    limited(child.id(), || child.wait_with_output()).unwrap()
}

/// Waits for something that a child does: `wait` returns what it has said.
pub fn limited<T: Debug + Send + 'static>(
    child: u32,
    wait: impl FnOnce() -> T + Send + 'static,
) -> T {
    limited_to(LIMIT, child, wait)
}

/// Waits for something that a child does, for `limit` at most. Kills a child that hangs, and its
/// descendants.
pub fn limited_to<T: Debug + Send + 'static>(
    limit: Duration,
    child: u32,
    wait: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(wait()));
    match told.recv_timeout(limit) {
        Ok(said) => return said,
        Err(RecvTimeoutError::Disconnected) => panic!("waiting for process {child} has failed"),
        Err(RecvTimeoutError::Timeout) => {}
    }
    let family = family(child);
    let commands: Vec<String> = family.iter().map(|&pid| command(pid)).collect();
    for &pid in &family {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
    }
    match told.recv_timeout(KILL_TIMEOUT) {
        Ok(said) => panic!("hung for {limit:?}: {commands:?}; had said: {said:?}"),
        Err(_) if family.iter().all(|&pid| has_ended(pid)) => panic!(
            "hung for {limit:?}: {commands:?}: all have ended, and somebody else holds their output"
        ),
        Err(_) => panic!("hung for {limit:?}, and does not die: {commands:?}"),
    }
}

/// A process and those that it has started, and these.
fn family(first: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let relations: Vec<(u32, u32)> = processes
        .filter_map(|entry| {
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // Its number, its name in brackets, which may hold anything, its state, its parent.
            let (_, rest) = stat.rsplit_once(") ")?;
            let parent = rest.split(' ').nth(1)?.parse().ok()?;
            Some((parent, entry.file_name().to_str()?.parse().ok()?))
        })
        .collect();
    let mut family = vec![first];
    let mut at = 0;
    while let Some(&pid) = family.get(at) {
        family.extend(relations.iter().filter(|it| it.0 == pid).map(|it| it.1));
        at += 1;
    }
    family
}

/// Returns true if a process has ended; a parent may still have to take its status.
pub fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// A process's command line; its name where it has none any more.
fn command(pid: u32) -> String {
    let read = |file| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let words = Some(read("cmdline")).filter(|it| !it.is_empty()).unwrap_or_else(|| read("comm"));
    String::from_utf8_lossy(&words).replace('\0', " ").trim_end().to_owned()
}
