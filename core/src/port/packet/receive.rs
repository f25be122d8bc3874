//! Receiving by system calls: recvmsg(2), one per packet, or recvmmsg(2), one per batch.
//!
//! The kernel copies each packet into the buffer of its slot, and the rest of a long packet into the slot's
//! overflow buffer. Such a packet is assembled in the overflow buffer, and the slot points there. A slot's
//! length has 16 bits, so these methods keep at most 65,535 bytes of a packet.
//!
//! ```text
//!   slot's pool buffer            slot's overflow buffer
//!   +-----------------------+     +-----------+--------------------------+
//!   | first 2044 bytes |room|     | room, copy| the rest                 |
//!   +-----------------------+     +-----------+--------------------------+
//!                      4 bytes for a VLAN tag to go back in
//! ```
#![allow(unsafe_code)]

use std::mem::size_of;
use std::os::fd::AsRawFd;

use super::config::{Clock, PacketConfig, PacketMethod};
use super::link_header;
use super::tpacket::{FillCounts, direction};
use crate::error::{Error, Result};
use crate::headers::{MAC_ADDRESSES_BYTES, VLAN_TAG_BYTES};
use crate::port::packet_socket::Socket;
use sluicegate_base::memory::Mmap;
use sluicegate_base::ring::{Meta, Ring, TimestampSource, now_ns};

/// Size of a slot's overflow buffer: 65,535 bytes and a copy of the pool buffer's bytes.
const OVERFLOW_BYTES: usize = 1 << 16;
/// Not a power of two, so that overflow buffers do not all share the same cache lines.
const OVERFLOW_STRIDE: usize = OVERFLOW_BYTES + 4096 + 64;
/// Maximum number of bytes kept of a packet.
const LIMIT_BYTES: usize = u16::MAX as usize;
/// Room for the requested control messages: auxiliary data, a timestamp, the drop count.
const CONTROL_BYTES: usize = 192;

/// The buffers of one batch of system calls.
#[derive(Debug)]
pub(super) struct BatchReceiver {
    one_by_one: bool,
    messages: Vec<libc::mmsghdr>,
    vectors: Vec<[libc::iovec; 2]>,
    addresses: Vec<libc::sockaddr_ll>,
    controls: Vec<ControlMessages>,
    /// An overflow buffer for each slot of the ring; the kernel allocates memory on the first access.
    overflows: Mmap,
    /// Maximum number of bytes of a packet in its pool buffer.
    in_pool: usize,
    /// Maximum number of bytes of a packet in its overflow buffer.
    in_overflow: usize,
    /// The drop count reported with the last packet.
    dropped: u32,
    /// An error of the socket that a system call has returned and cleared; 0 for none.
    pub noted: i32,
}

// SAFETY: the pointers in `messages` and `vectors` lead into this value's own buffers and into the ring
// passed to `receive`; they are set again in each call and never followed outside it.
unsafe impl Send for BatchReceiver {}

#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
struct ControlMessages([u8; CONTROL_BYTES]);

/// The content of a packet's control messages.
#[derive(Clone, Copy, Default)]
struct PacketInfo {
    aux: Option<libc::tpacket_auxdata>,
    software_ns: u64,
    hardware_ns: u64,
    dropped: Option<u32>,
}

