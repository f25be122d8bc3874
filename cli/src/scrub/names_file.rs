//! The file in which the names of a kept program's counters stand for the next run.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use sluicegate::link::{Interface, netns};
use sluicegate::xdp::resident::{Action, Resident};
use sluicegate_scrub::scrubber::{CounterNames, Scrubber};

use super::SocketArgs;
use crate::notice::try_say;

/// Maximum bytes of the file.
const MAX_BYTES: u64 = 16 << 20;

/// Appends to a path's name. Names may have dots.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Returns the time at which the scrubber of an interface took its stage, which identifies it. None without a scrubber.
pub fn owner(netns: Option<&str>, interface: &Interface) -> Option<u64> {
    let find = || {
        let Some(resident) = Resident::find(interface)? else { return Ok(None) };
        let stages = resident.owned_stages()?;
        Ok(stages.into_iter().find(|it| it.owner.action == Action::Scrub))
    };
    netns::run_in(netns, find).ok().flatten().map(|it| it.owner.since_ns)
}

/// The file, beside the control socket or its folder. Its first line is the [owner] of the program.
pub struct NamesFile {
    path: PathBuf,
    owner: Option<u64>,
}

impl NamesFile {
    /// Returns the file that belongs to a control socket at this path.
    pub fn of(args: &SocketArgs, socket: &Path) -> Self {
        let owner = match args.control {
            Some(_) => socket,
            // The folder of a named scrubber's socket is removed with it.
            None => socket.parent().unwrap_or(socket),
        };
        Self { path: with_suffix(owner, ".counters"), owner: None }
    }

    /// Sets the owner of the program.
    pub fn set_owner(&mut self, owner: Option<u64>) {
        self.owner = owner;
    }

    /// Reads the names of an owner's program. None without a file, if it is another one's, or invalid.
    pub fn read(&self, owner: u64) -> Option<CounterNames> {
        // Another user may have made it: a link, or a pipe that blocks.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(&self.path);
        let mut text = String::new();
        file.ok()?.take(MAX_BYTES).read_to_string(&mut text).ok()?;
        let (found, names) = text.split_once('\n')?;
        (found.parse() == Ok(owner)).then(|| names.parse().ok())?
    }

    /// Writes the names of a scrubber that is kept; removes the file of another one.
    pub fn update(&self, scrubber: &Scrubber) {
        let mode = scrubber.mode();
        let updated = match self.owner.filter(|_| mode.resident || mode.fail_closed) {
            Some(owner) => self.write(&format!("{owner}\n{}", scrubber.counter_names())),
            None => self.remove(),
        };
        if let Err(error) = updated {
            // The names of an earlier policy would be wrong.
            let _ = self.remove();
            try_say(format_args!(
                "{}: the next run cannot continue the counters: {error}",
                self.path.display()
            ));
        }
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let new = with_suffix(&self.path, ".new");
        // Another user may have made it: a link to a file that root must not write.
        let _ = std::fs::remove_file(&new);
        let file = OpenOptions::new().write(true).create_new(true).open(&new);
        let written = file.and_then(|mut it| it.write_all(text.as_bytes()));
        written.and_then(|()| std::fs::rename(&new, &self.path)).inspect_err(|_| {
            let _ = std::fs::remove_file(&new);
        })
    }

    /// Removes the file, if it exists.
    pub fn remove(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(folder: &Path) -> NamesFile {
        NamesFile { path: folder.join("counters"), owner: Some(7) }
    }

    #[test]
    fn nothing_stays_of_a_file_that_cannot_be_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = names_in(folder.path());
        std::fs::create_dir(&names.path).expect("a folder in the place of the file");
        names.write("names").expect_err("a file does not replace a folder");
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 1);
    }

    #[test]
    fn links_are_not_followed_and_pipes_do_not_block() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = names_in(folder.path());
        let other = folder.path().join("other");
        let text = "7\n- set drop 3 180 bad\n";
        std::fs::write(&other, text).expect("a file");
        let new = folder.path().join("counters.new");
        std::os::unix::fs::symlink(&other, &new).expect("a link");
        names.write("").expect("it replaces the link");
        assert_eq!(std::fs::read_to_string(&other).expect("the file"), text);
        names.remove().expect("the file");
        std::os::unix::fs::symlink(&other, &names.path).expect("a link");
        assert_eq!(names.read(7), None);
        names.remove().expect("the link");
        nix::unistd::mkfifo(&names.path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert_eq!(names.read(7), None);
    }

    #[test]
    fn only_the_names_of_the_program_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = names_in(folder.path());
        names.write("7\n- set drop 3 180 bad\n").expect("the file");
        assert!(names.read(7).is_some());
        assert_eq!(names.read(8), None);
    }

    #[test]
    fn a_name_with_dots_is_kept_whole() {
        let named = SocketArgs { name: Some("a.b".into()), control: None };
        let path = Path::new("/run/sluice/scrub/a.b/control.sock");
        assert_eq!(NamesFile::of(&named, path).path, Path::new("/run/sluice/scrub/a.b.counters"));
        let at = SocketArgs { name: None, control: Some("/tmp/x.sock".into()) };
        assert_eq!(
            NamesFile::of(&at, Path::new("/tmp/x.sock")).path,
            Path::new("/tmp/x.sock.counters")
        );
    }
}
