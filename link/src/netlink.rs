//! Blocking requests to the kernel by netlink: rtnetlink, and generic families.
//!
//! Sources: netlink(7), rtnetlink(7), linux/netlink.h. Reading needs no privilege; changing needs
//! `CAP_NET_ADMIN` in the socket's namespace.

use std::io;
use std::net::IpAddr;

use libc::{NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_ECHO, NLM_F_REQUEST};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::netns;
use sluicegate_base::error::{Error, Result};

/// Bytes of a `struct nlmsghdr`, and of a `struct nlattr` (linux/netlink.h).
const HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Messages and attributes begin at multiples of this.
const ALIGN: usize = 4;
const NOOP: u16 = libc::NLMSG_NOOP as u16;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;

/// Larger than the 32 KiB that the kernel fills at most in one part of a dump.
pub(super) const BUFFER_BYTES: usize = 64 << 10;
/// The number of attempts at a dump that a change may interrupt.
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
    /// The errors of [`netns::run_in`]; no socket is available.
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

    /// Requests all objects of a kind. Collects the results of `each` for the body of each answer; skips
    /// answers for which it returns `None`.
    pub(super) fn dump<T>(
        &mut self,
        kind: u16,
        request: &Body,
        mut each: impl FnMut(&[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut found = Vec::new();
        for _ in 0..DUMP_TRIES {
            found.clear();
            let sequence = self.send(kind, request, NLM_F_DUMP)?;
            let mut disturbed = false;
            self.answers(sequence, |flags, body| {
                disturbed |= i32::from(flags) & NLM_F_DUMP_INTR != 0;
                found.extend(each(body));
            })?;
            if !disturbed {
                break;
            }
        }
        // If changes interrupted every attempt, the last one counts.
        Ok(found)
    }

    /// Requests one object.
    pub(super) fn get<T>(
        &mut self,
        kind: u16,
        request: &Body,
        mut each: impl FnMut(&[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        // The kernel reports queueing disciplines only with NLM_F_ECHO (net/sched/sch_api.c).
        let sequence = self.send(kind, request, NLM_F_ACK | NLM_F_ECHO)?;
        let mut found = None;
        self.answers(sequence, |_, body| found = each(body))?;
        Ok(found)
    }

    /// Requests a change and waits until it is done.
    pub(super) fn change(&mut self, kind: u16, request: &Body, flags: i32) -> io::Result<()> {
        let sequence = self.send(kind, request, flags | NLM_F_ACK)?;
        self.answers(sequence, |_, _| ())
    }

    fn send(&mut self, kind: u16, Body(body): &Body, flags: i32) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        let flags = (NLM_F_REQUEST | flags) as u16;
        let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].as_flattened());
        bytes.extend([self.sequence.to_ne_bytes(), [0; 4]].as_flattened());
        bytes.extend(body);
        self.socket.send(&bytes, 0)?;
        Ok(self.sequence)
    }

    /// Reads the answers to one request to their end: an acknowledgement, an error, or the end of a dump.
    /// Skips leftovers of an earlier request.
    fn answers(&mut self, sequence: u32, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        loop {
            for message in messages(receive(&self.socket, &mut self.buffer)?) {
                let message = message?;
                if message.sequence == sequence {
                    match message.kind {
                        NOOP => {}
                        DONE | ERROR => return status(message.body),
                        _ => each(message.flags, message.body),
                    }
                }
            }
        }
    }
}

/// A message from the kernel.
pub(super) struct NetlinkMessage<'a> {
    pub(super) kind: u16,
    flags: u16,
    sequence: u32,
    pub(super) body: &'a [u8],
}

impl<'a> NetlinkMessage<'a> {
    /// Returns the message at the beginning of some bytes, and the bytes after it; `None` if it is truncated.
    fn first(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let length = word(bytes, 0)? as usize;
        let (kind, flags, sequence) = (half(bytes, 4)?, half(bytes, 6)?, word(bytes, 8)?);
        let body = bytes.get(HEADER_BYTES..length)?;
        let rest = bytes.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((Self { kind, flags, sequence, body }, rest))
    }
}

/// Iterates over the messages received by one call. A malformed one is the last.
pub(super) fn messages(mut rest: &[u8]) -> impl Iterator<Item = io::Result<NetlinkMessage<'_>>> {
    std::iter::from_fn(move || {
        let bytes = std::mem::take(&mut rest);
        if bytes.is_empty() {
            return None;
        }
        let Some((message, behind)) = NetlinkMessage::first(bytes) else {
            return Some(Err(malformed("a message cut short")));
        };
        rest = behind;
        Some(Ok(message))
    })
}

/// The body of a message, or the value of a nested attribute: an optional kernel structure, then attributes.
#[derive(Clone, Debug, Default)]
pub(super) struct Body(Vec<u8>);

