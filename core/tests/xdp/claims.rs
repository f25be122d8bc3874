//! Which claim gets which packets, and the state after a port is closed.

use std::process::Command;
use std::time::{Duration, Instant};

use sluicegate::link::{Lab, Shape, netns};
use sluicegate::port::{OpenOptions, Port, Queue};
use sluicegate::ring::{Meta, TimestampSource, Wait};
use sluicegate::xdp::resident::{Action, ModeRequest, StageCounters};

use super::alone::is_alone;
use super::scratch::lab_of;
use super::wire::{Holder, dealt_with, drain, frame, send, send_by};
use super::{exec, find, join, lab, right0, rings, run, wait_until_removed};

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn try_open(lab: &Lab, name: &str) -> sluicegate::Result<Port> {
    let options = OpenOptions { netns: Some(lab.netns("right")), ..OpenOptions::default() };
    Port::open(&name.parse()?, &options)
}

fn open(lab: &Lab, name: &str) -> Queue {
    try_open(lab, name).unwrap().queues.remove(0)
}

/// Sends one datagram from left to a port of right.
fn send_udp(lab: &Lab, port: u16) {
    let command = format!("bash -c echo>/dev/udp/198.18.0.2/{port}");
    let words: Vec<&str> = command.splitn(3, ' ').collect();
    dealt_with(lab, 1, || assert!(exec(lab, "left", &words).success()));
}

/// Destination ports of `n` UDP packets that come.
fn receive(queue: &mut Queue, n: usize) -> Vec<u16> {
    // The host speaks of itself now and then, by ARP and IPv6.
    let udp = |bytes: &[u8]| bytes[12..14] == [8, 0] && bytes[23] == libc::IPPROTO_UDP as u8;
    let came = rings::collect(std::slice::from_mut(queue), n, PATIENCE, udp);
    let port = |(meta, bytes): (Meta, Vec<u8>)| {
        assert_eq!(meta.wire_bytes as usize, bytes.len());
        u16::from_be_bytes([bytes[36], bytes[37]])
    };
    came.into_iter().map(port).collect()
}

/// Returns true if the host answers, so that it gets its packets.
pub fn host_answers(lab: &Lab) -> bool {
    pings(lab, "30")
}

/// Returns true if the host does not answer for a second.
pub fn host_is_silent(lab: &Lab) -> bool {
    !pings(lab, "1")
}

fn pings(lab: &Lab, seconds: &str) -> bool {
    exec(lab, "left", &["ping", "-q", "-c", "1", "-W", seconds, "198.18.0.2"]).success()
}

#[test]
fn a_port_gets_what_its_filter_says_and_the_host_the_rest() {
    let Some(lab) = lab() else { return };
    for mode in ["mode=native", "method=af_xdp", "mode=skb"] {
        let mut queue = open(&lab, &format!("xdp:right0?{mode}&filter=udp port 9"));
        assert!(host_answers(&lab), "{mode}: ICMP is not claimed");
        for port in [8, 9, 10, 9] {
            send_udp(&lab, port);
        }
        assert_eq!(receive(&mut queue, 2), [9, 9], "{mode}");
        let claims = find(&lab).unwrap().unwrap().owned_stages().unwrap();
        assert_eq!(claims.len(), 1, "{mode}");
        assert_eq!(claims[0].owner.filter, "udp port 9");
        assert_eq!((claims[0].tally.packets, claims[0].tally.taken), (2, 2), "{mode}");
        let stats = queue.stats().unwrap();
        assert_eq!((stats.received, stats.dropped_ring_full), (2, 0), "{mode}");
        drop(queue);
        wait_until_removed(&lab);
    }
}

#[test]
fn packets_have_the_time_at_which_they_came() {
    let Some(lab) = lab() else { return };
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    for way in ["", "method=af_xdp", "method=af_xdp&filter=udp", "mode=skb"] {
        let name = &format!("xdp:right0?{way}");
        let mut queue = open(&lab, name);
        let before = now().as_nanos() as u64;
        send_udp(&lab, 9);
        let after = now().as_nanos() as u64;
        // Whenever it is looked at.
        std::thread::sleep(Duration::from_millis(50));
        let end = Instant::now() + PATIENCE;
        let mut times = Vec::new();
        while times.is_empty() && Instant::now() < end {
            queue.sync_rx().unwrap();
            let udp = queue.rx().packets().filter(|packet| packet.head()[12..14] == [8, 0]);
            times.extend(udp.map(|p| (p.meta().timestamp_ns, p.meta().timestamp_source)));
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
        }
        let (time, source) = times[0];
        assert_eq!(source, TimestampSource::Software);
        let slack = 1_000_000;
        assert!(before - slack < time && time < after + slack, "{name}: {before} {time} {after}");
        drop(queue);
        wait_until_removed(&lab);
    }
}

