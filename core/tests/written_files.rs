//! What `file::write` writes, read back by programs and libraries that nobody here wrote:
//! capinfos, tshark, tcpdump, libpcap, zstd and lz4.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output as Ran, Stdio};
use std::time::Duration;

use proptest::prelude::*;
use sluicegate::Error;
use sluicegate::file::write::{
    Chunk, Encoder, EncoderConfig, InterfaceStats, Merger, Output, OutputConfig, Rotation,
};
use sluicegate::file::{Compression, Format};
use sluicegate::port::{Interface, LINKTYPE_ETHERNET};
use sluicegate::ring::{Direction, Meta, Packet};
use tempfile::TempDir;

const START_NS: u64 = 1_700_000_000_123_456_789;
const SECOND: u64 = 1_000_000_000;

/// A packet as it was pushed, or as somebody read it back.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    time_ns: u64,
    wire_bytes: u32,
    bytes: Vec<u8>,
}

/// `n` packets of changing length, 7,000,001 ns apart.
fn packets(n: u64) -> Vec<Seen> {
    (0..n)
        .map(|i| {
            let length = 14 + (i * 37 % 1200) as usize;
            let bytes: Vec<u8> = (0..length).map(|at| (at as u64 * 31 + i) as u8).collect();
            Seen {
                time_ns: START_NS + i * 7_000_001,
                wire_bytes: length as u32 + (i % 3) as u32,
                bytes,
            }
        })
        .collect()
}

fn meta(packet: &Seen) -> Meta {
    let mut meta = Meta::default();
    meta.timestamp_ns = packet.time_ns;
    meta.wire_bytes = packet.wire_bytes;
    meta
}

fn interface(name: &str, link_type: u16) -> Interface {
    Interface { name: name.into(), link_type, snaplen: 0, comment: "timestamps: software".into() }
}

fn encoder(config: &OutputConfig) -> Encoder {
    Encoder::new(&EncoderConfig {
        format: config.format,
        microseconds: config.microseconds,
        ..EncoderConfig::default()
    })
}

/// Writes packets through chunks of `chunk_bytes`.
fn put(output: &mut Output, encoder: &mut Encoder, packets: &[Seen], chunk_bytes: usize) {
    let mut chunk = encoder.chunk_of(chunk_bytes);
    for packet in packets {
        let meta = meta(packet);
        while !encoder.append(&mut chunk, &Packet::new(&meta, &packet.bytes)) {
            output.write(&chunk).unwrap();
            chunk.clear();
        }
    }
    output.write(&chunk).unwrap();
}

fn chunk_of(encoder: &mut Encoder, packets: &[Seen]) -> Chunk {
    let mut chunk = encoder.chunk();
    for packet in packets {
        assert!(encoder.append(&mut chunk, &Packet::new(&meta(packet), &packet.bytes)));
    }
    chunk
}

/// Whether the programs are there; says so if not.
fn have(tools: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for tool in tools {
        if !std::env::split_paths(&path).any(|directory| directory.join(tool).exists()) {
            eprintln!("skipped: {tool} is not installed");
            return false;
        }
    }
    true
}

fn run(command: &mut Command) -> Ran {
    let ran = command.output().unwrap();
    let complaint = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{command:?}: {complaint}");
    ran
}

fn text(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).unwrap()
}

/// The files of a directory, by name.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The program that a compression comes with.
fn tool(compression: Compression) -> Option<&'static str> {
    match compression {
        Compression::None => None,
        Compression::Zstd => Some("zstd"),
        Compression::Lz4 => Some("lz4"),
    }
}

/// Unpacks a file with the program that the format comes with, which also checks it.
fn unpacked(path: &Path) -> Vec<u8> {
    let Some(tool) = tool(Compression::of(path)) else {
        return fs::read(path).unwrap();
    };
    run(Command::new(tool).arg("-tq").arg(path));
    run(Command::new(tool).arg("-dcq").arg(path)).stdout
}

/// The same with a file that breaks off.
fn unpacked_to_the_end(path: &Path) -> Vec<u8> {
    let Some(tool) = tool(Compression::of(path)) else {
        return fs::read(path).unwrap();
    };
    Command::new(tool).arg("-dcq").arg(path).output().unwrap().stdout
}

