//! Files cut short or changed at random, as libpcap reads them: the same packets, and an error
//! where it has one.

use std::path::Path;

use crate::oracle::{Reading, libpcap, ours};
use crate::real_captures::real_captures;
use crate::writer::Chance;

/// Files that libpcap refuses and Sluice reads: libpcap's message, and why Sluice reads on.
const READ_ON: &[(&str, &str)] = &[
    (
        "different from the type of the first interface",
        "each packet names its interface, and each interface has its own link type",
    ),
    (
        "different from the snapshot length of the first interface",
        "each interface has its own snapshot length",
    ),
    ("sections with different byte orders", "each section says its own"),
    ("unsupported pcapng savefile version 1.", "minor versions change nothing for a reader"),
];

/// Files that libpcap reads and Sluice refuses.
const REFUSED: &[(&str, &str)] = &[(
    "has reserved bits set",
    "libpcap 1.10.3 makes a link type nobody knows of it; later ones refuse it too",
)];

/// Compares what we read with what libpcap reads; the error says how they differ.
fn compare(path: &Path) -> Result<(), String> {
    let (ours, theirs) = (ours(path), libpcap(path));
    agree(&ours, &theirs).map_err(|how| {
        format!(
            "{how}: we read {} packets ({:?}), libpcap {} ({:?})",
            ours.packets.len(),
            ours.error,
            theirs.packets.len(),
            theirs.error
        )
    })
}

fn agree(ours: &Reading, theirs: &Reading) -> Result<(), String> {
    let listed = |list: &[(&str, &str)], error: &Option<String>| {
        let said = error.as_deref().unwrap_or_default();
        list.iter().any(|(text, _)| said.contains(text))
    };
    if listed(REFUSED, &ours.error) {
        return Ok(());
    }
    for (i, (ours, theirs)) in ours.packets.iter().zip(&theirs.packets).enumerate() {
        if (ours.wire_bytes, &ours.bytes) != (theirs.wire_bytes, &theirs.bytes) {
            return Err(format!("packet {i} differs"));
        }
        if !same_time(ours.timestamp_ns, theirs.timestamp_ns) {
            let (ours, theirs) = (ours.timestamp_ns, theirs.timestamp_ns);
            return Err(format!("packet {i} is of {ours}, not {theirs}"));
        }
    }
    if listed(READ_ON, &theirs.error) && ours.packets.len() >= theirs.packets.len() {
        return Ok(());
    }
    if ours.packets.len() != theirs.packets.len() {
        return Err("another number of packets".into());
    }
    if ours.error.is_some() != theirs.error.is_some() {
        return Err("one of us has an error".into());
    }
    Ok(())
}

/// libpcap 1.10.3 takes both halves of a pcap file's times for signed and lets nanoseconds
/// overflow; we keep to what the format says and to the nearest time that 64 bits can hold.
fn same_time(ours: u64, theirs: u64) -> bool {
    let seconds = [0, 1_000_000_000 << 32];
    let fractions = [0, 1 << 32, 1000 << 32];
    let difference = ours.wrapping_sub(theirs);
    let signs = |s: u64| fractions.iter().any(|f| s.wrapping_add(*f) == difference);
    seconds.into_iter().any(signs) || ours == 0 || ours == u64::MAX
}

/// The captures of at most `limit` bytes, with their names.
fn small_captures(limit: usize) -> Vec<(String, Vec<u8>)> {
    real_captures()
        .iter()
        .map(|path| (path.display().to_string(), std::fs::read(path).unwrap()))
        .filter(|(_, bytes)| bytes.len() <= limit)
        .collect()
}

#[test]
fn cut_anywhere_a_file_gives_the_packets_before_and_an_error_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut");
    let mut tried = [0, 0];
    for (name, bytes) in small_captures(1500) {
        let format = usize::from(bytes.starts_with(b"\n\r\r\n"));
        if tried[format] >= 12 {
            continue;
        }
        tried[format] += 1;
        for end in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..end]).unwrap();
            if let Err(how) = compare(&path) {
                panic!("{name}, cut at {end}: {how}");
            }
        }
    }
}

#[test]
fn changed_at_random_a_file_is_read_as_far_as_libpcap_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed");
    let mut chance = Chance(1);
    for (name, bytes) in small_captures(6000) {
        for round in 0..30 {
            let changed = change(&bytes, &mut chance);
            std::fs::write(&path, &changed).unwrap();
            if let Err(how) = compare(&path) {
                let kept = std::env::temp_dir().join("sluice-captures-damage");
                std::fs::write(&kept, &changed).unwrap();
                panic!("{name}, round {round}, kept as {}: {how}", kept.display());
            }
        }
    }
}

/// Changes a few bytes, more often in front than behind: that is where headers are.
fn change(bytes: &[u8], chance: &mut Chance) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    for _ in 0..1 + chance.below(4) {
        let span = match chance.below(3) {
            0 => changed.len().min(64),
            1 => changed.len().min(400),
            _ => changed.len(),
        };
        let at = chance.below(span);
        changed[at] = match chance.below(4) {
            0 => 0,
            1 => 0xff,
            2 => changed[at] ^ (1 << chance.below(8)),
            _ => chance.below(256) as u8,
        };
    }
    changed
}
