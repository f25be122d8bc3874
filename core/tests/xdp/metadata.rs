//! Metadata of the driver: hardware times and hashes. A veth has a hash of each packet, and no time.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use sluicegate::link::{Lab, netns, xdp_abilities};
use sluicegate::port::{OpenOptions, Port, Queue};
use sluicegate::ring::{Meta, TimestampSource, Wait};
use sluicegate::xdp::resident::ModeRequest;

use super::wire::dealt_with;
use super::{find, join, lab, right0, run, wait_until_removed};

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A lab whose drivers can be asked, or the reason why there is none.
fn asking_lab() -> Option<Lab> {
    let lab = lab()?;
    let found = xdp_abilities(Some(&lab.netns("right")), &right0(&lab)).unwrap();
    let metadata = found.and_then(|found| found.metadata);
    if !metadata.is_some_and(|metadata| metadata.timestamp && metadata.hash) {
        println!("skipped: needs a veth whose driver can be asked; get it by Linux 6.7");
        return None;
    }
    Some(lab)
}

fn open(lab: &Lab, name: &str) -> Port {
    let options = OpenOptions { netns: Some(lab.netns("right")), ..OpenOptions::default() };
    Port::open(&name.parse().unwrap(), &options).unwrap()
}

/// Why a port does not have the card's times.
fn reason(port: &Port) -> Option<String> {
    let of_times = port.fallbacks.iter().find(|it| it.from == "hardware timestamps");
    of_times.map(|fallback| fallback.reason.clone())
}

/// A port that has the card's times, or the reason why this kernel does not do it.
fn open_asking(lab: &Lab, name: &str) -> Option<Port> {
    let port = open(lab, name);
    match reason(&port) {
        Some(reason) if reason.contains("6.12.34") => {
            println!("skipped: needs the driver's metadata; get it by Linux 6.12.34: {reason}");
            None
        }
        Some(reason) => panic!("{name}: {reason}"),
        None => Some(port),
    }
}

/// Sends one datagram from left to right.
fn send_udp(lab: &Lab, from: u16, to: u16) {
    let send = || {
        let socket = UdpSocket::bind(("198.18.0.1", from)).unwrap();
        Ok(socket.send_to(b"x", ("198.18.0.2", to)).unwrap())
    };
    dealt_with(lab, 1, || {
        assert_eq!(netns::run_in(Some(&lab.netns("left")), send).unwrap(), 1);
    });
}

/// The metadata of `n` UDP packets that come.
fn receive(queue: &mut Queue, n: usize) -> Vec<Meta> {
    let end = Instant::now() + PATIENCE;
    let mut found = Vec::new();
    while found.len() < n && Instant::now() < end {
        queue.sync_rx().unwrap();
        let udp = queue.rx();
        let udp = udp
            .packets()
            .filter(|it| it.head()[12..14] == [8, 0] && it.head()[23] == libc::IPPROTO_UDP as u8);
        found.extend(udp.map(|packet| *packet.meta()));
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
        queue.wait_rx(Wait::Sleep, Duration::from_millis(20)).unwrap();
    }
    found
}

#[test]
fn packets_have_the_drivers_hash_and_the_kernels_time_where_the_card_took_none() {
    let Some(lab) = asking_lab() else { return };
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    for filter in ["", "&filter=udp dst portrange 9-10"] {
        let name = format!("xdp:right0?timestamp=hardware{filter}");
        let Some(mut port) = open_asking(&lab, &name) else { return };
        let mut queue = port.queues.remove(0);
        let comment = &queue.interfaces()[0].comment;
        assert!(comment.starts_with("timestamps: hardware"), "{name}: {comment}");
        let before = now().as_nanos() as u64;
        for (from, to) in [(4000, 9), (4001, 10), (4000, 9)] {
            send_udp(&lab, from, to);
        }
        let after = now().as_nanos() as u64;
        let found = receive(&mut queue, 3);
        assert_eq!(found.len(), 3, "{name}");
        assert!(found.iter().all(|meta| meta.hash != 0), "{name}: {found:?}");
        assert_eq!(found[0].hash, found[2].hash, "{name}: one conversation");
        assert_ne!(found[0].hash, found[1].hash, "{name}: another conversation");
        let slack = 1_000_000;
        for meta in found {
            assert_eq!(meta.timestamp_source, TimestampSource::Software, "{name}");
            let time = meta.timestamp_ns;
            assert!(before - slack < time && time < after + slack, "{name}: {time}");
        }
        drop(queue);
        wait_until_removed(&lab);
    }
}

