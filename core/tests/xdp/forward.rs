//! Forwarding between interfaces: in one pool not a byte is copied, in the kernel nothing is looked at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use sluicegate::forward::forward;
use sluicegate::link::{self, Shape, netns};
use sluicegate::port::{Directions, OpenOptions, Port, Queue, wait_any};
use sluicegate::ring::{Meta, Packet, Wait};
use sluicegate::xdp::resident::{Action, Resident};

use super::scratch::lab_of;
use super::wire::{PATIENCE, bytes_of, frame, is_ours, send};
use super::{program, rings, run};

/// A filter for a test's own frames.
const OURS: &str = "ether proto 0x88b5";

/// Packets of both directions that were swapped, and copied.
fn pass(from: &mut Queue, to: &mut Queue) -> (u32, u32) {
    from.sync_rx().unwrap();
    let moved = forward(from.rx_mut(), to.tx_mut());
    to.sync_tx().unwrap();
    (moved.swapped_slots, moved.copied_packets)
}

#[test]
fn two_hosts_talk_through_a_bridge_that_swaps() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let options = OpenOptions { netns: Some(lab.netns("middle")), ..OpenOptions::default() };
    let ports =
        ["xdp:middle0", "xdp:middle1"].map(|name| (name.parse().unwrap(), Directions::Both));
    let mut ports = Port::open_all(&ports, &options).unwrap();
    let (mut b, mut a) = (ports.remove(1).queues.remove(0), ports.remove(0).queues.remove(0));
    let ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&ended);
    let bridge = std::thread::spawn(move || {
        let mut sum = (0, 0);
        while !end.load(Relaxed) {
            let (there, back) = (pass(&mut a, &mut b), pass(&mut b, &mut a));
            sum = (sum.0 + there.0 + back.0, sum.1 + there.1 + back.1);
            if there.0 + back.0 == 0 {
                wait_any(&mut [&mut a, &mut b], Wait::Sleep, Duration::from_millis(50)).unwrap();
            }
        }
        sum
    });
    run(&lab, "left", "ping -q -c 200 -i 0.005 -s 1400 -W 1 198.18.0.2");
    ended.store(true, Relaxed);
    let (swapped, copied) = bridge.join().unwrap();
    assert!(swapped >= 400, "{swapped}");
    assert_eq!(copied, 0);
}

#[test]
fn a_packet_waits_for_another_sync_until_the_kernel_accepts_it() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let netns = Some(lab.netns("left"));
    let options = OpenOptions { usage: Directions::Both, netns, ..OpenOptions::default() };
    let mut port = Port::open(&"xdp:left0/0".parse().unwrap(), &options).unwrap();
    let queue = &mut port.queues[0];
    assert!(!queue.needs_sync_tx(), "nothing was given");
    run(&lab, "left", "ip link set left0 down");
    let sent = frame(1, 0, 60);
    let meta = Meta { wire_bytes: 60, ..Meta::default() };
    assert!(queue.tx_mut().push(&Packet::new(&meta, &sent)));
    assert!(queue.needs_sync_tx(), "released, and not synced");
    queue.sync_tx().unwrap_err();
    assert!(queue.needs_sync_tx(), "the interface is down");
    run(&lab, "left", "ip link set left0 up");
    queue.sync_tx().unwrap();
    assert!(!queue.needs_sync_tx(), "the kernel has it");
}

#[test]
fn of_two_that_have_everything_the_second_is_refused() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let options = OpenOptions { netns: Some(lab.netns("middle")), ..OpenOptions::default() };
    let [from, to] = ["xdp:middle0", "xdp:middle1"].map(|name| name.parse().unwrap());
    let refused = |second: sluicegate::Result<Port>, what: &str| {
        let error = second.expect_err(what).to_string();
        assert!(error.contains("already has all packets of middle0/0"), "{what}: {error}");
    };
    let forward = || Port::redirect(&from, &to, &options);
    for taker in
        ["", "timestamp=off", "method=af_xdp", "method=af_xdp&timestamp=off", "mode=native"]
    {
        let name = format!("xdp:middle0?{taker}").parse().unwrap();
        let take = || Port::open(&name, &options);
        let first = forward().unwrap();
        refused(forward(), "another forwarder");
        refused(take(), taker);
        drop(first);
        let first = take().unwrap();
        refused(forward(), taker);
        drop(first);
    }
}

#[test]
fn the_kernel_forwards_all_that_matches_and_counts_it() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let middle = lab.netns("middle");
    let interface = link::interface(Some(&middle), "middle0").unwrap();
    let claims = || {
        let within = || Resident::find(&interface)?.map(|it| it.owned_stages()).transpose();
        netns::run_in(Some(&middle), within).unwrap().unwrap_or_default()
    };
    let frames: Vec<_> = (0..500).map(|n| frame(n, 0, 60 + 3 * n as usize % 1455)).collect();
    let bytes: usize = frames.iter().map(Vec::len).sum();
    for (mode, filter) in [("native", ""), ("native", OURS), ("skb", ""), ("skb", OURS)] {
        let way = format!("{mode}, {filter:?}");
        let netns = |host: &str| OpenOptions { netns: Some(lab.netns(host)), ..Default::default() };
        let mut there = Port::open(&"packet:right0".parse().unwrap(), &netns("right")).unwrap();
        let mut from = format!("xdp:middle0?mode={mode}");
        if !filter.is_empty() {
            from += &format!("&filter={filter}");
        }
        let to = format!("xdp:middle1?mode={mode}").parse().unwrap();
        let mut port = Port::redirect(&from.parse().unwrap(), &to, &netns("middle")).unwrap();
        send(&lab, &frames);
        let came = rings::collect(&mut there.queues, frames.len(), PATIENCE, is_ours);
        assert!(bytes_of(came) == frames, "{way}: as they were, in their order");
        let [claim] = &claims()[..] else { panic!("{way}: {:?}", claims()) };
        assert_eq!((claim.owner.action, claim.owner.filter.as_str()), (Action::Forward, filter));
        let (packets, counted_bytes) = port.queues[0].take_kernel_counters();
        assert_eq!(claim.tally.taken, claim.tally.packets, "{way}");
        if filter.is_empty() {
            // The hosts' own talk is forwarded, too.
            assert!(packets >= 500 && counted_bytes >= bytes as u64, "{way}: {packets}");
        } else {
            assert_eq!((packets, counted_bytes), (500, bytes as u64), "{way}");
        }
        drop(port);
        for name in ["middle0", "middle1"] {
            program::wait_until_removed(&middle, name);
        }
    }
}
