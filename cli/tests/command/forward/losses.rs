//! Losses of a forwarder that gets more than it can send are counted where they happen.

use sluicegate::link::Shape;

use super::*;

#[test]
fn packets_for_a_full_target_wait_in_the_source_and_losses_are_named() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    for ports in [
        ["xdp:middle0?ring_size=128&slots=64", "xdp:middle1"],
        ["xdp:middle0?ring_size=128&slots=64", "packet:middle1?send=sendto"],
        ["packet:middle0?blocks=2&block_size=64K", "xdp:middle1"],
    ] {
        let running = forward(&lab, &[ports[0], ports[1], "--one-way"]);
        let before = received(&lab, "middle", "middle0");
        // Faster than any sender that builds its own packets.
        let sent = ended(&mut generate(&lab, &["--count", "1000000", "--method", "live"])).good();
        let came = sent["ledger"]["out"].as_u64().unwrap();
        eventually("all have come", || received(&lab, "middle", "middle0") >= before + came);
        let report = running.stop().good();
        let whole = report["ledger"]["in"].as_u64().unwrap();
        assert!(whole >= came, "{ports:?}: {sent} {report}");
        assert!(loss(&report, "ring_full") > 0, "{ports:?}: {report}");
        let [packets, ..] = direction(&report, 0);
        assert_eq!(packets + loss(&report, "ring_full"), whole, "{ports:?}");
    }
}

#[test]
fn packets_longer_than_a_ring_frame_are_named_too_long() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let running =
        forward(&lab, &["packet:middle0", "packet:middle1", "--one-way", "-f", "udp port 9"]);
    // The ring's frames fit the former MTU.
    for (host, interface) in [("middle", "middle0"), ("left", "left0")] {
        let set = on(&lab, host, &["ip", "link", "set", interface, "mtu", "9000"]);
        assert_eq!(set.status, Some(0), "{}", set.err);
    }
    let before = received(&lab, "middle", "middle0");
    for size in ["4000", "100"] {
        let frames = ["--size", size, "--count", "50", "--method", "sendto", "--rate", "10kpps"];
        ended(&mut generate(&lab, &frames)).good();
    }
    eventually("all have come", || received(&lab, "middle", "middle0") >= before + 100);
    let report = running.stop().good();
    assert_eq!(report["ledger"]["in"], 100, "{report}");
    assert_eq!(report["ledger"]["out"], 50, "{report}");
    assert_eq!(report["ledger"]["losses"], serde_json::json!({ "too_long": 50 }), "{report}");
}

#[test]
fn a_count_is_kept_to_the_packet() {
    let Some(lab) = lab_of(Shape::Line, 2) else { return };
    let middle = lab.netns("middle");
    for (to, more) in [
        ("packet:middle1", &["--one-way"][..]),
        ("xdp:middle1", &["--one-way"]),
        ("null:", &["--batch", "10"]),
    ] {
        let arguments = ["forward", "null:/0-1", to, "--netns", &middle, "--count", "12345"];
        let report = run(&[&arguments[..], more, &["--json"]].concat()).good();
        assert_eq!(report["packets"], 12345, "{to}: {report}");
        assert_eq!(report["ledger"]["in"], 12345, "{to}: {report}");
        // All were sent; `--count` does not depend on the interface's fate for them.
        let out = report["ledger"]["out"].as_u64().unwrap();
        let sent = out + loss(&report, "interface_dropped");
        assert_eq!(sent, 12345, "{to}: {report}");
    }
}

#[test]
fn drops_of_the_sending_interface_are_named_and_delay_nothing() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    // A veth drops packets longer than its other end's MTU (net/core/dev.c, is_skb_forwardable).
    let set = on(&lab, "right", &["ip", "link", "set", "right0", "mtu", "576"]);
    assert_eq!(set.status, Some(0), "{}", set.err);
    let come = || received(&lab, "right", "right0");
    for (to, name, why) in [
        ("xdp:middle1", "refused", "the kernel says so of each"),
        ("packet:middle1?send=sendmmsg", "refused", "each was tried for a while"),
        ("packet:middle1?send=sendto", "refused", "each was tried for a while"),
        ("packet:middle1?send=ring", "refused", "each was tried for a while"),
        ("packet:middle1?qdisc=bypass", "refused", "each was tried for a while"),
        ("live:middle1", "interface_dropped", "the interface alone knows"),
        ("xdp:middle1?send=live", "interface_dropped", "the interface alone knows"),
    ] {
        let running = forward(&lab, &["packet:middle0", to, "--one-way", "-f", "udp port 9"]);
        let before = come();
        // All fit into the 256 entries of a veth's ring, even if a busy machine does not empty it meanwhile.
        for (size, count) in [("1000", "4"), ("500", "200")] {
            let frames = ["--size", size, "--count", count];
            let how = ["--method", "sendto", "--rate", "10kpps"];
            ended(&mut generate(&lab, &[&frames[..], &how].concat())).good();
        }
        eventually(&format!("{to}: the short packets arrive"), || come() >= before + 200);
        let report = running.stop().good();
        assert_eq!(report["ledger"]["in"], 204, "{to}: {report}");
        assert_eq!(report["ledger"]["out"], 200, "{to}: {report}");
        let losses = serde_json::json!({ name: 4 });
        assert_eq!(report["ledger"]["losses"], losses, "{to}: {why}: {report}");
    }
}