#[test]
fn frames_of_several_buffers_are_asked_for_too() {
    let Some(lab) = asking_lab() else { return };
    run(&lab, "left", "ip link set left0 mtu 9000");
    run(&lab, "right", "ip link set right0 mtu 9000");
    let Some(mut port) = open_asking(&lab, "xdp:right0?timestamp=hardware") else { return };
    send_udp(&lab, 4000, 9);
    assert_ne!(receive(&mut port.queues[0], 1)[0].hash, 0);
}

#[test]
fn ports_without_the_wish_work_beside_one_with_it() {
    let Some(lab) = asking_lab() else { return };
    let name = "xdp:right0?timestamp=hardware&filter=udp port 9";
    let Some(mut asking) = open_asking(&lab, name) else { return };
    let dropping = open(&lab, "xdp:right0?action=drop&filter=udp port 7");
    let mut mirror = open(&lab, "mirror:right0?filter=udp").queues.remove(0);
    let resident = find(&lab).unwrap().unwrap();
    let before = resident.total();
    for to in [7, 8, 9] {
        send_udp(&lab, 4000, to);
    }
    assert_eq!(receive(&mut mirror, 3).len(), 3, "a mirror sees all");
    assert_eq!(receive(&mut asking.queues[0], 1).len(), 1);
    assert!(resident.total().since(before).packets >= 3, "each is counted");
    let claims = resident.owned_stages().unwrap();
    assert_eq!(claims.iter().map(|claim| claim.tally.packets).collect::<Vec<_>>(), [3, 1, 1]);
    drop((asking, dropping, mirror));
    // Held by what remains, the program still reads.
    let again = open(&lab, name);
    assert_eq!(reason(&again), None);
    drop(resident);
    drop(again);
    wait_until_removed(&lab);
}

#[test]
fn the_reason_for_missing_hardware_times_is_reported() {
    let Some(lab) = asking_lab() else { return };
    let name = "xdp:right0?timestamp=hardware";
    let skb = open(&lab, &format!("{name}&mode=skb"));
    assert!(reason(&skb).is_some_and(|it| it.contains("skb mode")), "{:?}", skb.fallbacks);
    drop(skb);
    wait_until_removed(&lab);
    let (resident, _) = join(&lab, ModeRequest::Best).unwrap();
    let mut late = open(&lab, name);
    let said = reason(&late).unwrap_or_default();
    assert!(said.contains("was attached without") && said.contains("sluice claims"), "{said}");
    let comment = &late.queues[0].interfaces()[0].comment;
    assert!(comment.starts_with("timestamps: software"), "{comment}");
    send_udp(&lab, 4000, 9);
    assert_eq!(receive(&mut late.queues[0], 1)[0].timestamp_source, TimestampSource::Software);
    let copies = open(&lab, &format!("{name}&filter=udp port 9"));
    assert_eq!(copies.method, "ring");
    assert!(reason(&copies).is_some(), "{:?}", copies.fallbacks);
    drop((late, copies, resident));
    wait_until_removed(&lab);
    let plain = open(&lab, "xdp:right0");
    assert_eq!(reason(&plain), None, "nobody asked");
}

#[test]
fn an_interface_that_is_removed_takes_the_reader_along() {
    let Some(lab) = asking_lab() else { return };
    let Some(mut port) = open_asking(&lab, "xdp:right0?timestamp=hardware") else { return };
    let reader = find(&lab).unwrap().unwrap().program();
    let exists = || libbpf_rs::query::ProgInfoIter::default().any(|it| it.id == reader);
    assert!(exists(), "it is looked for where it is");
    run(&lab, "right", "ip link delete right0");
    let end = Instant::now() + PATIENCE;
    let queue = &mut port.queues[0];
    let has_failed = |queue: &mut Queue| {
        let waited = queue.wait_rx(Wait::Sleep, Duration::from_millis(20));
        waited.is_err() || queue.sync_rx().is_err()
    };
    while !has_failed(queue) {
        assert!(Instant::now() < end, "the port reports that its interface is removed");
    }
    drop(port);
    // The kernel lets go of a program a moment after its last holder has.
    while exists() {
        assert!(Instant::now() < end, "program {reader} stays");
        std::thread::sleep(Duration::from_millis(10));
    }
}
