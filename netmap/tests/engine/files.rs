//! Files: what netmap answers to requests that do not depend on the kind of port.

use nix::errno::Errno;
use nix::poll::PollFlags;
use sluicegate_netmap::abi::PortName;
use sluicegate_netmap::abi::bodies::{Register, modes, register_flags};

use crate::engine;
use crate::program::{Program, TIMEOUT, all, frame, sleep};

#[test]
fn a_file_without_a_port() {
    let file = engine().open();
    assert_eq!(file.txsync(), Err(Errno::ENXIO));
    assert_eq!(file.rxsync(), Err(Errno::ENXIO));
    assert_eq!(file.region().err(), Some(Errno::EINVAL));
    assert_eq!(file.poll(PollFlags::POLLIN), PollFlags::POLLERR);
}

#[test]
fn errors_of_register() {
    let engine = engine();
    let register = |name: &str, register| Program::open(&engine, name, register).err();
    for (name, body, expected) in [
        ("no-such-if0", all(), Errno::ENXIO),
        ("vale0:a", Register { mode: 0, ..all() }, Errno::EINVAL),
        ("vale0:a", Register { mode: 5, ..all() }, Errno::EINVAL),
        ("vale0:a", Register { mode: modes::SW, ..all() }, Errno::EINVAL),
        ("vale0:a", Register { mode: modes::ONE_NIC, ringid: 1, ..all() }, Errno::EINVAL),
        ("vale0:a", Register { mem_id: 99, ..all() }, Errno::EINVAL),
        ("vale0:a", Register { mode: modes::NULL, ..all() }, Errno::EINVAL),
        ("vale0:a", Register { flags: register_flags::MONITOR_RX, ..all() }, Errno::EINVAL),
    ] {
        assert_eq!(register(name, body), Some(expected), "{name} {body:?}");
    }
    let file = engine.open();
    let name = PortName::from("vale0:a");
    file.register(&name, &mut all()).unwrap();
    assert_eq!(file.register(&name, &mut all()), Err(Errno::EBUSY), "a file has one port");
}

#[test]
fn rings_have_several_users_or_one() {
    let engine = engine();
    let exclusive = Register { flags: register_flags::EXCLUSIVE, ..all() };
    let several = Register { tx_rings: 2, rx_rings: 2, ..all() };
    let first = Program::open(&engine, "vale0:a", several).unwrap();
    let second = Program::open(&engine, "vale0:a", all()).unwrap();
    assert_eq!(second.answer.tx_rings, 2, "the first user decides");
    assert_eq!(Program::open(&engine, "vale0:a", exclusive).err(), Some(Errno::EBUSY));
    // Both see the same ring.
    first.tx(1).unwrap().put(&[1; 60], 0);
    assert_eq!(second.tx(1).unwrap().get(20), 1);
    drop((first, second));
    let one = Register { mode: modes::ONE_NIC, ..exclusive };
    let first = Program::open(&engine, "vale0:a", Register { tx_rings: 2, rx_rings: 2, ..one });
    let first = first.unwrap();
    assert!(first.tx(1).is_none() && first.rx(0).is_some());
    assert_eq!(Program::open(&engine, "vale0:a", all()).err(), Some(Errno::EBUSY));
    let other = Register { ringid: 1, ..one };
    assert!(Program::open(&engine, "vale0:a", other).unwrap().tx(0).is_none());
}

#[test]
fn one_direction_and_extra_buffers() {
    let engine = engine();
    let receives = Register { flags: register_flags::RX_RINGS_ONLY, extra_bufs: 3, ..all() };
    let port = Program::open(&engine, "vale0:r", receives).unwrap();
    assert!(port.tx(0).is_none());
    let rx = port.rx(0).unwrap();
    assert_eq!(port.answer.extra_bufs, 3);
    let mut list = vec![port.interface(32)];
    while let next @ 1.. = port.word(rx.buffer(*list.last().unwrap())) {
        list.push(next);
    }
    assert_eq!(list.len(), 3);
    assert!((0..1024).all(|i| !list.contains(&rx.read_slot(i).0)), "they are in no slot");
    let many = Register { extra_bufs: u32::MAX, ..all() };
    let many = Program::open(&engine, "vale0:m", many).unwrap();
    assert!(many.answer.extra_bufs > 10_000, "as many as there are");
}

#[test]
fn a_region_serves_other_ports() {
    let engine = engine();
    let port = Program::open(&engine, "vale0:a", all()).unwrap();
    let mem_id = port.answer.mem_id;
    let other = Program::open(&engine, "vale0:b", Register { mem_id, ..all() }).unwrap();
    assert_eq!(other.answer.mem_id, mem_id);
    let null = Register { mode: modes::NULL, mem_id, extra_bufs: 2, ..Register::default() };
    let null = Program::open(&engine, "", null).unwrap();
    assert_eq!((null.answer.memsize, null.answer.extra_bufs), (port.answer.memsize, 2));
    let elsewhere = Program::open(&engine, "vale0:c", all()).unwrap();
    assert_ne!(elsewhere.answer.mem_id, mem_id);
    let wrong = Register { mem_id: elsewhere.answer.mem_id, ..all() };
    assert_eq!(Program::open(&engine, "vale0:a", wrong).err(), Some(Errno::EINVAL));
}

