//! The frames that are sent, and what of them is received.

use std::time::Instant;

use sluicegate::link;
use sluicegate::port::{Directions, Queue, QueueStats};
use sluicegate::ring::Meta;

use super::open;
use crate::hosts::{PATIENCE, Wire};
use crate::numbered::{frame, is_ours};
use crate::rings;

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

/// Sends by a packet socket of left, all of it.
pub fn send(lab: &Wire, frames: &[Vec<u8>]) {
    let stats = send_by(lab, "packet:left0?slots=256", frames);
    assert_eq!(stats.sent, frames.len() as u64, "{stats:?}");
}

/// Sends by a port of left until each of the frames has been sent or refused, and closes it. In a lab, the
/// other end has dealt with them then: its CPU may be busy.
pub fn send_by(lab: &Wire, name: &str, frames: &[Vec<u8>]) -> QueueStats {
    // Live frames that find a veth's queue full are lost (VETH_RING_SIZE, drivers/net/veth.c).
    const AT_ONCE: usize = 200;
    lab.wait_for_link();
    let mut port = open(lab, "left", name, Directions::Send);
    let queue = &mut port.queues[0];
    let right = lab.netns("right");
    let received = || link::interface(Some(&right), "right0").unwrap().stats.rx_packets;
    let (before, mut pushed) = (received(), 0);
    for some in frames.chunks(AT_ONCE) {
        rings::push(queue, some, PATIENCE);
        pushed += some.len() as u64;
        let deadline = Instant::now() + PATIENCE;
        loop {
            queue.sync_tx().unwrap();
            let stats = queue.stats().unwrap();
            let all_came = !lab.is_lab() || received() >= before + stats.sent;
            if stats.sent + stats.refused == pushed && all_came {
                break;
            }
            assert!(Instant::now() < deadline, "{stats:?}");
        }
    }
    queue.close_tx().unwrap();
    queue.stats().unwrap()
}

/// Receives until `n` packets of our ethertype have come, or the timeout has passed.
pub fn receive(queues: &mut [Queue], n: usize) -> Vec<(Meta, Vec<u8>)> {
    rings::collect(queues, n, PATIENCE, is_ours)
}

/// Stops a queue's receiving, and takes our frames that had come.
pub fn receive_rest(queue: &mut Queue) -> Vec<(Meta, Vec<u8>)> {
    queue.stop_rx().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut got = Vec::new();
    loop {
        let more = receive_now(queue);
        if more.is_empty() && queue.is_finished() {
            return got;
        }
        got.extend(more.into_iter().filter(|(_, bytes)| is_ours(bytes)));
        assert!(Instant::now() < deadline, "it does not end");
    }
}

/// Takes the packets that have come, and releases them.
pub fn receive_now(queue: &mut Queue) -> Vec<(Meta, Vec<u8>)> {
    queue.sync_rx().unwrap();
    let got = queue.rx().packets().map(|p| (*p.meta(), p.head().to_vec())).collect();
    let slots = queue.rx().available();
    queue.rx_mut().release(slots);
    got
}
