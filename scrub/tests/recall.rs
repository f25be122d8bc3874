//! Recall by class of attack, and false positives in peace, of the policy in profiles/server.toml.
//!
//! Generated floods are always measured. Captures need `SCRUB_ATTACKS` (StopDDoS/packet-captures, and
//! CIC-DDoS-2019-SynFlood.pcap of doriguzzi/lucid-ddos) and `SCRUB_PEACE` (folders, joined by `:`; files
//! in peace-excluded.txt are left out):
//!
//! ```text
//! SCRUB_ATTACKS=DIR SCRUB_PEACE=DIR:DIR cargo test -p sluicegate-scrub --test recall -- --nocapture
//! ```

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use sluicegate::port::LINKTYPE_ETHERNET;
use sluicegate_filter::Filter;
use sluicegate_pcap::read::Reader;
use sluicegate_scrub::packet::{Parsed, parse, protocol};
use sluicegate_scrub::policy::{Policy, Verdict};
use sluicegate_scrub::rehearsal::{Rehearsal, deciding_parts};
use sluicegate_scrub::testing::{Fragment, FrameSpec, Random};

mod root;

const MIN_RECALL: f64 = 0.99;
const MAX_FALSE: f64 = 0.001;
const LIMIT_KEYS: u32 = 1 << 18;
const SECOND: u64 = 1_000_000_000;
/// Idle time between captures: flows are forgotten.
const GAP: u64 = 600 * SECOND;
/// Packets of a generated flood: 500,000 packets a second.
const FLOOD: usize = 100_000;
const FLOOD_INTERVAL: u64 = 2_000;

const SYN_ACK: &str = "tcp[tcpflags] & (tcp-syn|tcp-ack) = (tcp-syn|tcp-ack)";
/// No flood: a policy that stops single SYN-ACKs stops all connections that the server opens.
const TRICKLE: &str = "SYN-ACK, 1 a second";

/// Captures of attacks: file, class, the packets of the attack. A file's other packets are the victim's own.
const CAPTURES: &[(&str, &str, &str)] = &[
    ("CIC-DDoS-2019-SynFlood.pcap", "SYN, one source", "tcp[tcpflags] & tcp-syn != 0"),
    ("pkt.TCP.synflood.spoofed.pcap", "SYN, random sources", "tcp[tcpflags] & tcp-syn != 0"),
    ("pkt.TCP.DOMINATE.syn.ecn.cwr.pcapng", "SYN with ECN", "tcp[tcpflags] & tcp-syn != 0"),
    (
        "amp.TCP.syn.optionallyACK.optionallysamePort.pcapng",
        "SYN, 1 a second",
        "tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn",
    ),
    ("amp.TCP.syn.optionallyACK.optionallysamePort.pcapng", TRICKLE, SYN_ACK),
    ("amp.TCP.reflection.SYNACK.pcap", "SYN-ACK, reflected", SYN_ACK),
    (
        "amp.UDP.bacnet.IOT.37810.pcapng",
        "bacnet, dvr",
        "udp and (src port 47808 or src port 37810)",
    ),
    ("amp.UDP.isakmp.pcap", "ipsec-nat", "udp and src port 4500"),
    ("amp.UDP.snmp.src161.pcapng", "snmp", "udp and src port 161"),
    (
        "amp.dns.RRSIG.fragmented.pcap",
        "dns, fragments",
        "udp and (ip[6:2] & 0x3fff != 0 or src port 53 and greater 600)",
    ),
];

/// Packets, and their sources: all, and those that pass.
#[derive(Default)]
struct Count {
    packets: u64,
    passed: u64,
    dropped: u64,
    sources: HashMap<String, Seen>,
}

#[derive(Default)]
struct Seen {
    is_passed: bool,
    is_dropped: bool,
}

impl Count {
    fn add(&mut self, frame: &[u8], verdict: Verdict) {
        self.packets += 1;
        // Only a parsed frame has a source.
        let mut none = Seen::default();
        let seen = match parse(frame) {
            Parsed::Packet(packet) => self.sources.entry(packet.src.to_string()).or_default(),
            _ => &mut none,
        };
        match verdict {
            Verdict::Pass => (self.passed, seen.is_passed) = (self.passed + 1, true),
            Verdict::Drop => (self.dropped, seen.is_dropped) = (self.dropped + 1, true),
            Verdict::Answer => {}
        }
    }

