//! The common part of the rings of packet sockets (TPACKET_V2 and V3): the transfer of a block or a frame
//! between kernel and user space, which only its status word controls, and slots that point at a packet in
//! one.
//!
//! Sources: net/packet/af_packet.c, Documentation/networking/packet_mmap.rst.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::link_header;
use crate::headers::{MAC_ADDRESSES_BYTES, VLAN_TAG_BYTES};
use sluicegate_base::ring::{AtomicU32, Direction, Meta, Ordering, Ring, TimestampSource};

/// The status word of a block or frame for receiving.
pub(super) struct RxStatus<'a>(&'a AtomicU32);

impl<'a> RxStatus<'a> {
    pub(super) fn of(status: &'a AtomicU32) -> Self {
        Self(status)
    }

    /// Returns the status if user space owns the block. Acquire: pairs with the kernel's barrier before its
    /// store of USER (V3: prb_close_block, smp_wmb; V2: tpacket_rcv, smp_mb), which publishes the headers and
    /// packets in the block.
    #[inline]
    pub(super) fn ours(&self) -> Option<u32> {
        let status = self.0.load(Ordering::Acquire);
        (status & libc::TP_STATUS_USER != 0).then_some(status)
    }

    /// Returns true if user space owns the block, and no packets were lost before it.
    pub(super) fn is_full(&self) -> bool {
        self.ours().is_some_and(|status| status & libc::TP_STATUS_LOSING == 0)
    }

    /// Gives the block back. Release: pairs with the kernel's read of the status, on which its writes into
    /// the block depend (V3: prb_dispatch_next_block, then smp_rmb in prb_open_block; V2:
    /// packet_current_rx_frame). User space has finished all accesses before.
    #[inline]
    pub(super) fn give_back(&self) {
        self.0.store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}

/// The status word of a frame for sending.
pub(super) struct TxStatus<'a>(&'a AtomicU32);

/// The state of a frame that the kernel was requested to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TxAnswer {
    /// The kernel has not taken the frame.
    Waits,
    /// The kernel has taken the frame, and may have finished with it.
    Taken,
    /// The kernel will not take the frame, nor any frame after it.
    Wrong,
}

impl<'a> TxStatus<'a> {
    pub(super) fn of(status: &'a AtomicU32) -> Self {
        Self(status)
    }

    /// Returns true if user space owns the frame. Acquire: pairs with the kernel's store of AVAILABLE when
    /// the packet is freed (tpacket_destruct_skb), after the last read of the frame by any CPU or card.
    #[inline]
    pub(super) fn is_ours(&self) -> bool {
        const KERNELS: u32 = libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_SENDING;
        self.0.load(Ordering::Acquire) & (KERNELS | libc::TP_STATUS_WRONG_FORMAT) == 0
    }

    /// Requests that the kernel send the frame at the next call. Release: pairs with the read of the status
    /// in that call (tpacket_snd, packet_current_frame), and publishes header and packet. Program order
    /// would suffice, because this thread makes the call.
    #[inline]
    pub(super) fn ask(&self) {
        self.0.store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
    }

    /// Returns the state of a requested frame, read after the call. Relaxed: until the frame [is
    /// ours](Self::is_ours) again, nothing is done with it because of this word.
    #[inline]
    pub(super) fn answer(&self) -> TxAnswer {
        match self.0.load(Ordering::Relaxed) {
            status if status & libc::TP_STATUS_WRONG_FORMAT != 0 => TxAnswer::Wrong,
            status if status & libc::TP_STATUS_SEND_REQUEST != 0 => TxAnswer::Waits,
            _ => TxAnswer::Taken,
        }
    }

    /// Takes back a frame that was requested but not taken. Relaxed: the kernel takes frames only when this
    /// thread calls it, so nothing else accesses the word now.
    pub(super) fn take_back(&self) {
        self.0.store(libc::TP_STATUS_AVAILABLE, Ordering::Relaxed);
    }
}

