//! Compares the lines of `--print` with those of `tcpdump -nn` and `tcpdump -nne`, packet by packet.
//!
//! Lines are equal as far as ours go: where tcpdump reads the payload of TCP, UDP or another protocol than DNS,
//! ours ends, or names the protocol and its length. Link types and Ethernet types with other protocols
//! are not compared.
//!
//! Intended differences:
//! - a header that contradicts itself is `[bad header]`, where tcpdump has many sentences;
//! - packets longer than 64 KiB, whose IPv4 header says 0, and segment routing headers with options are read,
//!   where tcpdump 4.99 refuses them;
//! - DNS: newer types have names; a record that is cut before its data is `[|domain]`; records of type A6,
//!   options in an OPT record, bit labels and the counts of inverse queries are not written; a name ends after
//!   255 bytes or 127 pointers, a message after 64 KiB of text;
//! - rare options of TCP are written by their numbers, and rare messages of ICMP by name;
//! - Linux cooked captures, version 2: tcpdump asks the machine that reads for the interface's
//!   name, we write the number in the header;
//! - times after 2038, which tcpdump refuses.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use jiff::tz::TimeZone;
use print::{Printer, TimeFormat};
use real_captures::real_captures;
use sluicegate::ring::{Meta, Packet};

#[path = "print_oracle/dns.rs"]
mod dns;
#[path = "../src/print/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the command's statistics need more of it than its lines"
)]
mod print;
#[path = "../../core/tests/real_captures/mod.rs"]
mod real_captures;

/// A packet as a capture file has it.
#[derive(Clone)]
struct OracleRecord {
    timestamp_ns: u64,
    wire_bytes: u32,
    bytes: Vec<u8>,
}