/// What tcpdump sees in a file's bytes, to the nanosecond.
fn by_tcpdump(capture: Vec<u8>) -> Vec<Seen> {
    let mut child = Command::new("tcpdump")
        .args(["-r", "-", "-w", "-", "--time-stamp-precision=nano"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || input.write_all(&capture));
    let ran = child.wait_with_output().unwrap();
    assert!(ran.status.success(), "tcpdump refuses it");
    feeder.join().unwrap().unwrap();
    let word = |at: usize| u32::from_ne_bytes(ran.stdout[at..at + 4].try_into().unwrap());
    let mut at = 24;
    let mut seen = Vec::new();
    while at < ran.stdout.len() {
        let captured = word(at + 8) as usize;
        seen.push(Seen {
            time_ns: u64::from(word(at)) * SECOND + u64::from(word(at + 4)),
            wire_bytes: word(at + 12),
            bytes: ran.stdout[at + 16..at + 16 + captured].to_vec(),
        });
        at += 16 + captured;
    }
    seen
}

/// Time, length on the wire and captured length, as tshark sees them.
fn by_tshark(path: &Path) -> Vec<(u64, u32, usize)> {
    let fields = ["frame.time_epoch", "frame.len", "frame.cap_len"];
    let mut command = Command::new("tshark");
    command.args(["-T", "fields"]).arg("-r").arg(path);
    fields.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let row = |line: &str| {
        let mut columns = line.split('\t');
        let time_ns = columns.next().unwrap().replace('.', "").parse().unwrap();
        let length = columns.next().unwrap().parse().unwrap();
        let captured = columns.next().unwrap().parse().unwrap();
        (time_ns, length, captured)
    };
    text(&mut command).lines().map(row).collect()
}

/// Packets in each file, as capinfos counts them.
fn by_capinfos(paths: &[PathBuf]) -> Vec<u64> {
    text(Command::new("capinfos").args(["-c", "-T", "-r", "-M"]).args(paths))
        .lines()
        .map(|line| line.split('\t').nth(1).unwrap().parse().unwrap())
        .collect()
}

fn to_microseconds(mut packet: Seen) -> Seen {
    packet.time_ns -= packet.time_ns % 1000;
    packet
}

#[test]
fn every_combination_is_read_back() {
    if !have(&["tcpdump", "tshark", "capinfos", "zstd", "lz4"]) {
        return;
    }
    let formats = [
        ("pcap", Format::Pcap, false),
        ("pcap", Format::Pcap, true),
        ("pcapng", Format::Pcapng, false),
    ];
    let compressions =
        [(Compression::None, ""), (Compression::Zstd, ".zst"), (Compression::Lz4, ".lz4")];
    let by = |bytes, period_s: Option<u64>, files| Rotation {
        bytes,
        period: period_s.map(Duration::from_secs),
        files,
    };
    // 400 packets: 2.8 s and 252 kB.
    let rotations = [
        ("one file", by(None, None, None), 1),
        ("a new file each second", by(None, Some(1), None), 3),
        ("files of 60,000 bytes", by(Some(60_000), None, None), 5),
        ("by size and time, the newest three", by(Some(60_000), Some(1), Some(3)), 6),
    ];
    for (extension, format, microseconds) in formats {
        for (compression, packed) in compressions {
            for (how, rotation, made) in rotations {
                let directory = TempDir::new().unwrap();
                let path = directory.path().join(format!("a.{extension}{packed}"));
                let case = format!("{extension}{packed}, microseconds {microseconds}, {how}");
                let config = OutputConfig { microseconds, rotation, ..OutputConfig::new(path) };
                assert_eq!((config.format, config.compression), (format, compression));
                let pushed = packets(400);
                let mut encoder = encoder(&config);
                let mut output = Output::create(config).unwrap();
                output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
                put(&mut output, &mut encoder, &pushed, 20_000);
                let summary = output.finish();
                assert!(summary.failure.is_none(), "{case}");
                assert_eq!(summary.files, made, "{case}");
                assert_eq!((summary.packets, summary.lost), (400, 0), "{case}");

                let kept = files(directory.path());
                assert_eq!(kept.len() as u64, made - summary.files_deleted, "{case}");
                assert!(kept.len() <= rotation.files.unwrap_or(u32::MAX) as usize, "{case}");
                let counts = by_capinfos(&kept);
                let in_kept: u64 = counts.iter().sum();
                assert_eq!(in_kept, 400 - summary.packets_deleted, "{case}");
                let sizes: u64 = kept.iter().map(|p| fs::metadata(p).unwrap().len()).sum();
                if summary.files_deleted == 0 {
                    assert_eq!(sizes, summary.bytes, "{case}");
                }

                let mut expected = pushed[400 - in_kept as usize..].to_vec();
                if microseconds {
                    expected = expected.into_iter().map(to_microseconds).collect();
                }
                let mut rest = expected.as_slice();
                for (path, count) in kept.iter().zip(counts) {
                    let plain = unpacked(path);
                    let limit = rotation.bytes.unwrap_or(u64::MAX);
                    assert!(plain.len() as u64 <= limit, "{case}");
                    let (here, later) = rest.split_at(count as usize);
                    rest = later;
                    assert_eq!(by_tcpdump(plain), here, "{case}");
                    let spread = here[here.len() - 1].time_ns - here[0].time_ns;
                    assert!(rotation.period.is_none() || spread < SECOND, "{case}");
                }
                let last = &kept[kept.len() - 1];
                let seen = by_tshark(last);
                let tail = &expected[expected.len() - seen.len()..];
                for (seen, pushed) in seen.iter().zip(tail) {
                    let pushed = (pushed.time_ns, pushed.wire_bytes, pushed.bytes.len());
                    assert_eq!(*seen, pushed, "{case}");
                }
            }
        }
    }
}

#[test]
fn all_that_is_known_stands_in_the_file() {
    if !have(&["tshark", "capinfos"]) {
        return;
    }
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.pcapng");
    let config = OutputConfig {
        comments: vec!["taken at the uplink".into(), "Ünïcode".into()],
        ..OutputConfig::new(&path)
    };
    let mut encoder = Encoder::new(&EncoderConfig {
        queue: 2,
        queues: 4,
        directions: &[Direction::In, Direction::Out],
        loss_cause: "the socket's ring was full".into(),
        ..EncoderConfig::default()
    });
    let mut chunk = encoder.chunk();
    let mut told = meta(&packets(1)[0]);
    told.direction = Direction::In;
    assert!(encoder.append(&mut chunk, &Packet::new(&told, &[1; 61])));
    told.direction = Direction::Out;
    told.lost_before = 12;
    assert!(encoder.append(&mut chunk, &Packet::new(&told, &[1; 62])));

    let mut output = Output::create(config).unwrap();
    let mut left = interface("left0", LINKTYPE_ETHERNET);
    left.snaplen = 96;
    output.add_interface(&left, Some("udp port 53")).unwrap();
    output.write(&chunk).unwrap();
    // A second interface, of another link type, in the middle of the capture.
    assert_eq!(output.add_interface(&interface("raw0", 101), None).unwrap(), 1);
    let mut later = Encoder::new(&EncoderConfig::default());
    later.map_interface(1);
    output.write(&chunk_of(&mut later, &packets(3))).unwrap();
    let stats = InterfaceStats {
        taken_ns: START_NS + SECOND,
        start_ns: Some(START_NS),
        end_ns: Some(START_NS + SECOND),
        received: Some(101),
        dropped: Some(102),
        filter_accepted: Some(103),
        os_dropped: Some(104),
        delivered: Some(105),
        losses: vec![("socket ring full".into(), 104)],
    };
    output.set_statistics(0, stats).unwrap();
    assert!(output.set_statistics(2, InterfaceStats::default()).is_err());
    assert!(output.finish().failure.is_none());

    let about = text(Command::new("capinfos").arg(&path));
    for line in [
        "Number of packets:   5",
        "Capture comment:     taken at the uplink",
        "Capture comment:     Ünïcode",
        "Capture application: sluice ",
        "Capture oper-sys:    Linux",
        "Name = left0",
        "Capture length = 96",
        "Filter string = udp port 53",
        "Comment = timestamps: software",
        "Time resolution = 0x09",
        "Number of stat entries = 1",
        "Number of packets = 2",
        "Name = raw0",
        "Number of packets = 3",
    ] {
        assert!(about.contains(line), "'{line}' is missing in {about}");
    }

    let mut command = Command::new("tshark");
    command.args(["-T", "fields"]).arg("-r").arg(&path);
    for field in [
        "frame.interface_name",
        "frame.interface_queue",
        "frame.packet_flags_direction",
        "frame.drop_count",
        "frame.comment",
    ] {
        command.args(["-e", field]);
    }
    let rows: Vec<String> = text(&mut command).lines().map(str::to_owned).collect();
    assert_eq!(rows[0], "left0\t2\t0x00000001\t\t");
    assert_eq!(
        rows[1],
        "left0\t2\t0x00000002\t12\t\
         12 packets lost before this packet in queue 2: the socket's ring was full"
    );
    assert_eq!(rows[2], "raw0\t\t\t\t");

    // Wireshark's dissector for the file itself.
    let blocks = text(
        Command::new("tshark").args(["-X", "read_format:MIME Files Format", "-V", "-r"]).arg(&path),
    );
    for (line, times) in [
        ("Block: Interface Description Block", 2),
        ("Block: Enhanced Packet Block", 5),
        ("Block: Interface Statistics Block", 1),
        ("Number of Received Packets: 101", 1),
        ("Number of Dropped Packets: 102", 1),
        ("Number of Accepted by Filter Packets: 103", 1),
        ("Number of Dropped Packets by OS: 104", 1),
        ("Number of Delivered to the User Packets: 105", 1),
        ("Comment: 104 packets lost: socket ring full", 1),
        ("Option: Start Time", 1),
        ("Option: End Time", 1),
        ("Malformed", 0),
    ] {
        let found = blocks.lines().filter(|l| l.trim_start().starts_with(line)).count();
        assert_eq!(found, times, "'{line}' in {blocks}");
    }
}

#[test]
fn every_file_of_a_row_names_its_interfaces_and_ends_with_statistics() {
    if !have(&["capinfos"]) {
        return;
    }
    let directory = TempDir::new().unwrap();
    let config = OutputConfig {
        rotation: Rotation { bytes: Some(4000), ..Rotation::default() },
        ..OutputConfig::new(directory.path().join("a-%Y.pcapng"))
    };
    let mut encoder = encoder(&config);
    let mut output = Output::create(config).unwrap();
    assert!(files(directory.path()).is_empty(), "named after a packet that has not come");
    output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    output.set_statistics(0, InterfaceStats::default()).unwrap();
    put(&mut output, &mut encoder, &packets(20), 1 << 20);
    output.add_interface(&interface("right0", LINKTYPE_ETHERNET), None).unwrap();
    put(&mut output, &mut encoder, &packets(20), 1 << 20);
    let summary = output.finish();
    let made = files(directory.path());
    assert_eq!(made.len() as u64, summary.files);
    assert!(made.len() > 4);
    for (number, path) in (1..).zip(&made) {
        let name = format!("a-2023-{number:05}.pcapng");
        assert_eq!(path.file_name().unwrap(), name.as_str());
        assert!(fs::metadata(path).unwrap().len() <= 4000);
        let about = text(Command::new("capinfos").arg(path));
        assert!(about.contains("Name = left0") && about.contains("stat entries = 1"), "{about}");
    }
    let last = text(Command::new("capinfos").arg(&made[made.len() - 1]));
    assert!(last.contains("Name = right0"));
}

#[test]
fn a_file_somebody_put_in_our_place_is_left_alone() {
    let directory = TempDir::new().unwrap();
    let stranger = directory.path().join("a-00001.pcapng");
    let config = OutputConfig {
        rotation: Rotation { bytes: Some(1), files: Some(1), ..Rotation::default() },
        ..OutputConfig::new(directory.path().join("a.pcapng"))
    };
    let mut encoder = encoder(&config);
    let mut output = Output::create(config).unwrap();
    output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    put(&mut output, &mut encoder, &packets(1), 1 << 20);
    let theirs = directory.path().join("theirs");
    fs::write(&theirs, "theirs").unwrap();
    fs::rename(&theirs, &stranger).unwrap();
    put(&mut output, &mut encoder, &packets(2), 1 << 20);
    let summary = output.finish();
    assert_eq!((summary.files, summary.files_deleted, summary.files_left), (3, 1, 1));
    assert_eq!(fs::read(&stranger).unwrap(), b"theirs");
    assert_eq!(files(directory.path()).len(), 2);
}

/// Chunks become more than Wireshark reads at once, in files that are packed in turn.
#[test]
fn large_packed_files_are_read_in_one_piece() {
    if !have(&["tcpdump", "tshark", "capinfos", "zstd", "lz4"]) {
        return;
    }
    let pushed = packets(6000);
    for (name, workers, in_wireshark) in [
        ("a.pcapng.zst", 1, true),
        ("a.pcapng.lz4", 1, true),
        ("a.pcapng.lz4", 3, true),
        ("a.pcapng.zst", 3, false),
    ] {
        let directory = TempDir::new().unwrap();
        let config = OutputConfig {
            workers,
            rotation: Rotation { bytes: Some(3_000_000), ..Rotation::default() },
            ..OutputConfig::new(directory.path().join(name))
        };
        let mut encoder = encoder(&config);
        let mut output = Output::create(config).unwrap();
        output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
        put(&mut output, &mut encoder, &pushed, 200_000);
        let summary = output.finish();
        assert!(summary.failure.is_none(), "{name}, {workers} workers");
        let made = files(directory.path());
        assert_eq!((made.len(), summary.files), (2, 2), "{name}, {workers} workers");
        let sizes: u64 = made.iter().map(|p| fs::metadata(p).unwrap().len()).sum();
        assert_eq!(sizes, summary.bytes, "{name}, {workers} workers");
        let seen: Vec<Seen> = made.iter().flat_map(|p| by_tcpdump(unpacked(p))).collect();
        assert!(seen == pushed, "{name}, {workers} workers");
        if in_wireshark {
            assert_eq!(by_capinfos(&made).iter().sum::<u64>(), 6000, "{name}, {workers} workers");
            let seen: usize = made.iter().map(|path| by_tshark(path).len()).sum();
            assert_eq!(seen, 6000, "{name}, {workers} workers");
        }
    }
}

#[test]
fn only_the_newest_file_is_kept_however_far_compression_lags() {
    let directory = TempDir::new().unwrap();
    let config = OutputConfig {
        workers: 3,
        rotation: Rotation { bytes: Some(1), files: Some(1), ..Rotation::default() },
        ..OutputConfig::new(directory.path().join("a.pcapng.zst"))
    };
    let mut encoder = encoder(&config);
    let mut output = Output::create(config).unwrap();
    output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    put(&mut output, &mut encoder, &packets(100), 1 << 20);
    let summary = output.finish();
    assert_eq!((summary.packets, summary.packets_deleted), (100, 99));
    assert_eq!((summary.files, summary.files_deleted), (100, 99));
    assert_eq!(files(directory.path()), [directory.path().join("a-00100.pcapng.zst")]);
}

#[test]
fn a_capture_without_packets_is_a_file_too() {
    if !have(&["capinfos", "zstd"]) {
        return;
    }
    for name in ["a.pcap", "a.pcapng", "a.pcapng.zst", "a-%H.pcapng"] {
        let directory = TempDir::new().unwrap();
        let mut output = Output::create(OutputConfig::new(directory.path().join(name))).unwrap();
        output.flush().unwrap();
        output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
        assert_eq!(output.finish().files, 1, "{name}");
        assert_eq!(by_capinfos(&files(directory.path())), [0], "{name}");
    }
}

#[test]
fn what_cannot_be_done_is_said_with_the_remedy() {
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("file"), "").unwrap();
    let one = || OutputConfig::new(at("a.pcapng"));
    let rotating = |path: PathBuf| OutputConfig {
        rotation: Rotation { bytes: Some(1000), ..Rotation::default() },
        ..OutputConfig::new(path)
    };
    let level = OutputConfig { level: Some(99), ..OutputConfig::new(at("a.pcapng.zst")) };
    let unasked = OutputConfig { level: Some(3), ..one() };
    let uneven =
        OutputConfig { rotation: Rotation { files: Some(3), ..Rotation::default() }, ..one() };
    let rows = [
        (OutputConfig::new(at("no/a.pcap")), "does not exist: create it", "no directory"),
        (OutputConfig::new(at("no/%H.pcap")), "must exist: create it", "nor for later"),
        (OutputConfig::new(directory.path()), "name a file in it", "a directory"),
        (OutputConfig::new(at("file/a.pcap")), "is a file", "a file for a directory"),
        (OutputConfig::new(at("file/%H.pcap")), "name a directory", "and for later"),
        (OutputConfig::new(at(&"x".repeat(300))), "shorter name", "too long a name"),
        (rotating("-".into()), "rotation needs a file name", "a row of standard outputs"),
        (level, "only zstd has levels, -", "no such level"),
        (unasked, "only zstd has levels", "a level for no compression"),
        (uneven, "without a size or a period", "a number of files alone"),
    ];
    for (config, remedy, why) in rows {
        let error = Output::create(config).unwrap_err().to_string();
        assert!(error.contains(remedy), "{why}: {error}");
    }

    let mut output = Output::create(OutputConfig::new(at("a.pcap"))).unwrap();
    output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    let error = output.add_interface(&interface("raw0", 101), None).unwrap_err();
    assert!(error.to_string().contains("use pcapng"), "{error}");
    let chunk = chunk_of(&mut encoder(&one()), &packets(3));
    let error = output.write(&chunk).unwrap_err();
    assert!(error.to_string().contains("another format"), "{error}");
    let summary = output.finish();
    assert_eq!((summary.packets, summary.lost), (0, 3), "the ledger closes all the same");
}

