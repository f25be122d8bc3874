//! Tests the ring of frames in ordinary memory, with a mock of the kernel's side that acts like tpacket_snd
//! and tpacket_destruct_skb of net/packet/af_packet.c: packets of all lengths, room that runs out, packets
//! that it rejects, frees in any order.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::ring::{AtomicU32, Meta, Ordering, RingMut};

const SLOTS: u32 = 32;
const MTU: usize = 5000;

#[derive(Clone, Debug)]
enum FrameStep {
    /// The program sends a packet of this many bytes, which the kernel accepts or not.
    Push(usize, bool),
    /// A sync, in which the kernel has room for this many packets.
    Sync(usize),
    /// A packet is freed: the one at this position among the packets being sent.
    Free(usize),
    /// The waiting packets are given up.
    GiveUp,
}

/// A packet as it was pushed.
#[derive(Clone, Debug)]
struct Pushed {
    bytes: Vec<u8>,
    liked: bool,
}

/// The kernel's side.
struct Kernel {
    base: NonNull<u8>,
    layout: FrameLayout,
    head: usize,
    /// Number of packets that it takes before its queue is full.
    room: usize,
    /// Frames being sent, and their contents.
    out: Vec<(usize, Vec<u8>)>,
    taken: Vec<Vec<u8>>,
}

impl Kernel {
    fn status(&self, frame: usize) -> &AtomicU32 {
        // SAFETY: within the mapping, aligned, and used as an atomic by both sides.
        unsafe { self.base.add(frame * self.layout.frame_bytes + STATUS_OFFSET).cast().as_ref() }
    }

    fn packet(&self, frame: usize) -> Vec<u8> {
        let start = self.base.as_ptr().wrapping_add(frame * self.layout.frame_bytes);
        // SAFETY: the kernel may read the frame, which holds header and packet.
        unsafe {
            let bytes = (&raw const (*start.cast::<tpacket2_hdr>()).tp_len).read() as usize;
            assert!(PACKET_OFFSET + bytes <= self.layout.frame_bytes, "{bytes} bytes in a frame");
            std::slice::from_raw_parts(start.add(PACKET_OFFSET), bytes).to_vec()
        }
    }

    /// Acts like tpacket_snd. It rejects a packet that begins with 0xff.
    fn send(&mut self) -> io::Result<()> {
        let mut sent = false;
        while self.status(self.head).load(Ordering::Acquire) == libc::TP_STATUS_SEND_REQUEST {
            let packet = self.packet(self.head);
            let status = self.status(self.head);
            if packet[0] == 0xff {
                status.store(libc::TP_STATUS_WRONG_FORMAT, Ordering::Release);
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            if self.room == 0 {
                // If it has sent something, it does not report that it stopped.
                let full = io::Error::from_raw_os_error(libc::ENOBUFS);
                return if sent { Ok(()) } else { Err(full) };
            }
            status.store(libc::TP_STATUS_SENDING, Ordering::Release);
            self.room -= 1;
            self.taken.push(packet.clone());
            self.out.push((self.head, packet));
            self.head = (self.head + 1) % self.layout.frames;
            sent = true;
        }
        Ok(())
    }

    /// Acts like tpacket_destruct_skb.
    fn free(&mut self, place: usize) {
        if self.out.is_empty() {
            return;
        }
        let (frame, packet) = self.out.remove(place % self.out.len());
        assert!(self.packet(frame) == packet, "a packet changed while it was out");
        self.status(frame).store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
    }
}

/// The ring under test, the kernel's side, and the expected packets.
struct Bench {
    frames: FrameRing,
    kernel: Kernel,
    ring: Ring,
    progress: RingProgress,
    pushed: u8,
    waiting: VecDeque<Pushed>,
    sent: Vec<Vec<u8>>,
    refused: u64,
}

impl Bench {
    /// Fewer frames than slots, so that they run out.
    fn new() -> Self {
        let layout = FrameLayout { frame_bytes: 8192, frames: 8, block_bytes: 8192 };
        let map = Mmap::anonymous(layout.bytes()).unwrap();
        let base = map.base();
        // SAFETY: the mock follows the protocol, and zero is AVAILABLE.
        let frames = unsafe { FrameRing::over(map, layout, LengthLimits::new(14, MTU)) };
        let pool = Pool::new(PoolConfig { buffers: 2 * SLOTS, ..PoolConfig::default() }).unwrap();
        Self {
            frames,
            kernel: Kernel { base, layout, head: 0, room: 0, out: vec![], taken: vec![] },
            ring: Ring::transmit(&Arc::clone(&pool), SLOTS).unwrap(),
            progress: RingProgress::default(),
            pushed: 0,
            waiting: VecDeque::new(),
            sent: vec![],
            refused: 0,
        }
    }

