//! Settings that a port leaves alone or takes back, and the errors it reports.

use std::process::Command;
use std::time::{Duration, Instant};

use sluicegate::error::{Error, ErrorKind};
use sluicegate::link::{self, Lab, Netlink, netns};
use sluicegate::port::{Directions, Queue, QueueStats, detach_host, host_owner};
use sluicegate::ring::{Meta, Packet, Readiness, Wait};

use super::bridge::Bridge;
use super::on::on;
use super::through::{HOSTS, ping};
use super::{lab, open, run};

const PATIENCE: Duration = Duration::from_secs(60);

/// The output of a command on the host `right`.
pub fn printed(lab: &Lab, command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    String::from_utf8_lossy(&on(&lab.netns("right"), &words).stdout).into_owned()
}

/// All that a port could leave on right0: devices, disciplines, filters, programs.
pub fn traces(lab: &Lab) -> Vec<String> {
    let mut commands = vec![
        "ip -o link",
        "tc qdisc show dev right0",
        "tc filter show dev right0 egress",
        "tc filter show dev right0 ingress",
    ];
    // It alone knows of programs at tcx.
    match Command::new("bpftool").arg("version").output() {
        Ok(_) => commands.push("bpftool net show dev right0"),
        Err(error) => println!("skipped: needs bpftool ({error}); get it by installing it"),
    }
    let all = commands.into_iter().map(|command| printed(lab, command));
    let all = all.collect::<String>();
    let lines = all.lines();
    let ours = |line: &&str| line.contains("sluice") || line.contains("clsact");
    lines.filter(ours).map(str::to_owned).collect()
}

/// Waits until all traces are removed. A device ends with its last descriptor, which a child that another
/// test just forked still holds.
#[track_caller]
pub fn nothing_is_left(lab: &Lab) {
    let deadline = Instant::now() + PATIENCE;
    while let left @ [_, ..] = &traces(lab)[..] {
        assert!(Instant::now() < deadline, "left behind: {left:?}");
    }
}

fn detach(lab: &Lab) -> bool {
    let netns = lab.netns("right");
    let right0 = link::interface(Some(&netns), "right0").unwrap();
    netns::run_in(Some(&netns), || detach_host(&right0)).unwrap()
}

/// Releases all packets of a queue.
fn empty(queue: &mut Queue) {
    while queue.sync_rx().unwrap() > 0 {
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
    }
}

#[test]
fn a_port_leaves_nothing_behind() {
    let Some(lab) = lab() else { return };
    for host in HOSTS.iter().chain(&["host:right0?fallback=drop", "host:right0/0-3"]) {
        let port = open(&lab, host, Directions::Both).unwrap();
        assert!(!traces(&lab).is_empty(), "{host}: it has left traces");
        assert!(!ping(&lab, "right", "198.18.0.1"), "{host}: nobody forwards");
        drop(port);
        nothing_is_left(&lab);
        assert!(ping(&lab, "right", "198.18.0.1"), "{host}");
    }
}

#[test]
fn what_others_have_there_stays() {
    let Some(lab) = lab() else { return };
    let filter = ["tc", "filter", "add", "dev", "right0", "egress", "pref", "7"];
    let program = ["bpf", "bytecode", "1,6 0 0 0,"];
    assert!(run(&lab, "right", "tc qdisc replace dev right0 root handle 8001: pfifo limit 500"));
    assert!(run(&lab, "right", "tc qdisc add dev right0 clsact"));
    let added = on(&lab.netns("right"), &[&filter[..], &program].concat());
    assert!(added.status.success());
    let theirs = |lab: &Lab| {
        let filters = printed(lab, "tc filter show dev right0 egress");
        printed(lab, "tc qdisc show dev right0") + &filters
    };
    let before = theirs(&lab);
    for host in HOSTS.iter().chain(&["host:right0?fallback=drop"]) {
        let bridge = Bridge::open(&lab, "xdp:right0", host).unwrap();
        assert!(ping(&lab, "right", "198.18.0.1"), "{host}");
        drop(bridge);
        assert_eq!(theirs(&lab), before, "{host}");
    }
}

