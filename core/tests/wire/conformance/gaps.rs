//! A port's report of missing packets: the reader was slow, the interface down or removed.

use std::time::{Duration, Instant};

use sluicegate::port::Directions;
use sluicegate::ring::{Readiness, Wait};

use super::frames::{receive, receive_now, send};
use super::{lab, lab_in_any_order, open, receiver, sources};
use crate::hosts::{PATIENCE, thinned};
use crate::numbered::frame;

#[test]
fn a_slow_reader_loses_packets_by_count_and_every_gap_is_marked() {
    let Some(lab) = lab() else { return };
    let sent: Vec<Vec<u8>> = (0..thinned(20_000)).map(|i| frame(i, 1514, &[])).collect();
    for name in [
        "packet:right0?method=ring&block_size=64K&blocks=4",
        "packet:right0?method=frames&block_size=64K&blocks=4",
        "packet:right0?method=recvmmsg&buffer=64K",
        "packet:right0?method=recv&buffer=64K",
        "mirror:right0?ring_size=64",
    ] {
        let Some(mut port) = receiver(&lab, name) else { continue };
        send(&lab, &sent);
        let queue = &mut port.queues[0];
        // Empties the buffer and gives it back, then one more packet closes the gap.
        let mut got = receive_now(queue);
        loop {
            let more = receive_now(queue);
            if more.is_empty() {
                break;
            }
            got.extend(more);
        }
        send(&lab, &[frame(99_999, 60, &[])]);
        queue.stop_rx().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !queue.is_finished() && Instant::now() < deadline {
            got.extend(receive_now(queue));
        }
        let stats = queue.stats().unwrap();
        assert!(stats.dropped_ring_full > 0, "{name}: the buffer ran full");
        assert_eq!(stats.received, got.len() as u64 + stats.dropped_ring_full, "{name}");
        let marked: u64 = got.iter().map(|(meta, _)| u64::from(meta.drops_before)).sum();
        assert_eq!(marked, stats.dropped_ring_full, "{name}: losses marked at packets");
        let mut expected = 0;
        for (meta, bytes) in &got {
            let number = u32::from_be_bytes(bytes[14..18].try_into().unwrap());
            if number != 99_999 {
                assert_eq!(number, expected + meta.drops_before, "{name}: the gap is where it is");
                expected = number + 1;
            }
        }
    }
}

#[test]
fn a_removed_interface_is_an_error_and_one_that_was_down_works_again() {
    let Some(lab) = lab_in_any_order() else { return };
    let set = |state| {
        assert!(lab.run("right", &format!("ip link set right0 {state}")));
    };
    let mut failed = Vec::new();
    for source in sources() {
        let Some(mut port) = receiver(&lab, &source) else { continue };
        set("down");
        let queue = &mut port.queues[0];
        let deadline = Instant::now() + PATIENCE;
        // What came before may be told first.
        while queue.wait_rx(Wait::Sleep, Duration::from_secs(5)).unwrap() != Readiness::Down {
            receive_now(queue);
            assert!(Instant::now() < deadline, "{source}: that it is down is not said");
        }
        set("up");
        let sent = [frame(1, 60, &[])];
        send(&lab, &sent);
        if receive(&mut port.queues, 1).len() != 1 {
            failed.push(format!("{source}: it does not go on"));
        }
    }
    let mut port = open(&lab, "right", "packet:right0", Directions::Receive);
    lab.remove_right0();
    let error = loop {
        match port.queues[0].wait_rx(Wait::Sleep, Duration::from_secs(5)) {
            Ok(Readiness::TimedOut) => panic!("nothing was said"),
            Ok(_) => drop(receive_now(&mut port.queues[0])),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, sluicegate::Error::Removed { .. }), "{error}");
    assert!(failed.is_empty(), "rows that failed: {failed:#?}");
}
