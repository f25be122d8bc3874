//! Tests the reader against a simulated program, and against the writer of this process.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::*;
use sluicegate_base::memory::{Mmap, Pool, PoolConfig};
use sluicegate_base::ring::Ring;

const CELLS: u32 = 8;
const SNAPLEN: u32 = 100;

fn sockets() -> (OwnedFd, OwnedFd) {
    let (family, kind) = (AddressFamily::Unix, SockType::Datagram);
    socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC).unwrap()
}

/// Rings in memory that no BPF program uses. The test plays the program.
struct Mock {
    rings: Vec<CellRing>,
    timed: bool,
    pool: Arc<Pool>,
}

impl Mock {
    fn new(rings: u32, start: u32) -> Self {
        Self::with(rings, start, CELLS, true)
    }

    fn with(rings: u32, start: u32, cells: u32, timed: bool) -> Self {
        let geometry = CellGeometry { cells, snaplen: SNAPLEN };
        let bytes = geometry.ring_bytes() as usize;
        let (_, map) = Mmap::memfd(c"sluice-test", bytes * rings as usize, false).unwrap();
        let map = Arc::new(map);
        let rings = (0..rings as usize).map(|ring| CellRing::new(&map, ring * bytes, geometry));
        let pool = PoolConfig { buffers: 0, ..PoolConfig::default() };
        let mock = Self { rings: rings.collect(), timed, pool: Pool::new(pool).unwrap() };
        for ring in &mock.rings {
            for at in [at::PRODUCED, at::CONSUMED, at::OWN_PRODUCED, at::OWN_CONSUMED] {
                ring.word(at).store(start, Ordering::Relaxed);
            }
        }
        mock
    }

    fn reader(&self, rings: u32, start: u32) -> (Reader, Ring) {
        let rings = self.rings.iter().take(rings as usize).cloned();
        let wake = WakeSource::Socket(sockets().0);
        let reader = Reader::starting_at(rings, self.timed, wake, start);
        (reader, Ring::receive_indirect(&self.pool, 64).unwrap())
    }

    fn word(&self, ring: u32, at: i16) -> &sluicegate_base::ring::AtomicU32 {
        self.rings[ring as usize].word(at)
    }

    /// Copies a packet as the program does. Returns false if the ring is full.
    fn copy(&self, ring: u32, header: CellHeader, packet: &[u8]) -> bool {
        let ring = &self.rings[ring as usize];
        let produced = ring.word(at::PRODUCED).load(Ordering::Relaxed);
        let consumed = ring.word(at::CONSUMED).load(Ordering::Acquire);
        ring.counter(at::MATCHED).fetch_add(1, Ordering::Relaxed);
        if produced.wrapping_sub(consumed) >= ring.geometry().cells {
            ring.counter(at::LOST).fetch_add(1, Ordering::Relaxed);
            return false;
        }
        ring.write(produced, header, std::iter::once(packet));
        ring.write_header(produced, header);
        ring.word(at::PRODUCED).store(produced.wrapping_add(1), Ordering::Release);
        true
    }

    fn put(&self, ring: u32, number: u8) -> bool {
        let bytes = 20 + u32::from(number % 7);
        let lost = self.rings[ring as usize].counter(at::LOST).load(Ordering::Relaxed) as u32;
        let (wire_bytes, captured_bytes) = (bytes, bytes);
        let time_ns = u64::from(number) * u64::from(self.timed);
        let header = CellHeader { time_ns, wire_bytes, captured_bytes, lost, direction: 0 };
        self.copy(ring, header, &vec![number; bytes as usize])
    }
}

/// Syncs, and returns the number in each packet. Asserts that packets are complete.
fn receive(reader: &mut Reader, ring: &mut Ring) -> Vec<u8> {
    reader.give_back(ring);
    reader.look();
    reader.fill(ring, |ns| ns);
    let numbers = ring.packets().map(|packet| {
        let number = packet.head()[0];
        assert_eq!(packet.head(), vec![number; 20 + usize::from(number % 7)]);
        assert_eq!(packet.meta().wire_bytes as usize, packet.head().len());
        number
    });
    numbers.collect()
}

#[test]
fn what_is_copied_is_read_once_and_in_order_wherever_the_indices_stand() {
    for start in [0, 1, u32::MAX - 3, u32::MAX - CELLS, u32::MAX / 2] {
        let mock = Mock::new(1, start);
        let (mut reader, mut ring) = mock.reader(1, start);
        assert_eq!(receive(&mut reader, &mut ring), [], "{start}: the ring is empty");
        let mut number = 0u8;
        for burst in [1, 8, 3, 8, 8, 0, 5, 7] {
            let expected: Vec<u8> = (number..number + burst).collect();
            assert!(expected.iter().all(|&number| mock.put(0, number)), "{start}: there is room");
            number += burst;
            assert_eq!(receive(&mut reader, &mut ring), expected, "{start}");
            ring.release(ring.available());
            reader.give_back(&ring);
        }
    }
}

