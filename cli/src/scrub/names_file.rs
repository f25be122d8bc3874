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
            // The names of an earlier policy would be wrong.
            let _ = self.remove();
            try_say(format_args!(
                "{}: the next run cannot continue the counters: {error}",
                self.0.display()
            ));
        }
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let new = with_suffix(&self.0, ".new");
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &self.0));
        written.inspect_err(|_| {
            let _ = std::fs::remove_file(&new);
        })
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
    fn nothing_stays_of_a_file_that_the_disk_has_no_room_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = NamesFile(folder.path().join("counters"));
        std::os::unix::fs::symlink("/dev/full", folder.path().join("counters.new"))
            .expect("a link");
        let error = names.write("names").expect_err("no room");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 0);
    }

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
