//! Watching a port of a running forwarder.

use std::path::Path;

use nix::sys::signal::Signal;

use super::*;

/// A capture that watches a port of the forwarder named like the lab.
fn watch(lab: &Lab, port: &str, file: &Path, more: &[&str]) -> Running {
    let port = format!("monitor:{}/{port}", lab.name());
    let write = ["capture", &port, "-w", file.to_str().unwrap(), "--json"];
    Running::spawn(&mut sluice(&[&write[..], more].concat()))
}

/// A watchable forwarder of UDP.
fn watched(lab: &Lab, ports: [&str; 2], more: &[&str]) -> Running {
    let flags = ["-f", "udp", "--name", lab.name()];
    forward(lab, &[&ports[..], &flags, more].concat())
}

/// Sends packets from one end of the lab to the other and waits until they arrive. Returns how many did: a
/// busy machine loses some on the way.
fn send(lab: &Lab, from: &str, to: &str, count: u64) -> u64 {
    let netns = lab.netns(from);
    let came = || received(lab, to, &format!("{to}0"));
    let come = || came() + dropped(lab, from, &format!("{from}0"));
    let (before, all) = (came(), come() + count);
    let (port, dst) = (format!("{from}0"), if to == "right" { "198.18.0.2" } else { "198.18.0.1" });
    let packets = ["--dst", dst, "--sport", "1024-65535", "--size", "60-1500", "--seed", "7"];
    let how = ["--method", "sendto", "--rate", "10kpps", "--count", &count.to_string(), "--json"];
    run(&[&["generate", &port, "--netns", &netns][..], &packets, &how].concat()).good();
    settles(all, come);
    came() - before
}

/// The packets in a file, in the order of their bytes: those of several threads have no other.
fn sorted(path: &Path) -> Vec<Vec<u8>> {
    let mut all: Vec<_> = packets(path).into_iter().map(|(_, bytes)| bytes).collect();
    all.sort();
    all
}

#[test]
fn a_watcher_sees_received_and_sent_packets_unchanged() {
    if !have(&["tshark"]) {
        return;
    }
    let Some(lab) = lab_of(Shape::Line, 2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let out = |file: &Path| {
        let ways = tshark(file, &["-T", "fields", "-e", "frame.packet_flags_direction"]);
        ways.iter().filter(|way| way.ends_with('2')).count()
    };
    for (ports, more) in [
        (["xdp:middle0", "xdp:middle1"], &[][..]),
        (["xdp:middle0", "xdp:middle1"], &["--batch", "3"]),
        (["packet:middle0", "packet:middle1"], &[]),
    ] {
        let change = ["--dmac", NOBODY];
        let running = watched(&lab, ports, &[&change, more].concat());
        let (both, only, there) = (path("both.pcapng"), path("only.pcapng"), path("there.pcap"));
        let first = watch(&lab, "middle0", &both, &[]);
        let second = watch(&lab, "middle1", &only, &["-f", &format!("ether dst {NOBODY}")]);
        let right = capture_all(&lab.netns("right"), "udp", &there);
        let before = dropped(&lab, "middle", "middle1");
        let on_the_way = || dropped(&lab, "left", "left0") + dropped(&lab, "right", "right0");
        let drops_before = on_the_way();
        send(&lab, "left", "right", 2000);
        send(&lab, "right", "left", 1000);
        let lost = dropped(&lab, "middle", "middle1") - before;
        let missed = on_the_way() - drops_before;
        right.stop().good();
        let report = running.stop().good();
        let [on, back] = [0, 1].map(|index| direction(&report, index)[0]);
        assert!(on > 1000 && back > 500, "{ports:?}: {report}");
        let whole = report["ledger"]["in"].as_u64().unwrap();
        assert_eq!(whole + missed, 3000, "{ports:?}: {report}");
        assert_eq!(on + back + loss(&report, "ring_full"), whole, "{ports:?}: {report}");
        let (first, second) = (first.end().good(), second.end().good());
        for (watcher, packets) in [(&first, on + back), (&second, on)] {
            assert_eq!(watcher["packets"], packets, "{ports:?}: {watcher}");
            assert_eq!(watcher["ledger"]["losses"], serde_json::json!({}), "{watcher}");
            assert_eq!(watcher["ledger"]["unexplained"], 0, "{watcher}");
        }
        let sent = (out(&both) as u64, out(&only) as u64);
        assert_eq!(sent, (back, on), "{ports:?}: what was sent says so");
        let rewritten = sorted(&there).into_iter().filter(|it| it[5] == 0x99).collect::<Vec<_>>();
        let given = sorted(&only);
        assert!(rewritten.len() as u64 + lost >= on, "{ports:?}: {} came", rewritten.len());
        // Each received packet was sent, and as often.
        let mut rest = given.iter();
        let was_given = |it: &Vec<u8>| rest.any(|next| next == it);
        assert!(rewritten.iter().all(was_given), "{ports:?}: as it was sent");
        let [packets, swapped, copied] = direction(&report, 0);
        let expected = if ports[0].starts_with("xdp") { (packets, 0) } else { (0, packets) };
        assert_eq!((swapped, copied), expected, "{report}");
    }
}

#[test]
fn watchers_come_and_go_and_only_they_notice() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str| folder.path().join(name);
    let running = watched(&lab, ["xdp:middle0", "xdp:middle1"], &[]);
    let killed = watch(&lab, "middle0", &of("killed"), &[]);
    let stopped = watch(&lab, "middle0", &of("stopped"), &["--duration", "1h"]);
    stopped.signal(Signal::SIGSTOP);
    killed.signal(Signal::SIGKILL);
    killed.end();
    let first = send(&lab, "left", "right", 12_000);
    let late = watch(&lab, "middle1", &of("late"), &[]);
    let second = send(&lab, "left", "right", 100);
    stopped.signal(Signal::SIGCONT);
    let stopped = stopped.stop().good();
    // Its ring has 8192 cells, and the stopped watcher has returned none.
    let (all, lost) = (stopped["ledger"]["in"].as_u64(), loss(&stopped, "ring_full"));
    assert_eq!(all.map(|all| all - lost), Some(8192), "{stopped}");
    assert!(lost > 3000, "{stopped}");
    let port = format!("monitor:{}/middle2", lab.name());
    refused(&["count", &port], "available: middle0, middle1");
    let other = ["forward", "null:", "null:", "--count", "1", "--name", lab.name()];
    refused(&other, "take another --name");
    let report = running.stop().good();
    assert_eq!(report["ledger"]["out"], first + second, "{report}");
    assert_eq!(stopped["ledger"]["in"], direction(&report, 0)[0], "{stopped} {report}");
    let late = late.end().good()["packets"].as_u64().unwrap();
    assert!(second > 0 && (second..=100).contains(&late), "{late} of {second}");
    refused(&["count", &port], "no running command");
}
