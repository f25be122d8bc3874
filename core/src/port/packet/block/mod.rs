//! The receive ring shared with the kernel: TPACKET_V3 (Linux 3.2), walked without copying.
//!
//! ```text
//!   block 0            block 1            block 2            block 3
//!   +----------------+ +----------------+ +----------------+ +----------------+
//!   | status: USER   | | status: USER   | | status: KERNEL | | status: KERNEL |
//!   | num_pkts: 7000 | | num_pkts: 7100 | |  being filled  | |     empty      |
//!   | h|packet h|pac | | h|packet h|pac | | h|packet h|    | |                |
//!   +----------------+ +----------------+ +----------------+ +----------------+
//!     ours, slots point   ours, not yet      the kernel's       the kernel's
//!     into it             read
//! ```
//!
//! A block's status word is the only memory that both sides access. The kernel fills a block, then stores
//! USER: from then on user space owns the block, packets and headers, to read and to write. User space
//! stores KERNEL: from then on the kernel owns it. The kernel closes a block when it is full or
//! `block_timeout` has passed. While user space still owns the next block, the kernel has no room: it
//! counts packets as lost and marks the next block that it fills LOSING.
//!
//! Slots point into a block, so it goes back only after the program has released the last of them. Source:
//! net/packet/af_packet.c, Documentation/networking/packet_mmap.rst.
#![allow(unsafe_code)]

#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::VecDeque;
use std::mem::{offset_of, size_of};
use std::ptr::NonNull;

use libc::{tpacket_block_desc, tpacket_hdr_v1, tpacket3_hdr};

use super::any::{DeviceOrigin, Devices};
use super::config::PacketConfig;
use super::link_header;
use super::tpacket::{
    FillCounts, LossGap, RxStatus, ShownPacket, direction, nanoseconds, timestamp_source,
};
use crate::error::Result;
use crate::headers::VLAN_TAG_BYTES;
use crate::port::packet_socket::Socket;
use sluicegate_base::memory::{Mmap, prefetch};
use sluicegate_base::ring::{Meta, Ring};

/// The offset of the link-layer address after a packet's header: TPACKET_ALIGN(48).
const SLL_OFFSET: usize = size_of::<tpacket3_hdr>().next_multiple_of(16);
/// The minimum distance of a prefetch of data that the kernel wrote on another CPU: a few short packets
/// ahead. After a long packet it is the next header.
const AHEAD_BYTES: usize = 1024;
/// The offsets of a block's header, and of the status word in a block.
const HEADER_OFFSET: usize = offset_of!(tpacket_block_desc, hdr);
const STATUS_OFFSET: usize = HEADER_OFFSET + offset_of!(tpacket_hdr_v1, block_status);

const _: () = {
    assert!(size_of::<tpacket3_hdr>() == 48);
    // A packet begins after its address, so there is always room for a tag in front of it.
    assert!(size_of::<libc::sockaddr_ll>() >= VLAN_TAG_BYTES);
    assert!(STATUS_OFFSET == 8);
};

/// A block whose packets are in slots.
#[derive(Debug)]
struct BlockInUse {
    block: u32,
    /// Number of slots that the program has not released yet.
    slots: u32,
}

/// A position in the last block of `held`.
#[derive(Clone, Copy, Debug)]
struct BlockCursor {
    /// Offset of the next packet's header in the ring's memory.
    at: usize,
    /// Number of packets left to read.
    left: u32,
    /// Number of packets lost before the next one.
    drops_before: u32,
}

/// The blocks, and which of them user space owns.
#[derive(Debug)]
pub(super) struct BlockRing {
    map: Mmap,
    block_bytes: usize,
    blocks: u32,
    /// The next block that the kernel will pass to user space.
    next: u32,
    held: VecDeque<BlockInUse>,
    cursor: Option<BlockCursor>,
    /// A loss that is known but not marked at a packet yet.
    gap: LossGap,
    /// The slot ring's head at the last call.
    head: u32,
    snaplen: u32,
}

impl BlockRing {
    /// Sets the ring up on a socket that is not bound yet.
    pub(super) fn new(socket: &Socket, config: &PacketConfig) -> Result<Self> {
        let PacketConfig { blocks, block_bytes, .. } = *config;
        let frame_bytes = 2048;
        let request = libc::tpacket_req3 {
            tp_block_size: block_bytes,
            tp_block_nr: blocks,
            // V3 packs packets; the frame size only has to divide the blocks.
            tp_frame_size: frame_bytes,
            tp_frame_nr: (block_bytes / frame_bytes).saturating_mul(blocks),
            tp_retire_blk_tov: config.block_timeout.as_millis() as u32,
            tp_sizeof_priv: 0,
            // No TP_FT_REQ_FILL_RXHASH: it would dissect every packet's headers.
            tp_feature_req_word: 0,
        };
        let bytes = block_bytes as usize * blocks as usize;
        let map = socket.map_rx_ring(libc::tpacket_versions::TPACKET_V3, request, bytes)?;
        // SAFETY: this is the kernel's ring, with the requested number of blocks.
        Ok(unsafe { Self::over(map, block_bytes as usize, blocks, config.snaplen) })
    }

