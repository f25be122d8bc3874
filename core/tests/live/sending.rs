//! Packets that are sent: order, bytes, lengths, and the fate of the others.

use std::time::{Duration, Instant};

use sluicegate::port::{Directions, Queue};
use sluicegate::ring::{Meta, Packet};

use super::stream::{WINDOW, frame, mix, send_and_expect, take};
use super::{PATIENCE, lab, linux, open, receiver, run, sender};

#[test]
fn frames_of_all_lengths_come_in_order_and_as_they_were() {
    let Some(lab) = lab() else { return };
    let mut to = receiver(&lab);
    let mut from = sender(&lab, "");
    let bytes_of = |number| 22 + (mix(number) % 1493) as usize;
    send_and_expect(&mut from.queues[0], &mut to.queues[0], (0, 200_000), bytes_of);
    from.queues[0].close_tx().unwrap();
    let stats = from.queues[0].stats().unwrap();
    assert_eq!((stats.sent, stats.refused), (200_000, 0), "{stats:?}");
}

#[test]
fn short_rings_wrap_around_many_times() {
    let Some(lab) = lab() else { return };
    let mut to = receiver(&lab);
    for options in ["?ring_size=64&slots=16", "?ring_size=100", "?ring_size=64&slots=4096"] {
        let mut from = sender(&lab, options);
        let bytes_of = |number| 60 + (number % 200) as usize;
        send_and_expect(&mut from.queues[0], &mut to.queues[0], (0, 10_000), bytes_of);
    }
}

#[test]
fn frames_of_several_slots_are_put_together_as_long_as_a_page_has_room() {
    let Some(lab) = lab() else { return };
    for (host, command) in
        [("left", "ip link set left0 mtu 3600"), ("right", "ip link set right0 mtu 3600")]
    {
        assert!(run(&lab, host, command).success(), "{command}");
    }
    let mut to = open(&lab, "right", "packet:right0?tx_copies=off", Directions::Receive).unwrap();
    let mut from = sender(&lab, "");
    let bytes_of = |number| 3368 - (number % 1500) as usize;
    send_and_expect(&mut from.queues[0], &mut to.queues[0], (0, 5000), bytes_of);
    push(&mut from.queues[0], &[3369, 3614, 5000]);
    from.queues[0].close_tx().unwrap();
    let stats = from.queues[0].stats().unwrap();
    assert_eq!((stats.sent, stats.refused, stats.too_long), (5000, 3, 3), "{stats:?}");
}

/// Puts frames of these sizes into a queue.
fn push(queue: &mut Queue, sizes: &[usize]) {
    let mut made = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    for (number, &bytes) in sizes.iter().enumerate() {
        frame(number as u64, bytes, &mut made);
        while !queue.tx_mut().push(&Packet::new(&Meta::default(), &made)) {
            queue.sync_tx().unwrap();
            assert!(Instant::now() < deadline, "the transmit ring stays full");
        }
    }
    queue.sync_tx().unwrap();
}

#[test]
fn what_cannot_be_sent_is_counted_and_the_rest_is_sent() {
    let Some(lab) = lab() else { return };
    let mut from = sender(&lab, "");
    let queue = &mut from.queues[0];
    push(queue, &[0, 13, 14, 60, 1514, 1515, 9000]);
    queue.close_tx().unwrap();
    let stats = queue.stats().unwrap();
    assert_eq!((stats.sent, stats.refused), (3, 4), "{stats:?}");
    assert_eq!((stats.too_long, stats.unsent), (2, 0), "{stats:?}");
    push(queue, &[60]);
    let stats = queue.stats().unwrap();
    assert_eq!((stats.sent, stats.refused, stats.unsent), (3, 5, 1), "after the end: {stats:?}");
}

#[test]
fn what_is_still_there_at_a_sudden_end_is_counted() {
    let Some(lab) = lab() else { return };
    let mut to = receiver(&lab);
    let mut from = sender(&lab, "?ring_size=128");
    let queue = &mut from.queues[0];
    let mut made = Vec::new();
    let (mut pushed, mut came, deadline) = (0, 0, Instant::now() + PATIENCE);
    // At most as many at a time as a veth's queue holds: either end may be slow.
    let mut push = |queue: &mut Queue| {
        for _ in 0..128 {
            frame(pushed, 1000, &mut made);
            assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), &made)));
            pushed += 1;
        }
        queue.sync_tx().unwrap();
        pushed
    };
    for _ in 0..32 {
        let pushed = push(queue);
        while came < pushed {
            queue.sync_tx().unwrap();
            take(&mut to.queues[0], |_| came += 1);
            assert!(Instant::now() < deadline, "{came} of {pushed}");
        }
    }
    let pushed = push(queue);
    queue.close_tx_within(Duration::ZERO).unwrap();
    let stats = queue.stats().unwrap();
    // None may be left: then the program has kept up with the writer. That those left are counted is a
    // test of its own (core/src/port/live_queue.rs).
    assert_eq!(stats.sent + stats.unsent, pushed, "{stats:?}");
    assert_eq!(stats.refused, stats.unsent, "{stats:?}");
    while came < stats.sent {
        take(&mut to.queues[0], |_| came += 1);
        assert!(Instant::now() < deadline, "{came} of {}", stats.sent);
    }
    assert_eq!(came, stats.sent);
}