#[test]
fn a_full_ring_loses_what_comes_and_keeps_what_is_there() {
    let mock = Mock::new(1, u32::MAX - 2);
    let (mut reader, mut ring) = mock.reader(1, u32::MAX - 2);
    for number in 0..12 {
        assert_eq!(mock.put(0, number), number < 8);
    }
    assert_eq!(receive(&mut reader, &mut ring), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(!mock.put(0, 12), "what stands in slots has not been given back");
    ring.release(3);
    reader.give_back(&ring);
    assert!(mock.put(0, 13) && mock.put(0, 14) && mock.put(0, 15) && !mock.put(0, 16));
    assert_eq!(receive(&mut reader, &mut ring), [3, 4, 5, 6, 7, 13, 14, 15]);
    let marked: Vec<u32> = ring.packets().map(|packet| packet.meta().drops_before).collect();
    assert_eq!(marked, [0, 0, 0, 0, 0, 5, 0, 0], "the gap is where it was");
    assert_eq!(reader.counts(), reader::CellRingCounts { matched: 17, lost: 6 });
}

#[test]
fn a_ring_of_few_slots_gets_the_rest_later() {
    let mock = Mock::new(1, 0);
    let (mut reader, _) = mock.reader(1, 0);
    let mut ring = Ring::receive_indirect(&mock.pool, 4).unwrap();
    assert!((0..8).all(|number| mock.put(0, number)));
    for expected in [[0, 1, 2].as_slice(), &[3, 4, 5], &[6, 7], &[]] {
        assert_eq!(receive(&mut reader, &mut ring), expected);
        ring.release(ring.available());
    }
}

#[test]
fn several_rings_are_read_in_the_order_of_time() {
    type Deal = fn(u32) -> u32;
    let rows: [(&str, u32, Deal); 4] = [
        ("one with more than the others", 3, |number| [0, 2, 2, 1, 2][number as usize % 5]),
        ("each in turn", 31, |number| number % 31),
        ("bursts of several", 31, |number| number / 7 * 13 % 31),
        ("many that have nothing", 200, |number| 17 * (number % 12)),
    ];
    for (sentence, rings, ring_of) in rows {
        let mock = Mock::new(rings, u32::MAX);
        let (mut reader, mut ring) = mock.reader(rings, u32::MAX);
        let mut number = 0;
        for round in 0..4 {
            let last = number + 60;
            let put: Vec<u8> =
                (number..last).filter(|&number| mock.put(ring_of(number.into()), number)).collect();
            number = last;
            let mut got = Vec::new();
            while let more @ [_, ..] = receive(&mut reader, &mut ring).as_slice() {
                got.extend_from_slice(more);
                // Released one by one, each cell returns to its own ring.
                for _ in 0..ring.available() {
                    ring.release(1);
                    reader.give_back(&ring);
                }
            }
            assert_eq!(got, put, "{sentence}, round {round}");
            assert!(put.len() >= 16, "{sentence}: {put:?}");
            assert_eq!(reader.unread(), 0, "{sentence}, round {round}");
        }
        for ring in 0..rings {
            let of = |at| mock.word(ring, at).load(Ordering::Relaxed);
            assert_eq!(of(at::PRODUCED), of(at::CONSUMED), "{sentence}, ring {ring}");
        }
    }
}

#[test]
fn a_packet_that_is_there_only_later_comes_next() {
    let mock = Mock::new(2, 0);
    let (mut reader, mut ring) = mock.reader(2, 0);
    assert!(mock.put(0, 5) && mock.put(0, 9) && mock.put(1, 7));
    assert_eq!(receive(&mut reader, &mut ring), [5, 7, 9]);
    ring.release(3);
    assert!(mock.put(1, 8) && mock.put(0, 10) && mock.put(1, 11));
    assert_eq!(receive(&mut reader, &mut ring), [8, 10, 11]);
}

#[test]
fn without_times_no_ring_waits_for_another_to_be_empty() {
    const RINGS: u32 = 3;
    let mock = Mock::with(RINGS, 0, CELLS, false);
    let (mut reader, _) = mock.reader(RINGS, 0);
    let mut ring = Ring::receive_indirect(&mock.pool, 4).unwrap();
    assert!(mock.put(1, 201) && mock.put(2, 202) && mock.put(2, 203));
    let (mut number, mut got) = (0, Vec::new());
    for _ in 0..8 {
        // This ring always has more packets.
        while mock.put(0, number) {
            number += 1;
        }
        let more = receive(&mut reader, &mut ring);
        assert_eq!(more.len(), 3, "all slots are used");
        got.extend(more);
        ring.release(ring.available());
    }
    let of = |range: std::ops::Range<u8>| got.iter().copied().filter(move |n| range.contains(n));
    assert!(of(0..200).eq(0..21), "each ring in its order: {got:?}");
    assert!(of(200..255).eq([201, 202, 203]), "{got:?}");
    assert!(got[..9].contains(&203), "none waits longer than a turn of each other: {got:?}");
}

#[test]
fn without_times_a_turn_ends_though_there_is_more() {
    let mock = Mock::with(3, u32::MAX - 70, 256, false);
    let (mut reader, _) = mock.reader(3, u32::MAX - 70);
    let mut ring = Ring::receive_indirect(&mock.pool, 512).unwrap();
    assert!((0..200).all(|number| mock.put(0, number)));
    assert!((200..203).all(|number| mock.put(1, number)));
    assert!((0..66).all(|number| mock.put(2, number)));
    let got = receive(&mut reader, &mut ring);
    // 64 of each ring that has that many, and then the next ring.
    let turns: [std::ops::Range<u8>; 6] = [0..64, 200..203, 0..64, 64..128, 64..66, 128..200];
    assert_eq!(got, turns.into_iter().flatten().collect::<Vec<u8>>());
}

#[test]
fn an_index_that_cannot_be_is_not_believed() {
    for start in [0, u32::MAX - 1] {
        let mock = Mock::new(1, start);
        let (mut reader, mut ring) = mock.reader(1, start);
        assert!(mock.put(0, 1) && mock.put(0, 2));
        assert_eq!(receive(&mut reader, &mut ring), [1, 2]);
        for absurd in [CELLS + 1, CELLS + 3, 1, 0, u32::MAX, u32::MAX / 2, 1 << 31] {
            mock.word(0, at::PRODUCED).store(start.wrapping_add(absurd), Ordering::Relaxed);
            assert_eq!(reader.look(), 0, "{start}: {absurd} after 2, in a ring of {CELLS}");
            assert!(reader.go_to_sleep(1), "{start}: {absurd} does not keep the reader awake");
            reader.wake_up();
        }
        mock.word(0, at::PRODUCED).store(start.wrapping_add(2), Ordering::Relaxed);
        assert!(mock.put(0, 3));
        assert_eq!(receive(&mut reader, &mut ring), [1, 2, 3], "it goes on where it was");
    }
}

#[test]
fn a_length_that_cannot_be_is_cut_to_the_cell() {
    let rows = [
        ("as it is", (60, 60), (60, 60)),
        ("cut by the program", (1514, 100), (100, 1514)),
        ("longer than a cell", (2000, 1999), (100, 2000)),
        ("longer than anything", (u32::MAX, u32::MAX), (100, u32::MAX)),
        ("longer than it was on the wire", (10, 50), (50, 50)),
        ("nothing", (0, 0), (0, 0)),
    ];
    let mock = Mock::new(1, 0);
    let (mut reader, mut ring) = mock.reader(1, 0);
    for (sentence, (wire_bytes, captured_bytes), expected) in rows {
        let header = CellHeader { wire_bytes, captured_bytes, ..CellHeader::default() };
        assert!(mock.copy(0, header, &[7; SNAPLEN as usize]));
        reader.give_back(&ring);
        reader.look();
        reader.fill(&mut ring, |ns| ns);
        let got = ring.packets().next().map(|p| (p.head().len(), p.meta().wire_bytes));
        assert_eq!(got, Some(expected), "{sentence}");
        ring.release(1);
    }
}

/// Returns true if the reader's file is readable now.
fn is_woken(reader: &Reader) -> bool {
    use std::os::fd::AsFd;
    let mut file = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
    poll(&mut file, PollTimeout::ZERO) == Ok(1)
}

#[test]
fn a_writer_wakes_a_sleeper_once_and_at_the_level_it_asked_for() {
    let rows = [
        ("an awake reader is not woken", None, [false; 5]),
        ("at once: by the first", Some(1), [true; 5]),
        ("at a level of three", Some(3), [false, false, true, true, true]),
        ("above what comes", Some(7), [false; 5]),
    ];
    for (sentence, level, expected) in rows {
        let (ring, _) = CellRing::in_file(CellGeometry { cells: CELLS, snaplen: SNAPLEN }).unwrap();
        let (ours, theirs) = sockets();
        let mut writer = Writer::new(ring.clone(), ours);
        let mut reader = Reader::new([ring.clone()], true, WakeSource::Socket(theirs));
        if let Some(level) = level {
            assert!(reader.go_to_sleep(level), "{sentence}: the ring is empty");
        }
        for (number, expected) in expected.into_iter().enumerate() {
            writer.offer(CellHeader::default(), std::iter::once(&[7; 60][..]));
            writer.publish();
            assert_eq!(is_woken(&reader), expected, "{sentence}, packet {number}");
        }
        assert_eq!(ring.word(at::ASLEEP).load(Ordering::Relaxed) == 0, level != Some(7));
        assert!(reader.go_to_sleep(9), "{sentence}: more than there is");
        assert!(!is_woken(&reader), "{sentence}: earlier wake-ups are forgotten");
        assert!(!reader.go_to_sleep(5), "{sentence}: as many as there are");
        reader.wake_up();
        writer.offer(CellHeader::default(), std::iter::once(&[7; 60][..]));
        writer.publish();
        assert!(!is_woken(&reader), "{sentence}: it has woken up by itself");
        drop(writer);
        assert!(is_woken(&reader) && reader.has_ended(), "{sentence}: the end wakes, too");
    }
}
