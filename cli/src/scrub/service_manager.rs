//! Messages to the service manager (sd_notify(3)).

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::notice::try_say;

/// Sends a message if a service manager started the command.
pub fn notify(message: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let send = || -> io::Result<usize> {
        let address = match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(&path)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold up the deadline of a policy.
        socket.set_nonblocking(true)?;
        socket.send_to_addr(message.as_bytes(), &address)
    };
    if let Err(error) = send() {
        try_say(format_args!("cannot notify {}, the NOTIFY_SOCKET: {error}", path.display()));
    }
}
