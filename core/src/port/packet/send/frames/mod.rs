//! Sending by a ring of frames shared with the kernel: PACKET_TX_RING (Linux 2.6.31).
//!
//! ```text
//!   frame 0        frame 1        frame 2        frame 3        frame 4
//!   +------------+ +------------+ +------------+ +------------+ +------------+
//!   | AVAILABLE  | |  SENDING   | |SEND_REQUEST| |SEND_REQUEST| | AVAILABLE  |
//!   | h | old    | | h | packet | | h | packet | | h | packet | | h | old    |
//!   +------------+ +------------+ +------------+ +------------+ +------------+
//!      ours again     the driver's   submitted,     submitted      ours: `free`,
//!                                    the kernel                    the next to
//!                                    reads here                    be written
//! ```
//!
//! A frame's status word is the only memory that both sides access. User space writes a packet into a frame
//! and stores SEND_REQUEST. When called, the kernel walks the frames in order from where it stopped, as
//! long as their status is SEND_REQUEST. It stores SENDING and passes the frame's pages to the driver
//! without copying them. When the packet is freed, on any CPU, the kernel stores AVAILABLE: from then on
//! user space owns the frame. If a queue is full, the kernel drops the packet, stores SEND_REQUEST again
//! and stops there. It marks an invalid frame WRONG_FORMAT and stops there, too, at each call. User space
//! takes back such a frame and those after it, and writes them again without it: their packets stay in the
//! program's ring until the kernel has taken them.
//!
//! TPACKET_V2, because the send ring of V3 (Linux 4.11) only has a longer header. PACKET_LOSS is off: with
//! it, the kernel would skip invalid frames without counting them.
//!
//! If a veth's peer or another packet socket still reads a packet after user space has got its frame back,
//! the kernel copies the pages first (since Linux 4.20). A loopback interface does not, so it gets no such
//! ring. A virtio_net with `napi_tx=off` does not copy either.
//!
//! Sources: net/packet/af_packet.c (tpacket_snd), Documentation/networking/packet_mmap.rst.
#![allow(unsafe_code)]

#[cfg(all(test, not(loom)))]
mod tests;

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::AsRawFd;

use libc::tpacket2_hdr;

use super::{RingProgress, SendFailure, Target};
use crate::error::Result;
use crate::port::interface::LengthLimits;
use crate::port::packet::tpacket::{TxAnswer, TxStatus};
use crate::port::packet_socket::Socket;
use sluicegate_base::memory::Mmap;
use sluicegate_base::ring::{Packet, Ring};

/// The offset of a packet in its frame: TPACKET2_HDRLEN without the sockaddr_ll in it.
const PACKET_OFFSET: usize = size_of::<tpacket2_hdr>().next_multiple_of(16);
/// The offset of the status word in a frame.
const STATUS_OFFSET: usize = offset_of!(tpacket2_hdr, tp_status);
/// The minimum size of a frame, with some room for an MTU that grows.
const MIN_FRAME_BYTES: usize = 2048;
/// The size of the kernel's allocations: a multiple of all page sizes in use.
const BLOCK_BYTES: usize = 64 << 10;
/// The maximum size of a ring: the default size of a receive ring.
const MAX_BYTES: usize = 32 << 20;

const _: () = assert!(PACKET_OFFSET == 32 && STATUS_OFFSET == 0);

/// The division of a ring into frames. No frame crosses a block boundary, because all sizes are powers of
/// two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameLayout {
    frame_bytes: usize,
    frames: usize,
    block_bytes: usize,
}

impl FrameLayout {
    /// Lays out as many frames as slots, or fewer if frames are long, for packets of `packet_bytes` bytes.
    fn of(slots: u32, packet_bytes: usize) -> Self {
        let frame_bytes = (PACKET_OFFSET + packet_bytes).next_power_of_two();
        let frame_bytes = frame_bytes.max(MIN_FRAME_BYTES);
        let block_bytes = frame_bytes.max(BLOCK_BYTES);
        let frames = (slots as usize).min(MAX_BYTES / frame_bytes);
        Self {
            frame_bytes,
            frames: frames.next_multiple_of(block_bytes / frame_bytes),
            block_bytes,
        }
    }