    /// Makes the ring in `map`, which shows at most `snaplen` bytes of each packet.
    ///
    /// # Safety
    /// `map` consists of `blocks` blocks of `block_bytes` bytes, filled and passed as described above. Each
    /// header in them leads to packets within their block.
    unsafe fn over(map: Mmap, block_bytes: usize, blocks: u32, snaplen: u32) -> Self {
        Self {
            map,
            block_bytes,
            blocks,
            next: 0,
            held: VecDeque::with_capacity(blocks as usize),
            cursor: None,
            gap: LossGap::default(),
            head: 0,
            snaplen,
        }
    }

    /// Returns true if the kernel has passed a block that was not read completely.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.cursor.is_some()
            || self.held.len() < self.blocks as usize && self.status(self.next).ours().is_some()
    }

    /// Gives back the blocks whose last slot the program has released.
    pub(super) fn give_back(&mut self, ring: &Ring) {
        let mut released = ring.distance(self.head, ring.head());
        self.head = ring.head();
        while let Some(front) = self.held.front_mut() {
            let n = released.min(front.slots);
            front.slots -= n;
            released -= n;
            let being_walked = self.cursor.is_some() && self.held.len() == 1;
            let Some(front) = self.held.front() else { break };
            if front.slots > 0 || being_walked {
                break;
            }
            self.status(front.block).give_back();
            self.held.pop_front();
        }
    }

    /// Fills the ring with packets of the blocks that user space owns. Calls `lost` for the number of lost
    /// packets if a block reports a loss. With `devices`, packets belong to those.
    pub(super) fn fill(
        &mut self,
        ring: &mut Ring,
        devices: Option<(&mut Devices, &Socket)>,
        lost: impl FnMut() -> u32,
    ) -> FillCounts {
        // Two loops, so that ports of one interface do not pay for many.
        match devices {
            None => self.fill_from(ring, |_| None, lost),
            Some((devices, socket)) => {
                self.fill_from(ring, |address| Some(devices.origin(address, socket)), lost)
            }
        }
    }

    fn fill_from(
        &mut self,
        ring: &mut Ring,
        mut origin: impl FnMut(&libc::sockaddr_ll) -> Option<DeviceOrigin>,
        mut lost: impl FnMut() -> u32,
    ) -> FillCounts {
        let mut filled = FillCounts::default();
        let mut room = ring.backend_slots();
        let mut tail = ring.tail();
        while room > 0 {
            let Some(mut cursor) = self.cursor.take().or_else(|| self.open_next(&mut lost)) else {
                break;
            };
            let mut slots = 0;
            while cursor.left > 0 {
                let used = self.place(&mut cursor, ring, &mut tail, room - slots, &mut origin);
                if used == 0 {
                    break;
                }
                slots += used;
                filled.packets += 1;
            }
            room -= slots;
            filled.slots += slots;
            if let Some(held) = self.held.back_mut() {
                held.slots += slots;
            }
            if cursor.left > 0 {
                self.cursor = Some(cursor);
                break;
            }
        }
        ring.publish(tail);
        filled
    }

    /// Records that packets were lost, if the count was read between two blocks: reading it removes the
    /// LOSING mark from the block that is being filled.
    pub(super) fn note_loss(&mut self, lost: u32) {
        if lost > 0 {
            let unread = self.blocks - self.held.len() as u32;
            let is_full = |i: &u32| self.status((self.next + i) % self.blocks).is_full();
            self.gap.note(lost, (0..unread).take_while(is_full).count() as u32);
        }
    }

    /// Takes the next block if the kernel has passed it.
    fn open_next(&mut self, lost: &mut impl FnMut() -> u32) -> Option<BlockCursor> {
        // User space owns all blocks: the next one is the first of them, and its status is USER, too.
        if self.held.len() == self.blocks as usize {
            return None;
        }
        let block = self.next;
        let status = self.status(block).ours()?;
        self.next = if block + 1 == self.blocks { 0 } else { block + 1 };
        self.held.push_back(BlockInUse { block, slots: 0 });
        let start = block as usize * self.block_bytes;
        let header: NonNull<tpacket_hdr_v1> = self.map.at(start + HEADER_OFFSET).cast();
        // SAFETY: user space owns the block (see `ours`), so the kernel does not write its header. The
        // header lies within the block and is aligned to 8.
        let (packets, first) = unsafe {
            let header = header.as_ref();
            (header.num_pkts, header.offset_to_first_pkt)
        };
        let mut drops_before = if status & libc::TP_STATUS_LOSING != 0 { lost() } else { 0 };
        drops_before += self.gap.take();
        self.gap.pass();
        if packets == 0 {
            // Older kernels pass empty blocks: the mark is kept for the next packet.
            self.gap.lost += std::mem::take(&mut drops_before);
        }
        Some(BlockCursor { at: start + first as usize, left: packets, drops_before })
    }

    /// Puts one packet into slots from `tail` on. Returns 0 if it needs more than `room`.
    #[inline]
    fn place(
        &self,
        cursor: &mut BlockCursor,
        ring: &mut Ring,
        tail: &mut u32,
        room: u32,
        origin: &mut impl FnMut(&libc::sockaddr_ll) -> Option<DeviceOrigin>,
    ) -> u32 {
        let start = self.map.at(cursor.at);
        // SAFETY: user space owns the block, and the kernel has put a header at this offset (the first one
        // from the block's header, the next one from the previous), aligned to 8.
        let header: &tpacket3_hdr = unsafe { start.cast().as_ref() };
        let (mut bytes, mut wire_bytes) = (header.tp_snaplen, header.tp_len);
        let mut mac = usize::from(header.tp_mac);
        let mut tagged = header.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
        // SAFETY: a sockaddr_ll follows the header at SLL_OFFSET, within the block, which user space owns.
        // It is last used before the writes below.
        let address: &libc::sockaddr_ll = unsafe { start.add(SLL_OFFSET).cast().as_ref() };
        let pkttype = address.sll_pkttype;
        let (mut vlan_tci, mut vlan_tpid) = (0, 0);
        if tagged {
            vlan_tci = header.hv1.tp_vlan_tci as u16;
            vlan_tpid = link_header::tpid(header.tp_status, header.hv1.tp_vlan_tpid);
        }
        let mut interface = 0;
        if let Some(origin) = origin(address) {
            interface = origin.number;
            if origin.cooked {
                let tag = tagged.then_some((vlan_tpid, vlan_tci));
                // SAFETY: all three belong to the packet at `start`, in a block that user space owns.
                (mac, bytes, wire_bytes) = unsafe { cook(start, header, address, tag) };
                tagged = false;
            }
        }
        let ahead = (header.tp_next_offset as usize).max(AHEAD_BYTES);
        for line in [ahead, ahead + 64] {
            prefetch(start.as_ptr().wrapping_add(line));
        }
        let packet = ShownPacket {
            // SAFETY: the packet lies within the block.
            start: unsafe { start.add(mac) },
            bytes,
            tagged,
            meta: Meta {
                timestamp_ns: nanoseconds(header.tp_sec, header.tp_nsec),
                wire_bytes,
                hash: header.hv1.tp_rxhash,
                drops_before: cursor.drops_before,
                vlan_tci,
                vlan_tpid,
                timestamp_source: timestamp_source(header.tp_status),
                interface,
                direction: direction(pkttype),
            },
        };
        let next = cursor.at + header.tp_next_offset as usize;
        // SAFETY: the block goes back only after its last slot has been released (`give_back`). The bytes
        // in front of the packet are after the header and at most the address, which were read above.
        let slots = unsafe { packet.show(ring, tail, room, self.snaplen) };
        if slots > 0 {
            *cursor = BlockCursor { at: next, left: cursor.left - 1, drops_before: 0 };
        }
        slots
    }

    #[inline]
    fn status(&self, block: u32) -> RxStatus<'_> {
        let status = self.map.at(block as usize * self.block_bytes + STATUS_OFFSET);
        // SAFETY: the word lies in the mapping and is aligned to 8. Both sides access it atomically only
        // (the kernel through its own barriers).
        RxStatus::of(unsafe { status.cast().as_ref() })
    }
}

