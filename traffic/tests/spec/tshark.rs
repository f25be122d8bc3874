//! Compares packets with Wireshark's dissectors, an independent implementation of the same RFCs.

use std::path::Path;
use std::process::Command;

use sluicegate::port::{Directions, OpenOptions, Port};
use sluicegate::ring::{Meta, Packet};

use crate::generate::{Random, stream};
use crate::generated::SPECIFICATIONS;
use crate::{frames, plan};

/// Writes packets into a file.
pub fn write(path: &Path, packets: &[Vec<u8>]) {
    let options = OpenOptions { usage: Directions::Send, ..OpenOptions::default() };
    let name = format!("pcap:{}", path.display()).parse().unwrap();
    let mut file = Port::open(&name, &options).unwrap().queues.remove(0);
    let mut meta = Meta::default();
    for (second, packet) in (1..).zip(packets) {
        // Far apart, so that no packet looks like a retransmission.
        meta.timestamp_ns = second * 1_000_000_000;
        while !file.tx_mut().push(&Packet::new(&meta, packet)) {
            file.sync_tx().unwrap();
        }
    }
    file.close_tx().unwrap();
}

/// Returns the fields that tshark prints of each packet.
pub fn tshark(path: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(path).args(["-T", "fields", "-E", "separator=|"]);
    for protocol in ["ip", "udp", "tcp"] {
        command.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
    }
    // tshark checks each packet on its own, not as part of a conversation.
    for setting in ["tcp.analyze_sequence_numbers", "ip.defragment", "ipv6.defragment"] {
        command.args(["-o", &format!("{setting}:FALSE")]);
    }
    for field in fields {
        command.args(["-e", field]);
    }
    let ran = command.output().unwrap();
    let complaint = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{complaint}");
    let lines = String::from_utf8(ran.stdout).unwrap();
    lines.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
}

pub fn have_tshark() -> bool {
    let found = Command::new("tshark").arg("--version").output().is_ok();
    if !found {
        println!("skipped: needs tshark; get it by scripts/setup.sh");
    }
    found
}

/// Wireshark's words for invalid, not only unusual, packets.
const COMPLAINTS: &[&str] = &["hecksum", "ength", "alformed", "ogus", "runcated", "hort", "exceed"];
/// Wireshark's remark about an empty packet.
const EMPTY: &str = "IPv6 payload length equals 0";
/// The severity of errors. Lower severities are warnings and notes on the meaning of random numbers.
const ERROR: u32 = 0x80_0000;
/// The status of a right or absent checksum.
const GOOD: &str = "1";
const NONE: &str = "3";

/// The protocols with a checksum status in tshark, and their names here.
const CHECKED: &[(&str, &str)] = &[
    ("ip.checksum.status", "ipv4"),
    ("udp.checksum.status", "udp"),
    ("tcp.checksum.status", "tcp"),
    ("icmp.checksum.status", "icmp"),
    ("icmpv6.checksum.status", "icmpv6"),
];

#[test]
fn tshark_accepts_200_generated_specifications() {
    if !have_tshark() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcap");
    let mut packets = Vec::new();
    let mut from = Vec::new();
    for seed in 0..SPECIFICATIONS {
        let made = stream(&mut Random::new(seed));
        for packet in frames(&plan(&made.text), 0, 1, 10) {
            packets.push(packet);
            from.push((made.text.clone(), made.layers.clone()));
        }
    }
    write(&path, &packets);
    let mut fields = vec!["_ws.expert.severity", "_ws.expert.message", "gre.checksum.status"];
    fields.extend(CHECKED.iter().map(|row| row.0));
    let said = tshark(&path, &fields);
    assert_eq!(said.len(), packets.len());
    for (line, (text, layers)) in said.iter().zip(&from) {
        check(line, layers).unwrap_or_else(|problem| panic!("{problem}: {line:?}\n{text}"));
    }
}

