//! The formats' variants, made by hand and read by libpcap too.

use std::path::Path;

use sluicegate::file::read::Reader;
use sluicegate::ring::{Direction, TimestampSource};

use crate::oracle::{libpcap, ours};
use crate::writer::{CaptureWriter, Chance, Order};

fn kept(folder: &Path, bytes: &[u8]) -> std::path::PathBuf {
    let path = folder.join("capture");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn every_variant_of_pcap_is_read_as_libpcap_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let versions = [(2, 0), (2, 2), (2, 3), (2, 4), (543, 0), (2, 5), (1, 4), (3, 0)];
    for order in [Order::Little, Order::Big] {
        for magic in [0xa1b2_c3d4, 0xa1b2_3c4d, 0xa1b2_cd34] {
            for version in versions {
                // A snapshot length that cuts, one that does not, none; a check sequence.
                for (snaplen, link) in [(0, 1), (2, 1), (u32::MAX, 101), (64, 0x2400_0001)] {
                    for (first, second) in [(4, 60), (60, 4), (4, 4)] {
                        let mut file = CaptureWriter::new(order);
                        file.pcap_header(magic, version, snaplen, link);
                        file.two_records(magic, version, first, second);
                        let path = kept(folder.path(), &file.bytes);
                        let (ours, theirs) = (ours(&path), libpcap(&path));
                        let name = format!("{magic:x} {version:?} {snaplen} {link:x} {first}");
                        assert_eq!(ours.packets, theirs.packets, "{name}");
                        assert_eq!(ours.error.is_some(), theirs.error.is_some(), "{name}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_packet_longer_than_any_can_be_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    for (why, link, captured, read) in [
        ("the longest of an ordinary link type", 1, 262_144, true),
        ("one byte more", 1, 262_145, false),
        ("D-Bus has longer ones", 231, 1 << 20, true),
        ("nothing has 4 GiB", 231, u32::MAX, false),
    ] {
        let mut file = CaptureWriter::new(Order::Little);
        file.pcap_header(0xa1b2_c3d4, (2, 4), 0, link);
        file.u32(0).u32(0).u32(captured).u32(captured);
        if read {
            file.raw(&vec![7; captured as usize]);
        }
        let path = kept(folder.path(), &file.bytes);
        assert_eq!(ours(&path).packets.len(), usize::from(read), "{why}");
        assert_eq!(libpcap(&path).packets.len(), usize::from(read), "{why}");
    }
}

#[test]
fn pcapng_says_what_pcap_cannot() {
    let folder = tempfile::tempdir().unwrap();
    for order in [Order::Little, Order::Big] {
        let mut file = CaptureWriter::new(order);
        let outbound = file.number32(2);
        let queue = file.number32(3);
        let dropped = match order {
            Order::Little => 9u64.to_le_bytes(),
            Order::Big => 9u64.to_be_bytes(),
        };
        let options: [(u16, &[u8]); 5] =
            [(2, &outbound), (4, &dropped), (6, &queue), (1, b"a \x1b[1m remark"), (1, b"another")];
        file.section()
            .interface(1, 96, &[(2, b"eth0"), (3, b"uplink"), (9, &[9])])
            .block(0x0bad, |b| {
                b.raw(b"what nobody knows is stepped over..!");
            })
            .enhanced(0, 1_700_000_000_000_000_001, b"first", &options)
            .block(3, |b| {
                b.u32(300).raw(&[5; 96]);
            })
            .block(2, |b| {
                b.u16(0).u16(4).u64(0).u32(3).u32(60).padded(b"old");
            });
        let path = kept(folder.path(), &file.bytes);
        assert_eq!(ours(&path).packets, libpcap(&path).packets);

        let mut reader = Reader::open(&path).unwrap();
        let eth0 = reader.interfaces()[0].clone();
        assert_eq!((eth0.name.as_str(), eth0.link_type, eth0.snaplen), ("eth0", 1, 96));
        assert_eq!(eth0.comment, "uplink; clock ticks of 10^-9 s");

        let record = reader.next_packet().unwrap().unwrap();
        let meta = record.packet().meta();
        assert_eq!(meta.timestamp_ns, 1_700_000_000_000_000_001);
        assert_eq!(meta.timestamp_source, TimestampSource::File);
        assert_eq!((meta.direction, meta.drops_before), (Direction::Out, 9));
        assert_eq!(record.queue(), Some(3));
        let comments: Vec<String> = record.comments().collect();
        assert_eq!(comments, ["a  [1m remark", "another"], "fit for a terminal");

        let record = reader.next_packet().unwrap().unwrap();
        let packet = record.packet();
        assert_eq!((packet.head().len(), packet.meta().wire_bytes), (96, 300));
        assert_eq!(packet.meta().timestamp_source, TimestampSource::None);
        assert_eq!(record.queue(), None);

        let record = reader.next_packet().unwrap().unwrap();
        assert_eq!(record.packet().meta().drops_before, 4);
        assert!(reader.next_packet().unwrap().is_none());
    }
}

#[test]
fn sections_and_interfaces_may_differ_where_libpcap_wants_them_alike() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = CaptureWriter::new(Order::Little);
    file.section()
        .interface(1, 0, &[(2, b"eth0")])
        .enhanced(0, 1, b"ethernet", &[])
        .interface(101, 64, &[(2, b"tun0"), (9, &[0x80 | 10])])
        .enhanced(1, 512, b"raw", &[]);
    let mut later = CaptureWriter::new(Order::Big);
    later.section().interface(113, 0, &[(2, b"any"), (14, &7u64.to_be_bytes())]).enhanced(
        0,
        1,
        b"cooked",
        &[],
    );
    file.raw(&later.bytes);
    let path = kept(folder.path(), &file.bytes);
    assert_eq!(libpcap(&path).packets.len(), 1, "libpcap stops at tun0");

    let mut reader = Reader::open(&path).unwrap();
    assert_eq!(reader.interfaces().len(), 1, "the others come later");
    let mut seen = Vec::new();
    while let Some(record) = reader.next_packet().unwrap() {
        let packet = record.packet();
        let (number, time) = (packet.meta().interface, packet.meta().timestamp_ns);
        seen.push((number, time, packet.head().to_vec()));
    }
    let expected = [
        (0, 1000, b"ethernet".to_vec()),
        (1, 500_000_000, b"raw".to_vec()),
        (2, 7_000_001_000, b"cooked".to_vec()),
    ];
    assert_eq!(seen, expected);
    let link_types: Vec<u16> = reader.interfaces().iter().map(|i| i.link_type).collect();
    assert_eq!(link_types, [1, 101, 113], "a later section's numbers go on");
}

#[test]
fn a_pcapng_file_that_makes_no_sense_is_an_error_after_what_does() {
    let folder = tempfile::tempdir().unwrap();
    type Build = fn(&mut CaptureWriter);
    let rows: [(&str, usize, &str, Build); 8] = [
        ("no interface at all", 0, "describes no interface", |_| ()),
        ("a packet before any interface", 0, "not described", |f| {
            f.enhanced(0, 0, b"x", &[]);
        }),
        ("a packet of an unknown interface", 1, "not described", |f| {
            f.interface(1, 0, &[]).enhanced(0, 0, b"x", &[]).enhanced(1, 0, b"x", &[]);
        }),
        ("interfaces do not outlive their section", 1, "not described", |f| {
            f.interface(1, 0, &[]).enhanced(0, 0, b"x", &[]).section();
            f.enhanced(0, 0, b"x", &[]);
        }),
        ("more bytes than the interface captures", 1, "captures 4", |f| {
            f.interface(1, 4, &[]).enhanced(0, 0, b"four", &[]).enhanced(0, 0, b"fives", &[]);
        }),
        ("a block longer than libpcap allows", 0, "16777216", |f| {
            f.interface(1, 0, &[]).u32(6).u32((16 << 20) + 4);
        }),
        ("a block too short for its framing", 0, "there can be 12", |f| {
            f.interface(1, 0, &[]).u32(6).u32(8).u32(8);
        }),
        ("two lengths that differ", 0, "by its end", |f| {
            f.interface(1, 0, &[]).u32(99).u32(12).u32(16);
        }),
    ];
    for (why, packets, reason, build) in rows {
        let mut file = CaptureWriter::new(Order::Little);
        build(file.section());
        let path = kept(folder.path(), &file.bytes);
        let (ours, theirs) = (ours(&path), libpcap(&path));
        assert_eq!(ours.packets.len(), packets, "{why}");
        assert_eq!(ours.packets, theirs.packets, "{why}");
        let error = ours.error.unwrap_or_default();
        assert!(error.contains(reason), "{why}: {error}");
        assert!(theirs.error.is_some(), "{why}");
    }
}

#[test]
fn headers_in_the_order_of_a_host_are_turned_as_libpcap_turns_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut chance = Chance(7);
    for (name, link) in [
        ("Ethernet has none", 1),
        ("cooked", 113),
        ("cooked, second version", 276),
        ("OpenBSD's packet filter", 117),
        ("USB", 189),
        ("USB, memory-mapped", 220),
        ("netfilter's log", 239),
    ] {
        for order in [Order::Little, Order::Big] {
            let mut file = CaptureWriter::new(order);
            file.pcap_header(0xa1b2_c3d4, (2, 4), 0, link);
            for _ in 0..400 {
                let captured = chance.below(180);
                let mut data: Vec<u8> = (0..captured).map(|_| chance.below(256) as u8).collect();
                let wire = likely(link, order, &mut data, &mut chance);
                file.u32(0).u32(0).u32(captured as u32).u32(wire).raw(&data);
            }
            let path = kept(folder.path(), &file.bytes);
            let (ours, theirs) = (ours(&path), libpcap(&path));
            assert_eq!(ours.packets.len(), 400, "{name}");
            for (i, (ours, theirs)) in ours.packets.iter().zip(&theirs.packets).enumerate() {
                assert_eq!(ours, theirs, "{name}: packet {i}");
            }
        }
    }
}

/// Makes random bytes resemble a link type's header now and then; returns the length on the
/// wire.
fn likely(link: u32, order: Order, data: &mut [u8], chance: &mut Chance) -> u32 {
    let number = |n: u32| CaptureWriter::new(order).u32(n).bytes.clone();
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = data.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    let mut wire = chance.below(200) as u32;
    match link {
        113 => put(14, &[0, 11 + chance.below(4) as u8]),
        276 => put(0, &[0, 11 + chance.below(4) as u8]),
        117 => put(0, &[40 + chance.below(24) as u8]),
        189 | 220 => {
            let (count, requested) = (chance.below(6) as u32, chance.below(100) as u32);
            put(8, &[b'C', chance.below(2) as u8, 0x81]);
            put(15, &[chance.below(2) as u8]);
            put(32, &number(requested));
            put(60, &number(count));
            for i in 0..6 {
                put(64 + i * 16 + 4, &number(chance.below(90) as u32));
                put(64 + i * 16 + 8, &number(chance.below(30) as u32));
            }
            if chance.below(4) > 0 {
                wire = 64 + count * 16 + requested;
            }
        }
        239 => {
            put(1, &[0]);
            for at in [4, 12, 32, 64] {
                let length = chance.below(40) as u16;
                put(at, &CaptureWriter::new(order).u16(length).bytes.clone());
            }
            put(4, &CaptureWriter::new(order).u16(8).bytes.clone());
        }
        _ => {}
    }
    wire
}
