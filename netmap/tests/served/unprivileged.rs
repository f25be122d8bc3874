//! Tests over `null:`, which needs no privilege.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use sluicegate::port::{Directions, OpenOptions};
use sluicegate::{Error, error};
use sluicegate_netmap::{Region, Served};

use crate::buffers::Buffers;
use crate::corruptions::rows;
use crate::program::{Memory, echo, field};
use crate::roles::play;
use crate::{BUFFERS, child, served};

fn null() -> (Region, Vec<Served>) {
    served("null:/0-1?slots=64", &OpenOptions::default())
}

/// Plays a program that forwards all packets, and syncs the server. Returns the number of packets sent.
fn pass(region: &Region, queue: &mut Served) -> u64 {
    let memory = Memory::map(region.fd(), region.bytes());
    let (rx, tx) = (memory.ring(queue.rx_offset()), memory.ring(queue.tx_offset()));
    let before = queue.stats().unwrap().sent;
    for _ in 0..10 {
        queue.sync_rx().unwrap();
        assert_eq!(echo(rx, tx), 63);
        queue.sync_tx().unwrap();
    }
    queue.stats().unwrap().sent - before
}

/// Plays a program that returns 50 slots permanently.
fn give_some_for_good(region: &Region, queue: &mut Served) {
    queue.sync_rx().unwrap();
    queue.stop_rx().unwrap();
    Memory::map(region.fd(), region.bytes()).ring(queue.rx_offset()).give(50);
    assert_eq!(queue.sync_rx().unwrap(), 0);
}

#[test]
fn a_program_forwards_by_exchanging_numbers() {
    let (region, mut queues) = null();
    assert_eq!(pass(&region, &mut queues[0]), 630);
    assert_eq!(pass(&region, &mut queues[1]), 630);
    drop(queues);
    assert_eq!(region.free_buffers(), BUFFERS as usize, "all buffers come home");
}

#[test]
fn a_buffer_stays_with_its_slot_for_who_fills_it_once() {
    let (region, mut queues) = null();
    let memory = Memory::map(region.fd(), region.bytes());
    let tx = memory.ring(queues[0].tx_offset());
    let buffers = || (0..tx.num_slots).map(|i| tx.slot::<u32>(i, field::BUF)).collect::<Vec<_>>();
    // The last slot belongs to the server, and has no visible buffer yet.
    tx.give(63);
    queues[0].sync_tx().unwrap();
    let before = buffers();
    for _ in 0..5 {
        (0..63).for_each(|i| tx.set_slot(tx.after(tx.head(), i), field::LEN, 60u16));
        tx.give(63);
        assert_eq!(queues[0].sync_tx().unwrap(), 63);
    }
    assert_eq!(buffers(), before);
}

#[test]
fn bytes_written_after_a_slot_was_taken_are_not_sent() {
    let file = tempfile::Builder::new().suffix(".pcap").tempfile().unwrap();
    let name = format!("pcap:{}", file.path().display());
    let options = OpenOptions { usage: Directions::Send, ..OpenOptions::default() };
    let (region, mut queues) = served(&name, &options);
    let memory = Memory::map(region.fd(), region.bytes());
    let tx = memory.ring(queues[0].tx_offset());
    let buffers = Buffers::of(&memory, tx);
    let first: u32 = tx.slot(0, field::BUF);
    for (at, flags, value) in [(0, 0x20u16, 1), (1, 0, 2)] {
        (0..100).for_each(|i| buffers.set_byte(tx.slot(at, field::BUF), 5 + i, value));
        tx.set_slot(at, field::LEN, 100u16);
        tx.set_slot(at, field::PTR, 5u64);
        tx.set_slot(at, field::FLAGS, flags);
        tx.give(1);
        queues[0].sync_tx().unwrap();
        // The file gets the packet with its second slot only.
        (0..2048).for_each(|i| buffers.set_byte(first, i, 7));
    }
    drop(queues);
    assert_eq!(region.free_buffers(), BUFFERS as usize);
    let written = std::fs::read(file.path()).unwrap();
    assert_eq!(written[written.len() - 200..], [[1; 100], [2; 100]].concat());
}

/// Makes a capture file with packets of these lengths.
fn capture(lengths: &[u32]) -> tempfile::NamedTempFile {
    let path = tempfile::Builder::new().suffix(".pcap").tempfile().unwrap();
    let mut file: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 262_144, 1]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    for &bytes in lengths {
        file.extend([1, 0, bytes, bytes].iter().flat_map(|word: &u32| word.to_le_bytes()));
        file.extend(packet(bytes));
    }
    std::fs::write(path.path(), file).unwrap();
    path
}

