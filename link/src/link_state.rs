//! Link state, queried without the kernel's rtnl lock (net/core/dev_ioctl.c, `dev_ifsioc_locked`), and names
//! of devices, kept after their removal.
//!
//! The kernel forgets a device's name when it removes the device. But its messages about the device
//! (RTM_NEWLINK, RTM_DELLINK; rtnetlink(7)) stay in a socket's queue until they are read, so a late reader
//! still gets the name.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use netlink_sys::Socket;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::interface::parse_link;
use super::netlink::{BUFFER_BYTES, messages, receive, subscribe};
use super::{Interface, Netlink, ifreq};
use sluicegate_base::error::{Error, Result};
use sluicegate_filter::Instruction;
use sluicegate_filter::cbpf::{self, Compare, Op, Operand, Size};

/// Maximum of requests for one query: a request names the interface, and the name may change meanwhile.
const MAX_ATTEMPTS: usize = 8;

/// A query of one interface's state. The interface is identified by its index, so a new name has no effect.
#[derive(Debug)]
pub struct LinkState {
    socket: OwnedFd,
    /// Requests that take the lock.
    netlink: Mutex<Netlink>,
    interface: Interface,
}

/// The state of an interface at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// True if it is up (`IFF_UP`).
    pub up: bool,
    /// True if it is on and has a carrier (`IFF_RUNNING`).
    pub running: bool,
    /// Maximum bytes of a packet after the link-layer header.
    pub mtu: u32,
}

