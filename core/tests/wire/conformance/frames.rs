//! The frames that are sent, and what of them is received.

use std::time::{Duration, Instant};

use sluicegate::port::{Queue, QueueStats, Use};
use sluicegate::ring::{Meta, Packet, Wait};

use super::open;
use crate::hosts::{Wire, patience};

/// An Ethernet frame for the experimental ethertype 0x88b5, with a number and a pattern.
pub fn frame(number: u32, bytes: usize, tags: &[(u16, u16)]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1]);
    for (tpid, tci) in tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(0x88b5u16.to_be_bytes());
    frame.extend(number.to_be_bytes());
    let pattern = (0..).map(|i: u32| (i.wrapping_mul(31) ^ number) as u8);
    let fill = bytes.saturating_sub(frame.len());
    frame.extend(pattern.take(fill));
    frame
}

/// Frames of many kinds: plain, tagged, doubly tagged, short and long.
pub fn frames(longest: usize) -> Vec<Vec<u8>> {
    let kinds: &[&[(u16, u16)]] = &[
        &[],
        &[(0x8100, 0x2005)],
        &[(0x88a8, 0x0064), (0x8100, 0x0fff)],
        &[(0x8100, 0x0000)],
        &[(0x8100, 7), (0x8100, 8)],
    ];
    let sizes = [60, 64, 127, 590, 1514, 2043, 2044, 2045, 2048, 2049, 9014, 40_000, 65_000];
    let mut frames = Vec::new();
    for bytes in sizes.into_iter().filter(|&bytes| bytes <= longest) {
        for tags in kinds {
            let bytes = bytes.min(longest - 4 * tags.len());
            frames.push(frame(frames.len() as u32, bytes, tags));
        }
    }
    frames
}

pub fn send(lab: &Wire, host: &str, interface: &str, frames: &[Vec<u8>]) {
    let name = format!("packet:{interface}?slots=256");
    let stats = send_by(lab, host, &name, frames);
    assert_eq!(stats.sent, frames.len() as u64, "{stats:?}");
}

/// Sends by a port until each of the frames has been sent or refused, and closes it.
pub fn send_by(lab: &Wire, host: &str, name: &str, frames: &[Vec<u8>]) -> QueueStats {
    lab.wait_for_link();
    let mut port = open(lab, host, name, Use::Send);
    let queue = &mut port.queues[0];
    for frame in frames {
        let meta = Meta::default();
        let deadline = Instant::now() + patience();
        while !queue.tx_mut().push(&Packet::new(&meta, frame)) {
            queue.sync_tx().unwrap();
            assert!(Instant::now() < deadline, "the transmit ring stays full");
        }
    }
    let deadline = Instant::now() + patience();
    loop {
        queue.sync_tx().unwrap();
        let stats = queue.stats().unwrap();
        if stats.sent + stats.refused == frames.len() as u64 {
            queue.close_tx().unwrap();
            return stats;
        }
        assert!(Instant::now() < deadline, "{stats:?}");
    }
}

/// Receives until `n` packets of our ethertype have come, or our patience has ended.
pub fn receive(queues: &mut [Queue], n: usize) -> Vec<(Meta, Vec<u8>)> {
    let mut got = Vec::new();
    let deadline = Instant::now() + patience();
    while got.len() < n && Instant::now() < deadline {
        for queue in &mut *queues {
            if queue.sync_rx().unwrap() == 0 {
                queue.wait_rx(Wait::default(), Duration::from_millis(5)).unwrap();
            }
            let mut scratch = Vec::new();
            for packet in queue.rx().packets() {
                let bytes = packet.contiguous(&mut scratch);
                if is_ours(bytes) {
                    got.push((*packet.meta(), bytes.to_vec()));
                }
            }
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
        }
    }
    got
}

pub fn is_ours(bytes: &[u8]) -> bool {
    let mut at = 12;
    while matches!(bytes.get(at..at + 2), Some([0x81, 0x00] | [0x88, 0xa8])) {
        at += 4;
    }
    bytes.get(at..at + 2) == Some(&[0x88, 0xb5])
}

/// What is there now, given back.
pub fn receive_now(queue: &mut Queue) -> Vec<(Meta, Vec<u8>)> {
    queue.sync_rx().unwrap();
    let got = queue.rx().packets().map(|p| (*p.meta(), p.head().to_vec())).collect();
    let slots = queue.rx().available();
    queue.rx_mut().release(slots);
    got
}
