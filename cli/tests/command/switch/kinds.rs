//! Ports of every kind in one switch, and of several queues.

use sluicegate::link::{Lab, Shape};

use super::star::*;
use crate::support::*;

/// Runs a command on the host in the middle.
fn in_middle(lab: &Lab, command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    let ended = on(lab, "middle", &words);
    assert_eq!(ended.status, Some(0), "{command}: {}", ended.err);
}

/// Checks that a host reaches an address.
fn reaches(lab: &Lab, from: &str, address: &str) {
    let ping = on(lab, from, &["ping", "-q", "-c", "3", "-i", "0.01", "-W", "5", address]);
    assert_eq!(ping.status, Some(0), "{from} to {address}: {}", ping.out);
}

#[test]
fn its_interfaces_receive_frames_for_all_hosts() {
    let Some(lab) = star() else { return };
    let is_promiscuous = || {
        !on(&lab, "middle", &["ip", "-d", "link", "show", "middle0"]).out.contains("promiscuity 0")
    };
    for kind in ["xdp", "packet"] {
        assert!(!is_promiscuous(), "before {kind}");
        let running = switch(&lab, &ports(kind), &[]);
        assert!(is_promiscuous(), "{kind}");
        running.stop().good();
    }
    assert!(!is_promiscuous(), "at the end");
}

#[test]
fn the_host_of_the_switch_takes_part_by_a_port_of_its_own() {
    let Some(lab) = star() else { return };
    let wires = &ports("xdp")[..3];
    let rows = [
        (&["lower=xdp:middle3", "self=host:middle3"][..], "middle3", "its side of an interface"),
        (&["lower=xdp:middle3", "self=host:middle3/0-2"], "middle3", "of several queues"),
        (&["lower=xdp:middle3", "self=tap:self0"], "self0", "a device"),
        (&["lower=xdp:middle3", "self=tap:self0/0-1"], "self0", "of several queues"),
        (&["lower=packet:middle3", "self=tap:self0"], "self0", "another port that copies"),
    ];
    for (number, (own, device, sentence)) in rows.into_iter().enumerate() {
        // Another address each time: the hosts remember the Ethernet address of the last one.
        let address = format!("198.18.0.{}", 9 + number);
        let own: Vec<String> = own.iter().map(|port| String::from(*port)).collect();
        let running = switch(&lab, &[wires, &own].concat(), &[]);
        in_middle(&lab, &format!("ip addr add {address}/24 dev {device}"));
        for host in HOSTS {
            reaches(&lab, host, &address);
        }
        reaches(&lab, "left", "198.18.0.4");
        let shown = shown(&lab);
        assert!(count(&shown, "self", "learned") == 1, "{sentence}: {shown}");
        let report = running.stop().good();
        assert!(count(&report, "self", "packets") >= 12, "{sentence}: {report}");
        assert_eq!(report["ledger"]["losses"], serde_json::json!({}), "{sentence}: {report}");
        assert_eq!(report["ledger"]["unexplained"], 0, "{sentence}: {report}");
        // The other devices ended with the switch that made them.
        if device == "middle3" {
            in_middle(&lab, "ip addr flush dev middle3");
        }
    }
}

/// A packet socket would receive the packets that the switch gives to the host: they would loop.
#[test]
fn packet_ports_beside_a_host_port_are_refused() {
    let Some(lab) = star() else { return };
    let netns = lab.netns("middle");
    for ports in [["w=packet:middle3", "h=host:middle3"], ["h=host:middle3", "w=packet:middle3"]] {
        let name = ["--name", lab.name(), "--netns", &netns];
        refused(&[&["switch"], &ports[..], &name].concat(), "use xdp: beside host:");
    }
}

#[test]
fn another_process_takes_part_by_a_pipe() {
    let Some(lab) = star() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let pipe = |more: &str| format!("memif:{}?{more}", path.display());
    let server = format!("pipe={}", pipe("role=server&queues=2"));
    let running = switch(&lab, &[&ports("xdp")[..], &[server]].concat(), &[]);
    let mac_of_pipe = "02:00:00:00:00:55";

    let client = pipe("role=client&queues=2");
    let sends = ["generate", &client, "--dst", "198.18.0.1", "--sport", "1024-65535", "--json"];
    let addresses = ["--smac", mac_of_pipe, "--dmac", &mac("left"), "--count", "500"];
    run(&[&sends[..], &addresses, &["--rate", "10kpps"]].concat()).good();
    eventually("all have come", || count(&shown(&lab), "pipe", "packets") == 500);
    assert_eq!(count(&shown(&lab), "pipe", "learned"), 1);

    let counts = Running::start(&["count", &client, "--json"]);
    generate(&lab, "left", 300, &["--smac", &mac("left"), "--dmac", mac_of_pipe]);
    eventually("all have passed", || count(&shown(&lab), "pipe", "sent") == 300);
    assert_eq!(counts.stop().good()["packets"], 300);

    let report = running.stop().good();
    // The first packet for left is flooded: the switch does not know its port yet.
    assert_eq!(count(&report, "left", "sent"), 500, "{report}");
    assert_eq!(uncertain(&report), 0, "{report}");
    assert_eq!(report["ledger"]["unexplained"], 0, "{report}");
}

#[test]
fn a_flow_stays_in_order_between_ports_of_different_numbers_of_queues() {
    let Some(lab) = lab_of(Shape::Star, 3) else { return };
    let right = lab.netns("right");
    for (ports, sentence) in [
        (["left=xdp:middle0", "right=xdp:middle1", "upper=xdp:middle2"], "three of each"),
        (["left=xdp:middle0", "right=xdp:middle1/1", "upper=xdp:middle2/0-1"], "three into one"),
        (["left=xdp:middle0/0-2", "right=packet:middle1", "upper=xdp:middle2"], "into a socket"),
    ] {
        let running = switch(&lab, &ports.map(String::from), &[]);
        generate(&lab, "right", 1, &["--smac", &mac("right"), "--dmac", &mac("left")]);
        let come = || received(&lab, "right", "right0") + dropped(&lab, "middle", "middle1");
        let mut came = 0;
        for sport in ["9", "1024-65535"] {
            let dst = ["--stamp", "--size", "60-1514", "--sport", sport];
            let count_all = ["count", "xdp:right0", "--netns", &right, "-f", "udp", "--analyze"];
            let counts = Running::start(&[&count_all[..], &["--json"]].concat());
            let (before, all) = (count(&shown(&lab), "right", "sent"), come() + 2000);
            let addresses = ["--smac", &mac("left"), "--dmac", &mac("right")];
            generate(&lab, "left", 2000, &[&dst[..], &addresses].concat());
            eventually("all have passed", || count(&shown(&lab), "right", "sent") == before + 2000);
            settles(all, come);
            let counted = counts.stop().good();
            came += counted["ledger"]["in"].as_u64().unwrap();
            let stream = &counted["analysis"]["streams"][0];
            for trouble in ["duplicates", "corrupt", "reordered"] {
                // Flows that come by several queues may overtake each other.
                if trouble != "reordered" || sport == "9" {
                    assert_eq!(stream[trouble], 0, "{sentence}: {trouble}: {counted}");
                }
            }
            assert!(counted["packets"].as_u64() > Some(1000), "{sentence}: {counted}");
        }
        let report = running.stop().good();
        // The interface counts packets that a busy machine loses behind the switch.
        came += lost(&report, "right", "interface_dropped");
        assert_eq!(came, 4000, "{sentence}: {report}");
        assert_eq!(report["ledger"]["unexplained"], 0, "{sentence}: {report}");
    }
}
