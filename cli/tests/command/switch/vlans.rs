//! A switch that knows VLANs.

use pcap::Capture;

use super::star::*;

#[test]
fn each_vlan_is_a_switch_of_its_own() {
    let Some(lab) = star() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trunk.pcap");
    let mut ports = ports("xdp");
    ports.push(format!("all=pcap:{}", file.display()));
    let vlans = ["--access", "left=10", "--access", "right=10", "--access", "upper=20"];
    let trunks = ["--trunk", "lower=10,20", "--native", "lower=30", "--trunk", "all=1-4094"];
    let running = switch(&lab, &ports, &[&vlans[..], &trunks, &["--tx-only", "all"]].concat());
    let there = shown(&lab);
    let vlans_of = |name: &str, key: &str| port(&there, name)[key].as_str().map(str::to_owned);
    for (name, key, vlans) in [
        ("left", "access", Some("10")),
        ("left", "trunk", None),
        ("lower", "trunk", Some("10,20")),
        ("lower", "native", Some("30")),
        ("lower", "access", None),
        ("all", "trunk", Some("1-4094")),
    ] {
        assert_eq!(vlans_of(name, key).as_deref(), vlans, "{name} {key}: {there}");
    }
    let listed = ask(&lab, &["show"]).out;
    let has = |end: &str| listed.lines().any(|line| line.ends_with(end));
    assert!(has("  access 10") && has("  trunk 10,20  native 30"), "{listed}");
    let broadcast = ["--dmac", "ff:ff:ff:ff:ff:ff"];
    let send = |host, packets, more: &[&str]| {
        generate(&lab, host, packets, &[&broadcast[..], more].concat());
    };
    send("left", 10, &[]);
    send("upper", 20, &[]);
    send("lower", 3, &["--vlan", "10"]);
    send("lower", 4, &["--vlan", "20"]);
    send("lower", 5, &["--vlan", "40"]);
    send("lower", 6, &[]);
    send("left", 7, &["--vlan", "20"]);
    // The switch knows the host: the packet goes only there, and only in its VLAN.
    generate(&lab, "right", 8, &["--dmac", &mac("left")]);
    let report = running.stop().good();
    for (host, sent) in [("left", 3 + 8), ("right", 10 + 3), ("upper", 4), ("lower", 10 + 20)] {
        assert_eq!(count(&report, host, "sent"), sent, "{host}: {report}");
    }
    assert_eq!(lost(&report, "lower", "vlan"), 5, "{report}");
    assert_eq!(lost(&report, "left", "vlan"), 7, "{report}");
    // The trunk gets all packets, each with its tag.
    let mut capture = Capture::from_file(&file).unwrap();
    let mut tags = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        assert_eq!(packet[12..14], [0x81, 0], "{:x?}", packet.data);
        assert_eq!(packet[16..18], [8, 0], "one tag: {:x?}", packet.data);
        tags.push(packet[15]);
    }
    for (vlan, packets) in [(10, 10 + 3), (20, 20 + 4), (30, 6)] {
        assert_eq!(tags.iter().filter(|tag| **tag == vlan).count(), packets, "VLAN {vlan}");
    }
    assert_eq!(tags.len(), 13 + 24 + 6);
}
