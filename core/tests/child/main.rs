//! How the tests wait for children: `limit` and `lines`, which other targets take from here.

#[path = "limit.rs"]
mod child;
mod lines;

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn shell(script: &str) -> Child {
    let mut sh = Command::new("sh");
    sh.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for what takes a moment.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The message of a test that fails.
fn failure<T>(wait: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(wait)).err().expect("it fails");
    *panic.downcast::<String>().expect("a message")
}

#[test]
fn the_output_of_a_child_that_ends_is_complete() {
    let ended = child::end(shell("echo out; echo err >&2; exit 3"));
    assert_eq!((ended.status.code(), &ended.stdout[..]), (Some(3), &b"out\n"[..]));
    assert_eq!(ended.stderr, b"err\n");
}

#[test]
fn a_child_that_hangs_is_killed_with_its_own_and_named() {
    let mut child = shell("echo so far >&2; sleep 1000 & echo $!; wait; echo over");
    let (said, _rest) = lines::until(child.id(), child.stdout.take().unwrap(), "");
    let sleeper = Pid::from_raw(said.trim().parse().unwrap());
    // The kernel shows its name a moment before its arguments.
    let words = format!("/proc/{sleeper}/cmdline");
    let sleeps = || fs::read(&words).is_ok_and(|it| it == b"sleep\x001000\0");
    eventually("it sleeps", sleeps);
    let id = child.id();
    let said = failure(|| child::limited_to(Duration::ZERO, id, || child.wait_with_output()));
    // The script has the same words, within its own.
    for part in ["\"sh -c echo so far", "\"sleep 1000\"", "had said", "so far\\n"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // The orphan's new parent may be slow to take its status.
    eventually("it has ended", || child::has_ended(sleeper.as_raw() as u32));
}

#[test]
fn somebody_else_who_holds_the_output_of_a_child_is_told_from_one_that_does_not_die() {
    let mut child = shell("sleep 1000 & echo $!");
    let (said, rest) = lines::until(child.id(), child.stdout.take().unwrap(), "");
    let sleeper = Pid::from_raw(said.trim().parse().unwrap());
    let id = child.id();
    eventually("the shell has ended", || child::has_ended(id));
    let read = move || io::read_to_string(rest);
    let said = failure(|| child::limited_to(Duration::ZERO, id, read));
    kill(sleeper, Signal::SIGKILL).unwrap();
    assert!(said.contains("somebody else holds their output"), "{said}");
    child::end(child);
}

#[test]
fn what_cannot_be_read_is_not_the_end() {
    let mut child = shell("printf 'one\\n\\377\\nthree\\n'");
    let said = failure(|| lines::until(child.id(), child.stdout.take().unwrap(), "three"));
    assert!(said.contains("cannot be read"), "{said}");
    child::end(child);
}

#[test]
fn a_line_that_does_not_come_is_missed_when_the_child_has_ended() {
    let mut child = shell("echo one; echo two");
    let said = failure(|| lines::until(child.id(), child.stdout.take().unwrap(), "three"));
    assert!(said.contains("'three'") && said.contains("one\ntwo\n"), "{said}");
    child::end(child);
}