    /// Returns the part of packets that are stopped, and of sources of which all are.
    fn recall(&self) -> (f64, f64) {
        let passed = self.sources.values().filter(|it| it.is_passed).count();
        let part = |passed: u64, all: u64| 1.0 - passed as f64 / all.max(1) as f64;
        (part(self.passed, self.packets), part(passed as u64, self.sources.len() as u64))
    }

    /// Returns the part of packets that are dropped, and of sources of which one is.
    fn loss(&self) -> (f64, f64) {
        let dropped = self.sources.values().filter(|it| it.is_dropped).count();
        let part = |dropped: u64, all: u64| dropped as f64 / all.max(1) as f64;
        (part(self.dropped, self.packets), part(dropped as u64, self.sources.len() as u64))
    }
}

/// A rehearsal of recordings one after the other.
struct Measured {
    rehearsal: Rehearsal,
    now: u64,
}

impl Measured {
    fn new(policy: &Policy) -> Self {
        let rehearsal = match root::is_root() {
            true => Rehearsal::by_program(policy, LIMIT_KEYS).unwrap(),
            false => Rehearsal::by_oracle(policy),
        };
        Self { rehearsal, now: SECOND }
    }

    fn decide(&mut self, frame: &[u8], now: u64) -> Verdict {
        self.now = self.now.max(now);
        let before = Verdict::ALL.map(|it| self.rehearsal.of_verdict(it).packets());
        self.rehearsal.decide(frame, self.now).unwrap_or_else(|error| panic!("{error}"));
        let grown = |it: &Verdict| self.rehearsal.of_verdict(*it).packets() > before[*it as usize];
        *Verdict::ALL.iter().find(|it| grown(it)).unwrap()
    }

    /// Decides on the packets of a capture. Returns those that are skipped.
    fn capture(&mut self, path: &Path, mut each: impl FnMut(&[u8], Verdict)) -> u64 {
        let (mut skipped, mut last, mut gap) = (0, 0, GAP);
        let Ok(mut reader) = Reader::open(path) else { return 0 };
        // Some captures are damaged; the packets before count.
        while let Ok(Some(record)) = reader.next_packet() {
            let packet = record.packet();
            let (meta, frame) = (*packet.meta(), packet.head().to_vec());
            let time = meta.timestamp_ns;
            let link_type = reader.interfaces()[meta.interface as usize].link_type;
            if self.rehearsal.skip_reason(&frame, &meta, link_type).is_some() {
                skipped += 1;
                continue;
            }
            // A file may have several recordings, not in order.
            if gap == 0 {
                gap = if time + SECOND < last { GAP } else { time.saturating_sub(last).min(GAP) };
            }
            last = time;
            let verdict = self.decide(&frame, self.now + std::mem::take(&mut gap));
            each(&frame, verdict);
        }
        skipped
    }
}

/// Returns the path of a file of this crate.
fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn policy() -> Policy {
    Policy::read(&path("profiles/server.toml")).unwrap_or_else(|error| panic!("{error}"))
}

/// Prints a row. Returns its name if it misses the goal.
fn row(class: &str, origin: &str, count: &Count, misses: &mut Vec<String>) {
    let (packets, sources) = count.recall();
    println!(
        "{class:<22} {origin:<52} {:>7} {packets:>7.4} {:>7} {sources:>7.4}",
        count.packets,
        count.sources.len()
    );
    if packets < MIN_RECALL && class != TRICKLE {
        misses.push(class.to_owned());
    }
}

#[test]
fn generated_floods_are_stopped() {
    let policy = policy();
    let mut misses = Vec::new();
    for (class, make) in generated() {
        let mut random = Random::new(7);
        let mut count = Count::default();
        let mut measured = Measured::new(&policy);
        for number in 0..FLOOD {
            let frame = make(&mut random, number).build();
            let verdict = measured.decide(&frame, SECOND + number as u64 * FLOOD_INTERVAL);
            count.add(&frame, verdict);
        }
        row(class, "generated", &count, &mut misses);
    }
    assert!(misses.is_empty(), "below {MIN_RECALL}: {misses:?}");
}

