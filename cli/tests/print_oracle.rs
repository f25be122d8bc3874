//! What `--print` writes against what tcpdump writes, packet by packet.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::tz::TimeZone;
use print::{Printer, TimeFormat};
use sluicegate::ring::{Meta, Packet};

#[path = "../src/print/mod.rs"]
#[allow(dead_code)]
mod print;

/// A packet as a capture file has it.
#[derive(Clone)]
struct Record {
    timestamp_ns: u64,
    wire_bytes: u32,
    bytes: Vec<u8>,
}

/// Packets of one link type.
struct Capture {
    link_type: u16,
    records: Vec<Record>,
}

impl Capture {
    /// Reads what libpcap, and so tcpdump, reads of a file.
    fn open(path: &Path) -> Option<Self> {
        let mut file = pcap::Capture::from_file(path).ok()?;
        let link_type = match file.get_datalink().0 {
            // libpcap's own number for LINKTYPE_RAW.
            12 => 101,
            number => u16::try_from(number).ok()?,
        };
        let mut records = Vec::new();
        while let Ok(packet) = file.next_packet() {
            let time = packet.header.ts;
            records.push(Record {
                timestamp_ns: (time.tv_sec as u64)
                    .saturating_mul(1_000_000)
                    .saturating_add(time.tv_usec as u64)
                    .saturating_mul(1000),
                wire_bytes: packet.header.len,
                bytes: packet.data.to_vec(),
            });
        }
        Some(Self { link_type, records })
    }

    /// Writes a pcap file, version 2.4, in microseconds.
    fn save(&self, path: &Path) -> io::Result<()> {
        let mut file = io::BufWriter::new(File::create(path)?);
        let link_type = u32::from(self.link_type);
        for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, link_type] {
            file.write_all(&word.to_le_bytes())?;
        }
        for record in &self.records {
            let us = record.timestamp_ns / 1000;
            let (seconds, us) = ((us / 1_000_000) as u32, (us % 1_000_000) as u32);
            let captured = record.bytes.len() as u32;
            for word in [seconds, us, captured, record.wire_bytes] {
                file.write_all(&word.to_le_bytes())?;
            }
            file.write_all(&record.bytes)?;
        }
        file.flush()
    }

    /// Our lines.
    fn ours(&self) -> Vec<String> {
        let mut printer = Printer::new(TimeFormat::Time, TimeZone::UTC);
        let mut text = String::new();
        for record in &self.records {
            let mut meta = Meta::default();
            meta.timestamp_ns = record.timestamp_ns;
            meta.wire_bytes = record.wire_bytes;
            printer.line(&mut text, self.link_type, &Packet::new(&meta, &record.bytes));
        }
        text.lines().map(str::to_owned).collect()
    }
}

/// tcpdump's first line of each packet.
fn theirs(path: &Path) -> Vec<String> {
    let output = Command::new("tcpdump")
        .env("TZ", "UTC")
        .args(["--number", "-nn", "-r"])
        .arg(path)
        .output()
        .expect("tcpdump runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = Vec::new();
    for line in text.lines() {
        // The packet's number tells its first line from those that follow.
        let number = format!("{:5}  ", lines.len() + 1);
        if let Some(line) = line.strip_prefix(&number) {
            // It misses a secret to check the digest with; we do not check.
            let line = line
                .replace("md5 shared secret not supplied with -M, can't check - ", "md5 ")
                .replace("md5 snaplen too short, can't check - ", "md5 ");
            lines.push(line.trim_end().to_owned());
        }
    }
    lines
}

/// Whether there is a tcpdump of the version whose words are ours.
fn have_tcpdump() -> bool {
    let Ok(output) = Command::new("tcpdump").arg("--version").output() else {
        eprintln!("skipped: there is no tcpdump to compare with");
        return false;
    };
    let says = [output.stdout, output.stderr].concat();
    let same = String::from_utf8_lossy(&says).contains("tcpdump version 4.99");
    if !same {
        eprintln!("skipped: the words are those of tcpdump 4.99");
    }
    same
}

/// What tcpdump looks into and we do not, by what our line has in its place.
const BY_NAME: &[&str] = &[
    ": igmp,",
    ": egp,",
    ": igrp,",
    ": RSVP,",
    ": GRE,",
    ": mobile,",
    ": EIGRP,",
    ": OSPF,",
    ": PIM,",
    ": VRRP,",
    ": PGM,",
    ": sctp,",
    ": DCCP,",
    ": mobility: ",
    ", router renumbering",
    ", who-are-you",
    ", RPL",
];

/// What a line shows in the end.
fn class(ours: &str) -> &'static str {
    let has = |text: &str| ours.contains(text);
    match ours.split(' ').nth(1) {
        _ if ours.starts_with("[Invalid header") => "no packet",
        Some("ARP,") => "ARP",
        Some("IP" | "IP6") if BY_NAME.iter().any(|name| has(name)) => "above IP, by name",
        Some("IP" | "IP6") if has("Flags [") => "TCP",
        Some("IP" | "IP6") if has(": UDP, ") => "UDP",
        Some("IP" | "IP6") if has(": ICMP ") => "ICMP",
        Some("IP" | "IP6") if has("ICMP6, ") => "ICMPv6",
        Some("IP") => "IPv4",
        Some("IP6") => "IPv6",
        _ if ours.ends_with("[|ether]") || ours.ends_with("[|vlan]") => "Ethernet",
        _ if has(", ethertype Unknown") => "Ethernet",
        _ => "not claimed",
    }
}

