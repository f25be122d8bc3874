//! VALE switches: who gets which packets, and the requests of vale-ctl.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use nix::errno::Errno;
use nix::poll::PollFlags;
use sluicegate_netmap::abi::Request;
use sluicegate_netmap::abi::bodies::{
    PortHeader, PortInfo, Register, ValeAttach, ValeDetach, ValeList, ValeNewInterface,
    register_flags,
};
use sluicegate_netmap::engine::EngineOptions;

use crate::engine;
use crate::host::Host;
use crate::program::{CUR, Program, TAIL, all, frame, request};

#[test]
fn a_port_is_as_programs_expect() {
    let engine = engine();
    let port = Program::open(&engine, "vale0:one", all()).unwrap();
    assert_eq!(port.name(), "vale0:one");
    let fields = [16, 20, 24, 28, 32, 36, 40].map(|at| port.interface(at));
    assert_eq!(fields, [14, 1, 1, 1, 0, 1, 1], "version, flags, rings, buffers, host rings");
    let (tx, rx) = (port.tx(0).unwrap(), port.rx(0).unwrap());
    assert_eq!((tx.num_slots(), tx.available(), rx.available()), (1024, 1023, 0));
    assert!(port.tx(1).is_none(), "no ring of the host");
    let Register { tx_slots, rx_slots, tx_rings, rx_rings, .. } = port.answer;
    assert_eq!((tx_slots, rx_slots, tx_rings, rx_rings), (1024, 1024, 1, 1));
    assert_ne!(port.answer.mem_id, 1, "a region of its own");
}

#[test]
fn a_switch_learns_and_floods_what_it_does_not_know() {
    let engine = engine();
    let ports =
        ["vale1:a", "vale1:b", "vale1:c"].map(|it| Program::open(&engine, it, all()).unwrap());
    let other = Program::open(&engine, "vale2:a", all()).unwrap();
    let [a, b, c] = &ports;
    // Nobody has sent from address 2: all others get the packet.
    a.send(&[frame(2, 1, 0, 60)]);
    assert_eq!([b, c].map(|it| it.receive()), [[frame(2, 1, 0, 60)], [frame(2, 1, 0, 60)]]);
    // The answer goes to the port of address 1 alone.
    b.send(&[frame(1, 2, 1, 60)]);
    assert_eq!((a.receive().len(), c.receive().len()), (1, 0));
    a.send(&[frame(2, 1, 2, 60), frame(0xff, 1, 3, 1514), frame(2, 1, 4, 60)]);
    let expected = [frame(2, 1, 2, 60), frame(0xff, 1, 3, 1514), frame(2, 1, 4, 60)];
    assert_eq!(b.receive(), expected, "in order");
    assert_eq!(c.receive(), [frame(0xff, 1, 3, 1514)]);
    assert_eq!((a.receive().len(), other.receive().len()), (0, 0));
}

#[test]
fn an_invalid_slot_costs_a_packet_and_the_ring_goes_on() {
    let engine = engine();
    let [a, b] = ["vale4:a", "vale4:b"].map(|it| Program::open(&engine, it, all()).unwrap());
    let register = Register { flags: register_flags::MONITOR_TX, ..all() };
    let monitor = Program::open(&engine, "vale4:a", register).unwrap();
    for receiver in [&b, &monitor] {
        receiver.rx(0).unwrap().write_slot(1, (1, 0, 0));
    }
    a.send(&[0, 1, 2].map(|number| frame(0xff, 1, number, 60)));
    for receiver in [&b, &monitor] {
        let expected = [frame(0xff, 1, 0, 60), vec![], frame(0xff, 1, 2, 60)];
        assert_eq!(receiver.receive(), expected);
        assert_eq!(receiver.rx(0).unwrap().read_slot(1), (0, 0, 0));
    }
}

