//! A test that is alone in its process: other tests have files and threads, too, and children that hold
//! their files until they have become their commands.

use std::process::{Command, Stdio};

use crate::child;

/// Set in a process that was started for one test.
const ALONE: &str = "SLUICE_TEST_ALONE";

/// Returns true if this process was started for this test alone. Otherwise starts one, in which the test
/// must pass.
pub fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let again = again.args(["--exact", test, "--nocapture"]).env(ALONE, "1");
    let ended = child::end(again.stdout(Stdio::piped()).spawn().unwrap());
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("1 passed"), "{test}: {said}");
    said.lines().filter(|line| line.starts_with("skipped")).for_each(|line| println!("{line}"));
    false
}