#[test]
fn everything_is_taken_but_for_what_a_filter_takes_first() {
    for way in ["timestamp=off", "timestamp=off&method=af_xdp", "method=af_xdp"] {
        let Some(lab) = lab() else { return };
        everything_but(&lab, &format!("xdp:right0?{way}"));
    }
}

fn everything_but(lab: &Lab, name: &str) {
    let mut whole = open(lab, name);
    assert!(host_is_silent(lab), "{name}: the host gets nothing");
    let (resident, _) = join(lab, ModeRequest::Best).unwrap();
    let before = resident.total();
    let dropping = open(lab, "xdp:right0?action=drop&filter=udp port 7");
    let slots = whole.rx().available();
    whole.rx_mut().release(slots);
    while whole.sync_rx().unwrap() > 0 {
        let slots = whole.rx().available();
        whole.rx_mut().release(slots);
    }
    // Neighbours are known by now, or not: only UDP is looked at.
    run(lab, "left", "ip neigh replace 198.18.0.2 lladdr 02:00:00:00:00:99 dev left0");
    for port in [7, 8, 7] {
        send_udp(lab, port);
    }
    assert!(resident.total().since(before).packets >= 3, "{name}");
    let claims = resident.owned_stages().unwrap();
    let dropped = claims.iter().find(|claim| claim.owner.action == Action::Drop).unwrap();
    assert_eq!((dropped.tally.packets, dropped.tally.dropped), (2, 2));
    assert_eq!(receive(&mut whole, 1), [8], "{name}: what the filter leaves");
    drop(dropping);
    drop(whole);
    assert!(resident.owned_stages().unwrap().is_empty());
}

#[test]
fn what_a_killed_process_took_is_the_hosts_again() {
    let Some(lab) = lab() else { return };
    let (resident, _) = join(&lab, ModeRequest::Best).unwrap();
    for round in 0..2 {
        let holder = Holder::of(&lab, "xdp:right0?action=drop");
        assert_eq!(resident.owned_stages().unwrap().len(), 1, "round {round}");
        assert!(host_is_silent(&lab), "round {round}: everything is dropped");
        holder.kill();
        assert!(host_answers(&lab), "round {round}: its owner is dead");
        assert!(resident.owned_stages().unwrap().is_empty(), "round {round}");
    }
    drop(resident);
    wait_until_removed(&lab);
}

#[test]
fn a_claim_counts_its_own_packets_whatever_the_place_counted_before() {
    let Some(lab) = lab() else { return };
    let (resident, _) = join(&lab, ModeRequest::Best).unwrap();
    let sent: Vec<_> = (0..100).map(|i| frame(i, 0, 60 + i as usize)).collect();
    let bytes = sent.iter().map(Vec::len).sum::<usize>() as u64;
    let ours = "filter=ether proto 0x88b5";
    let taken = StageCounters { taken: 100, ..StageCounters::default() };
    // Every name twice: the second finds its place used.
    for (name, counted) in [
        ("xdp:right0?method=af_xdp&timestamp=off".into(), taken),
        ("xdp:right0?method=af_xdp".into(), taken),
        (format!("xdp:right0?method=af_xdp&{ours}"), taken),
        ("xdp:right0?method=ring".into(), taken),
        (
            "xdp:right0?action=drop".into(),
            StageCounters { dropped: 100, dropped_bytes: bytes, ..StageCounters::default() },
        ),
        (
            format!("xdp:right0?action=drop&{ours}"),
            StageCounters { dropped: 100, dropped_bytes: bytes, ..StageCounters::default() },
        ),
        (format!("xdp:right0?action=pass&{ours}"), StageCounters::default()),
        ("xdp:right0?action=pass".into(), StageCounters::default()),
        (format!("mirror:right0?{ours}"), taken),
    ] {
        for round in 0..2 {
            let port = try_open(&lab, &name).unwrap();
            send(&lab, &sent);
            let claims = resident.owned_stages().unwrap();
            assert_eq!(claims.len(), 1, "{name}");
            let expected = StageCounters { packets: 100, bytes, ..counted };
            assert_eq!(claims[0].tally, expected, "{name}, round {round}");
            drop(port);
        }
    }
}

