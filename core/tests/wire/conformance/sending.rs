//! Every way of sending by packet sockets, through the queueing discipline and past it, and through
//! live frames: what is sent is what the other end receives, and the counts say so.

use std::time::Duration;

use sluicegate::port::Directions;
use sluicegate::ring::Wait;

use super::frames::{frames, receive, receive_now, send_by};
use super::{lab, open, receiver, sources, xdp_sources};
use crate::hosts::{Wire, thinned};
use crate::numbered::{frame, is_ours};

fn ways() -> impl Iterator<Item = String> {
    let ways = ["sendmmsg", "sendto", "ring"];
    let past = ["", "&qdisc=bypass"];
    ways.into_iter().flat_map(move |way| past.map(|it| format!("packet:left0?send={way}{it}")))
}

/// Those, and `live:`: in a lab, for other drivers may want a program on the interface first, and not
/// say so.
fn all_ways(lab: &Wire) -> impl Iterator<Item = String> {
    let live = lab.is_lab().then(|| "live:left0?ring_size=64".to_owned());
    ways().chain(live)
}

/// Sends frames, and expects those that go at the other end, and the others to be refused.
fn check(lab: &Wire, name: &str, sent: &[Vec<u8>], goes: impl Fn(&[u8]) -> bool) {
    // Of live frames handed over in one go packet sockets get the tagged ones first
    // (net/core/dev.c, __netif_receive_skb_list_core).
    let source = if name.starts_with("live:") { "xdp:right0?method=ring" } else { "packet:right0" };
    let mut to = open(lab, "right", source, Directions::Receive);
    let expected: Vec<&Vec<u8>> = sent.iter().filter(|frame| goes(frame)).collect();
    let stats = send_by(lab, name, sent);
    let refused = sent.len() - expected.len();
    assert_eq!((stats.sent, stats.refused), (expected.len() as u64, refused as u64), "{name}");
    let mut got = receive(&mut to.queues, expected.len());
    // What is too much would come now, later than a block is handed over.
    let queue = &mut to.queues[0];
    queue.wait_rx(Wait::Sleep, Duration::from_millis(30)).unwrap();
    got.extend(receive_now(queue).into_iter().filter(|(_, bytes)| is_ours(bytes)));
    let of = format!("{} of {}, {:?}", got.len(), expected.len(), queue.stats());
    assert!(got.iter().map(|(_, bytes)| bytes).eq(expected), "{name}: {of}");
}

#[test]
fn every_way_of_sending_sends_what_the_other_end_receives() {
    let Some(lab) = lab() else { return };
    let mut sent = frames(1514);
    // The MTU does not count an 802.1Q tag, and counts any other.
    sent.push(frame(1000, 1518, &[(0x8100, 0x2005)]));
    sent.push(frame(1001, 60, &[]));
    let too_long = [
        frame(1002, 1515, &[]),
        frame(1003, 1519, &[(0x8100, 5)]),
        frame(1004, 1518, &[(0x88a8, 5)]),
        frame(1005, 9000, &[]),
    ];
    for (i, frame) in too_long.iter().enumerate() {
        sent.insert(i * 3, frame.clone());
    }
    sent.push(too_long[0].clone());
    for name in all_ways(&lab) {
        check(&lab, &name, &sent, |frame| !too_long.iter().any(|it| it == frame));
    }
}

#[test]
fn every_way_of_sending_puts_packets_of_several_slots_together() {
    let Some(lab) = lab() else { return };
    let (mtu, longest) = if lab.is_lab() { (65_535, 65_000) } else { (9100, 9014) };
    if !lab.set_mtu(mtu) {
        return;
    }
    let sent = frames(longest);
    for name in ways() {
        check(&lab, &name, &sent, |_| true);
    }
}

/// Such a packet lies in pages of the ring, which a receiver of another kind may copy or not.
#[test]
fn every_method_receives_what_a_transmit_ring_sends() {
    let Some(lab) = lab() else { return };
    let sent = frames(1514);
    for source in sources().into_iter().chain(xdp_sources(&lab)) {
        let Some(mut port) = receiver(&lab, &source) else { continue };
        send_by(&lab, "packet:left0?send=ring&slots=16", &sent);
        let got = receive(&mut port.queues, sent.len());
        let of = format!("{} of {}", got.len(), sent.len());
        assert!(got.iter().map(|(_, bytes)| bytes).eq(&sent), "{source}: {of}");
    }
}

#[test]
fn every_way_of_sending_keeps_to_the_order_of_many_packets() {
    let Some(lab) = lab() else { return };
    let sent: Vec<Vec<u8>> =
        (0..thinned(5000)).map(|i| frame(i, 60 + (i as usize * 37) % 400, &[])).collect();
    for name in all_ways(&lab) {
        check(&lab, &format!("{name}&slots=64"), &sent, |_| true);
    }
}

/// A live frame lies in a page that is used again and again. To packet sockets and in skb mode the
/// kernel may bring them in another order.
#[test]
fn every_method_receives_what_live_frames_send() {
    let Some(lab) = lab().filter(Wire::is_lab) else { return };
    let sent = frames(1514);
    for source in xdp_sources(&lab).into_iter().filter(|source| !source.contains("skb")) {
        let Some(mut port) = receiver(&lab, &source) else { continue };
        send_by(&lab, "live:left0?slots=16", &sent);
        let got = receive(&mut port.queues, sent.len());
        let of = format!("{} of {}", got.len(), sent.len());
        assert!(got.iter().map(|(_, bytes)| bytes).eq(&sent), "{source}: {of}");
    }
}