/// Writes until it fails, then a little more. Returns the packets handed over and the error.
fn write_until_failure(config: OutputConfig) -> (u64, Error, Output) {
    let mut encoder = encoder(&config);
    let mut output = Output::create(config).unwrap();
    output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    let mut chunk = encoder.chunk_of(50_000);
    let mut handed = 0;
    let mut noise = 1u64;
    let mut first = None;
    for round in 0..2000u64 {
        chunk.clear();
        for mut packet in packets(60) {
            packet.bytes.iter_mut().for_each(|byte| {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                *byte = noise as u8;
            });
            packet.time_ns += round * SECOND;
            let meta = meta(&packet);
            assert!(encoder.append(&mut chunk, &Packet::new(&meta, &packet.bytes)));
        }
        handed += chunk.packets();
        if let Err(error) = output.write(&chunk) {
            if first.is_some() {
                break;
            }
            first = Some(error);
        }
    }
    (handed, first.expect("it never failed"), output)
}

/// A file system of half a megabyte, for as long as it lives.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn new() -> Option<Self> {
        let directory = TempDir::new().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"])
            .arg(directory.path())
            .stderr(Stdio::null())
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(directory));
        }
        eprintln!("skipped: mounting a small file system needs root");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_leaves_whole_records_and_exact_counts() {
    if !have(&["tcpdump", "zstd", "lz4"]) {
        return;
    }
    let rotation = Rotation { bytes: Some(100_000), ..Rotation::default() };
    for (name, workers) in [
        ("a.pcap", 1),
        ("a.pcapng", 1),
        ("a.pcapng.zst", 1),
        ("a.pcapng.zst", 2),
        ("a.pcap.lz4", 2),
    ] {
        for rotation in [Rotation::default(), rotation] {
            let Some(disk) = SmallDisk::new() else { return };
            let path = disk.0.path().join(name);
            let (handed, error, output) =
                write_until_failure(OutputConfig { rotation, workers, ..OutputConfig::new(&path) });
            assert_eq!(error.errno(), Some(nix::libc::ENOSPC), "{name}");
            assert!(error.to_string().contains("free some space"), "{error}");
            let summary = output.finish();
            assert!(summary.failure.is_some(), "{name}");
            assert_eq!(summary.packets + summary.lost, handed, "{name}");
            assert!(summary.packets > 0 && summary.lost > 60, "{name}: {summary:?}");
            let mut found = 0;
            for path in files(disk.0.path()) {
                // A file that got not even its head stays empty.
                if fs::metadata(&path).unwrap().len() > 0 {
                    found += by_tcpdump(unpacked(&path)).len() as u64;
                }
            }
            assert_eq!(found, summary.packets, "{name}: every record that is counted is there");
        }
    }
}

