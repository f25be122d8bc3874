//! The times at which packets are sent.

use std::time::Duration;

use sluicegate_traffic::rate::Unit;
use sluicegate_traffic::source::{PacketSource, Replay, ReplayOptions, Tempo};

use crate::support::*;

const BEGUN: u64 = 1_000_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// Returns the number of packets of a file sent at each of these times after the beginning.
fn sent_at(recorded: &[u64], tempo: Tempo, rounds: u64, times: &[u64]) -> Vec<u32> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pcap");
    let packets: Vec<_> = recorded.iter().map(|ns| (*ns, packet(1, 1, 100))).collect();
    pcap(&file, 1, &packets);
    let sent = |keep_bytes| -> Vec<u32> {
        let mut worker =
            only(&file, &ReplayOptions { rounds, keep_bytes, ..options(tempo.clone()) });
        times.iter().map(|ns| worker.at(BEGUN + ns).packets).collect()
    };
    let from_memory = sent(1 << 30);
    assert_eq!(from_memory, sent(0), "read anew in each round");
    from_memory
}

#[test]
fn packets_are_sent_when_they_are_due() {
    let base = 1_700_000_000 * SECOND;
    let even = [base, base + 1000, base + 2000, base + 3000];
    for (sentence, recorded, tempo, times, sent) in [
        (
            "as recorded",
            &even[..],
            Tempo::Recorded(1.0),
            &[0, 999, 1000, 2999, 3000][..],
            &[1, 0, 1, 1, 1][..],
        ),
        ("twice as fast", &even, Tempo::Recorded(2.0), &[0, 499, 500, 1500], &[1, 0, 1, 2]),
        ("at a tenth", &even, Tempo::Recorded(0.1), &[0, 9_999, 10_000, 30_000], &[1, 0, 1, 2]),
        ("at a rate", &even, paced(1e6, Unit::Packet), &[0, 999, 1000, 3000], &[1, 0, 1, 2]),
        (
            "at a rate of bits: 992 a packet, with what is between",
            &even,
            paced(1.25e8, Unit::BYTE_OF_LAYER1),
            &[0, 991, 992, 1984, 2976],
            &[1, 0, 1, 1, 1],
        ),
        ("at top speed", &even, Tempo::Top, &[0], &[4]),
        (
            "what goes back in time is due with what is before it",
            &[base, base + 5000, base + 100, base + 6000],
            Tempo::Recorded(1.0),
            &[0, 4999, 5000, 5999, 6000],
            &[1, 0, 2, 0, 1],
        ),
        (
            "an hour is waited for",
            &[base, base + 3600 * SECOND],
            Tempo::Recorded(1.0),
            &[0, 3599 * SECOND, 3600 * SECOND],
            &[1, 0, 1],
        ),
        (
            "a late packet makes none after it late",
            &even,
            Tempo::Recorded(1.0),
            &[0, 1900, 2000, 2999, 3000],
            &[1, 1, 1, 0, 1],
        ),
    ] {
        assert_eq!(sent_at(recorded, tempo, 1, times), sent, "{sentence}");
    }
}

#[test]
fn rounds_follow_at_the_mean_gap() {
    let recorded = [7 * SECOND, 7 * SECOND + 100, 7 * SECOND + 3000];
    let times = [0, 100, 3000, 4499, 4500, 4600, 7500, 8999, 9000];
    let sent = sent_at(&recorded, Tempo::Recorded(1.0), 0, &times);
    assert_eq!(sent, [1, 1, 1, 0, 1, 1, 1, 0, 1]);
    // At a rate, the gap between rounds equals that between packets.
    let times = [0, 1000, 2000, 2999, 3000, 4000];
    assert_eq!(sent_at(&recorded, paced(1e6, Unit::Packet), 2, &times), [1, 1, 1, 0, 1, 1]);
}

#[test]
fn a_longer_gap_becomes_the_longest_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pcap");
    let recorded =
        [7 * SECOND, 7 * SECOND + 100, 7000 * SECOND, 7000 * SECOND + 200, 9000 * SECOND];
    let packets: Vec<_> = recorded.iter().map(|ns| (*ns, packet(1, 1, 100))).collect();
    pcap(&file, 1, &packets);
    for (sentence, speed, times) in [
        ("as recorded", 1.0, [100, 1100, 1300, 2300]),
        ("at double speed, as sent", 2.0, [50, 1050, 1150, 2150]),
    ] {
        let max_gap = Some(Duration::from_nanos(1000));
        for keep_bytes in [0, 1 << 30] {
            let tempo = Tempo::Recorded(speed);
            let options = ReplayOptions { max_gap, keep_bytes, rounds: 2, ..options(tempo) };
            let mut worker = only(&file, &options);
            assert_eq!(worker.at(BEGUN).packets, 1, "{sentence}: the first");
            for ns in times {
                assert_eq!(worker.at(BEGUN + ns - 1).packets, 0, "{sentence}: before {ns}");
                assert_eq!(worker.at(BEGUN + ns).packets, 1, "{sentence}: at {ns}");
            }
            // The file's mean gap, in which the longest ones count with their new length.
            let next = times[3] + times[3] / 4;
            assert_eq!(worker.at(BEGUN + next - 1).packets, 0, "{sentence}: the next round");
            assert_eq!(worker.at(BEGUN + next).packets, 1, "{sentence}: the next round");
        }
    }
}

