//! `sluice generate` and `sluice replay` send to the next hop that the host's own packets would take.

use std::process::Command;

use sluicegate::link::{self, Lab};

use crate::support::*;

/// A rate slow enough for a busy machine.
const SLOWLY: [&str; 4] = ["--rate", "20kpps", "--count", "32"];

fn mac_of_right(lab: &Lab) -> [u8; 6] {
    link::interface(Some(&lab.netns("right")), "right0").unwrap().mac.unwrap().0
}

/// The destination addresses of the frames that a command sends to `right0`.
fn destinations(lab: &Lab, command: &[&str]) -> Vec<[u8; 6]> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("came.pcap");
    let capture = capture_all(&lab.netns("right"), "inbound", &file);
    let sent = run(command);
    assert_eq!(sent.status, Some(0), "{command:?}: {}", sent.err);
    let count = sent.report()["attempted"].as_u64().unwrap();
    capture.stop();
    let came: Vec<_> =
        packets(&file).into_iter().map(|(_, bytes)| bytes[..6].try_into().unwrap()).collect();
    assert_eq!(came.len() as u64, count, "{command:?}");
    came
}

#[test]
fn packets_go_to_the_gateway_or_to_the_neighbour_without_a_dmac() {
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.netns("left"), mac_of_right(&lab));
    for (sentence, what) in [
        ("a neighbour", &[][..]),
        ("a neighbour by IPv6", &["--dst", "2001:db8:18::2"]),
        ("an address behind the gateway", &["--src", "198.18.0.0/16", "--dst", "198.18.1.2"]),
        ("an address behind the gateway by IPv6", &["--dst", "2001:db8::2"]),
        ("a prefix that is mostly behind the gateway", &["--dst", "198.18.0.0/15"]),
        ("with a tag", &["--vlan", "7"]),
        ("a profile of one address", &["--profile", "syn-flood"]),
        ("a profile of many", &["--profile", "imix"]),
        ("a profile of several streams", &["--profile", "fragments"]),
        ("another", &["--profile", "udp-flood"]),
        ("another", &["--profile", "dns-amplification"]),
        ("another", &["--profile", "ntp-amplification"]),
        ("another", &["--profile", "icmp-flood"]),
        ("another", &["--profile", "rfc2544"]),
        ("another", &["--profile", "rfc2544-1518"]),
    ] {
        let generate = ["generate", "left0", "--netns", &left, "--method", "sendmmsg", "--json"];
        let came = destinations(&lab, &[&generate[..], &SLOWLY, what].concat());
        assert!(came.iter().all(|mac| *mac == right), "{sentence}: {came:02x?}");
    }
}

#[test]
fn the_default_source_is_the_interfaces_address_and_the_destination_is_not() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let arp = folder.path().join("arp.toml");
    std::fs::write(&arp, "[[stream]]\nlayers = ['ether', 'arp']\n").unwrap();
    let arp = ["--spec", arp.to_str().unwrap()];
    let mut ip = Command::new("ip");
    let words = ["-n", &lab.netns("left"), "link", "add", "bare0", "type", "veth"];
    assert!(ip.args(words).status().unwrap().success());
    for (sentence, host, port, flags, line) in [
        (
            "to the peer",
            "right",
            "right0",
            &["--dst", "198.18.0.1"][..],
            "198.18.0.2.9 > 198.18.0.1.9",
        ),
        ("from the second host", "right", "right0", &[], "198.18.0.2.9 > 198.18.0.1.9"),
        ("from the first", "left", "left0", &[], "198.18.0.1.9 > 198.18.0.2.9"),
        (
            "by IPv6",
            "right",
            "right0",
            &["--dst", "2001:db8::9"],
            "2001:db8:18::2.9 > 2001:db8::9.9",
        ),
        ("given", "right", "right0", &["--src", "198.18.0.7"], "198.18.0.7.9 > 198.18.0.1.9"),
        ("ARP", "right", "right0", &arp, "who-has 198.18.0.1 tell 198.18.0.2"),
        ("an interface without addresses", "left", "bare0", &[], "198.18.0.1.9 > 198.18.0.2.9"),
        ("a file", "left", "pcap:x.pcap", &[], "198.18.0.1.9 > 198.18.0.2.9"),
    ] {
        let netns = lab.netns(host);
        let shown = run(&[&["generate", port, "--netns", &netns, "--show", "1"], flags].concat());
        assert!(shown.out.contains(line), "{sentence}: {shown:?}");
    }
    let right = lab.netns("right");
    run(&["generate", "right0", "--netns", &right, "--count", "1", "--json"]).good();
}

