//! Reads a file by other programs and by Sluice, and compares.

use std::path::Path;
use std::process::Command;

use pcap::{Capture, Precision};
use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{LegacyPcapReader, PcapBlockOwned, PcapError};
use sluicegate::Error;
use sluicegate::file::read::Reader;

/// A packet as anybody sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub timestamp_ns: u64,
    pub wire_bytes: u32,
    pub bytes: Vec<u8>,
}

/// The packets of a file, and what ended the reading if not the file's end.
#[derive(Debug)]
pub struct Reading {
    pub packets: Vec<Seen>,
    pub error: Option<String>,
}

/// As we read it.
pub fn ours(path: &Path) -> Reading {
    let mut reading = Reading { packets: Vec::new(), error: None };
    let mut reader = match Reader::open(path) {
        Ok(reader) => reader,
        Err(error) => {
            reading.error = Some(file_error(error));
            return reading;
        }
    };
    loop {
        match reader.next_packet() {
            Ok(Some(record)) => {
                let packet = record.packet();
                reading.packets.push(Seen {
                    timestamp_ns: packet.meta().timestamp_ns,
                    wire_bytes: packet.meta().wire_bytes,
                    bytes: packet.head().to_vec(),
                });
            }
            Ok(None) => break,
            Err(error) => {
                assert!(reading.error.is_none(), "a second error: {error}");
                reading.error = Some(file_error(error));
            }
        }
    }
    assert!(reader.next_packet().unwrap().is_none(), "the end stays");
    reading
}

fn file_error(error: Error) -> String {
    match error {
        Error::File { .. } => error.to_string(),
        other => panic!("a damaged file is no {other:?}"),
    }
}

/// As libpcap reads it, to the nanosecond.
pub fn libpcap(path: &Path) -> Reading {
    let mut packets = Vec::new();
    let error = match Capture::from_file_with_precision(path, Precision::Nano) {
        Err(error) => Some(error),
        Ok(mut capture) => loop {
            match capture.next_packet() {
                Ok(packet) => packets.push(Seen {
                    // libpcap 1.10.3 takes the seconds of a pcap file for signed.
                    timestamp_ns: (packet.header.ts.tv_sec.cast_unsigned())
                        .wrapping_mul(1_000_000_000)
                        .wrapping_add(packet.header.ts.tv_usec.cast_unsigned()),
                    wire_bytes: packet.header.len,
                    bytes: packet.data.to_vec(),
                }),
                Err(pcap::Error::NoMorePackets) => break None,
                Err(error) => break Some(error),
            }
        },
    };
    Reading { packets, error: error.map(|e| e.to_string()) }
}

/// As tcpdump copies it: link type and packets, times in units of `tick_ns`; none where tcpdump
/// is missing.
pub fn tcpdump(path: &Path, precision: &str, tick_ns: u64) -> Option<(u16, Vec<Seen>)> {
    let output = Command::new("tcpdump")
        .arg(format!("--time-stamp-precision={precision}"))
        .args(["-w", "-", "-r"])
        .arg(path)
        .output()
        .ok()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", path.display());
    let mut reader = LegacyPcapReader::new(1 << 20, &output.stdout[..]).unwrap();
    let mut link_type = 0;
    let mut packets = Vec::new();
    loop {
        match reader.next() {
            Ok((consumed, block)) => {
                match block {
                    PcapBlockOwned::LegacyHeader(header) => link_type = header.network.0 as u16,
                    PcapBlockOwned::Legacy(block) => packets.push(Seen {
                        timestamp_ns: u64::from(block.ts_sec) * 1_000_000_000
                            + u64::from(block.ts_usec) * tick_ns,
                        wire_bytes: block.origlen,
                        bytes: block.data.to_vec(),
                    }),
                    PcapBlockOwned::NG(_) => unreachable!("tcpdump writes no pcapng"),
                }
                reader.consume(consumed);
            }
            Err(PcapError::Eof) => return Some((link_type, packets)),
            Err(PcapError::Incomplete(_)) => reader.refill().unwrap(),
            Err(error) => panic!("{}: {error:?}", path.display()),
        }
    }
}

/// Returns true if a command can be run; prints that it cannot.
pub fn have(command: &str) -> bool {
    let found = Command::new(command).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: needs {command}; get it by scripts/setup.sh");
    }
    found
}
