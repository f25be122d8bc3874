//! Frames through the rings of queues.

use std::time::{Duration, Instant};

use sluicegate::port::Queue;
use sluicegate::ring::{Meta, Packet, Wait};

/// Makes a queue send frames; some may still be in its ring.
pub fn push(queue: &mut Queue, frames: &[Vec<u8>], timeout: Duration) {
    let deadline = Instant::now() + timeout;
    for frame in frames {
        while !queue.tx_mut().push(&Packet::new(&Meta::default(), frame)) {
            queue.sync_tx().unwrap();
            assert!(Instant::now() < deadline, "the transmit ring stays full");
        }
    }
}

/// The packets that are `wanted`, from all queues, until `n` have come or the timeout has passed.
pub fn collect(
    queues: &mut [Queue],
    n: usize,
    timeout: Duration,
    wanted: impl Fn(&[u8]) -> bool,
) -> Vec<(Meta, Vec<u8>)> {
    let (mut got, mut scratch) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + timeout;
    while got.len() < n && Instant::now() < deadline {
        for queue in &mut *queues {
            if queue.sync_rx().unwrap() == 0 {
                queue.wait_rx(Wait::default(), Duration::from_millis(5)).unwrap();
            }
            for packet in queue.rx().packets() {
                let bytes = packet.contiguous(&mut scratch);
                if wanted(bytes) {
                    got.push((*packet.meta(), bytes.to_vec()));
                }
            }
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
        }
    }
    got
}
