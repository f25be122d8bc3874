//! Receiving from a correct kernel, from a slow one, and from one that breaks the protocol.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::xdp::tests::mock::{Deliverer, consumer, producer};
use sluicegate_base::memory::{Pool, PoolConfig};

const BUFFERS: u32 = 64;
const FRAMES: u32 = 8;
/// Indices that are about to wrap.
const START: u32 = u32::MAX - 3;

/// Returns a receive ring of `slots` slots, the socket's rings, and the mock kernel on their other side.
fn scene(slots: u32, fill_entries: u32) -> (Ring, RxRings, Deliverer) {
    let pool = Pool::new(PoolConfig { buffers: BUFFERS, ..PoolConfig::default() }).unwrap();
    let ring = Ring::receive(&pool, slots).unwrap();
    let (rx, theirs) = consumer(FRAMES, START);
    let (fill, their_fill) = producer(fill_entries, START);
    let frames = pool.take(FRAMES as usize).unwrap();
    let rings = RxRings::new(&Umem::new(&pool).unwrap(), rx, fill, frames);
    (ring, rings, Deliverer { pool, fill: their_fill, rx: theirs, free: VecDeque::new() })
}

/// Returns the packets in the ring, and releases their slots.
fn drain(ring: &mut Ring) -> Vec<Vec<u8>> {
    let mut scratch = Vec::new();
    let seen = ring.packets().map(|it| it.contiguous(&mut scratch).to_vec()).collect();
    ring.release(ring.available());
    seen
}

/// Asserts that each buffer of the pool has at most one holder: a slot, the kernel, or the spare list.
fn assert_no_buffer_is_lost(ring: &Ring, rings: &mut RxRings) {
    let slots = (0..ring.num_slots()).map(|i| ring.slot(i).buffer());
    let mut held: Vec<u32> = slots.chain(rings.take_frames()).collect();
    held.sort_unstable();
    let unique = held.len();
    held.dedup();
    assert_eq!(held.len(), unique, "a buffer with two holders");
    assert_eq!(held.len() as u32, ring.num_slots() + FRAMES, "a buffer that is lost");
}

fn counts(received: u64, too_long: u64, refused: u64) -> ReceiverStats {
    ReceiverStats { received, too_long, refused, index_faults: 0 }
}

#[test]
fn packets_come_out_as_they_went_in_and_frames_go_round() {
    for (fill, why) in [(16, "a fill ring with slack"), (8, "one without"), (2, "a tiny one")] {
        let (mut ring, mut rings, mut kernel) = scene(6, fill);
        let mut sent = Vec::new();
        let mut got = Vec::new();
        for number in 0..100u32 {
            let packet = vec![number as u8; 60 + number as usize];
            if kernel.deliver(&[&packet]) {
                sent.push(packet);
            }
            if number % 3 == 0 {
                rings.receive(&mut ring);
                got.extend(drain(&mut ring));
            }
        }
        rings.receive(&mut ring);
        got.extend(drain(&mut ring));
        assert_eq!(got, sent, "{why}");
        assert!(got.len() > 50, "{why}: {}", got.len());
        assert_eq!(rings.stats(), counts(got.len() as u64, 0, 0), "{why}");
        assert_no_buffer_is_lost(&ring, &mut rings);
    }
}

/// The kernel reports late which entries of the fill ring it has used (xskq_cons_get_entries).
#[test]
fn a_fill_ring_without_room_is_filled_later() {
    let (mut ring, mut rings, mut kernel) = scene(6, 8);
    let mut receive = |kernel: &mut Deliverer| {
        for i in 0..4u8 {
            kernel.free.push_back(kernel.fill.take().expect("a frame"));
            let addr = kernel.free.pop_front().unwrap() + 256;
            assert!(kernel.rx.put(xdp_desc { addr, len: 60 + u32::from(i), options: 0 }));
        }
        let received = rings.receive(&mut ring);
        drain(&mut ring);
        (received.packets, rings.spare.len(), rings.lent.count())
    };
    assert_eq!(receive(&mut kernel), (4, 4, 4), "the buffers wait");
    assert_eq!(receive(&mut kernel), (4, 8, 0), "more of them");
    kernel.fill.say_consumed(START.wrapping_add(5));
    assert_eq!(rings.receive(&mut ring), Received::default());
    assert_eq!((rings.spare.len(), rings.lent.count()), (3, 5), "as far as there is room");
    kernel.fill.say_consumed(START.wrapping_add(8));
    rings.receive(&mut ring);
    assert_eq!((rings.spare.len(), rings.lent.count()), (0, 8), "all of them");
    assert_no_buffer_is_lost(&ring, &mut rings);
}

