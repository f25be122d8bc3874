//! The transmit ring: where there is none, an MTU that changes, queues that hold its frames.

use std::time::{Duration, Instant};

use sluicegate::port::{Directions, Queue};
use sluicegate::ring::{Meta, Packet};

use crate::{
    PATIENCE, before_marker, collect, frame, is_ours, lab, receive_from, run, send, send_to,
    try_open, wait_for_carrier,
};

/// Tries after which a packet that an interface with a carrier drops is refused.
const GIVEN_UP_AFTER: u32 = 20;
/// The least time between two tries that count.
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

/// Frames of a few lengths, which tell their number.
fn frames(n: u32) -> Vec<Vec<u8>> {
    (0..n).map(|i| frame(i, 60 + (i as usize * 97) % 1400)).collect()
}

/// Puts frames into a queue, which takes them at its own pace.
fn push(queue: &mut Queue, frames: &[Vec<u8>]) {
    let deadline = Instant::now() + PATIENCE;
    for frame in frames {
        while !queue.tx_mut().push(&Packet::new(&Meta::default(), frame)) {
            queue.sync_tx().unwrap();
            assert!(Instant::now() < deadline, "the transmit ring stays full");
        }
    }
}

#[test]
fn sendmmsg_replaces_an_impossible_ring_and_the_reason_is_reported() {
    let Some(lab) = lab() else { return };
    for (name, usage, method, reason) in [
        ("left0?send=ring", Directions::Both, "ring", "a port that receives too has one socket"),
        ("left0?send=ring&method=recv", Directions::Both, "recv", "one socket"),
        ("left0/0-2?send=ring", Directions::Both, "ring", "one socket"),
        ("lo?send=ring", Directions::Send, "sendmmsg", "loopback gives frames back before"),
    ] {
        let mut port = try_open(&lab, "left", name, usage).unwrap();
        assert_eq!(port.method, method, "{name}");
        let [fallback] = &port.fallbacks[..] else { panic!("{name}: {:?}", port.fallbacks) };
        assert_eq!((fallback.from, fallback.to), ("transmit ring", "sendmmsg"), "{name}");
        assert!(fallback.reason.contains(reason), "{name}: {}", fallback.reason);
        send(&mut port.queues[0], &[frame(1, 60)]);
        assert_eq!(port.queues[0].stats().unwrap().sent, 1, "{name}");
    }
    let port = try_open(&lab, "left", "left0?send=ring", Directions::Receive).unwrap();
    assert!(port.fallbacks.is_empty(), "nobody sends, nobody is told");
}

#[test]
fn many_packets_go_through_few_frames() {
    let Some(lab) = lab() else { return };
    let sent = frames(1000);
    for options in ["slots=16&send=ring", "slots=16&send=ring&qdisc=bypass"] {
        let mut port = receive_from(&lab, "right", "packet:right0");
        let mut queue = send_to(&lab, "left", &format!("left0?{options}"));
        send(&mut queue, &sent);
        let stats = queue.stats().unwrap();
        assert_eq!((stats.sent, stats.refused), (1000, 0), "{options}");
        let got = collect(&mut port.queues[0], sent.len(), is_ours);
        assert!(got.iter().map(|(_, bytes)| bytes).eq(&sent), "{options}: {}", got.len());
    }
}

/// The kernel finds that a frame is too long only when it looks, and then takes none behind it.
#[test]
fn an_mtu_that_changes_under_the_ring_is_found_out() {
    let Some(lab) = lab() else { return };
    let mut port = receive_from(&lab, "right", "packet:right0");
    let mut queue = send_to(&lab, "left", "left0?send=ring");
    // A frame has room for 2016 bytes.
    let sent: Vec<Vec<u8>> = [60, 1514, 60, 1514, 1014, 1015, 2000, 2017, 64]
        .into_iter()
        .enumerate()
        .map(|(i, bytes)| frame(i as u32, bytes))
        .collect();
    run(&lab, "right", "ip link set right0 mtu 9000");
    let (mut all_sent, mut all_refused) = (0, 0);
    for (mtu, goes) in [
        (1500, &[0, 1, 2, 3, 4, 5, 8][..]),
        (1000, &[0, 2, 4, 8]),
        (1500, &[0, 1, 2, 3, 4, 5, 8]),
        (9000, &[0, 1, 2, 3, 4, 5, 6, 8]),
    ] {
        run(&lab, "left", &format!("ip link set left0 mtu {mtu}"));
        send(&mut queue, &sent);
        all_sent += goes.len();
        all_refused += sent.len() - goes.len();
        let stats = queue.stats().unwrap();
        assert_eq!((stats.sent, stats.refused), (all_sent as u64, all_refused as u64), "{mtu}");
        let got = collect(&mut port.queues[0], goes.len(), is_ours);
        assert!(
            got.iter().map(|(_, bytes)| bytes).eq(goes.iter().map(|&i| &sent[i])),
            "{mtu}: {} packets",
            got.len()
        );
    }
    assert_eq!(before_marker(&lab, "left", "left0", &mut port.queues), 0);
    let all = queue.tx_mut().num_slots() - 1;
    assert_eq!(queue.tx_mut().available(), all, "nothing is stuck");
}