/// Packets of one link type.
struct Capture {
    link_type: u16,
    records: Vec<OracleRecord>,
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
            records.push(OracleRecord {
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

    /// Our lines, with or without the link header.
    fn ours(&self, link_header: bool) -> Vec<String> {
        let mut printer = Printer::new(TimeFormat::Time, TimeZone::UTC);
        printer.link_header = link_header;
        let mut text = String::new();
        for record in &self.records {
            let meta = Meta {
                timestamp_ns: record.timestamp_ns,
                wire_bytes: record.wire_bytes,
                ..Meta::default()
            };
            printer.line(&mut text, self.link_type, None, &Packet::new(&meta, &record.bytes));
        }
        text.lines().map(str::to_owned).collect()
    }
}

/// tcpdump's first line of each packet, with or without the link header.
fn theirs(path: &Path, link_header: bool) -> Vec<String> {
    let output = Command::new("tcpdump")
        .env("TZ", "UTC")
        .args(["--number", if link_header { "-nne" } else { "-nn" }, "-r"])
        .arg(path)
        .output()
        .expect("tcpdump runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = Vec::new();
    for line in text.lines() {
        // The packet's number tells its first line from those that follow.
        let number = format!("{:5}  ", lines.len() + 1);
        if let Some(line) = line.strip_prefix(&number) {
            lines.push(line.trim_end().to_owned());
        }
    }
    lines
}

/// Returns true if tcpdump has the version that `--print` follows.
fn have_tcpdump() -> bool {
    let Ok(output) = Command::new("tcpdump").arg("--version").output() else {
        eprintln!("skipped: needs tcpdump; get it by scripts/setup.sh");
        return false;
    };
    let says = [output.stdout, output.stderr].concat();
    let same = String::from_utf8_lossy(&says).contains("tcpdump version 4.99");
    if !same {
        eprintln!("skipped: needs tcpdump 4.99, whose words are ours; get it by Debian 12");
    }
    same
}

/// The protocols and messages that our lines only name.
const BY_NAME: &[&str] = &[
    " igmp,",
    " RSVP,",
    " GRE,",
    " sctp,",
    " AH,",
    " EIGRP,",
    " OSPF,",
    " PIM,",
    " IPComp,",
    " VRRP,",
    " mobility,",
    " router advertisement",
    " time stamp ",
    " address mask",
    " multicast listener ",
    " ip-proto-",
    " type-#",
    "unknown icmp6 type",
    "unknown unreach code",
];

/// The ends of our lines where a packet is cut, or contradicts itself.
const BROKEN: &[&str] = &[" [|", "[bad header]"];

/// Marks by which tcpdump reports a broken packet.
const BROKEN_THERE: &[&str] =
    &["[|", "bad", "invalid", "truncated", "version error", "remaining", "frag ("];

/// The link type whose lines name an interface and a kind of packet behind the time.
const LINUX_SLL2: u16 = 276;

/// Takes the second word out of each line.
fn without_second_words(lines: &[String]) -> Vec<String> {
    let cut = |line: &String| {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.split_once(' ').map_or("", |(_, rest)| rest);
        format!("{first} {}", rest.trim_start())
    };
    lines.iter().map(cut).collect()
}

/// An option of TCP that we write by its number.
const RARE: &str = "unknown-";

/// The class that a line of ours belongs to, by what it shows last.
fn class(ours: &str) -> &'static str {
    let has = |text: &str| ours.contains(text);
    match ours.split(' ').nth(1) {
        _ if ours.starts_with("[Invalid header") => "no packet",
        _ if BROKEN.iter().any(|broken| has(broken)) => "broken",
        Some("ARP,") if has(", hardware ") => "not claimed",
        Some("ARP,") => "ARP",
        // Their lines have ports, or words for each code.
        Some("IP" | "IP6") if [" DCCP, ", " unreachable - #"].iter().any(|it| has(it)) => {
            "not claimed"
        }
        Some("IP" | "IP6") if BY_NAME.iter().any(|name| has(name)) => "above IP, by name",
        Some("IP" | "IP6") if !has("ICMP") && !has("UDP, ") && dns::is_dns(ours) => "DNS",
        Some("IP" | "IP6") if has("Flags [") && has(RARE) => "TCP, rare options",
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

/// Returns true if two lines are equal as far as ours goes.
fn agrees(class: &str, ours: &str, theirs: &str) -> bool {
    let mut ours = ours.trim_end();
    let mut theirs = theirs;
    if let Some(rest) = theirs.strip_prefix("[Error converting time]") {
        // tcpdump has no words for a time after 2038.
        theirs = rest.trim_start();
        ours = ours.split_once(' ').map_or("", |(_, rest)| rest.trim_start());
    }
    // A length of 0 is the whole packet's, and a segment routing header may have options behind its addresses.
    let refused = theirs.contains("bad-len 0") || theirs.contains(" (invalid length ");
    if ours == theirs || refused {
        return true;
    }
    match class {
        "DNS" => dns::agrees(ours, theirs),
        _ if ours.ends_with(dns::CUT) => dns::agrees(ours, theirs),
        "no packet" => theirs.starts_with("[Invalid header"),
        "broken" => {
            let end = BROKEN.iter().chain(&[RARE]).filter_map(|broken| ours.find(broken)).min();
            theirs.starts_with(ours[..end.unwrap_or(ours.len())].trim_end_matches([']', ' ']))
                && (ours.contains(RARE)
                    || BROKEN_THERE.iter().any(|broken| theirs.contains(broken)))
        }
        // What TCP carries follows; a longer number does not.
        "TCP" => theirs
            .strip_prefix(ours)
            .is_some_and(|more| !more.starts_with(|next: char| next.is_ascii_digit())),
        "TCP, rare options" => {
            let known = ours.find(RARE).unwrap_or(ours.len());
            theirs.starts_with(&ours[..known])
        }
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
            theirs.starts_with(ours[..end.unwrap_or(ours.len())].trim_end())
                || theirs.ends_with("[|icmp]")
        }
        // A dump of the bytes follows; of types that tcpdump knows, its own words.
        "Ethernet" => {
            !theirs.contains("ethertype Unknown") || theirs.trim_end_matches([':', ',']) == ours
        }
        _ => false,
    }
}

/// Packets compared, and those whose lines differ, by what the lines show.
#[derive(Default)]
struct Tally(BTreeMap<&'static str, (usize, usize)>);

impl Tally {
    fn compare(&mut self, name: &str, capture: &Capture, path: &Path) {
        let cooked = capture.link_type == LINUX_SLL2;
        let mut plain = capture.ours(false);
        if cooked {
            plain = without_second_words(&without_second_words(&plain));
        }
        for link_header in [false, true] {
            let mut ours = capture.ours(link_header);
            let mut theirs = theirs(path, link_header);
            let packets = capture.records.len();
            assert_eq!(ours.len(), packets, "{name}: a line a packet");
            assert_eq!(theirs.len(), packets, "{name}: tcpdump, too");
            if cooked {
                (ours, theirs) = (without_second_words(&ours), without_second_words(&theirs));
            }
            for number in 0..packets {
                let class = class(&plain[number]);
                let (packets, differ) = self.0.entry(class).or_default();
                *packets += 1;
                let (ours, theirs) = (&ours[number], &theirs[number]);
                if class != "not claimed" && !agrees(class, ours, theirs) {
                    *differ += 1;
                    println!("{name} {}:\n  ours   {ours}\n  theirs {theirs}", number + 1);
                }
            }
        }
    }

    /// Prints the shares that agree; that of all we claim to write is to be this or better.
    fn assert_share(&self, floor: f64) {
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
        let share = good as f64 / all.max(1) as f64;
        assert!(share >= floor, "{good} of {all} agree, {share} is below {floor}");
    }
}

#[test]
fn real_captures_read_as_tcpdump_reads_them() {
    if !have_tcpdump() {
        return;
    }
    let mut tally = Tally::default();
    let files = real_captures();
    for path in &files {
        if let Some(capture) = Capture::open(path) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            tally.compare(&name, &capture, path);
        }
    }
    if !files.is_empty() {
        tally.assert_share(0.9995);
    }
}

/// An IPv4 packet in an Ethernet frame.
fn ip4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = (20 + payload.len() as u16).to_be_bytes();
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, total[0], total[1], 0, 7, 0, 0, 64, protocol, 0, 0]);
    frame.extend([198, 18, 0, 1, 198, 18, 0, 2]);
    frame.extend(payload);
    frame
}