#[test]
fn a_full_device_and_a_reader_that_left_are_named() {
    let (handed, error, output) = write_until_failure(OutputConfig::new("/dev/full"));
    assert_eq!(error.errno(), Some(nix::libc::ENOSPC));
    let summary = output.finish();
    assert_eq!((summary.packets, summary.lost), (0, handed));

    for compression in [Compression::None, Compression::Zstd] {
        let (reader, writer) = std::io::pipe().unwrap();
        let config = OutputConfig {
            compression,
            ..OutputConfig::new(format!("/proc/self/fd/{}", writer.as_raw_fd()))
        };
        let pipe = std::thread::spawn(move || {
            let mut reader = reader;
            let mut some = vec![0; 100_000];
            reader.read_exact(&mut some).unwrap();
        });
        let (handed, error, output) = write_until_failure(config);
        drop(writer);
        pipe.join().unwrap();
        assert_eq!(error.errno(), Some(nix::libc::EPIPE), "{compression:?}");
        assert!(error.to_string().contains("the reader has closed"), "{error}");
        let summary = output.finish();
        assert_eq!(summary.packets + summary.lost, handed, "{compression:?}");
    }
}

/// The variable that makes a test below write for its parent.
const CHILD: &str = "SLUICE_TEST_WRITES_TO";