#[test]
fn an_invalid_slot_costs_the_whole_packet_of_several_slots() {
    let engine = engine();
    let [a, b] = ["vale13:a", "vale13:b"].map(|it| Program::open(&engine, it, all()).unwrap());
    let register = Register { flags: register_flags::MONITOR_TX, ..all() };
    let monitor = Program::open(&engine, "vale13:a", register).unwrap();
    for receiver in [&b, &monitor] {
        receiver.rx(0).unwrap().write_slot(2, (1, 0, 0));
    }
    a.tx(0).unwrap().put(&frame(0xff, 1, 0, 60), 0);
    for (number, flags) in [(1, 0x20), (2, 0x20), (3, 0x20), (4, 0)] {
        a.tx(0).unwrap().put(&frame(0xff, 1, number, 60), flags);
    }
    a.send(&[frame(0xff, 1, 5, 60)]);
    for receiver in [&b, &monitor] {
        receiver.file.rxsync().unwrap();
        let rx = receiver.rx(0).unwrap();
        let more = (0..rx.available()).filter(|&index| rx.read_slot(index).2 & 0x20 != 0);
        assert_eq!(more.count(), 0);
        let expected = [frame(0xff, 1, 0, 60), vec![], vec![], frame(0xff, 1, 5, 60)];
        assert_eq!(rx.take_all(), expected);
    }
}

#[test]
fn a_monitor_without_room_for_a_whole_packet_gets_none_of_its_slots() {
    let engine = engine();
    let small = Register { rx_slots: 8, ..all() };
    let a = Program::open(&engine, "vale14:a", small).unwrap();
    let register = Register { flags: register_flags::MONITOR_TX, ..all() };
    let monitor = Program::open(&engine, "vale14:a", register).unwrap();
    let room = monitor.rx(0).unwrap().num_slots() - 1;
    for number in 0..room - 1 {
        a.tx(0).unwrap().put(&frame(0xff, 1, number, 60), 0);
    }
    for flags in [0x20, 0] {
        a.tx(0).unwrap().put(&frame(0xff, 1, 100, 60), flags);
    }
    a.send(&[frame(0xff, 1, 101, 60)]);
    let mut expected: Vec<_> = (0..room - 1).map(|number| frame(0xff, 1, number, 60)).collect();
    expected.push(frame(0xff, 1, 101, 60));
    assert_eq!(monitor.receive(), expected);
}

#[test]
fn a_monitor_sees_a_packet_that_is_released_in_two_syncs_as_one() {
    let engine = engine();
    let [a, b] = ["vale15:a", "vale15:b"].map(|it| Program::open(&engine, it, all()).unwrap());
    let flags = register_flags::MONITOR_TX | register_flags::MONITOR_RX;
    let monitor = Program::open(&engine, "vale15:a", Register { flags, ..all() }).unwrap();
    let (first, second) = (frame(0xff, 1, 1, 2048), vec![7; 100]);
    let tx = a.tx(0).unwrap();
    tx.put(&first, 0x20);
    a.file.txsync().unwrap();
    // The slot is free again, and the program may write its buffer.
    tx.overwrite(0);
    assert_eq!(monitor.receive().len(), 0);
    // The monitor's ring has packets of both directions.
    b.send(&[frame(0xff, 2, 2, 60)]);
    a.file.rxsync().unwrap();
    a.send(&[second.clone(), frame(0xff, 1, 3, 60)]);
    monitor.file.rxsync().unwrap();
    let rx = monitor.rx(0).unwrap();
    let marks: Vec<_> = (0..rx.available()).map(|index| rx.read_slot(index).2).collect();
    assert_eq!(marks, [0, 0x60, 0x40, 0x40]);
    assert_eq!(rx.take_all(), [frame(0xff, 2, 2, 60), first, second, frame(0xff, 1, 3, 60)]);
}

#[test]
fn a_monitor_that_begins_within_a_packet_sees_the_next_one() {
    let engine = engine();
    let a = Program::open(&engine, "vale16:a", all()).unwrap();
    let monitor = Register { flags: register_flags::MONITOR_TX, ..all() };
    for (flags, expected) in [(0x20, 1), (0, 2)] {
        a.tx(0).unwrap().put(&frame(0xff, 1, 1, 60), flags);
        a.file.txsync().unwrap();
        let monitor = Program::open(&engine, "vale16:a", monitor).unwrap();
        let packets = [frame(0xff, 1, 2, 60), frame(0xff, 1, 3, 60)];
        a.send(&packets);
        assert_eq!(monitor.receive(), packets[2 - expected..]);
    }
}

