//! Sends a million UDP packets, as fast as the port takes them.
//!
//! ```text
//! cargo run --release --example generate -- packet:eth0
//! ```
//!
//! It prints the number of packets that the kernel or a file accepted, without those `refused`. Other programs
//! get the destination's MAC address from `link::NextHops::mac`, and the times of a rate from
//! `rate::Timetable` of the crate `sluicegate-traffic`.

use std::io::{Write, stdout};
use std::thread::sleep;
use std::time::{Duration, Instant};

use etherparse::PacketBuilder;
use sluicegate::port::{Directions, Port};
use sluicegate::ring::{Meta, Packet};

const PACKETS: u32 = 1_000_000;

fn main() -> sluicegate::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "null:".into());
    let mut queue = Port::open_one(&name, Directions::Send)?;

    let mut bytes = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([198, 18, 0, 1], [198, 18, 0, 2], 64)
        .udp(9, 9)
        .write(&mut bytes, &[0; 18])
        .expect("a Vec takes every write");
    let meta = Meta { wire_bytes: bytes.len() as u32, ..Meta::default() };

    let (mut left, mut checked) = (PACKETS, Instant::now());
    while left > 0 {
        while left > 0 && queue.tx_mut().push(&Packet::new(&meta, &bytes)) {
            left -= 1;
        }
        if queue.sync_tx()? == 0 {
            sleep(Duration::from_micros(50)); // the ring is full
        }
        if checked.elapsed() > Duration::from_secs(1) {
            queue.check()?; // fails if the interface was removed
            checked = Instant::now();
        }
    }
    queue.close_tx()?;
    // Ignore the error: the reader has exited.
    let _ = writeln!(stdout(), "{} sent", queue.stats()?.sent);
    Ok(())
}