#[test]
fn a_second_port_is_refused_with_who_has_the_first() {
    let Some(lab) = lab() else { return };
    let first = open(&lab, "host:right0", Directions::Both).unwrap();
    let netns_name = lab.netns("right");
    let right0 = link::interface(Some(&netns_name), "right0").unwrap();
    let owner = || netns::run_in(Some(&netns_name), || host_owner(&right0)).unwrap();
    assert!(owner().is_some_and(|owner| owner.starts_with("host:right0 of ")));
    for second in ["host:right0", "host:right0/0-1", "host:right0?hook=clsact"] {
        let error = open(&lab, second, Directions::Both).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{second}: {error}");
        let error = error.to_string();
        let us = format!("({})", std::process::id());
        assert!(error.contains("host:right0 of") && error.contains(&us), "{second}: {error}");
    }
    drop(first);
    assert_eq!(owner(), None);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let Some(lab) = lab() else { return };
    for (name, why) in [
        ("host:lo", "Ethernet"),
        ("host:right0?fallback=drop&hook=tcx", "hook=clsact"),
        ("host:right0?fallback=no", "use one of pass, drop"),
        ("host:right0?slots=8", "the longest frame needs"),
    ] {
        let error = open(&lab, name, Directions::Both).unwrap_err();
        assert!(error.to_string().contains(why), "{name}: {error}");
        assert_eq!(error.kind(), ErrorKind::Usage, "{name}");
    }
    nothing_is_left(&lab);
}

#[test]
fn a_detached_port_gets_an_error() {
    let Some(lab) = lab() else { return };
    assert!(!detach(&lab), "there is nothing");
    for host in HOSTS.iter().chain(&["host:right0?fallback=drop"]) {
        let mut port = open(&lab, host, Directions::Both).unwrap();
        port.queues[0].check().unwrap();
        assert!(detach(&lab), "{host}");
        assert!(ping(&lab, "right", "198.18.0.1"), "{host}: the usual way");
        let error = port.queues[0].check().unwrap_err();
        assert!(matches!(error, Error::Removed { .. }), "{host}: {error}");
        drop(port);
        nothing_is_left(&lab);
    }
}

#[test]
fn what_a_port_sends_does_not_come_back() {
    let Some(lab) = lab() else { return };
    let mut host = open(&lab, "host:right0", Directions::Both).unwrap();
    let mut bytes = vec![0xff; 60];
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    let mut seen = open(&lab, "packet:right0?tx_copies=off", Directions::Receive).unwrap();
    for name in ["packet:right0", "packet:right0?send=ring", "xdp:right0", "live:right0"] {
        let mut port = open(&lab, name, Directions::Send).unwrap();
        for _ in 0..10 {
            let queue = &mut port.queues[0];
            assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), &bytes)));
            queue.close_tx().unwrap();
        }
        // What the host sends comes, and would come behind them.
        assert!(!run(&lab, "right", "ping -q -c 1 -W 0.1 198.18.0.1"), "{name}: nobody forwards");
        let queue = &mut host.queues[0];
        let deadline = Instant::now() + PATIENCE;
        let mut pinged = false;
        while !pinged {
            assert!(Instant::now() < deadline, "{name}: the host's ping does not come");
            queue.wait_rx(Wait::Sleep, Duration::from_millis(50)).unwrap();
            queue.sync_rx().unwrap();
            assert!(queue.rx().packets().all(|it| it.head() != bytes), "{name}");
            pinged |= queue.rx().packets().any(|it| it.head().get(23) == Some(&1));
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
        }
        drop(port);
    }
    // What is sent to the port itself enters the host, and only there.
    let queue = &mut host.queues[0];
    assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), &bytes)));
    queue.sync_tx().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let entered = loop {
        seen.queues[0].wait_rx(Wait::Sleep, Duration::from_millis(50)).unwrap();
        seen.queues[0].sync_rx().unwrap();
        let found = seen.queues[0].rx().packets().filter(|it| it.head() == bytes).count();
        if found > 0 || Instant::now() > deadline {
            break found;
        }
    };
    assert_eq!(entered, 1, "as if it had come in by right0");
    empty(queue);
}