#[test]
fn sending_never_waits_and_a_full_ring_drops() {
    let engine = engine();
    let [a, b] = ["vale3:a", "vale3:b"].map(|it| Program::open(&engine, it, all()).unwrap());
    let packets: Vec<_> = (0..3000).map(|i| frame(0xff, 1, i, 60)).collect();
    a.send(&packets);
    assert!(!a.tx(0).unwrap().is_pending());
    assert!(b.receive() == packets[..1023], "the first ones, as many as fit");
    assert_eq!(b.receive().len(), 0);
}

#[test]
fn a_sleeping_receiver_is_woken() {
    let engine = engine();
    let [a, b] = ["vale4:a", "vale4:b"].map(|it| Program::open(&engine, it, all()).unwrap());
    let (done, received) = channel();
    let receiver = std::thread::spawn(move || {
        for number in 0..200 {
            assert!(
                b.wait_for(5)
                    == (0..5).map(|i| frame(0xff, 1, number * 5 + i, 60)).collect::<Vec<_>>()
            );
            done.send(()).unwrap();
        }
    });
    for number in 0..200 {
        let portion: Vec<_> = (0..5).map(|i| frame(0xff, 1, number * 5 + i, 60)).collect();
        a.send(&portion);
        received.recv().unwrap();
    }
    receiver.join().unwrap();
}

#[test]
fn packets_of_several_slots_stay_together() {
    let engine = engine();
    let [a, b] = ["vale5:a", "vale5:b"].map(|it| Program::open(&engine, it, all()).unwrap());
    let tx = a.tx(0).unwrap();
    tx.put(&frame(0xff, 1, 7, 2048), 0x20);
    tx.put(&[5; 100], 0);
    a.file.txsync().unwrap();
    b.file.rxsync().unwrap();
    let rx = b.rx(0).unwrap();
    assert_eq!(rx.available(), 2);
    let slots = [0, 1].map(|i| (rx.read_slot(i).1, rx.read_slot(i).2));
    assert_eq!(slots, [(2048, 0x220), (100, 0x200)], "with the number of slots, as netmap has it");
}

#[test]
fn indirect_slots_are_dropped_and_logged_once() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let log = Some((|line: &str| LINES.lock().unwrap().push(line.into())) as fn(&str));
    let engine = Host::new(EngineOptions { log, ..EngineOptions::default() });
    let [a, b] = ["vale12:a", "vale12:b"].map(|it| Program::open(&engine, it, all()).unwrap());
    for number in 0..3 {
        a.tx(0).unwrap().put(&frame(0xff, 1, number, 60), 0x10);
        a.send(&[frame(0xff, 1, 10 + number, 60)]);
        assert_eq!(b.receive(), [frame(0xff, 1, 10 + number, 60)]);
    }
    let lines = LINES.lock().unwrap();
    assert!(lines.len() == 1 && lines[0].contains("NS_INDIRECT"), "{lines:?}");
}

#[test]
fn a_virtio_header_stays_between_ports_that_have_it_and_is_empty_elsewhere() {
    let engine = engine();
    let names = ["vale10:a", "vale10:b", "vale10:c"];
    let ports = names.map(|it| Program::open(&engine, it, all()).unwrap());
    let header = |name: &str, header_bytes| {
        let body = PortHeader { header_bytes, ..PortHeader::default() };
        request(&*ports[0].file, name, Request::PortHeaderSet(body)).map(|_| ())
    };
    assert_eq!([header(names[0], 12), header(names[1], 12)], [Ok(()), Ok(())]);
    assert_eq!(header(names[2], 11), Err(Errno::EINVAL));
    assert_eq!(header("vale10:none", 0), Err(Errno::ENXIO));
    let with_header = [vec![7; 12], frame(0xff, 1, 1, 60)].concat();
    ports[0].send(std::slice::from_ref(&with_header));
    assert_eq!(ports[1].receive(), [with_header]);
    assert_eq!(ports[2].receive(), [frame(0xff, 1, 1, 60)]);
    ports[2].send(&[frame(2, 3, 1, 60)]);
    assert_eq!(ports[0].receive(), [[vec![0; 12], frame(2, 3, 1, 60)].concat()]);
}

