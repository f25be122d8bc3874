use proptest::prelude::*;

use super::*;
use crate::cell_ring::CellHeader;
use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::ring::{Direction, Meta, Packet, Ring};

fn watch(cells: u32, snaplen: u32) -> WatchRequest {
    WatchRequest { port: "a".into(), snaplen, cells, filter: String::new() }
}

fn reader(files: [OwnedFd; 2]) -> Reader {
    readers(files.into(), "test").unwrap().remove(0)
}

/// Returns both sides, and a ring of slots for the watcher.
fn sides(cells: u32, snaplen: u32) -> (Writer, Reader, Ring) {
    let (writer, files) = Writer::new(&watch(cells, snaplen)).unwrap();
    (writer, reader(files), slots())
}

fn slots() -> Ring {
    let pool = Pool::new(PoolConfig { buffers: 9, ..PoolConfig::default() }).unwrap();
    Ring::receive(&pool, 9).unwrap()
}

fn counts(reader: &Reader) -> (u64, u64) {
    let counts = reader.counts();
    (counts.matched, counts.lost)
}

fn offer(writer: &mut Writer, bytes: &[u8], direction: Direction, time: u64) {
    let meta = Meta { wire_bytes: bytes.len() as u32, ..Meta::default() };
    writer.offer(&Packet::new(&meta, bytes), direction, time);
}

#[test]
fn a_packet_comes_as_it_was_with_what_is_known_of_it() {
    let (mut writer, mut reader, mut ring) = sides(8, 100);
    offer(&mut writer, &[7; 60], Direction::In, 5);
    offer(&mut writer, &[8; 200], Direction::Out, 6);
    assert_eq!(reader.look(), 0, "not yet published");
    writer.publish();
    assert_eq!((reader.look(), reader.fill(&mut ring, |ns| ns)), (2, 2));
    let packets: Vec<_> = ring.packets().map(|p| (p.head().to_vec(), *p.meta())).collect();
    assert_eq!(packets[0].0, [7; 60]);
    assert_eq!(packets[1].0, [8; 100], "cut to what is kept");
    assert_eq!((packets[0].1.direction, packets[0].1.timestamp_ns), (Direction::In, 5));
    assert_eq!((packets[1].1.direction, packets[1].1.wire_bytes), (Direction::Out, 200));
}

#[test]
fn a_writer_cannot_change_a_packet_that_was_received() {
    let (mut writer, [memory, waker]) = Writer::new(&watch(8, 100)).unwrap();
    let cells = CellRing::of_file(&memory, "test").unwrap();
    let mut reader = reader([memory, waker]);
    let mut ring = slots();
    offer(&mut writer, &[7; 60], Direction::In, 0);
    writer.publish();
    assert_eq!((reader.look(), reader.fill(&mut ring, |ns| ns)), (1, 1));
    let packet = ring.packets().next().unwrap();
    assert_eq!(packet.head(), [7; 60]);
    cells.write(0, CellHeader::default(), std::iter::once(&[0xbb; 60][..]));
    assert_eq!(packet.head(), [7; 60], "after the writer has rewritten the cell");
}

#[test]
fn who_does_not_read_loses_and_learns_how_much() {
    let (mut writer, mut reader, mut ring) = sides(4, 64);
    for _ in 0..10 {
        offer(&mut writer, &[1; 60], Direction::In, 0);
        writer.publish();
    }
    reader.look();
    assert_eq!((reader.fill(&mut ring, |ns| ns), counts(&reader)), (4, (10, 6)));
    ring.release(4);
    reader.give_back(&ring);
    offer(&mut writer, &[1; 60], Direction::In, 0);
    drop(writer);
    assert!(reader.has_ended());
    reader.look();
    assert_eq!(reader.fill(&mut ring, |ns| ns), 1);
    assert_eq!(ring.packets().next().unwrap().meta().drops_before, 6);
}

