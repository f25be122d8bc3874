//! The reader of a pipe or socket on standard output, whose exit ends a command that waits.

use std::io::{self, ErrorKind, Stdout, stdin, stdout};
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{SFlag, fstat};

/// Returns standard output if it is a pipe or a socket. A terminal that hung up ends no command: after `disown`,
/// it goes on.
pub fn stdout_reader() -> Option<Stdout> {
    let stdout = stdout();
    let kind = fstat(&stdout).ok()?.st_mode & SFlag::S_IFMT.bits();
    [SFlag::S_IFIFO, SFlag::S_IFSOCK].iter().any(|it| it.bits() == kind).then_some(stdout)
}

/// Returns an entry for poll(2) that reports the exit of the reader.
pub fn entry(reader: &Stdout) -> PollFd<'_> {
    // No event is requested: poll reports a pipe without a reader (POLLERR) and a Unix socket without a
    // peer (POLLHUP) in any case.
    PollFd::new(reader.as_fd(), PollFlags::empty())
}

/// Returns true if poll(2) reported the exit of the reader.
pub fn has_left(entry: &PollFd<'_>) -> bool {
    let left = PollFlags::POLLERR | PollFlags::POLLHUP;
    entry.revents().is_some_and(|events| events.intersects(left))
}

/// Returns true if the reader of standard output has left.
pub fn has_left_now() -> bool {
    let Some(reader) = stdout_reader() else { return false };
    let mut entries = [entry(&reader)];
    poll(&mut entries, PollTimeout::ZERO).is_ok() && has_left(&entries[0])
}

/// Waits until standard input has bytes to read or ends, if it is the file to read.
///
/// # Errors
/// The reader of standard output left first; the input cannot be polled.
pub fn await_input(file: &Path) -> io::Result<()> {
    let names = ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"];
    let is_stdin = names.iter().any(|name| file == Path::new(name));
    let Some(reader) = stdout_reader().filter(|_| is_stdin) else { return Ok(()) };
    let stdin = stdin();
    loop {
        let mut entries = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN), entry(&reader)];
        match poll(&mut entries, PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) if entries[0].any() != Some(false) => return Ok(()),
            Ok(_) => return Err(ErrorKind::BrokenPipe.into()),
        }
    }
}
