//! Tests the block ring in ordinary memory, with a mock of the kernel's side: blocks with random packets
//! and the layout of net/packet/af_packet.c, released unevenly.

use std::collections::VecDeque;
use std::ptr::NonNull;

use proptest::prelude::*;

use super::*;
use crate::port::packet::tpacket::pieces;
use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::ring::{AtomicU32, Direction, Ordering};

/// A packet as it was on the wire.
#[derive(Clone, Debug)]
struct WirePacket {
    /// Length without the outer tag.
    bytes: usize,
    tag: Option<(u16, u16)>,
    outgoing: bool,
}

#[derive(Clone, Debug)]
enum BlockStep {
    /// A block's worth of packets arrives.
    Arrive(Vec<WirePacket>),
    /// Packets arrive, for which there may be no block.
    Burst(u8),
    Sync,
    /// The program releases this percentage of its packets.
    Release(u8),
    /// The counts are read between two blocks.
    Count,
}

/// A packet that must be received.
#[derive(Debug)]
struct Expected {
    number: u32,
    wire: WirePacket,
}

/// The kernel's side.
struct BlockKernel {
    base: NonNull<u8>,
    block_bytes: usize,
    blocks: u32,
    snaplen: u32,
    next: u32,
    number: u32,
    /// Number of drops since the counts were last read, and of all drops.
    drops: u32,
    all_drops: u32,
    /// For each block passed to user space: its number, the packets in it, and the number of packets before
    /// its end.
    handed: VecDeque<(u32, u32, usize)>,
    packets: usize,
}

impl BlockKernel {
    fn status(&self, block: u32) -> &AtomicU32 {
        let at = block as usize * self.block_bytes + STATUS_OFFSET;
        // SAFETY: within the mapping, aligned, and used as an atomic by both sides.
        unsafe { self.base.add(at).cast().as_ref() }
    }

    fn is_ours(&self, block: u32) -> bool {
        self.status(block).load(Ordering::Acquire) == libc::TP_STATUS_KERNEL
    }

    /// Fills the next block with as many of the packets as fit. Drops them if there is no block.
    fn fill(&mut self, packets: &[WirePacket], expected: &mut VecDeque<Expected>) {
        let block = self.next;
        if !self.is_ours(block) {
            self.drops += packets.len() as u32;
            self.all_drops += packets.len() as u32;
            return;
        }
        let start = block as usize * self.block_bytes;
        // SAFETY: the kernel owns the block, so the mock may write all of it; the status word is left out.
        let bytes = unsafe {
            let after = start + STATUS_OFFSET + 4;
            let length = self.block_bytes - STATUS_OFFSET - 4;
            std::slice::from_raw_parts_mut(self.base.add(after).as_ptr(), length)
        };
        bytes.fill(0xaa);
        let mut at = size_of::<tpacket_block_desc>();
        let first = at;
        let mut count = 0;
        for wire in packets {
            let needed = packet_bytes(wire, self.snaplen);
            if at + needed > self.block_bytes {
                break;
            }
            // SAFETY: the packet with its headers lies within the block.
            unsafe { write_packet(self.base.add(start + at), wire, self.snaplen, self.number) };
            expected.push_back(Expected { number: self.number, wire: wire.clone() });
            self.number += 1;
            at += needed;
            count += 1;
        }
        // SAFETY: the block's header, which the mock may write except for the status.
        unsafe {
            let header: *mut tpacket_hdr_v1 = self.base.add(start + HEADER_OFFSET).cast().as_ptr();
            (*header).num_pkts = count;
            (*header).offset_to_first_pkt = first as u32;
        }
        let losing = if self.drops > 0 { libc::TP_STATUS_LOSING } else { 0 };
        self.status(block).store(libc::TP_STATUS_USER | losing, Ordering::Release);
        self.next = (block + 1) % self.blocks;
        self.packets += count as usize;
        self.handed.push_back((block, count, self.packets));
    }

    /// Checks that blocks go back exactly when all their packets have been released.
    fn check_returned(&mut self, released: usize) -> Result<(), TestCaseError> {
        while let Some(&(block, count, end)) = self.handed.front() {
            if !self.is_ours(block) {
                // Nothing releases the packets of an empty block: it goes back with the next sync.
                prop_assert!(released < end || count == 0, "block {block} is kept too long");
                break;
            }
            prop_assert!(released >= end, "block {block} went back too early");
            self.handed.pop_front();
        }
        for &(block, ..) in &self.handed {
            prop_assert!(!self.is_ours(block), "block {block} went back out of turn");
        }
        Ok(())
    }
}

/// Offset of a packet's bytes from its header: TPACKET_ALIGN(68 + 16) - 14, as for Ethernet.
const MAC: usize = 82;

fn packet_bytes(wire: &WirePacket, snaplen: u32) -> usize {
    (MAC + wire.bytes.min(snaplen as usize)).next_multiple_of(8)
}

