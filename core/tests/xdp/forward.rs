//! Forwarding between interfaces: in one pool not a byte is copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use sluicegate::forward::forward;
use sluicegate::link::Shape;
use sluicegate::port::{OpenOptions, Port, Queue, Use, wait_any};
use sluicegate::ring::Wait;

use super::run;
use super::scratch::lab_of;

/// Packets of both directions that were swapped, and copied.
fn pass(from: &mut Queue, to: &mut Queue) -> (u32, u32) {
    from.sync_rx().unwrap();
    let moved = forward(from.rx_mut(), to.tx_mut());
    to.sync_tx().unwrap();
    (moved.swapped_slots, moved.copied_packets)
}

#[test]
fn two_hosts_talk_through_a_bridge_that_swaps() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let options = OpenOptions { netns: Some(lab.netns("middle")), ..OpenOptions::default() };
    let ports = ["xdp:middle0", "xdp:middle1"].map(|name| (name.parse().unwrap(), Use::Both));
    let mut ports = Port::open_all(&ports, &options).unwrap();
    let (mut b, mut a) = (ports.remove(1).queues.remove(0), ports.remove(0).queues.remove(0));
    let ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&ended);
    let bridge = std::thread::spawn(move || {
        let mut sum = (0, 0);
        while !end.load(Relaxed) {
            let (there, back) = (pass(&mut a, &mut b), pass(&mut b, &mut a));
            sum = (sum.0 + there.0 + back.0, sum.1 + there.1 + back.1);
            if there.0 + back.0 == 0 {
                wait_any(&mut [&mut a, &mut b], Wait::Sleep, Duration::from_millis(50)).unwrap();
            }
        }
        sum
    });
    run(&lab, "left", "ping -q -c 200 -i 0.005 -s 1400 -W 1 198.18.0.2");
    ended.store(true, Relaxed);
    let (swapped, copied) = bridge.join().unwrap();
    assert!(swapped >= 400, "{swapped}");
    assert_eq!(copied, 0);
}
