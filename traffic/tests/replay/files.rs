//! Replay of files: real captures, other link types, packets too long to send, and changed addresses.

use std::sync::Arc;

use sluicegate::file::read::Reader;
use sluicegate_traffic::rewrite::{Rewrite, Rule};
use sluicegate_traffic::source::{PacketSource, Replay, ReplayOptions, Tempo};

use crate::real_captures::real_captures;
use crate::support::*;

/// Makes a pcapng file with an interface for each link type, and packets with interface numbers.
fn pcapng(link_types: &[u16], packets: &[(u32, &[u8])]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let bytes = 12 + body.len().next_multiple_of(4) as u32;
        file.extend(kind.to_le_bytes());
        file.extend(bytes.to_le_bytes());
        file.extend(body);
        file.resize(file.len().next_multiple_of(4), 0);
        file.extend(bytes.to_le_bytes());
    };
    block(0x0a0d_0d0a, b"\x4d\x3c\x2b\x1a\x01\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff");
    for link_type in link_types {
        block(1, &[&link_type.to_le_bytes()[..], &[0; 6]].concat());
    }
    for (interface, bytes) in packets {
        let length = bytes.len() as u32;
        let head = [*interface, 0, 0, length, length].map(u32::to_le_bytes);
        block(6, &[head.as_flattened(), bytes].concat());
    }
    file
}

#[test]
fn packets_of_other_link_types_are_left_out_and_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.pcapng");
    let (one, raw) = (packet(1, 1, 60), [0x45; 40]);
    let packets: &[(u32, &[u8])] = &[(0, &raw), (1, &one), (0, &raw), (1, &one), (0, &raw)];
    std::fs::write(&file, pcapng(&[101, 1], packets)).unwrap();
    for workers in [1, 3] {
        let sources = Replay::open(&name(&file), &options(Tempo::Top), workers).unwrap();
        let mut workers: Vec<_> = sources.into_iter().map(ReplayWorker::of).collect();
        for now_ns in 1..3 {
            workers.iter_mut().for_each(|worker| _ = worker.at(now_ns));
        }
        let sent: u64 = workers.iter_mut().map(|w| w.queue.stats().unwrap().sent).sum();
        let skipped: u64 = workers.iter().map(|w| w.source.skipped().other_link_type).sum();
        assert_eq!((sent, skipped), (2, 3), "of {} workers", workers.len());
        assert!(workers.iter_mut().all(|worker| worker.source.failure().is_none()));
    }
}

#[test]
fn a_file_without_ethernet_is_refused_with_its_link_type() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("raw.pcap");
    let raw: &[u8] = &[0x45; 40];
    let both = pcapng(&[101, 113], &[(0, raw), (1, raw)]);
    let plain = {
        pcap(&file, 101, &[(0, raw.to_vec())]);
        std::fs::read(&file).unwrap()
    };
    for (bytes, what) in [(plain, "101 (raw IP)"), (both, "113 (Linux cooked)")] {
        std::fs::write(&file, bytes).unwrap();
        let error = Replay::open(&name(&file), &options(Tempo::Top), 1).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("1 (Ethernet)"), "{error}");
    }
}

#[test]
fn packets_of_other_link_types_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("long.pcap");
    let mut tagged = packet(1, 3, 118);
    tagged[12..14].copy_from_slice(&[0x81, 0]);
    let mut packets =
        vec![packet(1, 0, 114), packet(1, 1, 115), packet(1, 2, 60), tagged, packet(1, 4, 60)];
    packets.extend([0, 1, 13, 14].map(|bytes| packets[4][..bytes].to_vec()));
    packets.remove(4);
    let packets: Vec<_> = packets.into_iter().map(|bytes| (0, bytes)).collect();
    pcap(&file, 1, &packets);
    let max_bytes = Some(114);
    let mut worker = only(&file, &ReplayOptions { max_bytes, ..options(Tempo::Top) });
    assert_eq!(worker.at(1).packets, 4, "a tag does not count, and a header alone is enough");
    let skipped = worker.source.skipped();
    assert_eq!((skipped.too_long, skipped.too_short, skipped.packets()), (1, 3, 4));
    let mut whole = only(&file, &options(Tempo::Top));
    assert_eq!(whole.at(1).packets, 8, "a file takes all");
}

#[test]
fn real_captures_are_sent_byte_by_byte() {
    let folder = tempfile::tempdir().unwrap();
    let mut tried = 0;
    let captures = real_captures();
    for path in &captures {
        let Ok(reader) = Reader::open(path) else { continue };
        let ethernet = reader.interfaces().iter().all(|interface| interface.link_type == 1);
        if !ethernet {
            assert!(Replay::open(&name(path), &options(Tempo::Top), 1).is_err(), "{path:?}");
            continue;
        }
        let (packets, good) = read(path);
        for workers in [1, 3] {
            let all = sent(folder.path(), path, &options(Tempo::Top), workers);
            let bytes = |packets: &[Recorded]| -> Vec<Vec<u8>> {
                packets.iter().map(|(_, bytes)| bytes.clone()).collect()
            };
            let mut came: Vec<_> = all.iter().flat_map(|(packets, _)| bytes(packets)).collect();
            let mut there = bytes(&packets);
            if workers > 1 {
                came.sort();
                there.sort();
            }
            assert!(came == there, "{path:?}, {workers} workers");
            assert!(all.iter().all(|(_, failure)| failure.is_none() == good), "{path:?}");
        }
        tried += 1;
    }
    assert!(captures.is_empty() || tried > 100, "{tried}");
}

#[test]
fn every_packet_gets_its_other_addresses_once_and_in_every_round() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mix.pcap");
    let recorded = mix(600);
    pcap(&file, 1, &recorded);
    // Rules applied twice would give other addresses.
    let rules = ["198.18.0.2=198.18.0.3", "198.18.0.3=198.18.0.4", "198.18.0.1=198.18.0.2"];
    let rewrite: Rewrite = rules.iter().map(|rule| rule.parse::<Rule>().unwrap()).collect();
    let rewrite = Arc::new(rewrite);
    for (workers, keep_bytes) in [(1, 0), (3, 0), (1, 1 << 30), (3, 1 << 30)] {
        let rewrite = Arc::clone(&rewrite);
        let options = ReplayOptions { rewrite, rounds: 2, keep_bytes, ..options(Tempo::Top) };
        let all = sent(folder.path(), &file, &options, workers);
        let packets: Vec<_> = all.into_iter().flat_map(|(packets, _)| packets).collect();
        assert_eq!(packets.len(), 1200);
        for (_, bytes) in packets {
            assert_eq!(
                (&bytes[26..30], &bytes[30..34]),
                (&[198, 18, 0, 2][..], &[198, 18, 0, 3][..])
            );
        }
    }
}
