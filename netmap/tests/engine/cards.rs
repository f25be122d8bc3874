//! Cards, over the interfaces of a lab: the program is on `right0`, and the other side on `left0`.

use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{setsockopt, sockopt};
use sluicegate::link::{Lab, Shape, netns};
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::{Meta, Packet};
use sluicegate_netmap::abi::Request;
use sluicegate_netmap::abi::bodies::{
    PortInfo, Register, ValeAttach, ValeDetach, modes, register_flags,
};
use sluicegate_netmap::engine::{Backend, EngineOptions};

use crate::host::Host;
use crate::hostile::{Random, scribble, seeds};
use crate::program::{FLAGS, HEAD, Program, all, frame, request};
use crate::scratch::lab_of;

/// The time that a test waits for expected packets.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub fn engine(lab: &Lab, options: EngineOptions) -> Host {
    let log = Some((|line: &str| println!("{line}")) as fn(&str));
    Host::new(EngineOptions { netns: Some(lab.netns("right")), log, ..options })
}

/// Opens the other side. It sees only the tests' frames.
pub fn left(lab: &Lab) -> Queue {
    let name = "packet:left0?filter=ether proto 0x88b5&tx_copies=off&buffer=8M&method=recvmmsg";
    let netns = Some(lab.netns("left"));
    let options = OpenOptions { usage: Directions::Both, netns, ..OpenOptions::default() };
    Port::open(&name.parse().unwrap(), &options).unwrap().queues.remove(0)
}

pub fn send(queue: &mut Queue, packets: &[Vec<u8>]) {
    for bytes in packets {
        while !queue.tx_mut().push(&Packet::new(&Meta::default(), bytes)) {
            queue.sync_tx().unwrap();
        }
    }
    while queue.needs_sync_tx() {
        queue.sync_tx().unwrap();
    }
}

fn receive(queue: &mut Queue, packets: usize) -> Vec<Vec<u8>> {
    let (mut received, end) = (Vec::new(), Instant::now() + TIMEOUT);
    while received.len() < packets && Instant::now() < end {
        let batch = queue.receive(Duration::from_millis(100)).unwrap();
        received.extend(batch.packets().map(|packet| packet.head().to_vec()));
    }
    received
}

/// Runs pings from left to right, and waits some seconds for each answer. Returns true if all came.
fn ping(lab: &Lab, count: u32, seconds: u32) -> bool {
    let mut ping = Command::new("ping");
    ping.args(["-q", "-i", "0.01", "-W", &seconds.to_string()]);
    ping.args(["-c", &count.to_string(), "198.18.0.2"]);
    let child = lab.spawn("left", ping.stdout(Stdio::null())).unwrap();
    crate::child::end(child).status.success()
}

#[test]
fn packets_go_both_ways_with_each_backend_and_the_host_gets_none() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let packets: Vec<_> = (0..3000).map(|i| frame(2, 1, i, 60 + i as usize % 1400)).collect();
    for backend in [None, Some(Backend::Live), Some(Backend::Xdp), Some(Backend::Packet)] {
        let engine = engine(&lab, EngineOptions { backend, ..EngineOptions::default() });
        let program = Program::open(&engine, "right0", all()).unwrap();
        assert_eq!((program.name().as_str(), program.answer.mem_id), ("right0", 1));
        let mut left = left(&lab);
        for portion in packets.chunks(500) {
            send(&mut left, portion);
            assert!(program.wait_for_tests(500) == portion, "{backend:?}");
        }
        for portion in packets.chunks(500) {
            program.send(portion);
            assert!(receive(&mut left, portion.len()) == portion, "{backend:?}");
        }
        program.file.txsync().unwrap();
        assert!(!program.tx(0).unwrap().is_pending(), "{backend:?}");
        if backend != Some(Backend::Packet) {
            assert!(!ping(&lab, 1, 1), "{backend:?}: the host got a packet");
        }
        drop(program);
        assert!(ping(&lab, 1, 30), "{backend:?}: the host gets packets again");
    }
}