#[test]
fn requests_of_vale_ctl() {
    let engine = engine();
    let file = engine.open();
    let ask = |name, body| request(&*file, name, body);
    let error = |name, body| request(&*file, name, body).err();
    let new = || Request::ValeNewInterface(ValeNewInterface::default());
    let attach = || Request::ValeAttach(ValeAttach::default());
    let detach = || Request::ValeDetach(ValeDetach::default());
    let delete = || Request::ValeDeleteInterface;
    ask("v0", new()).unwrap();
    assert_eq!(error("v0", new()), Some(Errno::EEXIST));
    assert_eq!(error("lo", new()), Some(Errno::EEXIST));
    assert_eq!(error("vale0:none", attach()), Some(Errno::EINVAL));
    ask("vale0:v0", attach()).unwrap();
    assert_eq!(error("vale0:v0", attach()), Some(Errno::EBUSY));
    let other = Program::open(&engine, "vale0:p", all()).unwrap();
    let port = Program::open(&engine, "v0", all()).unwrap();
    assert_eq!(port.name(), "v0");
    other.send(&[frame(0xff, 1, 1, 60)]);
    assert_eq!(port.receive(), [frame(0xff, 1, 1, 60)]);
    let (mut found, mut list) = (Vec::new(), ValeList::default());
    while let Ok((name, Request::ValeList(next))) = ask("", Request::ValeList(list)) {
        found.push((name, next.bridge_index, next.port_index));
        list = ValeList { port_index: next.port_index + 1, ..next };
    }
    assert_eq!(found, [("vale0:v0".into(), 0, 0), ("vale0:p".into(), 0, 1)]);
    assert_eq!(error("vale0:v0", detach()), Some(Errno::EBUSY), "in use");
    drop(port);
    assert_eq!(error("v0", delete()), Some(Errno::EBUSY), "attached");
    ask("vale0:v0", detach()).unwrap();
    assert_eq!(error("vale0:v0", detach()), Some(Errno::ENXIO));
    ask("v0", delete()).unwrap();
    assert_eq!(error("v0", delete()), Some(Errno::ENXIO));
}

#[test]
fn a_persistent_port_joins_two_switches() {
    let engine = engine();
    let file = engine.open();
    let ask = |name, body| request(&*file, name, body).map(|_| ());
    let attach = || Request::ValeAttach(ValeAttach::default());
    let detach = || Request::ValeDetach(ValeDetach::default());
    ask("v0", Request::ValeNewInterface(ValeNewInterface::default())).unwrap();
    ask("vale0:v0", attach()).unwrap();
    ask("vale1:v0", attach()).unwrap();
    for name in ["vale0:v0", "vale1:v0", "vale2:v0"] {
        assert_eq!(ask(name, attach()), Err(Errno::EBUSY), "{name}");
    }
    for name in ["v0", "vale0:v0", "vale1:v0"] {
        assert_eq!(Program::open(&engine, name, all()).err(), Some(Errno::EBUSY), "{name}");
    }
    let [a, b] = ["vale0:a", "vale1:b"].map(|it| Program::open(&engine, it, all()).unwrap());
    let packets: Vec<_> = (0..50).map(|i| frame(0xff, 1, i, 60)).collect();
    a.send(&packets);
    assert_eq!(b.wait_for(50), packets);
    b.send(&[frame(1, 2, 0, 60)]);
    assert_eq!(a.wait_for(1), [frame(1, 2, 0, 60)]);
    assert_eq!(ask("vale0:v0", detach()), Err(Errno::EBUSY), "the second switch has it");
    for name in ["vale1:v0", "vale0:v0"] {
        assert_eq!(ask("v0", Request::ValeDeleteInterface), Err(Errno::EBUSY));
        ask(name, detach()).unwrap();
        assert_eq!(ask(name, detach()), Err(Errno::ENXIO), "{name}");
    }
    ask("v0", Request::ValeDeleteInterface).unwrap();
}

#[test]
fn an_interface_is_a_port_of_a_switch_only_if_it_is_attached() {
    let engine = engine();
    let (name, file) = ("vale11:lo", engine.open());
    let error = |body| request(&*file, name, body).err();
    assert_eq!(Program::open(&engine, name, all()).err(), Some(Errno::EINVAL));
    assert_eq!(error(Request::PortInfo(PortInfo::default())), Some(Errno::EINVAL));
    assert_eq!(error(Request::PortHeaderGet(PortHeader::default())), Some(Errno::EINVAL));
}