/// Replaces a packet's link-layer header with a cooked header, as far as it was kept. Returns the offset of
/// the packet from `start`, its length, and its length on the wire. Leaves `header` and `address`
/// unchanged, because the same packet may be cooked again if it found no room.
///
/// # Safety
/// The kernel put `header` and `address` at `start`, in a block that user space owns.
#[cold]
unsafe fn cook(
    start: NonNull<u8>,
    header: &tpacket3_hdr,
    address: &libc::sockaddr_ll,
    tag: Option<(u16, u16)>,
) -> (usize, u32, u32) {
    let cooked = link_header::CookedHeader::new(address, tag);
    let cooked = cooked.bytes();
    let mac = usize::from(header.tp_net) - cooked.len();
    // SAFETY: the network header begins at tp_net, which is 96 or more in a V3 ring (af_packet.c,
    // tpacket_rcv), so the bytes in front of it are after the address. It is at most a link-layer header
    // from tp_mac. `admission` admits at least that much of each packet, so the bytes are within the frame,
    // or truncated by the length. User space owns the block.
    let front = unsafe { std::slice::from_raw_parts_mut(start.add(mac).as_ptr(), cooked.len()) };
    front.copy_from_slice(cooked);
    let replaced = u32::from(header.tp_net.saturating_sub(header.tp_mac));
    let bytes = |length: u32| length.saturating_sub(replaced) + cooked.len() as u32;
    (mac, bytes(header.tp_snaplen), bytes(header.tp_len))
}
