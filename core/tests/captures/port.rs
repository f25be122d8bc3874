//! A capture file as a port: the reader's packets in a ring's slots.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use flate2::write::GzEncoder;
use sluicegate::Error;
use sluicegate::file::read::Reader;
use sluicegate::port::{OpenOptions, Port, Queue};
use sluicegate::ring::{Meta, Readiness, Wait};

use crate::child;
use crate::oracle::tcpdump;
use crate::real_captures::real_captures;
use crate::writer::{CaptureWriter, Order};

fn open(path: &Path, options: &str) -> Queue {
    let name = format!("pcap:{}{options}", path.display());
    let mut port = Port::open(&name.parse().unwrap(), &OpenOptions::default()).unwrap();
    port.queues.remove(0)
}

/// Takes a queue's packets to its end, giving back a changing number of slots between syncs
/// and rewriting what it gives back.
fn drain(queue: &mut Queue) -> (Vec<(Meta, Vec<u8>)>, Option<Error>) {
    let mut packets = Vec::new();
    let mut scratch = Vec::new();
    let mut error = None;
    let mut in_ring = queue.rx().available();
    for round in 0u32.. {
        if queue.is_finished() && queue.rx().available() == 0 {
            break;
        }
        match queue.sync_rx() {
            Ok(new) => assert_eq!(queue.rx().available(), in_ring + new),
            Err(e) => assert!(error.replace(e).is_none(), "an error comes once"),
        }
        let mut left = match round % 4 {
            0 => 1,
            1 => queue.rx().available() / 2,
            _ => u32::MAX,
        };
        while left > 0 {
            let Some(packet) = queue.rx().packets().next() else {
                break;
            };
            packets.push((*packet.meta(), packet.contiguous(&mut scratch).to_vec()));
            let slots = packet.slots();
            let first = queue.rx().head();
            queue.rx_mut().bytes_mut(first).fill(0xee);
            queue.rx_mut().release(slots);
            left -= 1;
        }
        in_ring = queue.rx().available();
    }
    (packets, error)
}

fn read(path: &Path) -> Vec<(Meta, Vec<u8>)> {
    let mut reader = Reader::open(path).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next_packet().unwrap() {
        packets.push((*record.packet().meta(), record.packet().head().to_vec()));
    }
    packets
}

#[test]
fn every_sample_comes_out_of_the_ring_as_it_is_read() {
    for path in real_captures() {
        let expected = read(&path);
        for options in ["", "?slots=6", "?slots=7"] {
            let mut queue = open(&path, options);
            let (packets, error) = drain(&mut queue);
            assert!(error.is_none(), "{}{options}: {error:?}", path.display());
            assert!(packets == expected, "{}{options}", path.display());
            assert_eq!(queue.stats().unwrap().received, expected.len() as u64);
        }
    }
}

#[test]
fn a_snapshot_length_cuts_what_is_captured_and_nothing_else() {
    for path in real_captures().into_iter().step_by(20) {
        let mut queue = open(&path, "?snaplen=40");
        assert!((1..=40).contains(&queue.interfaces()[0].snaplen));
        let (cut, _) = drain(&mut queue);
        let mut expected = read(&path);
        expected.iter_mut().for_each(|(_, bytes)| bytes.truncate(40));
        assert!(cut == expected, "{}", path.display());
    }
}

fn pcap_header(snaplen: u32, link_type: u32) -> Vec<u8> {
    [0xa1b2_c3d4, 0x0004_0002, 0, 0, snaplen, link_type]
        .iter()
        .flat_map(|n: &u32| n.to_le_bytes())
        .collect()
}

fn pcap_record(seconds: u32, data: &[u8]) -> Vec<u8> {
    let length = data.len() as u32;
    let header = [seconds, 0, length, length];
    let header = header.iter().flat_map(|n| n.to_le_bytes());
    header.chain(data.iter().copied()).collect()
}

