//! Sending to a correct kernel, to a slow one, and to one that reports wrong values.

use proptest::prelude::*;

use super::*;
use crate::xdp::tests::mock::{Theirs, bytes_at, consumer, producer};
use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::ring::{Meta, Packet, RingMut};

const SLOTS: u32 = 8;
/// Indices that are about to wrap.
const START: u32 = u32::MAX - 3;

/// A transmit ring, the sending path, and the kernel's side of two rings.
struct Scene {
    pool: Arc<Pool>,
    ring: Ring,
    outlet: TxPath,
    tx: Theirs<xdp_desc>,
    completion: Theirs<u64>,
}

fn scene(pieces: u32) -> Scene {
    let pool = Pool::new(PoolConfig { buffers: 64, ..PoolConfig::default() }).unwrap();
    let ring = Ring::transmit(&pool, SLOTS).unwrap();
    let (ours, tx) = producer(SLOTS, START);
    let (completions, completion) = consumer(SLOTS, START);
    let limits = TxLimits { bytes: 6000, slots: pieces };
    let outlet = TxPath::new(&Umem::new(&pool).unwrap(), ours, completions, limits);
    Scene { pool, ring, outlet, tx, completion }
}

impl Scene {
    fn push(&mut self, bytes: &[u8]) -> bool {
        RingMut::new(&mut self.ring).push(&Packet::new(&Meta::default(), bytes))
    }

    fn send(&mut self) -> u32 {
        self.outlet.send(&mut self.ring)
    }

    /// Asserts that each buffer of the pool has one holder: a slot or the kernel.
    fn assert_no_buffer_is_lost(&mut self) {
        let slots = (0..SLOTS).map(|i| self.ring.slot(i).buffer()).filter(|&it| it != 0);
        let mut held: Vec<u32> = slots.chain(self.outlet.take_frames()).collect();
        held.sort_unstable();
        assert_eq!(held, (2..2 + SLOTS).collect::<Vec<_>>());
    }
}

#[test]
fn packets_go_out_as_they_were_and_completions_may_come_in_any_order() {
    type Order = fn(&mut [u64]);
    let orders: [(Order, &str); 3] = [
        (|_| {}, "in order"),
        (|it| it.reverse(), "the last first"),
        (|it| it.rotate_right(it.len().min(2)), "the last two first"),
    ];
    for (order, why) in orders {
        let mut scene = scene(1);
        let (mut sent, mut seen) = (Vec::new(), Vec::new());
        for round in 0..40usize {
            for i in 0..=(round % 7) {
                let packet = vec![round as u8; 20 + i];
                if scene.push(&packet) {
                    sent.push(packet);
                }
            }
            scene.send();
            let taken = scene.tx.take_all();
            seen.extend(taken.iter().map(|it| bytes_at(&scene.pool, it)));
            let mut done: Vec<u64> = taken.iter().map(|it| it.addr).collect();
            order(&mut done);
            done.into_iter().for_each(|it| assert!(scene.completion.put(it)));
        }
        scene.send();
        assert_eq!(seen, sent, "{why}");
        assert!(sent.len() > 100, "{why}: {}", sent.len());
        let all = SenderStats { sent: sent.len() as u64, ..SenderStats::default() };
        assert_eq!(scene.outlet.stats(), all, "{why}");
        assert_eq!(scene.ring.available(), SLOTS - 1, "{why}");
        scene.assert_no_buffer_is_lost();
    }
}

#[test]
fn a_slot_is_room_again_when_a_frame_has_come_back_and_not_before() {
    let mut scene = scene(1);
    for i in 0..7 {
        assert!(scene.push(&[i; 60]));
    }
    assert!(!scene.push(&[7; 60]), "the ring is full");
    assert_eq!((scene.send(), scene.ring.available()), (0, 0), "all are at the kernel");
    let taken = scene.tx.take_all();
    assert_eq!(taken.len(), 7);
    assert!(scene.completion.put(taken[4].addr));
    assert_eq!((scene.send(), scene.ring.available()), (1, 1), "any frame makes room");
    assert!(scene.push(&[8; 60]));
    assert_eq!((scene.send(), scene.outlet.lent.count()), (0, 7));
    assert_eq!(bytes_at(&scene.pool, &scene.tx.take_all()[0]), [8; 60]);
    scene.assert_no_buffer_is_lost();
}

#[test]
fn a_transmit_ring_without_room_gets_the_rest_later() {
    let mut scene = scene(1);
    // The kernel has read them, and does not report it.
    for i in 0..7 {
        assert!(scene.push(&[i; 60]));
    }
    scene.send();
    while let Some(taken) = scene.tx.take() {
        assert!(scene.completion.put(taken.addr));
    }
    assert_eq!(scene.send(), 7);
    for i in 0..3 {
        assert!(scene.push(&[i; 61]));
    }
    assert_eq!(scene.send(), 0);
    assert_eq!(scene.outlet.lent.count(), 1, "there was room for one");
    scene.tx.say_consumed(scene.tx.next);
    scene.send();
    assert_eq!(scene.outlet.lent.count(), 3);
    assert_eq!(scene.tx.take_all().len(), 3);
    scene.assert_no_buffer_is_lost();
}

