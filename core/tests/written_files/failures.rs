//! Full disks, readers that leave, invalid files.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};

use super::*;

#[test]
fn a_write_that_fails_names_the_remedy() {
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("file"), "").unwrap();
    let one = || OutputConfig::new(at("a.pcapng"));
    let rotating = |path: PathBuf| OutputConfig {
        rotation: Rotation { bytes: Some(1000), ..Rotation::default() },
        ..OutputConfig::new(path)
    };
    let level = OutputConfig { level: Some(99), ..OutputConfig::new(at("a.pcapng.zst")) };
    let gzip_level = OutputConfig { level: Some(10), ..OutputConfig::new(at("a.pcap.gz")) };
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
        (level, "zstd has levels -", "no such level"),
        (gzip_level, "gzip has levels 1 to 9", "a level of zstd for gzip"),
        (unasked, "only zstd and gzip have levels", "a level for no compression"),
        (uneven, "without a size", "a number of files alone"),
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

#[test]
fn a_file_has_one_writer_at_a_time() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.pcap");
    let create = || Output::create(OutputConfig::new(path.clone()));
    let mut first = create().unwrap();
    first.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    first.write(&chunk_of(&mut encoder(&OutputConfig::new(path.clone())), &packets(3))).unwrap();
    let error = create().unwrap_err().to_string();
    assert!(error.contains("holds a lock") && error.contains("another name"), "{error}");
    let summary = first.finish();
    assert_eq!((summary.packets, summary.lost), (3, 0));
    assert!(fs::metadata(&path).unwrap().len() > 3 * 16, "the first writer's packets stay");
    assert_eq!(create().unwrap().finish().lost, 0, "a closed file can be written again");
}

/// Between fork and exec, a child has a copy of every descriptor, and so of the lock.
#[test]
#[allow(unsafe_code)]
fn a_file_can_be_written_after_it_was_read_while_a_child_starts() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.pcap");
    let config = || OutputConfig::new(path.clone());
    let mut first = Output::create(config()).unwrap();
    first.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    first.write(&chunk_of(&mut encoder(&config()), &packets(3))).unwrap();
    let _ = first.finish();
    let reader = Reader::open(&path).unwrap();
    let (forked, says_forked) = nix::unistd::pipe().unwrap();
    let (may_go, go) = nix::unistd::pipe().unwrap();
    let mut child = Command::new("true");
    // SAFETY: read(2) and write(2) alone, which are async-signal-safe.
    unsafe {
        child.pre_exec(move || {
            nix::unistd::write(&says_forked, b"1")?;
            nix::unistd::read(&may_go, &mut [0])?;
            Ok(())
        });
    }
    let child = std::thread::spawn(move || child.status().unwrap());
    nix::unistd::read(&forked, &mut [0]).unwrap();
    drop(reader);
    let second = Output::create(config());
    nix::unistd::write(&go, b"1").unwrap();
    assert!(child.join().unwrap().success());
    assert_eq!(second.unwrap().finish().lost, 0);
}

#[test]
fn a_file_that_somebody_may_have_prepared_is_left_as_it_is() {
    let (ours, shared) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let own = ours.path().join("own");
    fs::write(&own, "kept").unwrap();
    let linked = shared.path().join("linked.pcap");
    fs::hard_link(&own, &linked).unwrap();
    let mut rows = vec![(linked, "a hard link to a file of ours")];
    let anothers = shared.path().join("another.pcap");
    fs::write(&anothers, "kept").unwrap();
    // Only root can prepare a file in another's name.
    let by_root = |path: &Path| geteuid().is_root() && chown(path, Some(65534), None).is_ok();
    if by_root(&anothers) {
        rows.push((anothers, "a file of another user"));
    }
    for (path, sentence) in rows {
        assert!(Output::create(OutputConfig::new(path.clone())).is_err(), "{sentence}");
        assert_eq!(fs::read(&path).unwrap(), b"kept", "{sentence}");
    }
    let pipe = shared.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    if by_root(&pipe) {
        let error = Output::create(OutputConfig::new(pipe.clone())).unwrap_err().to_string();
        assert!(error.contains("a pipe that nobody reads"), "{error}");
        let mut reader = Command::new("cat").arg(&pipe).stdout(Stdio::piped()).spawn().unwrap();
        let refused = || match Output::create(OutputConfig::new(pipe.clone())) {
            Ok(_) => panic!("another user's pipe gets packets"),
            Err(error) => error.to_string().contains("prepared it"),
        };
        let end = Instant::now() + Duration::from_secs(20);
        // Nobody reads before the reader has opened it.
        while !refused() {
            assert!(Instant::now() < end, "the reader has not come");
        }
        assert!(reader.wait().unwrap().success());
        let mut loot = Vec::new();
        reader.stdout.take().unwrap().read_to_end(&mut loot).unwrap();
        assert!(loot.is_empty(), "{loot:02x?}");
    }
    let mine = shared.path().join("mine.pcap");
    fs::write(&mine, "old").unwrap();
    let summary = Output::create(OutputConfig::new(mine.clone())).unwrap().finish();
    assert_eq!(
        (summary.lost, fs::read(&mine).unwrap() == b"old"),
        (0, false),
        "an own file is emptied"
    );
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
        eprintln!("skipped: needs root; get it by sudo");
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
        ("a.pcap.gz", 2),
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
            assert_eq!(summary.files, files(disk.0.path()).len() as u64, "{name}");
            assert!(summary.packets > 0 && summary.lost > 60, "{name}: {summary:?}");
            let mut found = 0;
            for path in files(disk.0.path()) {
                assert!(fs::metadata(&path).unwrap().len() > 0, "{name}: an empty file is deleted");
                found += by_tcpdump(unpacked(&path)).len() as u64;
            }
            assert_eq!(
                found, summary.packets,
                "{name}: the file has every record that was counted"
            );
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