#[test]
fn monitors_see_copies() {
    let engine = engine();
    let [a, b] = ["vale0:a", "vale0:b"].map(|it| Program::open(&engine, it, all()).unwrap());
    let monitor = |name, flags| Program::open(&engine, name, Register { flags, ..all() }).unwrap();
    let of_sender = monitor("vale0:a", register_flags::MONITOR_TX);
    let of_receiver = monitor("vale0:b", register_flags::MONITOR_TX | register_flags::MONITOR_RX);
    let packets: Vec<_> = (0..2000).map(|i| frame(0xff, 1, i, 60)).collect();
    let mut seen = [vec![], vec![]];
    for portion in packets.chunks(500) {
        a.send(portion);
        assert!(b.receive() == portion);
        for (seen, monitor) in seen.iter_mut().zip([&of_sender, &of_receiver]) {
            seen.extend(monitor.receive());
        }
    }
    assert!(seen[0] == packets && seen[1] == packets);
    b.send(&[frame(0xff, 2, 9, 60)]);
    assert_eq!(of_receiver.receive(), [frame(0xff, 2, 9, 60)]);
    // A slow monitor loses packets, and the port does not wait.
    of_sender.file.rxsync().unwrap();
    a.send(&packets);
    assert!(of_sender.receive() == packets[..1023]);
    drop((of_sender, of_receiver));
    a.send(&packets[..1]);
}

#[test]
fn a_monitor_sees_what_its_port_has_not_received_yet() {
    let engine = engine();
    for names in [["vale0:a", "vale0:b"], ["p{1", "p}1"]] {
        let [a, b] = names.map(|it| Program::open(&engine, it, all()).unwrap());
        let flags = register_flags::MONITOR_RX;
        let monitor = Program::open(&engine, names[1], Register { flags, ..all() }).unwrap();
        let packets: Vec<_> = (0..5).map(|i| frame(0xff, 1, i, 60)).collect();
        a.send(&packets[..3]);
        assert_eq!(monitor.receive(), packets[..3], "{names:?}");
        a.send(&packets[3..]);
        assert_eq!(b.receive(), packets, "{names:?}");
        assert_eq!(monitor.receive(), packets[3..], "{names:?}: each once");
    }
}

#[test]
fn a_monitor_of_a_pipe_is_woken_before_its_port_syncs() {
    let engine = engine();
    let [a, _b] = ["p{2", "p}2"].map(|it| Program::open(&engine, it, all()).unwrap());
    let flags = register_flags::MONITOR_RX;
    let monitor = Program::open(&engine, "p}2", Register { flags, ..all() }).unwrap();
    let sources = monitor.file.wait(PollFlags::POLLIN);
    a.send(&[frame(0xff, 1, 0, 60)]);
    assert!(sleep(&sources, TIMEOUT));
    assert_eq!(monitor.file.poll(PollFlags::POLLIN), PollFlags::POLLIN);
}

#[test]
fn a_zero_copy_monitor_sees_both_directions_after_the_program_is_done_with_a_packet() {
    let engine = engine();
    let zero_copy = Register { flags: register_flags::ZCOPY_MON, ..all() };
    for names in [["vale0:a", "vale0:b"], ["p{3", "p}3"]] {
        let [a, b] = names.map(|it| Program::open(&engine, it, all()).unwrap());
        let [of_sender, of_receiver] =
            names.map(|it| Program::open(&engine, it, zero_copy).unwrap());
        let both = register_flags::MONITOR_TX | register_flags::MONITOR_RX;
        assert_eq!(of_sender.answer.flags, register_flags::ZCOPY_MON | both);
        assert!(of_sender.tx(0).is_none(), "it only receives");
        let packets: Vec<_> = (0..5).map(|i| frame(0xff, 1, i, 60)).collect();
        a.send(&packets[..3]);
        a.tx(0).unwrap().put(&packets[3], 0x20);
        a.send(&packets[4..]);
        // A switch copies at once; the other end of a pipe gives slots back.
        let sent = if names[0].starts_with("vale") { &packets[..] } else { &[] };
        assert_eq!(of_sender.receive(), sent, "{names:?}");
        b.file.rxsync().unwrap();
        assert_eq!(of_receiver.receive().len(), 0, "{names:?}: not released");
        let rx = b.rx(0).unwrap();
        assert_eq!(rx.available(), 5);
        for (released, expected) in [(2, &packets[..2]), (2, &packets[2..3]), (1, &packets[3..])] {
            rx.give(released);
            b.file.rxsync().unwrap();
            assert_eq!(of_receiver.receive(), expected, "{names:?}");
        }
        a.file.txsync().unwrap();
        let freed = if sent.is_empty() { &packets[..] } else { &[] };
        assert_eq!(of_sender.receive(), freed, "{names:?}");
    }
}