#[test]
fn by_default_live_frames_send_only_where_each_ring_has_cpus_and_it_is_said_once() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let log = Some((|line: &str| LINES.lock().unwrap().push(line.into())) as fn(&str));
    for (cpus, many) in [(1, false), (5, false), (6, true), (64, true)] {
        let (netns, cpus) = (Some(lab.netns("right")), Some(cpus));
        let engine = Host::new(EngineOptions { netns, log, cpus, ..EngineOptions::default() });
        let rings = [0, 1].map(|ringid| {
            let one = Register { mode: modes::ONE_NIC, ringid, ..Register::default() };
            Program::open(&engine, "right0", one).unwrap()
        });
        // The threads of a server are not the program's.
        let has_threads = many && !Host::IS_SHARED;
        assert!(rings.iter().all(|it| it.file.has_threads() == has_threads), "{cpus:?}");
        let lines = std::mem::take(&mut *LINES.lock().unwrap());
        let said = lines.iter().filter(|line| line.contains("in place of live frames")).count();
        assert_eq!(said, usize::from(!many), "{cpus:?}: {lines:?}");
    }
}

#[test]
fn by_default_packet_sockets_send_where_a_stranger_has_the_queues_socket() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let options = OpenOptions {
        usage: Directions::Send,
        netns: Some(lab.netns("right")),
        ..OpenOptions::default()
    };
    let _stranger = Port::open(&"xdp:right0".parse().unwrap(), &options).unwrap();
    // Too few for live frames.
    let engine = engine(&lab, EngineOptions { cpus: Some(1), ..EngineOptions::default() });
    let only = |flags| Program::open(&engine, "right0", Register { flags, ..all() }).unwrap();
    let sender = only(register_flags::TX_RINGS_ONLY);
    let receiver = only(register_flags::RX_RINGS_ONLY);
    let mut left = left(&lab);
    send(&mut left, &[frame(2, 1, 0, 60)]);
    assert_eq!(receiver.wait_for_tests(1), [frame(2, 1, 0, 60)]);
    sender.send(&[frame(1, 2, 0, 60)]);
    assert_eq!(receive(&mut left, 1), [frame(1, 2, 0, 60)]);
}

#[test]
fn the_fallback_from_sockets_ends_with_its_rings_and_names_no_sender_without_one() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let open_stranger = || {
        let (usage, netns) = (Directions::Send, Some(lab.netns("right")));
        let options = OpenOptions { usage, netns, ..OpenOptions::default() };
        Port::open(&"xdp:right0/0".parse().unwrap(), &options)
    };
    let stranger = open_stranger().unwrap();
    let log = Some((|line: &str| LINES.lock().unwrap().push(line.into())) as fn(&str));
    let netns = Some(lab.netns("right"));
    let cpus = Some(1);
    let engine = Host::new(EngineOptions { netns, log, cpus, ..EngineOptions::default() });
    let open =
        |mode, flags| Program::open(&engine, "right0", Register { mode, flags, ..all() }).unwrap();
    let _keeps_the_card = open(modes::SW, 0);
    let receiver = open(modes::ONE_NIC, register_flags::RX_RINGS_ONLY);
    let lines = std::mem::take(&mut *LINES.lock().unwrap());
    let has = |text: &str| lines.iter().any(|line| line.contains(text));
    assert!(has("receiving without AF_XDP") && !has("sending by packet"), "{lines:?}");
    drop((receiver, stranger));
    let end = Instant::now() + TIMEOUT;
    let _program = loop {
        let program = open(modes::ONE_NIC, 0);
        let lines = std::mem::take(&mut *LINES.lock().unwrap());
        // The kernel frees a closed socket's queue later.
        if lines.iter().all(|line| !line.contains("sending by packet")) {
            break program;
        }
        assert!(Instant::now() < end, "{lines:?}");
    };
    assert!(open_stranger().is_err(), "the program has the queue's socket");
}

