//! The order of time among several queues: the thread that merges their chunks, and the promise of a
//! silent live queue that no packet older than a given time will follow.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use sluicegate::error::Result;
use sluicegate::file::write::{Chunk, Merger};
use sluicegate::port::{PortName, RECORDING};
use sluicegate::ring::now_ns;

use super::IN_TRANSIT;
use super::file::File;

/// How often it looks at what may go although nothing arrives.
const TICK: Duration = Duration::from_millis(10);

/// A message from a recorder.
pub enum Message {
    /// A full chunk of a source.
    Chunk(usize, Chunk),
    /// Nothing older than this time will come from a source.
    Silent(usize, u64),
    /// Nothing more will come from a source.
    End(usize),
}

/// Merges until every recorder has ended. `back` returns empty chunks to their sources. With
/// `live`, a source that says nothing holds the others up no longer than the merger's window;
/// files have all the time in the world. Returns how many records came too late to be in order.
pub fn merge(
    incoming: &Receiver<Message>,
    back: &[Sender<Chunk>],
    mut merger: Merger,
    live: bool,
    mut out: Chunk,
    file: &Arc<File>,
) -> u64 {
    let mut open = true;
    while open {
        let first = incoming.recv_timeout(TICK);
        // What was sent before this moment has to be known before it counts as missing.
        let now = Instant::now();
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            (0..back.len()).for_each(|source| merger.close(source));
            open = false;
        }
        for message in first.into_iter().chain(incoming.try_iter().take(IN_TRANSIT)) {
            match message {
                Message::Chunk(source, chunk) => merger.push(source, chunk, now),
                Message::Silent(source, until_ns) => merger.advance(source, until_ns),
                Message::End(source) => merger.close(source),
            }
        }
        loop {
            let more = merger.drain(live.then_some(now), &mut out);
            while let Some((source, chunk)) = merger.spent() {
                // A recorder that has ended needs no chunks.
                let _ = back[source].send(chunk);
            }
            if !out.is_empty() {
                file.write(&out);
                out.clear();
            }
            if !more {
                break;
            }
        }
    }
    merger.late()
}

/// A packet is not in the kernel's hands for longer than this before it comes to us, but for the time
/// in which a block of a packet ring is filled, or in which a reader of a ring of copies sleeps. A
/// packet that comes after a promise is late.
const DELIVERY: Duration = Duration::from_millis(40);

/// The looks that found nothing.
#[derive(Clone, Copy, Debug)]
pub struct Quiet {
    delivery_ns: u64,
    /// A moment before the latest.
    looked_ns: u64,
}

impl Quiet {
    /// Computes the promise for the queues of a port.
    ///
    /// # Errors
    /// `block_timeout=` or `latency=` is not a valid time.
    pub fn of(port: &PortName) -> Result<Self> {
        let waits = port.duration("block_timeout")?.or(port.duration("latency")?);
        let delivery = DELIVERY + waits.unwrap_or(RECORDING);
        Ok(Self { delivery_ns: delivery.as_nanos() as u64, looked_ns: 0 })
    }

    /// A look has found nothing: nothing older than the time this returns, in nanoseconds since
    /// 1970, will come.
    pub fn look(&mut self) -> u64 {
        // Not the time now: this thread may have stood still since it looked.
        let looked_ns = std::mem::replace(&mut self.looked_ns, now_ns());
        looked_ns.saturating_sub(self.delivery_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_still_lie_in_a_block_is_not_promised_away() {
        for (port, delivery_ms) in [
            ("packet:eth0", 60),
            ("packet:eth0?block_timeout=1ms", 41),
            ("packet:eth0?block_timeout=60s", 60_040),
            ("mirror:eth0", 60),
            ("mirror:eth0?latency=1s", 1040),
        ] {
            let mut quiet = Quiet::of(&port.parse().unwrap()).unwrap();
            assert_eq!(quiet.look(), 0, "{port}: nothing is known before the first look");
            quiet.looked_ns = 100_000_000_000;
            assert_eq!(quiet.look(), 100_000_000_000 - delivery_ms * 1_000_000, "{port}");
        }
    }
}