#[test]
fn recorded_attacks_are_stopped() {
    let Some(folder) = env::var_os("SCRUB_ATTACKS") else {
        println!("skipped: needs SCRUB_ATTACKS, a folder of captures of attacks");
        return;
    };
    let policy = policy();
    let mut misses = Vec::new();
    for (file, class, expression) in CAPTURES {
        let path = Path::new(&folder).join(file);
        if !path.exists() {
            println!("{class:<22} skipped: {file} is absent");
            continue;
        }
        let filter = Filter::compile(expression, LINKTYPE_ETHERNET).unwrap();
        let (mut attack, mut rest) = (Count::default(), Count::default());
        let mut measured = Measured::new(&policy);
        measured.capture(&path, |frame, verdict| {
            let is_attack = filter.matches(frame, frame.len() as u32);
            if is_attack { &mut attack } else { &mut rest }.add(frame, verdict);
        });
        row(class, file, &attack, &mut misses);
        let (dropped, _) = rest.loss();
        println!("{:<22} other packets: {}, dropped {dropped:.4}", "", rest.packets);
    }
    assert!(misses.is_empty(), "below {MIN_RECALL}: {misses:?}");
}

#[test]
fn peace_passes() {
    let Some(folders) = env::var_os("SCRUB_PEACE") else {
        println!("skipped: needs SCRUB_PEACE, folders of captures without attacks");
        return;
    };
    let list = fs::read_to_string(path("tests/peace-excluded.txt")).unwrap();
    let lines = list.lines().filter(|it| !it.starts_with('#'));
    let excluded: HashSet<_> = lines.filter_map(|it| it.split_whitespace().next()).collect();
    let entries = env::split_paths(&folders).flat_map(|it| fs::read_dir(it).unwrap());
    let mut paths: Vec<PathBuf> = entries.map(|it| it.unwrap().path()).collect();
    paths.retain(|it| !excluded.contains(it.file_name().unwrap().to_str().unwrap()));
    paths.sort();
    let policy = policy();
    let mut measured = Measured::new(&policy);
    let (mut all, mut skipped) = (Count::default(), 0);
    let mut losses = Vec::new();
    let mut before = HashMap::new();
    for path in &paths {
        skipped += measured.capture(path, |frame, verdict| all.add(frame, verdict));
        for part in deciding_parts(&policy, &[&measured.rehearsal]) {
            let Some(tally) = measured.rehearsal.decided_by(&part) else { continue };
            let name = format!("{} {}", part.stage.name(), part.name);
            let old = before.insert((name.clone(), part.verdict), tally.packets()).unwrap_or(0);
            if part.verdict == Verdict::Drop && tally.packets() > old {
                losses.push((tally.packets() - old, name, path.file_name().unwrap()));
            }
        }
    }
    let (packets, sources) = all.loss();
    println!(
        "peace: {} captures, {} packets ({skipped} skipped), {} sources: dropped {} packets, {:.3} %, {:.3} % of sources",
        paths.len(),
        all.packets,
        all.sources.len(),
        all.dropped,
        packets * 100.0,
        sources * 100.0
    );
    for part in deciding_parts(&policy, &[&measured.rehearsal]) {
        let Some(tally) = measured.rehearsal.decided_by(&part) else { continue };
        println!(
            "  {:<14} {:<44} {:<7} {:>7} packets {:>6} sources",
            part.stage.name(),
            part.name,
            part.verdict.name(),
            tally.packets(),
            tally.sources()
        );
    }
    losses.sort_by_key(|(dropped, ..)| u64::MAX - dropped);
    for (dropped, part, file) in losses {
        println!("  {dropped:>6} of {} by {part}", file.display());
    }
    assert!(packets <= MAX_FALSE && sources <= MAX_FALSE, "dropped: {packets}, {sources}");
}

