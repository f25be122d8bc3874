//! Real captures, as tcpdump reads them.

use std::path::Path;

use sluicegate::file::read::Reader;

use crate::oracle::{have, ours, tcpdump};
use crate::real_captures::real_captures;

#[test]
fn every_sample_is_read_as_tcpdump_reads_it() {
    if !have("tcpdump") {
        return;
    }
    let mut wrong = Vec::new();
    for path in real_captures() {
        if let Err(how) = compare(&path) {
            wrong.push(format!("{}: {how}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn compare(path: &Path) -> Result<(), String> {
    let reading = ours(path);
    if let Some(error) = reading.error {
        return Err(error);
    }
    let (link_type, nano) = tcpdump(path, "nano", 1).ok_or("tcpdump did not run")?;
    let (_, micro) = tcpdump(path, "micro", 1000).ok_or("tcpdump did not run")?;
    let first_link_type = Reader::open(path).unwrap().interfaces()[0].link_type;
    if first_link_type != link_type {
        return Err(format!("link type {first_link_type}, not {link_type}"));
    }
    if reading.packets.len() != nano.len() {
        return Err(format!("{} packets, not {}", reading.packets.len(), nano.len()));
    }
    for (i, (ours, theirs)) in reading.packets.iter().zip(&nano).enumerate() {
        if ours.bytes != theirs.bytes {
            return Err(format!("packet {i} has other bytes"));
        }
        if (ours.wire_bytes, in_pcap(ours.timestamp_ns)) != (theirs.wire_bytes, theirs.timestamp_ns)
        {
            return Err(format!(
                "packet {i}: {} bytes on the wire at {}, not {} at {}",
                ours.wire_bytes, ours.timestamp_ns, theirs.wire_bytes, theirs.timestamp_ns
            ));
        }
        if in_pcap(ours.timestamp_ns) / 1000 != micro[i].timestamp_ns / 1000 {
            return Err(format!("packet {i} has another time in microseconds"));
        }
    }
    Ok(())
}

/// A time as the pcap format can say it, which is what tcpdump writes: seconds in 32 bits.
fn in_pcap(timestamp_ns: u64) -> u64 {
    timestamp_ns % (1_000_000_000 << 32)
}
