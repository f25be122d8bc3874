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
//! A block's status word is the only thing both sides touch. The kernel fills a block, then
//! stores USER: from then on the block is ours, packets and headers, to read and to write.
//! We store KERNEL: from then on it is the kernel's. The kernel closes a block when it is full or
//! `block_timeout` has passed. While the next block is still ours the kernel has no room: it counts packets
//! as lost and marks the next block that it fills LOSING.
//!
//! Slots point into a block, so it goes back only after the program has released the last of
//! them. Source: net/packet/af_packet.c, Documentation/networking/packet_mmap.rst.
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
    Filled, LossGap, RxStatus, ShownPacket, direction, nanoseconds, timestamp_source,
};
use crate::error::Result;
use crate::headers::VLAN_TAG_BYTES;
use crate::port::packet_socket::Socket;
use sluicegate_base::memory::{Mmap, prefetch};
use sluicegate_base::ring::{Meta, Ring};

/// The offset of the link-layer address behind a packet's header: TPACKET_ALIGN(48).
const SLL_OFFSET: usize = size_of::<tpacket3_hdr>().next_multiple_of(16);
/// The least distance of the prefetch, which the kernel wrote on another CPU: some short packets ahead. Behind
/// a long packet it is the next header.
const AHEAD_BYTES: usize = 1024;
/// The status word within a block, and the header around it.
const HEADER_OFFSET: usize = offset_of!(tpacket_block_desc, hdr);
const STATUS_OFFSET: usize = HEADER_OFFSET + offset_of!(tpacket_hdr_v1, block_status);

const _: () = {
    assert!(size_of::<tpacket3_hdr>() == 48);
    // A packet begins behind its address: there is always room for a tag in front of it.
    assert!(size_of::<libc::sockaddr_ll>() >= VLAN_TAG_BYTES);
    assert!(STATUS_OFFSET == 8);
};

/// A block whose packets are in slots.
#[derive(Debug)]
struct BlockInUse {
    block: u32,
    /// Slots the program has not yet released.
    slots: u32,
}

/// The position in the block at the end of `held`.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// Offset of the next packet's header in the region.
    at: usize,
    /// Packets left to walk.
    left: u32,
    /// Packets lost before the next one.
    drops_before: u32,
}

