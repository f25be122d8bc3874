//! Tests a ring against a model.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::memory::PoolConfig;

fn pool() -> Arc<Pool> {
    Pool::new(PoolConfig { buffers: 64, ..PoolConfig::default() }).unwrap()
}

/// Plays the backend: fills up to `n` slots with numbered packets.
fn arrive(ring: &mut Ring, n: u32, next_number: &mut u32) -> u32 {
    let n = n.min(ring.backend_slots());
    for _ in 0..n {
        let at = ring.tail();
        // SAFETY: the backend owns the slot at tail; the pool buffer is the slot's own.
        let buffer = unsafe { ring.buffer_unchecked(at) };
        buffer[..4].copy_from_slice(&next_number.to_le_bytes());
        ring.fill(at, 4, false, Meta::default());
        ring.publish(ring.next(at));
        *next_number += 1;
    }
    n
}

fn numbers(ring: &Ring) -> Vec<u32> {
    ring.packets().map(|p| u32::from_le_bytes(p.head().try_into().unwrap())).collect()
}

#[derive(Clone, Debug)]
enum RingStep {
    Arrive(u32),
    Release(u32),
}

proptest! {
    #[test]
    fn a_receive_ring_is_a_bounded_queue(
        slots in 2u32..20,
        steps in prop::collection::vec(
            prop_oneof![(0u32..25).prop_map(RingStep::Arrive), (0u32..25).prop_map(RingStep::Release)],
            1..60,
        ),
    ) {
        let mut ring = Ring::receive(&pool(), slots).unwrap();
        let mut model = VecDeque::new();
        let mut number = 0;
        for step in steps {
            match step {
                RingStep::Arrive(n) => {
                    let first = number;
                    let room = slots - 1 - model.len() as u32;
                    prop_assert_eq!(arrive(&mut ring, n, &mut number), n.min(room));
                    model.extend(first..number);
                }
                RingStep::Release(n) => {
                    let n = n.min(model.len() as u32);
                    ring.release(n);
                    model.drain(..n as usize);
                }
            }
            prop_assert_eq!(numbers(&ring), Vec::from(model.clone()));
        }
    }

    #[test]
    fn a_packet_comes_out_of_a_transmit_ring_as_it_went_in(
        len in 0usize..9000,
        skip in 0u32..7,
    ) {
        let mut ring = Ring::transmit(&pool(), 8).unwrap();
        ring.release(skip);
        ring.publish(ring.after(ring.tail(), skip));
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let head = ring.head();
        prop_assert!(RingMut::new(&mut ring).push(&Packet::new(&Meta::default(), &bytes)));
        let sent = ring.distance(head, ring.head());
        prop_assert_eq!(sent as usize, len.div_ceil(2048).max(1));
        let mut seen = Vec::new();
        for i in 0..sent {
            let index = ring.after(head, i);
            prop_assert_eq!(ring.slot(index).continues(), i + 1 < sent);
            // SAFETY: nothing else uses the ring.
            seen.extend_from_slice(unsafe { ring.bytes_unchecked(index) });
        }
        prop_assert_eq!(seen, bytes);
    }
}

#[test]
fn swapping_moves_packets_in_order_and_keeps_every_buffer_in_one_place() {
    let pool = pool();
    let mut rx = Ring::receive(&pool, 5).unwrap();
    let mut tx = Ring::transmit(&pool, 3).unwrap();
    let mut number = 0;
    arrive(&mut rx, 4, &mut number);
    assert_eq!(
        RingMut::new(&mut rx).swap_packets(&mut RingMut::new(&mut tx), u32::MAX).slots,
        2,
        "as far as there is room"
    );
    assert_eq!(numbers(&rx), [2, 3]);
    let mut held: Vec<u32> =
        (0..5).map(|i| rx.slot(i).buf).chain((0..3).map(|i| tx.slot(i).buf)).collect();
    held.sort_unstable();
    assert_eq!(held, (2..10).collect::<Vec<_>>());
    drop((rx, tx));
    assert_eq!(pool.free_buffers(), 64, "all buffers come home");
}