#[test]
fn a_large_file_passes_through_the_buffer_many_times() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large");
    let mut bytes = pcap_header(0, 1);
    for i in 0..4000u32 {
        // Up to the longest there can be, of five slots.
        let length = if i % 97 == 0 { 262_144 } else { i * 7919 % 3000 };
        bytes.extend(pcap_record(i, &vec![i as u8; length as usize]));
    }
    std::fs::write(&path, &bytes).unwrap();
    let (packets, error) = drain(&mut open(&path, "?slots=100"));
    assert!(error.is_none());
    let Some((link_type, expected)) = tcpdump(&path, "nano", 1) else {
        eprintln!("skipped: needs tcpdump; get it by scripts/setup.sh");
        return;
    };
    assert_eq!((link_type, packets.len()), (1, expected.len()));
    for ((meta, bytes), theirs) in packets.iter().zip(&expected) {
        assert_eq!(meta.timestamp_ns, theirs.timestamp_ns);
        assert!(*bytes == theirs.bytes);
    }
}

#[test]
fn an_error_comes_once_and_after_the_packets_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut");
    let mut bytes = pcap_header(0, 1);
    bytes.extend(pcap_record(1, b"whole"));
    bytes.extend(&pcap_record(2, b"cut short")[..20]);
    std::fs::write(&path, &bytes).unwrap();
    let (packets, error) = drain(&mut open(&path, ""));
    assert_eq!(packets.len(), 1);
    let error = error.unwrap();
    assert!(matches!(&error, Error::File { offset: 45, .. }), "{error}");
}

#[test]
fn a_packet_no_ring_of_that_size_can_hold_is_refused_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dbus");
    let mut bytes = pcap_header(0, 231);
    bytes.extend(pcap_record(1, &vec![1; 1 << 20]));
    std::fs::write(&path, &bytes).unwrap();
    let (packets, error) = drain(&mut open(&path, "?slots=17"));
    assert!(packets.is_empty());
    assert!(error.unwrap().to_string().contains("slots=18"));
    let (packets, error) = drain(&mut open(&path, "?slots=18"));
    assert!(error.is_none());
    assert_eq!(packets[0].1.len(), 1 << 20);
}

#[test]
fn a_file_that_is_not_there_or_no_capture_is_refused() {
    let missing = "pcap:/nonexistent/a.pcap".parse().unwrap();
    let error = Port::open(&missing, &OpenOptions::default()).unwrap_err();
    assert_eq!(error.errno(), Some(libc_enoent()));
    let folder = "pcap:/".parse().unwrap();
    assert!(Port::open(&folder, &OpenOptions::default()).is_err());
}

fn libc_enoent() -> i32 {
    nix::errno::Errno::ENOENT as i32
}

/// Waits until there is something; a test to which nothing comes fails.
fn wait(queue: &mut Queue, wait: Wait) {
    let ready = queue.wait_rx(wait, Duration::from_secs(20)).unwrap();
    assert_eq!(ready, Readiness::Ready);
}

/// A pipe's writing end, and a name for its reading end.
fn pipe() -> (File, File, String) {
    let (ours, theirs) = nix::unistd::pipe().unwrap();
    let name = format!("/proc/self/fd/{}", ours.as_raw_fd());
    (theirs.into(), ours.into(), name)
}

#[test]
fn a_pipe_gives_each_packet_as_it_arrives() {
    for how in [Wait::Sleep, Wait::Spin, Wait::default()] {
        let (mut pipe, reading_end, name) = pipe();
        pipe.write_all(&pcap_header(0, 1)).unwrap();
        let mut queue = open(Path::new(&name), "");
        drop(reading_end);
        assert_eq!(queue.sync_rx().unwrap(), 0, "nothing has come, and the call does not wait");
        let short = Duration::from_millis(2);
        assert_eq!(queue.wait_rx(how, short).unwrap(), Readiness::TimedOut);
        for i in 0..5 {
            let record = pcap_record(i, b"one packet");
            // Half a record is no packet yet.
            pipe.write_all(&record[..20]).unwrap();
            wait(&mut queue, how);
            assert_eq!(queue.sync_rx().unwrap(), 0);
            pipe.write_all(&record[20..]).unwrap();
            wait(&mut queue, how);
            assert_eq!(queue.sync_rx().unwrap(), 1);
            assert!(!queue.is_finished());
            if i % 2 == 0 {
                let n = queue.rx().available();
                queue.rx_mut().release(n);
            }
        }
        drop(pipe);
        wait(&mut queue, how);
        assert_eq!(queue.sync_rx().unwrap(), 0);
        assert!(queue.is_finished());
    }
}

