//! Connections to the host's own VLAN and GRE devices, on the interface of the scrubber.

use super::*;

/// Clients at once: each waits a second for its second SYN after a challenge.
const CLIENTS: usize = 32;
const CONNECTIONS: u32 = 1000;

/// Runs a command; returns false if it fails.
fn succeeds(lab: &Lab, host: &str, command: &str) -> bool {
    let mut shell = Command::new("sh");
    netns::spawn(&lab.netns(host), shell.args(["-c", command])).unwrap().wait().unwrap().success()
}

/// Gives both ends of a device addresses, and the right host routes to the clients by it.
fn set_up(lab: &Lab, device: &str) {
    for (host, number) in [("left", 1), ("right", 2)] {
        let device = device.replace("HOST", host);
        run(lab, host, &format!("ip address add 203.0.113.{number}/24 dev {device}"));
        // A lab's interfaces have no link-local addresses, which neighbor discovery needs here.
        for address in ["2001:db8:5", "fe80"] {
            run(lab, host, &format!("ip address add {address}::{number}/64 dev {device} nodad"));
        }
        run(lab, host, &format!("ip link set {device} up"));
    }
    let device = device.replace("HOST", "right");
    run(lab, "right", &format!("ip route replace 198.19.0.0/16 via 203.0.113.1 dev {device}"));
    run(
        lab,
        "right",
        &format!("ip -6 route replace 2001:db8:77::/48 via 2001:db8:5::1 dev {device}"),
    );
}

fn connections_to_a_vlan_device_succeed(mode: Mode) {
    let Some(lab) = lab() else { return };
    for host in ["left", "right"] {
        let vlan = format!("ip link add link {host}0 name {host}0.5 type vlan id 5 2>/dev/null");
        if !succeeds(&lab, host, &vlan) {
            return println!("skipped: needs VLAN interfaces; get them by modprobe 8021q");
        }
        // A veth hands a tag over beside the packet, where XDP does not see it, and sends none from XDP.
        if mode == Mode::Native {
            run(&lab, host, &format!("ethtool -K {host}0 txvlan off"));
        }
    }
    set_up(&lab, "HOST0.5");
    let _woken = (mode == Mode::Native).then(|| wake(&lab));
    let scrubber = scrub(&lab, "'always'", &attach(mode));
    for (kind, address) in (1..).zip(["203.0.113.2", "2001:db8:5::2"]) {
        let server = listen(&lab, address);
        connect_all_by(CLIENTS, &lab, &server, 0, CONNECTIONS);
        println!("{address}: {:?}", scrubber.report());
        let all = kind * u64::from(CONNECTIONS);
        // Without hand-over, the reset of the client verifies it.
        let (handed_over, verified) =
            if handover::missing(&scrubber).is_none() { (all, 0) } else { (0, all) };
        assert!(handover::has_handed_over(&scrubber, handed_over, 0), "{address}");
        assert_eq!(count(&scrubber, "challenge-answered"), verified);
    }
}

#[test]
fn connections_to_a_vlan_device_succeed_in_native_mode() {
    connections_to_a_vlan_device_succeed(Mode::Native);
}

#[test]
fn connections_to_a_vlan_device_succeed_in_skb_mode() {
    connections_to_a_vlan_device_succeed(Mode::Skb);
}

/// The policy knows the packets of the tunnel alone: they pass.
#[test]
fn connections_to_a_gre_device_succeed() {
    let Some(lab) = lab() else { return };
    for (host, local, remote) in [("left", 1, 2), ("right", 2, 1)] {
        let ends = format!("local 198.18.0.{local} remote 198.18.0.{remote} key 7");
        if !succeeds(&lab, host, &format!("ip link add gre1 type gre {ends} 2>/dev/null")) {
            return println!("skipped: needs GRE in the kernel; get it by modprobe ip_gre");
        }
    }
    set_up(&lab, "gre1");
    let _woken = wake(&lab);
    let scrubber = scrub(&lab, "'always'", &attach(Mode::Native));
    for address in ["203.0.113.2", "2001:db8:5::2"] {
        let server = listen(&lab, address);
        connect_all_by(CLIENTS, &lab, &server, 0, CONNECTIONS);
    }
    println!("{:?}", scrubber.report());
    let passed = NamedCause {
        stage: StageName::Default,
        name: "default".into(),
        verdict: Some(Verdict::Pass),
    };
    // SYN, acknowledgement, data and FIN of each.
    assert!(scrubber.report().find(&passed).packets >= 2 * 4 * u64::from(CONNECTIONS));
    assert_eq!((scrubber.handed_over(), count(&scrubber, "challenge")), (0, 0));
}
