//! Several workers send each packet once, and those of a flow in order.

use std::collections::HashMap;

use etherparse::PacketBuilder;
use sluicegate_traffic::source::{Replay, ReplayOptions, Tempo};

use crate::support::*;

/// Returns the source port and number of each packet.
fn numbers(packets: &[Recorded]) -> Vec<(u16, u32)> {
    let number = |(_, bytes): &Recorded| {
        let port = u16::from_be_bytes([bytes[34], bytes[35]]);
        (port, u32::from_be_bytes([bytes[42], bytes[43], bytes[44], bytes[45]]))
    };
    packets.iter().map(number).collect()
}

#[test]
fn flows_are_kept_together_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mix.pcap");
    let recorded = mix(3000);
    pcap(&file, 1, &recorded);
    for workers in [1, 2, 3, 5] {
        let all = sent(folder.path(), &file, &options(Tempo::Top), workers);
        let mut owner = HashMap::new();
        for (worker, (packets, failure)) in all.iter().enumerate() {
            assert_eq!(*failure, None);
            let numbers = numbers(packets);
            assert!(numbers.is_sorted_by_key(|(_, number)| *number), "{workers} workers");
            for (flow, _) in numbers {
                assert_eq!(*owner.entry(flow).or_insert(worker), worker, "flow {flow}");
            }
        }
        let mut together: Vec<_> = all.into_iter().flat_map(|(packets, _)| packets).collect();
        together.sort();
        assert_eq!(together, recorded, "{workers} workers");
    }
}

#[test]
fn a_count_is_of_the_file_s_first_packets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mix.pcap");
    pcap(&file, 1, &mix(100));
    for (workers, rounds, count) in [(1, 1, 30), (3, 1, 30), (3, 0, 250), (2, 1, 500)] {
        for keep_bytes in [0, 1 << 30] {
            let packets = Some(count);
            let options = ReplayOptions { rounds, packets, keep_bytes, ..options(Tempo::Top) };
            let all = sent(folder.path(), &file, &options, workers);
            let mut numbers: Vec<_> =
                all.iter().flat_map(|(packets, _)| numbers(packets)).map(|(_, n)| n).collect();
            numbers.sort();
            let most = if rounds == 1 { count.min(100) } else { count };
            let mut expected: Vec<_> = (0..most as u32).map(|n| n % 100).collect();
            expected.sort();
            assert_eq!(numbers, expected, "{workers} workers, {rounds} rounds, {count}");
        }
    }
}

#[test]
fn every_round_is_the_same_from_memory_and_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mix.pcap");
    let recorded = mix(3000);
    pcap(&file, 1, &recorded);
    let on_disk = file.metadata().unwrap().len() as usize;
    for workers in [1, 3] {
        let rounds = |rounds, keep_bytes| {
            let options = ReplayOptions { rounds, keep_bytes, ..options(Tempo::Top) };
            let all = sent(folder.path(), &file, &options, workers);
            all.into_iter().map(|(packets, _)| packets).collect::<Vec<_>>()
        };
        let three: Vec<_> = rounds(1, 0).into_iter().map(|one| vec![one; 3].concat()).collect();
        for (sentence, keep_bytes) in [
            ("read anew", 0),
            ("from memory, in several pieces", 1 << 30),
            ("it is longer in memory than it looked on the disk", on_disk),
        ] {
            // Not `assert_eq!`, whose message would be very long.
            assert!(rounds(3, keep_bytes) == three, "{sentence}, {workers} workers");
        }
    }
}

