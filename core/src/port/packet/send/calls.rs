//! Sending by one system call per batch, sendmmsg(2), or per packet, send(2) or sendmsg(2).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use super::{RingProgress, SendFailure, Target};
use crate::error::Result;
use crate::port::packet_socket::Socket;
use sluicegate_base::ring::Ring;

/// Maximum number of slots of a packet: the maximum number of vectors of a message (UIO_MAXIOV,
/// linux/uio.h).
const MAX_SLOTS: usize = 1024;
/// Number of packets that are sent one per call after the queue has dropped one.
const SINGLE_CALLS: u32 = 32;

/// The messages of one system call: one per packet, with one vector per slot.
#[derive(Debug)]
pub(super) struct Calls {
    /// Maximum number of messages per call.
    batch: usize,
    /// True if each call sends one packet.
    is_for_one: bool,
    /// Number of packets still to be sent one per call. sendmmsg does not report the packet at which it
    /// ended early, and only a drop by the queue is counted, not a full socket.
    singles: u32,
    messages: Vec<libc::mmsghdr>,
    /// Number of slots of each message.
    slots: Vec<u32>,
    vectors: Vec<libc::iovec>,
}

// SAFETY: the pointers in `messages` and `vectors` lead into this value and into the ring passed to `send`;
// they are set again in each call and never followed outside it.
unsafe impl Send for Calls {}

impl Calls {
    /// Sends with sendmmsg, at most `batch` packets at a time.
    pub(super) fn in_batches(batch: u32) -> Self {
        Self::of(batch as usize, false)
    }

    /// Sends with send or sendmsg.
    pub(super) fn one_by_one() -> Self {
        Self::of(1, true)
    }

    fn of(batch: usize, is_for_one: bool) -> Self {
        Self {
            batch,
            is_for_one,
            singles: 0,
            messages: Vec::with_capacity(batch),
            slots: Vec::with_capacity(batch),
            vectors: Vec::with_capacity(MAX_SLOTS + 1),
        }
    }

    /// Sends until there is nothing more to send, or no room for it.
    pub(super) fn send(
        &mut self,
        target: &Target<'_>,
        ring: &Ring,
        progress: &mut RingProgress,
    ) -> Result<()> {
        let socket = target.socket;
        let mut was_down = false;
        loop {
            self.gather(ring, progress.tx.next);
            if self.messages.is_empty() {
                return Ok(());
            }
            let taken = if self.is_for_one { self.call_for_one(socket) } else { self.call(socket) };
            match taken {
                Ok(0) => return Ok(()),
                Ok(taken) => {
                    progress.tx.sent(ring, taken, self.slots[..taken].iter().sum());
                    match taken < self.messages.len() {
                        true => self.singles = SINGLE_CALLS,
                        false => self.singles = self.singles.saturating_sub(1),
                    }
                }
                Err(error) => match SendFailure::of(error, target, progress, &mut was_down)? {
                    SendFailure::Wait => {
                        self.singles = SINGLE_CALLS;
                        return Ok(());
                    }
                    SendFailure::LeaveOut { too_long } => {
                        progress.tx.refuse(ring, self.slots[0], too_long);
                    }
                    SendFailure::Again => {}
                },
            }
        }
    }

    /// Passes the gathered packets to the kernel. Returns how many it took.
    fn call(&mut self, socket: &Socket) -> io::Result<usize> {
        let fd = socket.fd().as_raw_fd();
        let (messages, count) = (self.messages.as_mut_ptr(), self.messages.len());
        // SAFETY: `gather` pointed each message at vectors, and those at bytes of slots that the backend
        // owns; all of them are live and unchanged during the call.
        let taken = unsafe { libc::sendmmsg(fd, messages, count as u32, libc::MSG_DONTWAIT) };
        usize::try_from(taken).map_err(|_| io::Error::last_os_error())
    }

    /// Passes the first gathered packet to the kernel.
    fn call_for_one(&mut self, socket: &Socket) -> io::Result<usize> {
        let (fd, flags) = (socket.fd().as_raw_fd(), libc::MSG_DONTWAIT);
        let header = &raw const self.messages[0].msg_hdr;
        // SAFETY: as in `call`.
        let bytes = unsafe {
            match &self.vectors[..] {
                [whole] => libc::send(fd, whole.iov_base, whole.iov_len, flags),
                _ => libc::sendmsg(fd, header, flags),
            }
        };
        if bytes < 0 { Err(io::Error::last_os_error()) } else { Ok(1) }
    }

    /// Points messages at the packets from slot `from` on, up to a batch.
    fn gather(&mut self, ring: &Ring, from: u32) {
        self.messages.clear();
        self.slots.clear();
        self.vectors.clear();
        let batch = if self.singles > 0 { 1 } else { self.batch };
        for packet in ring.pending_tx(from).take(batch) {
            let (first, slots) = (self.vectors.len(), packet.slots() as usize);
            // A packet that is longer than a message can be is sent alone and truncated: the kernel refuses
            // it, and it is counted.
            if first > 0 && first + slots > self.vectors.capacity() {
                break;
            }
            self.vectors.extend(packet.segments().take(MAX_SLOTS + 1).map(|bytes| libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            }));
            // SAFETY: a C struct of integers and pointers; zero is a valid value.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            // `vectors` never grows beyond its capacity, so the address stays valid.
            message.msg_hdr.msg_iov = self.vectors[first..].as_mut_ptr();
            message.msg_hdr.msg_iovlen = self.vectors.len() - first;
            self.slots.push(slots as u32);
            self.messages.push(message);
        }
    }
}
