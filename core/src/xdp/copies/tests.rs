//! The reader against a program played by the test.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::memory::{Pool, PoolConfig};
use crate::ring::Ring;

const CELLS: u32 = 8;
const SNAPLEN: u32 = 100;

/// Rings in memory that no program knows, and one to play it.
struct Mock {
    copies: Arc<Copies>,
    pool: Arc<Pool>,
}

impl Mock {
    fn new(rings: u32, start: u32) -> Self {
        Self::with(rings, start, CELLS, true)
    }

    fn with(rings: u32, start: u32, cells: u32, stamped: bool) -> Self {
        let geometry =
            Geometry::new(Sharing::Queue, rings, 0..=rings - 1, SNAPLEN, Some(cells)).unwrap();
        let geometry = Geometry { stamped, ..geometry };
        let bytes = geometry.ring_bytes() as usize * rings as usize;
        let (fd, map) = Mmap::memfd(c"sluice-test", bytes, false).unwrap();
        let pool = PoolConfig { buffers: 0, ..PoolConfig::default() };
        let mock =
            Self { copies: Arc::new(Copies { geometry, map, fd }), pool: Pool::new(pool).unwrap() };
        for ring in 0..rings {
            for at in [at::PRODUCED, at::CONSUMED, at::OWN_PRODUCED, at::OWN_CONSUMED] {
                mock.word(ring, at).store(start, Ordering::Relaxed);
            }
        }
        mock
    }

    fn reader(&self, rings: u32, start: u32) -> (Reader, Ring) {
        let reader = Reader::starting_at(&self.copies, 0..rings, start);
        (reader, Ring::receive_indirect(&self.pool, 64).unwrap())
    }

    fn word(&self, ring: u32, at: i16) -> &AtomicU32 {
        let start = ring as usize * self.copies.geometry.ring_bytes() as usize;
        // SAFETY: a word of the mapping, aligned, which the test accesses as an atomic only.
        unsafe { self.copies.map.at(start + at as usize).cast().as_ref() }
    }

    /// What the program does with a packet; false if the ring is full.
    fn copy(&self, ring: u32, header: reader::Header, packet: &[u8]) -> bool {
        let produced = self.word(ring, at::PRODUCED).load(Ordering::Relaxed);
        let consumed = self.word(ring, at::CONSUMED).load(Ordering::Acquire);
        self.word(ring, at::MATCHED).fetch_add(1, Ordering::Relaxed);
        let cells = self.copies.geometry.cells;
        if produced.wrapping_sub(consumed) >= cells {
            self.word(ring, at::LOST).fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let cell = self.copies.geometry.cell_bytes() as usize * (produced % cells) as usize;
        let start = ring as usize * self.copies.geometry.ring_bytes() as usize;
        let cell = self.copies.map.at(start + at::CELLS as usize + cell);
        assert!(packet.len() <= SNAPLEN as usize);
        // SAFETY: the cell is in the mapping and not the reader's, by the indices.
        unsafe {
            cell.cast::<reader::Header>().write(header);
            let to = cell.add(cell::PACKET as usize);
            to.copy_from_nonoverlapping(std::ptr::NonNull::from(packet).cast(), packet.len());
        }
        self.word(ring, at::PRODUCED).store(produced.wrapping_add(1), Ordering::Release);
        true
    }

    fn put(&self, ring: u32, number: u8) -> bool {
        let bytes = 20 + u32::from(number % 7);
        let monotonic_ns = u64::from(number) * u64::from(self.copies.geometry.stamped);
        let lost = self.word(ring, at::LOST).load(Ordering::Relaxed);
        let (wire_bytes, captured_bytes) = (bytes, bytes);
        let header = reader::Header { monotonic_ns, wire_bytes, captured_bytes, lost };
        self.copy(ring, header, &vec![number; bytes as usize])
    }
}

/// Syncs; the number in each packet, which must be whole.
fn receive(reader: &mut Reader, ring: &mut Ring) -> Vec<u8> {
    reader.give_back(ring);
    reader.look();
    reader.fill(ring, &mut WallClock::new());
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
        assert_eq!(receive(&mut reader, &mut ring), [], "{start}: nothing is there");
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
    let marked: Vec<u32> = ring.packets().map(|packet| packet.meta().lost_before).collect();
    assert_eq!(marked, [0, 0, 0, 0, 0, 5, 0, 0], "the gap is where it was");
    assert_eq!(reader.counts(), reader::Counts { matched: 17, lost: 6 });
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
                // Given back piece by piece, each cell goes back to its own ring.
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
        // One of them always has more.
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
    // 64 of each that has as many, and then the next.
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
        let header = reader::Header { monotonic_ns: u64::MAX, wire_bytes, captured_bytes, lost: 0 };
        assert!(mock.copy(0, header, &[7; SNAPLEN as usize]));
        reader.give_back(&ring);
        reader.look();
        reader.fill(&mut ring, &mut WallClock::new());
        let got = ring.packets().next().map(|p| (p.head().len(), p.meta().wire_bytes));
        assert_eq!(got, Some(expected), "{sentence}");
        ring.release(1);
    }
}

#[test]
fn rings_are_as_large_as_memory_allows() {
    let of = |rings, snaplen, cells| {
        Geometry::new(Sharing::Queue, rings, 0..=0, snaplen, cells)
            .map(|g| (g.cells, g.cell_bytes(), g.snaplen))
            .map_err(|too_large| too_large.to_string())
    };
    let rows = [
        ("frames of 1500 bytes", of(1, 1522, None), Ok((16_384, 1600, 1522))),
        ("jumbo frames", of(1, 9022, None), Ok((2048, 9088, 9022))),
        ("the longest", of(1, 1 << 20, None), Ok((256, 65_600, 65_535))),
        ("short packets", of(1, 96, None), Ok((16_384, 128, 96))),
        ("many CPUs", of(256, 1522, None), Ok((256, 1600, 1522))),
        ("as many as one says, and up to a power of two", of(1, 96, Some(100)), Ok((128, 128, 96))),
        ("many CPUs and jumbo frames", of(256, 9022, None), Ok((32, 9088, 9022))),
        (
            "many CPUs and the longest",
            of(256, 1 << 20, None),
            Err("256 rings of copies would take 257 MiB, and 128 MiB is the most".into()),
        ),
        ("the same, and one says how many", of(256, 1 << 20, Some(8)), Ok((8, 65_600, 65_535))),
        (
            "too many",
            of(1, 65_535, Some(65_536)),
            Err("a ring of copies would take 4100 MiB, and 256 MiB is the most".into()),
        ),
        (
            "as many as there are numbers",
            of(1, 1, Some(u32::MAX)),
            Err("a ring of copies would take 262144 MiB, and 256 MiB is the most".into()),
        ),
    ];
    for (sentence, got, expected) in rows {
        assert_eq!(got, expected, "{sentence}");
    }
}
