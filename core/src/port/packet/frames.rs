//! The receive ring of frames shared with the kernel: TPACKET_V2 (Linux 2.6.27), for programs that want
//! packets at once.
//!
//! ```text
//!   frame 0        frame 1        frame 2        frame 3
//!   +------------+ +------------+ +------------+ +------------+
//!   |    USER    | |    USER    | |   KERNEL   | |   KERNEL   |
//!   | h | packet | | h | packet | |  the next  | | h | old    |
//!   +------------+ +------------+ +------------+ +------------+
//!     slots point    not yet
//!     into it        looked at
//! ```
//!
//! The kernel passes each packet to user space by itself and wakes a sleeping reader. A ring of blocks
//! (`block`) keeps a packet until its block is full or at least a millisecond has passed. In return, each
//! packet takes a frame of fixed size: 2 KiB for a packet that takes 150 bytes of a block. A packet that is
//! longer than the frame is lost.
//!
//! Source: net/packet/af_packet.c (tpacket_rcv), Documentation/networking/packet_mmap.rst.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem::size_of;

use libc::{sockaddr_ll, tpacket2_hdr};

use super::config::PacketConfig;
use super::link_header;
use super::tpacket::{
    FillCounts, LossGap, RxStatus, ShownPacket, direction, nanoseconds, timestamp_source,
};
use crate::error::Result;
use crate::headers::VLAN_TAG_BYTES;
use crate::port::interface::MAX_HEADER_BYTES;
use crate::port::packet_socket::Socket;
use sluicegate_base::memory::{Mmap, prefetch};
use sluicegate_base::ring::{Meta, Ring};

/// The offset of the link-layer address in a frame: TPACKET_ALIGN(32).
const SLL_OFFSET: usize = size_of::<tpacket2_hdr>().next_multiple_of(16);
/// The maximum offset of a packet in its frame: TPACKET_ALIGN(TPACKET2_HDRLEN + 16).
const PACKET_OFFSET: u32 = 80;
/// The minimum size of a frame.
const MIN_FRAME_BYTES: u32 = 2048;

const _: () = {
    assert!(size_of::<tpacket2_hdr>() == 32);
    assert!(SLL_OFFSET + size_of::<sockaddr_ll>() + VLAN_TAG_BYTES <= PACKET_OFFSET as usize - 14);
};

/// The frames, and which of them belong to user space.
#[derive(Debug)]
pub(super) struct FrameRing {
    map: Mmap,
    frame_bytes: usize,
    frames: u32,
    /// The next frame that the kernel will pass to user space.
    next: u32,
    /// The number of slots of each earlier frame in use, oldest first.
    held: VecDeque<u32>,
    /// Packets lost before the next one.
    drops_before: u32,
    gap: LossGap,
    /// The slot ring's head at the last call.
    head: u32,
    snaplen: u32,
}

impl FrameRing {
    /// Sets the ring up on a socket that is not bound yet, for packets of an interface with this MTU.
    pub(super) fn new(socket: &Socket, config: &PacketConfig, mtu: u32) -> Result<Self> {
        let longest = mtu.saturating_add(MAX_HEADER_BYTES).min(config.snaplen);
        let frame_bytes =
            longest.saturating_add(PACKET_OFFSET).next_power_of_two().max(MIN_FRAME_BYTES);
        let block_bytes = config.block_bytes.next_power_of_two().max(frame_bytes);
        let bytes = u64::from(config.block_bytes) * u64::from(config.blocks);
        let blocks = (bytes / u64::from(block_bytes)).max(1) as u32;
        let frames = (block_bytes / frame_bytes).saturating_mul(blocks);
        let request = libc::tpacket_req {
            tp_block_size: block_bytes,
            tp_block_nr: blocks,
            tp_frame_size: frame_bytes,
            tp_frame_nr: frames,
        };
        let bytes = block_bytes as usize * blocks as usize;
        let map = socket.map_rx_ring(libc::tpacket_versions::TPACKET_V2, request, bytes)?;
        Ok(Self {
            map,
            frame_bytes: frame_bytes as usize,
            frames,
            next: 0,
            held: VecDeque::new(),
            drops_before: 0,
            gap: LossGap::default(),
            head: 0,
            snaplen: config.snaplen,
        })
    }