#[test]
fn all_workers_send_up_to_a_break_and_report_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broken.pcap");
    let recorded = mix(500);
    pcap(&file, 1, &recorded);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    let offset = bytes.len() - recorded[499].1.len() - 16;
    for (workers, rounds) in [(1, 1), (3, 1), (1, 0), (3, 5)] {
        let options = ReplayOptions { rounds, ..options(Tempo::Top) };
        let all = sent(folder.path(), &file, &options, workers);
        let packets: usize = all.iter().map(|(packets, _)| packets.len()).sum();
        assert_eq!(packets, 499, "{workers} workers, {rounds} rounds");
        let failures: Vec<_> = all.into_iter().filter_map(|(_, failure)| failure).collect();
        assert!(!failures.is_empty());
        for failure in failures {
            assert!(failure.contains(&format!("at byte {offset}")), "{failure}");
        }
    }
}

/// Makes a conversation as a library that nobody here wrote makes it, in a round of a replay: a request and
/// its answer over IPv4 and IPv6.
fn conversation(round: u8) -> Vec<Recorded> {
    let (client, server) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let v4 = |host: u8| [198, 18, 0, host + round];
    let v6 = |host: u8| (0x2001_0db8_u128 << 96 | u128::from(host + round)).to_be_bytes();
    let payload = b"hello";
    let mut frames = vec![Vec::new(); 5];
    let there = || PacketBuilder::ethernet2(client, server);
    let back = || PacketBuilder::ethernet2(server, client);
    let built = [
        there().ipv4(v4(1), v4(2), 64).tcp(1000, 80, 7, 8).write(&mut frames[0], payload),
        back().ipv4(v4(2), v4(1), 64).tcp(80, 1000, 8, 9).write(&mut frames[1], payload),
        there().ipv6(v6(1), v6(2), 64).udp(1000, 53).write(&mut frames[2], payload),
        back().ipv6(v6(2), v6(1), 64).udp(53, 1000).write(&mut frames[3], payload),
        // To a group: only the source changes.
        there().ipv4(v4(1), [224, 0, 0, 251], 64).udp(5353, 5353).write(&mut frames[4], payload),
    ];
    built.into_iter().for_each(Result::unwrap);
    (1..).zip(frames).collect()
}

#[test]
fn each_round_has_its_own_addresses_and_right_checksums() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pcap");
    pcap(&file, 1, &conversation(0));
    let rounds: Vec<Recorded> = (0..4).flat_map(conversation).collect();
    for keep_bytes in [0, 1 << 30] {
        for workers in [1, 2] {
            let options =
                ReplayOptions { rounds: 4, unique: true, keep_bytes, ..options(Tempo::Top) };
            let all = sent(folder.path(), &file, &options, workers);
            let mut all: Vec<_> = all.into_iter().flat_map(|(packets, _)| packets).collect();
            if workers > 1 {
                all.sort();
            }
            let mut expected = rounds.clone();
            if workers > 1 {
                expected.sort();
            }
            assert_eq!(all, expected, "{workers} workers, {keep_bytes} bytes in memory");
        }
    }
}

#[test]
fn two_targets_get_the_packets_of_clients_and_of_servers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pcap");
    let recorded = conversation(0);
    pcap(&file, 1, &recorded);
    let of = |numbers: &[usize]| numbers.iter().map(|n| recorded[*n].clone()).collect::<Vec<_>>();
    let (clients, servers) = (of(&[0, 2, 4]), of(&[1, 3]));
    for keep_bytes in [0, 1 << 30] {
        for workers in [1, 2] {
            let options = ReplayOptions { rounds: 3, keep_bytes, ..options(Tempo::Top) };
            let sources =
                Replay::open_sides(&name(&file), [&options; 2], &[], [workers; 2]).unwrap();
            let sources: Vec<Replay> = sources.into_iter().flatten().collect();
            let mut all = results(folder.path(), sources).into_iter().map(|(packets, _)| packets);
            for side in [&clients, &servers] {
                let mut came: Vec<_> = all.by_ref().take(workers as usize).flatten().collect();
                let mut expected = vec![side.clone(); 3].concat();
                came.sort();
                expected.sort();
                assert_eq!(came, expected, "{workers} workers, {keep_bytes} bytes in memory");
            }
        }
    }
}
