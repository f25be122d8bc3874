//! Compares the rings with a VecDeque, from indices that are about to wrap, and with an invalid other side.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::xdp::tests::mock::{consumer, producer};

const SIZE: u32 = 8;

#[derive(Clone, Copy, Debug)]
enum XdpRingStep {
    /// This side handles this many entries.
    Ours(u32),
    /// The other side handles this many entries, and perhaps publishes its index.
    Theirs(u32, bool),
}

fn steps() -> impl Strategy<Value = Vec<XdpRingStep>> {
    let theirs = ((0u32..12), any::<bool>()).prop_map(|(n, says)| XdpRingStep::Theirs(n, says));
    prop::collection::vec(prop_oneof![(0u32..12).prop_map(XdpRingStep::Ours), theirs], 1..80)
}

/// Indices that wrap early in a test, late, or never.
fn start() -> impl Strategy<Value = u32> {
    prop_oneof![(u32::MAX - 3)..=u32::MAX, (u32::MAX - 40)..=u32::MAX, Just(0)]
}

proptest! {
    #[test]
    fn what_we_produce_comes_out_as_from_a_queue(start in start(), steps in steps()) {
        let (mut ours, mut theirs) = producer::<u64>(SIZE, start);
        let mut model = VecDeque::new();
        // Entries that the other side has taken but not published: no room yet.
        let mut held = 0;
        let mut number = 0;
        for step in steps {
            match step {
                XdpRingStep::Ours(n) => {
                    let granted = ours.reserve(n);
                    prop_assert_eq!(granted, n.min(SIZE - held - model.len() as u32));
                    (0..granted).for_each(|i| ours.write(i, number + u64::from(i)));
                    ours.submit(granted);
                    model.extend(number..number + u64::from(granted));
                    number += u64::from(granted);
                }
                XdpRingStep::Theirs(n, says) => {
                    for _ in 0..n {
                        let (seen, expected) = (theirs.take(), model.pop_front());
                        prop_assert_eq!(seen, expected);
                        held += u32::from(expected.is_some());
                    }
                    if says {
                        theirs.say_consumed(theirs.next);
                        held = 0;
                    }
                }
            }
            prop_assert_eq!(ours.waiting(), held + model.len() as u32);
        }
        prop_assert_eq!(ours.faults(), 0);
    }

    #[test]
    fn what_they_produce_comes_out_as_from_a_queue(start in start(), steps in steps()) {
        let (mut ours, mut theirs) = consumer::<u64>(SIZE, start);
        let mut model = VecDeque::new();
        let mut number = 0;
        for step in steps {
            match step {
                XdpRingStep::Theirs(n, _) => {
                    for _ in 0..n {
                        let has_room = model.len() < SIZE as usize;
                        prop_assert_eq!(theirs.put(number), has_room);
                        model.extend(has_room.then_some(number));
                        number += 1;
                    }
                }
                XdpRingStep::Ours(n) => {
                    prop_assert_eq!(ours.peek(), model.len() as u32);
                    let seen: Vec<u64> = (0..model.len() as u32).map(|i| ours.read(i)).collect();
                    prop_assert_eq!(&seen, &Vec::from(model.clone()));
                    // Not all entries that were peeked at must be released.
                    let n = n.min(model.len() as u32);
                    ours.release(n);
                    model.drain(..n as usize);
                }
            }
        }
        prop_assert_eq!(ours.faults(), 0);
    }

    #[test]
    fn whatever_they_say_no_batch_is_larger_than_the_ring(
        start in start(),
        said in prop::collection::vec(any::<u32>(), 1..40),
    ) {
        let (mut from, their_products) = consumer::<libc::xdp_desc>(SIZE, start);
        let (mut to, their_room) = producer::<u64>(SIZE, start);
        for index in said {
            // Sometimes near the correct value, sometimes arbitrary.
            let index = if index % 3 == 0 { start.wrapping_add(index % 32) } else { index };
            their_products.say_produced(index);
            let there = from.peek();
            prop_assert!(there <= SIZE);
            (0..there).for_each(|i| assert_eq!(from.read(i).options, 0, "within the mapping"));
            from.release(there.min(2));

            their_room.say_consumed(index);
            let room = to.reserve(u32::MAX);
            prop_assert!(room <= SIZE && to.waiting() <= SIZE);
            (0..room.min(3)).for_each(|i| to.write(i, 0));
            to.submit(room.min(3));
        }
    }
}