/// An IPv6 packet in an Ethernet frame.
fn ip6(next: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u16).to_be_bytes();
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, length[0], length[1], next, 64]);
    for host in [1, 2] {
        frame.extend([0x20, 1, 0xd, 0xb8, 0, 0x18, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    }
    frame.extend(payload);
    frame
}

const UDP: [u8; 16] = [0x13, 0x88, 0x13, 0x89, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

/// A segment with these flags and options, and four bytes.
fn tcp(flags: u8, options: &[u8]) -> Vec<u8> {
    let header = 20 + options.len().next_multiple_of(4);
    let mut segment = vec![0x9c, 0x40, 0x13, 0x89, 1, 0, 0, 0, 2, 0, 0, 0];
    segment.extend([(header as u8) << 2, flags, 1, 0xf6, 0, 0, 0, 9]);
    segment.extend(options);
    segment.resize(header, 0);
    segment.extend([1, 2, 3, 4]);
    segment
}

/// Options of TCP: kind, then values whose length is put between.
fn tcp_options() -> Vec<Vec<u8>> {
    let mut all = vec![
        vec![2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7],
        vec![1, 1, 5, 18, 1, 0, 0, 1, 1, 0, 0, 9, 1, 0, 1, 0, 1, 0, 2, 0],
        vec![2, 4, 5, 0xb4, 0, 0, 0, 0],
        vec![4, 4, 1, 1],
        vec![3, 1],
        vec![1, 3, 40, 7],
    ];
    for kind in 0..=255 {
        for says in if kind <= 8 { 0..=38_u8 } else { 2..=4 } {
            let mut option = vec![1, kind, says];
            option.extend((3..=says).map(|byte| byte.wrapping_mul(3)));
            all.push(option);
        }
    }
    all
}

/// Packets with every type, code, operation and protocol number.
fn made() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let (inner4, inner6) = (ip4(17, &UDP), ip6(17, &UDP));
    let behind6 = ip6(60, &[&[6, 0, 1, 4, 0, 0, 0, 0], &UDP[..]].concat());
    for kind in 0..=255 {
        for code in if kind < 20 { 0..=17 } else { 0..=1 } {
            for field in [[0, 0, 0, 0], [3, 2, 5, 0xdc], [1, 1, 0xff, 0]] {
                let message = [&[kind, code, 0, 0][..], &field, &inner4[14..]].concat();
                all.push(ip4(1, &message));
            }
        }
        for code in if kind < 8 { 0..=8 } else { 0..=1 } {
            for inner in [&inner6, &behind6] {
                let message = [&[kind, code, 0, 0, 0, 1, 0, 5][..], &inner[14..]].concat();
                all.push(ip6(58, &message));
            }
        }
        all.push(ip4(kind, &[1; 48]));
        all.push(ip6(kind, &[0; 48]));
        all.push(ip6(44, &[&[kind, 0, 0, 1, 0, 0, 0, 7], &UDP[..]].concat()));
        all.push(ip6(51, &[&[kind, 4, 0, 0, 0, 0, 0, 1], &[7; 16][..], &UDP].concat()));
        let mut fragment = ip4(kind, &[1; 48]);
        fragment[20] = 0x20;
        fragment[21] = kind & 1;
        all.push(fragment);
        for (hardware, bytes) in [(1, 6), (6, 6), (99, 3)] {
            let mut packet = inner4[..12].to_vec();
            packet.extend([8, 6, 0, hardware, 8, 0, bytes, 4, 0, kind]);
            packet.extend((0..2 * (bytes + 4)).map(|byte| byte ^ kind));
            packet.resize(60, 0);
            all.push(packet);
        }
    }
    for length in 0..=64 {
        let mut datagram = [&UDP[..], &UDP, &UDP].concat();
        datagram[5] = length;
        all.push(ip4(17, &datagram));
        all.push(ip6(17, &datagram[..length.min(48).into()]));
        all.push(ip4(132, &datagram));
        all.push(ip4(6, &tcp(0x18, &[])[..(length % 24).into()]));
    }
    for flags in 0..=255 {
        all.push(ip4(6, &tcp(flags, &[])));
        all.push(ip6(6, &tcp(flags, &[1, 1, 4, 2])));
    }
    for options in tcp_options() {
        for flags in [2, 0x10, 0x12] {
            all.push(ip4(6, &tcp(flags, &options)));
        }
    }
    let tag = [0x81, 0, 0x20, 5];
    for frame in [&inner4, &inner6] {
        let once = [&frame[..12], &tag, &frame[12..]].concat();
        all.push([&once[..12], &[0x88, 0xa8, 0, 7], &once[12..]].concat());
        all.push(once);
        let length = (frame.len() as u16 - 14 + 8).to_be_bytes();
        let snap = [0xaa, 0xaa, 3, 0, 0, 0];
        all.push([&frame[..12], &length, &snap, &frame[12..]].concat());
    }
    for kind in [0, 2, 4] {
        let header = [17, 4, kind, 1, u8::from(kind == 4), 0, 0, 0];
        let routing = [&header, &[0x20; 32][..], &UDP].concat();
        all.push(ip6(43, &routing));
        // A router alert, padding, an option that nobody knows.
        for (option, says) in [(5, 2), (1, 20), (1, 2), (77, 20), (77, 1)] {
            let options = [&[43, 2, option, says][..], &[0; 20], &routing].concat();
            all.push(ip6(0, &options));
        }
    }
    all
}

/// The packets as they are, cut everywhere, and with bytes changed.
fn spoilt(packets: &[Vec<u8>]) -> Vec<OracleRecord> {
    let mut records = Vec::new();
    let mut add = |bytes: &[u8], wire_bytes: usize| {
        records.push(OracleRecord {
            timestamp_ns: 1_795_172_400_000_000_000 + records.len() as u64 * 1000,
            wire_bytes: wire_bytes as u32,
            bytes: bytes.to_vec(),
        });
    };
    // A sequence that is the same each time (Knuth's MMIX).
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for packet in packets {
        add(packet, packet.len());
        let cut = 1 + random(packet.len());
        add(&packet[..cut], packet.len());
        for changes in 1..=3 {
            let mut changed = packet.clone();
            for _ in 0..changes {
                let at = random(packet.len().min(100));
                changed[at] = random(256) as u8;
            }
            add(&changed, packet.len() + random(2) * 9);
        }
    }
    for packet in packets.iter().step_by(97) {
        for cut in 1..packet.len() {
            add(&packet[..cut], packet.len());
        }
    }
    records
}

/// Replaces the Ethernet header by that of another link type.
fn relinked(frame: &[u8], link_type: u16) -> Vec<u8> {
    let (ethertype, payload) = (&frame[12..14], &frame[14..]);
    let family: u32 = if ethertype == [8, 0] { 2 } else { 30 };
    let head = match link_type {
        0 => family.to_le_bytes().to_vec(),
        108 => family.to_be_bytes().to_vec(),
        113 => [&[0, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0], ethertype].concat(),
        276 => [ethertype, &[0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0]]
            .concat(),
        _ => Vec::new(),
    };
    [&head, payload].concat()
}

/// Each message in a datagram and in a segment, from and to the ports of DNS.
fn dns_packets() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for message in dns::messages() {
        for (from, to) in [(40_000_u16, 53_u16), (53, 40_000), (5353, 5353), (5353, 53)] {
            let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
            let length = (8 + message.len() as u16).to_be_bytes();
            let datagram = [&ports, &length[..], &[0, 0], &message].concat();
            all.push(if from == 53 { ip6(17, &datagram) } else { ip4(17, &datagram) });
            let length = (message.len() as u16).to_be_bytes();
            let header = [&ports, &tcp(0x18, &[])[4..20]].concat();
            all.push(ip4(6, &[&header, &length[..], &message].concat()));
        }
    }
    all
}

