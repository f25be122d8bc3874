//! Sending by sendmmsg(2): one system call a batch, one message a packet, one vector a slot.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use super::socket::Socket;
use crate::error::{Error, Result};
use crate::ring::Ring;

/// Messages of one system call.
const BATCH: usize = 64;
/// Most slots of a packet: the vectors a message can have (UIO_MAXIOV, linux/uio.h).
const MOST_SLOTS: usize = 1024;

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
            vectors: Vec::with_capacity(MOST_SLOTS + 1),
            sent: 0,
            refused: 0,
        }
    }

    /// Sends the packets the program has released. Returns how many slots are room again. What
    /// the kernel has no room for stays for the next call.
    pub(super) fn send(&mut self, socket: &Socket, ring: &mut Ring) -> Result<u32> {
        let before = self.next;
        let result = self.send_all(socket, ring);
        if ring.is_endless(self.next) {
            self.refused += 1;
            self.next = ring.head();
        }
        // One slot stays with the backend: room ends before the first slot still to be sent.
        ring.publish(ring.before(self.next));
        result.map(|()| ring.distance(before, self.next))
    }

    /// Whether there are packets that have been released and not sent.
    pub(super) fn is_waiting(&self, ring: &Ring) -> bool {
        ring.to_send(self.next).next().is_some()
    }

    /// Counts what waits as refused: it will not be sent.
    pub(super) fn give_up(&mut self, ring: &mut Ring) {
        self.refused += ring.to_send(self.next).count() as u64;
        self.next = ring.head();
        ring.publish(ring.before(self.next));
    }

    fn send_all(&mut self, socket: &Socket, ring: &Ring) -> Result<()> {
        let mut was_down = false;
        loop {
            self.gather(ring);
            let (fd, count) = (socket.fd().as_raw_fd(), self.messages.len() as u32);
            if count == 0 {
                return Ok(());
            }
            let messages = self.messages.as_mut_ptr();
            // SAFETY: `gather` pointed each message at vectors, and those at bytes of slots the
            // backend owns; all live, none changed during the call.
            let sent = unsafe { libc::sendmmsg(fd, messages, count, libc::MSG_DONTWAIT) };
            match usize::try_from(sent) {
                Ok(0) => return Ok(()),
                Ok(sent) => {
                    self.sent += sent as u64;
                    self.next = ring.after(self.next, self.slots[..sent].iter().sum());
                }
                Err(_) => {
                    let error = std::io::Error::last_os_error();
                    match error.raw_os_error() {
                        // The queue is full. The kernel has dropped the packet if it took it at
                        // all, so sending it again sends it once.
                        Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => return Ok(()),
                        // This packet will never go: leave it out, go on with the next.
                        Some(libc::EMSGSIZE | libc::EINVAL) => self.refuse(ring),
                        // Said once by the socket for a time that may be over.
                        Some(libc::ENETDOWN) if !was_down => was_down = true,
                        _ => return Err(failure(socket, error)),
                    }
                }
            }
        }
    }

    /// Leaves the first of the gathered packets out.
    fn refuse(&mut self, ring: &Ring) {
        self.refused += 1;
        self.next = ring.after(self.next, self.slots[0]);
    }

    /// Points messages at the next packets, up to a batch.
    fn gather(&mut self, ring: &Ring) {
        self.messages.clear();
        self.slots.clear();
        self.vectors.clear();
        for packet in ring.to_send(self.next).take(BATCH) {
            let (first, slots) = (self.vectors.len(), packet.slots() as usize);
            // One that is longer than a message can be goes alone, cut, and is refused by the
            // kernel, which counts it.
            if first > 0 && first + slots > self.vectors.capacity() {
                break;
            }
            self.vectors.extend(packet.segments().take(MOST_SLOTS + 1).map(|bytes| libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            }));
            // SAFETY: a C struct of integers and pointers; zero is a valid value.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            // `vectors` never grows beyond its capacity, so the address stays.
            message.msg_hdr.msg_iov = self.vectors[first..].as_mut_ptr();
            message.msg_hdr.msg_iovlen = self.vectors.len() - first;
            self.slots.push(slots as u32);
            self.messages.push(message);
        }
    }
}

fn failure(socket: &Socket, error: std::io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENXIO | libc::ENODEV) => socket.gone(),
        Some(libc::ENETDOWN) => Error::system("send to", socket.object(), error)
            .remedy("the interface is down: bring it up"),
        _ => Error::system("send to", socket.object(), error),
    }
}