impl BatchReceiver {
    pub(super) fn new(socket: &Socket, config: &PacketConfig, ring: &Ring) -> Result<Self> {
        socket.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, 1i32, "ask for VLAN tags on")?;
        let software = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
        let hardware = libc::SOF_TIMESTAMPING_RX_HARDWARE | libc::SOF_TIMESTAMPING_RAW_HARDWARE;
        let timestamping = match config.clock {
            Clock::Software => software,
            Clock::Hardware => software | hardware,
        };
        let ask_times = "ask for timestamps on";
        socket.set(
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            timestamping.cast_signed(),
            ask_times,
        )?;
        socket.set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1i32, "ask for drop counts on")?;
        let buffer = config.buffer_bytes.cast_signed();
        let size = "set the receive buffer of";
        // More than net.core.rmem_max needs CAP_NET_ADMIN; without it, the kernel's limit applies.
        if socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, buffer, size).is_err() {
            socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, buffer, size)?;
        }
        let batch = config.batch as usize;
        let limit = (config.snaplen as usize).min(LIMIT_BYTES);
        let in_pool = limit.min(ring.buffer_bytes() as usize - VLAN_TAG_BYTES);
        // SAFETY: C structs of integers and pointers; zero is a valid value of each.
        let (message, vector, address) = unsafe {
            (std::mem::zeroed(), [std::mem::zeroed(), std::mem::zeroed()], std::mem::zeroed())
        };
        Ok(Self {
            one_by_one: config.method == PacketMethod::Recv,
            messages: vec![message; batch],
            vectors: vec![vector; batch],
            addresses: vec![address; batch],
            controls: vec![ControlMessages([0; CONTROL_BYTES]); batch],
            overflows: Mmap::anonymous(OVERFLOW_STRIDE * ring.num_slots() as usize)?,
            in_pool,
            in_overflow: limit - in_pool,
            dropped: 0,
            noted: 0,
        })
    }

    /// Receives available packets, up to a batch or the ring's room.
    pub(super) fn receive(&mut self, socket: &Socket, ring: &mut Ring) -> Result<FillCounts> {
        let room = self.messages.len().min(ring.backend_slots() as usize);
        self.prepare(ring, room);
        let got = if self.one_by_one {
            self.recvmsg(socket, room)?
        } else {
            self.recvmmsg(socket, room)?
        };
        for i in 0..got {
            self.place(ring, i);
        }
        Ok(FillCounts { slots: got as u32, packets: got as u32, cut: 0 })
    }

    /// Points the messages at the buffers of the next `n` slots.
    fn prepare(&mut self, ring: &mut Ring, n: usize) {
        let mut at = ring.tail();
        for i in 0..n {
            // SAFETY: the backend owns the slots from tail on, as many as there is room; the kernel writes
            // into the buffer only during the system call.
            let buffer = unsafe { ring.buffer_unchecked(at) };
            let overflow = self.overflows.at(at as usize * OVERFLOW_STRIDE + rest_at(self.in_pool));
            self.vectors[i] = [
                libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: self.in_pool },
                libc::iovec { iov_base: overflow.as_ptr().cast(), iov_len: self.in_overflow },
            ];
            let header = &mut self.messages[i].msg_hdr;
            header.msg_name = (&raw mut self.addresses[i]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_ll>() as u32;
            header.msg_iov = self.vectors[i].as_mut_ptr();
            header.msg_iovlen = if self.in_overflow > 0 { 2 } else { 1 };
            header.msg_control = self.controls[i].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES;
            header.msg_flags = 0;
            at = ring.next(at);
        }
    }

    fn recvmsg(&mut self, socket: &Socket, n: usize) -> Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        for i in 0..n {
            let header = &raw mut self.messages[i].msg_hdr;
            // SAFETY: `prepare` pointed the header at live buffers of the lengths it names.
            let bytes = unsafe { libc::recvmsg(socket.fd().as_raw_fd(), header, flags) };
            match u32::try_from(bytes) {
                Ok(bytes) => self.messages[i].msg_len = bytes,
                Err(_) => return self.nothing_more(socket, i),
            }
        }
        Ok(n)
    }

    fn recvmmsg(&mut self, socket: &Socket, n: usize) -> Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        let (fd, messages) = (socket.fd().as_raw_fd(), self.messages.as_mut_ptr());
        // SAFETY: `prepare` pointed the first `n` messages at live buffers of the lengths they name; there
        // is no timeout to write back.
        let got = unsafe { libc::recvmmsg(fd, messages, n as u32, flags, std::ptr::null_mut()) };
        usize::try_from(got).or_else(|_| self.nothing_more(socket, 0))
    }

    /// Returns `got` if the kernel has no more packets, or its error.
    fn nothing_more(&mut self, socket: &Socket, got: usize) -> Result<usize> {
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(got),
            // Packets before the error are delivered; the next wait reports the state.
            Some(errno @ (libc::ENETDOWN | libc::ENODEV | libc::ENXIO)) => {
                self.noted = errno;
                Ok(got)
            }
            _ => Err(Error::system("receive from", socket.object(), error)),
        }
    }

    /// Puts message `i` into the slot at the ring's tail.
    fn place(&mut self, ring: &mut Ring, i: usize) {
        let info = self.packet_info(i);
        let at = ring.tail();
        let kept = (self.messages[i].msg_len as usize).min(self.in_pool + self.in_overflow);
        let mut meta = Meta {
            wire_bytes: info.aux.map_or(self.messages[i].msg_len, |aux| aux.tp_len),
            direction: direction(self.addresses[i].sll_pkttype),
            drops_before: info.dropped.map_or(0, |n| n.wrapping_sub(self.dropped)),
            timestamp_ns: match info.software_ns {
                // The packet arrived while the kernel was still enabling its timestamps.
                0 => now_ns(),
                time => time,
            },
            timestamp_source: TimestampSource::Software,
            ..Meta::default()
        };
        self.dropped = info.dropped.unwrap_or(self.dropped);
        if info.hardware_ns != 0 {
            meta.timestamp_ns = info.hardware_ns;
            meta.timestamp_source = TimestampSource::Hardware;
        }
        let tagged = info.aux.filter(|aux| aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0);
        if let Some(aux) = tagged {
            meta.vlan_tci = aux.tp_vlan_tci;
            meta.vlan_tpid = link_header::tpid(aux.tp_status, aux.tp_vlan_tpid);
            meta.wire_bytes += VLAN_TAG_BYTES as u32;
        }
        if kept <= self.in_pool {
            self.finish_in_pool(ring, at, kept, meta);
        } else {
            self.finish_in_overflow(ring, at, kept, meta);
        }
        ring.publish(ring.next(at));
    }

    fn finish_in_pool(&self, ring: &mut Ring, at: u32, kept: usize, meta: Meta) {
        let mut bytes = kept;
        // A packet truncated within the addresses has no place for the tag.
        if meta.vlan_tpid != 0 && kept >= MAC_ADDRESSES_BYTES {
            bytes += VLAN_TAG_BYTES;
            // SAFETY: the backend owns the slot at tail.
            let buffer = unsafe { ring.buffer_unchecked(at) };
            link_header::reinsert_tag_end(&mut buffer[..bytes], meta.vlan_tpid, meta.vlan_tci);
            bytes = bytes.min(self.in_pool + self.in_overflow);
        }
        ring.fill(at, bytes as u16, false, meta);
    }

    /// Assembles the packet in its overflow buffer: the kernel wrote the rest after a gap that fits the
    /// first part and a tag.
    fn finish_in_overflow(&self, ring: &mut Ring, at: u32, kept: usize, meta: Meta) {
        let gap = rest_at(self.in_pool);
        let start = self.overflows.at(at as usize * OVERFLOW_STRIDE);
        // SAFETY: the backend owns the slot at tail; its overflow buffer is at least `gap + in_overflow` bytes
        // long, and the kernel has finished writing.
        let (head, overflow) = unsafe {
            let overflow =
                std::slice::from_raw_parts_mut(start.as_ptr(), gap + kept - self.in_pool);
            (&ring.buffer_unchecked(at)[..self.in_pool], overflow)
        };
        let mut first = gap - self.in_pool;
        overflow[first..gap].copy_from_slice(head);
        if meta.vlan_tpid != 0 {
            first -= VLAN_TAG_BYTES;
            link_header::reinsert_tag_front(&mut overflow[first..], meta.vlan_tpid, meta.vlan_tci);
        }
        let bytes = overflow[first..].len().min(self.in_pool + self.in_overflow) as u16;
        let packet = self.overflows.at(at as usize * OVERFLOW_STRIDE + first);
        // SAFETY: the overflow buffer belongs to this slot; it is written again only when the kernel gets
        // the slot again, after the program has released it.
        unsafe { ring.point(at, packet, bytes, false) };
        *ring.meta_mut(at) = meta;
    }

    /// Reads a message's control data.
    fn packet_info(&self, i: usize) -> PacketInfo {
        let header = &self.messages[i].msg_hdr;
        let mut info = PacketInfo::default();
        // SAFETY: msg_controllen is the number of bytes that the kernel wrote into `controls[i]`: a chain
        // of cmsghdr, each with the payload of its type (linux/if_packet.h, linux/errqueue.h).
        unsafe {
            let mut cmsg = libc::CMSG_FIRSTHDR(header);
            while let Some(message) = cmsg.as_ref() {
                let data = libc::CMSG_DATA(cmsg);
                match (message.cmsg_level, message.cmsg_type) {
                    (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                        info.aux = Some(data.cast::<libc::tpacket_auxdata>().read_unaligned());
                    }
                    (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => {
                        let times = data.cast::<[libc::timespec; 3]>().read_unaligned();
                        info.software_ns = nanoseconds(&times[0]);
                        info.hardware_ns = nanoseconds(&times[2]);
                    }
                    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                        info.dropped = Some(data.cast::<u32>().read_unaligned());
                    }
                    _ => {}
                }
                cmsg = libc::CMSG_NXTHDR(header, cmsg);
            }
        }
        info
    }
}

/// Returns where the rest of a packet begins in its overflow buffer: after room for its first part and a
/// tag, on its own cache line.
const fn rest_at(in_pool: usize) -> usize {
    (in_pool + VLAN_TAG_BYTES).next_multiple_of(64)
}

fn nanoseconds(time: &libc::timespec) -> u64 {
    (time.tv_sec * 1_000_000_000 + time.tv_nsec).cast_unsigned()
}