#[test]
fn dns_messages_read_as_tcpdump_reads_them() {
    if !have_tcpdump() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut tally = Tally::default();
    let path = folder.path().join("dns.pcap");
    let capture = Capture { link_type: 1, records: spoilt(&dns_packets()) };
    capture.save(&path).expect("room for a file");
    tally.compare("dns", &capture, &path);
    tally.assert_share(0.9995);
}

#[test]
fn other_link_types_read_as_tcpdump_reads_them() {
    if !have_tcpdump() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut tally = Tally::default();
    let frames: Vec<_> = made().into_iter().step_by(29).collect();
    for link_type in [0, 101, 108, 113, 228, 229, 276] {
        let ip_only = |frame: &&Vec<u8>| matches!(frame[12..14], [8, 0] | [0x86, 0xdd]);
        let frames = frames.iter().filter(ip_only);
        let packets: Vec<_> = frames.map(|frame| relinked(frame, link_type)).collect();
        let capture = Capture { link_type, records: spoilt(&packets) };
        let path = folder.path().join(format!("{link_type}.pcap"));
        capture.save(&path).expect("room for a file");
        tally.compare(&format!("link type {link_type}"), &capture, &path);
    }
    tally.assert_share(0.9995);
}

#[test]
fn made_and_spoilt_packets_read_as_tcpdump_reads_them() {
    if !have_tcpdump() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut tally = Tally::default();
    let path = folder.path().join("made.pcap");
    let capture = Capture { link_type: 1, records: spoilt(&made()) };
    capture.save(&path).expect("room for a file");
    tally.compare("made", &capture, &path);
    tally.assert_share(0.9995);
}
