//! Claims by copying: where that is the best way, and beside the port that has a queue's socket.

use sluicegate::error::ErrorKind;
use sluicegate::port::{Directions, OpenOptions, Port};

use super::wire::{Holder, bytes_of, drain, frame, is_ours, open, receive, send};
use super::{find, lab, linux, run, wait_until_removed};

const EVEN: &str = "ether proto 0x88b5 and ether[17] & 1 = 0";
const ODD: &str = "ether proto 0x88b5 and ether[17] & 1 = 1";

fn numbered(numbers: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    numbers.map(|number| frame(number, 0, 60 + number as usize % 900)).collect()
}

fn of_parity(frames: &[Vec<u8>], odd: bool) -> Vec<Vec<u8>> {
    frames.iter().filter(|bytes| (bytes[17] & 1 == 1) == odd).cloned().collect()
}

#[test]
fn a_receiver_gets_copies_if_the_driver_has_no_zero_copy() {
    let Some(lab) = lab() else { return };
    let method = |name: &str, usage| -> sluicegate::Result<_> {
        let netns = Some(lab.netns("right"));
        let port = Port::open(&name.parse()?, &OpenOptions { usage, netns, ..Default::default() })?;
        let mut fallbacks = port.fallbacks.iter();
        let copies = fallbacks.any(|it| (it.from, it.to) == ("zero-copy", "copy"));
        Ok((port.method, port.mode.unwrap(), copies))
    };
    let rows = [
        ("", Directions::Receive, Some(("ring", "native-copy", true))),
        ("mode=native", Directions::Receive, Some(("ring", "native-copy", true))),
        ("method=ring", Directions::Receive, Some(("ring", "native-copy", false))),
        ("method=ring&mode=skb", Directions::Receive, Some(("ring", "skb", false))),
        ("method=af_xdp", Directions::Receive, Some(("af_xdp", "native-copy", true))),
        ("mode=copy", Directions::Receive, Some(("af_xdp", "native-copy", false))),
        ("mode=skb", Directions::Receive, Some(("af_xdp", "skb", false))),
        ("", Directions::Send, Some(("af_xdp", "native-copy", true))),
        ("", Directions::Both, Some(("af_xdp", "native-copy", true))),
        ("method=ring", Directions::Both, None),
        ("send=live", Directions::Receive, None),
    ];
    for (options, usage, expected) in rows {
        wait_until_removed(&lab);
        match (method(&format!("xdp:right0?{options}"), usage), expected) {
            (Ok(got), Some(expected)) => assert_eq!(got, expected, "{options} {usage:?}"),
            (Err(error), None) => assert!(error.to_string().contains("only receives"), "{error}"),
            (got, _) => panic!("{options} {usage:?}: {got:?}"),
        }
    }
}

#[test]
fn two_ports_take_different_packets_of_one_queue() {
    let Some(lab) = lab() else { return };
    let busy = ("af_xdp", "cell ring");
    // Before 6.3 a driver's zero-copy shows only when a socket asks for it.
    let native = if linux() >= (6, 3) { ("zero-copy", "copy") } else { busy };
    let rows = [
        ("method=af_xdp", "mode=native", "native-copy", native),
        ("mode=skb", "mode=skb", "skb", busy),
    ];
    for (socket, way, mode, fell) in rows {
        wait_until_removed(&lab);
        let mut even = open(&lab, &format!("xdp:right0?{socket}&filter={EVEN}")).unwrap();
        let mut odd = open(&lab, &format!("xdp:right0?{way}&filter={ODD}")).unwrap();
        assert_eq!(even.method, "af_xdp", "{mode}");
        assert_eq!((odd.method, odd.mode), ("ring", Some(mode)));
        let fallback = odd.fallbacks.last().unwrap();
        assert_eq!((fallback.from, fallback.to), fell);
        let pid = std::process::id().to_string();
        let says = fallback.reason.contains(&pid);
        assert_eq!(says, fell == busy, "names the queue's owner: {}", fallback.reason);

        let resident = find(&lab).unwrap().unwrap();
        let before = resident.total();
        let sent = numbered(0..500);
        send(&lab, &sent);
        run(&lab, "left", "ping -q -c 5 -i 0.002 198.18.0.2");
        let got = bytes_of(drain(&mut even.queues[0]));
        assert!(got == of_parity(&sent, false), "{mode}: {} to the socket", got.len());
        drop(even);
        // The port with copies does not notice that the other is closed.
        let more = numbered(500..600);
        send(&lab, &more);
        let got = bytes_of(drain(&mut odd.queues[0]));
        let expected = [of_parity(&sent, true), of_parity(&more, true)].concat();
        assert!(got == expected, "{mode}: {} copies of {}", got.len(), expected.len());
        let stats = odd.queues[0].stats().unwrap();
        assert_eq!((stats.received, stats.dropped_ring_full), (expected.len() as u64, 0), "{mode}");
        assert!(resident.total().since(before).packets >= 605, "{mode}");
    }
}

