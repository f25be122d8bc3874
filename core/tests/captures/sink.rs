//! A capture file as a sink: what goes in is what other readers find.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use sluicegate::file::read::Reader;
use sluicegate::forward::forward;
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::{Direction, Meta, Packet};

use crate::child;
use crate::oracle::tcpdump;
use crate::real_captures::real_captures;

fn open(name: &str, usage: Directions) -> sluicegate::Result<Queue> {
    let options = OpenOptions { usage, ..OpenOptions::default() };
    Port::open(&name.parse()?, &options).map(|mut port| port.queues.remove(0))
}

fn sink(path: &Path, options: &str) -> Queue {
    open(&format!("pcap:{}{options}", path.display()), Directions::Send).unwrap()
}

/// Metadata of which only the time is known.
fn at(timestamp_ns: u64) -> Meta {
    Meta { timestamp_ns, ..Meta::default() }
}

/// Moves all of a source to a sink.
fn pass(from: &mut Queue, to: &mut Queue) {
    loop {
        from.sync_rx().unwrap();
        to.describe_sent(from.interfaces()).unwrap();
        forward(from.rx_mut(), to.tx_mut());
        to.sync_tx().unwrap();
        if from.is_finished() && from.rx().available() == 0 {
            return;
        }
    }
}

fn read(path: &Path) -> (Vec<u16>, Vec<(Meta, Vec<u8>)>) {
    let mut reader = Reader::open(path).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next_packet().unwrap() {
        packets.push((*record.packet().meta(), record.packet().head().to_vec()));
    }
    (reader.interfaces().iter().map(|interface| interface.link_type).collect(), packets)
}

#[test]
fn null_into_a_file_and_back_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    for name in
        ["a.pcap", "a.pcapng", "a", "a.pcap.zst", "a.pcapng.zst", "a.pcapng.lz4", "a.pcapng.gz"]
    {
        let path = folder.path().join(name);
        let mut null = open("null:?size=99", Directions::Receive).unwrap();
        let mut file = sink(&path, "");
        let before = now_ns();
        let mut n = 0;
        while n < 20_000 {
            null.sync_rx().unwrap();
            n += u64::from(forward(null.rx_mut(), file.tx_mut()).copied_packets);
            file.sync_tx().unwrap();
        }
        file.close_tx().unwrap();
        let stats = file.stats().unwrap();
        assert_eq!((stats.sent, stats.refused), (n, 0), "{name}");
        let (_, packets) = read(&path);
        assert_eq!(packets.len() as u64, n, "{name}");
        let mut last_ns = before;
        for (meta, bytes) in packets {
            assert_eq!((meta.wire_bytes, bytes.len()), (99, 99), "{name}");
            assert!((last_ns..=now_ns()).contains(&meta.timestamp_ns), "{name}: the time is now");
            last_ns = meta.timestamp_ns;
        }
        if [".zst", ".lz4", ".gz"].iter().any(|end| name.ends_with(end)) {
            continue;
        }
        let Some((link_type, theirs)) = tcpdump(&path, "nano", 1) else {
            eprintln!("{name} not compared: there is no tcpdump");
            continue;
        };
        assert_eq!((link_type, theirs.len() as u64), (1, n), "{name}");
    }
}

#[test]
fn every_sample_passes_through_a_file_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.pcapng");
    for sample in real_captures() {
        let (link_types, expected) = read(&sample);
        let mut from = open(&format!("pcap:{}", sample.display()), Directions::Receive).unwrap();
        let mut to = sink(&path, "");
        pass(&mut from, &mut to);
        to.close_tx().unwrap();
        assert_eq!(to.stats().unwrap().sent, expected.len() as u64, "{}", sample.display());
        let (copied_types, copied) = read(&path);
        assert_eq!(copied_types, link_types, "{}", sample.display());
        assert_eq!(copied.len(), expected.len(), "{}", sample.display());
        for ((meta, bytes), (old, old_bytes)) in copied.iter().zip(&expected) {
            assert!(bytes == old_bytes, "{}", sample.display());
            // A packet without a time has got one; what was received is not said apart from
            // what nobody knows.
            assert!(meta.timestamp_ns == old.timestamp_ns || old.timestamp_ns == 0);
            assert_eq!(meta.wire_bytes, old.wire_bytes.max(bytes.len() as u32));
            assert_eq!(meta.interface, old.interface);
            assert_eq!(meta.drops_before, old.drops_before, "{}", sample.display());
            assert_eq!(meta.direction == Direction::Out, old.direction == Direction::Out);
        }
    }
}