/// # Safety
/// The caller owns `packet_bytes` bytes from `at` on, and `at` is aligned to 8.
unsafe fn write_packet(at: NonNull<u8>, wire: &WirePacket, snaplen: u32, number: u32) {
    let kept = wire.bytes.min(snaplen as usize);
    // SAFETY: guaranteed by the caller; a tpacket3_hdr and a sockaddr_ll are integers.
    unsafe {
        let header: *mut tpacket3_hdr = at.cast().as_ptr();
        header.write(std::mem::zeroed());
        (*header).tp_next_offset = packet_bytes(wire, snaplen) as u32;
        (*header).tp_sec = number;
        (*header).tp_nsec = 7;
        (*header).tp_snaplen = kept as u32;
        (*header).tp_len = wire.bytes as u32;
        (*header).tp_mac = MAC as u16;
        if let Some((tpid, tci)) = wire.tag {
            (*header).tp_status = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
            (*header).hv1.tp_vlan_tci = tci.into();
            (*header).hv1.tp_vlan_tpid = tpid;
        }
        let address: *mut libc::sockaddr_ll = at.add(SLL_OFFSET).cast().as_ptr();
        (*address).sll_pkttype =
            if wire.outgoing { libc::PACKET_OUTGOING } else { libc::PACKET_HOST };
        let bytes = std::slice::from_raw_parts_mut(at.add(MAC).as_ptr(), kept);
        bytes.copy_from_slice(&untagged(wire, number)[..kept]);
    }
}

fn untagged(wire: &WirePacket, number: u32) -> Vec<u8> {
    // 251 is prime: bytes at a wrong position have other values.
    let pattern: [u8; 251] = std::array::from_fn(|i| (i as u32 ^ number.wrapping_mul(31)) as u8);
    let mut bytes = pattern.repeat(wire.bytes.div_ceil(pattern.len()));
    bytes.truncate(wire.bytes);
    bytes
}

/// Returns the bytes that the program must see.
fn on_the_wire(wire: &WirePacket, number: u32, snaplen: u32) -> Vec<u8> {
    let mut bytes = untagged(wire, number);
    if let Some((tpid, tci)) = wire.tag.filter(|_| bytes.len() >= 12) {
        bytes.splice(12..12, [tpid.to_be_bytes(), tci.to_be_bytes()].concat());
    }
    bytes.truncate(snaplen as usize);
    bytes
}

fn check_packet(
    packet: &sluicegate_base::ring::Packet<'_>,
    Expected { number, wire }: &Expected,
    snaplen: u32,
) -> Result<(), TestCaseError> {
    let mut scratch = Vec::new();
    prop_assert!(packet.contiguous(&mut scratch) == on_the_wire(wire, *number, snaplen));
    let meta = packet.meta();
    let tag = wire.tag.unwrap_or((0, 0));
    prop_assert_eq!((meta.vlan_tpid, meta.vlan_tci), tag);
    prop_assert_eq!(meta.timestamp_ns, u64::from(*number) * 1_000_000_000 + 7);
    let tag_bytes = if wire.tag.is_some() { 4 } else { 0 };
    prop_assert_eq!(meta.wire_bytes as usize, wire.bytes + tag_bytes);
    prop_assert_eq!(meta.direction == Direction::Out, wire.outgoing);
    prop_assert_eq!(packet.slots(), pieces(packet.captured_bytes() as u32));
    Ok(())
}

fn wire() -> impl Strategy<Value = WirePacket> {
    let bytes = prop_oneof![
        2 => 0usize..20,
        8 => 14usize..1600,
        1 => 65_400usize..65_540,
        1 => 65_540usize..200_000,
    ];
    let tag =
        prop::option::weighted(0.3, (prop_oneof![Just(0x8100u16), Just(0x88a8)], any::<u16>()));
    (bytes, tag, any::<bool>()).prop_map(|(bytes, tag, outgoing)| WirePacket {
        bytes,
        tag,
        outgoing,
    })
}

fn step() -> impl Strategy<Value = BlockStep> {
    prop_oneof![
        3 => prop::collection::vec(wire(), 0..40).prop_map(BlockStep::Arrive),
        1 => (1u8..20).prop_map(BlockStep::Burst),
        4 => Just(BlockStep::Sync),
        4 => (0u8..=100).prop_map(BlockStep::Release),
        1 => Just(BlockStep::Count),
    ]
}

/// The test's own record, in addition to the ring.
struct Trial {
    kernel: BlockKernel,
    blocks: BlockRing,
    ring: Ring,
    expected: VecDeque<Expected>,
    /// Number of packets in the ring that were checked.
    shown: usize,
    released: usize,
    marked: u32,
}

