//! Packets in both directions.

use std::net::UdpSocket;
use std::time::Duration;

use sluicegate::link::{Mac, Netlink, netns};
use sluicegate::port::Directions;
use sluicegate::ring::{Direction, Meta, Packet, TimestampSource, Wait};

use super::numbered::{frame, is_ours};
use super::{PATIENCE, frames, lab, open, receive, run, send, wait_until_removed};

#[test]
fn what_the_host_sends_comes_as_it_is_on_a_wire() {
    let Some(lab) = lab() else { return };
    for (port, longest) in [
        ("tap:tap0", 1514),
        ("tap:tap0?slots=64", 1514),
        ("tap:tap0?mtu=9000", 9014),
        ("tap:tap0?mtu=65521&slots=128", 65_000),
    ] {
        let mut tap = open(&lab, port, Directions::Receive).unwrap();
        let mut host = open(&lab, "packet:tap0", Directions::Send).unwrap();
        let sent = frames(longest);
        for some in sent.chunks(8) {
            send(&mut host.queues[0], some);
            let got = receive(&mut tap.queues, some.len());
            assert!(got.iter().map(|(_, bytes)| bytes).eq(some), "{port}: {} came", got.len());
            for (meta, bytes) in got {
                assert_eq!(meta.wire_bytes as usize, bytes.len(), "{port}");
                assert_eq!(meta.direction, Direction::Out, "{port}");
                assert_eq!(meta.timestamp_source, TimestampSource::Software, "{port}");
            }
        }
        drop(tap);
        wait_until_removed(&lab);
    }
}

#[test]
fn the_longest_frame_comes_whole() {
    let Some(lab) = lab() else { return };
    // Longer than a slot can say.
    let longest = frame(0, 65_539, &[(0x8100, 5)]);
    for slots in ["", "&slots=128"] {
        let name = format!("tap:tap0?mtu=65521{slots}");
        let mut tap = open(&lab, &name, Directions::Receive).unwrap();
        let mut host = open(&lab, "packet:tap0", Directions::Send).unwrap();
        send(&mut host.queues[0], std::slice::from_ref(&longest));
        let got = receive(&mut tap.queues, 1);
        assert!(got.iter().map(|(_, bytes)| bytes).eq([&longest]), "{name}: {} came", got.len());
        drop(tap);
        wait_until_removed(&lab);
    }
}

#[test]
fn what_is_sent_the_host_receives() {
    let Some(lab) = lab() else { return };
    for (port, longest) in [("tap:tap0", 1514), ("tap:tap0?slots=64&mtu=65521", 65_000)] {
        let mut tap = open(&lab, port, Directions::Send).unwrap();
        let mut host = open(&lab, "packet:tap0", Directions::Receive).unwrap();
        let sent = frames(longest);
        send(&mut tap.queues[0], &sent);
        let got = receive(&mut host.queues, sent.len());
        assert!(got.iter().map(|(_, bytes)| bytes).eq(&sent), "{port}: {} came", got.len());
        let stats = tap.queues[0].stats().unwrap();
        assert_eq!((stats.sent, stats.refused), (sent.len() as u64, 0), "{port}");
        drop(tap);
        wait_until_removed(&lab);
    }
}

#[test]
fn what_is_no_frame_is_refused_and_the_others_go() {
    let Some(lab) = lab() else { return };
    let mut tap = open(&lab, "tap:tap0", Directions::Send).unwrap();
    let mut host = open(&lab, "packet:tap0", Directions::Receive).unwrap();
    let sent = [frame(0, 60, &[]), vec![0xff; 13], frame(1, 60, &[])];
    send(&mut tap.queues[0], &sent);
    let got = receive(&mut host.queues, 2);
    assert!(got.iter().map(|(_, bytes)| bytes).eq([&sent[0], &sent[2]]));
    let stats = tap.queues[0].stats().unwrap();
    assert_eq!((stats.sent, stats.refused), (2, 1));
}