/// Counts of one fill of the ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FillCounts {
    /// Number of new slots in the ring.
    pub slots: u32,
    /// Number of packets in them.
    pub packets: u32,
    /// Number of packets that were too long for the kernel's frame, and are in no slot.
    pub cut: u32,
}

/// Packets that were lost before a packet that has not arrived yet. The kernel counts them, and marks the
/// block or frame after the gap LOSING unless the count is read before. [`note`](Self::note) replaces the
/// mark.
#[derive(Debug, Default)]
pub(super) struct LossGap {
    pub lost: u32,
    /// Number of blocks or frames before the gap; 0 if nothing was lost.
    before: u32,
}

impl LossGap {
    /// Records that packets were lost. The kernel loses packets when it has no room, so the gap is after
    /// the `before` blocks or frames that user space owns and that are [full](RxStatus::is_full).
    pub(super) fn note(&mut self, lost: u32, before: u32) {
        if self.lost == 0 {
            self.before = before;
        }
        self.lost += lost;
    }

    /// Returns the number of packets lost before the next block or frame, once.
    pub(super) fn take(&mut self) -> u32 {
        if self.before == 0 { std::mem::take(&mut self.lost) } else { 0 }
    }

    /// Moves on to the block or frame after the next.
    pub(super) fn pass(&mut self) {
        self.before = self.before.saturating_sub(1);
    }
}

/// Size of one piece of a packet that is too long for a slot's 16-bit length.
const PIECE_BYTES: u32 = 65_472;

/// A packet in a block or a frame that user space owns.
pub(super) struct ShownPacket {
    /// Its address, and its length as far as the kernel kept it.
    pub start: NonNull<u8>,
    pub bytes: u32,
    /// True if the kernel removed a tag, which the metadata contains and which is to be restored.
    pub tagged: bool,
    /// The metadata; its length on the wire does not include the tag.
    pub meta: Meta,
}

impl ShownPacket {
    /// Points slots from `tail` on at `snaplen` bytes of the packet, including its tag. Returns the number
    /// of slots; 0 if it needs more than `room`.
    ///
    /// # Safety
    /// User space owns the packet's block or frame, which goes back to the kernel only after the slots have
    /// been released. If the packet is tagged, the [`VLAN_TAG_BYTES`] in front of it belong to the block or
    /// frame, too, and nothing reads their contents.
    #[inline(always)]
    pub(super) unsafe fn show(
        self,
        ring: &mut Ring,
        tail: &mut u32,
        room: u32,
        snaplen: u32,
    ) -> u32 {
        let Self { start, bytes, tagged, mut meta } = self;
        // A packet truncated within the addresses has no place for the tag.
        let put_back = tagged && bytes >= MAC_ADDRESSES_BYTES as u32;
        let added = if put_back { VLAN_TAG_BYTES as u32 } else { 0 };
        let kept = (bytes + added).min(snaplen);
        let pieces = pieces(kept);
        if pieces > room {
            return 0;
        }
        if tagged {
            meta.wire_bytes += VLAN_TAG_BYTES as u32;
        }
        // SAFETY: the packet, or the room for a tag in front of it, is in the block.
        let start = unsafe { start.sub(added as usize) };
        if put_back {
            // SAFETY: the room for the tag and the packet after it, in a block that user space owns.
            let frame =
                unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), (bytes + added) as usize) };
            link_header::reinsert_tag_front(frame, meta.vlan_tpid, meta.vlan_tci);
        }
        let first = *tail;
        place_pieces(ring, tail, pieces, start, kept);
        *ring.meta_mut(first) = meta;
        pieces
    }
}

/// Returns the number of slots that a packet takes.
#[inline]
pub(super) fn pieces(bytes: u32) -> u32 {
    if bytes <= PIECE_BYTES { 1 } else { bytes.div_ceil(PIECE_BYTES) }
}

/// Points slots at the consecutive pieces of a packet.
#[inline]
fn place_pieces(ring: &mut Ring, tail: &mut u32, pieces: u32, packet: NonNull<u8>, bytes: u32) {
    let mut done = 0;
    for left in (0..pieces).rev() {
        let length = (bytes - done).min(PIECE_BYTES);
        // SAFETY: the piece lies within the packet, in a block that user space owns and that goes back to
        // the kernel only after the slot has been released (`give_back`).
        unsafe {
            let start = packet.add(done as usize);
            ring.point(*tail, start, length as u16, left > 0);
        }
        done += length;
        *tail = ring.next(*tail);
    }
}