#[test]
fn a_packet_enters_with_its_tag_and_whatever_its_length() {
    let Some(lab) = lab() else { return };
    assert!(run(&lab, "right", "ip link set right0 mtu 9000"));
    let mut seen = open(&lab, "packet:right0", Directions::Receive).unwrap();
    let mut host = open(&lab, "host:right0", Directions::Both).unwrap();
    let sent: Vec<Vec<u8>> = [60, 1514, 2049, 9014]
        .into_iter()
        .flat_map(|bytes| [&[][..], &[0x81, 0x00, 0x20, 0x05]].map(|tag| (bytes, tag)))
        .map(|(bytes, tag)| {
            let mut frame = [&[0xff; 12], tag, &[0x88, 0xb5]].concat();
            frame.resize(bytes, bytes as u8);
            frame
        })
        .collect();
    let queue = &mut host.queues[0];
    for frame in &sent {
        assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), frame)));
    }
    queue.close_tx().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut got = Vec::new();
    while got.len() < sent.len() && Instant::now() < deadline {
        let queue = &mut seen.queues[0];
        queue.wait_rx(Wait::Sleep, Duration::from_millis(20)).unwrap();
        queue.sync_rx().unwrap();
        got.extend(queue.rx().packets().map(|it| it.head().to_vec()).filter(|it| it[6] == 0xff));
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
    }
    assert!(got == sent, "{} of {}", got.len(), sent.len());
}

#[test]
fn tagged_packets_pass_with_their_tags() {
    let Some(lab) = lab() else { return };
    for (host, number) in [("left", 1), ("right", 2)] {
        let vlan = format!("ip link add link {host}0 name {host}0.5 type vlan id 5");
        if !run(&lab, host, &vlan) {
            println!("skipped: needs VLAN interfaces; get them by modprobe 8021q");
            return;
        }
        // A veth hands a tag over beside the packet, where XDP does not see it.
        assert!(run(&lab, host, &format!("ethtool -K {host}0 txvlan off")));
        assert!(run(&lab, host, &format!("ip address add 203.0.113.{number}/24 dev {host}0.5")));
        assert!(run(&lab, host, &format!("ip link set {host}0.5 up")));
    }
    for host in HOSTS {
        for wire in ["xdp:right0?mode=native", "xdp:right0?mode=skb"] {
            let _bridge = Bridge::open(&lab, wire, host).unwrap();
            assert!(ping(&lab, "right", "203.0.113.1"), "{wire} {host}");
            assert!(ping(&lab, "left", "203.0.113.2"), "{wire} {host}");
        }
    }
}

#[test]
fn what_an_interface_that_is_down_refuses_is_counted() {
    let Some(lab) = lab() else { return };
    let mut port = open(&lab, "host:right0/0-1", Directions::Both).unwrap();
    let mut bytes = vec![0xff; 60];
    // Of a protocol that the host does not know, and drops: it has entered all the same.
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    let mut expected = (0, 0);
    for (state, packets) in [("up", 3), ("down", 5), ("up", 2), ("down", 1)] {
        assert!(run(&lab, "right", &format!("ip link set right0 {state}")));
        for queue in &mut port.queues {
            for _ in 0..packets {
                assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), &bytes)));
            }
            queue.sync_tx().unwrap();
            match state {
                "up" => expected.0 += packets,
                _ => expected.1 += packets,
            }
        }
        let stats = port.queues.iter_mut().map(|queue| queue.stats().unwrap());
        let stats = stats.reduce(QueueStats::plus).unwrap();
        assert_eq!((stats.sent, stats.refused), expected, "{state}");
    }
}

#[test]
fn the_interface_may_change_under_the_port() {
    let Some(lab) = lab() else { return };
    let mut port = open(&lab, "host:right0", Directions::Both).unwrap();
    let queue = &mut port.queues[0];
    let netns_name = lab.netns("right");
    let mac = "02:00:c6:12:00:77";
    assert!(run(&lab, "right", &format!("ip link set right0 address {mac}")));
    queue.check().unwrap();
    let mut netlink = Netlink::open(Some(&netns_name)).unwrap();
    let right0 = netlink.link("right0").unwrap();
    let device = netlink.link(&format!("sluice-{}", right0.index)).unwrap();
    assert_eq!(device.mac, right0.mac, "what is for the host here is for the host there");

    assert!(run(&lab, "right", "ip link set right0 down"));
    empty(queue);
    assert_eq!(queue.wait_rx(Wait::Sleep, Duration::from_millis(5)).unwrap(), Readiness::Down);
    assert!(run(&lab, "right", "ip link del right0"));
    let error = queue.check().unwrap_err();
    assert!(matches!(error, Error::Removed { .. }), "{error}");
}