fn packet(bytes: u32) -> impl Iterator<Item = u8> {
    (0..bytes).map(move |i| (i * 7 + bytes) as u8)
}

/// Returns the packets seen by a program that returns slots in these portions.
fn seen(lengths: &[u32], slots: u32, turns: &[u32]) -> Vec<Vec<u8>> {
    let file = capture(lengths);
    let name = format!("pcap:{}?slots={slots}", file.path().display());
    let (region, mut queues) = served(&name, &OpenOptions::default());
    let memory = Memory::map(region.fd(), region.bytes());
    let rx = memory.ring(queues[0].rx_offset());
    let buffers = Buffers::of(&memory, rx);
    let mut packets: Vec<Vec<u8>> = vec![vec![]];
    let end = Instant::now() + Duration::from_secs(60);
    for turn in turns.iter().cycle() {
        let done = packets.len() > lengths.len();
        if done || Instant::now() > end {
            break;
        }
        queues[0].sync_rx().unwrap();
        for _ in 0..rx.available().min(*turn) {
            let at = rx.head();
            let len: u16 = rx.slot(at, field::LEN);
            packets.last_mut().unwrap().extend((0..len.into()).map(|i| buffers.byte(rx, at, i)));
            if rx.slot::<u16>(at, field::FLAGS) & 0x20 == 0 {
                packets.push(vec![]);
            }
            rx.give(1);
        }
    }
    assert_eq!(queues[0].too_long(), 0);
    drop(queues);
    assert_eq!(region.free_buffers(), BUFFERS as usize);
    packets.pop();
    packets
}

#[test]
fn packets_outside_the_region_are_copied_into_as_many_slots_as_they_need() {
    let lengths = [60u32, 2048, 2049, 100_000, 9000, 1];
    let expected = lengths.map(|bytes| packet(bytes).collect());
    assert_eq!(seen(&lengths, 64, &[63]), expected as [Vec<u8>; 6]);
}