/// The blocks, and which of them are ours.
#[derive(Debug)]
pub(super) struct BlockRing {
    map: Mmap,
    block_bytes: usize,
    blocks: u32,
    /// The next block the kernel will hand over.
    next: u32,
    held: VecDeque<BlockInUse>,
    cursor: Option<Cursor>,
    /// A loss that is known of but not yet marked at a packet.
    gap: LossGap,
    /// The ring's head when we last looked.
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
            tp_retire_blk_tov: config.retire.as_millis() as u32,
            tp_sizeof_priv: 0,
            // No TP_FT_REQ_FILL_RXHASH: it would dissect every packet's headers.
            tp_feature_req_word: 0,
        };
        let bytes = block_bytes as usize * blocks as usize;
        let map = socket.map_rx_ring(libc::tpacket_versions::TPACKET_V3, request, bytes)?;
        // SAFETY: this is the kernel's ring, of as many blocks as asked for.
        Ok(unsafe { Self::over(map, block_bytes as usize, blocks, config.snaplen) })
    }

    /// The ring in `map`, which holds at most `snaplen` bytes of each packet for the program.
    ///
    /// # Safety
    /// `map` is `blocks` blocks of `block_bytes` bytes, filled and handed over as described
    /// above, each header in them leading to packets that lie within their block.
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

    /// Returns true if the kernel has handed over a block that was not looked at yet.
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

    /// Fills the ring with packets of the blocks that are ours. `lost` is asked how many
    /// packets were lost when a block says that some were. With `devices` packets belong to these.
    pub(super) fn fill(
        &mut self,
        ring: &mut Ring,
        devices: Option<(&mut Devices, &Socket)>,
        lost: impl FnMut() -> u32,
    ) -> Filled {
        // Two loops: packets of one interface pay nothing for those of many.
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
    ) -> Filled {
        let mut filled = Filled::default();
        let mut room = ring.room();
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

    /// Notes that packets were lost, when the count was read between two blocks: reading it
    /// takes the LOSING mark from the block being filled.
    pub(super) fn note_loss(&mut self, lost: u32) {
        if lost > 0 {
            let unread = self.blocks - self.held.len() as u32;
            let is_full = |i: &u32| self.status((self.next + i) % self.blocks).is_full();
            self.gap.note(lost, (0..unread).take_while(is_full).count() as u32);
        }
    }

    /// Takes the next block if the kernel has handed it over.
    fn open_next(&mut self, lost: &mut impl FnMut() -> u32) -> Option<Cursor> {
        // All blocks are ours: the next is the first of them, and its status is USER, too.
        if self.held.len() == self.blocks as usize {
            return None;
        }
        let block = self.next;
        let status = self.status(block).ours()?;
        self.next = if block + 1 == self.blocks { 0 } else { block + 1 };
        self.held.push_back(BlockInUse { block, slots: 0 });
        let start = block as usize * self.block_bytes;
        let header: NonNull<tpacket_hdr_v1> = self.map.at(start + HEADER_OFFSET).cast();
        // SAFETY: the block is ours (see `ours`), so the kernel does not write its header; the
        // header lies within the block and is aligned to 8.
        let (packets, first) = unsafe {
            let header = header.as_ref();
            (header.num_pkts, header.offset_to_first_pkt)
        };
        let mut drops_before = if status & libc::TP_STATUS_LOSING != 0 { lost() } else { 0 };
        drops_before += self.gap.take();
        self.gap.pass();
        if packets == 0 {
            // Older kernels hand over empty blocks: the mark waits for the next packet.
            self.gap.lost += std::mem::take(&mut drops_before);
        }
        Some(Cursor { at: start + first as usize, left: packets, drops_before })
    }

    /// Puts one packet into slots from `tail` on; 0 if it needs more than `room`.
    #[inline]
    fn place(
        &self,
        cursor: &mut Cursor,
        ring: &mut Ring,
        tail: &mut u32,
        room: u32,
        origin: &mut impl FnMut(&libc::sockaddr_ll) -> Option<DeviceOrigin>,
    ) -> u32 {
        let start = self.map.at(cursor.at);
        // SAFETY: the block is ours, and the kernel has put a header at this offset (the first
        // from the block's header, the next from the one before), aligned to 8.
        let header: &tpacket3_hdr = unsafe { start.cast().as_ref() };
        let (mut bytes, mut wire_bytes) = (header.tp_snaplen, header.tp_len);
        let mut mac = usize::from(header.tp_mac);
        let mut tagged = header.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
        // SAFETY: a sockaddr_ll follows the header at SLL_OFFSET, within the block, which is ours. Its
        // last use is before what is written below.
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
                // SAFETY: all three are of the packet at `start`, in a block that is ours.
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
        // SAFETY: the block goes back only after its last slot has been released (`give_back`). What is in
        // front of the packet is behind the header and at most the address, which were read above.
        let slots = unsafe { packet.show(ring, tail, room, self.snaplen) };
        if slots > 0 {
            *cursor = Cursor { at: next, left: cursor.left - 1, drops_before: 0 };
        }
        slots
    }

    #[inline]
    fn status(&self, block: u32) -> RxStatus<'_> {
        let status = self.map.at(block as usize * self.block_bytes + STATUS_OFFSET);
        // SAFETY: the word lies in the mapping, is aligned to 8, and both sides access it
        // atomically only (the kernel through its own barriers).
        RxStatus::of(unsafe { status.cast().as_ref() })
    }
}

/// Puts a cooked header in the place of a packet's link-layer header, as far as that was kept. Returns the
/// offset of the packet from `start`, its length, and its length on the wire. The header that is read and
/// the address stay as they are: the same packet may be cooked again where it found no room.
///
/// # Safety
/// `header` and `address` are those the kernel put at `start`, in a block that is ours.
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
    // tpacket_rcv), so that the bytes in front of it are behind the address; it is at most a link-layer
    // header from tp_mac, and `admission` lets in as much of each packet at least, so that they are
    // within the frame, or cut off by the length; the block is ours.
    let front = unsafe { std::slice::from_raw_parts_mut(start.add(mac).as_ptr(), cooked.len()) };
    front.copy_from_slice(cooked);
    let replaced = u32::from(header.tp_net.saturating_sub(header.tp_mac));
    let bytes = |length: u32| length.saturating_sub(replaced) + cooked.len() as u32;
    (mac, bytes(header.tp_snaplen), bytes(header.tp_len))
}
