//! What is sent: order, bytes, lengths, and what becomes of the rest.

use super::stream::{mix, send_and_expect};
use super::{lab, receiver, sender};

#[test]
fn frames_of_all_lengths_come_in_order_and_as_they_were() {
    let Some(lab) = lab() else { return };
    let mut to = receiver(&lab);
    let mut from = sender(&lab, "");
    let bytes_of = |number| 22 + (mix(number) % 1493) as usize;
    send_and_expect(&mut from.queues[0], &mut to.queues[0], (0, 200_000), bytes_of);
    from.queues[0].close_tx().unwrap();
    let stats = from.queues[0].stats().unwrap();
    assert_eq!((stats.sent, stats.refused), (200_000, 0), "{stats:?}");
}