type Make = fn(&mut Random, usize) -> FrameSpec;

/// Returns the generated floods.
fn generated() -> Vec<(&'static str, Make)> {
    vec![
        ("SYN, random sources", |random, _| from_any(tcp(random, 0x02), random)),
        ("SYN, 100 sources", |random, number| from_few(tcp(random, 0x02), number)),
        ("SYN-ACK", |random, number| {
            let spec = FrameSpec { sport: 443, dport: port(random), ..tcp(random, 0x12) };
            from_some(spec, number)
        }),
        ("ACK", |random, _| from_any(tcp(random, 0x10), random)),
        ("UDP, random sources", |random, _| {
            let payload = random.bytes(random.clone().below(1400));
            from_any(FrameSpec::udp(port(random), port(random), &payload), random)
        }),
        ("dns", |random, number| {
            reflected(53, 1024, b"\x1a\x2b\x81\x80\x00\x01\x00\x14", random, number)
        }),
        ("ntp", |random, number| {
            reflected(123, 468, b"\xd7\x00\x03\x2a\x00\x06\x00\x48", random, number)
        }),
        ("cldap", |random, number| {
            reflected(389, 1500, b"\x30\x84\x00\x00\x05\xce\x02\x01", random, number)
        }),
        ("ssdp", |random, number| reflected(1900, 1024, b"HTTP/1.1 200 OK\r\n", random, number)),
        ("memcached", |random, number| {
            reflected(11211, 1400, b"\0\x01\0\0\0\x09\0\0VALUE a 0 ", random, number)
        }),
        ("snmp", |random, number| {
            reflected(161, 512, b"\x30\x82\x01\xe0\x02\x01\x01\x04\x06public", random, number)
        }),
        ("chargen", |random, number| reflected(19, 1024, b" !\"#$%&'()*+,-./", random, number)),
        ("wsd", |random, number| reflected(3702, 1024, b"<?xml version=", random, number)),
        ("coap", |random, number| reflected(5683, 512, b"\x60\x45\x12\x34\xc0", random, number)),
        ("fragments", |random, number| {
            let fragment =
                Some(Fragment { offset: (number % 2 * 185) as u16, more: number % 2 == 0 });
            let spec = FrameSpec::udp(port(random), port(random), &[0; 1472]);
            from_any(FrameSpec { fragment, ..spec }, random)
        }),
        ("ICMP", |random, _| {
            let spec = FrameSpec {
                protocol: protocol::ICMP,
                payload: vec![0; 56],
                ..FrameSpec::default()
            };
            from_any(spec, random)
        }),
    ]
}

fn port(random: &mut Random) -> u16 {
    random.between(1024, 65_535) as u16
}

fn tcp(random: &mut Random, tcp_flags: u8) -> FrameSpec {
    let (sport, seq) = (port(random), random.number() as u32);
    FrameSpec { sport, seq, tcp_flags, ..FrameSpec::default() }
}

/// Sets a source of all addresses from 11.0.0.0 on.
fn from_any(spec: FrameSpec, random: &mut Random) -> FrameSpec {
    from(spec, random.between(11 << 24, (224 << 24) - 1) as u32)
}

/// Sets one of 2000 sources, as of reflectors.
fn from_some(spec: FrameSpec, number: usize) -> FrameSpec {
    from(spec, (11 << 24) + (number % 2000 * 7919) as u32)
}

/// Sets one of 100 sources.
fn from_few(spec: FrameSpec, number: usize) -> FrameSpec {
    from(spec, (11 << 24) + (number % 100) as u32)
}

fn from(spec: FrameSpec, address: u32) -> FrameSpec {
    FrameSpec { src: std::net::Ipv4Addr::from(address).into(), ..spec }
}

/// An answer of a reflector: a frame of `size` bytes.
fn reflected(
    sport: u16,
    size: usize,
    begin: &[u8],
    random: &mut Random,
    number: usize,
) -> FrameSpec {
    let mut payload = begin.to_vec();
    payload.resize(size - 42, b'x');
    from_some(FrameSpec::udp(sport, port(random), &payload), number)
}
