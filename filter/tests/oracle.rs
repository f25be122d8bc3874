//! Compares filters with libpcap's own interpreter and tcpdump, which accept the same packets of real
//! captures.

#[path = "../../core/tests/corpus/mod.rs"]
mod corpus;
#[path = "../../core/tests/real_captures/mod.rs"]
mod real_captures;

use std::path::Path;
use std::process::Command;

use corpus::{EXPRESSIONS, link_type};
use real_captures::real_captures;
use sluicegate_filter::Filter;

/// The identity of a packet: seconds (of which tcpdump writes 32 bits), microseconds, length on the wire,
/// bytes.
type KeptPacket = (u32, i64, u32, Vec<u8>);

/// Returns the packets that pass an expression, up to the capture's end or its first defect; `None` if
/// libpcap cannot read it or compile the expression for it.
fn packets(path: &Path, expression: Option<&str>) -> Option<Vec<KeptPacket>> {
    let mut capture = pcap::Capture::from_file(path).ok()?;
    if let Some(expression) = expression {
        capture.filter(expression, true).ok()?;
    }
    let mut packets = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        let header = packet.header;
        packets.push((
            header.ts.tv_sec as u32,
            header.ts.tv_usec,
            header.len,
            packet.data.to_vec(),
        ));
    }
    Some(packets)
}

fn keep(filter: &Filter, packets: &[KeptPacket]) -> Vec<KeptPacket> {
    packets.iter().filter(|(_, _, wire, bytes)| filter.matches(bytes, *wire)).cloned().collect()
}

#[test]
fn the_same_packets_are_kept_as_by_libpcap() {
    let paths = real_captures();
    if paths.is_empty() {
        return;
    }
    let (mut pairs, mut refused, mut kept, mut seen) = (0, 0, 0, 0);
    for path in paths {
        let Some(all) = packets(&path, None) else {
            continue;
        };
        let link_type = link_type(&path);
        for expression in EXPRESSIONS {
            let oracle = packets(&path, Some(expression));
            let filter = Filter::compile(expression, link_type);
            let shown = format!("'{expression}' on {} (link type {link_type})", path.display());
            match (oracle, filter) {
                (Some(oracle), Ok(filter)) => {
                    let ours = keep(&filter, &all);
                    assert!(ours == oracle, "{shown}: {} kept, not {}", ours.len(), oracle.len());
                    kept += ours.len();
                    seen += all.len();
                    pairs += 1;
                }
                (None, Err(_)) => refused += 1,
                (oracle, filter) => panic!(
                    "{shown}: libpcap takes it: {}, here: {:?}",
                    oracle.is_some(),
                    filter.err()
                ),
            }
        }
    }
    eprintln!(
        "{pairs} pairs of capture and expression agree, {refused} are refused by both; \
         {kept} of {seen} packets kept"
    );
    assert!(kept > 0 && kept < seen);
}

#[test]
fn the_same_packets_are_kept_as_by_tcpdump() {
    if Command::new("tcpdump").arg("--version").output().is_err() {
        eprintln!("skipped: needs tcpdump; get it by scripts/setup.sh");
        return;
    }
    let paths = real_captures();
    if paths.is_empty() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("kept.pcap");
    let (mut pairs, mut refused) = (0, 0);
    // Combines every expression with some captures, and every capture with some expressions.
    for (at, path) in paths.iter().enumerate() {
        let Some(all) = packets(path, None) else {
            continue;
        };
        for expression in EXPRESSIONS.iter().skip(at % 31).step_by(31) {
            let filter = Filter::compile(expression, link_type(path));
            let mut tcpdump = Command::new("tcpdump");
            let output =
                tcpdump.arg("-r").arg(path).args(["-w", "-", "--", expression]).output().unwrap();
            let shown = format!("'{expression}' on {}", path.display());
            let Ok(filter) = filter else {
                assert!(output.stdout.is_empty(), "{shown}: only tcpdump takes it");
                refused += 1;
                continue;
            };
            std::fs::write(&out, &output.stdout).unwrap();
            let complaint = String::from_utf8_lossy(&output.stderr);
            let theirs = packets(&out, None).unwrap_or_else(|| panic!("{shown}: {complaint}"));
            let ours = keep(&filter, &all);
            assert!(ours == theirs, "{shown}: {} kept, not {}", ours.len(), theirs.len());
            pairs += 1;
        }
    }
    eprintln!("{pairs} pairs of capture and expression agree, {refused} are refused by both");
    assert!(pairs > 0);
}