#[test]
fn queues_of_another_program_are_busy() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let log = Some((|line: &str| LINES.lock().unwrap().push(line.into())) as fn(&str));
    for backend in [None, Some(Backend::Live), Some(Backend::Xdp)] {
        // Too few for live frames.
        let netns = Some(lab.netns("right"));
        let options = EngineOptions { backend, netns, log, cpus: Some(1), ..Default::default() };
        let [first, second] = [options.clone(), options].map(Host::new);
        for mode in [modes::ALL_NIC, modes::SW] {
            let register = Register { mode, ..all() };
            let _program = Program::open(&first, "right0", register).unwrap();
            LINES.lock().unwrap().clear();
            let refused = Program::open(&second, "right0", register).err();
            let lines = std::mem::take(&mut *LINES.lock().unwrap());
            assert_eq!(refused, Some(Errno::EBUSY), "{backend:?}, mode {mode}: {lines:#?}");
            assert!(lines.iter().any(|line| line.contains("right0")), "{backend:?}: {lines:#?}");
        }
    }
}

#[test]
fn an_invalid_filter_is_no_reason_for_packet_sockets() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let log = Some((|line: &str| LINES.lock().unwrap().push(line.into())) as fn(&str));
    let (netns, filter) = (Some(lab.netns("right")), Some("udp prot 9".into()));
    let engine = Host::new(EngineOptions { netns, log, filter, ..EngineOptions::default() });
    assert!(Program::open(&engine, "right0", all()).is_err());
    let lines = LINES.lock().unwrap();
    let failed = lines.iter().filter(|line| line.contains("udp prot 9")).count();
    assert!(failed == 1 && lines.iter().all(|line| !line.contains("packet sockets")), "{lines:?}");
}

#[test]
fn what_does_not_match_the_filter_stays_with_the_host() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let filter = Some("ether proto 0x88b5".into());
    let engine = engine(&lab, EngineOptions { filter, ..EngineOptions::default() });
    let program = Program::open(&engine, "right0", all()).unwrap();
    assert!(ping(&lab, 20, 30));
    send(&mut left(&lab), &[frame(2, 1, 0, 60)]);
    assert_eq!(program.wait_for(1), [frame(2, 1, 0, 60)], "and no other");
}

#[test]
fn the_interface_of_the_default_route_needs_a_filter_or_an_allowance() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let mut route = Command::new("ip");
    route.args(["route", "add", "default", "via", "198.18.0.1"]);
    assert!(crate::child::end(lab.spawn("right", &mut route).unwrap()).status.success());
    let open = |options: EngineOptions, register| {
        Program::open(&engine(&lab, options), "right0", register).map(|_| ())
    };
    let (filter, allow) = (Some("udp port 9".into()), vec!["right0".into()]);
    let default = EngineOptions::default;
    assert_eq!(open(default(), all()), Err(Errno::EPERM));
    assert_eq!(open(EngineOptions { filter, ..default() }, all()), Ok(()));
    assert_eq!(open(EngineOptions { allow, ..default() }, all()), Ok(()));
    let host = Register { mode: modes::SW, ..all() };
    assert_eq!(open(default(), host), Ok(()), "host rings take nothing from the wire");
}

#[test]
fn each_ring_has_a_queue_and_files_share_or_divide_them() {
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let engine = engine(&lab, EngineOptions::default());
    let one = |ringid, flags| {
        let register = Register { mode: modes::ONE_NIC, ringid, flags, ..Register::default() };
        Program::open(&engine, "right0", register)
    };
    let first = one(0, register_flags::EXCLUSIVE).unwrap();
    assert_eq!((first.answer.tx_rings, first.answer.rx_rings), (2, 2));
    assert!(first.rx(0).is_some() && first.rx(1).is_none() && first.rx(2).is_none());
    assert_eq!(one(0, 0).err(), Some(Errno::EBUSY));
    assert_eq!(Program::open(&engine, "right0", all()).err(), Some(Errno::EBUSY));
    let second = one(1, 0).unwrap();
    assert_eq!(second.answer.mem_id, first.answer.mem_id);
    assert_eq!(one(1, register_flags::EXCLUSIVE).err(), Some(Errno::EBUSY));
    // Flows spread over both queues.
    let packets: Vec<_> = (0..200).map(udp).collect();
    send(&mut left(&lab), &packets);
    let (mut received, end) = ([0, 0], Instant::now() + TIMEOUT);
    while received[0] + received[1] < packets.len() && Instant::now() < end {
        for (number, program) in [&first, &second].into_iter().enumerate() {
            program.file.rxsync().unwrap();
            let all = program.rx(number as u32).unwrap().take_all();
            received[number] += all.iter().filter(|packet| packets.contains(packet)).count();
        }
    }
    assert_eq!(received[0] + received[1], packets.len());
    assert!(received[0] > 0 && received[1] > 0, "{received:?}");
}