    /// Returns true if the kernel has passed a frame that was not read yet.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.held.len() < self.frames as usize && self.status(self.next).ours().is_some()
    }

    /// Gives back the frames whose slots the program has released.
    #[inline]
    pub(super) fn give_back(&mut self, ring: &Ring) {
        let mut released = ring.distance(self.head, ring.head());
        self.head = ring.head();
        while let Some(slots) = self.held.front_mut() {
            let n = released.min(*slots);
            *slots -= n;
            released -= n;
            if *slots > 0 {
                break;
            }
            let first = self.before_next(self.held.len() as u32);
            self.status(first).give_back();
            self.held.pop_front();
        }
    }

    /// Points slots at the packets in user space's frames. Calls `lost` for the number of lost packets if a
    /// frame reports a loss.
    #[inline]
    pub(super) fn fill(&mut self, ring: &mut Ring, mut lost: impl FnMut() -> u32) -> FillCounts {
        let mut filled = FillCounts::default();
        let (room, mut tail) = (ring.backend_slots(), ring.tail());
        while filled.slots < room && self.held.len() < self.frames as usize {
            let Some(status) = self.status(self.next).ours() else { break };
            if status & libc::TP_STATUS_LOSING != 0 {
                self.drops_before += lost();
            }
            self.drops_before += self.gap.take();
            let slots = match self.show(ring, &mut tail, room - filled.slots) {
                ShowResult::InSlots(slots) => slots,
                ShowResult::NoRoom => break,
                // It waits for the earlier frames, because frames are given back in order.
                ShowResult::Cut => {
                    filled.cut += 1;
                    self.drops_before += 1;
                    0
                }
            };
            self.gap.pass();
            filled.slots += slots;
            filled.packets += u32::from(slots > 0);
            self.held.push_back(slots);
            self.next = if self.next + 1 == self.frames { 0 } else { self.next + 1 };
        }
        ring.publish(tail);
        filled
    }

    /// Records that packets were lost, if the count was read between two syncs: reading it removes the
    /// LOSING mark from the frames that follow.
    pub(super) fn note_loss(&mut self, lost: u32) {
        if lost > 0 {
            let unread = self.frames - self.held.len() as u32;
            let is_full = |i: &u32| self.status((self.next + i) % self.frames).is_full();
            self.gap.note(lost, (0..unread).take_while(is_full).count() as u32);
        }
    }

    /// Points slots at the packet of the next frame, which user space owns.
    #[inline]
    fn show(&mut self, ring: &mut Ring, tail: &mut u32, room: u32) -> ShowResult {
        let start = self.map.at(self.next as usize * self.frame_bytes);
        // SAFETY: user space owns the frame (see `fill`), so the kernel does not write it. The frame begins
        // with a header, aligned to 2048.
        let header: tpacket2_hdr = unsafe { start.cast().read() };
        if header.tp_snaplen < header.tp_len.min(self.snaplen) {
            return ShowResult::Cut;
        }
        let following = if self.next + 1 == self.frames { 0 } else { self.next + 1 };
        let following = self.map.at(following as usize * self.frame_bytes).as_ptr();
        for line in [0, 64] {
            prefetch(following.wrapping_add(line));
        }
        // SAFETY: a sockaddr_ll follows the header at SLL_OFFSET, within the frame.
        let pkttype =
            unsafe { (*start.add(SLL_OFFSET).cast::<sockaddr_ll>().as_ptr()).sll_pkttype };
        let tagged = header.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
        let (mut vlan_tci, mut vlan_tpid) = (0, 0);
        if tagged {
            vlan_tci = header.tp_vlan_tci;
            vlan_tpid = link_header::tpid(header.tp_status, header.tp_vlan_tpid);
        }
        let packet = ShownPacket {
            // SAFETY: the packet lies within the frame.
            start: unsafe { start.add(header.tp_mac.into()) },
            bytes: header.tp_snaplen,
            tagged,
            meta: Meta {
                timestamp_ns: nanoseconds(header.tp_sec, header.tp_nsec),
                wire_bytes: header.tp_len,
                drops_before: self.drops_before,
                vlan_tci,
                vlan_tpid,
                timestamp_source: timestamp_source(header.tp_status),
                direction: direction(pkttype),
                ..Meta::default()
            },
        };
        // SAFETY: the frame goes back only after its slots have been released (`give_back`). The bytes in
        // front of the packet are after the header and the address, which were read above.
        match unsafe { packet.show(ring, tail, room, self.snaplen) } {
            0 => ShowResult::NoRoom,
            slots => {
                self.drops_before = 0;
                ShowResult::InSlots(slots)
            }
        }
    }

    /// Returns the frame `frames` before the next one.
    #[inline]
    fn before_next(&self, frames: u32) -> u32 {
        if frames <= self.next { self.next - frames } else { self.next + self.frames - frames }
    }

    #[inline]
    fn status(&self, frame: u32) -> RxStatus<'_> {
        let status = self.map.at(frame as usize * self.frame_bytes);
        // SAFETY: the word lies in the mapping at the start of a frame. Both sides access it atomically
        // only (the kernel through its own barriers) while the other side may own the frame.
        RxStatus::of(unsafe { status.cast().as_ref() })
    }
}

/// The result of showing a frame's packet in slots.
enum ShowResult {
    /// The packet is in this many slots.
    InSlots(u32),
    /// The packet needs more slots than are free.
    NoRoom,
    /// The packet was longer than the frame: a part of it is missing.
    Cut,
}