    fn push(&mut self, bytes: usize, liked: bool) {
        self.pushed = (self.pushed + 1) % 200;
        let mut packet = vec![self.pushed; bytes];
        if let Some(first) = packet.first_mut().filter(|_| !liked) {
            *first = 0xff;
        }
        if RingMut::new(&mut self.ring).push(&Packet::new(&Meta::default(), &packet)) {
            self.waiting.push_back(Pushed { bytes: packet, liked });
        }
    }

    /// Acts like `send`, with an unchanged MTU.
    fn sync(&mut self, room: usize) {
        self.kernel.room = room;
        loop {
            let Self { frames, kernel, ring, progress, .. } = self;
            match frames.hand_over(ring, progress, || kernel.send()) {
                HandOver::More => {}
                HandOver::Barred => frames.leave_out(ring, progress),
                HandOver::Done => break,
                HandOver::Stopped(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS));
                    break;
                }
            }
        }
        self.ring.publish(self.ring.before(self.progress.tx.next));
    }

    /// Checks that the program's record matches the events, and that the kernel has taken all it can.
    fn check(&mut self) {
        let kernel = &self.kernel;
        let no_frame = kernel.out.iter().any(|(frame, _)| *frame == kernel.head);
        while let Some(packet) = self.waiting.front() {
            let allowed = (14..=MTU + 14).contains(&packet.bytes.len());
            let goes = packet.liked && allowed;
            // The kernel sees a packet that it rejects only in a frame.
            let shown = self.sent.len() < kernel.taken.len() || !goes && !no_frame;
            if allowed && !shown {
                break;
            }
            let packet = self.waiting.pop_front().unwrap();
            if goes {
                self.sent.push(packet.bytes);
            } else {
                self.refused += 1;
            }
        }
        assert!(self.sent == kernel.taken, "each once, in order");
        let progress = &self.progress;
        assert_eq!((progress.tx.sent, progress.tx.refused), (self.sent.len() as u64, self.refused));
        let held = self.ring.num_slots() - 1 - self.ring.available();
        let slots: usize = self.waiting.iter().map(|it| it.bytes.len().div_ceil(2048).max(1)).sum();
        assert_eq!(held as usize, slots, "what has left is room again, and nothing else");
        let waits = no_frame || kernel.room == 0;
        assert!(waits || self.waiting.is_empty(), "{} wait for nothing", self.waiting.len());
    }

    fn give_up(&mut self) {
        self.frames.take_back();
        self.refused += self.waiting.drain(..).count() as u64;
        self.progress.tx.refused += self.ring.pending_tx(self.progress.tx.next).count() as u64;
        self.progress.tx.next = self.ring.head();
        self.ring.publish(self.ring.before(self.progress.tx.next));
    }
}

fn step() -> impl Strategy<Value = FrameStep> {
    let bytes = prop_oneof![Just(0), Just(13), Just(60), Just(2048), 0..MTU + 20];
    prop_oneof![
        8 => (bytes, prop::bool::weighted(0.9)).prop_map(|(bytes, liked)| FrameStep::Push(bytes, liked)),
        3 => prop_oneof![0..6usize, Just(100)].prop_map(FrameStep::Sync),
        4 => (0..8usize).prop_map(FrameStep::Free),
        1 => Just(FrameStep::GiveUp),
    ]
}

proptest! {
    #[test]
    fn packets_are_taken_once_in_order_and_those_that_cannot_be_are_counted(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut bench = Bench::new();
        for step in steps {
            match step {
                FrameStep::Push(bytes, liked) => bench.push(bytes, liked),
                FrameStep::Sync(room) => {
                    bench.sync(room);
                    bench.check();
                }
                FrameStep::Free(place) => bench.kernel.free(place),
                FrameStep::GiveUp => bench.give_up(),
            }
        }
        // In the end all packets are sent.
        while !bench.waiting.is_empty() {
            bench.sync(100);
            bench.check();
            bench.kernel.free(0);
        }
    }
}

#[test]
fn a_ring_has_a_frame_for_each_slot_unless_they_are_long() {
    for (sentence, slots, packet_bytes, frame_bytes, frames, block_bytes) in [
        ("an ordinary MTU", 512, 1518, 2048, 512, 65_536),
        ("a short one has room to grow", 512, 86, 2048, 512, 65_536),
        ("whole blocks", 16, 1518, 2048, 32, 65_536),
        ("jumbo frames", 512, 9018, 16_384, 512, 65_536),
        ("the longest: a frame a block, 32 MiB of them", 512, 65_554, 131_072, 256, 131_072),
        ("no more than 32 MiB", 65_536, 1518, 2048, 16_384, 65_536),
    ] {
        let layout = FrameLayout::of(slots, packet_bytes);
        assert_eq!(layout, FrameLayout { frame_bytes, frames, block_bytes }, "{sentence}");
        let request = layout.request();
        let frames_per_block = request.tp_block_size / request.tp_frame_size;
        assert_eq!(frames_per_block * request.tp_block_nr, request.tp_frame_nr, "{sentence}");
    }
}