#[test]
fn a_filter_and_an_end_that_is_asked_for() {
    let mut with_filter = watch(4, 64);
    with_filter.filter = "ether[0] = 1".into();
    let (mut writer, files) = Writer::new(&with_filter).unwrap();
    let reader = reader(files);
    offer(&mut writer, &[1; 60], Direction::In, 0);
    offer(&mut writer, &[2; 60], Direction::In, 0);
    reader.close();
    assert!(!reader.has_ended());
    writer.publish();
    offer(&mut writer, &[1; 60], Direction::In, 0);
    writer.publish();
    assert!(reader.has_ended());
    assert_eq!(counts(&reader), (1, 0), "what comes later is not counted");
    with_filter.filter = "nonsense of".into();
    assert!(Writer::new(&with_filter).is_err());
}

#[test]
fn what_a_watcher_asks_for_is_understood() {
    for filter in ["", "udp port 53 and ether[0] & 1 = 0"] {
        let watch = WatchRequest { filter: filter.into(), ..watch(8, 96) };
        // As received from a socket: without trailing blanks.
        assert_eq!(watch.to_string().trim().parse::<WatchRequest>().unwrap(), watch);
    }
    for line in
        ["", "watch", "watch a", "watch a 1", "watch a 1 many", "look a 1 1", "watch a -1 1"]
    {
        assert!(line.parse::<WatchRequest>().is_err(), "{line}");
    }
}

#[test]
fn what_is_no_ring_is_refused() {
    let (file, _map) = sluicegate_base::memory::Mmap::memfd(c"none", 8192, false).unwrap();
    let [ring, waker] = Writer::new(&watch(8, 100)).unwrap().1;
    let ordinary = OwnedFd::from(tempfile::tempfile().unwrap());
    for (sentence, files, complaint) in [
        ("memory of something else", vec![file, waker], "no ring"),
        ("an ordinary file", vec![ordinary], "too small"),
        ("without the socket that wakes", vec![ring], "of one version"),
    ] {
        let error = readers(files, "test").unwrap_err();
        let told = error.to_string();
        assert!(told.contains(complaint), "{sentence}: {told}");
    }
    assert!(Writer::new(&watch(1 << 20, 65_535)).unwrap_err().to_string().contains("MiB"));
}

proptest! {
    #[test]
    fn no_line_is_more_than_a_watch_or_an_error(line: String, words in "(watch )?[a-z0-9 ]{0,20}") {
        let _ = line.parse::<WatchRequest>();
        let _ = words.parse::<WatchRequest>();
    }

    /// In any interleaving, the watcher reads exactly the packets that were received and not lost, in
    /// order.
    #[test]
    fn nothing_is_lost_but_what_is_counted(steps in proptest::collection::vec((0..4u8, 0..12u8), 1..200)) {
        let (mut writer, mut reader, mut ring) = sides(8, 64);
        let (mut next, mut expected, mut gap) = (0u32, std::collections::VecDeque::new(), 0);
        let mut came = 0u64;
        for (what, n) in steps {
            match what {
                0 => for _ in 0..n {
                    let lost = writer_lost(&mut writer, next);
                    if lost { gap += 1 } else { expected.push_back((next, std::mem::take(&mut gap))) }
                    next += 1;
                },
                1 => writer.publish(),
                2 => {
                    reader.give_back(&ring);
                    reader.look();
                    reader.fill(&mut ring, |ns| ns);
                }
                _ => {
                    let n = u32::from(n).min(ring.available());
                    for packet in ring.packets().take(n as usize) {
                        let number = u32::from_le_bytes(packet.head()[..4].try_into().unwrap());
                        prop_assert_eq!(expected.pop_front(), Some((number, packet.meta().drops_before)));
                        came += 1;
                    }
                    ring.release(n);
                }
            }
        }
        writer.publish();
        let (received, lost) = counts(&reader);
        prop_assert_eq!(received, u64::from(next));
        prop_assert_eq!(received, came + expected.len() as u64 + lost);
    }
}

/// Offers a numbered packet. Returns true if it was lost.
fn writer_lost(writer: &mut Writer, number: u32) -> bool {
    let before = writer.lost();
    offer(writer, &number.to_le_bytes(), Direction::In, 0);
    writer.lost() > before
}