#[test]
fn a_compressed_pipe_gives_what_has_been_flushed() {
    let mut zstd = zstd::Encoder::new(Vec::new(), 1).unwrap();
    flushed_packets_come(|bytes| {
        zstd.write_all(bytes).unwrap();
        zstd.flush().unwrap();
        std::mem::take(zstd.get_mut())
    });
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    flushed_packets_come(|bytes| {
        gzip.write_all(bytes).unwrap();
        gzip.flush().unwrap();
        std::mem::take(gzip.get_mut())
    });
}

/// Sends packets, each compressed and flushed by `pack`, and expects each before the next one is sent.
fn flushed_packets_come(mut pack: impl FnMut(&[u8]) -> Vec<u8>) {
    let (mut pipe, reading_end, name) = pipe();
    let mut send = |bytes: &[u8]| pipe.write_all(&pack(bytes)).unwrap();
    send(&pcap_header(0, 1));
    let mut queue = open(Path::new(&name), "");
    drop(reading_end);
    for i in 0..5 {
        send(&pcap_record(i, b"one packet"));
        let mut new = 0;
        while new == 0 {
            new = queue.sync_rx().unwrap();
            if new == 0 {
                wait(&mut queue, Wait::Sleep);
            }
        }
        assert_eq!(new, 1);
        queue.rx_mut().release(1);
    }
}

#[test]
fn stopped_receiving_is_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture");
    let mut bytes = pcap_header(0, 1);
    (0..20).for_each(|i| bytes.extend(pcap_record(i, b"packet")));
    std::fs::write(&path, &bytes).unwrap();
    let mut queue = open(&path, "?slots=6");
    assert_eq!(queue.sync_rx().unwrap(), 5);
    queue.stop_rx().unwrap();
    assert!(queue.is_finished());
    assert_eq!(queue.rx().packets().count(), 5, "packets that have come stay");
    queue.rx_mut().release(5);
    assert_eq!(queue.sync_rx().unwrap(), 0);
}

#[test]
fn interfaces_are_told_as_they_are_met() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture");
    let mut file = CaptureWriter::new(Order::Little);
    file.section();
    for link_type in 0..20 {
        file.interface(link_type, 64, &[]);
        file.enhanced(link_type.into(), 0, b"packet", &[]);
    }
    std::fs::write(&path, &file.bytes).unwrap();
    let mut queue = open(&path, "?slots=6&snaplen=50");
    assert_eq!(queue.interfaces().len(), 1);
    assert_eq!(queue.sync_rx().unwrap(), 5);
    assert_eq!(queue.interfaces().len(), 5);
    let (packets, error) = drain(&mut queue);
    assert!(error.is_none());
    assert_eq!(packets.len(), 20, "those that were in the ring too");
    for ((meta, _), number) in packets.iter().zip(0u16..) {
        let interface = &queue.interfaces()[meta.interface as usize];
        assert_eq!((interface.link_type, interface.snaplen), (number, 50));
    }
}

/// Runs itself again with a capture as standard input.
#[test]
fn standard_input_is_a_file_like_another() {
    const INSIDE: &str = "SLUICE_TEST_STANDARD_INPUT";
    if std::env::var_os(INSIDE).is_some() {
        let (packets, error) = drain(&mut open(Path::new("-"), ""));
        assert!(error.unwrap().to_string().starts_with("standard input: "));
        assert_eq!(packets.len(), 2);
        return;
    }
    let mut bytes = pcap_header(0, 1);
    (0..3).for_each(|i| bytes.extend(pcap_record(i, b"packet")));
    let mut inside = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "port::standard_input_is_a_file_like_another"])
        .env(INSIDE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = inside.stdin.take().unwrap();
    input.write_all(&bytes[..bytes.len() - 1]).unwrap();
    drop(input);
    assert!(child::end(inside).status.success());
}
