//! Sending by sendmmsg(2): one system call a batch, one message a packet, one vector a slot.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use super::socket::Socket;
use crate::error::{Error, Result};
use crate::ring::Ring;

/// Messages of one system call.
const BATCH: usize = 64;
/// Most slots of a packet (netmap's limit).
const MOST_SLOTS: usize = 64;

/// The buffers of one batch, and how far the ring has been sent.
#[derive(Debug)]
pub(super) struct Sender {
    /// The next slot to send.
    next: u32,
    messages: Vec<libc::mmsghdr>,
    /// Slots of each message.
    slots: Vec<u32>,
    vectors: Vec<libc::iovec>,
    /// Packets sent.
    pub sent: u64,
    /// Packets the kernel would not take: too long for the interface, for example.
    pub refused: u64,
}

// SAFETY: the pointers in `messages` and `vectors` lead into this value and into the ring given
// to `send`; they are set anew in each call and never followed outside it.
unsafe impl Send for Sender {}

impl Sender {
    pub(super) fn new() -> Self {
        Self {
            next: 0,
            messages: Vec::with_capacity(BATCH),
            slots: Vec::with_capacity(BATCH),
            vectors: Vec::with_capacity(BATCH + MOST_SLOTS),
            sent: 0,
            refused: 0,
        }
    }

    /// Sends the slots the program has released. Returns how many are room again. What the
    /// kernel has no room for stays for the next call.
    pub(super) fn send(&mut self, socket: &Socket, ring: &mut Ring) -> Result<u32> {
        let before = self.next;
        while self.next != ring.head() {
            self.gather(ring);
            let flags = libc::MSG_DONTWAIT;
            let (fd, count) = (socket.fd().as_raw_fd(), self.messages.len() as u32);
            // SAFETY: `gather` pointed each message at vectors, and those at bytes of slots the
            // backend owns; all live, none changed during the call.
            let sent = unsafe { libc::sendmmsg(fd, self.messages.as_mut_ptr(), count, flags) };
            let Ok(sent) = usize::try_from(sent) else {
                let error = std::io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => break,
                    // This packet will never go: leave it out, go on with the next.
                    Some(libc::EMSGSIZE | libc::EINVAL) => {
                        self.refused += 1;
                        self.next = ring.after(self.next, self.slots[0]);
                        continue;
                    }
                    _ => return Err(Error::system("send to", socket.object(), error)),
                }
            };
            let slots = self.slots[..sent].iter().sum();
            self.sent += sent as u64;
            self.next = ring.after(self.next, slots);
            if sent < self.messages.len() && sent == 0 {
                break;
            }
        }
        // One slot stays with the backend: room ends before the first slot still to be sent.
        ring.publish(ring.before(self.next));
        Ok(ring.distance(before, self.next))
    }

    /// Points messages at the next packets, up to a batch.
    fn gather(&mut self, ring: &Ring) {
        self.messages.clear();
        self.slots.clear();
        self.vectors.clear();
        let mut at = self.next;
        while at != ring.head() && self.messages.len() < BATCH && self.vectors.len() < BATCH {
            let first = self.vectors.len();
            loop {
                // SAFETY: slots in [next, head) were released by the program and are the
                // backend's until published.
                let bytes = unsafe { ring.bytes_unchecked(at) };
                self.vectors.push(libc::iovec {
                    iov_base: bytes.as_ptr().cast_mut().cast(),
                    iov_len: bytes.len(),
                });
                let continues = ring.slot(at).continues();
                at = ring.next(at);
                if !continues || at == ring.head() || self.vectors.len() - first == MOST_SLOTS {
                    break;
                }
            }
            // SAFETY: a C struct of integers and pointers; zero is a valid value.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            // `vectors` never grows beyond its capacity, so the address stays.
            message.msg_hdr.msg_iov = self.vectors[first..].as_mut_ptr();
            message.msg_hdr.msg_iovlen = self.vectors.len() - first;
            self.slots.push((self.vectors.len() - first) as u32);
            self.messages.push(message);
        }
    }
}