#[test]
fn packets_over_many_slots_and_cut_ones_are_written_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.pcapng");
    let longest: Vec<u8> = (0..262_144u32).map(|i| (i / 7) as u8).collect();
    for (options, kept) in [("", 262_144), ("?snaplen=5000", 5000), ("?slots=129", 262_144)] {
        let mut file = sink(&path, options);
        let mut meta = at(5);
        meta.wire_bytes = 300_000;
        let lengths = [0, 1, 2047, 2048, 2049, 65_535, 65_536, 262_144];
        for length in lengths {
            while !file.tx_mut().push(&Packet::new(&meta, &longest[..length])) {
                file.sync_tx().unwrap();
            }
        }
        file.close_tx().unwrap();
        let (_, packets) = read(&path);
        assert_eq!(packets.len(), lengths.len());
        for ((meta, bytes), length) in packets.iter().zip(lengths) {
            assert!(bytes == &longest[..length.min(kept)], "{options}: {length}");
            assert_eq!((meta.timestamp_ns, meta.wire_bytes), (5, 300_000));
        }
    }
}

#[test]
fn a_packet_built_in_a_slot_that_was_used_before_has_nothing_of_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcapng");
    let mut file = sink(&path, "?slots=129");
    let mut old = at(5);
    (old.wire_bytes, old.drops_before) = (900, 7);
    for round in 0..300 {
        let mut tx = file.tx_mut();
        if round < 129 {
            assert!(tx.push(&Packet::new(&old, b"old")));
        } else {
            let at = tx.head();
            tx.buffer_mut(at)[..3].copy_from_slice(b"new");
            tx.set_bytes(at, 3, false);
            tx.release(1);
        }
        assert_eq!(file.sync_tx().unwrap(), 1);
    }
    file.close_tx().unwrap();
    for (meta, _) in read(&path).1.iter().filter(|(_, bytes)| bytes == b"new") {
        assert!(meta.timestamp_ns > 5 && meta.wire_bytes == 3 && meta.drops_before == 0);
    }
}

#[test]
fn a_packet_waits_for_its_last_piece() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcap");
    let mut file = sink(&path, "?slots=129");
    let mut give = |bytes: u16, continues| {
        let mut tx = file.tx_mut();
        let at = tx.head();
        tx.set_bytes(at, bytes, continues);
        tx.release(1);
        file.sync_tx().unwrap()
    };
    assert_eq!([give(100, true), give(200, true), give(300, false)], [0, 0, 3]);
    assert_eq!(give(1, false), 1);
    let endless: u32 = (0..128).map(|_| give(2000, true)).sum();
    assert_eq!(endless, 128, "no ring holds the rest: it is let go");
    assert_eq!(give(2, true), 0);
    file.close_tx().unwrap();
    let stats = file.stats().unwrap();
    assert_eq!((stats.sent, stats.refused), (2, 2));
    assert_eq!(read(&path).1.iter().map(|(_, b)| b.len()).collect::<Vec<_>>(), [600, 1]);
    assert_eq!(file.tx_mut().available(), 128, "the ring is free again");
}

#[test]
fn when_nothing_follows_a_packet_reaches_the_file_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.pcap", "a.pcapng.zst", "a.pcapng.lz4", "a.pcap.gz"] {
        let path = folder.path().join(name);
        let mut file = sink(&path, "");
        assert!(file.tx_mut().push(&Packet::new(&Meta::default(), &[7; 60])));
        let deadline = Instant::now() + Duration::from_secs(20);
        while file.stats().unwrap().sent == 0 {
            file.sync_tx().unwrap();
            assert!(Instant::now() < deadline, "{name}: it never comes");
        }
        drop(file);
        assert_eq!(read(&path).1.len(), 1, "{name}: a dropped queue completes its file");
    }
}

