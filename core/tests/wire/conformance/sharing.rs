//! Several queues: each packet comes to one of them, once.

use super::frames::{frame, receive, send};
use super::{lab_in_any_order, receiver};
use crate::hosts::{self, thinned};

#[test]
fn a_fanout_gives_each_packet_to_one_queue() {
    let Some(lab) = lab_in_any_order() else { return };
    let sent: Vec<Vec<u8>> = (0..thinned(2000)).map(|i| frame(i, 60, &[])).collect();
    for fanout in ["hash", "lb", "cpu", "rollover", "rnd", "qm", "bpf"] {
        for method in ["ring", "recvmmsg"] {
            for flags in ["", "&fanout_flags=defrag,rollover"] {
                let name = format!("packet:right0/0-2?method={method}&fanout={fanout}{flags}");
                let Some(mut port) = receiver(&lab, &name) else { continue };
                assert_eq!(port.queues.len(), 3);
                send(&lab, "left", "left0", &sent);
                let mut got = receive(&mut port.queues, sent.len());
                // What comes twice would come now.
                got.extend(receive(&mut port.queues, 0));
                let mut bytes: Vec<Vec<u8>> = got.into_iter().map(|(_, bytes)| bytes).collect();
                bytes.sort();
                let mut expected = sent.clone();
                expected.sort();
                assert!(bytes == expected, "{name}: {} of {}", bytes.len(), expected.len());
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
            send(&lab, "left", "left0", &sent);
            if count < 4 {
                continue; // What comes to other queues is the host's.
            }
            let mut got: Vec<Vec<u8>> =
                receive(&mut port.queues, sent.len()).into_iter().map(|(_, it)| it).collect();
            got.sort();
            let mut expected = sent.clone();
            expected.sort();
            assert!(got == expected, "{name}: {} of {}", got.len(), expected.len());
        }
    }
}