impl Body {
    /// Creates a body with a structure of these 32-bit words.
    pub(super) fn of(words: &[u32]) -> Self {
        Self(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    /// Creates a body with a structure that begins with four bytes, often with the address family first.
    pub(super) fn begin(bytes: [u8; 4], words: &[u32]) -> Self {
        let first = u32::from_ne_bytes(bytes);
        Self::of(&[&[first], words].concat())
    }

    /// Adds an attribute.
    pub(super) fn with(mut self, kind: u16, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        // The kernel refuses a message that ends before its attribute.
        let bytes = u16::try_from(ATTRIBUTE_HEADER_BYTES + value.len()).unwrap_or(u16::MAX);
        self.0.extend([bytes.to_ne_bytes(), kind.to_ne_bytes()].as_flattened());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
        self
    }

    /// Adds an attribute with a number.
    pub(super) fn with_number(self, kind: u16, number: u32) -> Self {
        self.with(kind, number.to_ne_bytes())
    }

    /// Adds an attribute with a text, which ends with a zero.
    pub(super) fn with_text(self, kind: u16, text: &str) -> Self {
        self.with(kind, [text.as_bytes(), &[0]].concat())
    }

    /// Adds an attribute with an IP address.
    pub(super) fn with_ip(self, kind: u16, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => self.with(kind, ip.octets()),
            IpAddr::V6(ip) => self.with(kind, ip.octets()),
        }
    }
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Iterates over the attributes in these bytes, with their kinds; ends at the first truncated one.
pub(super) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let bytes = usize::from(half(rest, 0)?);
        let kind = half(rest, 2)? & libc::NLA_TYPE_MASK as u16;
        let value = rest.get(ATTRIBUTE_HEADER_BYTES..bytes)?;
        rest = rest.get(bytes.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Returns the value of the first attribute of a kind.
pub(super) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(it, _)| *it == kind).map(|(_, value)| value)
}

/// Reads the 32-bit number at an offset.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// Reads the 16-bit number at an offset.
pub(super) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

/// Reads a text, up to its zero byte.
pub(super) fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Converts a value to an IP address.
pub(super) fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => value.first_chunk::<4>().map(|bytes| (*bytes).into()),
        16 => value.first_chunk::<16>().map(|bytes| (*bytes).into()),
        _ => None,
    }
}

/// Returns the number of an IP address's family.
pub(super) fn family(ip: IpAddr) -> u8 {
    (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

/// Opens a socket that receives the messages of multicast groups (`RTMGRP_` bits) in a namespace, or in this
/// thread's. `prepare` configures the socket before the first message can arrive.
///
/// # Errors
/// The errors of [`netns::run_in`]; no socket is available.
pub(super) fn subscribe(
    netns: Option<&str>,
    groups: i32,
    prepare: impl FnOnce(&Socket) -> io::Result<()> + Send,
) -> Result<Socket> {
    netns::run_in(netns, || {
        let socket = Socket::new(NETLINK_ROUTE).and_then(|mut socket| {
            prepare(&socket)?;
            socket.bind(&SocketAddr::new(0, groups.cast_unsigned()))?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        });
        socket.map_err(|e| Error::system("open", "a netlink socket", e))
    })
}

/// Receives the messages of one datagram into a buffer of [`BUFFER_BYTES`].
pub(super) fn receive<'a>(socket: &Socket, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let bytes = loop {
        match socket.recv(&mut &mut buffer[..], libc::MSG_TRUNC) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    buffer.get(..bytes).ok_or_else(|| malformed("a datagram larger than 64 KiB"))
}

/// Parses the result at the beginning of an error message or the end of a dump: 0 or a negative errno.
fn status(body: &[u8]) -> io::Result<()> {
    match body.first_chunk().map(|code| i32::from_ne_bytes(*code)) {
        // The end of a dump may have no body.
        None | Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
    }
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

    #[test]
    fn a_message_cut_short_is_the_last() {
        let body = Body::of(&[7]).with_text(3, "eth0").with(4, [1]);
        let bytes = [&(16 + body.0.len() as u32).to_ne_bytes()[..], &[16, 0, 2, 0], &[9; 8]];
        let message = [bytes.concat(), body.0].concat();
        for (sentence, bytes, whole, broken) in [
            ("nothing", &[][..], 0, 0),
            ("one", &message[..], 1, 0),
            ("two", &message.repeat(2)[..], 2, 0),
            ("one and a half", &message.repeat(2)[..60], 1, 1),
            ("a length of nothing", &[0; 32][..], 0, 1),
        ] {
            let found: Vec<_> = messages(bytes).collect();
            let is_whole = |it: &&io::Result<NetlinkMessage<'_>>| it.is_ok();
            assert_eq!(found.iter().filter(is_whole).count(), whole, "{sentence}");
            assert_eq!(found.len(), whole + broken, "{sentence}");
            for message in found.iter().flatten() {
                assert_eq!(word(message.body, 0), Some(7), "{sentence}");
                assert_eq!(attribute(&message.body[4..], 3).map(text), Some("eth0".into()));
                assert_eq!(attribute(&message.body[4..], 4), Some(&[1][..]), "{sentence}");
            }
        }
    }

    #[test]
    fn an_attribute_cut_short_ends_the_list() {
        let list = Body::default().with_number(1, 2).with(0x8000 | 2, [3; 5]);
        for bytes in 0..list.0.len() {
            let found: Vec<_> = attributes(&list.0[..bytes]).map(|(kind, _)| kind).collect();
            let expected = if bytes < 8 {
                &[][..]
            } else if bytes < 17 {
                &[1][..]
            } else {
                &[1, 2]
            };
            assert_eq!(found, expected, "{bytes} bytes");
        }
    }
}
