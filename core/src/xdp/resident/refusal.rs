//! Attaching, and the reason where the kernel or the driver refuses it.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::attach::ONE_BUFFER_MTU;
use crate::link::{Channels, Ethtool, Interface};
use crate::xdp::bpf::{self, AttachFailure, Mode};

/// An attachment that was refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub error: io::Error,
    /// The kernel's reason, or the cause that this interface's settings suggest.
    pub reason: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Some(reason) => write!(f, "{}: {reason}", self.error),
            None => self.error.fmt(f),
        }
    }
}

/// Attaches a program; none if the interface has one already. To be called in the interface's network
/// namespace.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    interface: &Interface,
    mode: Mode,
) -> Result<Option<OwnedFd>, Refusal> {
    match bpf::attach(program, interface.index, mode) {
        Ok(link) => return Ok(Some(link)),
        Err(error) if is_taken(&error, interface) => return Ok(None),
        Err(error) if !has_reason(&error) => return Err(Refusal { error, reason: None }),
        Err(_) => {}
    }
    // A second time, to hear the reason: most attachments succeed, and need no listener.
    let listener = AttachFailure::listen();
    let error = match bpf::attach(program, interface.index, mode) {
        Ok(link) => return Ok(Some(link)),
        Err(error) if is_taken(&error, interface) => return Ok(None),
        Err(error) => error,
    };
    let reason = listener.ok().and_then(|listener| listener.text());
    let reason = reason.or_else(|| suspect(&error, interface));
    Err(Refusal { error, reason })
}

/// Whether another program is the reason: it is there, or was a moment ago.
fn is_taken(error: &io::Error, interface: &Interface) -> bool {
    match error.raw_os_error() {
        Some(libc::EBUSY) => true,
        // The kernel also returns it where a bridge or a bond above the interface has a program.
        Some(libc::EEXIST) => bpf::attached(interface.index).is_ok_and(|found| found.is_some()),
        _ => false,
    }
}

/// Whether the interface or its driver may be the reason, not this process.
fn has_reason(error: &io::Error) -> bool {
    use libc::{EACCES, EINTR, EMFILE, ENFILE, ENODEV, ENXIO, EPERM};
    let others = [EACCES, EINTR, EMFILE, ENFILE, ENODEV, ENXIO, EPERM];
    error.raw_os_error().is_some_and(|errno| !others.contains(&errno))
}

impl Refusal {
    /// Whether another mode may do.
    pub(super) fn is_of_mode(&self) -> bool {
        has_reason(&self.error) && self.error.raw_os_error() != Some(libc::EEXIST)
    }
}

/// The likely cause, from the settings of the interface.
fn suspect(error: &io::Error, interface: &Interface) -> Option<String> {
    let mut ethtool = Ethtool::open(None).ok()?;
    let lro = ethtool.lro(&interface.name).unwrap_or(false);
    let channels = ethtool.channels(&interface.name).ok().flatten();
    cause(error.raw_os_error()?, &interface.name, interface.mtu, lro, channels)
}

fn cause(
    errno: i32,
    name: &str,
    mtu: u32,
    lro: bool,
    channels: Option<Channels>,
) -> Option<String> {
    match errno {
        libc::EEXIST => Some(format!("a bridge or a bond above {name} has an XDP program")),
        _ if lro => Some(format!("large receive offload is on: `ethtool -K {name} lro off`")),
        libc::ENOSPC => {
            let counts = channels.map_or_else(String::new, |it| {
                let (rx, tx) = (it.combined + it.rx, it.combined + it.tx);
                format!(" ({rx} to receive by, {tx} to send by)")
            });
            Some(format!("{name} has too few queues for XDP{counts}: `ethtool -L` changes them"))
        }
        _ if mtu > ONE_BUFFER_MTU => Some(format!(
            "the MTU of {name}, {mtu}, may be too large for XDP: `ip link set {name} mtu \
             {ONE_BUFFER_MTU}`"
        )),
        libc::ERANGE => Some(format!("the MTU of {name} or of its other end is too large for XDP")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_an_interface_suggest_the_cause() {
        let queues = Channels { rx: 0, tx: 1, combined: 2, rx_max: 0, tx_max: 1, combined_max: 2 };
        for (sentence, errno, mtu, lro, expected) in [
            ("LRO", libc::EOPNOTSUPP, 9000, true, Some("large receive offload is on")),
            ("queues", libc::ENOSPC, 1500, false, Some("queues for XDP (2 to receive by, 3 to")),
            ("its own MTU", libc::EOPNOTSUPP, 9000, false, Some("ip link set eth0 mtu 3000")),
            ("another's MTU", libc::ERANGE, 1500, false, Some("of its other end")),
            ("a bond", libc::EEXIST, 1500, false, Some("a bond above eth0")),
            ("nothing to see", libc::EOPNOTSUPP, 1500, false, None),
        ] {
            let found = cause(errno, "eth0", mtu, lro, Some(queues));
            match (&found, expected) {
                (Some(found), Some(expected)) if found.contains(expected) => {}
                (None, None) => {}
                _ => panic!("{sentence}: {found:?}"),
            }
        }
    }
}
