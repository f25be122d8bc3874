//! Files of `file::write`, read back by independent programs and libraries:
//! capinfos, tshark, tcpdump, libpcap, zstd, lz4 and gzip.

#[path = "../child/limit.rs"]
mod child;
mod failures;
#[path = "../child/lines.rs"]
mod lines;
mod processes;
mod queues;
mod read_back;
#[path = "../real_captures/mod.rs"]
mod real_captures;
mod rows;

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output as Ran, Stdio};
use std::time::Duration;

use proptest::prelude::*;
use sluicegate::Error;
use sluicegate::file::read::Reader;
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
    Meta { timestamp_ns: packet.time_ns, wire_bytes: packet.wire_bytes, ..Meta::default() }
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

/// Returns true if the programs are installed; prints which one is not.
fn have(tools: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for tool in tools {
        if !std::env::split_paths(&path).any(|directory| directory.join(tool).exists()) {
            eprintln!("skipped: needs {tool}; get it by scripts/setup.sh");
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
        Compression::Gzip => Some("gzip"),
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

/// The packets that tcpdump reads in a file's bytes, to the nanosecond.
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
    let ran = child::end(child);
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
