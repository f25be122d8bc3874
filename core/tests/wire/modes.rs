//! Which modes a driver has, and whether packets come and go in them.

use sluicegate::port::{Directions, Port};

use crate::MODES;
use crate::hosts::{PATIENCE, thinned, wire_in_any_order};
use crate::traffic::{found, frames, may_be_refused, open, open_if_possible, push, receive, send};

/// Checks that a port has the mode that was requested, and a reason if it is not the best.
fn check_mode(asked: &str, port: &Port) {
    let got = port.mode.unwrap();
    let wanted: &[&str] = match asked {
        "mode=zero-copy" => &["native-zero-copy"],
        "mode=copy" => &["native-copy"],
        "mode=native" => &["native-zero-copy", "native-copy"],
        "mode=skb" => &["skb"],
        _ => &["native-zero-copy", "native-copy", "skb"],
    };
    assert!(wanted.contains(&got), "{asked}: {got}");
    let said = |from: &str| port.fallbacks.iter().any(|it| it.from == from);
    if asked.is_empty() && got == "skb" {
        assert!(said("native"), "{got} is said: {:?}", port.fallbacks);
    }
    if matches!(asked, "" | "mode=native") && got == "native-copy" {
        assert!(said("zero-copy"), "{got} is said: {:?}", port.fallbacks);
    }
}

#[test]
fn every_mode_carries_packets_both_ways() {
    let Some(wire) = wire_in_any_order(1) else { return };
    let sent = frames(thinned(2000), 16);
    let mut failed = Vec::new();
    for asked in MODES {
        let row = |cells: [&str; 4]| {
            let asked = asked.strip_prefix("mode=").unwrap_or("(none)");
            println!("table: {asked} | {}", cells.join(" | "));
        };
        let name = format!("xdp:right0?{asked}");
        let mut port = match open(&wire, "right", &name, Directions::Both) {
            Ok(port) => port,
            Err(error) => {
                assert!(may_be_refused(&wire, &name, &error), "{asked}: {error}");
                row(["refused", "", "", &error.to_string()]);
                continue;
            }
        };
        check_mode(asked, &port);
        send(&wire, &sent);
        let came = found(&receive(&mut port.queues, sent.len()), &sent);
        let mut left =
            open(&wire, "left", "packet:left0?tx_copies=off", Directions::Receive).unwrap();
        push(&mut port.queues[0], &sent);
        let went = found(&receive(&mut left.queues, sent.len()), &sent);
        let of = |n| format!("{n} of {}", sent.len());
        let why: Vec<_> = port.fallbacks.iter().map(|it| it.reason.as_str()).collect();
        row([port.mode.unwrap(), &of(came), &of(went), &why.join("; ")]);
        if (came, went) != (sent.len(), sent.len()) {
            let stats: Vec<_> = port.queues.iter_mut().map(|it| it.stats().unwrap()).collect();
            failed.push(format!("{asked}: {came} came, {went} went: {stats:?}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn the_host_keeps_what_is_not_claimed() {
    let Some(wire) = wire_in_any_order(1) else { return };
    let sent = frames(100, 16);
    for asked in MODES {
        let options: Vec<&str> =
            ["filter=udp port 9", asked].into_iter().filter(|it| !it.is_empty()).collect();
        let name = format!("xdp:right0?{}", options.join("&"));
        let Some(mut port) = open_if_possible(&wire, &name) else { continue };
        wire.wait_for_link();
        let ping = format!("ping -q -c 3 -i 0.1 -w {} 198.18.0.2", PATIENCE.as_secs());
        assert!(wire.run("left", &ping), "{asked}: ICMP is not claimed");
        send(&wire, &sent);
        assert_eq!(found(&receive(&mut port.queues, sent.len()), &sent), sent.len(), "{asked}");
        drop(port);
        wire.wait_for_link();
        assert!(wire.run("left", &ping), "{asked}: the port is closed");
    }
}
