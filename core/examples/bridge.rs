//! A bridge between two ports: what comes in on one side goes out on the other, until ^C.
//!
//! ```text
//! cargo run --release --example bridge -- xdp:eth1 xdp:eth2
//! ```
//!
//! Any two ports that receive and send will do; two `xdp:` ports swap buffers, and copy nothing.
//! `sluice forward` is this with threads, signals, filters and a ledger.

use std::time::Duration;

use sluicegate::forward::forward;
use sluicegate::port::{OpenOptions, Port, Queue, Use, wait_any};
use sluicegate::ring::{Readiness, Wait};

/// A packet that the other side has no room for waits so long at most before it is tried again.
const TICK: Duration = Duration::from_millis(1);

fn main() -> sluicegate::Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [left, right] = &names[..] else {
        eprintln!("usage: bridge PORT PORT");
        std::process::exit(2);
    };
    let ports = [(left.parse()?, Use::Both), (right.parse()?, Use::Both)];
    let options = OpenOptions { queues: 1, ..OpenOptions::default() };
    let mut ports = Port::open_all(&ports, &options)?;
    let mut queues: Vec<&mut Queue> = ports.iter_mut().flat_map(|port| &mut port.queues).collect();
    let [left, right] = &mut queues[..] else {
        eprintln!("this has one thread, and no more than a queue for each side: xdp:eth1/0");
        std::process::exit(2);
    };
    loop {
        let (from_left, to_right) = ports_move(left, right)?;
        let (from_right, to_left) = ports_move(right, left)?;
        if from_left + from_right + to_left + to_right > 0 {
            continue;
        }
        let (which, what) = wait_any(&mut [left, right], Wait::default(), TICK)?;
        if what == Readiness::Down {
            eprintln!("the {} side is down", ["left", "right"][which]);
        }
    }
}

/// Moves what has come, as far as there is room. Returns how many packets moved, and how many
/// slots of the other side are room again.
fn ports_move(from: &mut Queue, to: &mut Queue) -> sluicegate::Result<(u32, u32)> {
    from.sync_rx()?;
    let moved = forward(from.rx_mut(), to.tx_mut());
    let left = to.sync_tx()?;
    Ok((moved.packets(), left))
}