impl LinkState {
    /// Opens a query for an interface of this thread's network namespace.
    ///
    /// # Errors
    /// No socket is available.
    pub fn of(interface: &Interface) -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)
            .map_err(|e| Error::system("open a socket to watch", interface.name.as_str(), e))?;
        let netlink = Mutex::new(Netlink::open(None)?);
        Ok(Self { socket, netlink, interface: interface.clone() })
    }

    /// Returns its current state.
    ///
    /// # Errors
    /// The interface was removed.
    pub fn query(&self) -> Result<LinkStatus> {
        self.ask().map_err(|error| self.failed(error))
    }

    /// Checks that packets may be sent to it.
    ///
    /// # Errors
    /// The interface was removed, or is down.
    pub fn check_up(&self) -> Result<LinkStatus> {
        let state = self.query()?;
        if state.up { Ok(state) } else { Err(self.down()) }
    }

    /// Returns the error for an interface that is down or is being removed, because a removal first sets it
    /// down. A request that takes the lock distinguishes the two.
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

    /// Returns its current name.
    ///
    /// # Errors
    /// The interface was removed.
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

    /// Creates a request with its name.
    fn named(&self) -> io::Result<libc::ifreq> {
        let ifru_ifindex = self.interface.index.cast_signed();
        let mut request = ifreq("", libc::__c_anonymous_ifr_ifru { ifru_ifindex });
        self.call(libc::SIOCGIFNAME, &mut request)?;
        Ok(request)
    }

    fn ask(&self) -> io::Result<LinkStatus> {
        for _ in 1..MAX_ATTEMPTS {
            match self.ask_by(self.named()?) {
                // The interface was renamed between the requests.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                answer => return answer,
            }
        }
        self.ask_by(self.named()?)
    }

    fn ask_by(&self, mut request: libc::ifreq) -> io::Result<LinkStatus> {
        self.call(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: the kernel has just written this field; any bits are a number.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        self.call(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: as above.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(LinkStatus {
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
// A filter on the socket rejects all other messages. So changes of other interfaces, such as those of many
// containers, cannot fill the socket's buffer, although nobody reads it until the end.
//
// Sources: rtnetlink(7), linux/rtnetlink.h, net/core/rtnetlink.c (`rtmsg_ifinfo`).

/// Offsets in a message: the type in `struct nlmsghdr`, family and index in the `struct ifinfomsg` after it.
const TYPE: u32 = 4;
const FAMILY: u32 = 16;
const INDEX: u32 = 20;

/// Receives the message about the removal of one interface.
#[derive(Debug)]
pub(super) struct LinkRemoval {
    socket: Socket,
}

impl LinkRemoval {
    /// Starts to listen, in a namespace or in this thread's, for the interface with this index.
    ///
    /// # Errors
    /// The errors of [`subscribe`].
    pub(crate) fn open(netns: Option<&str>, index: u32) -> Result<Self> {
        let filter = interface_filter(libc::RTM_DELLINK, index);
        let attach = |socket: &Socket| cbpf::attach_to_socket(socket.as_fd(), &filter);
        Ok(Self { socket: subscribe(netns, libc::RTMGRP_LINK, attach)? })
    }

    /// Returns the last state of the interface if it was removed.
    pub(crate) fn take(&self) -> Option<Interface> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let message = messages(receive(&self.socket, &mut buffer).ok()?).next()?.ok()?;
        parse_link(message.body)
    }
}

/// Returns a filter that passes the messages of one type about one interface; a `struct tcmsg` begins like a
/// `struct ifinfomsg`. A bridge reports ports that leave it like removed interfaces, with its own family.
/// Classic BPF loads in network byte order; netlink uses the host's.
pub(super) fn interface_filter(kind: u16, index: u32) -> Vec<Instruction> {
    let fields = [
        (Size::H, TYPE, u32::from(kind.to_be())),
        (Size::B, FAMILY, libc::AF_UNSPEC as u32),
        (Size::W, INDEX, index.to_be()),
    ];
    let ops = 2 * fields.len() + 1;
    let checks = fields.iter().enumerate().flat_map(|(number, &(width, offset, value))| {
        // The distance from the end of this branch to the last operation, which rejects.
        let to_end = (ops - (2 * number + 2)) as u8;
        let equal = Op::Branch(Compare::Eq, Operand::K(value), 0, to_end);
        [Op::Load(width, offset), equal]
    });
    checks.chain([Op::Return(u32::MAX), Op::Return(0)]).map(Op::encode).collect()
}

/// Maximum of names; those with the lowest indices, which are the oldest, are removed first.
const MAX_NAMES: usize = 4096;

/// Names of devices in one network namespace, from the kernel's messages.
#[derive(Debug)]
pub struct LinkNames {
    socket: Socket,
    buffer: Vec<u8>,
    names: BTreeMap<u32, String>,
}

impl LinkNames {
    /// Starts to listen, in the namespace `netns` or in this thread's.
    ///
    /// # Errors
    /// No such namespace, no privilege to enter it, or no socket.
    pub fn open(netns: Option<&str>) -> Result<Self> {
        let socket = subscribe(netns, libc::RTMGRP_LINK, |_| Ok(()))?;
        Ok(Self { socket, buffer: vec![0; BUFFER_BYTES], names: BTreeMap::new() })
    }

    /// Returns the last name of a device, if messages contained it.
    pub fn get(&mut self, index: u32) -> Option<&str> {
        self.read();
        self.names.get(&index).map(String::as_str)
    }

    /// Reads the queued messages, which makes room for more.
    pub fn read(&mut self) {
        loop {
            let received = match receive(&self.socket, &mut self.buffer) {
                Ok(received) => received,
                // The socket dropped some messages; the others are still queued.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => continue,
                // An oversized datagram: it is lost, later ones are still queued.
                Err(e) if e.kind() == io::ErrorKind::InvalidData => continue,
                Err(_) => return,
            };
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
        let state = LinkState::of(&lo).unwrap().query().unwrap();
        assert_eq!(state, LinkStatus { up: lo.up, running: lo.running, mtu: lo.mtu });
        let nobody = Interface { index: 1 << 30, name: "nobody0".into(), ..lo };
        let error = LinkState::of(&nobody).unwrap().query().unwrap_err();
        assert!(matches!(error, Error::Removed { .. }), "{error}");
    }
}