#[test]
fn a_copy_that_finds_the_ring_full_is_lost_and_not_the_hosts() {
    let Some(lab) = lab() else { return };
    let mut port = open(&lab, "xdp:right0?ring_size=2000&filter=ether proto 0x88b5").unwrap();
    assert_eq!(port.method, "ring");
    let mut host = open(&lab, "packet:right0?tx_copies=off&filter=ether proto 0x88b5").unwrap();
    let sent = numbered(0..3000);
    send(&lab, &sent);
    let queue = &mut port.queues[0];
    let got = bytes_of(drain(queue));
    let stats = queue.stats().unwrap();
    assert_eq!((stats.received, stats.dropped_ring_full), (3000, 3000 - 2048));
    assert!(got == sent[..2048], "the first ones are kept, as many as the next power of two");
    assert_eq!(drain(&mut host.queues[0]).len(), 0, "the host gets none of them");
    let claims = find(&lab).unwrap().unwrap().owned_stages().unwrap();
    let counted = claims.iter().find(|claim| claim.tally.packets > 0).unwrap().tally;
    assert_eq!((counted.packets, counted.taken, counted.missed), (3000, 2048, 952));
}

#[test]
fn one_that_is_killed_leaves_the_other_undisturbed() {
    let Some(lab) = lab() else { return };
    let names = [("ring", EVEN), ("af_xdp", ODD)];
    let names = names.map(|(method, filter)| format!("xdp:right0?method={method}&filter={filter}"));
    for (killed, stays, odd) in [(0, 1, true), (1, 0, false)] {
        let holder = Holder::of(&lab, &names[killed]);
        let mut port = open(&lab, &names[stays]).unwrap();
        let sent = numbered(0..100);
        send(&lab, &sent);
        assert!(bytes_of(receive(&mut port.queues[0], 50)) == of_parity(&sent, odd));
        holder.kill();
        assert_eq!(find(&lab).unwrap().unwrap().owned_stages().unwrap().len(), 1);
        send(&lab, &sent);
        let got = drain(&mut port.queues[0]);
        assert!(bytes_of(got) == of_parity(&sent, odd), "undisturbed");
    }
}

#[test]
fn everything_is_taken_once_at_most() {
    let Some(lab) = lab() else { return };
    let all = open(&lab, "xdp:right0").unwrap();
    let error = open(&lab, "xdp:right0").unwrap_err().to_string();
    assert!(error.contains("already has all packets of right0/0"), "{error}");
    assert!(error.contains(&std::process::id().to_string()), "says who: {error}");
    // What a filter names can still be had.
    let mut some = open(&lab, &format!("xdp:right0?filter={ODD}")).unwrap();
    let sent = numbered(0..100);
    send(&lab, &sent);
    assert!(bytes_of(drain(&mut some.queues[0])) == of_parity(&sent, true));
    drop((all, some));
    let drops = open(&lab, "xdp:right0?action=drop").unwrap();
    let error = open(&lab, "xdp:right0?action=drop").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(error.to_string().contains("already drops the packets of right0"), "{error}");
    drop(drops);
    // The other way round: everything that the filter leaves.
    let _some = open(&lab, &format!("xdp:right0?filter={ODD}")).unwrap();
    let mut rest = open(&lab, "xdp:right0").unwrap();
    send(&lab, &sent);
    let got = bytes_of(drain(&mut rest.queues[0]));
    let got: Vec<_> = got.into_iter().filter(|bytes| is_ours(bytes)).collect();
    assert!(got == of_parity(&sent, false));
}

#[test]
fn a_port_that_asks_for_a_socket_gets_one_or_an_error() {
    let Some(lab) = lab() else { return };
    let _first = open(&lab, &format!("xdp:right0?method=af_xdp&filter={EVEN}")).unwrap();
    let error = open(&lab, &format!("xdp:right0?mode=copy&filter={ODD}")).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EBUSY), "{error}");
    let options = OpenOptions {
        usage: Directions::Both,
        netns: Some(lab.netns("right")),
        ..OpenOptions::default()
    };
    let name = format!("xdp:right0?filter={ODD}");
    let error = Port::open(&name.parse().unwrap(), &options).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EBUSY), "copies are for receiving: {error}");
}
