//! The parser on captures of real traffic.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use sluicegate_pcap::read::Reader;
use sluicegate_scrub::packet::{Parsed, parse};

use crate::real_captures::real_captures;

#[path = "../../core/tests/real_captures/mod.rs"]
mod real_captures;

/// The link type of Ethernet (LINKTYPE_ETHERNET).
const ETHERNET: u16 = 1;

#[test]
fn real_packets_are_well_formed() {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let mut captures = 0;
    for path in real_captures() {
        // Some captures are damaged on purpose, and end with an error.
        if let Err(error) = count(&path, &mut counts) {
            eprintln!("{}: {error}", path.display());
        }
        captures += 1;
    }
    println!("{captures} captures: {counts:?}");
    let of = |name| counts.get(name).copied().unwrap_or(0);
    let all: u32 = counts.values().sum();
    // Captures of attacks on parsers have malformed packets; most others have none.
    assert!(all == 0 || of("packet") > (all - of("not IP")) / 2, "{counts:?}");
}

/// Counts the kinds of frames in a capture.
fn count(path: &Path, counts: &mut BTreeMap<&'static str, u32>) -> Result<(), Box<dyn Error>> {
    let mut reader = Reader::open(path)?;
    while let Some(record) = reader.next_packet()? {
        let packet = record.packet();
        let interface = packet.meta().interface as usize;
        let bytes = packet.head();
        let is_whole = bytes.len() == packet.meta().wire_bytes as usize;
        let name = match parse(bytes) {
            Parsed::NotIp => "not IP",
            Parsed::Malformed(defect) => defect.name(),
            Parsed::Packet(_) => "packet",
        };
        if is_whole && reader.interfaces()[interface].link_type == ETHERNET {
            *counts.entry(name).or_default() += 1;
        }
    }
    Ok(())
}