/// This test alone, in a process of its own, with its standard output in a pipe.
fn child(test: &str, path: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn standard_output_carries_a_capture() {
    if let Some(path) = std::env::var_os(CHILD) {
        let config = OutputConfig::new(path);
        let mut encoder = encoder(&config);
        let mut output = Output::create(config).unwrap();
        output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
        put(&mut output, &mut encoder, &packets(5000), 1 << 20);
        assert!(output.finish().failure.is_none());
        // Nothing of the test harness may follow.
        std::process::exit(0);
    }
    if !have(&["tcpdump"]) {
        return;
    }
    let written = child("standard_output_carries_a_capture", Path::new("-"))
        .wait_with_output()
        .unwrap()
        .stdout;
    let head = written.windows(4).position(|four| four == [0x0a, 0x0d, 0x0d, 0x0a]);
    let capture = written[head.expect("no capture")..].to_vec();
    assert_eq!(by_tcpdump(capture), packets(5000));
}

#[test]
fn a_killed_writer_leaves_all_it_had_written() {
    let name = "a_killed_writer_leaves_all_it_had_written";
    if let Some(path) = std::env::var_os(CHILD) {
        let config = OutputConfig::new(path);
        let mut encoder = encoder(&config);
        let mut output = Output::create(config).unwrap();
        output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
        put(&mut output, &mut encoder, &packets(1000), 10_000);
        output.flush().unwrap();
        println!("\nwritten");
        loop {
            std::thread::park();
        }
    }
    if !have(&["tcpdump", "zstd", "lz4"]) {
        return;
    }
    let directory = TempDir::new().unwrap();
    for file in ["a.pcap", "a.pcapng", "a.pcapng.zst", "a.pcap.lz4"] {
        let path = directory.path().join(file);
        let mut child = child(name, &path);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let written = lines.map_while(Result::ok).any(|line| line == "written");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(written, "{file}: the child did not come that far");
        assert_eq!(by_tcpdump(unpacked_to_the_end(&path)), packets(1000), "{file}");
    }
}

#[test]
fn several_queues_become_one_file_in_order() {
    if !have(&["tcpdump"]) {
        return;
    }
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.pcapng");
    let all = packets(3000);
    let mut merger = Merger::new(3);
    for queue in 0..3 {
        let mut encoder = Encoder::new(&EncoderConfig {
            queue: queue as u32,
            queues: 3,
            ..EncoderConfig::default()
        });
        let own: Vec<Seen> = all.iter().skip(queue).step_by(3).cloned().collect();
        for some in own.chunks(100) {
            merger.push(queue, chunk_of(&mut encoder, some));
        }
        merger.close(queue);
    }
    let mut output = Output::create(OutputConfig::new(&path)).unwrap();
    output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    let mut out = Encoder::new(&EncoderConfig::default()).chunk_of(30_000);
    loop {
        let more = merger.drain(0, &mut out);
        output.write(&out).unwrap();
        out.clear();
        if !more {
            break;
        }
    }
    assert_eq!(merger.late(), 0);
    assert_eq!(output.finish().packets, 3000);
    assert_eq!(by_tcpdump(fs::read(&path).unwrap()), all);
}

/// Whatever real captures hold, hostile ones among them, goes through unchanged: up to the
/// longest packet that libpcap takes from a file.
#[test]
fn packets_of_real_captures_go_through() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/pcaps");
    if !samples.is_dir() {
        eprintln!("skipped: there is no {}", samples.display());
        return;
    }
    let directory = TempDir::new().unwrap();
    let read = |path: &Path| -> Vec<Seen> {
        let Ok(mut capture) = pcap::Capture::from_file_with_precision(path, pcap::Precision::Nano)
        else {
            return Vec::new();
        };
        let mut seen = Vec::new();
        while let Ok(packet) = capture.next_packet() {
            let seconds = packet.header.ts.tv_sec as u32;
            seen.push(Seen {
                // A fraction may be anything in a hostile file.
                time_ns: u64::from(seconds) * SECOND + packet.header.ts.tv_usec as u32 as u64,
                wire_bytes: packet.header.len.max(packet.header.caplen),
                bytes: packet.data.to_vec(),
            });
        }
        seen
    };
    let mut total = 0;
    for sample in files(&samples) {
        let pushed = read(&sample);
        for name in ["a.pcap", "a.pcapng"] {
            let path = directory.path().join(name);
            let config = OutputConfig::new(&path);
            let mut encoder = encoder(&config);
            let mut output = Output::create(config).unwrap();
            output.add_interface(&interface("file", LINKTYPE_ETHERNET), None).unwrap();
            put(&mut output, &mut encoder, &pushed, 1 << 20);
            assert!(output.finish().failure.is_none());
            assert!(read(&path) == pushed, "{} as {name}", sample.display());
        }
        total += pushed.len();
    }
    assert!(total > 1000, "{total} packets in all the samples");
}

