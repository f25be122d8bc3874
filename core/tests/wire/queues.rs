//! Several queues: each packet comes to one of them, once.

use std::collections::BTreeMap;

use crate::MODES;
use crate::hosts::{thinned, wire};
use crate::traffic::{found, frames, open_if_possible, receive, send};

#[test]
fn flows_are_dealt_to_all_queues_and_none_is_lost() {
    let Some(wire) = wire(2) else { return };
    let sent = frames(thinned(2000), 64);
    for name in MODES
        .iter()
        .map(|mode| format!("xdp:right0?{mode}"))
        .chain(["mirror:right0?mode=native".into(), "mirror:right0?mode=skb".into()])
    {
        let Some(mut port) = open_if_possible(&wire, &name) else { continue };
        send(&wire, &sent);
        let got = receive(&mut port.queues, sent.len());
        let mut by_queue: BTreeMap<u32, u32> =
            port.queues.iter().map(|queue| (queue.number(), 0)).collect();
        got.iter().for_each(|(number, _)| *by_queue.entry(*number).or_insert(0) += 1);
        println!("seen: {name}: {}, by queue {by_queue:?}", port.mode.unwrap());
        let stats: Vec<_> = port.queues.iter_mut().map(|it| it.stats().unwrap()).collect();
        assert_eq!(found(&got, &sent), sent.len(), "{name}: {stats:?}");
    }
}
