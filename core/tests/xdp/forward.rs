//! Forwarding between interfaces: in one pool not a byte is copied.

use std::time::{Duration, Instant};

use sluicegate::forward::forward;
use sluicegate::link::{Lab, Shape};
use sluicegate::memory::{Pool, PoolConfig};
use sluicegate::port::{OpenOptions, Port, Queue, Use};
use sluicegate::ring::Wait;

use super::run;

/// Packets of both directions that were swapped, and copied.
fn pass(from: &mut Queue, to: &mut Queue) -> (u32, u32) {
    from.sync_rx().unwrap();
    let moved = forward(from.rx_mut(), to.tx_mut());
    to.sync_tx().unwrap();
    (moved.swapped_slots, moved.copied_packets)
}

#[test]
fn two_hosts_talk_through_a_bridge_that_swaps() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root; get it by sudo");
        return;
    }
    let lab = Lab::scratch_with(Shape::Line, 1).expect("a scratch lab");
    let pool = Pool::new(PoolConfig { buffers: 16_384, ..PoolConfig::default() }).unwrap();
    let options = OpenOptions {
        usage: Use::Both,
        netns: Some(lab.netns("middle")),
        pool: Some(pool),
        ..OpenOptions::default()
    };
    let open = |name: &str| Port::open(&name.parse().unwrap(), &options).unwrap().queues.remove(0);
    let (mut a, mut b) = (open("xdp:middle0"), open("xdp:middle1"));
    let bridge = std::thread::spawn(move || {
        let end = Instant::now() + Duration::from_secs(4);
        let mut sum = (0, 0);
        while Instant::now() < end {
            let (there, back) = (pass(&mut a, &mut b), pass(&mut b, &mut a));
            sum = (sum.0 + there.0 + back.0, sum.1 + there.1 + back.1);
            if there.0 + back.0 == 0 {
                a.wait_rx(Wait::Sleep, Duration::from_millis(1)).unwrap();
            }
        }
        sum
    });
    run(&lab, "left", "ping -q -c 200 -i 0.005 -s 1400 -W 1 198.18.0.2");
    let (swapped, copied) = bridge.join().unwrap();
    assert!(swapped >= 400, "{swapped}");
    assert_eq!(copied, 0);
}
