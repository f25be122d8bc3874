//! Counts by protocol, conversation and address, against those of tshark.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use sluicegate::link::Shape;

use crate::real_captures::real_captures;
use crate::support::*;

/// Packets and bytes by address, sent and received.
type Addresses = BTreeMap<String, [(u64, u64); 2]>;

fn by_tshark(file: &Path) -> Addresses {
    let names = ["ip.src", "ip.dst", "ipv6.src", "ipv6.dst", "eth.src", "eth.dst", "frame.len"];
    let mut more = vec!["-T", "fields", "-E", "occurrence=f"];
    names.iter().for_each(|name| more.extend(["-e", name]));
    let mut addresses = Addresses::new();
    for line in tshark(file, &more) {
        let fields: Vec<&str> = line.split('\t').collect();
        let bytes: u64 = fields[6].parse().unwrap();
        // Those of the outermost network protocol; a packet without IP on a cooked interface has none.
        let ends = [0, 2, 4].map(|at| &fields[at..at + 2]);
        let Some(ends) = ends.into_iter().find(|ends| !ends[0].is_empty()) else { continue };
        for (direction, address) in ends.iter().enumerate() {
            let (packets, sum) = &mut addresses.entry((*address).into()).or_default()[direction];
            (*packets, *sum) = (*packets + 1, *sum + bytes);
        }
    }
    addresses
}

fn number(tally: &Value, key: &str) -> u64 {
    tally[key].as_u64().unwrap_or_else(|| panic!("{key} in {tally}"))
}

fn ours(stats: &Value) -> Addresses {
    let rows = stats["addresses"]["top"].as_array().unwrap().iter();
    let tallies = |row: &Value| {
        ["sent", "received"].map(|it| (number(&row[it], "packets"), number(&row[it], "bytes")))
    };
    rows.map(|row| (row["address"].as_str().unwrap().to_owned(), tallies(row))).collect()
}

#[test]
fn counts_equal_tsharks() {
    if !have(&["tshark"]) {
        return;
    }
    // One file of each recorded conversation.
    let mut files = real_captures();
    files.retain(|path| path.to_string_lossy().ends_with("-micro.pcap"));
    let mut packets = 0;
    for file in &files {
        let path = file.to_str().unwrap();
        let report = run(&["capture", path, "--stats=10000", "--json"]).good();
        let stats = &report["stats"];
        let addresses = by_tshark(file);
        assert_eq!(ours(stats), addresses, "{path}");
        assert_eq!((&stats["packets"], &stats["bytes"]), (&report["packets"], &report["bytes"]));
        // Every packet has a protocol; one with addresses is part of a conversation.
        let sum = |rows: &Value, of: &dyn Fn(&Value) -> u64| -> u64 {
            rows["top"].as_array().unwrap().iter().map(of).sum()
        };
        let all = number(&report, "packets");
        assert_eq!(sum(&stats["protocols"], &|row| number(row, "packets")), all, "{path}");
        let both =
            |row: &Value| ["a_to_b", "b_to_a"].iter().map(|it| number(&row[*it], "packets")).sum();
        let with_addresses: u64 = addresses.values().map(|[sent, _]| sent.0).sum();
        assert_eq!(sum(&stats["conversations"], &both), with_addresses, "{path}");
        packets += all;
    }
    assert!(files.is_empty() || packets > 100, "{packets} packets compared");
}

#[test]
fn tables_are_printed_in_place_of_lines_and_so_far_on_request() {
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let file = folder.path().join("out.pcapng");
    let mut capture = Running::start(&[
        "capture",
        "xdp:right0",
        "--netns",
        &netns,
        "-w",
        file.to_str().unwrap(),
        "--stats=3",
        "-f",
        "udp",
    ]);
    let sent = ["--src", "198.18.0.1", "--dport", "53", "--flows", "5", "--count", "500"];
    let arguments = ["generate", "left0", "--netns", &lab.netns("left"), "--json"];
    run(&[&arguments[..], &sent, &["--dst", "198.18.0.2", "--sport", "2000-3000"]].concat()).good();
    capture.signal(nix::sys::signal::Signal::SIGUSR1);
    let so_far = capture.says();
    let ended = capture.stop();
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let (lines, so_far) = (ended.out.lines().collect::<Vec<_>>(), so_far + &ended.err);
    let row = |begins: &str| -> Vec<&str> {
        let line = lines.iter().find(|line| line.starts_with(begins));
        line.unwrap_or_else(|| panic!("{begins} in {}", ended.out)).split_whitespace().collect()
    };
    assert_eq!(row("  ip4 udp 53")[3..5], ["500", "100"], "{}", ended.out);
    assert_eq!(row("conversations: 3 of 5").len(), 8, "{}", ended.out);
    assert_eq!(row("  198.18.0.1 ")[1], "500", "{}", ended.out);
    assert!(so_far.contains("conversations"), "{so_far}");
    assert_eq!(packets(&file).len(), 500);
    // Lines only if requested.
    let path = file.to_str().unwrap();
    let quiet = run(&["capture", path, "--stats"]);
    assert!(!quiet.out.contains("UDP, length"), "{}", quiet.out);
    let both = run(&["capture", path, "--stats", "--print"]);
    assert_eq!(both.out.lines().count(), 500, "{}", both.out);
    assert!(both.err.contains("ip4 udp 53"), "{}", both.err);
    refused(&["capture", path, "--stats=0"], "use a number from 1 to 10000");
}
