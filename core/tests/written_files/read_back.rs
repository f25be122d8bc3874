//! Everything that was pushed is read back, by everybody.

use super::*;
use crate::real_captures::real_captures;

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
    let compressions = [
        (Compression::None, ""),
        (Compression::Zstd, ".zst"),
        (Compression::Lz4, ".lz4"),
        (Compression::Gzip, ".gz"),
    ];
    let by = |bytes, period_s: Option<u64>, files| Rotation {
        bytes,
        period: period_s.map(Duration::from_secs),
        files,
        ..Rotation::default()
    };
    // 400 packets: 2.8 s and 252 kB.
    let rotations = [
        ("one file", by(None, None, None), 1),
        ("a new file each second", by(None, Some(1), None), 3),
        ("files of 60,000 bytes", by(Some(60_000), None, None), 5),
        ("files of 150 packets", Rotation { packets: Some(150), ..by(None, None, None) }, 3),
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
                    assert!(count <= rotation.packets.unwrap_or(u64::MAX), "{case}");
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
fn a_file_that_is_asked_for_begins_with_its_first_packet() {
    if !have(&["capinfos"]) {
        return;
    }
    for name in ["a.pcap", "a.pcapng.zst"] {
        let directory = TempDir::new().unwrap();
        let rotation = Rotation { on_request: true, ..Rotation::default() };
        let path = directory.path().join(name);
        let config = OutputConfig { rotation, ..OutputConfig::new(path) };
        let mut encoder = encoder(&config);
        let mut output = Output::create(config).unwrap();
        output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
        assert_eq!((output.end_file(), files(directory.path()).len()), (None, 0), "{name}");
        put(&mut output, &mut encoder, &packets(10), 20_000);
        let first = output.end_file();
        put(&mut output, &mut encoder, &packets(5), 20_000);
        output.end_file();
        let summary = output.finish();
        assert_eq!((summary.files, summary.packets), (2, 15), "{name}");
        let made = files(directory.path());
        assert_eq!(first.as_ref(), made.first(), "{name}");
        assert_eq!(by_capinfos(&made), [10, 5], "{name}");
    }
}

#[test]
fn a_file_that_is_asked_for_overwrites_none() {
    let directory = TempDir::new().unwrap();
    let path = |number: u32| directory.path().join(format!("a-0000{number}.pcap"));
    std::fs::write(path(1), "an earlier recording").unwrap();
    std::os::unix::fs::symlink("nowhere", path(3)).unwrap();
    let rotation = Rotation { on_request: true, ..Rotation::default() };
    let config = OutputConfig { rotation, ..OutputConfig::new(directory.path().join("a.pcap")) };
    let mut encoder = encoder(&config);
    let mut output = Output::create(config).unwrap();
    output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    for number in [2, 4, 5] {
        put(&mut output, &mut encoder, &packets(5), 20_000);
        assert_eq!(output.end_file(), Some(path(number)));
    }
    assert_eq!(output.finish().files, 3);
    assert_eq!(std::fs::read(path(1)).unwrap(), b"an earlier recording");
    assert!(!directory.path().join("nowhere").exists());
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
        loss_cause: "the socket's ring was full".into(),
        ..EncoderConfig::default()
    });
    let mut chunk = encoder.chunk();
    let mut told = meta(&packets(1)[0]);
    told.direction = Direction::In;
    assert!(encoder.append(&mut chunk, &Packet::new(&told, &[1; 61])));
    told.direction = Direction::Out;
    told.drops_before = 12;
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
        ("a.pcapng.gz", 1, true),
        ("a.pcapng.gz", 3, true),
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
fn a_capture_without_packets_is_a_file_too() {
    if !have(&["capinfos", "zstd"]) {
        return;
    }
    for name in ["a.pcap", "a.pcapng", "a.pcapng.zst", "a.pcapng.gz", "a-%H.pcapng"] {
        let directory = TempDir::new().unwrap();
        let mut output = Output::create(OutputConfig::new(directory.path().join(name))).unwrap();
        output.flush().unwrap();
        output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
        assert_eq!(output.finish().files, 1, "{name}");
        assert_eq!(by_capinfos(&files(directory.path())), [0], "{name}");
    }
}

/// Whatever real captures hold, hostile ones among them, goes through unchanged: up to the
/// longest packet that libpcap takes from a file.
#[test]
fn packets_of_real_captures_go_through() {
    let samples = real_captures();
    if samples.is_empty() {
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
    for sample in samples {
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
