//! Whether an interface is there and switched on, asked so that nobody waits: these questions take
//! no lock of the kernel's (net/core/dev_ioctl.c, `dev_ifsioc_locked`), as netlink's do (rtnl).
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::Interface;
use crate::error::{Error, Result};

/// A way to ask about one interface. It is known by its number: a new name changes nothing.
#[derive(Debug)]
pub struct Presence {
    socket: OwnedFd,
    index: u32,
    name: String,
}

/// What an interface is at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Whether it is switched on (`IFF_UP`).
    pub up: bool,
    /// Whether it is on and has a carrier (`IFF_RUNNING`).
    pub running: bool,
    /// The most bytes of a packet after the link-layer header.
    pub mtu: u32,
}

impl Presence {
    /// Of an interface of this thread's network namespace.
    ///
    /// # Errors
    /// No socket is to be had.
    pub fn of(interface: &Interface) -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)
            .map_err(|e| Error::system("open a socket to watch", interface.name.as_str(), e))?;
        Ok(Self::by(socket, interface))
    }

    /// Of an interface of a socket's network namespace; any kind of socket will do.
    pub(crate) fn by(socket: OwnedFd, interface: &Interface) -> Self {
        Self { socket, index: interface.index, name: interface.name.clone() }
    }

    /// What it is now.
    ///
    /// # Errors
    /// It was removed.
    pub fn look(&self) -> Result<State> {
        self.ask().map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => Error::removed(&self.name),
            _ => Error::system("look at", self.name.as_str(), error),
        })
    }

    /// Whether packets may be sent to it.
    ///
    /// # Errors
    /// It was removed, or is down.
    pub fn check_up(&self) -> Result<State> {
        let state = self.look()?;
        if state.up {
            return Ok(state);
        }
        let down = io::Error::from_raw_os_error(libc::ENETDOWN);
        Err(Error::system("send to", self.name.as_str(), down)
            .remedy("the interface is down: bring it up"))
    }

    fn ask(&self) -> io::Result<State> {
        let mut request = libc::ifreq {
            ifr_name: [0 as c_char; libc::IFNAMSIZ],
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_ifindex: self.index.cast_signed() },
        };
        self.call(libc::SIOCGIFNAME, &mut request)?;
        self.call(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: the kernel has just written this field; any bits are a number.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        self.call(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: as above.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(State {
            up: i32::from(flags) & libc::IFF_UP != 0,
            running: i32::from(flags) & libc::IFF_RUNNING != 0,
            mtu: u32::try_from(mtu).unwrap_or_default(),
        })
    }

    fn call(&self, number: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: the three requests read and write the structure and nothing else.
        let status = unsafe { libc::ioctl(self.socket.as_raw_fd(), number, request) };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link;

    #[test]
    fn an_interface_is_what_netlink_says_and_one_that_is_not_there_is_gone() {
        let lo = link::interface(None, "lo").unwrap();
        let state = Presence::of(&lo).unwrap().look().unwrap();
        assert_eq!(state, State { up: lo.up, running: lo.running, mtu: lo.mtu });
        let nobody = Interface { index: 1 << 30, name: "nobody0".into(), ..lo };
        let error = Presence::of(&nobody).unwrap().look().unwrap_err();
        assert!(matches!(error, Error::Gone { .. }), "{error}");
    }
}