/// Whether two lines say the same, as far as ours says anything.
fn agrees(class: &str, ours: &str, theirs: &str) -> bool {
    let ours = ours.trim_end();
    if ours == theirs {
        return true;
    }
    match class {
        // What TCP carries follows; a longer number does not.
        "TCP" => theirs
            .strip_prefix(ours)
            .is_some_and(|more| !more.starts_with(|next: char| next.is_ascii_digit())),
        // Where tcpdump knows the port it writes what it finds in the place of a length.
        "UDP" => {
            let (head, _) = ours.split_once("UDP, ").unwrap_or((ours, ""));
            theirs.strip_prefix(head.trim_end()).is_some_and(|found| {
                !["UDP,", "[|udp]", "truncated-udp"]
                    .iter()
                    .any(|words| found.trim_start().starts_with(words))
            })
        }
        "above IP, by name" => {
            let end = BY_NAME.iter().find_map(|name| ours.find(name));
            theirs.starts_with(&ours[..end.unwrap_or(ours.len())])
        }
        // A dump of the bytes follows.
        "Ethernet" => theirs.trim_end_matches(':') == ours,
        _ => false,
    }
}

/// Packets compared, and those whose lines differ, by what the lines show.
#[derive(Default)]
struct Tally(BTreeMap<&'static str, (usize, usize)>);

impl Tally {
    fn compare(&mut self, name: &str, capture: &Capture, path: &Path) {
        let (ours, theirs) = (capture.ours(), theirs(path));
        let packets = capture.records.len();
        assert_eq!(ours.len(), packets, "{name}: a line a packet");
        assert_eq!(theirs.len(), packets, "{name}: tcpdump, too");
        for (number, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let class = class(ours);
            let (packets, differ) = self.0.entry(class).or_default();
            *packets += 1;
            // tcpdump has no words for a time after 2038.
            let theirs = match theirs.strip_prefix("[Error converting time]") {
                Some(rest) => &format!("{}{rest}", ours.split(' ').next().unwrap_or_default()),
                None => theirs,
            };
            if class != "not claimed" && !agrees(class, ours, theirs) {
                *differ += 1;
                println!("{name} {}:\n  ours   {ours}\n  theirs {theirs}", number + 1);
            }
        }
    }

    /// Prints the shares that agree; gives that of all we claim to write.
    fn share(&self) -> f64 {
        let (mut all, mut good) = (0, 0);
        for (class, (packets, differ)) in &self.0 {
            if *class == "not claimed" {
                println!("{class:18} {packets:6} packets");
                continue;
            }
            let share = 100.0 * (packets - differ) as f64 / *packets as f64;
            println!("{class:18} {packets:6} packets, {differ:4} differ: {share:.2} % agree");
            all += packets;
            good += packets - differ;
        }
        good as f64 / all.max(1) as f64
    }
}

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/pcaps");
    let Ok(entries) = fs::read_dir(&folder) else {
        eprintln!("skipped: no captures in {}", folder.display());
        return Vec::new();
    };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

#[test]
fn real_captures_read_as_tcpdump_reads_them() {
    if !have_tcpdump() {
        return;
    }
    let mut tally = Tally::default();
    let files = captures();
    for path in &files {
        if let Some(capture) = Capture::open(path) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            tally.compare(&name, &capture, path);
        }
    }
    let share = tally.share();
    if !files.is_empty() {
        assert!(share > 0.5, "only {share} agree");
    }
}