#[test]
fn each_queue_has_its_own_order() {
    let Some(lab) = lab() else { return };
    let mut to = receiver(&lab);
    let mut from = sender(&lab, "/0-3");
    assert_eq!(from.queues.iter().map(Queue::number).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let (mut sent, mut came) = (0, [0u64; 4]);
    let (mut made, mut expected) = (Vec::new(), Vec::new());
    let mut deadline = Instant::now() + PATIENCE;
    while came.iter().sum::<u64>() < 4 * 5000 {
        for i in 0..4u64 {
            if sent < 5000 && sent < came.iter().min().unwrap() + WINDOW / 4 {
                frame(sent << 2 | i, 60 + (sent % 100) as usize, &mut made);
                let queue = &mut from.queues[i as usize];
                while !queue.tx_mut().push(&Packet::new(&Meta::default(), &made)) {
                    queue.sync_tx().unwrap();
                }
                queue.sync_tx().unwrap();
                sent += u64::from(i == 3);
            }
        }
        let before = came;
        take(&mut to.queues[0], |bytes| {
            let i = usize::from(bytes[21] & 3);
            frame(came[i] << 2 | i as u64, 60 + (came[i] % 100) as usize, &mut expected);
            assert!(bytes == expected, "queue {i}, frame {}", came[i]);
            came[i] += 1;
        });
        if came != before {
            deadline = Instant::now() + PATIENCE;
        }
        assert!(Instant::now() < deadline, "{came:?} of {sent}");
    }
}

#[test]
fn it_only_sends_and_says_what_receives() {
    let Some(lab) = lab() else { return };
    for (usage, name, says) in [
        (Directions::Receive, "live:left0", "packet:, xdp: and mirror: receive"),
        (Directions::Both, "live:left0", "it only sends"),
        (Directions::Send, "live:left0?ring_size=1", "64 to 65536"),
        (Directions::Send, "live:left0?filter=ip", "live: has the options ring_size= cpu= slots="),
        (Directions::Send, "live:lo", "Ethernet"),
    ] {
        let error = open(&lab, "left", name, usage).expect_err(name).to_string();
        assert!(error.contains(says), "{name}: {error}");
    }
}

#[test]
fn where_nothing_would_leave_it_says_why() {
    let Some(lab) = lab() else { return };
    let refused = |why: &str| open(&lab, "left", "live:left0", Directions::Send).expect_err(why);
    if linux() < (6, 3) {
        println!("left out: that the other end needs NAPI is said from Linux 6.3 on");
    } else {
        assert!(run(&lab, "right", "ethtool -K right0 gro off").success());
        let error = refused("no NAPI").to_string();
        assert!(error.contains("the other end needs NAPI"), "{error}");
        assert!(run(&lab, "right", "ethtool -K right0 gro on").success());
    }
    assert!(run(&lab, "left", "ip link set left0 down").success());
    let error = refused("down").to_string();
    assert!(error.contains("left0 is down"), "{error}");
}

#[test]
fn one_cpu_for_who_writes_and_who_sends_is_enough() {
    let Some(lab) = lab() else { return };
    let alone = std::thread::Builder::new().spawn(move || {
        sluicegate::link::pin_thread(0).unwrap();
        let mut to = receiver(&lab);
        for options in ["", "?ring_size=64&slots=64", "?cpu=0"] {
            let mut from = sender(&lab, options);
            send_and_expect(&mut from.queues[0], &mut to.queues[0], (0, 5000), |_| 60);
            from.queues[0].close_tx().unwrap();
        }
    });
    alone.unwrap().join().unwrap();
}

#[test]
fn a_missing_cpu_is_an_error_that_names_it() {
    let Some(lab) = lab() else { return };
    for options in ["?cpu=1000", "?cpu=4095", "/0-1023?cpu=0"] {
        let name = format!("live:left0{options}");
        let error = open(&lab, "left", &name, Directions::Send).expect_err(options).to_string();
        assert!(error.contains("no CPU ") && error.contains("online are"), "{options}: {error}");
    }
}