#[test]
fn what_the_ring_has_no_room_for_stays_with_the_kernel() {
    let (mut ring, mut rings, mut kernel) = scene(4, 16);
    for i in 0..8u8 {
        assert!(kernel.deliver(&[&[i; 20]]));
    }
    for (given_back, expected, why) in [
        (0, 3, "all slots but one"),
        (0, 0, "none is free"),
        (1, 1, "one was given back"),
        (3, 3, "all were"),
        (3, 1, "the last packet"),
    ] {
        ring.release(given_back);
        assert_eq!(rings.receive(&mut ring).packets, expected, "{why}");
    }
    assert_eq!(drain(&mut ring), [[7; 20]]);
}

#[test]
fn a_packet_in_several_frames_is_shown_when_it_is_whole() {
    let (mut ring, mut rings, mut kernel) = scene(6, 16);
    let piece = |kernel: &mut Deliverer, byte: u8, options| {
        kernel.free.extend(kernel.fill.take_all());
        let addr = kernel.free.pop_front().unwrap() + 256;
        assert!(kernel.rx.put(xdp_desc { addr, len: 10 + u32::from(byte), options }));
    };
    let more = libc::XDP_PKT_CONTD;
    for (options, packets, slots, why) in [
        (0, 1, 1, "a packet in one frame"),
        (more, 0, 0, "the first of three"),
        (more, 0, 0, "the second"),
        (0, 1, 3, "the third, and the packet is whole"),
        (more, 0, 0, "the first of two; all slots are taken"),
        (0, 0, 0, "the second has to wait for one"),
    ] {
        piece(&mut kernel, 1, options);
        let received = rings.receive(&mut ring);
        assert_eq!((received.packets, received.slots), (packets, slots), "{why}");
    }
    let shown: Vec<_> = ring.packets().map(|it| (it.slots(), it.meta().wire_bytes)).collect();
    assert_eq!(shown, [(1, 11), (3, 33)]);
    drain(&mut ring);
    assert_eq!(rings.receive(&mut ring), Received { packets: 1, slots: 2 });
    assert_eq!(ring.packets().next().unwrap().captured_bytes(), 22);
    assert_eq!(rings.stats(), counts(3, 0, 0));
    assert_no_buffer_is_lost(&ring, &mut rings);
}

#[test]
fn no_more_bytes_are_shown_than_are_wanted() {
    let pieces = [[1u8; 20], [2; 20], [3; 20]];
    for (snaplen, slots, why) in [
        (1, 1, "one byte"),
        (19, 1, "within the first piece"),
        (20, 1, "all of it"),
        (21, 2, "one byte of the second"),
        (40, 2, "two pieces"),
        (59, 3, "all but a byte"),
        (60, 3, "all"),
        (u32::MAX, 3, "no limit"),
    ] {
        let (mut ring, mut rings, mut kernel) = scene(4, 16);
        rings.snaplen = snaplen;
        let whole = pieces.concat();
        let wanted = &whole[..whole.len().min(snaplen as usize)];
        for round in 0..9 {
            assert!(kernel.deliver(&[&pieces[0], &pieces[1], &pieces[2]]), "{why}");
            let received = rings.receive(&mut ring);
            assert_eq!(received, Received { packets: 1, slots }, "{why}, packet {round}");
            assert_eq!(ring.packets().next().unwrap().meta().wire_bytes, 60, "{why}");
            assert_eq!(drain(&mut ring), [wanted], "{why}");
        }
        assert_eq!(rings.stats(), counts(9, 0, 0), "{why}");
        assert_no_buffer_is_lost(&ring, &mut rings);
    }
    // Bytes that are not shown take no slot: a packet with more pieces than slots fits.
    let (mut ring, mut rings, mut kernel) = scene(4, 16);
    rings.snaplen = 50;
    assert!(kernel.deliver(&[&[1; 20][..]; 5]));
    assert_eq!(rings.receive(&mut ring), Received { packets: 1, slots: 3 });
    assert_eq!(drain(&mut ring), [[1; 50]]);
    assert_eq!(rings.stats(), counts(1, 0, 0));
    assert_no_buffer_is_lost(&ring, &mut rings);
}

#[test]
fn a_packet_that_is_longer_than_the_ring_is_let_go() {
    let (mut ring, mut rings, mut kernel) = scene(4, 16);
    assert!(kernel.deliver(&[&[1; 20][..]; 5]));
    assert!(kernel.deliver(&[&[2; 20][..]; 3]));
    let received = rings.receive(&mut ring);
    assert_eq!(received, Received { packets: 1, slots: 3 }, "and the next one is whole");
    assert_eq!(drain(&mut ring), [[2; 60]]);
    assert_eq!(rings.stats(), counts(1, 1, 0));
    assert_no_buffer_is_lost(&ring, &mut rings);
}