#[test]
fn each_stream_goes_to_its_own_next_hop() {
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.netns("left"), mac_of_right(&lab));
    let folder = tempfile::tempdir().unwrap();
    let spec = folder.path().join("spec.toml");
    let layers = [
        "'ether', { ipv4 = { dst = '198.18.0.2' } }",
        "'ether', { ipv6 = { dst = 'ff02::1' } }",
        "'ether', { ipv4 = { dst = '224.0.0.9' } }",
        "{ ether = { dst = '02:00:00:00:00:99' } }, { ipv4 = { dst = '203.0.113.1' } }",
    ];
    let streams = layers.map(|layers| format!("[[stream]]\nlayers = [{layers}, 'udp']\n"));
    std::fs::write(&spec, streams.concat()).unwrap();
    let generate = ["generate", "left0", "--netns", &left, "--spec", spec.to_str().unwrap()];
    let came = destinations(&lab, &[&generate[..], &["--json"], &SLOWLY].concat());
    let multicast = [[0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 9]];
    let expected = [right, multicast[0], multicast[1], [2, 0, 0, 0, 0, 0x99]];
    assert_eq!(came[..4], expected);
}

#[test]
fn a_next_hop_that_cannot_be_resolved_is_an_error_with_the_reason() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    for words in [
        "link add other0 type veth peer other1",
        "link set other0 up",
        "link set other1 up",
        "address add 192.0.2.1/24 dev other0",
    ] {
        let mut ip = Command::new("ip");
        assert!(ip.args(["-n", &left]).args(words.split(' ')).status().unwrap().success());
    }
    let generate = ["generate", "left0", "--netns", &left, "--count", "1", "--dst"];
    for (destination, reason) in [
        (
            "203.0.113.1",
            "no route to it leaves by left0; set the destination MAC or choose an on-link address",
        ),
        ("192.0.2.2", "its route leaves by other0; set the destination MAC"),
        (
            "198.18.0.77",
            "no neighbour answers; check that a host on that link is up and has 198.18.0.77",
        ),
        ("198.18.0.0/24", "of stream 0 on left0: "),
        ("198.18.0.0/24", "have different next hops; set --dmac"),
    ] {
        refused(&[&generate[..], &[destination]].concat(), reason);
    }
    // With --dmac nothing is resolved.
    let given = run(&[&generate[..], &["203.0.113.1", "--dmac", NOBODY]].concat());
    assert_eq!(given.status, Some(0), "{given:?}");
    // `--show` needs no next hop.
    let shown = run(&[&generate[..], &["203.0.113.1", "--show", "1"]].concat());
    assert_eq!(shown.status, Some(0), "{shown:?}");
}

#[test]
fn a_replay_keeps_its_addresses_unless_it_is_to_find_the_next_hop() {
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.netns("left"), mac_of_right(&lab));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recorded.pcap").to_str().unwrap().to_owned();
    let to = ["--src", "192.0.2.0/24", "--dst", "203.0.113.0/24", "--dmac", NOBODY];
    let recorded = ["generate", &format!("pcap:{file}"), "--count", "32", "--json"];
    run(&[&recorded[..], &to].concat()).good();
    let replay = ["replay", &file, "left0", "--netns", &left, "--rate", "20kpps", "--json"];
    let auto = ["--dmac", "auto"];
    let rewritten = ["--rewrite-ip", "0.0.0.0/0=198.18.0.0/15"];
    let nobody = [2, 0, 0, 0, 0, 0x99];
    for (sentence, more, mac) in [
        ("as recorded", vec![], nobody),
        ("as recorded, with other IP addresses", rewritten.to_vec(), nobody),
        ("to the next hop of the new addresses", [rewritten, auto].concat(), right),
    ] {
        let came = destinations(&lab, &[&replay[..], &more].concat());
        assert!(came.iter().all(|it| *it == mac), "{sentence}: {came:02x?}");
    }
    refused(&[&replay[..], &auto].concat(), "no route to it leaves by left0");
    // Half of the packets that a host captures of its own conversations are for the host.
    let spec = folder.path().join("conversation.toml");
    let streams = ["198.18.0.1", "198.18.0.2"].map(|dst| {
        format!("[[stream]]\nlayers = ['ether', {{ ipv4 = {{ dst = '{dst}' }} }}, 'udp']\n")
    });
    std::fs::write(&spec, streams.concat()).unwrap();
    run(&[&recorded[..], &["--spec", spec.to_str().unwrap()]].concat()).good();
    let came = destinations(&lab, &[&replay[..], &auto].concat());
    assert!(came.iter().all(|it| *it == right), "both ways: {came:02x?}");
    refused(&["replay", "-", "left0", "--netns", &left, "--dmac", "auto"], "read only once");
    refused(&["replay", &file, "null:", "--dmac", "auto"], "not an Ethernet interface");
}
