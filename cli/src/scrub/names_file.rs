//! The file in which the names of a kept program's counters stand for the next run.

use std::io;
use std::path::{Path, PathBuf};

use sluicegate_scrub::scrubber::{CounterNames, Scrubber};

use super::SocketArgs;
use crate::notice::try_say;

/// Appends to a path's name. Names may have dots.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// The file, beside the control socket or its folder.
pub struct NamesFile(PathBuf);

impl NamesFile {
    /// Returns the file that belongs to a control socket at this path.
    pub fn of(args: &SocketArgs, socket: &Path) -> Self {
        let owner = match args.control {
            Some(_) => socket,
            // The folder of a named scrubber's socket is removed with it.
            None => socket.parent().unwrap_or(socket),
        };
        Self(with_suffix(owner, ".counters"))
    }

    /// Reads the names. None without a file, or if it is invalid.
    pub fn read(&self) -> Option<CounterNames> {
        std::fs::read_to_string(&self.0).ok()?.parse().ok()
    }

    /// Writes the names of a scrubber that is kept; removes the file of another one.
    pub fn update(&self, scrubber: &Scrubber) {
        let mode = scrubber.mode();
        let updated = match mode.resident || mode.fail_closed {
            true => self.write(&scrubber.counter_names().to_string()),
            false => self.remove(),
        };
        if let Err(error) = updated {
            try_say(format_args!(
                "{}: the next run cannot continue the counters: {error}",
                self.0.display()
            ));
        }
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let new = with_suffix(&self.0, ".new");
        std::fs::write(&new, text)?;
        std::fs::rename(new, &self.0)
    }

    /// Removes the file, if it exists.
    pub fn remove(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_dots_is_kept_whole() {
        let named = SocketArgs { name: Some("a.b".into()), control: None };
        let path = Path::new("/run/sluice/scrub/a.b/control.sock");
        assert_eq!(NamesFile::of(&named, path).0, Path::new("/run/sluice/scrub/a.b.counters"));
        let at = SocketArgs { name: None, control: Some("/tmp/x.sock".into()) };
        assert_eq!(
            NamesFile::of(&at, Path::new("/tmp/x.sock")).0,
            Path::new("/tmp/x.sock.counters")
        );
    }
}
