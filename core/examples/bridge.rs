//! A bridge of two ports: packets that come to one are sent out of the other, until ^C.
//!
//! ```text
//! cargo run --release --example bridge -- xdp:eth1/0?promisc=on xdp:eth2/0?promisc=on
//! ```
//!
//! Two `xdp:` ports swap buffers, without copies in user space; the host keeps the packets of queues other than
//! 0. `packet:eth1?promisc=on&tx_copies=off&latency=0s` bridges with packet sockets: it leaves out packets that
//! the host itself sends. `sluice forward` adds queues, threads, signals, filters and a ledger.

use std::thread::sleep;
use std::time::{Duration, Instant};

use sluicegate::forward::forward;
use sluicegate::port::{Directions, OpenOptions, Port, Queue, wait_any};
use sluicegate::ring::Wait;

fn main() -> sluicegate::Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let ports: Result<Vec<_>, _> =
        names.iter().map(|it| Ok((it.parse()?, Directions::Both))).collect();
    let options = OpenOptions { queues: 1, ..OpenOptions::default() };
    let mut ports = Port::open_all(&ports?, &options)?;
    let mut queues: Vec<&mut Queue> = ports.iter_mut().flat_map(|port| &mut port.queues).collect();
    let [left, right] = &mut queues[..] else {
        panic!("usage: bridge PORT PORT, each with one queue: xdp:eth1/0");
    };
    let mut checked = Instant::now();
    loop {
        if pass(left, right)? + pass(right, left)? > 0 {
            if checked.elapsed() > Duration::from_secs(1) {
                // Busy queues do not notice the removal of an interface by themselves.
                left.check()?;
                right.check()?;
                checked = Instant::now();
            }
        } else if is_pending(left) || is_pending(right) {
            // A full ring: nothing reports when it has room.
            sleep(Duration::from_micros(50));
        } else {
            wait_any(&mut [left, right], Wait::default(), Duration::from_secs(1))?;
        }
    }
}

/// Moves received packets as far as there is room. Returns the number of packets moved and slots freed.
fn pass(from: &mut Queue, to: &mut Queue) -> sluicegate::Result<u32> {
    from.sync_rx()?;
    let moved = forward(from.rx_mut(), to.tx_mut());
    Ok(moved.packets() + to.sync_tx()?)
}

fn is_pending(queue: &mut Queue) -> bool {
    queue.rx().available() > 0 || queue.needs_sync_tx()
}