#[test]
fn what_the_kernel_would_skip_is_refused_and_its_slots_are_room_again() {
    let rows: [(usize, u32, bool, &str); 9] = [
        (0, 1, false, "nothing"),
        (13, 1, false, "shorter than a header"),
        (14, 1, true, "a header"),
        (2048, 1, true, "a whole buffer"),
        (2049, 1, false, "two buffers, where a packet has one"),
        (2049, 2, true, "two buffers, where it may have them"),
        (4097, 2, false, "three, where it may have two"),
        (6000, 3, true, "as long as the interface takes"),
        (6001, 3, false, "longer"),
    ];
    for (bytes, pieces, goes, why) in rows {
        let mut scene = scene(pieces);
        // Between two valid ones.
        for packet in [&[1; 60][..], &vec![2; bytes], &[3; 60]] {
            assert!(scene.push(packet), "{why}");
        }
        scene.send();
        let taken = scene.tx.take_all();
        let whole: Vec<u8> = taken.iter().flat_map(|it| bytes_at(&scene.pool, it)).collect();
        let expected = if goes { vec![2; bytes] } else { vec![] };
        assert!(whole == [&[1; 60][..], &expected, &[3; 60]].concat(), "{why}");
        let continued: Vec<bool> =
            taken.iter().map(|it| it.options == libc::XDP_PKT_CONTD).collect();
        let inner = continued.len() - 2;
        let between = (0..inner).map(|i| i + 1 < inner);
        assert!(continued.iter().copied().eq([false].into_iter().chain(between).chain([false])));
        taken.iter().for_each(|it| assert!(scene.completion.put(it.addr)));
        scene.send();
        let stats = scene.outlet.stats();
        assert_eq!((stats.sent, stats.refused), (2 + u64::from(goes), u64::from(!goes)), "{why}");
        assert_eq!(scene.ring.available(), SLOTS - 1, "{why}");
        scene.assert_no_buffer_is_lost();
    }
}

#[test]
fn a_packet_whose_end_has_not_come_waits_and_one_without_an_end_is_refused() {
    let mut scene = scene(3);
    let piece = |scene: &mut Scene, continues| {
        let at = scene.ring.head();
        RingMut::new(&mut scene.ring).buffer_mut(at)[..20].fill(7);
        scene.ring.set_bytes(at, 20, continues);
        scene.ring.release(1);
        scene.send();
        scene.tx.take_all().len()
    };
    assert_eq!(piece(&mut scene, true), 0);
    assert_eq!(piece(&mut scene, false), 2);
    for _ in 0..5 {
        assert_eq!(piece(&mut scene, true), 0, "two frames may still come back");
    }
    assert_eq!(scene.outlet.stats().refused, 0);
    let lent = &mut scene.outlet.lent;
    let frames: Vec<_> = (0..64).filter_map(|it| Some((it, lent.take_back(it)?))).collect();
    for (frame, ends) in frames {
        assert!(scene.outlet.lent.lend(frame, ends));
        assert!(scene.completion.put(u64::from(frame) * 2048));
    }
    scene.send();
    for _ in 0..2 {
        assert_eq!(piece(&mut scene, true), 0);
    }
    assert_eq!((scene.outlet.stats().sent, scene.outlet.stats().refused), (1, 1));
    assert_eq!(scene.ring.available(), SLOTS - 1);
    scene.assert_no_buffer_is_lost();
}

#[test]
fn a_frame_that_was_not_sent_does_not_come_back() {
    let rows: [(&[u64], u64, &str); 5] = [
        (&[u64::MAX], 1, "an invalid address"),
        (&[0, 2048], 2, "the reserved buffers"),
        (&[5 * 2048], 1, "the buffer of a slot that was not sent"),
        (&[40 * 2048], 1, "a free buffer"),
        (&[2 * 2048, 2 * 2048 + 17], 1, "one frame twice"),
    ];
    for (addresses, strays, why) in rows {
        let mut scene = scene(1);
        assert!(scene.push(&[1; 60]));
        scene.send();
        assert_eq!(scene.tx.take_all()[0].addr, 2 * 2048);
        addresses.iter().for_each(|&it| assert!(scene.completion.put(it)));
        scene.send();
        assert_eq!(scene.outlet.stats().strays, strays, "{why}");
        scene.assert_no_buffer_is_lost();
    }
    let mut scene = scene(1);
    scene.completion.say_produced(START.wrapping_add(SLOTS + 1));
    scene.tx.say_consumed(START.wrapping_add(1));
    assert_eq!(scene.send(), 0);
    assert!(scene.outlet.stats().index_faults > 0);
    scene.assert_no_buffer_is_lost();
}

#[derive(Clone, Debug)]
enum SendStep {
    Push(usize),
    Send,
    /// The kernel takes this many entries and publishes its index.
    Take(usize),
    /// The kernel gives back one of the frames that it holds, by its position.
    Complete(usize),
    /// The kernel claims to give this address back.
    Claim(u64),
}

proptest! {
    #[test]
    fn whatever_the_kernel_gives_back_no_buffer_has_two_holders(
        steps in prop::collection::vec(
            prop_oneof![
                (0usize..5000).prop_map(SendStep::Push),
                Just(SendStep::Send),
                (0usize..9).prop_map(SendStep::Take),
                (0usize..9).prop_map(SendStep::Complete),
                (0u64..(70 * 2048)).prop_map(SendStep::Claim),
            ],
            1..200,
        ),
    ) {
        let mut scene = scene(2);
        let mut at_kernel = Vec::new();
        for step in steps {
            match step {
                SendStep::Push(bytes) => {
                    scene.push(&vec![5; bytes]);
                }
                SendStep::Send => {
                    scene.send();
                }
                SendStep::Take(n) => {
                    at_kernel.extend(std::iter::from_fn(|| scene.tx.take()).take(n));
                    scene.tx.say_consumed(scene.tx.next);
                }
                SendStep::Complete(n) if n < at_kernel.len() => {
                    scene.completion.put(at_kernel.swap_remove(n).addr);
                }
                SendStep::Complete(_) => {}
                SendStep::Claim(address) => {
                    scene.completion.put(address);
                }
            }
        }
        scene.send();
        scene.assert_no_buffer_is_lost();
    }
}