#[test]
fn a_full_disk_is_an_error_and_every_packet_is_counted() {
    let Ok(mut file) = open("pcap:/dev/full", Directions::Send) else {
        eprintln!("skipped: needs /dev/full; get it by mknod /dev/full c 1 7");
        return;
    };
    let mut failed = false;
    for _ in 0..5000 {
        assert!(file.tx_mut().push(&Packet::new(&Meta::default(), &[7; 60])), "it never jams");
        failed |= file.sync_tx().is_err();
    }
    assert!(failed);
    let error = file.close_tx().unwrap_err().to_string();
    assert!(error.contains("free some space"), "{error}");
    let stats = file.stats().unwrap();
    assert_eq!((stats.sent, stats.refused), (0, 5000));
}

#[test]
fn what_comes_after_the_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = sink(&folder.path().join("a.pcap"), "");
    file.close_tx().unwrap();
    assert!(file.tx_mut().push(&Packet::new(&Meta::default(), &[7; 60])));
    assert_eq!(file.sync_tx().unwrap(), 1);
    assert_eq!((file.stats().unwrap().sent, file.stats().unwrap().refused), (0, 1));
    file.close_tx().unwrap();
}

#[test]
fn an_interface_nobody_told_of_is_refused_and_a_second_link_type_in_pcap_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = sink(&folder.path().join("a.pcap"), "");
    let second = Meta { interface: 1, ..Meta::default() };
    for meta in [Meta::default(), second] {
        assert!(file.tx_mut().push(&Packet::new(&meta, &[7; 60])));
    }
    file.sync_tx().unwrap();
    let ethernet = file.interfaces().first().cloned();
    assert_eq!(ethernet, None, "nobody has said");
    let raw = sluicegate::port::Interface {
        name: "tun0".into(),
        link_type: 101,
        snaplen: 0,
        comment: String::new(),
    };
    let error = file.describe_sent(&[raw.clone(), raw]).unwrap_err().to_string();
    assert!(error.contains("use pcapng"), "{error}");
    file.close_tx().unwrap();
    assert_eq!((file.stats().unwrap().sent, file.stats().unwrap().refused), (1, 1));
}

#[test]
fn a_sink_that_makes_no_sense_is_refused_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pcap").display().to_string();
    for (name, usage, remedy) in [
        (format!("pcap:{file}"), Directions::Both, "another to send"),
        (format!("pcap:{file}?slots=128"), Directions::Send, "use 129 or more"),
        (format!("pcap:{file}?filter=ip"), Directions::Send, "filter where the packets come from"),
        (format!("pcap:{file}?snaplen=262145"), Directions::Send, "1 to 262144"),
        (format!("pcap:{file}/b.pcap"), Directions::Send, "create it first"),
        (format!("pcap:{}", folder.path().display()), Directions::Send, "name a file in it"),
    ] {
        let error = open(&name, usage).unwrap_err().to_string();
        assert!(error.contains(remedy), "{name}: {error}");
    }
}

/// Runs itself again with a pipe as standard output.
#[test]
fn standard_output_is_a_file_like_another() {
    const INSIDE: &str = "SLUICE_TEST_STANDARD_OUTPUT";
    if std::env::var_os(INSIDE).is_some() {
        let mut file = open("pcap:-", Directions::Send).unwrap();
        let meta = at(1);
        for _ in 0..3 {
            assert!(file.tx_mut().push(&Packet::new(&meta, b"packet")));
        }
        file.close_tx().unwrap();
        std::process::exit(0);
    }
    let inside = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sink::standard_output_is_a_file_like_another", "--nocapture"])
        .env(INSIDE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = child::end(inside);
    assert!(output.status.success());
    // The test harness has its say first.
    let start = output.stdout.windows(4).position(|four| four == [0x0a, 0x0d, 0x0d, 0x0a]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    std::fs::write(&path, &output.stdout[start..]).unwrap();
    assert_eq!(read(&path).1.len(), 3);
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64
}