fn any_packet() -> impl Strategy<Value = Seen> {
    let time_ns = 0..4_000_000_000 * SECOND;
    let bytes = prop::collection::vec(any::<u8>(), 0..300);
    (time_ns, bytes, 0..3000u32).prop_map(|(time_ns, bytes, more)| Seen {
        time_ns,
        wire_bytes: bytes.len() as u32 + more,
        bytes,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever packets are written in whatever chunks, libpcap reads them back.
    #[test]
    fn libpcap_reads_what_was_pushed(
        packets in prop::collection::vec(any_packet(), 0..40),
        chunk_bytes in 0..4000usize,
        limit in prop::option::of(1..4000u64),
        format in prop::sample::select(vec![Format::Pcap, Format::Pcapng]),
    ) {
        let directory = TempDir::new().unwrap();
        let rotation = Rotation { bytes: limit, ..Rotation::default() };
        let path = directory.path().join("a");
        let config = OutputConfig { format, rotation, ..OutputConfig::new(path) };
        let mut encoder = encoder(&config);
        let mut output = Output::create(config).unwrap();
        output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
        put(&mut output, &mut encoder, &packets, chunk_bytes);
        let summary = output.finish();
        prop_assert_eq!(summary.packets, packets.len() as u64);
        let mut seen = Vec::new();
        let made = files(directory.path());
        prop_assert_eq!(made.iter().collect::<HashSet<_>>().len() as u64, summary.files);
        for path in made {
            let precision = pcap::Precision::Nano;
            let mut capture = pcap::Capture::from_file_with_precision(path, precision).unwrap();
            while let Ok(packet) = capture.next_packet() {
                // libpcap has pcap's 32 bits of seconds as a signed number.
                let seconds = packet.header.ts.tv_sec as u32;
                seen.push(Seen {
                    time_ns: u64::from(seconds) * SECOND + packet.header.ts.tv_usec as u64,
                    wire_bytes: packet.header.len,
                    bytes: packet.data.to_vec(),
                });
            }
        }
        prop_assert_eq!(seen, packets);
    }
}
