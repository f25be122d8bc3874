//! Packets that cannot be sent, and queues that are full.

use std::process::{Command, Stdio};
use std::time::Instant;

use sluicegate::link::Lab;
use sluicegate::port::{Directions, Queue};
use sluicegate::ring::{Meta, Packet};

use crate::{
    PATIENCE, WAYS, before_marker, child, collect, frame, is_ours, lab, receive_from, run, send,
    send_to, try_open,
};

/// Queues that send out of left0, one for each way of sending.
fn ways(lab: &Lab) -> impl Iterator<Item = (&'static str, Queue)> {
    WAYS.iter().map(|way| (*way, send_to(lab, "left", &format!("left0?{way}"))))
}

#[test]
fn a_port_that_only_sends_says_how() {
    let Some(lab) = lab() else { return };
    for (name, usage, method) in [
        ("left0", Directions::Send, "sendmmsg"),
        ("left0?send=sendmmsg", Directions::Send, "sendmmsg"),
        ("left0?send=sendto", Directions::Send, "sendto"),
        ("left0?send=ring", Directions::Send, "ring"),
        ("left0?send=sendto", Directions::Both, "ring"),
        ("left0?send=sendto&method=recv", Directions::Both, "recv"),
        ("left0?latency=0s", Directions::Both, "frames"),
    ] {
        let port = try_open(&lab, "left", name, usage).unwrap();
        assert_eq!(port.method, method, "{name}, {usage:?}");
        assert!(port.fallbacks.is_empty(), "{name}, {usage:?}: {:?}", port.fallbacks);
    }
}

/// Frames of several lengths, and those of them that an interface with an MTU of 1500 sends.
fn short_and_long() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let mut expected = Vec::new();
    for (i, bytes) in [0, 1, 13, 14, 60, 1514, 1519, 3000, 65_000, 200_000].into_iter().enumerate()
    {
        for repeat in 0..3 {
            let mut frame = frame(i as u32 * 10 + repeat, bytes.max(18));
            frame.truncate(bytes);
            if (14..=1514).contains(&bytes) {
                expected.push(frame.clone());
            }
            frames.push(frame);
        }
    }
    (frames, expected)
}

#[test]
fn what_is_too_short_or_too_long_is_refused_and_the_rest_goes() {
    let Some(lab) = lab() else { return };
    let (frames, expected) = short_and_long();
    for (way, mut queue) in ways(&lab) {
        let mut port = receive_from(&lab, "right", "packet:right0");
        send(&mut queue, &frames);
        let stats = queue.stats().unwrap();
        assert_eq!(stats.sent, expected.len() as u64, "{way}");
        assert_eq!(stats.refused, (frames.len() - expected.len()) as u64, "{way}");
        let got = collect(&mut port.queues[0], expected.len(), is_ours);
        assert!(got.iter().map(|(_, bytes)| bytes).eq(&expected), "{way}: {} packets", got.len());
        let all = queue.tx_mut().num_slots() - 1;
        assert_eq!(queue.tx_mut().available(), all, "{way}: nothing is stuck");
    }
}

#[test]
fn a_packet_in_pieces_leaves_when_its_last_piece_has_come() {
    let Some(lab) = lab() else { return };
    let whole = frame(5, 900);
    for (way, mut queue) in ways(&lab) {
        let mut port = receive_from(&lab, "right", "packet:right0");
        let mut give = |piece: &[u8], continues| {
            let mut tx = queue.tx_mut();
            let at = tx.head();
            tx.buffer_mut(at)[..piece.len()].copy_from_slice(piece);
            tx.set_bytes(at, piece.len() as u16, continues);
            tx.release(1);
            queue.sync_tx().unwrap()
        };
        assert_eq!(give(&whole[..300], true), 0, "{way}");
        assert_eq!(give(&whole[300..600], true), 0, "{way}");
        assert_eq!(give(&whole[600..], false), 3, "{way}");
        // A packet of more pieces than the ring can hold is let go.
        let slots: u32 = (0..511).map(|_| give(&whole[..100], true)).sum();
        assert_eq!(slots, 511, "{way}");
        // And the next one is sent.
        assert_eq!(give(&whole, false), 1, "{way}");
        let stats = queue.stats().unwrap();
        assert_eq!((stats.sent, stats.refused), (2, 1), "{way}");
        let got = collect(&mut port.queues[0], 2, is_ours);
        assert!(got.iter().all(|(_, bytes)| bytes == &whole), "{way}");
        assert_eq!(before_marker(&lab, "left", "left0", &mut port.queues), 0, "{way}");
    }
}

