//! Packets that a port receives: by filter, direction and address, and how much of each.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sluicegate::port::Directions;
use sluicegate::ring::{Direction, Packet, Wait};

use super::frames::{frames, receive, send};
use super::{METHODS, lab, lab_in_any_order, open, receiver, sources};
use crate::child;
use crate::hosts::PATIENCE;
use crate::numbered::frame;

#[test]
fn a_filter_lets_nothing_else_in_and_sees_tags_on_the_wire() {
    let Some(lab) = lab() else { return };
    let sent = frames(1514);
    for source in sources() {
        for (filter, matches) in [
            ("vlan", (|f: &[u8]| f[12..14] != [0x88, 0xb5]) as fn(&[u8]) -> bool),
            ("ether proto 0x88b5", |f| f[12..14] == [0x88, 0xb5]),
            ("vlan 5", |f| f[12] != 0x88 && f[15] == 5 && f[14] & 0x0f == 0),
            ("greater 600", |f| f.len() >= 600),
            ("ether[16:2] = 0x88b5", |f| f[16..18] == [0x88, 0xb5]),
        ] {
            let name = format!("{source}&filter={filter}");
            let expected: Vec<&Vec<u8>> = sent.iter().filter(|f| matches(f)).collect();
            assert!(!expected.is_empty(), "{filter}");
            let Some(mut port) = receiver(&lab, &name) else { continue };
            send(&lab, &sent);
            let got = receive(&mut port.queues, expected.len());
            assert_eq!(got.len(), expected.len(), "{name}");
            assert!(got.iter().zip(expected).all(|((_, got), sent)| got == sent), "{name}");
            assert_eq!(port.queues[0].stats().unwrap().received, got.len() as u64, "{name}");
        }
    }
}

#[test]
fn sent_packets_are_seen_unless_left_out() {
    let Some(lab) = lab_in_any_order() else { return };
    let sent: Vec<Vec<u8>> = (0..10).map(|i| frame(i, 60, &[])).collect();
    for method in METHODS {
        let mut with = open(&lab, "left", &format!("packet:left0?{method}"), Directions::Receive);
        // The other host says things of its own, such as what it listens to.
        let name = format!("packet:left0?{method}&tx_copies=off&filter=ether proto 0x88b5");
        let mut without = open(&lab, "left", &name, Directions::Receive);
        send(&lab, &sent);
        let got = receive(&mut with.queues, sent.len());
        assert_eq!(got.len(), sent.len(), "{method}: {:?}", with.queues[0].stats());
        assert!(got.iter().all(|(meta, _)| meta.direction == Direction::Out), "{method}");
        let queue = &mut without.queues[0];
        queue.wait_rx(Wait::Sleep, Duration::from_millis(30)).unwrap();
        assert_eq!(queue.sync_rx().unwrap(), 0, "{method}");
    }
}

#[test]
fn promiscuous_mode_is_on_while_the_port_is_open() {
    let Some(lab) = lab_in_any_order() else { return };
    let netns = lab.netns("right");
    let is_promiscuous = || {
        let mut ip = Command::new("ip");
        ip.args(["-n", &netns, "-d", "link", "show", "right0"]).stdout(Stdio::piped());
        let shown = child::end(ip.spawn().unwrap()).stdout;
        !String::from_utf8_lossy(&shown).contains("promiscuity 0")
    };
    // A child of another test may have a port's sockets until it has become its command.
    let is_off_again = || {
        let deadline = Instant::now() + PATIENCE;
        while is_promiscuous() {
            assert!(Instant::now() < deadline, "it stays on");
        }
    };
    assert!(lab.run("right", "ip link set right0 promisc off"));
    assert!(!is_promiscuous());
    for name in ["right0", "mirror:right0"] {
        let port = open(&lab, "right", name, Directions::Receive);
        assert!(is_promiscuous(), "{name}");
        drop(port);
        is_off_again();
    }
    for name in ["packet:right0?promisc=off", "mirror:right0?promisc=off"] {
        let _port = open(&lab, "right", name, Directions::Receive);
        assert!(!is_promiscuous(), "{name}");
    }
}

#[test]
fn a_snap_length_cuts_the_bytes_and_keeps_the_length() {
    let Some(lab) = lab() else { return };
    let sent = frames(1514);
    for source in sources() {
        for snaplen in [14, 60, 100] {
            let name = format!("{source}&snaplen={snaplen}");
            let Some(mut port) = receiver(&lab, &name) else { continue };
            send(&lab, &sent);
            let n = sent.len();
            let mut got = Vec::new();
            let deadline = Instant::now() + PATIENCE;
            while got.len() < n && Instant::now() < deadline {
                let queue = &mut port.queues[0];
                if queue.sync_rx().unwrap() == 0 {
                    queue.wait_rx(Wait::Sleep, Duration::from_millis(5)).unwrap();
                }
                let own = |p: &Packet<'_>| p.head()[6..12] == [2, 0, 0, 0, 0, 1];
                let packets = queue.rx().packets().filter(own);
                got.extend(packets.map(|p| (p.meta().wire_bytes as usize, p.head().to_vec())));
                let slots = queue.rx().available();
                queue.rx_mut().release(slots);
            }
            assert_eq!(got.len(), n, "{source} snaplen {snaplen}");
            for ((wire, bytes), sent) in got.iter().zip(&sent) {
                assert_eq!(*wire, sent.len(), "{source} snaplen {snaplen}");
                assert_eq!(bytes, &sent[..snaplen.min(sent.len())], "{source} snaplen {snaplen}");
            }
        }
    }
}
