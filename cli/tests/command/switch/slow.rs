//! A port whose other side does not read.

use nix::sys::signal::Signal;

use super::star::*;
use crate::support::*;

#[test]
fn a_reader_that_stops_loses_its_own_packets_and_slows_nobody() {
    let Some(lab) = star() else { return };
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif.sock");
    let mut all = ports("xdp");
    all.push(format!("pipe=memif:{}?role=server", socket.display()));
    let running = switch(&lab, &all, &[]);
    eventually("it listens", || socket.exists());
    let reader =
        Running::start(&["count", &format!("memif:{}?role=client", socket.display()), "--json"]);
    let broadcast = ["--dmac", "ff:ff:ff:ff:ff:ff"];
    let passed = |packets| {
        let sent = || count(&shown(&lab), "right", "sent");
        eventually("all have passed", || sent() >= packets);
        assert_eq!(sent(), packets, "{}", shown(&lab));
    };
    // The pipe works once the first packet has come through.
    let mut sent = 0;
    eventually("the pipe works", || {
        generate(&lab, "left", 1, &broadcast);
        sent += 1;
        count(&shown(&lab), "pipe", "sent") > 0
    });
    reader.signal(Signal::SIGSTOP);
    generate(&lab, "left", 8000, &broadcast);
    passed(8000 + sent);
    reader.signal(Signal::SIGCONT);
    let read = reader.stop().good();
    let report = running.stop().good();
    let lost = lost(&report, "pipe", "port_full");
    assert!(lost > 1000, "it loses what it has no room for: {report}");
    for host in ["right", "upper", "lower"] {
        assert_eq!(count(&report, host, "sent"), 8000 + sent, "{host}: {report}");
    }
    assert!(read["packets"].as_u64().unwrap() < 8000, "{read}");
}