/// Makes a UDP packet to port 9, of one of many flows.
fn udp(flow: u16) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [0xff; 6])
        .ipv4([198, 18, 0, 1], [198, 18, 0, 255], 64)
        .udp(20_000 + flow, 9);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[0; 60]).unwrap();
    frame
}

#[test]
fn packet_sockets_keep_packets_that_are_longer_than_the_mtu() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let options = EngineOptions { backend: Some(Backend::Packet), ..EngineOptions::default() };
    let mut offload = Command::new("ethtool");
    offload.args(["-K", "left0", "tx", "on", "gso", "on", "tx-udp-segmentation", "on"]);
    let offload = lab.spawn("left", offload.stdout(Stdio::null())).unwrap();
    assert!(crate::child::end(offload).status.success());
    let program = Program::open(&engine(&lab, options), "right0", all()).unwrap();
    let payload: Vec<u8> = (0..14_000).map(|i| (i % 251) as u8).collect();
    // The interface passes on whole what a card would cut into segments of 1000 bytes, and GRO merge again.
    let send = || {
        let socket = UdpSocket::bind("198.18.0.1:0").unwrap();
        setsockopt(&socket, sockopt::UdpGsoSegment, &1000).unwrap();
        assert_eq!(socket.send_to(&payload, "198.18.0.2:9").unwrap(), payload.len());
        Ok(())
    };
    netns::run_in(Some(&lab.netns("left")), send).unwrap();
    let (rx, mut packet) = (program.rx(0).unwrap(), Vec::new());
    loop {
        assert_eq!(program.poll(PollFlags::POLLIN), PollFlags::POLLIN);
        let index = rx.get(HEAD);
        packet.extend(rx.bytes(index));
        let more = rx.read_slot(index).2 & 0x20 != 0;
        rx.give(1);
        if more {
            continue;
        }
        // Ethernet, IPv4 and UDP have 42 bytes; others are the kernels' own.
        if packet.ends_with(&payload) {
            assert_eq!(packet.len(), 42 + payload.len());
            return;
        }
        packet.clear();
    }
}

#[test]
fn several_files_use_one_ring() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let engine = engine(&lab, EngineOptions::default());
    let only = |flags| Program::open(&engine, "right0", Register { flags, ..all() }).unwrap();
    let receiver = only(register_flags::RX_RINGS_ONLY);
    let sender = only(register_flags::TX_RINGS_ONLY);
    let both = only(0);
    let mut left = left(&lab);
    send(&mut left, &[frame(2, 1, 7, 60)]);
    assert_eq!(receiver.wait_for_tests(1), [frame(2, 1, 7, 60)]);
    assert_eq!(both.rx(0).unwrap().get(20), receiver.rx(0).unwrap().get(20), "one ring");
    drop(receiver);
    send(&mut left, &[frame(2, 1, 8, 60)]);
    assert_eq!(both.wait_for_tests(1), [frame(2, 1, 8, 60)], "it goes on");
    sender.send(&[frame(1, 2, 1, 60)]);
    both.send(&[frame(1, 2, 2, 60)]);
    assert_eq!(receive(&mut left, 2), [frame(1, 2, 1, 60), frame(1, 2, 2, 60)]);
}

