//! How the tests wait for children: `limit` and `lines`, which other targets take from here.

#[path = "limit.rs"]
mod child;
mod lines;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::kill;
use nix::unistd::Pid;

fn shell(script: &str) -> Child {
    let mut sh = Command::new("sh");
    sh.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What a test fails with.
fn failure<T>(wait: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(wait)).err().expect("it fails");
    *panic.downcast::<String>().expect("a message")
}

#[test]
fn a_child_that_ends_has_said_all_that_it_has_to_say() {
    let ended = child::end(shell("echo out; echo err >&2; exit 3"));
    assert_eq!((ended.status.code(), &ended.stdout[..]), (Some(3), &b"out\n"[..]));
    assert_eq!(ended.stderr, b"err\n");
}

#[test]
fn a_child_that_hangs_is_killed_with_its_own_and_named() {
    let mut child = shell("echo so far >&2; sleep 1000 & echo $!; wait; echo over");
    let (said, _rest) = lines::until(child.id(), child.stdout.take().unwrap(), "");
    let sleeper = Pid::from_raw(said.trim().parse().unwrap());
    assert!(kill(sleeper, None).is_ok(), "it sleeps");
    let id = child.id();
    let said = failure(|| child::limited_to(Duration::ZERO, id, || child.wait_with_output()));
    for part in ["sh -c echo so far", "sleep 1000", "had said", "so far\\n"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Whoever gets the orphan may take its time to bury it.
    let stat = std::fs::read_to_string(format!("/proc/{sleeper}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z ") || stat.contains(") X "), "{stat}");
}

#[test]
fn a_line_that_does_not_come_is_missed_when_the_child_has_ended() {
    let mut child = shell("echo one; echo two");
    let said = failure(|| lines::until(child.id(), child.stdout.take().unwrap(), "three"));
    assert!(said.contains("'three'") && said.contains("one\ntwo\n"), "{said}");
    child::end(child);
}
