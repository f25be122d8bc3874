//! The device: created and removed, switched on and off, shared with others.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use sluicegate::error::Error;
use sluicegate::port::{Directions, Queue};
use sluicegate::ring::{Meta, Packet, Readiness, Wait};

use super::alone::is_alone;
use super::numbered::frame;
use super::{PATIENCE, lab, open, receive, run, send, tap0};

#[test]
fn a_device_goes_with_its_port_unless_it_is_to_persist() {
    // Nobody else has a port's device, when it is closed.
    if !is_alone("device::a_device_goes_with_its_port_unless_it_is_to_persist") {
        return;
    }
    let Some(lab) = lab() else { return };
    let port = open(&lab, "tap:tap0?mtu=1400", Directions::Both).unwrap();
    let made = tap0(&lab).unwrap();
    assert!(made.up);
    assert_eq!(made.mtu, 1400);
    drop(port);
    assert!(tap0(&lab).is_none(), "made by the port");

    drop(open(&lab, "tap:tap0?persist=on&up=off", Directions::Both).unwrap());
    assert!(!tap0(&lab).unwrap().up, "it stays, and nobody has switched it on");
    drop(open(&lab, "tap:tap0", Directions::Both).unwrap());
    assert!(tap0(&lab).unwrap().up, "it stays as it is");
    drop(open(&lab, "tap:tap0?persist=off", Directions::Both).unwrap());
    assert!(tap0(&lab).is_none());
}

#[test]
fn an_existing_device_is_used() {
    let Some(lab) = lab() else { return };
    for flags in ["", "multi_queue"] {
        assert!(run(&lab, &format!("ip tuntap add dev tap0 mode tap {flags}")));
        let mut tap = open(&lab, "tap:tap0", Directions::Receive).unwrap();
        let mut host = open(&lab, "packet:tap0", Directions::Send).unwrap();
        let sent = [frame(7, 60, &[])];
        send(&mut host.queues[0], &sent);
        assert_eq!(receive(&mut tap.queues, 1).len(), 1, "'{flags}'");
        tap.queues[0].close_tx().unwrap();
        drop(tap);
        assert!(tap0(&lab).is_some(), "'{flags}': it is not the port's to remove");
        assert!(run(&lab, "ip link del tap0"));
    }
}

#[test]
fn what_cannot_be_opened_says_why() {
    let Some(lab) = lab() else { return };
    let _first = open(&lab, "tap:tap0", Directions::Both).unwrap();
    for (name, why) in [
        ("tap:tap0", "another process has it"),
        ("tap:right0", "it is no TAP device"),
        ("tap:a-name-of-sixteen", "1 to 15 letters"),
        ("tap:tap1?slots=16", "the longest frame needs"),
        ("tap:tap1?mtu=67", "68 to 65521"),
    ] {
        let error = open(&lab, name, Directions::Both).unwrap_err().to_string();
        assert!(error.contains(why), "{name}: {error}");
    }
}

#[test]
fn a_device_that_goes_down_is_reported_and_works_once_it_is_up() {
    let Some(lab) = lab() else { return };
    let mut tap = open(&lab, "tap:tap0", Directions::Both).unwrap();
    let queue = &mut tap.queues[0];
    assert!(run(&lab, "ip link set tap0 down"));
    let wait = |queue: &mut Queue| {
        // What the host said of itself before is still there.
        while queue.sync_rx().unwrap() > 0 {
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
        }
        queue.wait_rx(Wait::Sleep, Duration::from_millis(20)).unwrap()
    };
    assert_eq!(wait(queue), Readiness::Down);
    assert_eq!(wait(queue), Readiness::TimedOut, "it is said once");
    let packet = frame(1, 60, &[]);
    assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), &packet)));
    let error = queue.sync_tx().unwrap_err();
    assert_eq!(error.errno(), Some(Errno::ENETDOWN as i32), "{error}");
    assert!(error.to_string().contains("bring it up"), "{error}");
    assert!(run(&lab, "ip link set tap0 up"));
    let mut host = open(&lab, "packet:tap0", Directions::Receive).unwrap();
    queue.sync_tx().unwrap();
    assert_eq!(receive(&mut host.queues, 1).len(), 1, "what waited was sent then");
}

#[test]
fn what_a_device_did_not_take_before_sending_ended_is_counted() {
    let Some(lab) = lab() else { return };
    let mut tap = open(&lab, "tap:tap0?up=off", Directions::Both).unwrap();
    let queue = &mut tap.queues[0];
    for number in 0..3 {
        let packet = frame(number, 60, &[]);
        assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), &packet)));
    }
    let error = queue.close_tx().unwrap_err();
    assert_eq!(error.errno(), Some(Errno::ENETDOWN as i32), "{error}");
    let stats = queue.stats().unwrap();
    assert_eq!((stats.sent, stats.refused, stats.unsent), (0, 3, 3));
}

#[test]
fn a_removed_device_is_an_error() {
    let Some(lab) = lab() else { return };
    let mut tap = open(&lab, "tap:tap0", Directions::Both).unwrap();
    let queue = &mut tap.queues[0];
    assert!(run(&lab, "ip link del tap0"));
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        match queue.wait_rx(Wait::Sleep, Duration::from_millis(20)).and_then(|_| queue.sync_rx()) {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < deadline, "no error, though it is removed"),
        }
    };
    assert!(matches!(error, Error::Removed { .. }), "{error}");
    assert!(matches!(queue.check().unwrap_err(), Error::Removed { .. }));
    queue.stop_rx().unwrap();
    assert!(queue.sync_rx().is_err());
    assert!(queue.is_finished(), "who waits for the rest waits no longer");
}
