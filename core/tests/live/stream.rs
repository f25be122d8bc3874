//! Frames with numbers: sent in order, with no more under way than there is room for, and looked at
//! as they come.

use std::time::Instant;

use sluicegate::port::Queue;
use sluicegate::ring::{Meta, Packet};

use super::PATIENCE;

/// Frames that may be under way: fewer than the receiver has room for, and than the queue of a veth, which
/// drops the rest where its CPU is busy (VETH_RING_SIZE, drivers/net/veth.c).
pub const WINDOW: u64 = 200;

/// A number of 64 bits that looks like any other (splitmix64).
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A frame of the experimental ethertype 0x88b5: its number, and bytes that follow from that.
pub fn frame(number: u64, bytes: usize, into: &mut Vec<u8>) {
    into.clear();
    into.extend([0xff; 6]);
    into.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    into.extend(number.to_be_bytes());
    let mut word = mix(number);
    while into.len() < bytes {
        into.extend(word.to_be_bytes());
        word = word.rotate_left(7).wrapping_add(number);
    }
    into.truncate(bytes);
}

/// Frames of ours that a queue has received, given back: each is looked at.
pub fn take(queue: &mut Queue, mut look: impl FnMut(&[u8])) {
    queue.sync_rx().unwrap();
    let mut scratch = Vec::new();
    for packet in queue.rx().packets() {
        let bytes = packet.contiguous(&mut scratch);
        if bytes.get(12..14) == Some(&[0x88, 0xb5]) {
            look(bytes);
        }
    }
    let slots = queue.rx().available();
    queue.rx_mut().release(slots);
}

/// Sends frames `first` to `end`, of lengths by their number, and expects each in its turn.
pub fn send_and_expect(
    from: &mut Queue,
    to: &mut Queue,
    (first, end): (u64, u64),
    bytes_of: impl Fn(u64) -> usize,
) {
    let (mut sent, mut came) = (first, first);
    let (mut made, mut expected) = (Vec::new(), Vec::new());
    let mut deadline = Instant::now() + PATIENCE;
    while came < end {
        while sent < end && sent - came < WINDOW {
            frame(sent, bytes_of(sent), &mut made);
            if !from.tx_mut().push(&Packet::new(&Meta::default(), &made)) {
                break;
            }
            sent += 1;
        }
        from.sync_tx().unwrap();
        let before = came;
        take(to, |bytes| {
            frame(came, bytes_of(came), &mut expected);
            assert!(bytes == expected, "frame {came}: {bytes:02x?}\nexpected {expected:02x?}");
            came += 1;
        });
        if came > before {
            deadline = Instant::now() + PATIENCE;
        }
        assert!(Instant::now() < deadline, "{came} of {sent} frames came: {:?}", from.stats());
    }
}