    fn bytes(&self) -> usize {
        self.frames * self.frame_bytes
    }

    fn request(&self) -> libc::tpacket_req {
        libc::tpacket_req {
            tp_block_size: self.block_bytes as u32,
            tp_block_nr: (self.bytes() / self.block_bytes) as u32,
            tp_frame_size: self.frame_bytes as u32,
            tp_frame_nr: self.frames as u32,
        }
    }
}

/// The result of passing frames to the kernel.
#[derive(Debug)]
enum HandOver {
    /// There may be more to send, and room for it.
    More,
    /// There is nothing to send, or no room for it.
    Done,
    /// The first packet must not be sent.
    Barred,
    /// The kernel has stopped because of this error.
    Stopped(io::Error),
}

/// The frames, and which of them the kernel was requested to send.
#[derive(Debug)]
pub(super) struct FrameRing {
    map: Mmap,
    frame_bytes: usize,
    frames: usize,
    limits: LengthLimits,
    /// The next frame to write.
    free: usize,
    /// Earlier frames that the kernel was requested to send and has not taken. Their packets begin at
    /// [`TxProgress::next`](crate::port::rings::TxProgress).
    asked: usize,
    /// The slot after those packets.
    next: u32,
}

impl FrameRing {
    /// Sets the ring up on a socket.
    pub(super) fn new(socket: &Socket, slots: u32, limits: LengthLimits) -> Result<Self> {
        let layout = FrameLayout::of(slots, limits.max_bytes());
        let map = socket.map_tx_ring(layout.request(), layout.bytes())?;
        // SAFETY: this is the kernel's ring, with the requested number of frames.
        Ok(unsafe { Self::over(map, layout, limits) })
    }

    /// Makes the ring in `map`.
    ///
    /// # Safety
    /// `map` is divided by `layout`, all frames in it are AVAILABLE, and everything that shares it follows
    /// the protocol described above.
    unsafe fn over(map: Mmap, layout: FrameLayout, mut limits: LengthLimits) -> Self {
        let FrameLayout { frame_bytes, frames, .. } = layout;
        limits.set_room(frame_bytes - PACKET_OFFSET);
        Self { map, frame_bytes, frames, limits, free: 0, asked: 0, next: 0 }
    }

    /// Sends until there is nothing more to send, or no room for it.
    pub(super) fn send(
        &mut self,
        target: &Target<'_>,
        ring: &Ring,
        progress: &mut RingProgress,
    ) -> Result<()> {
        let (mut was_down, mut has_looked) = (false, false);
        loop {
            let failed = match self.hand_over(ring, progress, || kick(target.socket)) {
                HandOver::Done => return Ok(()),
                HandOver::More => continue,
                HandOver::Barred => SendFailure::LeaveOut { too_long: false },
                HandOver::Stopped(error) => {
                    SendFailure::of(error, target, progress, &mut was_down)?
                }
            };
            match failed {
                SendFailure::Wait => return Ok(()),
                SendFailure::Again => {}
                // The MTU may have changed in either direction: it is queried once per call.
                SendFailure::LeaveOut { .. } if !std::mem::replace(&mut has_looked, true) => {
                    self.limits.set_mtu(target.presence.query()?.mtu as usize);
                    self.take_back();
                }
                SendFailure::LeaveOut { .. } => self.leave_out(ring, progress),
            }
        }
    }

    /// Requests sending of the waiting frames, calls the kernel with `kick`, and counts the frames it has
    /// taken.
    fn hand_over(
        &mut self,
        ring: &Ring,
        progress: &mut RingProgress,
        kick: impl FnOnce() -> io::Result<()>,
    ) -> HandOver {
        self.fill(ring, progress);
        if self.asked == 0 {
            return if self.is_barred(ring, progress) { HandOver::Barred } else { HandOver::Done };
        }
        let called = kick();
        match (self.collect(ring, progress), called) {
            (TxAnswer::Taken, _) => HandOver::More,
            (TxAnswer::Wrong, _) => HandOver::Barred,
            (TxAnswer::Waits, Err(error)) => HandOver::Stopped(error),
            // The socket has no memory for more packets until some of them are sent.
            (TxAnswer::Waits, Ok(())) => HandOver::Done,
        }
    }