fn check(line: &[String], layers: &[&str]) -> Result<(), String> {
    let [severities, messages, gre, checksums @ ..] = line else { return Err("no line".into()) };
    let severities = severities.split(',').filter_map(|number| number.parse::<u32>().ok());
    if severities.max().is_some_and(|severity| severity >= ERROR) {
        return Err("an error".into());
    }
    let wrong = |message: &&str| COMPLAINTS.iter().any(|complaint| message.contains(complaint));
    if let Some(message) = messages.split(',').filter(|m| !m.contains(EMPTY)).find(wrong) {
        return Err(format!("a complaint: {message}"));
    }
    if !gre.split(',').all(|status| ["", GOOD].contains(&status)) {
        return Err("the checksum of gre".into());
    }
    for ((_, protocol), statuses) in CHECKED.iter().zip(checksums) {
        let statuses: Vec<_> = statuses.split(',').filter(|status| !status.is_empty()).collect();
        let layers = layers.iter().filter(|layer| *layer == protocol).count();
        let right = |status: &&str| [GOOD, NONE].contains(status);
        if statuses.len() != layers || !statuses.iter().all(right) {
            return Err(format!("{layers} checksums of {protocol}: {statuses:?}"));
        }
        if statuses.contains(&NONE) && *protocol != "udp" {
            return Err(format!("no checksum in {protocol}"));
        }
    }
    Ok(())
}

#[test]
fn tshark_reads_application_layers() {
    if !have_tshark() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("hosts");
    std::fs::write(&list, "# hosts\n192.0.2.7\n\n192.0.2.9\n").unwrap();
    let read = |layers: &str, names: &[&str]| -> Vec<String> {
        let text = format!("[[stream]]\nlayers = ['ether', 'ipv4', 'udp', {layers}]\n");
        let file = folder.path().join("packets.pcap");
        write(&file, &frames(&plan(&text), 0, 1, 3));
        let fields = [names, &["_ws.malformed", "_ws.expert.severity"]].concat();
        let mut rows = tshark(&file, &fields);
        for row in &mut rows {
            let severity = row.split_off(names.len());
            assert_eq!(severity[0], "", "{layers}: {row:?}");
            let severe = severity[1].split(',').filter_map(|one| one.parse::<u32>().ok());
            assert!(severe.max().unwrap_or(0) < ERROR, "{layers}: {row:?} {severity:?}");
        }
        rows.into_iter().map(|row| row.join(" ")).collect()
    };
    let names =
        ["dns.qry.name", "dns.qry.type", "dns.flags.response", "dns.a", "dns.id", "udp.dstport"];
    assert_eq!(read("'dns'", &names), ["example.com 1 0  0x0000 53"; 3]);
    let query = "{ dns = { name = 'a.example.org', type = 'aaaa,txt', id = '5..9' } }";
    let rows = ["28 0  0x0005", "16 0  0x0006", "28 0  0x0007"];
    assert_eq!(read(query, &names), rows.map(|row| format!("a.example.org {row} 53")));
    let answer = format!("{{ dns = {{ answer = 'file:{}', rcode = 0 }} }}", list.display());
    let rows = ["192.0.2.7", "192.0.2.9", "192.0.2.7"];
    assert_eq!(read(&answer, &names), rows.map(|ip| format!("example.com 1 1 {ip} 0x0000 53")));
    let names = ["quic.version", "quic.dcid", "quic.scid", "quic.packet_length", "udp.dstport"];
    // Above 16383 bytes the length has no room in two bytes.
    for bytes in [1200, 16_383, 16_384, 40_000] {
        let quic = format!(
            "{{ quic = {{ dcid = '7..9' }} }}, {{ payload = {{ random = true, length = {} }} }}",
            bytes - 28
        );
        let row = |id| format!("0x00000001 000000000000000{id} 0000000000000002 {bytes} 443");
        assert_eq!(read(&quic, &names), [7, 8, 9].map(row));
    }
    let numbers = "{ raw = { hex = 'aa' } }, { number = { value = '1..3', bytes = 2 } }, \
        { number = { value = '0xffffffffffffffff,5', bytes = 8 } }";
    let data = |number: u8, last: &str| format!("aa000{number}{last}");
    let [most, five] = ["ffffffffffffffff", "0000000000000005"];
    assert_eq!(read(numbers, &["data.data"]), [data(1, most), data(2, five), data(3, most)]);
}