/// A queue that is full after a few packets, whereupon the kernel answers ENOBUFS, until it is let go.
#[test]
fn packets_for_a_full_queue_stay_in_the_ring_and_each_arrives_once() {
    let Some(lab) = lab() else { return };
    let discipline = |change, rate, limit| {
        let tbf = format!("root tbf rate {rate} burst 20000 limit {limit}");
        run(&lab, "left", &format!("tc qdisc {change} dev left0 {tbf}"));
    };
    discipline("add", "8kbit", 4000);
    let sent: Vec<Vec<u8>> = (0..200).map(|i| frame(i, 1000)).collect();
    for (way, mut queue) in ways(&lab) {
        let mut port = receive_from(&lab, "right", "packet:right0");
        discipline("change", "8kbit", 4000);
        for frame in &sent {
            assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), frame)));
        }
        if way.contains("bypass") {
            assert_eq!(queue.sync_tx().unwrap(), 200, "{way}: no queue is in the way");
        } else {
            assert!(queue.sync_tx().unwrap() < 200, "{way}: the queue takes a few only");
        }
        discipline("change", "1gbit", 400_000);
        let deadline = Instant::now() + PATIENCE;
        while queue.stats().unwrap().sent < 200 && Instant::now() < deadline {
            queue.sync_tx().unwrap();
        }
        let stats = queue.stats().unwrap();
        assert_eq!((stats.sent, stats.refused), (200, 0), "{way}");
        let got = collect(&mut port.queues[0], sent.len(), is_ours);
        assert!(got.iter().map(|(_, bytes)| bytes).eq(&sent), "{way}: {}", got.len());
        assert_eq!(before_marker(&lab, "left", "left0", &mut port.queues), 0, "{way}");
    }
}

/// Other packet sockets of the host get copies of what goes through the queueing discipline.
#[test]
fn what_bypasses_the_queueing_discipline_is_not_seen_by_others_on_this_host() {
    let Some(lab) = lab() else { return };
    for (i, (way, mut queue)) in ways(&lab).enumerate() {
        let mut here = receive_from(&lab, "left", "packet:left0");
        let mut there = receive_from(&lab, "right", "packet:right0");
        let sent = [frame(i as u32, 60)];
        send(&mut queue, &sent);
        assert_eq!(collect(&mut there.queues[0], 1, is_ours)[0].1, sent[0], "{way}");
        let expected = usize::from(!way.contains("bypass"));
        let seen = collect(&mut here.queues[0], expected, is_ours).len();
        let more = before_marker(&lab, "left", "left0", &mut here.queues);
        assert_eq!((seen, more), (expected, 0), "{way}");
    }
}

#[test]
fn a_sender_reports_an_interface_that_is_down_or_removed() {
    let Some(lab) = lab() else { return };
    for (way, usage) in
        WAYS.iter().flat_map(|way| [(way, Directions::Send), (way, Directions::Both)])
    {
        let name = format!("packet:left0?{way}");
        let mut queue = try_open(&lab, "left", &name, usage).unwrap().queues.remove(0);
        run(&lab, "left", "ip link set left0 down");
        assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), &frame(1, 60))));
        for _ in 0..2 {
            let error = queue.sync_tx().unwrap_err();
            assert!(error.to_string().ends_with("ip link set left0 up"), "{error}");
        }
        run(&lab, "left", "ip link set left0 up");
        assert_eq!(queue.sync_tx().unwrap(), 1, "{way}, {usage:?}: it goes now");
        assert_eq!(queue.stats().unwrap().sent, 1, "{way}, {usage:?}");
    }
    let queues: Vec<_> = ways(&lab).collect();
    run(&lab, "left", "ip link del left0");
    for (way, mut queue) in queues {
        assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), &frame(1, 60))));
        let error = queue.sync_tx().unwrap_err();
        assert!(matches!(error, sluicegate::Error::Removed { .. }), "{way}: {error}");
    }
}

#[test]
fn a_send_only_port_receives_nothing() {
    let Some(lab) = lab() else { return };
    let mut sender = send_to(&lab, "right", "right0");
    send(&mut send_to(&lab, "left", "left0"), &[frame(1, 60), frame(2, 60)]);
    send(&mut sender, &[frame(3, 60)]);
    assert_eq!(sender.stats().unwrap().received, 0);
    // It is not even on the kernel's list of those who do: the columns Proto and R.
    let mut list = Command::new("cat");
    let list = lab.spawn("right", list.arg("/proc/net/packet").stdout(Stdio::piped())).unwrap();
    let list = String::from_utf8(child::end(list).stdout).unwrap();
    let ours: Vec<&str> = list.lines().nth(1).expect("one socket").split_whitespace().collect();
    assert_eq!((ours[3], ours[5]), ("0000", "0"), "{list}");
}