#[test]
fn rings_of_two_pools_do_not_swap() {
    let mut rx = Ring::receive(&pool(), 4).unwrap();
    let mut tx = Ring::transmit(&pool(), 4).unwrap();
    arrive(&mut rx, 2, &mut 0);
    assert_eq!(RingMut::new(&mut rx).swap_packets(&mut RingMut::new(&mut tx), 2).slots, 0);
}

#[test]
fn a_packet_over_several_slots_is_one_packet() {
    let mut ring = Ring::receive(&pool(), 6).unwrap();
    for (continues, byte) in [(false, 1u8), (true, 2), (true, 3), (false, 4), (false, 5)] {
        let at = ring.tail();
        // SAFETY: the backend owns the slot at tail; the pool buffer is the slot's own.
        let buffer = unsafe { ring.buffer_unchecked(at) };
        buffer[0] = byte;
        ring.fill(at, 1, continues, Meta::default());
        ring.publish(ring.next(at));
    }
    let mut scratch = Vec::new();
    let seen: Vec<(u32, Vec<u8>)> =
        ring.packets().map(|p| (p.slots(), p.contiguous(&mut scratch).to_vec())).collect();
    assert_eq!(seen, [(1, vec![1]), (3, vec![2, 3, 4]), (1, vec![5])]);
    assert_eq!(ring.packets().count(), seen.len());
    assert_eq!(ring.packets().map(|p| p.captured_bytes()).sum::<usize>(), 5);
}

#[test]
fn packets_over_several_slots_swap_whole_or_not_at_all() {
    let pool = pool();
    let mut rx = Ring::receive(&pool, 9).unwrap();
    for continues in [false, true, true, false, true, false] {
        let at = rx.tail();
        rx.fill(at, 1, continues, Meta::default());
        rx.publish(rx.next(at));
    }
    for (slots, moved, why) in [
        (2, 1, "one slot of room for a packet of one"),
        (4, 0, "three slots' room is taken by the packet of three"),
        (5, 3, "now it fits, and the packet of two does not"),
    ] {
        let mut tx = Ring::transmit(&pool, slots).unwrap();
        if moved == 0 {
            tx.release(1);
        }
        assert_eq!(
            RingMut::new(&mut rx).swap_packets(&mut RingMut::new(&mut tx), u32::MAX).slots,
            moved,
            "{why}"
        );
    }
    assert_eq!(rx.available(), 2);
}

#[test]
fn a_packet_of_which_a_slot_has_to_be_copied_stays_whole() {
    let pool = pool();
    let mut bytes = [0u8; 1];
    for indirect in [2, 3] {
        let mut rx = Ring::receive(&pool, 9).unwrap();
        for (number, continues) in [false, true, true, false].into_iter().enumerate() {
            let at = rx.tail();
            rx.fill(at, 1, continues, Meta::default());
            if number == indirect {
                // SAFETY: the byte lives until the end of the test, and nothing else uses it.
                unsafe { rx.point(at, NonNull::from(&mut bytes).cast(), 1, continues) };
            }
            rx.publish(rx.next(at));
        }
        let mut tx = Ring::transmit(&pool, 9).unwrap();
        let swapped = RingMut::new(&mut rx).swap_packets(&mut RingMut::new(&mut tx), u32::MAX);
        assert_eq!((swapped.slots, swapped.packets), (1, 1), "slot {indirect} is INDIRECT");
        assert_eq!(rx.packets().map(|packet| packet.slots()).collect::<Vec<_>>(), [3]);
    }
}

/// A receive ring with packets of one to three bytes in SHARED slots, and their memory. Packets 1 and 2 are one.
fn shared(pool: &Arc<Pool>, memory: NonNull<[u8; 4]>) -> Ring {
    let mut ring = Ring::receive(pool, 5).unwrap();
    let start = memory.cast::<u8>();
    for (at, bytes) in (0..4u32).zip([1, 2, 3, 1]) {
        // SAFETY: the bytes live until the end of the test, and nothing reads them through a reference.
        unsafe { ring.share(at, start.add(at as usize / 2), bytes, at == 1) };
    }
    ring.publish(4);
    ring
}

