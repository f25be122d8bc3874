//! A command on a host of a lab.

use std::process::{Command, Output, Stdio};

use sluicegate::link::netns;

use crate::child;

/// Runs a command in the namespace of a host, to its end.
pub fn on(netns: &str, words: &[&str]) -> Output {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    child::end(netns::spawn(netns, &mut command).unwrap_or_else(|e| panic!("{words:?}: {e}")))
}