#[test]
fn poll_reports_what_netmap_reports() {
    let engine = engine();
    let no_tx_poll = Register { flags: register_flags::NO_TX_POLL, ..all() };
    let a = Program::open(&engine, "vale6:a", all()).unwrap();
    let b = Program::open(&engine, "vale6:b", no_tx_poll).unwrap();
    let both = PollFlags::POLLIN | PollFlags::POLLOUT;
    assert_eq!(a.file.poll(both), PollFlags::POLLOUT);
    a.tx(0).unwrap().put(&frame(0xff, 1, 0, 60), 0);
    assert_eq!(b.file.poll(PollFlags::POLLIN), PollFlags::empty(), "not sent yet");
    assert_eq!(a.file.poll(PollFlags::POLLIN), PollFlags::empty());
    assert_eq!(b.file.poll(both), both, "any poll sends");
    b.tx(0).unwrap().put(&frame(0xff, 2, 0, 60), 0);
    assert_eq!(b.file.poll(PollFlags::POLLIN), PollFlags::POLLIN, "still unseen");
    assert_eq!(a.file.poll(PollFlags::POLLIN), PollFlags::empty(), "except with NO_TX_POLL");
    // Room counts from cur on, not from head.
    let tx = a.tx(0).unwrap();
    tx.set(CUR, tx.get(TAIL));
    assert_eq!(a.file.poll(PollFlags::POLLOUT), PollFlags::empty());
}

#[test]
fn a_program_that_breaks_the_rules_gets_its_ring_reset_and_others_go_on() {
    let engine = engine();
    let [a, b] = ["vale7:a", "vale7:b"].map(|it| Program::open(&engine, it, all()).unwrap());
    let tx = a.tx(0).unwrap();
    tx.set(20, 5000);
    assert_eq!(a.file.poll(PollFlags::POLLIN), PollFlags::POLLERR);
    assert_eq!([20, 24, 28].map(|field| tx.get(field)), [0, 0, 1023]);
    // A buffer that does not exist: the slot becomes empty, and the sync ioctls return 0.
    tx.put(&frame(0xff, 1, 1, 60), 0);
    tx.put(&frame(0xff, 1, 2, 60), 0);
    tx.write_slot(1, (u32::MAX, 60, 0));
    a.file.txsync().unwrap();
    assert_eq!(tx.read_slot(1), (0, 0, 0));
    assert_eq!(b.receive(), [frame(0xff, 1, 1, 60)]);
    // The ring goes on after it.
    assert!(!tx.is_pending());
    for number in 3..2000 {
        // The slot without a buffer is the program's to skip.
        if tx.read_slot(tx.get(20)).0 == 0 {
            tx.give(1);
            a.file.txsync().unwrap();
        }
        tx.put(&frame(0xff, 1, number, 60), 0);
        assert_eq!(a.file.poll(PollFlags::POLLOUT), PollFlags::POLLOUT);
        a.file.txsync().unwrap();
        assert_eq!(b.receive(), [frame(0xff, 1, number, 60)]);
    }
    b.send(&[frame(0xff, 2, 1, 60)]);
    assert_eq!(a.receive(), [frame(0xff, 2, 1, 60)]);
}

#[test]
fn a_port_that_is_closed_gets_nothing_and_its_name_is_free() {
    let engine = engine();
    let a = Program::open(&engine, "vale8:a", all()).unwrap();
    for number in 0..20 {
        let b = Program::open(&engine, "vale8:b", all()).unwrap();
        b.send(&[frame(1, 2, 0, 60)]);
        a.send(&[frame(2, 1, number, 60)]);
        assert_eq!(b.receive(), [frame(2, 1, number, 60)]);
        drop(b);
        a.send(&[frame(2, 1, number, 60)]);
    }
    assert_eq!(a.receive().len(), 20);
    let wrong = Program::open(&engine, "vale8:", all()).err();
    assert_eq!(wrong, Some(Errno::EINVAL));
}
