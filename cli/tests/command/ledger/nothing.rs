//! A sender that sent nothing, or nearly nothing, fails; the message has the remedy.

use super::*;

#[test]
fn a_sender_that_sends_nothing_fails_with_a_remedy() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    ip(&lab, "left", "link add vx0 type vxlan id 1 remote 203.0.113.9 dstport 4789");
    ip(&lab, "left", "link set vx0 up");
    // If the next line loaded the module, it would make two devices outside the lab.
    on(&lab, "left", &["sh", "-c", "modprobe ifb numifbs=0 || true"]);
    ip(&lab, "left", "link add ifb9 type ifb");
    ip(&lab, "left", "link set ifb9 up");
    ip(&lab, "left", "tuntap add mode tap name tap9");
    ip(&lab, "left", "link set tap9 up");
    let far = on(&lab, "right", &["ip", "link", "set", "right0", "down"]);
    assert_eq!(far.status, Some(0), "{}", far.err);
    for (interface, method, loss, remedy) in [
        ("vx0", "sendmmsg", "interface_errors", "route to its remote end"),
        ("ifb9", "sendmmsg", "interface_dropped", "lower --rate"),
        ("left0", "sendmmsg", "interface_dropped", "bring the far end up, and raise its MTU"),
        ("tap9", "live", "no_xdp_transmit", "open a TAP device"),
    ] {
        let to = ["--dst", "198.18.0.2", "--dmac", NOBODY, "--count", "1000"];
        let all = ["generate", interface, "--netns", &left, "--method", method, "--json"];
        let ended = run(&[&all[..], &to].concat());
        assert_eq!(ended.status, Some(1), "{interface}: {ended:?}");
        let report = ended.report();
        assert_eq!(out(&report), 0..=0, "{interface}: {report}");
        assert_eq!(self::loss(&report, loss), 1000, "{interface}: {report}");
        assert!(ended.err.contains("0 % of 1,000 packets were sent"), "{}", ended.err);
        assert!(ended.err.contains(remedy), "{interface}: {}", ended.err);
    }
}
