//! A rate in a file, which programs write and a run looks at.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;

use super::rate::Rate;

/// More than any rate needs; what is longer is none.
const MAX_BYTES: u64 = 100;

/// What a file asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// This rate.
    Rate(Rate),
    /// Nothing is to be sent until there is a rate again.
    Pause,
}

/// The file, and what stood in it at the last look.
#[derive(Debug)]
pub struct RateFile {
    path: PathBuf,
    seen: Option<Result<String, ErrorKind>>,
}

impl RateFile {
    /// Looks at nothing yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, seen: None }
    }

    /// What the file asks for, if it says something else than at the last look; or what is wrong
    /// with it, said once. An empty file is about to be written.
    pub fn look(&mut self) -> Option<Result<Wanted, String>> {
        let text = self.read();
        let seen = text.as_ref().map(String::clone).map_err(std::io::Error::kind);
        if text.as_ref().is_ok_and(String::is_empty) || self.seen.as_ref() == Some(&seen) {
            return None;
        }
        self.seen = Some(seen);
        let wanted = text.map_err(|error| error.to_string()).and_then(|text| wanted(&text));
        Some(wanted.map_err(|reason| format!("--rate-file {}: {reason}", self.path.display())))
    }

    fn read(&self) -> std::io::Result<String> {
        // Another kind of file might keep us waiting.
        if !std::fs::metadata(&self.path)?.is_file() {
            return Err(std::io::Error::new(ErrorKind::InvalidInput, "this is no regular file"));
        }
        let mut bytes = Vec::new();
        File::open(&self.path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }
}

fn wanted(text: &str) -> Result<Wanted, String> {
    match text {
        "pause" => Ok(Wanted::Pause),
        _ => text.parse().map(Wanted::Rate).map_err(|right| format!("'{text}': {right}, or pause")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_asks_for_and_what_is_wrong_with_it_is_said_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rate");
        let mut file = RateFile::new(path.clone());
        assert!(file.look().is_some_and(|it| it.is_err()), "it is not there");
        assert_eq!(file.look(), None, "which is said once");
        let rate = |pps| Some(Ok(Wanted::Rate(Rate::Packets(pps))));
        let written = |text: &str| std::fs::write(&path, text).unwrap();
        for (sentence, text, pps) in [("a rate", "10kpps\n", 1e4), ("another", "2Mpps", 2e6)] {
            written(text);
            assert_eq!(file.look(), rate(pps), "{sentence}");
            assert_eq!(file.look(), None, "{sentence}: once");
        }
        written("");
        assert_eq!(file.look(), None, "about to be written");
        written("fast");
        let wrong = file.look().unwrap().unwrap_err();
        assert!(wrong.contains("'fast'") && wrong.contains("1Mpps"), "{wrong}");
        assert_eq!(file.look(), None, "once, too");
        written(" pause \n");
        assert_eq!(file.look(), Some(Ok(Wanted::Pause)));
        written(&"9".repeat(5000));
        assert!(file.look().unwrap().is_err(), "no rate is so long");
        let mut folder = RateFile::new(folder.path().to_owned());
        assert!(folder.look().unwrap().unwrap_err().contains("no regular file"));
    }
}