pub(super) fn timestamp_source(status: u32) -> TimestampSource {
    if status & libc::TP_STATUS_TS_RAW_HARDWARE != 0 {
        TimestampSource::Hardware
    } else {
        TimestampSource::Software
    }
}

/// Returns the direction for the packet type of a sockaddr_ll.
#[inline]
pub(super) fn direction(pkttype: u8) -> Direction {
    if pkttype == libc::PACKET_OUTGOING { Direction::Out } else { Direction::In }
}

/// Returns a packet's time in nanoseconds, as in [`Meta::timestamp_ns`].
#[inline]
pub(super) fn nanoseconds(seconds: u32, nanoseconds: u32) -> u64 {
    u64::from(seconds) * 1_000_000_000 + u64::from(nanoseconds)
}

/// Every interleaving of the kernel and user space. Run with `RUSTFLAGS="--cfg loom" cargo test -p
/// sluicegate --lib --target-dir target/loom -- loom`.
#[cfg(all(test, loom))]
mod loom_rx {
    use std::collections::VecDeque;

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A block: its status, and a payload whose accesses loom checks for races.
    struct Block {
        status: AtomicU32,
        payload: UnsafeCell<[u32; 2]>,
    }

    fn ring(blocks: usize) -> Arc<Vec<Block>> {
        let block = || Block {
            status: AtomicU32::new(libc::TP_STATUS_KERNEL),
            payload: UnsafeCell::new([0; 2]),
        };
        Arc::new((0..blocks).map(|_| block()).collect())
    }

    /// Plays the kernel: fills the next block if the kernel owns it (af_packet.c, prb_open_block and
    /// prb_close_block). Returns false if not: then the kernel would drop packets.
    fn fill(block: &Block, number: u32) -> bool {
        if block.status.load(Ordering::Acquire) != libc::TP_STATUS_KERNEL {
            return false;
        }
        // A header and a packet, one after the other, so that a half-written block would be noticed.
        // SAFETY: loom checks that nothing else accesses the payload meanwhile.
        block.payload.with_mut(|payload| unsafe { (*payload)[0] = number });
        block.payload.with_mut(|payload| unsafe { (*payload)[1] = number });
        block.status.store(libc::TP_STATUS_USER, Ordering::Release);
        true
    }

    /// Passes `numbers` blocks through a ring. The reader holds up to `most_held` blocks and reads each
    /// again before it gives it back.
    fn pass(blocks: usize, numbers: u32, most_held: usize) {
        loom::model(move || {
            let ring = ring(blocks);
            let kernels = Arc::clone(&ring);
            let kernel = thread::spawn(move || {
                for number in 0..numbers {
                    while !fill(&kernels[number as usize % blocks], number) {
                        thread::yield_now();
                    }
                }
            });
            // SAFETY: loom checks that the kernel does not write meanwhile.
            let look = |at: usize| ring[at].payload.with(|payload| unsafe { *payload });
            let mut held = VecDeque::new();
            for number in 0..numbers {
                let at = number as usize % blocks;
                if held.len() == most_held {
                    let (at, number): (usize, u32) = held.pop_front().unwrap();
                    assert_eq!(look(at), [number; 2], "unchanged while held");
                    RxStatus::of(&ring[at].status).give_back();
                }
                while RxStatus::of(&ring[at].status).ours().is_none() {
                    thread::yield_now();
                }
                assert_eq!(look(at), [number; 2], "whole, and in order");
                held.push_back((at, number));
            }
            kernel.join().unwrap();
        });
    }

    #[test]
    fn loom_one_block_goes_back_and_forth() {
        pass(1, 3, 1);
    }

    #[test]
    fn loom_blocks_are_whole_in_order_and_untouched_while_held() {
        pass(2, 4, 1);
        pass(2, 4, 2);
        pass(3, 4, 2);
    }