#[test]
fn a_sleeper_is_woken_by_a_packet() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    for backend in [None, Some(Backend::Xdp), Some(Backend::Packet)] {
        let engine = engine(&lab, EngineOptions { backend, ..EngineOptions::default() });
        let program = Program::open(&engine, "right0", all()).unwrap();
        let mut left = left(&lab);
        let receiver = std::thread::spawn(move || program.wait_for_tests(50));
        let packets: Vec<_> = (0..50).map(|i| frame(2, 1, i, 60)).collect();
        for packet in &packets {
            send(&mut left, std::slice::from_ref(packet));
            // Long enough for the receiver to fall asleep.
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(receiver.join().unwrap() == packets, "{backend:?}");
    }
}

#[test]
fn a_program_between_host_and_card_passes_the_hosts_traffic() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    without_offload(&lab);
    for forward in [false, true] {
        let engine = engine(&lab, EngineOptions::default());
        let register = Register { mode: modes::NIC_SW, ..all() };
        let program = Program::open(&engine, "right0", register).unwrap();
        assert_eq!((program.interface(36), program.interface(40)), (1, 1));
        let pings = std::thread::spawn({
            let lab = lab.netns("left");
            move || {
                let mut ping = Command::new("ip");
                ping.args(["netns", "exec", &lab, "ping", "-q", "-i", "0.02", "-W", "30"]);
                ping.args(["-c", "20", "198.18.0.2"]).stdout(Stdio::null());
                ping.status().unwrap().success()
            }
        });
        let end = Instant::now() + TIMEOUT;
        while !pings.is_finished() && Instant::now() < end {
            for (from, to) in [(0, 1), (1, 0)] {
                let (rx, tx) = (program.rx(from).unwrap(), program.tx(to).unwrap());
                if forward {
                    // The engine passes what the program has marked.
                    rx.set(FLAGS, 4);
                    for _ in 0..rx.available() {
                        let (buffer, len, flags) = rx.read_slot(rx.get(20));
                        rx.write_slot(rx.get(20), (buffer, len, flags | 4));
                        rx.give(1);
                    }
                } else {
                    rx.take_all().iter().for_each(|packet| tx.put(packet, 0));
                }
            }
            program.file.poll(PollFlags::POLLIN | PollFlags::POLLOUT);
            program.file.rxsync().unwrap();
        }
        assert!(pings.join().unwrap(), "forward: {forward}");
    }
}

#[test]
fn a_card_and_its_host_are_attached_to_a_switch() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    without_offload(&lab);
    let engine = engine(&lab, EngineOptions::default());
    let file = engine.open();
    let attach = |mode| {
        let register = Register { mode, ..Register::default() };
        let body = ValeAttach { register, ..ValeAttach::default() };
        request(&*file, "vale0:right0", Request::ValeAttach(body)).map(|_| ())
    };
    let detach = || {
        let body = ValeDetach::default();
        request(&*file, "vale0:right0", Request::ValeDetach(body)).map(|_| ())
    };
    let program = Program::open(&engine, "vale0:p", all()).unwrap();
    assert_eq!(detach(), Err(Errno::ENXIO));
    attach(modes::ALL_NIC).unwrap();
    assert_eq!(attach(modes::ALL_NIC), Err(Errno::EBUSY));
    assert_eq!(Program::open(&engine, "right0", all()).err(), Some(Errno::EBUSY));
    let mut left = left(&lab);
    for number in 0..50 {
        send(&mut left, &[frame(2, 1, number, 60)]);
        assert_eq!(program.wait_for_tests(1), [frame(2, 1, number, 60)]);
        program.send(&[frame(1, 2, number, 60)]);
        assert_eq!(receive(&mut left, 1), [frame(1, 2, number, 60)]);
    }
    assert!(!ping(&lab, 1, 1), "the host is not attached");
    detach().unwrap();
    assert!(ping(&lab, 1, 30), "the host has its packets again");
    attach(modes::NIC_SW).unwrap();
    assert!(ping(&lab, 10, 30), "the host is a port of the switch");
    detach().unwrap();
    assert!(Program::open(&engine, "right0", all()).is_ok());
}

