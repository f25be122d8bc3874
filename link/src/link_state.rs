//! Link state, queried without the kernel's rtnl lock (net/core/dev_ioctl.c, `dev_ifsioc_locked`), and
//! names of devices, remembered beyond their removal.
//!
//! The kernel forgets the name of a device with the device. Its messages about the device queue at a
//! socket until they are read (RTM_NEWLINK, RTM_DELLINK; rtnetlink(7)), so a late reader finds the name
//! there.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use netlink_sys::Socket;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::interface::parse_link;
use super::netlink::{BUFFER_BYTES, messages, subscribe};
use super::{Interface, Netlink};
use sluicegate_base::error::{Error, Result};
use sluicegate_filter::Instruction;
use sluicegate_filter::cbpf::{self, Compare, Op, Operand, Size};

/// An interface is asked about by its name, which may change meanwhile.
const MAX_ASKS: usize = 8;

/// A way to ask about one interface. It is known by its number: a new name changes nothing.
#[derive(Debug)]
pub struct LinkState {
    socket: OwnedFd,
    /// Asks with the lock held.
    netlink: Mutex<Netlink>,
    interface: Interface,
}

/// The state of an interface at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// True if it is switched on (`IFF_UP`).
    pub up: bool,
    /// True if it is on and has a carrier (`IFF_RUNNING`).
    pub running: bool,
    /// The most bytes of a packet after the link-layer header.
    pub mtu: u32,
}

