//! netmap's own programs. `NETMAP_BIN` names the folder that has them; nothing here builds them.

use std::path::Path;

use nix::sys::signal::Signal;
use sluicegate::link::Shape;

use crate::support::*;

/// A program of netmap's; none, and why, without the folder.
fn program(name: &str) -> Option<String> {
    let folder = std::env::var("NETMAP_BIN").unwrap_or_default();
    let path = Path::new(&folder).join(name);
    if folder.is_empty() || !path.exists() {
        eprintln!("skipped: needs netmap's {name}; get it by NETMAP_BIN=FOLDER");
        return None;
    }
    Some(path.to_str().unwrap().to_owned())
}

/// The words of `sluice netmap run` of a program.
fn run_words<'a>(options: &[&'a str], program: &'a str, words: &[&'a str]) -> Vec<&'a str> {
    let begin = [env!("CARGO_BIN_EXE_sluice"), "netmap", "run"];
    [&begin, options, &["--", program], words].concat()
}

/// Waits until a program says this on its standard error: it has registered its ports.
fn says(running: &mut Running, text: &str) {
    while !running.says().contains(text) {}
}

#[test]
fn pkt_gen_sends_into_a_switch_without_privileges() {
    let Some(pkt_gen) = program("pkt-gen") else { return };
    let words = ["-i", "vale1:a", "-f", "tx", "-n", "100000"];
    let ended =
        ended(std::process::Command::new("setpriv").args(["--bounding-set=-all"]).args(run_words(
            &[],
            &pkt_gen,
            &words,
        )));
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    assert!(ended.out.contains("Sent 100000 packets 6000000 bytes"), "{}", ended.out);
}

#[test]
fn pkt_gen_sends_and_receives_exact_numbers() {
    let Some(pkt_gen) = program("pkt-gen") else { return };
    let Some(lab) = lab_with(&["ip"]) else { return };
    for (backend, filter) in [("xdp", "udp"), ("live", "udp port 1234"), ("xdp", "")] {
        let mut options = vec!["--backend", backend];
        if !filter.is_empty() {
            options.extend(["--filter", filter]);
        }
        let rx = run_words(&options, &pkt_gen, &["-i", "right0", "-f", "rx", "-n", "20000"]);
        let mut receiver = background(&lab, "right", &rx);
        says(&mut receiver, "reading from");
        let tx = ["-i", "left0", "-f", "tx", "-n", "20000", "-R", "20000"];
        let sent = on(&lab, "left", &run_words(&options, &pkt_gen, &tx));
        assert!(sent.out.contains("Sent 20000 packets 1200000 bytes"), "{backend}: {sent:?}");
        let received = receiver.end();
        let all = "Received 20000 packets 1200000 bytes";
        assert!(received.out.contains(all), "{backend}, {filter}: {received:?}");
    }
}

#[test]
fn a_bridge_joins_two_interfaces() {
    let Some(bridge) = program("bridge") else { return };
    if !have(&["ping", "ip"]) {
        return;
    }
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let ping = ["ping", "-c", "1", "-W", "1", "198.18.0.2"];
    assert_ne!(on(&lab, "left", &ping).status, Some(0), "nothing joins them yet");
    let words = ["-w", "0", "-i", "netmap:middle0", "-i", "netmap:middle1"];
    let mut running = background(&lab, "middle", &run_words(&[], &bridge, &words));
    says(&mut running, "Ready to go");
    eventually("a ping passes", || on(&lab, "left", &ping).status == Some(0));
    running.signal(Signal::SIGINT);
    let ended = running.end();
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    assert_ne!(on(&lab, "left", &ping).status, Some(0), "nothing joins them any more");
}

#[test]
fn a_killed_program_leaves_nothing() {
    let Some(pkt_gen) = program("pkt-gen") else { return };
    let Some(lab) = lab_with(&["ip", "ping"]) else { return };
    let rx = run_words(&[], &pkt_gen, &["-i", "right0", "-f", "rx"]);
    let mut receiver = background(&lab, "right", &rx);
    says(&mut receiver, "reading from");
    let ping = ["ping", "-c", "1", "-W", "1", "198.18.0.2"];
    assert_ne!(on(&lab, "left", &ping).status, Some(0), "the program takes the packets");
    receiver.signal(Signal::SIGKILL);
    receiver.end();
    eventually("the XDP program is removed", || {
        !on(&lab, "right", &["ip", "link", "show", "right0"]).out.contains("xdp")
    });
    eventually("the host has its packets again", || on(&lab, "left", &ping).status == Some(0));
}