#[test]
fn one_packet_comes_once_a_second() {
    let times = [0, SECOND - 1, SECOND, 2 * SECOND];
    assert_eq!(sent_at(&[5], Tempo::Recorded(1.0), 0, &times), [1, 0, 1, 1]);
    let times = [0, SECOND / 4 - 1, SECOND / 4];
    assert_eq!(sent_at(&[5, 5], Tempo::Recorded(4.0), 0, &times), [2, 0, 2]);
}

#[test]
fn several_workers_keep_one_timetable() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mix.pcap");
    let recorded = mix(1000);
    pcap(&file, 1, &recorded);
    let bytes = |until: usize| recorded[..until].iter().map(|(_, b)| b.len() as u64).sum::<u64>();
    for (sentence, tempo, ns) in [
        ("as recorded", Tempo::Recorded(1.0), 499_000),
        ("at a rate, of all together", paced(2e6, Unit::Packet), 499 * 500),
        ("at a rate of bits, of all together", paced(1e9, Unit::BYTE_OF_LAYER2), bytes(499)),
    ] {
        let sources = Replay::open(&name(&file), &options(tempo), 3).unwrap();
        let mut workers: Vec<_> = sources.into_iter().map(ReplayWorker::of).collect();
        for (ready, worker) in workers.iter_mut().enumerate() {
            let at_once = worker.at(BEGUN).packets;
            assert_eq!(at_once, 0, "{sentence}: {ready} waits for the others");
            if ready == 1 {
                break;
            }
        }
        // The last worker to arrive starts the replay, and sends only its own packets.
        let first = workers[2].at(BEGUN).packets;
        assert!(first <= 1, "{sentence}");
        let half: u32 = workers.iter_mut().map(|worker| worker.at(BEGUN + ns).packets).sum();
        assert_eq!(first + half, 500, "{sentence}");
    }
}

#[test]
fn two_targets_keep_one_timetable() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.pcap");
    let there = packet(5000, 1, 100);
    let mut back = there.clone();
    back[26..34].rotate_left(4);
    back[34..38].rotate_left(2);
    let recorded = [&there, &back, &back, &there];
    let times = (1..).map(|number| number * 1000);
    pcap(&file, 1, &times.zip(recorded.map(Clone::clone)).collect::<Vec<_>>());
    for (sentence, tempo, apart) in [
        ("as recorded", Tempo::Recorded(1.0), 1000),
        ("at a rate, of both together", paced(1e4, Unit::Packet), 100_000),
    ] {
        let options = options(tempo);
        let sources = Replay::open_sides(&name(&file), [&options; 2], &[], [1, 1]).unwrap();
        let [mut client, mut server] =
            sources.map(|mut sources| ReplayWorker::of(sources.remove(0)));
        assert_eq!(client.at(BEGUN).packets, 0, "{sentence}: it waits for the other");
        assert_eq!(server.at(BEGUN).packets, 0, "{sentence}: the client's is first");
        assert_eq!(client.at(BEGUN).packets, 1, "{sentence}");
        for (number, sent) in [(1, [0, 1]), (2, [0, 1]), (3, [1, 0])] {
            let mut both = |ns| [client.at(ns).packets, server.at(ns).packets];
            let due = BEGUN + number * apart;
            assert_eq!(both(due - 1), [0, 0], "{sentence}: before packet {number}");
            assert_eq!(both(due), sent, "{sentence}: packet {number}");
        }
    }
}

#[test]
fn lateness_is_counted_when_packets_are_handed_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pcap");
    let packets: Vec<_> = (0..100).map(|n| (n * 1000, packet(1, n as u32, 60))).collect();
    pcap(&file, 1, &packets);
    let mut worker = only(&file, &options(Tempo::Recorded(1.0)));
    for n in 0..100 {
        let filled = worker.source.fill(&mut worker.queue.tx_mut(), 64, BEGUN + n * 1000).unwrap();
        assert_eq!(filled.packets, 1);
        worker.queue.sync_tx().unwrap();
        worker.source.handed_over(BEGUN + n * 1000 + 700);
    }
    let late = worker.source.lateness();
    assert_eq!(late.count(), 100);
    let [half, most] = [0.5, 1.0].map(|share| late.percentile(share).unwrap());
    assert!(half == most && (700..800).contains(&half), "{half} and {most}");
}
