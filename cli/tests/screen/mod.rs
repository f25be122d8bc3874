//! What a command shows on a terminal.

use std::io::Read;

/// What a terminal has been sent, and how much of it has been looked at.
pub struct Screen<R>(R, Vec<u8>, usize);

impl<R: Read> Screen<R> {
    /// Of a terminal that has been sent nothing.
    pub fn of(terminal: R) -> Self {
        Self(terminal, Vec::new(), 0)
    }

    /// Waits until a text comes; what came before it since the last one.
    pub fn until(&mut self, text: &str) -> String {
        loop {
            let new = String::from_utf8_lossy(&self.1[self.2..]).into_owned();
            if let Some((before, _)) = new.split_once(text) {
                self.2 += before.len() + text.len();
                return before.to_owned();
            }
            let mut piece = [0; 4096];
            let n = self.0.read(&mut piece).unwrap();
            assert!(n > 0, "waited in vain for '{text}': {new}");
            self.1.extend_from_slice(&piece[..n]);
        }
    }
}