    /// The kernel does not wait: without a free block it drops packets, but the blocks that it passes are
    /// complete.
    #[test]
    fn loom_a_kernel_that_drops_never_touches_a_block_of_ours() {
        loom::model(|| {
            let ring = ring(2);
            let kernels = Arc::clone(&ring);
            let kernel = thread::spawn(move || {
                let mut next = 0;
                (1..=4)
                    .filter(|&number| {
                        let filled = fill(&kernels[next], number);
                        next = (next + usize::from(filled)) % 2;
                        filled
                    })
                    .collect::<Vec<u32>>()
            });
            let mut seen = Vec::new();
            let mut next = 0;
            let mut look = || {
                let block = &ring[next];
                let handover = RxStatus::of(&block.status);
                let Some(_) = handover.ours() else { return false };
                // SAFETY: loom checks that the kernel does not write meanwhile.
                let [header, packet] = block.payload.with(|payload| unsafe { *payload });
                assert_eq!(header, packet, "never half a block");
                seen.push(header);
                handover.give_back();
                next = (next + 1) % 2;
                true
            };
            look();
            look();
            let filled = kernel.join().unwrap();
            while look() {}
            assert_eq!(seen, filled, "what was filled is seen once, in order");
        });
    }
}

/// The interleavings of user space and the side that frees packets.
#[cfg(all(test, loom))]
mod loom_tx {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A frame: its status, and a packet whose accesses loom checks for races.
    struct Frame {
        status: AtomicU32,
        packet: UnsafeCell<[u32; 2]>,
    }

    fn ring(frames: usize) -> Arc<Vec<Frame>> {
        let frame = || Frame {
            status: AtomicU32::new(libc::TP_STATUS_AVAILABLE),
            packet: UnsafeCell::new([0; 2]),
        };
        Arc::new((0..frames).map(|_| frame()).collect())
    }

    /// Plays send(2) in the same thread: takes the requested frames, from `head` on. Returns the next head.
    fn tpacket_snd(ring: &[Frame], mut head: usize) -> usize {
        while ring[head].status.load(Ordering::Acquire) == libc::TP_STATUS_SEND_REQUEST {
            ring[head].status.store(libc::TP_STATUS_SENDING, Ordering::Release);
            head = (head + 1) % ring.len();
        }
        head
    }

    /// Sends `numbers` packets in `frames` frames; the card reads and frees them asynchronously. Up to
    /// three preemptions: both sides poll while they wait for each other, and all interleavings would take
    /// hours.
    fn pass(frames: usize, numbers: u32) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let ring = ring(frames);
            let cards = Arc::clone(&ring);
            let card = thread::spawn(move || {
                for number in 0..numbers {
                    let frame = &cards[number as usize % frames];
                    while frame.status.load(Ordering::Acquire) != libc::TP_STATUS_SENDING {
                        thread::yield_now();
                    }
                    // SAFETY: loom checks that nothing writes the packet meanwhile.
                    let packet = frame.packet.with(|packet| unsafe { *packet });
                    assert_eq!(packet, [number; 2], "whole, in order, and not overwritten");
                    frame.status.store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
                }
            });
            let mut head = 0;
            for number in 0..numbers {
                let at = number as usize % frames;
                let handover = TxStatus::of(&ring[at].status);
                while !handover.is_ours() {
                    thread::yield_now();
                }
                // SAFETY: loom checks that nothing else accesses the packet meanwhile.
                ring[at].packet.with_mut(|packet| unsafe { (*packet)[0] = number });
                ring[at].packet.with_mut(|packet| unsafe { (*packet)[1] = number });
                handover.ask();
                assert_eq!(handover.answer(), TxAnswer::Waits);
                head = tpacket_snd(&ring, head);
                assert_eq!(handover.answer(), TxAnswer::Taken);
            }
            card.join().unwrap();
        });
    }

    #[test]
    fn loom_a_frame_is_not_written_before_its_packet_has_left() {
        pass(1, 2);
        pass(2, 3);
    }
}