impl Trial {
    fn new(block_bytes: usize, blocks: u32, slots: u32, snaplen: u32) -> Self {
        let map = Mmap::anonymous(block_bytes * blocks as usize).unwrap();
        let kernel = BlockKernel {
            base: map.base(),
            block_bytes,
            blocks,
            snaplen,
            next: 0,
            number: 1,
            drops: 0,
            all_drops: 0,
            handed: VecDeque::new(),
            packets: 0,
        };
        let pool = Pool::new(PoolConfig::default()).unwrap();
        Self {
            kernel,
            // SAFETY: the mock fills the blocks as the kernel does.
            blocks: unsafe { BlockRing::over(map, block_bytes, blocks, snaplen) },
            ring: Ring::receive_indirect(&pool, slots).unwrap(),
            expected: VecDeque::new(),
            shown: 0,
            released: 0,
            marked: 0,
        }
    }

    fn run(&mut self, step: &BlockStep) -> Result<(), TestCaseError> {
        match step {
            BlockStep::Arrive(packets) => self.kernel.fill(packets, &mut self.expected),
            BlockStep::Burst(n) => {
                let small = WirePacket { bytes: 60, tag: None, outgoing: false };
                self.kernel.fill(&vec![small; usize::from(*n)], &mut self.expected);
            }
            BlockStep::Count => self.blocks.note_loss(std::mem::take(&mut self.kernel.drops)),
            BlockStep::Sync => self.sync()?,
            BlockStep::Release(percent) => self.release(usize::from(*percent))?,
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), TestCaseError> {
        self.blocks.give_back(&self.ring);
        self.kernel.check_returned(self.released)?;
        let before = self.ring.available();
        let drops = &mut self.kernel.drops;
        let filled = self.blocks.fill(&mut self.ring, None, || std::mem::take(drops));
        prop_assert_eq!(self.ring.available(), before + filled.slots);
        let packets = self.ring.packets().count();
        prop_assert_eq!(packets, self.shown + filled.packets as usize);
        for (packet, expected) in self.ring.packets().zip(&self.expected).skip(self.shown) {
            check_packet(&packet, expected, self.kernel.snaplen)?;
            self.marked += packet.meta().drops_before;
        }
        self.shown = packets;
        Ok(())
    }

    fn release(&mut self, percent: usize) -> Result<(), TestCaseError> {
        for _ in 0..(self.shown * percent).div_ceil(100) {
            let Some(expected) = self.expected.pop_front() else { break };
            let packet = self.ring.packets().next();
            let packet = packet.ok_or_else(|| TestCaseError::fail("a packet has vanished"))?;
            check_packet(&packet, &expected, self.kernel.snaplen)?;
            let slots = packet.slots();
            self.ring.release(slots);
            self.shown -= 1;
            self.released += 1;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn packets_come_once_in_order_and_blocks_go_back_when_the_last_is_released(
        block_bytes in prop::sample::select(vec![4096usize, 16_384, 1 << 18]),
        blocks in 2u32..6,
        slots in prop::sample::select(vec![16u32, 17, 64, 300]),
        snaplen in prop::sample::select(vec![5u32, 12, 13, 15, 100, 65_472, 65_473, 262_144]),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut trial = Trial::new(block_bytes, blocks, slots, snaplen);
        for step in &steps {
            trial.run(step)?;
        }
        // All packets are received, all blocks go back, and one more block closes every gap.
        for _ in 0..1000 {
            trial.run(&BlockStep::Sync)?;
            trial.run(&BlockStep::Release(100))?;
            if trial.expected.is_empty() {
                break;
            }
        }
        trial.run(&BlockStep::Sync)?;
        trial.run(&BlockStep::Sync)?;
        prop_assert!(trial.kernel.handed.is_empty(), "every block is the kernel's again");
        trial.run(&BlockStep::Burst(1))?;
        trial.run(&BlockStep::Sync)?;
        trial.run(&BlockStep::Release(100))?;
        prop_assert_eq!(trial.released, trial.kernel.packets);
        prop_assert_eq!(trial.marked, trial.kernel.all_drops, "every loss is marked once");
    }
}

#[test]
fn a_loss_is_marked_at_the_packet_after_it_by_any_reader_of_the_count() {
    for count_first in [false, true] {
        let mut trial = Trial::new(4096, 2, 64, 262_144);
        // Two blocks of three packets, five lost, and three more once there is room.
        for n in [3, 3, 5] {
            trial.run(&BlockStep::Burst(n)).unwrap();
        }
        if count_first {
            trial.run(&BlockStep::Count).unwrap();
        }
        for _ in 0..2 {
            trial.run(&BlockStep::Sync).unwrap();
            trial.run(&BlockStep::Release(100)).unwrap();
        }
        trial.run(&BlockStep::Sync).unwrap();
        trial.run(&BlockStep::Burst(3)).unwrap();
        trial.run(&BlockStep::Sync).unwrap();
        let marks: Vec<u32> = trial.ring.packets().map(|p| p.meta().drops_before).collect();
        assert_eq!(marks, [5, 0, 0], "counted first: {count_first}");
    }
}