#[test]
fn an_index_that_cannot_be_is_counted_and_not_believed() {
    for start in [0, u32::MAX - 3] {
        let rows: [(u32, u32, u64, &str); 5] = [
            (4, 4, 0, "four have come"),
            (3, 4, 1, "backwards"),
            (9, 4, 1, "more than the ring has"),
            (4 + (1 << 31), 4, 1, "half way round"),
            (8, 8, 0, "the ring is full"),
        ];
        let (mut ours, theirs) = consumer::<u64>(SIZE, start);
        let mut faults = 0;
        for (said, there, new_faults, why) in rows {
            theirs.say_produced(start.wrapping_add(said));
            faults += new_faults;
            assert_eq!((ours.peek(), ours.faults()), (there, faults), "{why}");
        }

        let rows: [(u32, u32, u64, &str); 5] = [
            (2, 4, 0, "two were consumed"),
            (1, 4, 1, "backwards"),
            (7, 4, 1, "more than there were"),
            (6 + (1 << 31), 4, 1, "half way round"),
            (6, 8, 0, "all were consumed"),
        ];
        let (mut ours, theirs) = producer::<u64>(SIZE, start);
        assert_eq!(ours.reserve(6), 6);
        (0..6).for_each(|i| ours.write(i, 0));
        ours.submit(6);
        let mut faults = 0;
        for (said, room, new_faults, why) in rows {
            theirs.say_consumed(start.wrapping_add(said));
            faults += new_faults;
            assert_eq!((ours.reserve(SIZE), ours.faults()), (room, faults), "{why}");
        }
    }
}

#[test]
fn a_wish_to_be_woken_is_seen() {
    let (ours, theirs) = producer::<u64>(SIZE, 0);
    for asks in [false, true, false] {
        theirs.ask_for_wakeup(asks);
        assert_eq!(ours.needs_wakeup(), asks);
    }
}

#[test]
fn a_ring_that_does_not_lie_in_its_mapping_is_refused() {
    let good = libc::xdp_ring_offset { producer: 0, consumer: 64, flags: 128, desc: 192 };
    let rows = [
        (good, 8, true, "a ring as it should be"),
        (good, 512, false, "more entries than there is room for"),
        (good, 0, false, "no entries"),
        (good, 6, false, "not a power of two"),
        (libc::xdp_ring_offset { producer: 4096, ..good }, 8, false, "an index outside"),
        (libc::xdp_ring_offset { consumer: 62, ..good }, 8, false, "an index across words"),
        (libc::xdp_ring_offset { flags: u64::MAX, ..good }, 8, false, "flags nowhere"),
        (libc::xdp_ring_offset { desc: 100, ..good }, 8, false, "entries across words"),
        (libc::xdp_ring_offset { desc: u64::MAX - 7, ..good }, 8, false, "entries nowhere"),
    ];
    for (offsets, entries, fits, why) in rows {
        let map = || Mmap::anonymous(4096).unwrap();
        assert_eq!(Producer::<u64>::new(map(), &offsets, entries).is_ok(), fits, "{why}");
        assert_eq!(Consumer::<u64>::new(map(), &offsets, entries).is_ok(), fits, "{why}");
    }
}

#[test]
#[should_panic(expected = "entry 2 of 2")]
fn an_entry_that_was_not_peeked_at_is_not_read() {
    let (mut ours, mut theirs) = consumer::<u64>(SIZE, 0);
    assert!(theirs.put(1) && theirs.put(2));
    ours.peek();
    ours.read(2);
}