#[test]
fn shared_bytes_are_copied_at_the_first_look_and_then_stay() {
    type Look = fn(&mut Ring);
    let looks: [(Look, [u8; 4], &str); 7] = [
        (|_| (), [9; 4], "none"),
        (
            |ring| assert_eq!(ring.packets().map(|it| it.captured_bytes()).sum::<usize>(), 7),
            [9; 4],
            "their length",
        ),
        (|ring| assert_eq!(ring.bytes(0), [1]), [1, 9, 9, 9], "one slot"),
        (|ring| ring.packets().for_each(|it| _ = it.head()), [1, 1, 9, 2], "the first pieces"),
        (|ring| ring.packets().for_each(|it| it.segments().for_each(|_| ())), [1, 1, 2, 2], "all"),
        (
            // SAFETY: the program owns the slots.
            |ring| unsafe { ring.copy_in_first(2) },
            [1, 1, 9, 9],
            "the backend's own",
        ),
        (|ring| RingMut::new(ring).set_bytes(0, 1, false), [1, 9, 9, 9], "a new length"),
    ];
    let pool = pool();
    for (look, first_bytes, why) in looks {
        let mut memory = [1, 2, 3, 4];
        let memory = NonNull::from(&mut memory);
        let mut ring = shared(&pool, memory);
        look(&mut ring);
        // SAFETY: nothing has a reference to it.
        unsafe { memory.write_volatile([9; 4]) };
        assert_eq!([0, 1, 2, 3].map(|at| ring.bytes(at)[0]), first_bytes, "{why}");
    }
}

#[test]
fn shared_packets_are_swapped_rewritten_and_built_over_like_others() {
    let pool = pool();
    let mut memory = [1, 2, 3, 4];
    let memory = NonNull::from(&mut memory);
    let mut rx = shared(&pool, memory);
    let mut tx = Ring::transmit(&pool, 5).unwrap();
    let mut lent = RingMut::new(&mut rx);
    lent.bytes_mut(0)[0] = 7;
    assert!(lent.replace_front(1, 1, &[8, 8]));
    assert_eq!(lent.swap_packets(&mut RingMut::new(&mut tx), 3).slots, 3);
    let sent: Vec<Vec<u8>> =
        tx.pending_tx(0).map(|it| it.contiguous(&mut Vec::new()).to_vec()).collect();
    assert_eq!(sent, [vec![7], vec![8, 8, 2, 2, 3, 4]]);
    lent.buffer_mut(3)[..2].copy_from_slice(&[5, 6]);
    lent.set_bytes(3, 2, false);
    assert_eq!(lent.bytes(3), [5, 6]);
    // SAFETY: nothing has a reference to it.
    let after = unsafe { memory.read_volatile() };
    assert_eq!(after, [1, 2, 3, 4], "the other process's memory is not written");
}

#[test]
#[should_panic(expected = "in buffer")]
fn a_shared_packet_fits_the_slots_buffer() {
    let mut ring = Ring::receive(&pool(), 4).unwrap();
    // SAFETY: nothing looks at the bytes.
    unsafe { ring.share(0, NonNull::dangling(), 2049, false) };
}

