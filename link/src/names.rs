//! Names of network devices, remembered beyond their removal.
//!
//! The kernel forgets the name of a device with the device. Its messages about the device queue at a
//! socket until they are read (RTM_NEWLINK, RTM_DELLINK; rtnetlink(7)), so a reader that comes too late
//! for the device finds the name there.

use std::collections::BTreeMap;
use std::io;

use netlink_sys::Socket;

use super::netlink::{BUFFER_BYTES, attribute, link_messages, messages};
use sluicegate_base::error::Result;

// linux/rtnetlink.h, linux/if_link.h
const LINK_HEADER_BYTES: usize = 16;
const IFLA_IFNAME: u16 = 3;

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
        let socket = link_messages(netns, |_| Ok(()))?;
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
                if matches!(message.message_type(), libc::RTM_NEWLINK | libc::RTM_DELLINK)
                    && let Some((index, name)) = index_and_name(message.payload())
                {
                    self.names.insert(index, name);
                    if self.names.len() > MAX_NAMES {
                        self.names.pop_first();
                    }
                }
            }
        }
    }
}

/// The index and the name in the body of a message about a device (struct ifinfomsg, attributes).
fn index_and_name(body: &[u8]) -> Option<(u32, String)> {
    let (header, attributes) = body.split_at_checked(LINK_HEADER_BYTES)?;
    let index = header[4..8].first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))?;
    let name = attribute(attributes, IFLA_IFNAME)?;
    let name = name.strip_suffix(&[0]).unwrap_or(&name);
    Some((index, String::from_utf8_lossy(name).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_gives_the_index_and_the_name() {
        let mut body = vec![0; LINK_HEADER_BYTES];
        body[4..8].copy_from_slice(&42u32.to_ne_bytes());
        let length = |bytes: u16| bytes.to_ne_bytes();
        let name = [&length(9)[..], &IFLA_IFNAME.to_ne_bytes(), b"eth7\0\0\0\0"].concat();
        for (sentence, bytes, found) in [
            ("a name ends at its zero", [&body[..], &name].concat(), Some((42, "eth7".into()))),
            ("a body without a name gives none", body.clone(), None),
            ("a body that is cut short gives none", body[..15].to_vec(), None),
        ] {
            assert_eq!(index_and_name(&bytes), found, "{sentence}");
        }
    }
}