impl LinkState {
    /// Opens a query for an interface of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel gives no socket.
    pub fn of(interface: &Interface) -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)
            .map_err(|e| Error::system("open a socket to watch", interface.name.as_str(), e))?;
        let netlink = Mutex::new(Netlink::open(None)?);
        Ok(Self { socket, netlink, interface: interface.clone() })
    }

    /// Its state now.
    ///
    /// # Errors
    /// It was removed.
    pub fn look(&self) -> Result<State> {
        self.ask().map_err(|error| self.failed(error))
    }

    /// Checks that packets may be sent to it.
    ///
    /// # Errors
    /// It was removed, or is down.
    pub fn check_up(&self) -> Result<State> {
        let state = self.look()?;
        if state.up { Ok(state) } else { Err(self.down()) }
    }

    /// The error for an interface that is down, or is being removed: the kernel switches it off first.
    /// With its lock held it tells one from the other.
    pub fn down(&self) -> Error {
        let mut netlink = self.netlink.lock().unwrap_or_else(PoisonError::into_inner);
        match netlink.again(&self.interface) {
            Err(removed @ Error::Removed { .. }) => removed,
            _ => {
                let down = io::Error::from_raw_os_error(libc::ENETDOWN);
                let name = self.interface.name.as_str();
                Error::system("send to", name, down)
                    .remedy(format!("the interface is down: bring it up: ip link set {name} up"))
            }
        }
    }

    /// Its name now.
    ///
    /// # Errors
    /// It was removed.
    pub(crate) fn name(&self) -> Result<String> {
        let request = self.named().map_err(|error| self.failed(error))?;
        let bytes =
            request.ifr_name.iter().map(|c| c.cast_unsigned()).take_while(|&byte| byte != 0);
        Ok(String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned())
    }

    fn failed(&self, error: io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => Error::removed(&self.interface.name),
            _ => Error::system("look at", self.interface.name.as_str(), error),
        }
    }

    /// A request that names it.
    fn named(&self) -> io::Result<libc::ifreq> {
        let mut request = libc::ifreq {
            ifr_name: [0 as c_char; libc::IFNAMSIZ],
            ifr_ifru: libc::__c_anonymous_ifr_ifru {
                ifru_ifindex: self.interface.index.cast_signed(),
            },
        };
        self.call(libc::SIOCGIFNAME, &mut request)?;
        Ok(request)
    }

    fn ask(&self) -> io::Result<State> {
        for _ in 1..MAX_ASKS {
            match self.ask_by(self.named()?) {
                // It got another name between the questions.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                answer => return answer,
            }
        }
        self.ask_by(self.named()?)
    }

    fn ask_by(&self, mut request: libc::ifreq) -> io::Result<State> {
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

// The kernel's last message about an interface: RTM_DELLINK, when the interface is removed from its
// network namespace or moves to another.
//
// A filter on the socket lets no other message in. The socket's buffer bears what a host with many
// containers does to its other interfaces, though nobody reads until the end.
//
// Sources: rtnetlink(7), linux/rtnetlink.h, net/core/rtnetlink.c (`rtmsg_ifinfo`).

/// Offsets in a message: the type in `struct nlmsghdr`, family and index in the `struct ifinfomsg`
/// behind it.
const TYPE: u32 = 4;
const FAMILY: u32 = 16;
const INDEX: u32 = 20;

/// Receives the message about one interface.
#[derive(Debug)]
pub(super) struct LinkRemoval {
    socket: Socket,
}

impl LinkRemoval {
    /// Listens from now on, in a namespace or in this thread's, for the interface with this index.
    ///
    /// # Errors
    /// As [`subscribe`].
    pub(crate) fn open(netns: Option<&str>, index: u32) -> Result<Self> {
        let attach = |socket: &Socket| cbpf::attach_to_socket(socket.as_fd(), &filter(index));
        Ok(Self { socket: subscribe(netns, libc::RTMGRP_LINK, attach)? })
    }

    /// Returns the last state of the interface if it was removed.
    pub(crate) fn take(&self) -> Option<Interface> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let bytes = loop {
            match self.socket.recv(&mut &mut buffer[..], libc::MSG_TRUNC) {
                Ok(bytes) => break bytes,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        };
        let message = messages(buffer.get(..bytes)?).next()?.ok()?;
        parse_link(message.body)
    }
}

/// Passes the removal of one interface. A bridge reports ports that leave it by the same type of
/// message, with its own family. Classic BPF loads in network byte order, netlink has the host's.
fn filter(index: u32) -> Vec<Instruction> {
    let fields = [
        (Size::H, TYPE, u32::from(libc::RTM_DELLINK.to_be())),
        (Size::B, FAMILY, libc::AF_UNSPEC as u32),
        (Size::W, INDEX, index.to_be()),
    ];
    let ops = 2 * fields.len() + 1;
    let checks = fields.iter().enumerate().flat_map(|(number, &(width, offset, value))| {
        // Behind this branch, up to the last operation, which rejects.
        let to_end = (ops - (2 * number + 2)) as u8;
        let equal = Op::Branch(Compare::Eq, Operand::K(value), 0, to_end);
        [Op::Load(width, offset), equal]
    });
    checks.chain([Op::Return(u32::MAX), Op::Return(0)]).map(Op::encode).collect()
}

/// Names that are remembered at most; those of the lowest indices, which are the oldest, go first.
const MAX_NAMES: usize = 4096;

/// Names of the devices of one network namespace that the kernel has sent messages about.
#[derive(Debug)]
pub struct LinkNames {
    socket: Socket,
    buffer: Vec<u8>,
    names: BTreeMap<u32, String>,
}

impl LinkNames {
    /// Listens from now on, in the namespace `netns`, or in this thread's.
    ///
    /// # Errors
    /// No such namespace, no privilege to enter it, or no socket.
    pub fn open(netns: Option<&str>) -> Result<Self> {
        let socket = subscribe(netns, libc::RTMGRP_LINK, |_| Ok(()))?;
        Ok(Self { socket, buffer: vec![0; BUFFER_BYTES], names: BTreeMap::new() })
    }

    /// The last name of a device, if messages named it.
    pub fn get(&mut self, index: u32) -> Option<&str> {
        self.read();
        self.names.get(&index).map(String::as_str)
    }

    /// Reads the messages that wait at the socket, so that there is room for more.
    pub fn read(&mut self) {
        loop {
            let bytes = match self.socket.recv(&mut &mut self.buffer[..], libc::MSG_TRUNC) {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // The socket had no room for some messages; it still has the others.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => continue,
                Err(_) => return,
            };
            let received = self.buffer.get(..bytes).unwrap_or_default();
            for message in messages(received).map_while(io::Result::ok) {
                if matches!(message.kind, libc::RTM_NEWLINK | libc::RTM_DELLINK)
                    && let Some(link) = parse_link(message.body)
                {
                    self.names.insert(link.index, link.name);
                    if self.names.len() > MAX_NAMES {
                        self.names.pop_first();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as link;

    #[test]
    fn an_interface_is_what_netlink_says_and_a_missing_one_is_removed() {
        let lo = link::interface(None, "lo").unwrap();
        let state = LinkState::of(&lo).unwrap().look().unwrap();
        assert_eq!(state, State { up: lo.up, running: lo.running, mtu: lo.mtu });
        let nobody = Interface { index: 1 << 30, name: "nobody0".into(), ..lo };
        let error = LinkState::of(&nobody).unwrap().look().unwrap_err();
        assert!(matches!(error, Error::Removed { .. }), "{error}");
    }
}