#[test]
fn a_packet_that_the_ring_is_too_short_for_is_left_out_and_counted() {
    let file = capture(&[60, 20_000, 61]);
    let name = format!("pcap:{}?slots=8", file.path().display());
    let (region, mut queues) = served(&name, &OpenOptions::default());
    let memory = Memory::map(region.fd(), region.bytes());
    let rx = memory.ring(queues[0].rx_offset());
    assert_eq!(queues[0].sync_rx().unwrap(), 2);
    assert_eq!([0, 1].map(|at| rx.slot::<u16>(at, field::LEN)), [60, 61]);
    assert_eq!(queues[0].too_long(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whenever_a_program_gives_slots_back_it_sees_all_packets_whole_and_in_order(
        lengths in prop::collection::vec(prop_oneof![1u32..100, 1u32..6_000], 1..30),
        slots in 8u32..40,
        turns in prop::collection::vec(0u32..12, 1..10).prop_map(|mut turns| {
            turns.push(1);
            turns
        }),
    ) {
        let expected: Vec<Vec<u8>> = lengths.iter().map(|&it| packet(it).collect()).collect();
        prop_assert_eq!(seen(&lengths, slots, &turns), expected);
    }
}

#[test]
fn an_invalid_value_ends_its_queue_alone() {
    for (role, ring) in [("corrupt-rx", "receive ring"), ("corrupt-tx", "transmit ring")] {
        for (number, row) in rows().iter().enumerate() {
            let (region, mut queues) = null();
            let (others, mut other) = null();
            if role == "corrupt-tx" && row.in_part {
                continue; // `null:` hands out all slots at once.
            }
            give_some_for_good(&region, &mut queues[0]);
            let status = child::end(play(&format!("{role} {number}"), &region, &queues[0])).status;
            assert!(status.success(), "{}", row.sentence);
            let sync = |queue: &mut Served| match role {
                "corrupt-rx" => queue.sync_rx(),
                _ => queue.sync_tx(),
            };
            for _ in 0..2 {
                let error = sync(&mut queues[0]).expect_err(row.sentence);
                assert_eq!(error.kind(), error::ErrorKind::Runtime);
                assert!(matches!(error, Error::Corrupt { .. }), "{}: {error}", row.sentence);
                let said = error.to_string();
                assert!(said.contains(&row.says), "{}: {said}", row.sentence);
                assert!(said.contains(ring) && said.contains("queue 0"), "{said}");
            }
            assert!(queues[0].sync_rx().is_err() && queues[0].sync_tx().is_err());
            assert_eq!(pass(&region, &mut queues[1]), 630, "{}", row.sentence);
            assert_eq!(pass(&others, &mut other[0]), 630, "{}", row.sentence);
            drop((queues, other));
            assert_eq!(region.free_buffers(), BUFFERS as usize, "{}", row.sentence);
        }
    }
}

#[test]
fn a_number_given_back_counts_once() {
    let (region, mut queues) = null();
    let memory = Memory::map(region.fd(), region.bytes());
    let tx = memory.ring(queues[0].tx_offset());
    tx.give(1);
    queues[0].sync_tx().unwrap();
    // The slot's buffer is handed out again after the others; before that the program must not return it.
    let taken: u32 = tx.slot(0, field::BUF);
    tx.give(1);
    queues[0].sync_tx().unwrap();
    let mine: u32 = tx.slot(tx.head(), field::BUF);
    assert_ne!(taken, mine);
    tx.set_slot(tx.head(), field::BUF, mine);
    tx.set_slot(tx.after(tx.head(), 1), field::BUF, mine);
    tx.give(2);
    let said = queues[0].sync_tx().unwrap_err().to_string();
    assert!(said.contains(&format!("slot 3: buf_idx is {mine}, which")), "{said}");
    // The region's other queue rejects it too.
    let tx = memory.ring(queues[1].tx_offset());
    tx.set_slot(0, field::BUF, mine);
    tx.give(1);
    let said = queues[1].sync_tx().unwrap_err().to_string();
    assert!(said.contains("queue 1, transmit ring: slot 0"), "{said}");
    drop(queues);
    assert_eq!(region.free_buffers(), BUFFERS as usize);
}

#[test]
fn fields_that_the_server_ignores_are_harmless() {
    let (region, mut queues) = null();
    let memory = Memory::map(region.fd(), region.bytes());
    let (rx, tx) = (memory.ring(queues[0].rx_offset()), memory.ring(queues[0].tx_offset()));
    let played = play("all-else 0", &region, &queues[0]);
    assert!(child::end(played).status.success());
    for _ in 0..10 {
        queues[0].sync_rx().unwrap();
        assert_eq!(echo(rx, tx), 63);
        queues[0].sync_tx().unwrap();
    }
    assert_eq!(queues[0].stats().unwrap().sent, 630);
    drop(queues);
    assert_eq!(region.free_buffers(), BUFFERS as usize);
}

#[test]
fn a_program_that_writes_while_the_server_reads_ends_its_queue_at_most() {
    // A second program continues meanwhile, and loses nothing.
    let (others, mut other) = null();
    let mut queue = other.remove(0);
    let count = 200_000;
    let echo = play(&format!("echo {count}"), &others, &queue);
    let id = echo.id();
    let server = std::thread::spawn(move || {
        let end = Instant::now() + Duration::from_secs(100);
        while queue.stats().unwrap().sent < count && Instant::now() < end {
            queue.sync_rx().unwrap();
            queue.sync_tx().unwrap();
        }
        queue.stats().unwrap().sent
    });
    let mut ended = 0;
    for seed in 1..=20 {
        let (region, mut queues) = null();
        let mut scribbler = play(&format!("scribble {seed}"), &region, &queues[0]);
        // The test waits for the first writer of invalid values.
        let time = if seed == 1 { Duration::from_secs(60) } else { Duration::from_millis(200) };
        let end = Instant::now() + time;
        let mut result = Ok(());
        while result.is_ok() && Instant::now() < end {
            result = queues[0].sync_rx().and_then(|_| queues[0].sync_tx()).map(|_| ());
        }
        match result {
            Err(error) if seed % 2 == 0 => panic!("seed {seed}: what can be was refused: {error}"),
            Err(_) => ended += 1,
            Ok(()) => assert_ne!(seed, 1, "whatever it writes, it goes on"),
        }
        assert_eq!(pass(&region, &mut queues[1]), 630, "seed {seed}");
        drop(queues);
        assert_eq!(region.free_buffers(), BUFFERS as usize, "seed {seed}");
        scribbler.kill().unwrap();
        child::end(scribbler);
    }
    println!("{ended} of 10 were ended");
    let sent = server.join().unwrap();
    assert!(child::limited(id, move || child::end(echo)).status.success());
    assert!(sent >= count, "{sent}");
}
