//! Pipes: whole slots pass from end to end.

use nix::errno::Errno;
use nix::poll::PollFlags;
use sluicegate_netmap::abi::Request;
use sluicegate_netmap::abi::bodies::{
    Register, ValeAttach, ValeNewInterface, modes, register_flags,
};

use crate::engine;
use crate::program::{Program, TIMEOUT, all, frame, request, sleep};

#[test]
fn slots_pass_with_buffer_and_pointer_and_come_back() {
    let engine = engine();
    let [one, other] = ["p{1", "p}1"].map(|it| Program::open(&engine, it, all()).unwrap());
    assert_eq!(one.answer.mem_id, other.answer.mem_id, "ends share their region");
    assert_eq!(one.answer.memsize, other.answer.memsize);
    let (tx, rx) = (one.tx(0).unwrap(), other.rx(0).unwrap());
    let (buffer, ..) = tx.read_slot(0);
    tx.set_ptr(0, 77);
    tx.put(&frame(1, 2, 3, 60), 0);
    one.file.txsync().unwrap();
    other.file.rxsync().unwrap();
    assert_eq!((rx.read_slot(0), rx.ptr(0)), ((buffer, 60, 0), 77));
    assert_eq!(rx.bytes(0), frame(1, 2, 3, 60));
    // The receiver exchanges the buffer: the sender gets the other one.
    let spare = other.tx(0).unwrap().read_slot(5).0;
    other.tx(0).unwrap().write_slot(5, (buffer, 0, 1));
    rx.write_slot(0, (spare, 60, 1));
    rx.give(1);
    other.file.rxsync().unwrap();
    one.file.txsync().unwrap();
    assert_eq!(tx.read_slot(0), (spare, 60, 1));
    assert!(!tx.is_pending());
}

#[test]
fn a_pipe_that_nobody_reads_holds_a_ring_full_and_then_the_sender_waits() {
    let engine = engine();
    let one = Program::open(&engine, "p{2", Register { tx_slots: 16, ..all() }).unwrap();
    let packets: Vec<_> = (0..20).map(|i| frame(1, 2, i, 60)).collect();
    one.send(&packets[..15]);
    assert_eq!(one.file.poll(PollFlags::POLLOUT), PollFlags::empty());
    let other = Program::open(&engine, "p}2", all()).unwrap();
    assert_eq!(other.answer.rx_slots, 16, "the first end decides");
    assert_eq!(other.receive(), packets[..15]);
    other.file.rxsync().unwrap();
    assert_eq!(one.poll(PollFlags::POLLOUT), PollFlags::POLLOUT);
    one.send(&packets[15..]);
    assert_eq!(other.receive(), packets[15..]);
}

#[test]
fn many_packets_pass_between_sleeping_ends_in_both_directions() {
    let engine = engine();
    let [one, other] = ["p{3", "p}3"].map(|it| Program::open(&engine, it, all()).unwrap());
    const N: u32 = 20_000;
    let echo = std::thread::spawn(move || {
        let (rx, tx) = (other.rx(0).unwrap(), other.tx(0).unwrap());
        for number in 0..N {
            while rx.available() == 0 {
                other.poll(PollFlags::POLLIN);
            }
            assert_eq!(rx.bytes(rx.get(20)), frame(1, 2, number, 60));
            rx.give(1);
            while tx.available() == 0 {
                other.poll(PollFlags::POLLOUT);
            }
            tx.put(&frame(2, 1, number, 60), 0);
        }
        other.file.txsync().unwrap();
        other
    });
    let (rx, tx) = (one.rx(0).unwrap(), one.tx(0).unwrap());
    let (mut sent, mut back) = (0, 0);
    while back < N {
        let events = if sent < N { PollFlags::POLLOUT } else { PollFlags::empty() };
        one.poll(events | PollFlags::POLLIN);
        for _ in 0..tx.available().min(N - sent) {
            tx.put(&frame(1, 2, sent, 60), 0);
            sent += 1;
        }
        for packet in rx.take_all() {
            assert_eq!(packet, frame(2, 1, back, 60));
            back += 1;
        }
    }
    echo.join().unwrap();
}

#[test]
fn a_wake_up_before_the_sync_does_not_hide_the_next_one() {
    let engine = engine();
    let small = Register { tx_slots: 16, ..all() };
    let one = Program::open(&engine, "p{8", small).unwrap();
    let other = Program::open(&engine, "p}8", all()).unwrap();
    one.send(&vec![frame(1, 2, 0, 60); 15]);
    assert_eq!(one.file.poll(PollFlags::POLLOUT), PollFlags::empty());
    let sources = one.file.wait(PollFlags::POLLOUT);
    // Wakes the sleeper, which needs room, and gets none.
    other.send(&[frame(2, 1, 0, 60)]);
    assert_eq!(one.file.poll(PollFlags::POLLOUT), PollFlags::empty());
    assert_eq!(other.receive().len(), 15);
    other.file.rxsync().unwrap();
    assert!(sleep(&sources, TIMEOUT), "the room ends the sleep");
    assert_eq!(one.file.poll(PollFlags::POLLOUT), PollFlags::POLLOUT);
}

