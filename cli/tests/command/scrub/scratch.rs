//! A folder with a policy and captures.

use std::path::PathBuf;

use tempfile::TempDir;

use super::text;

/// A folder with a policy.
pub struct Scratch(pub TempDir);

impl Scratch {
    pub fn with_policy(policy: &str) -> Self {
        let scratch = Self(tempfile::tempdir().unwrap());
        std::fs::write(scratch.file("policy.toml"), policy).unwrap();
        scratch
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The path of a file in the folder, as a word of a command line.
    pub fn word(&self, name: &str) -> String {
        text(&self.file(name)).to_owned()
    }

    pub fn policy(&self) -> String {
        self.word("policy.toml")
    }
}

/// A UDP datagram from a host of 203.0.0.0/8 to 198.18.0.2, of 60 bytes.
pub fn udp(host: u32, sport: u16) -> Vec<u8> {
    let [_, b, c, d] = host.to_be_bytes();
    let mut frame = vec![2, 0, 198, 18, 0, 2, 2, 0, 198, 18, 0, 1, 0x08, 0x00];
    frame.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 203, b, c, d, 198, 18, 0, 2]);
    frame.extend(sport.to_be_bytes());
    frame.extend([0, 9, 0, 26, 0, 0]);
    frame.resize(60, 0);
    frame
}
