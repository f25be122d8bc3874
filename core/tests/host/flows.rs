//! Flows that are left to the host do not come to the program any more, until they are taken back.

use std::net::UdpSocket;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sluicegate::link::{Lab, netns};
use sluicegate::port::{Directions, FlowCounts};

use super::bridge::{Bridge, Passed};
use super::edges::nothing_is_left;
use super::through::{bytes, ping, tcp_there_and_back};
use super::{MODES, lab, open};

const PATIENCE: Duration = Duration::from_secs(60);

fn passed(bridge: &Bridge) -> u64 {
    let Passed { from_wire, from_host, .. } = &*bridge.passed;
    from_wire.load(Relaxed) + from_host.load(Relaxed)
}

#[test]
fn a_flow_that_is_left_to_the_host_comes_no_more() {
    let Some(lab) = lab() else { return };
    for (mode, hook) in MODES.iter().zip(["", "&hook=clsact"]) {
        let wire = format!("xdp:right0?mode={mode}");
        let host = format!("host:right0?flows=1000&mode={mode}{hook}");
        let bridge = Bridge::open(&lab, &wire, &host).unwrap();
        bridge.passed.gives.store(true, Relaxed);
        for (from, to) in [("right", ("left", "198.18.0.1")), ("left", ("right", "2001:db8:18::2"))]
        {
            assert!(tcp_there_and_back(&lab, from, to), "{mode} {hook}");
        }
        let (seen, counts) = (passed(&bridge), bridge.flows.as_ref().unwrap().counts().unwrap());
        // What came before a flow was known.
        assert!(seen < 200, "{mode} {hook}: {seen} packets came to user space");
        // What the host sends it hands over in pieces of up to 64 KiB.
        let bytes = 2 * bytes() as u64;
        let enough = counts.from_wire > bytes / 1514 && counts.from_host > bytes / 65_536;
        assert!(enough, "{mode} {hook}: {counts:?}");
        // No flow has other packets.
        assert!(ping(&lab, "right", "198.18.0.1"), "{mode} {hook}");
        bridge.wait_until(host.as_str(), |_| passed(&bridge) >= seen + 40);
        drop(bridge);
        nothing_is_left(&lab);
    }
}

/// A UDP socket on each host, connected to the other.
fn conversation(lab: &Lab) -> [UdpSocket; 2] {
    let hosts = [("left", "198.18.0.1", "198.18.0.2"), ("right", "198.18.0.2", "198.18.0.1")];
    hosts.map(|(host, own, other)| {
        let made = netns::run_in(Some(&lab.netns(host)), || {
            let socket = UdpSocket::bind((own, 7000)).unwrap();
            socket.connect((other, 7000)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            Ok(socket)
        });
        made.unwrap()
    })
}

/// Sends datagrams of one size there and back.
fn talk([left, right]: &[UdpSocket; 2], datagrams: usize, bytes: usize) {
    let mut got = vec![0; 65_536];
    for _ in 0..datagrams {
        right.send(&vec![7; bytes]).unwrap();
        assert_eq!(left.recv(&mut got).unwrap(), bytes);
        left.send(&vec![8; bytes]).unwrap();
        assert_eq!(right.recv(&mut got).unwrap(), bytes);
    }
}

#[test]
fn fragments_of_a_flow_still_come_and_what_is_taken_back_does() {
    let Some(lab) = lab() else { return };
    let bridge = Bridge::open(&lab, "xdp:right0", "host:right0?flows=64").unwrap();
    let flows = bridge.flows.clone().unwrap();
    let sockets = conversation(&lab);
    let expect = |what: &str, packets: u64, counts: FlowCounts| {
        assert_eq!((passed(&bridge), flows.counts().unwrap()), (packets, counts), "{what}");
    };
    let before = passed(&bridge);
    let none = FlowCounts::default();
    talk(&sockets, 10, 100);
    expect("nobody has left it to the host", before + 20, none);
    bridge.passed.gives.store(true, Relaxed);
    talk(&sockets, 1, 100);
    bridge.passed.gives.store(false, Relaxed);
    // The first was seen; its answer, and all that follows, not.
    let ten = FlowCounts { from_wire: 11, from_host: 10 };
    talk(&sockets, 10, 100);
    expect("left to the host", before + 21, ten);
    talk(&sockets, 5, 3000);
    expect("three fragments a datagram", before + 21 + 30, ten);
    flows.clear().unwrap();
    talk(&sockets, 10, 100);
    expect("taken back", before + 21 + 30 + 20, ten);
}

#[test]
fn flows_pass_claims_that_have_a_filter() {
    let Some(lab) = lab() else { return };
    let wire = "xdp:right0?filter=udp or arp";
    let bridge = Bridge::open(&lab, wire, "host:right0?flows=64").unwrap();
    bridge.passed.gives.store(true, Relaxed);
    let sockets = conversation(&lab);
    talk(&sockets, 20, 100);
    assert!(tcp_there_and_back(&lab, "left", ("right", "198.18.0.2")));
    assert!(bridge.flows.as_ref().unwrap().counts().unwrap().from_wire > 0);
}

#[test]
fn options_of_flows_are_checked() {
    let Some(lab) = lab() else { return };
    for (name, why) in [
        ("host:right0?flows=10", "at least 64"),
        ("host:right0?mode=skb", "mode= is for flows="),
        ("host:right0?flows=1T", "0 to 16777216"),
    ] {
        let error = open(&lab, name, Directions::Both).unwrap_err().to_string();
        assert!(error.contains(why), "{name}: {error}");
    }
    let mut port = open(&lab, "host:right0", Directions::Both).unwrap();
    assert!(port.queues[0].host_flows().is_none());
    drop(port);
    port = open(&lab, "host:right0?flows=64", Directions::Both).unwrap();
    assert!(port.queues[0].host_flows().is_some());
    assert_eq!(port.fallbacks, []);
    drop(port);
    let _skb = open(&lab, "xdp:right0?mode=skb", Directions::Receive).unwrap();
    port = open(&lab, "host:right0?flows=64", Directions::Both).unwrap();
    let [fallback] = &port.fallbacks[..] else { panic!("{:?}", port.fallbacks) };
    assert_eq!((fallback.from, fallback.to), ("native", "skb"), "{}", fallback.reason);
}
