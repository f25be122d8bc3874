//! Several queues: each packet comes to one of them, once.

use std::collections::BTreeSet;

use sluicegate::port::Directions;
use sluicegate::ring::Meta;

use super::frames::{frames, receive, receive_rest, send};
use super::{lab_in_any_order, receiver};
use crate::hosts::{self, thinned};
use crate::numbered::frame;
use crate::traffic;

#[test]
fn a_fanout_gives_each_packet_to_one_queue() {
    let Some(lab) = lab_in_any_order() else { return };
    // Numbers in network order: they are sorted as they are.
    let sent: Vec<Vec<u8>> = (0..thinned(2000)).map(|i| frame(i, 60, &[])).collect();
    for fanout in ["hash", "lb", "cpu", "rollover", "rnd", "qm", "bpf"] {
        for method in ["ring", "frames", "recvmmsg"] {
            for flags in ["", "&fanout_flags=defrag,rollover"] {
                let name = format!("packet:right0/0-2?method={method}&fanout={fanout}{flags}");
                let Some(mut port) = receiver(&lab, &name) else { continue };
                assert_eq!(port.queues.len(), 3);
                send(&lab, &sent);
                let mut got = receive(&mut port.queues, sent.len());
                // A packet that came twice has come by now.
                got.extend(port.queues.iter_mut().flat_map(receive_rest));
                let bytes = sorted(got);
                assert!(bytes == sent, "{name}: {} of {}", bytes.len(), sent.len());
            }
        }
    }
}

#[test]
fn xdp_takes_every_queue_or_those_that_are_named() {
    let Some(lab) = hosts::wire(4) else { return };
    if !lab.is_lab() {
        println!("skipped: which queue of a card a packet comes to is the card's to say");
        return;
    }
    let sent: Vec<Vec<u8>> = (0..500).map(|i| frame(i, 60, &[])).collect();
    for (queues, count) in [("", 4), ("/0-3", 4), ("/0-1", 2), ("/2", 1)] {
        for way in ["method=ring", "method=af_xdp", "mode=skb"] {
            let name = format!("xdp:right0{queues}?{way}");
            let Some(mut port) = receiver(&lab, &name) else { continue };
            assert_eq!(port.queues.len(), count, "{name}");
            send(&lab, &sent);
            if count < 4 {
                continue; // What comes to other queues is the host's.
            }
            let got = sorted(receive(&mut port.queues, sent.len()));
            assert!(got == sent, "{name}: {} of {}", got.len(), sent.len());
        }
    }
}

#[test]
fn one_to_four_queues_receive_frames_of_all_lengths_by_xdp() {
    // The first are one flow to the kernel, and come to one queue; the others to all of them.
    let (mut lengths, flows) = (frames(9014), traffic::frames(200, 64));
    lengths.sort();
    for count in 1..=4 {
        let Some(lab) = hosts::wire(count) else { return };
        if !lab.is_lab() {
            println!("skipped: a card has the queues it has");
            return;
        }
        assert!(lab.set_mtu(9100));
        // Rings of copies are one in skb mode. To which queue a veth's packet comes there hangs on the
        // kernel: it takes the number of the queue it was sent by for its own, less one.
        let ways = [
            ("method=ring", count, Some(count)),
            ("method=ring&mode=skb", 1, Some(1)),
            ("method=af_xdp", count, Some(count)),
            ("mode=skb", count, None),
        ];
        for (way, queues, used) in ways {
            let name = format!("xdp:right0?{way}");
            let mut port = match traffic::open(&lab, "right", &name, Directions::Receive) {
                Err(error) if error.to_string().contains("need Linux 6.6") => {
                    println!("left out: {name}: {error}");
                    continue;
                }
                port => port.unwrap(),
            };
            assert_eq!(port.queues.len(), queues as usize, "{name}");
            send(&lab, &lengths);
            let got = sorted(receive(&mut port.queues, lengths.len()));
            assert!(got == lengths, "{name}, {count} queues: {} of {}", got.len(), lengths.len());
            traffic::send(&lab, &flows);
            let got = traffic::receive(&mut port.queues, flows.len());
            assert_eq!(traffic::found(&got, &flows), flows.len(), "{name}, {count} queues");
            let by: BTreeSet<u32> = got.iter().map(|(number, _)| *number).collect();
            let all = used.is_none_or(|used| by.len() == used as usize);
            assert!(all, "{name}, {count} queues: by {by:?}");
        }
    }
}

/// The bytes of packets, in an order that does not hang on the queue they came by.
fn sorted(got: Vec<(Meta, Vec<u8>)>) -> Vec<Vec<u8>> {
    let mut bytes: Vec<Vec<u8>> = got.into_iter().map(|(_, bytes)| bytes).collect();
    bytes.sort();
    bytes
}