    /// Takes back the frames that the kernel has not taken.
    pub(super) fn take_back(&mut self) {
        let first = self.first_asked();
        (0..self.asked).for_each(|i| self.status((first + i) % self.frames).take_back());
        (self.free, self.asked) = (first, 0);
    }

    /// Writes packets into frames until it runs out of either, or reaches a packet that must not be sent.
    /// Such a packet is skipped when it is the first one, after the packets before it were sent.
    fn fill(&mut self, ring: &Ring, progress: &RingProgress) {
        if self.asked == 0 {
            self.next = progress.tx.next;
        }
        for packet in ring.pending_tx(self.next) {
            if !self.limits.allow(&packet) || !self.status(self.free).is_ours() {
                return;
            }
            self.write(&packet);
            self.status(self.free).ask();
            self.free = if self.free + 1 == self.frames { 0 } else { self.free + 1 };
            self.asked += 1;
            self.next = ring.after(self.next, packet.slots());
        }
    }

    /// Writes a packet into the next frame, which user space owns.
    #[inline]
    fn write(&mut self, packet: &Packet<'_>) {
        let frame = self.map.at(self.free * self.frame_bytes).as_ptr();
        let mut bytes = 0;
        for segment in packet.segments() {
            // SAFETY: user space owns the frame, and no allowed packet is longer than the room after the
            // frame's header. Segments lie in buffers or blocks, never in this mapping.
            unsafe {
                let to = frame.add(PACKET_OFFSET + bytes);
                std::ptr::copy_nonoverlapping(segment.as_ptr(), to, segment.len());
            }
            bytes += segment.len();
        }
        let header: *mut tpacket2_hdr = frame.cast();
        // SAFETY: the frame begins with its header, which user space owns except for the status, and is
        // aligned to 2048.
        unsafe { (&raw mut (*header).tp_len).write(bytes as u32) };
    }

    /// Counts the frames that the kernel has taken. Returns the state of the first frame that it has not
    /// taken; `Taken` if there is none.
    fn collect(&mut self, ring: &Ring, progress: &mut RingProgress) -> TxAnswer {
        let first = self.first_asked();
        let answer = |i: usize| self.status((first + i) % self.frames).answer();
        let taken = (0..self.asked).take_while(|&i| answer(i) == TxAnswer::Taken).count();
        let rest = if taken < self.asked { answer(taken) } else { TxAnswer::Taken };
        self.asked -= taken;
        let slots =
            ring.pending_tx(progress.tx.next).take(taken).map(|packet| packet.slots()).sum();
        progress.tx.sent(ring, taken, slots);
        rest
    }

    /// Returns true if the first packet must not be sent.
    fn is_barred(&self, ring: &Ring, progress: &RingProgress) -> bool {
        ring.pending_tx(progress.tx.next).next().is_some_and(|packet| !self.limits.allow(&packet))
    }

    /// Skips the first packet. The packets after it are written again.
    fn leave_out(&mut self, ring: &Ring, progress: &mut RingProgress) {
        self.take_back();
        if let Some(packet) = ring.pending_tx(progress.tx.next).next() {
            progress.tx.refuse(ring, packet.slots(), self.limits.is_too_long(&packet));
        }
    }

    fn first_asked(&self) -> usize {
        (self.free + self.frames - self.asked) % self.frames
    }

    fn status(&self, frame: usize) -> TxStatus<'_> {
        let status = self.map.at(frame * self.frame_bytes + STATUS_OFFSET);
        // SAFETY: the word lies in the mapping and is aligned to 2048. Both sides access it atomically only
        // (the kernel by whole words and barriers).
        TxStatus::of(unsafe { status.cast().as_ref() })
    }
}

/// Makes the kernel take the frames that it is requested to send.
fn kick(socket: &Socket) -> io::Result<()> {
    // SAFETY: no bytes are passed; the kernel takes them from the ring.
    let bytes =
        unsafe { libc::send(socket.fd().as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT) };
    if bytes < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