/// Makes `left0` send packets with their checksums.
fn without_offload(lab: &Lab) {
    let mut offload = Command::new("ethtool");
    offload.args(["-K", "left0", "tx", "off"]).stdout(Stdio::null());
    assert!(crate::child::end(lab.spawn("left", &mut offload).unwrap()).status.success());
}

#[test]
fn a_program_that_scribbles_harms_neither_the_engine_nor_the_card() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let mut left = left(&lab);
    for backend in [Backend::Live, Backend::Xdp, Backend::Packet] {
        let options = EngineOptions { backend: Some(backend), log: None, ..Default::default() };
        let engine = Host::new(EngineOptions { netns: Some(lab.netns("right")), ..options });
        for seed in 1..=seeds(5) {
            let program =
                Program::open(&engine, "right0", Register { mode: modes::NIC_SW, ..all() });
            let program = program.unwrap();
            let (rings, mut random) = (program.ring_area(), Random(seed));
            for number in 0..100 {
                send(&mut left, &[frame(2, 1, number, 60)]);
                scribble(&program, &rings, &mut random);
                program.file.txsync().unwrap();
                program.file.rxsync().unwrap();
                program.file.poll(PollFlags::POLLIN | PollFlags::POLLOUT);
            }
        }
        // Frames of the bad program may still arrive; none of them is the test's.
        let program = Program::open(&engine, "right0", all()).unwrap();
        send(&mut left, &[frame(2, 1, 1000, 60)]);
        while program.wait_for_tests(1) != [frame(2, 1, 1000, 60)] {}
    }
}

#[test]
fn a_removed_interface_is_an_error_that_is_logged_once_per_ring() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let log = Some((|line: &str| LINES.lock().unwrap().push(line.into())) as fn(&str));
    for backend in [Backend::Live, Backend::Xdp] {
        let Some(lab) = lab_of(Shape::Pair, 1) else { return };
        let (backend, netns) = (Some(backend), Some(lab.netns("right")));
        let engine = Host::new(EngineOptions { backend, netns, log, ..Default::default() });
        let program = Program::open(&engine, "right0", all()).unwrap();
        let mut remove = Command::new("ip");
        remove.args(["link", "del", "right0"]);
        assert!(crate::child::end(lab.spawn("right", &mut remove).unwrap()).status.success());
        let end = Instant::now() + TIMEOUT;
        let mut failures = 0;
        while failures < 10 && Instant::now() < end {
            let ready = program.poll(PollFlags::POLLIN);
            failures += u32::from(ready.contains(PollFlags::POLLERR));
            // Packets that came before.
            program.rx(0).unwrap().take_all();
        }
        assert_eq!(failures, 10, "{backend:?}");
        drop(program);
        let lines = std::mem::take(&mut *LINES.lock().unwrap());
        let failed = lines.iter().filter(|line| line.contains("a sync failed")).count();
        assert_eq!(failed, 1, "{backend:?}: {lines:?}");
        assert_eq!(Program::open(&engine, "right0", all()).err(), Some(Errno::ENXIO));
    }
}