/// A slow link with a long queue: the kernel takes the frames and keeps them, so that there are
/// none to write into. What it has taken it sends, though the port is closed meanwhile.
#[test]
fn frames_in_a_queue_are_left_alone_and_outlive_the_port() {
    let Some(lab) = lab() else { return };
    run(&lab, "left", "tc qdisc add dev left0 root tbf rate 20mbit burst 2000 limit 4000000");
    let mut port = receive_from(&lab, "right", "packet:right0");
    let mut queue = send_to(&lab, "left", "left0?send=ring&slots=16");
    let sent = frames(300);
    push(&mut queue, &sent);
    queue.close_tx().unwrap();
    let stats = queue.stats().unwrap();
    assert_eq!((stats.sent, stats.refused), (300, 0));
    drop(queue);
    let got = collect(&mut port.queues[0], sent.len(), is_ours);
    assert!(got.iter().map(|(_, bytes)| bytes).eq(&sent), "{} packets", got.len());
}

/// Without a carrier the driver takes no packet that bypasses the queueing discipline.
#[test]
fn what_the_kernel_has_not_taken_at_the_end_is_refused_by_count() {
    let Some(lab) = lab() else { return };
    for way in ["send=sendmmsg&qdisc=bypass", "send=ring&qdisc=bypass"] {
        let mut port = receive_from(&lab, "right", "packet:right0");
        let mut queue = send_to(&lab, "left", &format!("left0?{way}"));
        send(&mut queue, &frames(3));
        run(&lab, "right", "ip link set right0 down");
        push(&mut queue, &frames(40));
        queue.close_tx().unwrap();
        let stats = queue.stats().unwrap();
        assert_eq!((stats.sent, stats.refused), (3, 40), "{way}");
        run(&lab, "right", "ip link set right0 up");
        let got = collect(&mut port.queues[0], 3, is_ours);
        assert_eq!(got.len(), 3, "{way}");
        drop(queue);
        let later = before_marker(&lab, "left", "left0", &mut port.queues);
        assert_eq!(later, 0, "{way}: no packet that was given up is sent later");
    }
}

#[test]
fn a_packet_is_not_given_up_for_the_time_in_which_there_was_no_carrier() {
    let Some(lab) = lab() else { return };
    let sent = frame(1, 1000);
    // A veth drops what its other end has no room for (net/core/dev.c, is_skb_forwardable).
    for way in ["send=sendmmsg&qdisc=bypass", "send=ring&qdisc=bypass"] {
        let mut port = receive_from(&lab, "right", "packet:right0");
        let mut queue = send_to(&lab, "left", &format!("left0?{way}"));
        run(&lab, "right", "ip link set right0 mtu 576 down");
        wait_for_carrier(&lab, false);
        push(&mut queue, std::slice::from_ref(&sent));
        assert_eq!(queue.sync_tx().unwrap(), 0, "{way}: there is no carrier");
        for _ in 0..GIVEN_UP_AFTER {
            std::thread::sleep(BETWEEN_TRIES);
            assert_eq!(queue.sync_tx().unwrap(), 0, "{way}: no slot is free yet");
        }
        run(&lab, "right", "ip link set right0 up");
        wait_for_carrier(&lab, true);
        assert_eq!(queue.sync_tx().unwrap(), 0, "{way}: it is dropped for the first time");
        run(&lab, "right", "ip link set right0 mtu 1500");
        assert_eq!(queue.sync_tx().unwrap(), 1, "{way}: it goes");
        let stats = queue.stats().unwrap();
        assert_eq!((stats.sent, stats.refused), (1, 0), "{way}");
        assert_eq!(collect(&mut port.queues[0], 1, is_ours)[0].1, sent, "{way}");
    }
}