#[test]
fn a_claim_on_whole_queues_counts_only_those_queues() {
    let ways = [
        "method=af_xdp&timestamp=off",
        "method=af_xdp&filter=ether proto 0x88b5",
        "method=ring&filter=ether proto 0x88b5",
    ];
    for way in ways {
        let Some(lab) = lab_of(Shape::Pair, 3) else { return };
        let (resident, _) = join(&lab, ModeRequest::Best).unwrap();
        let name = |queue| format!("xdp:right0/{queue}?{way}");
        let mut ports = [0, 1].map(|queue| try_open(&lab, &name(queue)).unwrap());
        let sent: Vec<_> = (0..100).map(|i| frame(i, 0, 60)).collect();
        for queue in 0..3 {
            // A veth's queue sends to the other's of that number.
            send_by(&lab, &format!("xdp:left0/{queue}"), &sent);
        }
        let claims = resident.owned_stages().unwrap();
        assert_eq!(claims.len(), 2);
        for (claim, port) in claims.iter().zip(&mut ports) {
            drain(&mut port.queues[0]);
            let received = port.queues[0].stats().unwrap().received;
            let StageCounters { packets, taken, missed, .. } = claim.tally;
            assert_eq!((packets, taken, missed), (received, received, 0), "{:?}", claim.owner);
            assert!(packets >= 100, "{packets}: those of {:?}", claim.owner);
        }
        let counted = claims.iter().map(|claim| claim.tally.packets).sum::<u64>();
        assert!(counted < 300, "{way}: {counted}: those of the third queue, too");
    }
}

#[test]
fn users_of_a_program_that_is_taken_off_get_an_error() {
    let Some(lab) = lab() else { return };
    for name in [
        "xdp:right0?method=af_xdp",
        "xdp:right0?method=af_xdp&timestamp=off",
        "xdp:right0?method=af_xdp&filter=udp",
        "xdp:right0?method=ring",
        "xdp:right0?mode=skb",
        "xdp:right0?action=drop",
        "xdp:right0?action=drop&filter=udp",
        "xdp:right0?action=pass",
        "mirror:right0",
    ] {
        let mut port = try_open(&lab, name).unwrap();
        let queue = &mut port.queues[0];
        queue.wait_rx(Wait::Sleep, Duration::ZERO).unwrap();
        let resident = find(&lab).unwrap().unwrap();
        let interface = right0(&lab);
        netns::run_in(Some(&lab.netns("right")), || resident.detach(&interface)).unwrap();
        // Another user does not make the packets come again.
        let others = join(&lab, ModeRequest::Best).unwrap();
        let end = Instant::now() + PATIENCE;
        let error = loop {
            match queue.wait_rx(Wait::Sleep, Duration::from_millis(20)) {
                Ok(_) => assert!(Instant::now() < end, "{name}: nothing was said"),
                Err(error) => break error,
            }
            queue.sync_rx().unwrap();
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
        };
        assert!(matches!(error, sluicegate::Error::Removed { .. }), "{name}: {error}");
        let error = error.to_string();
        assert!(error.contains("XDP program of right0") && error.contains("detach"), "{error}");
        queue.stop_rx().unwrap_or_else(|error| panic!("{name}: it ends in order: {error}"));
        drop(others);
        wait_until_removed(&lab);
    }
}

#[test]
fn ports_come_and_go_without_a_trace() {
    // Other tests open and close files, too.
    if !is_alone("claims::ports_come_and_go_without_a_trace") {
        return;
    }
    let Some(lab) = lab() else { return };
    let (resident, _) = join(&lab, ModeRequest::Best).unwrap();
    let carrier = || {
        let path = "/sys/class/net/right0/carrier_changes";
        let shown = Command::new("ip")
            .args(["netns", "exec", &lab.netns("right"), "cat", path])
            .output()
            .unwrap();
        String::from_utf8(shown.stdout).unwrap()
    };
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let flaps = carrier();
    let names = [
        "xdp:right0",
        "xdp:right0?filter=udp port 9",
        "xdp:right0?method=af_xdp&timestamp=off",
        "xdp:right0?method=af_xdp&filter=udp port 9",
        "xdp:right0?action=drop&filter=udp port 9",
        "xdp:right0?action=pass",
    ];
    let rounds = if std::env::var_os("SLUICE_TEST_LONG").is_some() { 170 } else { 10 };
    drop(open(&lab, names[0]));
    let before = files();
    for round in 0..rounds {
        for name in names {
            drop(try_open(&lab, name).unwrap_or_else(|e| panic!("round {round}, {name}: {e}")));
            assert_eq!(files(), before, "round {round}: open files after {name}");
        }
    }
    assert!(host_answers(&lab));
    assert_eq!(resident.program(), find(&lab).unwrap().unwrap().program());
    assert_eq!(carrier(), flaps, "the link was never down");
    assert!(resident.owned_stages().unwrap().is_empty());
}
