//! The full screen of a terminal: its begin and end, and the suspension by the user.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ratatui::DefaultTerminal;

/// The maximum delay of a signal's handling while no key is pressed.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Shows a view until its end. The terminal is restored, even after a panic (ratatui's hook).
pub fn full_screen(
    show: impl FnOnce(&mut DefaultTerminal) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    end_with_terminal()?;
    let mut terminal = ratatui::try_init()?;
    let result = show(&mut terminal);
    match result.and(ratatui::try_restore().map_err(anyhow::Error::from)) {
        // It has hung up while the screen was drawn.
        Err(error) if is_io_failure(&error) => Ok(()),
        result => result,
    }
}

fn is_io_failure(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.and_then(io::Error::raw_os_error) == Some(Errno::EIO as i32)
}

/// Ends the process when the terminal hangs up. A thread does it, because crossterm never returns from reading the
/// end of a terminal.
fn end_with_terminal() -> io::Result<()> {
    let terminal = io::stdout().as_fd().try_clone_to_owned()?;
    let watch = move || {
        // POLLHUP and POLLERR are always reported.
        let mut events = [PollFd::new(terminal.as_fd(), PollFlags::empty())];
        loop {
            match poll(&mut events, PollTimeout::NONE) {
                Ok(0) | Err(Errno::EINTR) => {}
                // A terminal that is lost is no failure, and cannot be restored.
                Ok(_) => std::process::exit(0),
                Err(_) => return,
            }
        }
    };
    std::thread::Builder::new().name("terminal".into()).spawn(watch).map(drop)
}

/// Stops the command until the shell continues it; meanwhile the terminal is restored.
pub fn suspend(terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
    terminal.show_cursor()?;
    ratatui::try_restore()?;
    // Signals the whole process group, as the terminal does, so that a parent `sudo` also stops.
    kill(Pid::from_raw(0), Signal::SIGTSTP)?;
    *terminal = ratatui::try_init()?;
    Ok(())
}
