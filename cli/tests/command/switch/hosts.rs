//! Hosts that talk through a switch.

use std::process::Command;

use super::star::*;
use crate::support::*;

#[test]
fn all_pairs_of_four_hosts_reach_each_other() {
    let Some(lab) = star() else { return };
    for (kind, more) in [("xdp", &[][..]), ("packet", &["--wait", "sleep"])] {
        let running = switch(&lab, &ports(kind), more);
        for from in HOSTS {
            for (number, to) in HOSTS.iter().enumerate().filter(|(_, to)| **to != from) {
                let address = format!("198.18.0.{}", number + 1);
                // In turn: the second starts when the first has its answer.
                for _ in 0..2 {
                    let ping = on(&lab, from, &["ping", "-q", "-c", "1", "-W", "5", &address]);
                    assert_eq!(ping.status, Some(0), "{kind}: {from} to {to}: {}", ping.out);
                }
            }
        }
        let report = running.stop().good();
        // Neighbours are permanent entries, so the only packets are pings and floods.
        assert_eq!(report["packets"], 2 * 2 * 12, "{report}");
        let flooded: u64 = HOSTS.iter().map(|host| count(&report, host, "flooded")).sum();
        let copies: u64 = HOSTS.iter().map(|host| count(&report, host, "flood_copies")).sum();
        // The first packet from left to each of the others, which have sent nothing yet.
        assert_eq!((flooded, copies), (3, 6), "{kind}: {report}");
        let swapped: u64 = HOSTS.iter().map(|host| count(&report, host, "swapped")).sum();
        assert!(kind == "packet" || swapped == 48 - flooded, "in one pool they swap: {report}");
    }
}

#[test]
fn tcp_streams_cross_in_all_directions() {
    if !have(&["iperf3"]) {
        return;
    }
    let Some(lab) = star() else { return };
    for kind in ["xdp", "packet"] {
        // Packet sockets would receive packets that the kernel has merged.
        if kind == "packet" {
            without_gro(&lab, "middle", &["middle0", "middle1", "middle2", "middle3"]);
        }
        let running = switch(&lab, &ports(kind), &[]);
        let servers: Vec<Running> = ["right", "lower"]
            .map(|host| {
                let server = background(&lab, host, &["iperf3", "-s", "-1", "--forceflush"]);
                let listens = || {
                    let sockets = on(&lab, host, &["ss", "-ltn"]);
                    sockets.out.contains(":5201")
                };
                eventually("the server listens", listens);
                server
            })
            .into();
        let client = |host, address| {
            background(&lab, host, &["iperf3", "-c", address, "-n", "20M", "--json", "-N"])
        };
        let clients = [client("left", "198.18.0.2"), client("upper", "198.18.0.4")];
        for client in clients {
            let ended = client.end();
            assert_eq!(ended.status, Some(0), "{kind}: {}{}", ended.out, ended.err);
        }
        servers.into_iter().for_each(|server| assert_eq!(server.end().status, Some(0)));
        let report = running.stop().good();
        assert!(count(&report, "left", "bytes") > 15_000_000, "{kind}: {report}");
    }
}

#[test]
fn a_broadcast_comes_once_to_every_other_port() {
    let Some(lab) = star() else { return };
    for kind in ["xdp", "packet"] {
        let running = switch(&lab, &ports(kind), &[]);
        generate(&lab, "left", 1000, &["--dmac", "ff:ff:ff:ff:ff:ff"]);
        eventually("all has left", || {
            let interface = |number: u32| {
                sluicegate::link::interface(Some(&lab.netns("middle")), &format!("middle{number}"))
            };
            (1..4).all(|number| interface(number).unwrap().stats.tx_packets >= 1000)
        });
        let report = running.stop().good();
        assert_eq!(report["packets"], 1000, "{report}");
        assert_eq!(count(&report, "left", "flooded"), 1000, "{report}");
        assert_eq!(count(&report, "left", "flood_copies"), 2000, "{report}");
        assert_eq!(count(&report, "left", "to_port"), 0, "{report}");
        for host in &HOSTS[1..] {
            assert_eq!(count(&report, host, "sent"), 1000, "{kind}, {host}: {report}");
        }
        assert_eq!(report["ledger"]["in"], 3000, "{report}");
    }
}

#[test]
fn a_host_that_moves_is_found_again_by_its_first_packet() {
    let Some(lab) = star() else { return };
    let running = switch(&lab, &ports("xdp"), &[]);
    let roaming = "02:00:00:00:00:77";
    let send = |from: &str, to: &str, source: &str, packets| {
        generate(&lab, from, packets, &["--smac", source, "--dmac", to]);
    };
    send("left", &mac("lower"), roaming, 10);
    send("right", roaming, &mac("right"), 20);
    send("upper", &mac("right"), roaming, 1);
    send("right", roaming, &mac("right"), 30);
    let report = running.stop().good();
    assert_eq!(count(&report, "upper", "moved"), 1, "{report}");
    // The packets for it, and floods because lower has sent nothing.
    assert_eq!(count(&report, "left", "sent"), 20, "{report}");
    assert_eq!(count(&report, "upper", "sent"), 10 + 30, "{report}");
    assert_eq!(count(&report, "lower", "sent"), 10, "{report}");
}

#[test]
fn a_port_works_again_once_it_is_up_and_others_survive_a_removed_one() {
    let Some(lab) = star() else { return };
    for kind in ["xdp", "packet"] {
        let mut running = switch(&lab, &ports(kind), &[]);
        let link = |words: &[&str]| {
            let mut command = Command::new("ip");
            assert!(
                command
                    .args(["-n", &lab.netns("middle"), "link"])
                    .args(words)
                    .status()
                    .unwrap()
                    .success()
            );
        };
        let answers = |address: &str, within_s: &str| {
            let ping = ["ping", "-q", "-c", "1", "-W", within_s, address];
            on(&lab, "left", &ping).status == Some(0)
        };
        let reaches = |address| answers(address, "1");
        let only_right_is_unreachable = || {
            assert!(!reaches("198.18.0.2"), "{kind}");
            // An answer that must come may be late.
            assert!(answers("198.18.0.3", "20"), "{kind}");
        };
        let says = |running: &mut Running, what: &str| {
            let mut said = String::new();
            while !said.contains(what) {
                said = running.says();
            }
        };
        eventually("right is reached", || reaches("198.18.0.2"));
        link(&["set", "middle1", "down"]);
        says(&mut running, "right is down");
        only_right_is_unreachable();
        link(&["set", "middle1", "up"]);
        says(&mut running, "right is up");
        eventually("right is reached again", || reaches("198.18.0.2"));
        if kind == "packet" {
            link(&["delete", "middle1"]);
            says(&mut running, "right left the switch");
            only_right_is_unreachable();
        }
        let ended = running.stop();
        assert_eq!(ended.status, Some(0), "{}", ended.err);
        let report = ended.good();
        assert!(report["ledger"]["losses"]["port_down"].as_u64() > Some(0), "{report}");
    }
}
