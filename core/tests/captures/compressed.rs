//! Compressed files, as the compressors' own tools make them.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::oracle::{have, ours};

/// A pcap file of a hundred packets.
fn capture() -> Vec<u8> {
    let mut file = Vec::new();
    for n in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1] {
        file.extend(n.to_le_bytes());
    }
    for i in 0..100u32 {
        for n in [i, i, 1000, 1500] {
            file.extend(n.to_le_bytes());
        }
        file.extend((0..1000u32).map(|b| (b * i) as u8));
    }
    file
}

/// Compresses bytes by a program.
fn packed(command: &[&str], bytes: &[u8], folder: &Path) -> Vec<u8> {
    let plain = folder.join("plain");
    std::fs::write(&plain, bytes).unwrap();
    let output = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::from(std::fs::File::open(&plain).unwrap()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{command:?}");
    output.stdout
}

/// Zstd and lz4 allow it between their frames.
const SKIPPABLE_FRAME: &[u8] = b"\x50\x2a\x4d\x18\x03\0\0\0abc";

#[test]
fn compressed_files_are_read_as_what_is_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let plain = capture();
    let path = folder.path().join("capture");
    std::fs::write(&path, &plain).unwrap();
    let expected = ours(&path).packets;
    assert_eq!(expected.len(), 100);
    for command in [
        &["zstd", "-c"][..],
        &["zstd", "-c", "--long=27"],
        &["lz4", "-c"],
        &["lz4", "-c", "-9", "-B4", "-BD", "-BX"],
        &["gzip", "-c"],
        &["gzip", "-c", "-9"],
    ] {
        if !have(command[0]) {
            continue;
        }
        let (front, back) = plain.split_at(4321);
        let pack = |bytes: &[u8]| packed(command, bytes, folder.path());
        let whole = pack(&plain);
        let skipped = if command[0] == "gzip" { &[] } else { SKIPPABLE_FRAME };
        let frames = [pack(front), skipped.to_vec(), pack(&[]), pack(back)].concat();
        for (why, bytes) in [("one frame", &whole), ("frames in a row", &frames)] {
            std::fs::write(&path, bytes).unwrap();
            let reading = ours(&path);
            assert_eq!(reading.error, None, "{command:?}, {why}");
            assert!(reading.packets == expected, "{command:?}, {why}");
        }
        let ends = (5..whole.len()).step_by(whole.len() / 40 + 1);
        // Behind the last block there are end marks and checksums.
        for end in ends.chain(whole.len() - 9..whole.len()) {
            std::fs::write(&path, &whole[..end]).unwrap();
            let reading = ours(&path);
            let error = reading.error.expect("a cut is not the end");
            assert!(error.contains("damaged"), "{command:?}, cut at {end}: {error}");
            assert!(error.ends_with(" of the decompressed file)"), "{error}");
            assert!(expected.starts_with(&reading.packets), "cut at {end}");
        }
        for at in (4..whole.len()).step_by(whole.len() / 200 + 1) {
            let mut changed = whole.clone();
            changed[at] ^= 0x55;
            std::fs::write(&path, &changed).unwrap();
            // All formats have checksums, so what was changed is seldom taken for the truth.
            ours(&path);
        }
    }
}

#[test]
fn zeros_after_gzip_data_are_padding_and_other_bytes_are_damage() {
    if !have("gzip") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture.gz");
    let whole = packed(&["gzip", "-c"], &capture(), folder.path());
    for (why, padding) in [
        ("one zero", vec![0]),
        ("fewer than a header has", vec![0; 5]),
        ("a tape's block", vec![0; 10_240]),
        ("more than a buffer", vec![0; 1 << 18]),
        ("zeros, then a byte", [vec![0; 600], vec![1]].concat()),
        ("a cut member", vec![0x1f, 0x8b, 8]),
    ] {
        std::fs::write(&path, [&whole[..], &padding].concat()).unwrap();
        let reading = ours(&path);
        let gzip = Command::new("gzip").arg("-t").arg(&path).output().unwrap();
        assert_eq!(reading.error.is_none(), gzip.status.success(), "{why}: {reading:?}, {gzip:?}");
        assert_eq!(reading.packets.len(), 100, "{why}");
    }
}

#[test]
fn what_is_not_read_is_refused_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture");
    let magic = |bytes: &[u8]| [bytes, &[0; 60]].concat();
    for (why, bytes, remedy) in [
        ("gzip by an unknown method", magic(&[0x1f, 0x8b, 9, 0]), "cannot decompress"),
        ("xz", magic(b"\xfd7zXZ\0"), "`xz -dc FILE |`"),
        ("bzip2", magic(b"BZh9"), "`bzip2 -dc FILE |`"),
        ("lz4 before its frames", magic(b"\x02\x21\x4c\x18"), "`lz4 -dc FILE |`"),
        ("text", magic(b"hello"), "pcap and pcapng can be read"),
        ("nothing", Vec::new(), "too short"),
        ("three bytes", vec![0xd4, 0xc3, 0xb2], "too short"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = ours(&path).error.unwrap();
        assert!(error.contains(remedy), "{why}: {error}");
    }
}
