//! An interface that changes while a port is open on it: link, number of queues, removal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sluicegate::link::Ethtool;
use sluicegate::port::{Directions, Port, Queue};
use sluicegate::ring::{Meta, Packet, Readiness, Wait};

use crate::MODES;
use crate::hosts::{PATIENCE, Wire, wire, wire_in_any_order};
use crate::traffic::{found, frames, open, open_if_possible, receive, send};

/// A port by each mode that the driver has.
fn names() -> impl Iterator<Item = String> {
    MODES.iter().map(|mode| format!("xdp:right0?{mode}"))
}

#[test]
fn a_port_goes_on_when_the_link_is_back() {
    let Some(wire) = wire_in_any_order(1) else { return };
    let sent = frames(100, 16);
    let mut failed = Vec::new();
    for name in names() {
        let Some(mut port) = open_if_possible(&wire, &name) else { continue };
        wire.wait_for_link();
        assert!(wire.run("right", "ip link set right0 down"));
        wait_until_down(&mut port.queues[0], &name);
        assert!(wire.run("right", "ip link set right0 up"));
        send(&wire, &sent);
        let came = found(&receive(&mut port.queues, sent.len()), &sent);
        if came != sent.len() {
            failed.push(format!("{name}: {came} of {} came", sent.len()));
        }
    }
    assert!(failed.is_empty(), "rows that failed: {failed:#?}");
}

/// Waits until a queue reports that its interface is down. Releases the packets before that: as long as
/// it has packets, a queue reports nothing else.
fn wait_until_down(queue: &mut Queue, name: &str) {
    let deadline = Instant::now() + PATIENCE;
    while queue.wait_rx(Wait::Sleep, Duration::from_millis(20)).unwrap() != Readiness::Down {
        queue.sync_rx().unwrap();
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
        assert!(Instant::now() < deadline, "{name}: nothing was said");
    }
}

#[test]
fn the_number_of_channels_changes_under_a_port() {
    let Some(wire) = wire(2) else { return };
    let netns = wire.netns("right");
    let channels = Ethtool::open(Some(&netns)).unwrap().channels("right0").unwrap();
    let Some(channels) = channels.filter(|it| it.combined >= 2) else {
        println!("skipped: the interface has fewer than two combined channels");
        return;
    };
    let set = |n| wire.run("right", &format!("ethtool -L right0 combined {n}"));
    if !(set(1) && set(channels.combined)) {
        println!("skipped: the driver does not change the number of channels");
        return;
    }
    let sent = frames(200, 64);
    let mirrors = ["mirror:right0?mode=native".to_owned(), "mirror:right0?mode=skb".to_owned()];
    for name in names().chain(mirrors) {
        let Some(mut port) = open_if_possible(&wire, &name) else { continue };
        // All that the port has, however many its program has made.
        let mut there = u32::MAX;
        for n in [1, channels.combined] {
            let before = Instant::now();
            // The kernel refuses it where sockets would go; copies have none to be in the way.
            let done = set(n);
            println!("seen: {name}: to {n} channels: {done} after {:?}", before.elapsed());
            let now = if done { n } else { there };
            let left = check_queues(&name, &mut port.queues, there, now);
            there = now;
            send(&wire, &sent);
            let came = found(&receive(left, sent.len()), &sent);
            assert_eq!(came, sent.len(), "{name}: with {n} channels, {done}");
        }
        drop(port);
        assert!(set(channels.combined), "{name}: the port is closed");
    }
}

/// Checks that a port's queues go on if the interface has them now, and that others report why not.
/// Returns those that go on.
fn check_queues<'a>(name: &str, queues: &'a mut [Queue], before: u32, now: u32) -> &'a mut [Queue] {
    let left = queues.iter().filter(|queue| queue.number() < now).count();
    let (left, removed) = queues.split_at_mut(left);
    removed.iter_mut().for_each(|queue| check_removed(name, queue, now));
    for queue in &mut *left {
        match queue.number() < before {
            true => queue.check().unwrap(),
            false => wait_until_back(name, queue),
        }
    }
    left
}

/// Checks that a queue which the interface has lost names that as its only reason.
fn check_removed(name: &str, queue: &mut Queue, there: u32) {
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        match queue.wait_rx(Wait::Sleep, Duration::from_millis(20)) {
            Ok(_) => assert!(Instant::now() < deadline, "{name}: nothing was said"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, sluicegate::Error::Removed { .. }), "{name}: {error}");
    let number = queue.number();
    let expected = format!(
        "queue {number} of right0 no longer exists: the interface has {there} receive queue"
    );
    assert!(error.to_string().starts_with(&expected), "{name}: {error}");
}

/// Waits until a removed queue works again, once the interface has it back.
fn wait_until_back(name: &str, queue: &mut Queue) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = queue.check() {
        assert!(Instant::now() < deadline, "{name}: {error}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends until it is told to stop, or cannot.
fn keep_sending(wire: &Wire, stop: &AtomicBool) {
    let mut port = open(wire, "left", "packet:left0?slots=256", Directions::Send).unwrap();
    let queue = &mut port.queues[0];
    let frames = frames(64, 16);
    // Only a flag: nothing is published with it.
    while !stop.load(Ordering::Relaxed) {
        for frame in &frames {
            queue.tx_mut().push(&Packet::new(&Meta::default(), frame));
        }
        if queue.sync_tx().is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Receives until the port says what has become of the interface.
fn receive_to_the_end(port: &mut Port, removed: &AtomicBool, remove: impl FnOnce()) {
    let deadline = Instant::now() + PATIENCE;
    let (mut packets, mut remove) = (0, Some(remove));
    let error = loop {
        let queue = &mut port.queues[0];
        let news = queue.sync_rx().and_then(|_| {
            packets += queue.rx().packets().count();
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
            packets += queue.take_kernel_counters().0 as usize;
            queue.wait_rx(Wait::Sleep, Duration::from_millis(20))
        });
        match news {
            Ok(_) if packets >= 100 => {
                if let Some(remove) = remove.take() {
                    remove();
                    // As above.
                    removed.store(true, Ordering::Relaxed);
                }
            }
            Ok(_) => {}
            Err(error) => break error,
        }
        assert!(Instant::now() < deadline, "{packets} packets came, and nothing was said");
    };
    assert!(matches!(error, sluicegate::Error::Removed { .. }), "{error}");
}

#[test]
fn an_interface_is_removed_under_traffic() {
    let others = ["packet:right0", "mirror:right0", "xdp:right0?action=drop"];
    let mut names: Vec<_> = names().chain(others.map(str::to_owned)).collect();
    // First what has no native program, with which the interfaces of some drivers never go.
    names.sort_by_key(|name| !(name.starts_with("packet:") || name.contains("mode=skb")));
    for name in names {
        // It comes back when the wire is given back.
        let Some(wire) = wire_in_any_order(1) else { return };
        let Some(mut port) = open_if_possible(&wire, &name) else { continue };
        wire.wait_for_link();
        println!("removing the interface under {name}");
        let (removed, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| keep_sending(&wire, &stop));
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                receive_to_the_end(&mut port, &removed, || wire.remove_right0());
            }));
            stop.store(true, Ordering::Relaxed);
            if let Err(panic) = outcome {
                std::panic::resume_unwind(panic);
            }
        });
        assert!(removed.load(Ordering::Relaxed), "{name}: it was removed, not lost");
    }
}