#[test]
fn what_is_to_be_sent_is_shown_in_whole_packets() {
    let mut ring = Ring::transmit(&pool(), 6).unwrap();
    // Not at slot 0, so that the packets wrap around the end of the ring.
    ring.release(4);
    ring.publish(ring.before(4));
    let lengths = |ring: &Ring| {
        ring.pending_tx(4).map(|p| p.segments().map(<[u8]>::len).collect()).collect::<Vec<Vec<_>>>()
    };
    let rows: [(u16, bool, &[&[usize]], &str); 5] = [
        (1, false, &[&[1]], "a packet in one slot"),
        (2, true, &[&[1]], "the first of several is not shown alone"),
        (3, true, &[&[1]], "nor the second with it"),
        (4, false, &[&[1], &[2, 3, 4]], "until the last has come"),
        (5, true, &[&[1], &[2, 3, 4]], "and the next waits again"),
    ];
    for (bytes, continues, expected, why) in rows {
        let at = ring.head();
        ring.set_bytes(at, bytes, continues);
        ring.release(1);
        assert_eq!(lengths(&ring), expected, "{why}");
        assert_eq!(ring.pending_tx(4).count(), expected.len(), "{why}");
        assert!(!ring.is_endless(4), "{why}");
    }
}

#[test]
fn a_packet_that_fills_the_ring_and_goes_on_is_known_as_endless() {
    let mut ring = Ring::transmit(&pool(), 4).unwrap();
    for endless in [false, false, true] {
        let at = ring.head();
        ring.set_bytes(at, 1, true);
        ring.release(1);
        assert_eq!(ring.is_endless(0), endless);
    }
    assert_eq!(ring.pending_tx(0).count(), 0);
}

/// Returns the fields of a slot.
fn told(ring: &Ring, index: u32) -> (u32, u16, u16, bool) {
    let slot = ring.slot(index);
    (slot.buffer(), slot.offset(), slot.bytes(), slot.continues())
}

#[test]
fn a_packet_may_start_anywhere_in_its_buffer() {
    let pool = pool();
    let mut rx = Ring::receive(&pool, 4).unwrap();
    let mut tx = Ring::transmit(&pool, 3).unwrap();
    let mine = pool.take(1).unwrap()[0];
    let held = rx.slot(0).buf;
    // SAFETY: the buffer was just taken and is in no slot.
    unsafe { pool.address(mine).as_ptr().add(256).write(7) };

    // SAFETY: as before.
    let old = unsafe { rx.fill_at(0, mine, 256, 1, true) };
    assert_eq!(old, held, "the slot's old buffer comes out");
    rx.publish(1);
    assert_eq!(told(&rx, 0), (mine, 256, 1, true));
    assert_eq!(rx.bytes(0), [7], "the packet is read where it starts");
    rx.set_bytes(0, 1792, false);
    assert_eq!(rx.bytes(0).len(), 1792, "it reaches to the buffer's end");
    RingMut::new(&mut rx).bytes_mut(0)[1] = 8;

    let free = tx.slot(0).buf;
    assert_eq!(RingMut::new(&mut rx).swap_packets(&mut RingMut::new(&mut tx), 1).slots, 1);
    assert_eq!(told(&tx, 0), (mine, 256, 1792, false), "the offset moves with the buffer");
    assert_eq!(told(&rx, 0), (free, 0, 1792, false), "and does not stay behind");
    assert_eq!(tx.pending_tx(0).next().unwrap().head()[..2], [7, 8]);

    rx.fill(0, 3, false, Meta::default());
    assert_eq!(told(&rx, 0), (free, 0, 3, false), "what a backend fills starts at the start");
    // SAFETY: it came out of the slot.
    unsafe { pool.give([held]) };
}

