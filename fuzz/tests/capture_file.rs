//! Damaged capture files: the reader ends, with one error at most, and the port hands out what
//! the reader reads.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bolero::TypeGenerator;
use nix::sys::memfd::{MFdFlags, memfd_create};
use real_captures::real_captures;
use sluicegate::file::read::Reader;
use sluicegate::port::{OpenOptions, Port};
use sluicegate::ring::Meta;

#[path = "../../core/tests/real_captures/mod.rs"]
mod real_captures;

/// How a seed is damaged.
#[derive(Clone, Debug, TypeGenerator)]
struct Damage {
    seed: u16,
    changes: Vec<Change>,
    /// Where the file ends, counted from its real end.
    cut: Option<u16>,
}

#[derive(Clone, Debug, TypeGenerator)]
enum Change {
    Byte {
        at: u16,
        value: u8,
    },
    /// A length, a type or a magic number.
    Number {
        at: u16,
        value: u32,
    },
    Insert {
        at: u16,
        bytes: [u8; 4],
    },
    Remove {
        at: u16,
        count: u8,
    },
    /// A part of the file once more, somewhere else.
    Repeat {
        from: u16,
        to: u16,
        count: u8,
    },
}

#[test]
fn capture_file() {
    let seeds = seeds();
    bolero::check!().with_type::<Damage>().for_each(|damage| try_file(&damage.apply(&seeds)));
}

impl Damage {
    fn apply(&self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut file = seeds[usize::from(self.seed) % seeds.len()].clone();
        for change in self.changes.iter().take(16) {
            let place = |at: u16| usize::from(at) % (file.len() + 1);
            match *change {
                Change::Byte { at, value } => overwrite(&mut file, at, &[value]),
                Change::Number { at, value } => overwrite(&mut file, at, &value.to_le_bytes()),
                Change::Insert { at, bytes } => {
                    let at = place(at);
                    file.splice(at..at, bytes);
                }
                Change::Remove { at, count } => {
                    let at = place(at);
                    let end = file.len().min(at + usize::from(count));
                    file.drain(at..end);
                }
                Change::Repeat { from, to, count } => {
                    let (from, to) = (place(from), place(to));
                    let end = file.len().min(from + usize::from(count));
                    let part = file[from..end].to_vec();
                    file.splice(to..to, part);
                }
            }
        }
        if let Some(cut) = self.cut {
            file.truncate(file.len() - usize::from(cut) % (file.len() + 1));
        }
        file
    }
}

fn overwrite(file: &mut [u8], at: u16, bytes: &[u8]) {
    let start = usize::from(at) % file.len().max(1);
    for (to, from) in file.iter_mut().skip(start).zip(bytes) {
        *to = *from;
    }
}

fn try_file(bytes: &[u8]) {
    let memory = File::from(memfd_create(c"capture", MFdFlags::MFD_CLOEXEC).unwrap());
    memory.write_all_at(bytes, 0).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
    let Some((packets, failed)) = read(&path) else {
        return;
    };
    let name = format!("pcap:{}?slots=64", path.display());
    assert_eq!((packets, failed), through_port(&name));
}

type Packets = Vec<(Meta, Vec<u8>)>;

/// The packets in a file and whether it ended with an error; none if it cannot be opened.
fn read(path: &Path) -> Option<(Packets, bool)> {
    let mut reader = Reader::open(path).ok()?;
    let mut packets = Vec::new();
    let mut failed = false;
    loop {
        match reader.next_packet() {
            Ok(Some(record)) => {
                let _ = (record.queue(), record.comments().count());
                let packet = record.packet();
                packets.push((*packet.meta(), packet.head().to_vec()));
            }
            Ok(None) => break,
            Err(_) => assert!(!std::mem::replace(&mut failed, true), "two errors"),
        }
    }
    let known = reader.interfaces().len();
    assert!(packets.iter().all(|(meta, _)| (meta.interface as usize) < known));
    Some((packets, failed))
}

fn through_port(name: &str) -> (Packets, bool) {
    let mut port = Port::open(&name.parse().unwrap(), &OpenOptions::default()).unwrap();
    let queue = &mut port.queues[0];
    let mut packets = Vec::new();
    let mut failed = false;
    let mut scratch = Vec::new();
    while !queue.is_finished() {
        match queue.sync_rx() {
            // Compressed data comes from a thread.
            Ok(0) => std::thread::yield_now(),
            Ok(_) => {}
            Err(_) => assert!(!std::mem::replace(&mut failed, true), "two errors"),
        }
        for packet in queue.rx().packets() {
            packets.push((*packet.meta(), packet.contiguous(&mut scratch).to_vec()));
        }
        let seen = queue.rx().available();
        queue.rx_mut().release(seen);
    }
    (packets, failed)
}

/// The real captures of up to 16 KiB; if there are none, a file of each format without packets.
fn seeds() -> Vec<Vec<u8>> {
    const SEED_BYTES: u64 = 16 << 10;
    let mut seeds: Vec<Vec<u8>> = real_captures()
        .iter()
        .filter(|path| path.metadata().is_ok_and(|m| m.len() <= SEED_BYTES))
        .filter_map(|path| std::fs::read(path).ok())
        .filter(|bytes| !bytes.is_empty())
        .collect();
    seeds.sort();
    if seeds.is_empty() {
        seeds.push(b"\xd4\xc3\xb2\xa1\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\x04\0\x01\0\0\0".to_vec());
        seeds.push(
            b"\x0a\x0d\x0d\x0a\x1c\0\0\0\x4d\x3c\x2b\x1a\x01\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\
              \x1c\0\0\0\x01\0\0\0\x14\0\0\0\x01\0\0\0\0\0\0\0\x14\0\0\0"
                .to_vec(),
        );
    }
    seeds
}