#[test]
fn an_invalid_slot_costs_the_whole_packet_of_several_slots_and_no_other() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    for backend in [Backend::Xdp, Backend::Packet, Backend::Live] {
        let engine = engine(&lab, EngineOptions { backend: Some(backend), ..Default::default() });
        let program = Program::open(&engine, "right0", all()).unwrap();
        let mut left = left(&lab);
        let tx = program.tx(0).unwrap();
        let halves = |number| {
            let whole = frame(1, 2, number, 100);
            (whole[..60].to_vec(), whole[60..].to_vec())
        };
        for number in 0..3 {
            let (first, second) = halves(number);
            tx.put(&first, 0x20);
            let at = tx.get(HEAD);
            tx.put(&second, 0);
            if number == 1 {
                let (_, len, flags) = tx.read_slot(at);
                tx.write_slot(at, (0xffff_ffff, len, flags));
            }
        }
        while tx.is_pending() {
            program.file.txsync().unwrap();
        }
        // A packet whose slots are released in several syncs, the second one invalid.
        for (slot, flags) in [(0, 0x20), (1, 0x20), (2, 0)] {
            let at = tx.get(HEAD);
            tx.put(&frame(1, 2, 5, 60), flags);
            if slot == 1 {
                tx.write_slot(at, (0xffff_ffff, 60, flags));
            }
            program.file.txsync().unwrap();
        }
        while tx.is_pending() {
            program.file.txsync().unwrap();
        }
        program.send(&[frame(1, 2, 9, 60)]);
        let expected = [frame(1, 2, 0, 100), frame(1, 2, 2, 100), frame(1, 2, 9, 60)];
        assert_eq!(receive(&mut left, 3), expected, "{backend:?}");
    }
}

#[test]
fn a_receive_ring_goes_on_after_invalid_slots_which_the_program_gets_empty() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let mut left = left(&lab);
    for backend in [Backend::Live, Backend::Xdp, Backend::Packet] {
        let filter = Some("ether proto 0x88b5".into());
        let options = EngineOptions { backend: Some(backend), filter, ..Default::default() };
        let program = Program::open(&engine(&lab, options), "right0", all()).unwrap();
        let rx = program.rx(0).unwrap();
        let before = [0, 2].map(|index| rx.read_slot(index));
        rx.write_slot(0, (1, 0, 0));
        rx.write_slot(2, (u32::MAX, 0, 0));
        // More than the ring has slots.
        let packets: Vec<_> = (0..1500).map(|number| frame(2, 1, number, 60)).collect();
        let (mut received, mut errors, mut empty) = (Vec::new(), 0, Vec::new());
        for portion in packets.chunks(500) {
            send(&mut left, portion);
            let end = received.len() + portion.len();
            while received.len() < end {
                errors += u32::from(program.poll(PollFlags::POLLIN).contains(PollFlags::POLLERR));
                assert!(errors <= 2, "{backend:?}: the ring stops");
                for _ in 0..rx.available() {
                    let index = rx.get(HEAD);
                    match rx.read_slot(index) {
                        (0, 0, _) => {
                            empty.push(index);
                            rx.write_slot(index, before[index as usize / 2]);
                        }
                        _ => received.push(rx.bytes(index)),
                    }
                    rx.give(1);
                }
            }
        }
        assert_eq!((errors, empty), (2, vec![0, 2]), "{backend:?}");
        assert!(received == packets, "{backend:?}: none is lost");
    }
}

#[test]
fn facts_about_a_card() {
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let backend = Some(Backend::Live);
    let engine = engine(&lab, EngineOptions { backend, ..EngineOptions::default() });
    let file = engine.open();
    let info = |name| match request(&*file, name, Request::PortInfo(PortInfo::default()))? {
        (_, Request::PortInfo(info)) => Ok(info),
        other => panic!("{other:?}"),
    };
    let card = info("right0").unwrap();
    let PortInfo { tx_rings, rx_rings, host_tx_rings, host_rx_rings, mem_id, .. } = card;
    assert_eq!((tx_rings, rx_rings, host_tx_rings, host_rx_rings, mem_id), (2, 2, 1, 1, 1));
    assert!(card.memsize < 1 << 32, "the legacy API has 32 bits");
    let region = PortInfo { memsize: card.memsize, mem_id: 1, ..PortInfo::default() };
    assert_eq!(info(""), Ok(region));
    assert_eq!(info("none0"), Err(Errno::ENXIO));
    let mut channels = Command::new("ethtool");
    channels.args(["-L", "right0", "rx", "1", "tx", "2"]);
    assert!(crate::child::end(lab.spawn("right", &mut channels).unwrap()).status.success());
    let card = info("right0").unwrap();
    assert_eq!((card.tx_rings, card.rx_rings), (2, 1), "only queues in use have rings");
}
