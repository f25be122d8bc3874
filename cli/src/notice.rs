//! Messages of a traffic command on stderr, beside its result.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write, stderr};
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::termios::tcgetattr;
use sluicegate::error::{Error, Result};
use sluicegate::port::{Kind, Port, PortName};

/// Says something on stderr. Where nobody listens any more, that is no reason to stop.
pub fn say(text: impl Display) {
    let _ = writeln!(stderr(), "sluice: {text}");
}

/// Returns true if writing to `output` failed because its reader left: a pipe was closed, or a
/// terminal hung up. The command does not fail then.
pub fn reader_left(error: &io::Error, output: impl AsFd) -> bool {
    match error.kind() {
        ErrorKind::BrokenPipe => true,
        // A terminal that hung up answers every request so (drivers/tty/tty_io.c, hung_up_tty_ioctl).
        _ => {
            error.raw_os_error() == Some(Errno::EIO as i32)
                && matches!(tcgetattr(output), Err(Errno::EIO))
        }
    }
}

/// Says every fall to a slower method, with its reason; where more is wanted, with the kernel's answer.
pub fn fallbacks(port: &Port, verbose: bool) {
    for fallback in &port.fallbacks {
        let (to, reason) = (fallback.to, &fallback.reason);
        // A kind of port has a colon of its own.
        let from = fallback.from.trim_end_matches(':');
        let detail = fallback.detail.as_ref().filter(|_| verbose);
        let detail = detail.map_or_else(String::new, |detail| format!(" ({detail})"));
        say(format_args!("{}: using {to} in place of {from}: {reason}{detail}", port.name.short()));
    }
}

/// Says once, on a terminal, what a port takes from the host while it is open.
pub fn diverts(port: &PortName) {
    let takes = match port.kind() {
        Kind::Xdp => port.option("action") != Some("pass"),
        kind => kind == Kind::Host,
    };
    if !takes || !stderr().is_terminal() {
        return;
    }
    let name = port.name();
    match port.option("filter") {
        _ if port.kind() == Kind::Host => say(format_args!(
            "{name}: what the host sends there does not leave while this runs, unless it is \
             forwarded"
        )),
        None | Some("") => say(format_args!(
            "{name}: the host gets none of what comes in while this runs; a filter takes a part"
        )),
        Some(filter) => say(format_args!(
            "{name}: the host does not get '{filter}' while this runs; it keeps the rest"
        )),
    }
}

/// Gives a port the filter of a flag, unless it has one of its own.
pub fn apply_filter(port: &mut PortName, filter: Option<&str>) -> Result<()> {
    let Some(filter) = filter else { return Ok(()) };
    if port.set_default("filter", filter) || port.knows("filter") {
        return Ok(());
    }
    Err(Error::Usage(format!("{}: takes no filter", port.short())))
}
