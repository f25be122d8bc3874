//! Files as sources and targets, and requests that are refused before anything happens.

use super::*;

#[test]
fn a_file_that_goes_through_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (file, copy) = (folder.path().join("file.pcap"), folder.path().join("copy.pcap"));
    numbered(&file, 0..10_000, 1_700_000_000_000_000_000, 1000);
    let [from, to] = [&file, &copy].map(|path| format!("pcap:{}", path.display()));
    let report = run(&["forward", &from, &to, "--one-way", "--json"]).good();
    assert_eq!(direction(&report, 0), [10_000, 0, 10_000], "{report}");
    assert_eq!(packets(&file), packets(&copy), "times and bytes");

    let some = ["forward", &from, &to, "--one-way", "--count", "777", "--json"];
    let report = run(&some).good();
    assert_eq!(direction(&report, 0)[0], 777, "{report}");
    assert!(numbers(&copy).into_iter().eq(0..777));

    let filter = ["-f", "ether[17] = 0"];
    let report = run(&[&["forward", &from, &to, "--one-way", "--json"], &filter[..]].concat());
    assert_eq!(direction(&report.good(), 0)[0], 40);
    assert!(numbers(&copy).into_iter().eq((0..10_000).step_by(256)));
}

#[test]
fn the_result_goes_to_stderr_if_packets_go_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let [file, copy] = ["file.pcap", "copy.pcapng"].map(|it| folder.path().join(it));
    numbered(&file, 0..100, 1_700_000_000_000_000_000, 1000);
    let (sluice, copy_to) = (env!("CARGO_BIN_EXE_sluice"), copy.display());
    let from = format!("pcap:{}", file.display());
    let line = format!("{sluice} forward {from} pcap:- --one-way --json > {copy_to}");
    let ended = ended(Command::new("sh").args(["-c", &line]));
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    assert_eq!(packets(&copy), packets(&file));
    assert!(ended.err.contains("\"ledger\""), "{}", ended.err);
}

#[test]
fn packets_of_another_link_type_than_the_targets_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [file, copy, socket] =
        ["file.pcap", "copy.pcap", "socket"].map(|it| folder.path().join(it));
    let words = |words: [u32; 6]| words.map(u32::to_le_bytes).concat();
    // A file header, LINKTYPE_RAW, and a packet of 20 bytes: (time, length) and an IPv4 header.
    let header = words([0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 101]);
    let packet = [words([1_700_000_000, 0, 20, 20, 0x1400_0045, 0]), vec![0; 12]].concat();
    std::fs::write(&file, [header, packet].concat()).unwrap();
    let from = format!("pcap:{}", file.display());
    let to = format!("memif:{}?role=server", socket.display());
    let refused = run(&["forward", &from, &to, "--one-way"]);
    assert_eq!(refused.status, Some(2), "{}", refused.err);
    assert!(refused.err.contains("has packets of link type 101"), "{}", refused.err);
    for to in ["null:", &format!("pcap:{}", copy.display())] {
        let report = run(&["forward", &from, to, "--one-way", "--json"]).good();
        assert_eq!(direction(&report, 0)[0], 1, "{report}");
    }
    assert_eq!(packets(&file), packets(&copy));
}

#[test]
fn headers_change_on_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let [file, tagged, plain] = ["file", "tagged", "plain"].map(|it| folder.path().join(it));
    numbered(&file, 0..1000, 1_700_000_000_000_000_000, 1000);
    let port = |path: &std::path::Path| format!("pcap:{}", path.display());
    let (smac, dmac) = ("02:00:00:00:00:0a", "02:00:00:00:00:0b");
    for (from, to, change) in [
        (&file, &tagged, &["--vlan", "push:7", "--smac", smac, "--dmac", dmac][..]),
        (&tagged, &plain, &["--vlan", "pop"]),
    ] {
        let arguments = ["forward", &port(from), &port(to), "--one-way", "--json"];
        let report = run(&[&arguments[..], change].concat()).good();
        assert_eq!(direction(&report, 0)[0], 1000, "{report}");
    }
    let addresses = [2, 0, 0, 0, 0, 11, 2, 0, 0, 0, 0, 10];
    for (number, ((_, tagged), (_, plain))) in
        packets(&tagged).into_iter().zip(packets(&plain)).enumerate()
    {
        let rest = &frame(number as u32)[12..];
        assert_eq!(tagged, [&addresses[..], &[0x81, 0, 0, 7], rest].concat());
        assert_eq!(plain, [&addresses[..], rest].concat());
    }
}

#[test]
fn loops_and_endless_runs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file.pcap");
    numbered(&file, 0..10, 0, 1000);
    let file = format!("pcap:{}", file.display());
    for (arguments, said) in [
        (&["xdp:lo", "packet:lo"][..], "same interface"),
        (&["packet:lo", "packet:lo", "--one-way"], "same interface"),
        (&[&file, &file, "--one-way"], "are the same file"),
        (&[&file, "null:"], "add --one-way"),
        (&["mirror:lo", "null:", "--count", "1"], "add --one-way"),
        (&["live:lo", "null:", "--one-way"], "it only sends"),
        (&["null:", "mirror:lo", "--one-way", "--count", "1"], "receive-only"),
        (&["null:", "null:"], "would never end"),
        (&["packet:lo", "null:"], "would never end"),
        (&["xdp:lo?action=drop", "null:", "--one-way"], "it delivers no packets"),
        (&["null:", "null:", "--count", "1", "-f", "udp"], "the port has no filter"),
        (&["null:", "null:", "--count", "1", "--vlan", "push:4095"], "use 1 to 4094"),
        (
            &["null:", "null:", "--count", "1", "--one-way", "--reverse-vlan", "pop"],
            "forwards nothing to the first port",
        ),
        (&["xdp:lo", "xdp:lo2", "--in-kernel", "--vlan", "pop"], "cannot be used with"),
    ] {
        refused(&[&["forward"], arguments].concat(), said);
    }
}