#[test]
fn packets_that_found_no_room_are_counted() {
    let Some(lab) = lab() else { return };
    let mut tap = open(&lab, "tap:tap0?ring_size=64", Directions::Receive).unwrap();
    // Past the queueing discipline: what the device drops nobody holds back.
    let mut host = open(&lab, "packet:tap0?qdisc=bypass", Directions::Send).unwrap();
    let sent: Vec<Vec<u8>> = (0..200).map(|i| frame(i, 60, &[])).collect();
    send(&mut host.queues[0], &sent);
    let queue = &mut tap.queues[0];
    queue.stop_rx().unwrap();
    let mut came = 0;
    while !queue.is_finished() {
        queue.sync_rx().unwrap();
        came += queue.rx().packets().count() as u64;
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
    }
    let stats = queue.stats().unwrap();
    assert!(stats.dropped_ring_full > 0, "{stats:?}");
    assert_eq!(stats.received, came + stats.dropped_ring_full, "{stats:?}");
}

#[test]
fn each_flow_has_one_of_several_queues() {
    let Some(lab) = lab() else { return };
    let mut tap = open(&lab, "tap:tap0/0-3", Directions::Receive).unwrap();
    assert_eq!(tap.queues.len(), 4);
    let mut host = open(&lab, "packet:tap0", Directions::Send).unwrap();
    let sent: Vec<Vec<u8>> = (0..300).map(|i| frame(i, 60 + i as usize, &[])).collect();
    send(&mut host.queues[0], &sent);
    let mut got: Vec<Vec<u8>> =
        receive(&mut tap.queues, sent.len()).into_iter().map(|(_, bytes)| bytes).collect();
    got.sort_by_key(|bytes| (bytes.len(), bytes.clone()));
    assert!(got == sent, "{} came", got.len());
}

/// The host's own UDP, there and back: the port turns addresses and ports round.
#[test]
fn the_hosts_own_packets_come_whole_and_its_answers_are_received() {
    let Some(lab) = lab() else { return };
    let mut tap = open(&lab, "tap:tap0", Directions::Both).unwrap();
    assert!(run(&lab, "ip address add 203.0.113.1/24 dev tap0"));
    let netns_name = lab.netns("right");
    let mut netlink = Netlink::open(Some(&netns_name)).unwrap();
    let other = "203.0.113.2".parse().unwrap();
    netlink.add_neighbour("tap0", other, Mac([2, 0, 0, 0, 0, 9])).unwrap();
    let socket = netns::run_in(Some(&netns_name), || Ok(UdpSocket::bind("203.0.113.1:7").unwrap()));
    let socket = socket.unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send_to(b"there and back", "203.0.113.2:9").unwrap();
    let queue = &mut tap.queues[0];
    let frame = loop {
        if queue.sync_rx().unwrap() == 0 {
            queue.wait_rx(Wait::default(), Duration::from_millis(50)).unwrap();
        }
        let is_udp = |bytes: &&[u8]| bytes[12..14] == [8, 0] && bytes[23] == 17;
        let found = queue.rx().packets().map(|it| it.head()).find(is_udp).map(<[u8]>::to_vec);
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
        if let Some(found) = found {
            break found;
        }
    };
    assert!(!is_ours(&frame));
    let checksum = u16::from_be_bytes([frame[40], frame[41]]);
    assert_ne!(checksum, 0, "the kernel has filled it in");
    // Exchanging both ends leaves both checksums as they are.
    let mut answer = frame.clone();
    for (a, b, bytes) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
        answer[a..a + bytes].copy_from_slice(&frame[b..b + bytes]);
        answer[b..b + bytes].copy_from_slice(&frame[a..a + bytes]);
    }
    assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), &answer)));
    queue.sync_tx().unwrap();
    let mut got = [0; 64];
    let (bytes, from) = socket.recv_from(&mut got).unwrap();
    assert_eq!((&got[..bytes], from.to_string()), (&b"there and back"[..], "203.0.113.2:9".into()));
}
