//! A command's output on a terminal.

use std::io::Read;
use std::process::{Child, Command, Stdio};

/// The output that a terminal has received, and how much of it a test has read.
pub struct Screen<R>(R, Vec<u8>, usize);

/// Runs a shell line on a terminal of its own, with job control: the shell continues when its command is
/// stopped. Bytes written to the child are typed there.
pub fn on_a_terminal(line: &str) -> Child {
    Command::new("timeout")
        .args(["60", "script", "-qec", &format!("bash -mc '{line}'"), "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

impl<R: Read> Screen<R> {
    /// Creates the screen of a terminal that has received nothing.
    pub fn of(terminal: R) -> Self {
        Self(terminal, Vec::new(), 0)
    }

    /// Waits until a text comes. Returns the output since the last one.
    pub fn until(&mut self, text: &str) -> String {
        loop {
            let new = String::from_utf8_lossy(&self.1[self.2..]).into_owned();
            if let Some((before, _)) = new.split_once(text) {
                self.2 += before.len() + text.len();
                return before.to_owned();
            }
            let mut piece = [0; 4096];
            let n = self.0.read(&mut piece).unwrap();
            assert!(n > 0, "timed out waiting for '{text}': {new}");
            self.1.extend_from_slice(&piece[..n]);
        }
    }
}