#[test]
fn a_program_builds_a_packet_at_the_start_of_its_buffer() {
    let pool = pool();
    type Write = fn(RingMut<'_>);
    let rows: [(Write, u16, &str); 5] = [
        (|mut ring| assert_eq!(ring.build(1, |_| Some(2)).packets, 1), 0, "a packet built"),
        (
            |mut ring| assert!(ring.push(&Packet::new(&Meta::default(), &[1, 2]))),
            0,
            "a packet pushed",
        ),
        (
            |mut ring| assert!(ring.push(&Packet::new(&Meta::default(), &[]))),
            0,
            "an empty one pushed",
        ),
        (|mut ring| ring.buffer_mut(0)[0] = 1, 0, "the whole buffer asked for"),
        (|mut ring| ring.set_bytes(0, 20, false), 100, "only the length set"),
    ];
    for (write, offset, why) in rows {
        let mut tx = Ring::transmit(&pool, 3).unwrap();
        let buffer = pool.take(1).unwrap()[0];
        // SAFETY: one was just taken, the other came out of the slot.
        unsafe { pool.give([tx.fill_at(0, buffer, 100, 50, false)]) };
        write(RingMut::new(&mut tx));
        assert_eq!(tx.slot(0).offset(), offset, "{why}");
    }
}

#[test]
fn packets_are_built_as_long_as_there_is_room_and_one_comes() {
    let mut tx = Ring::transmit(&pool(), 6).unwrap();
    let mut number = 0u8;
    let mut build = |tx: &mut Ring, most, last| {
        let built = RingMut::new(tx).build(most, |buffer| {
            assert_eq!(buffer.len(), 2048);
            number += 1;
            buffer[..usize::from(number)].fill(number);
            (number <= last).then_some(number.into())
        });
        (built.packets, built.bytes)
    };
    assert_eq!(build(&mut tx, 2, 9), (2, 3), "as many as are wanted");
    assert_eq!(build(&mut tx, 9, 3), (1, 3), "until there is none");
    assert_eq!(build(&mut tx, 9, 9), (2, 11), "one slot is the backend's");
    assert_eq!(build(&mut tx, 9, 9), (0, 0), "no room");
    let sent: Vec<_> = tx.pending_tx(0).map(|packet| packet.head().to_vec()).collect();
    assert_eq!(sent, [vec![1], vec![2; 2], vec![3; 3], vec![5; 5], vec![6; 6]]);
}

#[test]
fn nothing_is_built_in_a_slot_without_a_buffer() {
    let pool = pool();
    let mut tx = Ring::transmit(&pool, 4).unwrap();
    // SAFETY: it came out of the slot.
    unsafe { pool.give([tx.take(1).buffer()]) };
    assert_eq!(RingMut::new(&mut tx).build(3, |_| Some(0)).packets, 1);
}

#[test]
#[should_panic(expected = "2049 bytes built in a buffer of 2048")]
fn a_packet_that_is_longer_than_its_buffer_is_not_built() {
    RingMut::new(&mut Ring::transmit(&pool(), 4).unwrap())
        .build(1, |buffer| Some(buffer.len() + 1));
}

#[test]
fn a_slot_that_pointed_outside_the_pool_has_no_offset() {
    let mut ring = Ring::receive(&pool(), 4).unwrap();
    let mut outside = vec![9u8; 60_000];
    let start = NonNull::new(outside.as_mut_ptr()).unwrap();
    // SAFETY: `outside` lives longer than the ring points at it, and is accessed only through the ring.
    unsafe { ring.point(0, start, 60_000, false) };
    ring.publish(1);
    assert_eq!(RingMut::new(&mut ring).buffer_mut(0).len(), 2048);
    assert_eq!(ring.bytes(0), &outside[..], "looking at its buffer leaves it as it is");
    ring.set_bytes(0, 4, false);
    assert_eq!(told(&ring, 0), (ring.slot(0).buf, 0, 4, false), "its address is no offset");
    assert_eq!(ring.bytes(0).len(), 4);
}

#[test]
fn a_packet_that_does_not_fit_behind_its_offset_is_refused() {
    let rows: [(u16, u16, &str); 3] = [
        (0, 2049, "longer than the buffer"),
        (256, 1793, "one byte over its end"),
        (u16::MAX, u16::MAX, "far beyond it"),
    ];
    for (offset, bytes, why) in rows {
        let fill = std::panic::catch_unwind(|| {
            // SAFETY: the call panics before anything uses the buffer.
            unsafe { Ring::receive(&pool(), 4).unwrap().fill_at(0, 2, offset, bytes, false) }
        });
        assert!(fill.is_err(), "{why}");
    }
}

#[test]
#[should_panic(expected = "is the backend's")]
fn a_slot_of_the_backend_is_not_shown() {
    let ring = Ring::receive(&pool(), 4).unwrap();
    ring.bytes(0);
}
