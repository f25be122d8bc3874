//! The kernel's last message about an interface: RTM_DELLINK, when the interface is removed from its
//! network namespace or moves to another.
//!
//! A filter on the socket lets no other message in. The socket's buffer bears what a host with many
//! containers does to its other interfaces, though nobody reads until the end.
//!
//! Sources: rtnetlink(7), linux/rtnetlink.h, net/core/rtnetlink.c (`rtmsg_ifinfo`).

use std::io;
use std::os::fd::AsFd;

use netlink_sys::Socket;

use super::Interface;
use super::interface::parse_link;
use super::netlink::{BUFFER_BYTES, link_messages, messages};
use sluicegate_base::error::Result;
use sluicegate_filter::cbpf::{Condition, Op, Operand, Width};
use sluicegate_filter::{Instruction, attach};

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
    /// As [`link_messages`].
    pub fn open(netns: Option<&str>, index: u32) -> Result<Self> {
        let attach = |socket: &Socket| attach::to_socket(socket.as_fd(), &filter(index));
        Ok(Self { socket: link_messages(netns, attach)? })
    }

    /// Returns the last state of the interface if it was removed.
    pub fn take(&self) -> Option<Interface> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let bytes = loop {
            match self.socket.recv(&mut &mut buffer[..], libc::MSG_TRUNC) {
                Ok(bytes) => break bytes,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        };
        let message = messages(buffer.get(..bytes)?).next()?.ok()?;
        parse_link(message.payload())
    }
}

/// Passes the removal of one interface. A bridge reports ports that leave it by the same type of
/// message, with its own family. Classic BPF loads in network byte order, netlink has the host's.
fn filter(index: u32) -> Vec<Instruction> {
    let fields = [
        (Width::Half, TYPE, u32::from(libc::RTM_DELLINK.to_be())),
        (Width::Byte, FAMILY, libc::AF_UNSPEC as u32),
        (Width::Word, INDEX, index.to_be()),
    ];
    let ops = 2 * fields.len() + 1;
    let checks = fields.iter().enumerate().flat_map(|(number, &(width, offset, value))| {
        // Behind this branch, up to the last operation, which rejects.
        let to_end = (ops - (2 * number + 2)) as u8;
        let equal = Op::Branch(Condition::Equal, Operand::K(value), 0, to_end);
        [Op::Load(width, offset), equal]
    });
    checks.chain([Op::Return(u32::MAX), Op::Return(0)]).map(Op::encode).collect()
}