#[test]
fn each_thread_that_sleeps_in_a_file_is_woken() {
    let engine = engine();
    let [one, other] = ["p{9", "p}9"].map(|it| Program::open(&engine, it, all()).unwrap());
    let sources = one.file.wait(PollFlags::POLLIN);
    let in_thread = || {
        let sources = one.file.wait(PollFlags::POLLIN);
        other.send(&[frame(2, 1, 0, 60)]);
        assert!(sleep(&sources, TIMEOUT));
        assert_eq!(one.file.poll(PollFlags::POLLIN), PollFlags::POLLIN);
        one.file.wait(PollFlags::POLLIN);
    };
    std::thread::scope(|scope| scope.spawn(in_thread).join().unwrap());
    assert!(sleep(&sources, TIMEOUT), "the other thread has not read this one's wake-up");
}

#[test]
fn only_complete_packets_are_published() {
    let engine = engine();
    let [one, other] = ["p{4", "p}4"].map(|it| Program::open(&engine, it, all()).unwrap());
    one.tx(0).unwrap().put(&[1; 60], 0x20);
    one.file.txsync().unwrap();
    assert_eq!(other.receive().len(), 0);
    one.tx(0).unwrap().put(&[2; 60], 0);
    one.file.txsync().unwrap();
    assert_eq!(other.receive(), [vec![1; 60], vec![2; 60]]);
}

#[test]
fn an_end_may_be_closed_and_opened_again() {
    let engine = engine();
    let keeper = Program::open(&engine, "p{6", all()).unwrap();
    let one = Program::open(&engine, "p{5", all()).unwrap();
    one.send(&[frame(1, 2, 0, 60), frame(1, 2, 1, 60)]);
    for number in 0..2 {
        let other = Program::open(&engine, "p}5", all()).unwrap();
        other.file.rxsync().unwrap();
        assert_eq!(other.rx(0).unwrap().bytes(number), frame(1, 2, number, 60));
        other.rx(0).unwrap().give(1);
        other.file.rxsync().unwrap();
    }
    drop(one);
    // A pipe of the same name is a new one.
    let one = Program::open(&engine, "p{5", Register { tx_slots: 64, ..all() }).unwrap();
    assert_eq!(one.tx(0).unwrap().available(), 63);
    assert_eq!(one.answer.mem_id, keeper.answer.mem_id, "pipes of one parent share its region");
}

#[test]
fn a_registration_that_finds_a_ring_in_use_takes_none() {
    let engine = engine();
    let file = engine.open();
    request(&*file, "v0", Request::ValeNewInterface(ValeNewInterface::default())).unwrap();
    request(&*file, "vale0:v0", Request::ValeAttach(ValeAttach::default())).unwrap();
    let two = Register { tx_rings: 2, rx_rings: 2, ..all() };
    let one = |ringid| Register { mode: modes::ONE_NIC, ringid, ..two };
    let _second = Program::open(&engine, "v0{1", one(1)).unwrap();
    // `vale0:v0{1` names the same end as `v0{1`.
    assert_eq!(Program::open(&engine, "vale0:v0{1", two).err(), Some(Errno::EBUSY));
    assert!(Program::open(&engine, "v0{1", one(0)).is_ok(), "the first ring is free");
}

#[test]
fn exclusive_ends_and_names() {
    let engine = engine();
    let exclusive = Register { flags: register_flags::EXCLUSIVE, ..all() };
    let _one = Program::open(&engine, "p{x/y", exclusive).unwrap();
    let other = Program::open(&engine, "p}x/y", all()).unwrap();
    assert_eq!(Program::open(&engine, "p{x/y", all()).err(), Some(Errno::EBUSY));
    assert_eq!(Program::open(&engine, "p}x/y", exclusive).err(), Some(Errno::EBUSY));
    assert!(Program::open(&engine, "p}x/y", all()).is_ok());
    assert_eq!(Program::open(&engine, "p{", all()).err(), Some(Errno::EINVAL));
    drop(other);
    // A pipe of a port of a switch, and a pipe of a pipe.
    let port = Program::open(&engine, "vale9:a", all()).unwrap();
    let nested = ["vale9:a{1", "vale9:a}1", "vale9:a{1{2"];
    for name in nested {
        let pipe = Program::open(&engine, name, all()).unwrap();
        assert_eq!(pipe.answer.mem_id, port.answer.mem_id, "{name}");
    }
}
