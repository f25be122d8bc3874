//! Tests of programs with the engine in their own process: files without a limit, and the descriptors of a card.

use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use sluicegate::link::Shape;
use sluicegate_netmap::abi::PortName;
use sluicegate_netmap::abi::bodies::Register;
use sluicegate_netmap::engine::{Backend, EngineOptions, WaitSources};

use crate::cards::{TIMEOUT, engine as engine_of, left, send};
use crate::engine;
use crate::program::{Program, TAIL, all, frame, sleep};
use crate::scratch::lab_of;

#[test]
fn a_registration_without_room_takes_no_extra_buffers() {
    let engine = engine();
    let name = PortName::from("vale0:full");
    let register = |extra_bufs| {
        let (file, mut body) = (engine.open(), Register { extra_bufs, ..all() });
        file.register(&name, &mut body).map(|()| (file, body.extra_bufs))
    };
    let mut files = Vec::new();
    let full = loop {
        match register(0) {
            Ok(file) => files.push(file),
            Err(errno) => break errno,
        }
    };
    assert_eq!(full, Errno::ENOMEM, "no room for another header");
    for _ in 0..100 {
        assert_eq!(register(1000).err(), Some(Errno::ENOMEM));
    }
    files.pop();
    assert_eq!(register(1000).unwrap().1, 1000);
}

#[test]
fn a_sync_receives_and_wakes_another_file_that_sleeps_on_the_ring() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    for backend in [Backend::Xdp, Backend::Packet] {
        let engine =
            engine_of(&lab, EngineOptions { backend: Some(backend), ..Default::default() });
        let [sleeper, other] = [(); 2].map(|()| Program::open(&engine, "right0", all()).unwrap());
        let mut left = left(&lab);
        for number in 0..10 {
            let before = sleeper.rx(0).unwrap().get(TAIL);
            // Gives the last packet's slot back.
            assert_eq!(sleeper.file.poll(PollFlags::POLLIN), PollFlags::empty());
            let waits = sleeper.file.wait(PollFlags::POLLIN);
            // The card's descriptors follow the one by which files wake each other.
            let card =
                WaitSources { descriptors: waits.descriptors[1..].to_vec(), ..waits.clone() };
            let ring = WaitSources { descriptors: waits.descriptors[..1].to_vec(), ..waits };
            if number % 2 == 0 {
                assert_eq!(sleeper.file.poll(PollFlags::POLLIN), PollFlags::empty());
            }
            send(&mut left, &[frame(2, 1, number, 60)]);
            assert!(sleep(&card, TIMEOUT));
            other.file.rxsync().unwrap();
            assert_ne!(sleeper.rx(0).unwrap().get(TAIL), before, "{backend:?}: it receives");
            assert!(sleep(&ring, Duration::ZERO), "{backend:?}: it wakes the sleeper");
            assert_eq!(sleeper.wait_for_tests(1), [frame(2, 1, number, 60)]);
        }
    }
}
