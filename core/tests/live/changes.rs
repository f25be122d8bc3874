//! Changes while a port is open: nothing to send, a removed interface, another program.

use std::fs;
use std::time::{Duration, Instant};

use sluicegate::Error;
use sluicegate::port::{Directions, Queue};
use sluicegate::ring::{Meta, Packet};

use super::alone::is_alone;
use super::stream::{frame, send_and_expect};
use super::{PATIENCE, lab, open, receiver, run, sender};

/// The states of this process's threads of live frames, as proc(5) writes them.
fn live_threads() -> Vec<char> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    let state = |stat: String| stat.split_once("(live) ").and_then(|(_, rest)| rest.chars().next());
    stats.filter_map(state).collect()
}

/// Waits until each thread of live frames sleeps: nobody else's is running in this process.
fn wait_until_idle() {
    let deadline = Instant::now() + PATIENCE;
    while live_threads().iter().any(|&state| state != 'S') {
        assert!(Instant::now() < deadline, "they do not sleep: {:?}", live_threads());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_thread_that_has_nothing_to_send_sleeps_until_it_has() {
    // Other tests have such threads, too.
    if !is_alone("changes::a_thread_that_has_nothing_to_send_sleeps_until_it_has") {
        return;
    }
    let Some(lab) = lab() else { return };
    let mut to = receiver(&lab);
    let mut from = sender(&lab, "/0-1");
    for round in 0..20 {
        wait_until_idle();
        for queue in &mut from.queues {
            send_and_expect(queue, &mut to.queues[0], (round * 10, round * 10 + 10), |_| 60);
        }
    }
    assert_eq!(live_threads().len(), 2, "a thread for each queue");
    drop(from);
    assert_eq!(live_threads().len(), 0, "none is left");
}

/// Sends until that fails.
fn send_until_error(queue: &mut Queue) -> Error {
    let mut made = Vec::new();
    frame(0, 60, &mut made);
    let deadline = Instant::now() + PATIENCE;
    loop {
        queue.tx_mut().push(&Packet::new(&Meta::default(), &made));
        if let Err(error) = queue.sync_tx() {
            return error;
        }
        assert!(Instant::now() < deadline, "nobody notices");
    }
}

#[test]
fn a_removed_interface_is_noticed_while_packets_wait() {
    for (command, says) in [
        ("ip link set left0 down", "the interface is down"),
        ("ip link del left0", "left0 no longer exists"),
    ] {
        let Some(lab) = lab() else { return };
        let mut from = sender(&lab, "");
        let queue = &mut from.queues[0];
        assert!(run(&lab, "left", command).success());
        let error = send_until_error(queue).to_string();
        assert!(error.contains(says), "{command}: {error}");
        queue.close_tx().unwrap();
        let stats = queue.stats().unwrap();
        assert_eq!(stats.refused, stats.unsent, "{command}: {stats:?}");
    }
}

#[test]
fn an_interface_that_goes_is_noticed_by_who_has_nothing_to_send() {
    let Some(lab) = lab() else { return };
    let mut from = sender(&lab, "");
    from.queues[0].check().unwrap();
    assert!(run(&lab, "left", "ip link set left0 down").success());
    from.queues[0].check().expect("an interface that is down still exists");
    assert!(run(&lab, "left", "ip link del left0").success());
    let error = from.queues[0].check().unwrap_err();
    assert!(matches!(error, Error::Removed { .. }), "{error}");
}

/// Neither disturbs the other: the program is attached while runs go on, which the kernel waits for, and
/// nothing is lost by that. That a run ends by itself is a test of its own (`core/src/xdp/live`).
#[test]
fn a_program_is_attached_while_packets_are_sent() {
    let Some(lab) = lab() else { return };
    let mut from = sender(&lab, "");
    let queue = &mut from.queues[0];
    let (mut made, mut pushed) = (Vec::new(), 0);
    frame(0, 60, &mut made);
    let mut push = |queue: &mut Queue| {
        pushed += u64::from(queue.tx_mut().push(&Packet::new(&Meta::default(), &made)));
        queue.sync_tx().unwrap();
        pushed
    };
    let attached = std::thread::scope(|scope| {
        let attaching = scope.spawn(|| open(&lab, "left", "xdp:left0", Directions::Receive));
        let deadline = Instant::now() + PATIENCE;
        while !attaching.is_finished() {
            // The attaching thread cannot be stopped: it returns once no program runs.
            let waits = Instant::now() < deadline;
            assert!(waits || queue.close_tx().is_err(), "it waits for the end of the run");
            push(queue);
        }
        attaching.join().unwrap().unwrap()
    });
    let before = queue.stats().unwrap().sent;
    let deadline = Instant::now() + PATIENCE;
    while queue.stats().unwrap().sent < before + 10_000 {
        push(queue);
        assert!(Instant::now() < deadline, "nothing more is sent: {:?}", queue.stats());
    }
    drop(attached);
    let pushed = push(queue);
    queue.close_tx().unwrap();
    let stats = queue.stats().unwrap();
    assert_eq!((stats.sent, stats.refused), (pushed, 0), "{stats:?}");
}
