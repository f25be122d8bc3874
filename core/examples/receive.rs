//! Prints the time and the length of each packet that a port receives, until ^C or the end of a file.
//!
//! ```text
//! cargo run --release --example receive -- packet:eth0
//! ```

use std::io::{Write, stdout};
use std::time::Duration;

use sluicegate::port::{Directions, Port};

fn main() -> sluicegate::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "packet:lo".into());
    let mut queue = Port::open_one(&name, Directions::Receive)?;
    let mut out = stdout().lock();
    // On a port that is never idle, also call `queue.check()` once a second: it reports a removed interface.
    while !queue.is_finished() {
        for packet in queue.receive(Duration::from_secs(1))?.packets() {
            let meta = packet.meta();
            let line = writeln!(out, "{} ns, {} bytes", meta.timestamp_ns, meta.wire_bytes);
            if line.is_err() {
                // The reader of a pipe has exited.
                return Ok(());
            }
        }
    }
    Ok(())
}
