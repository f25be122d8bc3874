//! Forwards between two `null:` ports in both directions, by swap, on one core, and prints the
//! rate: the cost of a slot. The counterpart of `dpdk-testpmd --forward-mode=io` over two net_null
//! devices.
//!
//! Usage: null_forward [io|touch|copy] [SECONDS] [SLOTS]
//!
//! io moves slots without a look at the packets; touch reads and writes a byte of each; copy has
//! each port in a pool of its own, so that packets are copied.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use sluicegate::forward::forward;
use sluicegate::memory::{Pool, PoolConfig};
use sluicegate::port::{OpenOptions, Port, Queue};

fn main() -> sluicegate::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mode = args.first().map_or("io", String::as_str);
    let seconds: f64 = args.get(1).and_then(|text| text.parse().ok()).unwrap_or(3.0);
    let slots = args.get(2).map_or("512", String::as_str);

    let pool = Pool::new(PoolConfig { buffers: 1 << 16, ..PoolConfig::default() })?;
    let shared = OpenOptions { pool: (mode != "copy").then_some(pool), ..OpenOptions::default() };
    let name = format!("null:?slots={slots}").parse()?;
    let mut left = Port::open(&name, &shared)?.queues.remove(0);
    let mut right = Port::open(&name, &shared)?.queues.remove(0);

    let start = Instant::now();
    let end = start + Duration::from_secs_f64(seconds);
    let mut packets = 0u64;
    while Instant::now() < end {
        for _ in 0..1000 {
            packets += pass(&mut left, &mut right, mode == "touch")?;
            packets += pass(&mut right, &mut left, mode == "touch")?;
        }
    }
    let rate = packets as f64 / start.elapsed().as_secs_f64();
    // Ignore the error: the reader has exited.
    let _ = writeln!(stdout(), "{mode}: {:.1} Mpps, {:.2} ns a packet", rate / 1e6, 1e9 / rate);
    Ok(())
}

fn pass(from: &mut Queue, to: &mut Queue, touch: bool) -> sluicegate::Result<u64> {
    let got = from.sync_rx()?;
    if touch {
        let mut ring = from.rx_mut();
        let mut at = ring.head();
        for _ in 0..ring.available() {
            ring.bytes_mut(at)[0] ^= 1;
            at = ring.next(at);
        }
    }
    forward(from.rx_mut(), to.tx_mut());
    to.sync_tx()?;
    Ok(u64::from(got))
}