#[test]
fn what_a_lying_kernel_shows_is_refused_and_no_buffer_gets_two_holders() {
    type Lie = fn(&mut Deliverer, u64) -> Vec<xdp_desc>;
    let rows: [(Lie, u64, &str); 9] = [
        (|_, at| vec![d(at + 256, 60, 0), d(at + 256, 60, 0)], 1, "one frame twice"),
        (|_, _| vec![d(0, 60, 0), d(2048, 60, 0)], 2, "the reserved buffers"),
        (|_, _| vec![d(2 * 2048 + 256, 60, 0)], 1, "the buffer of a slot"),
        (|_, _| vec![d(60 * 2048, 60, 0)], 1, "a free buffer of the pool"),
        (|_, _| vec![d(66 * 2048, 60, 0), d(u64::MAX, 60, 0)], 2, "outside the pool"),
        (|_, at| vec![d(at + 256, 1793, 0)], 1, "beyond its frame's end"),
        (|_, at| vec![d(at + 256, u32::MAX, 0)], 1, "an invalid length"),
        (|_, at| vec![d(at, 60, 1), d(at, 60, 1), d(at, 60, 0)], 1, "in a packet of three"),
        (|_, _| vec![d(u64::MAX, 0, u32::MAX); 8], 1, "a packet without an end"),
    ];
    for (lie, refused, why) in rows {
        let (mut ring, mut rings, mut kernel) = scene(6, 16);
        kernel.free.extend(kernel.fill.take_all());
        let at = kernel.free.pop_front().unwrap();
        for descriptor in lie(&mut kernel, at) {
            assert!(kernel.rx.put(descriptor), "{why}");
        }
        rings.receive(&mut ring);
        assert_eq!(rings.stats().refused, refused, "{why}");
        assert!(drain(&mut ring).iter().all(|it| it.len() == 60), "{why}");
        // The kernel ends the endless packet, and continues correctly.
        assert!(kernel.deliver(&[&[8; 60]]), "{why}");
        rings.receive(&mut ring);
        drain(&mut ring);
        assert!(kernel.deliver(&[&[9; 70]]), "{why}");
        assert_eq!(rings.receive(&mut ring).packets, 1, "{why}");
        assert_eq!(drain(&mut ring), [[9; 70]], "{why}");
        assert_no_buffer_is_lost(&ring, &mut rings);
    }
}

fn d(addr: u64, len: u32, options: u32) -> xdp_desc {
    xdp_desc { addr, len, options }
}

#[test]
fn indices_that_cannot_be_are_counted_and_change_nothing() {
    let (mut ring, mut rings, mut kernel) = scene(6, 16);
    kernel.rx.say_produced(START.wrapping_add(FRAMES + 1));
    kernel.fill.say_consumed(START.wrapping_sub(1));
    assert_eq!(rings.receive(&mut ring), Received::default());
    assert!(rings.stats().index_faults > 0);
    kernel.rx.say_produced(START);
    kernel.fill.say_consumed(START);
    assert!(kernel.deliver(&[&[9; 60]]));
    assert_eq!(rings.receive(&mut ring).packets, 1);
    assert_no_buffer_is_lost(&ring, &mut rings);
}

#[test]
#[should_panic(expected = "the ring is of another pool")]
fn a_ring_of_another_pool_is_not_filled() {
    let (mut ring, _, _) = scene(6, 16);
    let (_, mut rings, _) = scene(6, 16);
    rings.receive(&mut ring);
}

proptest! {
    #[test]
    fn whatever_the_kernel_shows_no_buffer_has_two_holders(
        shown in prop::collection::vec(
            (0u64..(70 * 2048), prop_oneof![0u32..2048, any::<u32>()], 0u32..2, 0u32..7),
            1..200,
        ),
        snaplen in prop_oneof![1u32..5000, Just(u32::MAX)],
    ) {
        let (mut ring, mut rings, mut kernel) = scene(6, 16);
        rings.snaplen = snaplen;
        for (addr, len, options, released) in shown {
            kernel.free.extend(kernel.fill.take_all());
            // Half of them in frames that the kernel holds.
            let addr = match kernel.free.pop_front() {
                Some(frame) if addr % 2 == 0 => frame + addr % 2048,
                _ => addr,
            };
            kernel.rx.put(d(addr, len, options));
            rings.receive(&mut ring);
            for packet in ring.packets() {
                let shown = packet.segments().map(<[u8]>::len).sum::<usize>();
                prop_assert!(shown <= (5 * 2048).min(snaplen as usize));
            }
            ring.release(released.min(ring.available()));
        }
        assert_no_buffer_is_lost(&ring, &mut rings);
    }
}
