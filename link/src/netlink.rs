//! A blocking conversation with the kernel by netlink: rtnetlink, and generic families.
//!
//! Sources: netlink(7), rtnetlink(7), linux/netlink.h. Reading needs no privilege; changing
//! needs `CAP_NET_ADMIN` in the namespace the socket was opened in.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_ECHO, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::netns;
use sluicegate_base::error::{Error, Result};

// linux/netlink.h
const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_ALIGN: usize = 4;
// linux/rtnetlink.h
pub(super) const RTMGRP_LINK: u32 = 1;

/// Larger than the 32 KiB the kernel fills at most in one go of a dump.
pub(super) const BUFFER_BYTES: usize = 64 << 10;
/// A dump that was disturbed by a change is asked for again, this often.
const DUMP_TRIES: usize = 8;

/// An open socket to one network namespace's rtnetlink.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket in the namespace `netns`, or in this thread's.
    ///
    /// # Errors
    /// As [`netns::run_in`], or the kernel gives no socket.
    pub fn open(netns: Option<&str>) -> Result<Self> {
        Self::open_to(netns, NETLINK_ROUTE)
    }

    /// Opens a socket to another netlink family than rtnetlink.
    pub(super) fn open_to(netns: Option<&str>, protocol: isize) -> Result<Self> {
        let socket = netns::run_in(netns, || {
            let socket = Socket::new(protocol).and_then(|mut socket| {
                socket.bind_auto()?;
                socket.connect(&SocketAddr::new(0, 0))?;
                Ok(socket)
            });
            socket.map_err(|e| Error::system("open", "a netlink socket", e))
        })?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Asks for all there is of something and collects what `each` makes of the body of each
    /// answer; what it can make nothing of is passed over.
    pub(super) fn dump<T>(
        &mut self,
        request: &RouteNetlinkMessage,
        mut each: impl FnMut(&[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut found = Vec::new();
        for _ in 0..DUMP_TRIES {
            found.clear();
            let sequence = self.send(request.clone(), NLM_F_DUMP)?;
            let mut disturbed = false;
            self.answers(sequence, |flags, body| {
                disturbed |= flags & NLM_F_DUMP_INTR != 0;
                found.extend(each(body));
            })?;
            if !disturbed {
                break;
            }
        }
        // Where so much changes that no listing is of one moment, the last one counts.
        Ok(found)
    }

    /// Asks for one thing.
    pub(super) fn get<T>(
        &mut self,
        request: impl NetlinkSerializable,
        mut each: impl FnMut(&[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        // Of queueing disciplines the kernel tells those who want an echo only (net/sched/sch_api.c).
        let sequence = self.send(request, NLM_F_ACK | NLM_F_ECHO)?;
        let mut found = None;
        self.answers(sequence, |_, body| found = each(body))?;
        Ok(found)
    }

    /// Asks for a change and waits until it is done.
    pub(super) fn change(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let sequence = self.send(request, flags | NLM_F_ACK)?;
        self.answers(sequence, |_, _| ())
    }

    fn send(&mut self, request: impl NetlinkSerializable, flags: u16) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        Ok(self.sequence)
    }

    /// Reads the answers to one request to their end: an acknowledgement, an error, or the end
    /// of a dump. What is left of an earlier request is passed over.
    fn answers(&mut self, sequence: u32, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        loop {
            let bytes = match self.socket.recv(&mut &mut self.buffer[..], libc::MSG_TRUNC) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            let answer = self
                .buffer
                .get(..bytes)
                .ok_or_else(|| malformed("an answer larger than 64 KiB"))?;
            for message in messages(answer) {
                let message = message?;
                if message.sequence_number() == sequence {
                    match message.message_type() {
                        NLMSG_NOOP => {}
                        NLMSG_DONE | NLMSG_ERROR => return status(message.payload()),
                        _ => each(message.flags(), message.payload()),
                    }
                }
            }
        }
    }
}

/// The messages in what one call received. A malformed one is the last.
pub(super) fn messages(mut rest: &[u8]) -> impl Iterator<Item = io::Result<NetlinkBuffer<&[u8]>>> {
    std::iter::from_fn(move || {
        let current = std::mem::take(&mut rest);
        if current.is_empty() {
            return None;
        }
        let message = NetlinkBuffer::new_checked(current);
        if let Ok(message) = &message {
            let length = (message.length() as usize).next_multiple_of(NLMSG_ALIGN);
            rest = current.get(length..).unwrap_or_default();
        }
        Some(message.map_err(|error| malformed(&error.to_string())))
    })
}

/// Opens a socket for the messages of multicast groups (`RTMGRP_` bits) of a namespace, or of this
/// thread's, from now on.
/// `prepare` sets the socket up before the first message can come.
///
/// # Errors
/// As [`netns::run_in`], or the kernel gives no socket.
pub(super) fn subscribe(
    netns: Option<&str>,
    groups: u32,
    prepare: impl FnOnce(&Socket) -> io::Result<()> + Send,
) -> Result<Socket> {
    netns::run_in(netns, || {
        let socket = Socket::new(NETLINK_ROUTE).and_then(|mut socket| {
            prepare(&socket)?;
            socket.bind(&SocketAddr::new(0, groups))?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        });
        socket.map_err(|e| Error::system("open", "a netlink socket", e))
    })
}

/// The result that an error message and the end of a dump begin with: 0 or a negative errno.
fn status(body: &[u8]) -> io::Result<()> {
    match body.first_chunk().map(|code| i32::from_ne_bytes(*code)) {
        // The end of a dump may come without a body.
        None | Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
    }
}

/// The value of the first attribute of a kind.
pub(super) fn attribute(bytes: &[u8], kind: u16) -> Option<Vec<u8>> {
    let found = NlasIterator::new(bytes).map_while(|nla| nla.ok()).find(|nla| nla.kind() == kind);
    found.map(|nla| nla.value().to_vec())
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("netlink: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_an_answer_is_its_first_word() {
        let permission = (-libc::EPERM).to_ne_bytes();
        for (sentence, body, errno) in [
            ("an empty end is no error", &[][..], None),
            ("zero is an acknowledgement", &[0; 20][..], None),
            ("a negative number is an errno", &permission[..], Some(libc::EPERM)),
        ] {
            let found = status(body).err().and_then(|e| e.raw_os_error());
            assert_eq!(found, errno, "{sentence}");
        }
    }
}
